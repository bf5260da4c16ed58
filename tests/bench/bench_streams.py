"""What an open stream costs the server in memory, and that a slow reader costs no more than others.

`python tests/bench/bench_streams.py [STREAMS]`
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stream_load import bytes_a_stream, growth_by_slow_readers, serving

MOST_KB = 60
SCENES = (("held", False), ("held", True), ("tokens", False), ("tokens", True))


async def main() -> None:
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for model, in_session in SCENES:
        async with serving() as server:
            used = await bytes_a_stream(server, streams, model=model, in_session=in_session) / 1024
            where = "in a session each" if in_session else "without a session"
            backend = "an upstream" if model == "held" else "a token backend"
            print(f"{streams} streams of {backend}, {where}: {used:.0f} KB a stream (at most {MOST_KB})")
    for in_session in (False, True):
        async with serving() as server:
            measured = await growth_by_slow_readers(server, 10, in_session=in_session, seconds=12)
            shown = ", ".join(f"{size / 2**20:.0f}" for size in measured)
            print(f"10 readers that don't read, in_session={in_session}: MB each second: {shown}")


if __name__ == "__main__":
    asyncio.run(main())
