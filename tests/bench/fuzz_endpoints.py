"""`python tests/bench/fuzz_endpoints.py [REQUESTS] [SEED]`: strange requests to every endpoint; no 500, no hang."""

import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from endpoint_fuzz import fuzz
from rolltap.testing import tiny_tokenizer


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    logging.getLogger("rolltap").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        statuses = asyncio.run(fuzz(str(tiny_tokenizer(Path(folder))), requests, seed))
    answered = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    print(
        f"{requests} requests, none failed or hung, {time.perf_counter() - started:.0f} s; seed {seed}; {answered}"
    )


if __name__ == "__main__":
    main()
