"""Random rollouts against the invariant: each node is what the backend was sent plus what it returned.

`rollouts(seed, turns)` plays them on a scripted backend: any Unicode and look-alikes of special tokens, odd
tokenizations, edits of history, n > 1, cuts, retries, concurrent calls. Used by `tests/core/test_invariant.py` for a
while and by `tests/bench/soak_invariant.py` for long.
"""

import asyncio
import random
from collections import Counter

from rolltap import BadRequest, ChatRequest, Message, Sampling, ToolCall
from rolltap.pipeline import Pipeline
from rolltap.record.views import views
from rolltap.server.state import MODELS, PIPELINE, SESSIONS
from rolltap.session import Session
from rolltap.session_settings import SessionRequest, new_info
from rolltap.testing import Reply, ScriptedTokenBackend, serve

LOOKALIKES = [
    "<|im_end|>",
    "<|im_start|>user\n",
    "<think>",
    "</think>",
    "<tool_call>",
    "</s>",
    "<|user|>",
    "[INST]",
]
ALPHABET = 'ab ü€\u4e2d\U0001f642\u200d\n\t"{}<>|\\'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


class Violation(AssertionError):
    """The record differs from what went over the wire."""


def random_text(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return rng.choice(LOOKALIKES) + rng.choice(["", "x"])
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 12)))


class RandomEngine:
    """Answers with random tokens: text in its usual tokenization, or any ids at all."""

    def __init__(self, rng: random.Random, backend: ScriptedTokenBackend) -> None:
        self._rng = rng
        self._backend = backend

    def __call__(self, prompt_ids: list[int], sampling: Sampling) -> Reply:
        rng = self._rng
        ids = self._backend.encode(self._text())
        if rng.random() < 0.3:
            ids = [index for token in ids for index in self._odd(token)]
        finish = rng.choice(["stop", "stop", "length"])
        if finish == "stop":
            ids.append(self._backend._tokenizer.eos_token_id)
        return Reply(ids=ids or [5], finish_reason=finish, chunk=rng.choice([1, 2, 7]))

    def _text(self) -> str:
        rng = self._rng
        if rng.random() < 0.25:
            return (
                '<tool_call>\n{"name": "f", "arguments": {"x": '
                + rng.choice(["1", "1.0", '"ü"'])
                + "}}\n</tool_call>"
            )
        return random_text(rng)

    def _odd(self, token: int) -> list[int]:
        text = self._backend._tokenizer.decode([token])
        if len(text) > 1:
            return [index for letter in text for index in self._backend.encode(letter)]
        return (
            [token, self._rng.randrange(len(self._backend._tokenizer))]
            if self._rng.random() < 0.1
            else [token]
        )


class Rollout:
    """One session, played at random and checked after every round."""

    def __init__(
        self, rng: random.Random, pipeline: Pipeline, session: Session, backend: ScriptedTokenBackend
    ) -> None:
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self._pipeline = pipeline
        self._session = session
        self._backend = backend
        self._conversations: list[list[Message]] = [[]]
        self._checked: set[str] = set()

    async def round(self) -> None:
        """One to three calls at once, then a check of every node that they made."""
        before = len(self._backend.calls)
        await asyncio.gather(*(self._call() for _ in range(self.rng.choice([1, 1, 1, 2, 3]))))
        sent = [
            [*call.prompt_ids, *output] for call in self._backend.calls[before:] for output in call.output_ids
        ]
        for node in views(self._session.record, tree=True):
            if node.node_id not in self._checked:
                self._checked.add(node.node_id)
                self._check(node, sent)
        del self._backend.calls[:]

    def _check(self, node, sent: list[list[int]]) -> None:
        tokens = node.tokens
        if isinstance(node.metadata["stop_reason"], str):  # the engine went on after the stop string
            sent = [sequence[: len(tokens)] for sequence in sent]
        if tokens not in sent:
            raise Violation(
                f"node {node.node_id} is none of the {len(sent)} sequences that went over the wire"
            )
        if not len(tokens) == len(node.masked_tokens) == len(node.logprobs):
            raise Violation(f"node {node.node_id}: tokens, mask and logprobs differ in length")
        self.counts["extended" if node.metadata["parent_id"] else "roots"] += 1
        self.counts["turns"] += 1

    async def _call(self) -> None:
        rng = self.rng
        messages = self._next_messages()
        request = ChatRequest(
            messages=messages,
            tools=TOOLS,
            sampling=Sampling(n=rng.choice([1, 1, 1, 2]), stop=rng.choice([None, ["b"]])),
        )
        try:
            call = self._pipeline.begin(request, self._session)
            async for _ in call.deltas():
                pass
        except BadRequest:  # a template that takes only some orders of roles
            self.counts["refused"] += 1
            return
        choice = rng.choice(call.completion.choices)
        self._conversations.append([*messages, self._sent_back(choice)])

    def _next_messages(self) -> list[Message]:
        rng = self.rng
        history = list(rng.choice(self._conversations[-3:]))
        if rng.random() < 0.1 and history:
            history = history[: rng.randrange(len(history))]
        while history and history[-1].role == "user":
            history.pop()
        if history and history[-1].tool_calls:
            return [
                *history,
                *(
                    Message(role="tool", tool_call_id=call.id, content=random_text(rng))
                    for call in history[-1].tool_calls
                ),
            ]
        return [*history, Message(role="user", content=random_text(rng))]

    def _sent_back(self, choice) -> Message:
        """The answer as some client sends it back."""
        text = choice.text.strip() if self.rng.random() < 0.5 else choice.text
        calls = [ToolCall(name=call.name, arguments=call.arguments, id=call.id) for call in choice.tool_calls]
        return Message(role="assistant", content=text or self.rng.choice([None, ""]), tool_calls=calls)


async def rollouts(folder: str, seed: int, turns: int) -> Counter[str]:
    """Play at least `turns` turns on one tokenizer. Raises `Violation`."""
    rng = random.Random(seed)
    backend = ScriptedTokenBackend(folder)
    backend._script = RandomEngine(rng, backend)
    counts: Counter[str] = Counter()
    async with serve(backend) as server:
        pipeline, models, sessions = server.app[PIPELINE], server.app[MODELS], server.app[SESSIONS]
        while counts["turns"] < turns:
            info = new_info(SessionRequest(), model=models.default.name, tool_parser="hermes", base_url=None)
            session = await sessions.create(info)
            rollout = Rollout(rng, pipeline, session, backend)
            for _ in range(8):
                await rollout.round()
            counts += rollout.counts
            await sessions.delete(session.id)
    return counts
