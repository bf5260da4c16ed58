"""Lines of the log: what they never show, and their two forms."""

import json
import logging
import uuid

import pytest

from rolltap.cli.logs import JsonFormatter, SafeRecord, TextFormatter, session_hash

SESSION = str(uuid.uuid4())


def _record(message, *arguments, exc_info=None):
    return SafeRecord("rolltap", logging.ERROR, __file__, 1, message, arguments, exc_info)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_session_is_named_by_a_hash_in_messages_and_tracebacks(formatter):
    try:
        raise LookupError(f"no {SESSION}\x1b[2J")
    except LookupError as error:
        record = _record("GET /%s/nodes failed", SESSION, exc_info=(type(error), error, error.__traceback__))
    line = formatter.format(record)
    assert SESSION not in line
    assert session_hash(SESSION) in line
    assert "\x1b" not in line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_client_can_forge_no_line(formatter):
    line = formatter.format(_record("model %s is unknown", "m\r\n2026 INFO forged\x1b[31m\u2028x\x85"))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_json_lines_name_the_session_of_a_request():
    line = json.loads(JsonFormatter().format(_record("DELETE /%s", SESSION)))
    assert line["session"] == session_hash(SESSION)
    assert (line["level"], line["logger"]) == ("ERROR", "rolltap")
