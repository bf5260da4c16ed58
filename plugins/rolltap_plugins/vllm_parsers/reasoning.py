"""A reasoning parser that leaves the reading to vLLM: its parse of the whole text decides."""

import logging
from collections.abc import Callable, Sequence

from rolltap import Reasoning, ReasoningParser
from rolltap_plugins.vllm_parsers.loading import Format, Parsed

_log = logging.getLogger(__name__)


class VLLMReasoningParser(ReasoningParser):
    """Gives thinking once it is closed, and the answer after it as it comes.

    Closed means: at the first closing mark, where vLLM reads the text up to it as thinking and nothing else. For formats
    without marks, or where it reads the text otherwise, all is given at the end. White space at the thinking's ends is
    left out.
    """

    def __init__(self, found: Format) -> None:
        self.keep_special_tokens = found.keep_special_tokens  # type: ignore[misc]  # each format has its own
        self._format = found
        self._request = found.request([])
        self._state: Callable[[str], Sequence[str | Reasoning]] = self._in_thinking
        self._parts: list[str] = []
        self._tail = ""

    def begin(self, prompt_tail: str) -> None:
        """Start inside the thinking, or after it, where the prompt ends with one of its marks."""
        opening, closing = self._format.marks or ("", "")
        tail = prompt_tail.rstrip()
        if closing and tail.endswith(closing):
            self._state = self._in_answer
        elif opening and tail.endswith(opening):
            self._parts.append(opening)

    def feed(self, text: str) -> Sequence[str | Reasoning]:
        """Take the next piece of text; give what is certain now."""
        return self._state(text)

    def finish(self) -> Sequence[str | Reasoning]:
        """Have vLLM read what was held back, the whole text then. Where its parser fails, that is the answer."""
        if self._state == self._in_answer:
            return []
        whole = "".join(self._parts)
        parsed = self._parse(whole)
        return [whole] if parsed is None else [*_thinking(parsed), parsed.content]

    def _in_thinking(self, text: str) -> Sequence[str | Reasoning]:
        """All waits for the first closing mark."""
        self._parts.append(text)
        closing = self._format.marks[1] if self._format.marks else ""
        recent = self._tail + text
        found = recent.find(closing) if closing else -1
        if found < 0:
            self._tail = recent[-len(closing) + 1 :] if len(closing) > 1 else ""
            return []
        after = recent[found + len(closing) :]
        closed = "".join(self._parts).removesuffix(after)
        parsed = self._parse(closed)
        if parsed is None or parsed.content.strip() or not self._answers_after(closed, parsed):
            self._state = self._undecided
            return []
        self._state = self._in_answer
        return [*_thinking(parsed), *self._in_answer(after)]

    def _answers_after(self, closed: str, parsed: Parsed) -> bool:
        """Whether vLLM reads what comes after the closing mark as the answer: asked with a plain word."""
        answered = self._parse(f"{closed}answer")
        return answered is not None and answered[:2] == (parsed.reasoning, "answer")

    def _undecided(self, text: str) -> Sequence[str | Reasoning]:
        self._parts.append(text)
        return []

    def _in_answer(self, text: str) -> Sequence[str | Reasoning]:
        return [text] if text else []

    def _parse(self, text: str) -> Parsed | None:
        try:
            return self._format.parse(text, self._request)
        except Exception as error:  # noqa: BLE001  # vLLM's code: a text that it can't read must not end the request
            _log.warning("vLLM's reasoning parser failed, so the text stays as it is: %r", error)
            return None


def _thinking(parsed: Parsed) -> list[str | Reasoning]:
    thinking = parsed.reasoning.strip()
    return [Reasoning(thinking)] if thinking else []
