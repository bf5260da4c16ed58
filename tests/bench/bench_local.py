"""How many tokens a second the local backend gives, on the embedded model: one reply, a full batch, short turns.

`python tests/bench/bench_local.py [THREADS]`

*Short turns* is what a rollout of a small game looks like: many conversations at once, each turn some new ids on top of
what was said before, and a reply of four tokens. What is counted is what the engine ran for it: new prompt ids and
generated ones. CPU time says more than the clock on a machine that does other things too.
"""

import asyncio
import random
import sys
import time

from rolltap import Sampling, TokenRequest
from rolltap_plugins.local import LocalBackend, LocalOptions

CONVERSATIONS, TURNS, NEW_IDS, REPLY = 32, 3, 15, 4


class Count:
    """What was run: ids of prompts that were not cached, and generated ids."""

    def __init__(self) -> None:
        self.prompt = 0
        self.generated = 0


async def ask(backend: LocalBackend, prompt: list[int], max_tokens: int, count: Count) -> list[int]:
    """The reply's ids."""
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    output: list[int] = []
    async for delta in backend.generate(
        TokenRequest(prompt_ids=tuple(prompt), sampling=sampling, stream=False)
    ):
        output += delta.token_ids
        if delta.cached_tokens is not None:
            count.prompt += len(prompt) - delta.cached_tokens
    count.generated += len(output)
    return output


async def conversation(backend: LocalBackend, beginning: list[int], seed: int, count: Count) -> None:
    """Some short turns, one after the other."""
    chance = random.Random(seed)
    ids = list(beginning)
    for _ in range(TURNS):
        ids += [chance.randrange(100, 40_000) for _ in range(NEW_IDS)]
        ids += await ask(backend, ids, REPLY, count)


async def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    backend = LocalBackend(LocalOptions(threads=threads))
    await backend.start()
    chance = random.Random(1)

    def prompt(length: int) -> list[int]:
        return [chance.randrange(100, 40_000) for _ in range(length)]

    async def measured(name: str, *work) -> None:
        count, start, start_cpu = Count(), time.perf_counter(), time.process_time()
        await asyncio.gather(*(coroutine(count) for coroutine in work))
        took, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        total = count.prompt + count.generated
        print(
            f"{name:<28} {count.prompt:5} prompt + {count.generated:4} generated ids: {took:5.1f} s,"
            f" {total / took:4.0f} ids a second; {cpu:5.1f} s of CPU time, {total / cpu:4.0f} a second",
            flush=True,
        )

    def asked(length: int, max_tokens: int):
        ids = prompt(length)
        return lambda count: ask(backend, ids, max_tokens, count)

    await measured("warm-up", asked(20, 4))
    await measured("one reply", asked(20, 64))
    await measured("32 replies at once", *(asked(20, 32) for _ in range(32)))
    await measured("32 prompts of 20 ids", *(asked(20, 1) for _ in range(32)))
    await measured("8 prompts of 256 ids", *(asked(256, 1) for _ in range(8)))
    beginning = prompt(100)
    games = [
        lambda count, seed=seed: conversation(backend, beginning, seed, count)
        for seed in range(CONVERSATIONS)
    ]
    await measured(f"{CONVERSATIONS} games of {TURNS} short turns", *games)
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
