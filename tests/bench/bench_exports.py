"""How fast recorded sessions are exported: `python tests/bench/bench_exports.py`.

1,000,000 tokens in sessions of 8 turns, 2,000 tokens each: tokens a second to every format's rows as JSON, and to a
Parquet file. Then four times as many sessions: the peak of memory must not grow with them.
"""

import resource
import sys
import tempfile
import time
import tracemalloc
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from forests import call, forest_of, leaves, summary
from rolltap import SessionSummary
from rolltap.record.fold import SessionRecord
from rolltap_plugins.exports import export_format

TURNS, PROMPT, ANSWER = 8, 150, 100
SESSION = TURNS * (PROMPT + ANSWER)
TOKENS = 1_000_000
SEED = 1


def sessions(tokens: int) -> Iterator[tuple[SessionSummary, SessionRecord]]:
    """Sessions of so many tokens in all, one at a time, as a store would give them."""
    rng = Random(SEED)
    for number in range(tokens // SESSION):
        calls, parent = [], None
        for turn in range(TURNS):
            prompt = array("i", (rng.randrange(150_000) for _ in range(PROMPT)))
            answer = array("i", (rng.randrange(150_000) for _ in range(ANSWER)))
            logprobs = array("d", (-rng.random() for _ in range(ANSWER)))
            name = f"{number}-{turn}"
            calls.append(
                call(name, parent, prompt, [(answer, logprobs, {"weight_versions": [[0, ANSWER, "12"]]})])
            )
            parent = f"{name}.0"
        yield summary(uuid=f"session-{number}"), forest_of(*calls)


def rate(name: str, made: list[tuple[SessionSummary, SessionRecord]], path: Path) -> tuple[float, int]:
    """Tokens a second of processor time, and the bytes that were written."""
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        with export_format[name]().open(path) as file:
            for session, record in made:
                file.write(session, leaves(record))
        best = max(best, TOKENS / (time.process_time() - began))
    return best, path.stat().st_size


def peak(name: str, path: Path, tokens: int) -> float:
    """The most memory that Python held while so many tokens were exported, in MB."""
    tracemalloc.start()
    with export_format[name]().open(path) as file:
        for session, record in sessions(tokens):
            file.write(session, leaves(record))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 1e6


def main() -> None:
    """Measure and print."""
    made = list(sessions(TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in export_format.items():
            speed, size = rate(name, made, Path(folder, f"rows{kind.suffix}"))
            print(f"{name}: {speed / 1e6:.2f} M tokens/s, {size / TOKENS:.1f} bytes a token")
        del made
        for name in ("jsonl", "parquet"):
            few, many = (peak(name, Path(folder, f"rows.{name}"), n) for n in (TOKENS, 4 * TOKENS))
            print(f"{name}: peak {few:.0f} MB for 1 M tokens, {many:.0f} MB for 4 M tokens")
    print(f"resident at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
