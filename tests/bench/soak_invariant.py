"""Random rollouts for long: `python tests/bench/soak_invariant.py [TURNS]`, over every style of chat template."""

import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from random_rollouts import rollouts
from rolltap.testing.tokenizers import FAMILIES


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 24_000
    logging.disable(logging.WARNING)
    started, total = time.perf_counter(), 0
    for seed, (name, family) in enumerate(FAMILIES.items()):
        with tempfile.TemporaryDirectory() as folder:
            counts = asyncio.run(rollouts(str(family.build(Path(folder))), seed, turns // len(FAMILIES) + 1))
        total += counts["turns"]
        print(
            f"{name:10} {counts['turns']:6} turns, {counts['extended']:6} extended a node, "
            f"{counts['refused']:5} refused by the template, 0 violations"
        )
    print(f"{total} turns, 0 violations, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
