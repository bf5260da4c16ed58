"""Times the hermes parser behind the reader: `python tests/bench/bench_parsing.py`.

Prints microseconds a token for plain text, and seconds for a call whose arguments are 256 KB and 1 MB long, in pieces
of 4 characters: one long string, and many small numbers.
"""

# it is run by hand and prints

import time
from collections.abc import Callable
from functools import partial

from rolltap.reading import OutputReader
from rolltap_plugins.hermes import HermesToolParser


def _pieces(text: str, size: int = 4) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _best(run: Callable[[], object], times: int = 5) -> float:
    """Seconds of processor time of the fastest run: the one least disturbed."""
    seconds = []
    for _ in range(times):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return min(seconds)


def _read(pieces: list[str]) -> None:
    reader = OutputReader(HermesToolParser())
    for piece in pieces:
        reader.feed(piece)
    reader.finish()


def _string_call(size: int) -> str:
    line = 'if (a < b) { print(\\"x\\"); }\\n  '
    body = line * (size // len(line))
    return f'<tool_call>\n{{"name": "save", "arguments": {{"body": "{body}"}}}}\n</tool_call>'


def _number_call(size: int) -> str:
    return f'<tool_call>\n{{"name": "save", "arguments": {{"row": [{"12, 3.5, " * (size // 9)}0]}}}}\n</tool_call>'


def main() -> None:
    """Measure and print."""
    for label, word in (("words", " word"), ("code", " a<b ")):
        tokens = [word] * 100_000
        seconds = _best(partial(_read, tokens))
        print(f"plain text, {label}: {seconds / len(tokens) * 1e6:.2f} µs a token")
    for label, make in (("one string", _string_call), ("numbers", _number_call)):
        small = _best(partial(_read, _pieces(make(256 * 1024))))
        large = _best(partial(_read, _pieces(make(1024 * 1024))))
        print(f"arguments, {label}: 256 KB {small:.3f} s, 1 MB {large:.3f} s, ratio {large / small:.2f}")


if __name__ == "__main__":
    main()
