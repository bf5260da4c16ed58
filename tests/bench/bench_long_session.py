"""A long conversation: what a turn costs early and late, and what the record of it weighs.

`python tests/bench/bench_long_session.py`: 200 turns, about 100,000 tokens, through the whole pipeline with a
scripted backend. Prints the time that preparing a prompt takes at turn 10 and at turn 200, split by step, and the
bytes of memory for each recorded token.
"""

import asyncio
import gc
import tempfile
import time
import tracemalloc
from pathlib import Path
from statistics import median

from rolltap import ChatRequest, Completion, Message
from rolltap.server.state import MODELS, PIPELINE
from rolltap.session import Session
from rolltap.session_settings import SessionRequest, new_info
from rolltap.testing import ScriptedTokenBackend, serve
from rolltap.testing.tokenizers import FAMILIES
from rolltap.turns.prompts import place

TURNS = 200
QUESTION = "Please look at the weather in Paris and tell me what to wear today, in a few words. " * 8
ANSWER = "It is sunny today, and it will rain tomorrow; take a coat and the answer with you. " * 9


class NoStore:
    """Keeps nothing: what is weighed is the session."""

    async def append(self, session: str, entry: object) -> int:
        return 0


async def run(family: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        backend = ScriptedTokenBackend(
            str(FAMILIES[family].build(Path(folder))), lambda ids, sampling: ANSWER
        )
        async with serve(backend) as server:
            pipeline, model = server.app[PIPELINE], server.app[MODELS].default
            renderer = model.tokenizing
            info = new_info(SessionRequest(), model=model.name, tool_parser="", base_url=None)
            tracemalloc.start()
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            session = Session(info, NoStore())
            messages: list[Message] = []
            costs: dict[int, tuple[float, float]] = {}
            start_tokens = 0
            for turn in range(1, TURNS + 1):
                messages.append(Message(role="user", content=f"{turn} {QUESTION}"))
                request = ChatRequest(messages=messages)
                if turn in {10, TURNS}:
                    tracemalloc.stop()
                    costs[turn] = measure(request, session, model.name, renderer)
                    tracemalloc.start()
                    gc.collect()
                    before = tracemalloc.get_traced_memory()[0] if turn == 10 else before
                    start_tokens = len(session.forest.leaves()[0].tokens()) if turn == 10 else start_tokens
                completion = Completion(id="c", model=model.name, created=0)
                async for _ in pipeline.answer(request, session, completion):
                    pass
                messages.append(Message(role="assistant", content=completion.choices[0].text))
                backend.calls.clear()
                if turn == TURNS - 1:
                    await asyncio.sleep(0.1)  # the loop closes finished generators
                    gc.collect()
                    grown = tracemalloc.get_traced_memory()[0] - before
                    tokens = len(session.forest.leaves()[0].tokens()) - start_tokens
            total = len(session.forest.leaves()[0].tokens())
            new_text = sum(len(m.text) for m in messages[20:-2])
            print(f"{family}: {TURNS} turns, {total} tokens")
            for turn, (matching, rendering) in costs.items():
                print(
                    f"  turn {turn:3}: matching {matching * 1e6:6.0f} µs, rendering + tokenizing {rendering * 1e6:6.0f} µs"
                )
            print(f"  rendering + tokenizing, turn {TURNS} / turn 10: {costs[TURNS][1] / costs[10][1]:.2f}")
            held = grown - new_text  # the client's own messages, kept by this script
            print(f"  record: {held / tokens:.1f} bytes a token (without the script's copy of the messages)")


def measure(request, session, model: str, renderer) -> tuple[float, float]:
    """Seconds to find the parent, and to render and tokenize what is new."""
    matching, rendering = [], []
    for _ in range(25):
        start = time.perf_counter()
        at = place(request, session.forest, model=model, tokens=True)
        middle = time.perf_counter()
        renderer.suffix(request, at.kept, at.parent.last_id())
        matching.append(middle - start)
        rendering.append(time.perf_counter() - middle)
    return median(matching), median(rendering)


if __name__ == "__main__":
    for name in ("chatml", "qwen3", "deepseek"):
        asyncio.run(run(name))
