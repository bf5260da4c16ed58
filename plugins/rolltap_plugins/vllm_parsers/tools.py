"""A tool parser that leaves the reading to vLLM: its parse of the whole text decides."""

import logging
from collections.abc import Sequence
from typing import Any

from rolltap import ToolCall, ToolParser
from rolltap_plugins.vllm_parsers.loading import Format
from rolltap_plugins.vllm_parsers.plain import PlainText, rest_of

_log = logging.getLogger(__name__)


class VLLMToolParser(ToolParser):
    """Gives content at once up to where markup may start, and all else at the end.

    vLLM's own streaming depends on how the text is cut; its parse of a whole text doesn't.
    """

    def __init__(self, found: Format, request: Any) -> None:
        self.keep_special_tokens = found.keep_special_tokens  # type: ignore[misc]  # each format has its own
        self._format = found
        self._request = request
        self._plain = PlainText()

    def feed(self, text: str) -> Sequence[str | ToolCall]:
        """Give text that is content whatever follows."""
        certain = self._plain.feed(text)
        return [certain] if certain else []

    def finish(self) -> Sequence[str | ToolCall]:
        """Have vLLM read the whole text; give what is left of its content, and the calls.

        Where its parser fails, the text is content.
        """
        text, given = self._plain.text, self._plain.given
        try:
            parsed = self._format.parse(text, self._request)
            calls = [ToolCall(call.name, call.arguments, _own_id(call)) for call in parsed.calls]
        except Exception as error:  # noqa: BLE001  # vLLM's code: a text that it can't read must not end the request
            _log.warning("vLLM's tool parser failed, so the text stays as it is: %r", error)
            return [text[len(given) :]]
        return [rest_of(parsed.content, given), *calls]


def _own_id(call: Any) -> str:
    """The id that the model gave a call, as in `functions.name:0`; "" for one that vLLM made up."""
    return call.id if call.id and call.name in call.id else ""
