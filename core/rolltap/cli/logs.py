"""How log lines are written: as text or as JSON; without ids of sessions and without control characters of clients."""

import json
import logging
import re
from hashlib import sha256

_SESSION_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_IN_TRACEBACKS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def session_hash(session: str) -> str:
    """A short hash of a session's id, which opens the session and must not be in logs."""
    return "s-" + sha256(session.lower().encode()).hexdigest()[:12]


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _without_ids(text: str) -> str:
    return _SESSION_ID.sub(lambda found: session_hash(found[0]), text)


class SafeRecord(logging.LogRecord):
    """A record whose message is one line that opens no session."""

    def getMessage(self) -> str:  # noqa: N802 - logging's own name
        """The message as it may be written."""
        return _CONTROL.sub(_escaped, _without_ids(super().getMessage()))


class TextFormatter(logging.Formatter):
    """Lines for people."""

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's own name
        """The traceback as it may be written."""
        return _IN_TRACEBACKS.sub(_escaped, _without_ids(super().formatException(ei)))  # type: ignore[arg-type]


class JsonFormatter(TextFormatter):
    """An object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, with the sessions that its message is about."""
        message = record.getMessage()
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        if sessions := re.findall(r"\bs-[0-9a-f]{12}\b", message):
            line["session"] = sessions[0]
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
