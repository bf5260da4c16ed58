"""What turn k of a long chat session costs, beside what JSON of its body costs: `python tests/bench/bench_long_session.py [TURNS]`.

CPU of one process that holds the client, the server and a scripted backend.
"""

import asyncio
import gc
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import orjson

from rolltap.testing import ScriptedTokenBackend, serve, tiny_tokenizer

NEAR = 20
"""A turn's cost is the median of so many turns before it and after it."""


async def main(turns: int) -> None:
    """Talk for that many turns, and print."""
    with tempfile.TemporaryDirectory() as folder:
        backend = ScriptedTokenBackend(
            str(tiny_tokenizer(Path(folder))), lambda ids, sampling: "The answer is forty-two."
        )
        async with serve(backend) as server:
            path = f"/{await server.session()}/v1/chat/completions"
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)  # as `rolltap serve` has it
            costs, of_json = [], []
            messages: list[dict[str, object]] = []
            for turn in range(turns):
                messages.append({"role": "user", "content": f"What is the answer to question {turn}?"})
                body = orjson.dumps({"model": "test-model", "messages": messages})
                began = time.process_time()
                async with server.http.post(
                    path, data=body, headers={"content-type": "application/json"}
                ) as response:
                    reply = await response.json()
                costs.append(time.process_time() - began)
                began = time.process_time()
                orjson.dumps(orjson.loads(body))
                of_json.append(time.process_time() - began)
                messages.append(reply["choices"][0]["message"])
                backend.calls.clear()
    early, late = 50, turns - NEAR
    for turn in (early, turns // 2, late):
        print(f"turn {turn:5}: {_near(costs, turn):5.2f} ms; JSON of its body {_near(of_json, turn):5.2f} ms")
    added = _near(costs, late) - _near(costs, early)
    print(
        f"added since turn {early}: {added / (_near(of_json, late) - _near(of_json, early)):.2f} x what JSON has added"
    )


def _near(values: list[float], turn: int) -> float:
    return median(values[turn - NEAR : turn + NEAR]) * 1e3


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
