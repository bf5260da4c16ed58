"""Finding a client's stop strings in streamed text."""

from collections.abc import Sequence

from rolltap.errors import BadRequest


class StopStrings:
    """Cuts a text at the first stop string that is complete; of two that end together, at the longer one.

    Holds back only what may still become a stop string, so the result is the same however the text was cut into
    pieces. Each stop string is followed by its own Knuth-Morris-Pratt automaton: the cost grows with the text, also
    for texts and stop strings made to be slow.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise BadRequest("a stop string must not be empty", param="stop")
        self._stops = list(dict.fromkeys(stops))
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; None while there was none."""
        return self._matched

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece; give the text that is certain now, and the stop string once one is complete.

        Text after a stop string is dropped, also in later pieces.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._stops:
            return text, None
        text = self._held + text
        start = len(self._held)
        for position in range(start, len(text)):
            stop = self._advance(text[position])
            if stop is not None:
                self._matched, self._held = stop, ""
                return text[: position + 1 - len(stop)], stop
        certain = len(text) - max(self._states)
        self._held = text[certain:]
        return text[:certain], None

    def finish(self) -> str:
        """The text is over: give what was held back. Called once, last."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Move each automaton by one character; give the longest stop string that this completes."""
        complete = ""
        for index, stop in enumerate(self._stops):
            state, fallbacks = self._states[index], self._fallbacks[index]
            while state and stop[state] != char:
                state = fallbacks[state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                complete = max(complete, stop, key=len)
                state = fallbacks[state - 1]
            self._states[index] = state
        return complete or None


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of the stop string: how long its longest proper suffix is that also begins it."""
    fallbacks = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = fallbacks[length - 1]
        if stop[index] == stop[length]:
            length += 1
        fallbacks[index] = length
    return fallbacks
