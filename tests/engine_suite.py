"""The invariant on a real engine: rollouts by the real openai client, and each token proved by a second look.

A scenario is a coroutine function over an `Engine`, a running rolltap server in front of a real model. Each call is
rendered before and compared with its node after. At the end every recorded sequence is scored again, in one forward
pass that knows nothing of rolltap: had any token drifted on its way, the logprobs behind it would be others than those
recorded. Used on the local backend by `tests/plugins/test_local_invariant.py`, on vLLM by `tests/live`.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import openai

log = logging.getLogger(__name__)

Message = dict[str, Any]
Node = dict[str, Any]

TOLERANCE = 2e-3
"""How far a logprob may be from the one scored again, both in float32. Alone, in a batch or behind a cached prefix the
same sum is rounded differently, by less than 2e-4 as measured; one other token before it moves it by 0.01 and more."""

SHORT = 6
"""Tokens of most answers: a real model on a shared CPU makes some twenty a second."""

END_OF_TURN = 2
"""SmolLM2's `<|im_end|>`, with which it ends a turn."""

MASKED, MASKED_LOGPROB = -100, 1.0


class Drifted(AssertionError):
    """The record is not what the engine saw."""


class Engine:
    """A rolltap server in front of one real model, and a way to ask that model independently."""

    def __init__(
        self,
        url: str,
        model: str,
        rescore: Callable[[list[int]], Awaitable[list[float | None]]],
        running: Callable[[], Awaitable[float]],
        end: int = END_OF_TURN,
    ) -> None:
        """`rescore` gives each id's raw logprob after those before it (the first's is None), `running` how many
        sequences the engine is working at, `end` is the id with which the model ends a turn.
        """
        self.end = end
        self.url = url
        self.model = model
        self.rescore = rescore
        self.running = running
        self.http = aiohttp.ClientSession(url)
        self.turns = 0
        """Completions whose prompt was compared and whose tokens were scored again."""
        self.tokens = 0
        """Generated tokens that were scored again."""
        self.worst = 0.0
        """The largest difference of a logprob that was seen."""

    async def close(self) -> None:
        """Close the connections, and say what was proved (`pytest --log-cli-level=INFO` shows it)."""
        await self.http.close()
        log.info("%d turns, %d tokens proved; largest difference %.1e", self.turns, self.tokens, self.worst)

    async def record(self) -> dict[str, int]:
        """The server's counters of what it recorded."""
        async with self.http.get("/health") as response:
            return dict((await response.json())["record"])

    async def idle(self) -> None:
        """Wait until the engine works at nothing. Fails after 15 s."""
        async with asyncio.timeout(15):
            while await self.running():  # noqa: ASYNC110 - the engine has no event to wait for
                await asyncio.sleep(0.05)


class Rollout:
    """One session, whose every call is checked."""

    def __init__(self, engine: Engine, session: str) -> None:
        self.engine = engine
        self.session = session
        self.generated = 0
        self.turns = 0
        self.constrained: set[int] = set()
        """Positions that structured outputs forced: their logprobs are those among the tokens that were allowed."""
        self._client = openai.AsyncOpenAI(
            base_url=f"{engine.url}/{session}/v1", api_key="unused", max_retries=0
        )

    @classmethod
    async def begin(cls, engine: Engine, **settings: Any) -> "Rollout":
        async with engine.http.post("/sessions/create", json=settings) as response:
            return cls(engine, (await response.json())["uuid"])

    async def nodes(self, mask: str = "all") -> list[Node]:
        async with self.engine.http.get(f"/{self.session}/nodes", params={"mask": mask}) as response:
            return list((await response.json())["nodes"])

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        extends: bool = True,
        stream: bool = False,
        n: int = 1,
        **options: Any,
    ) -> list[Message]:
        """Ask by chat; the answers as a client sends them back. `extends`: whether a recorded node must be extended."""
        body = {"messages": messages, "max_tokens": SHORT, **options}
        known = {node["metadata"]["node_id"] for node in await self.nodes()}
        rendered = await self.render("chat/completions", body)
        answers = await self.ask(body | {"n": n}, stream=stream)
        await self.check(rendered, known, n=n, extends=extends)
        return answers

    async def complete(self, prompt: str | list[int], *, extends: bool = True, **options: Any) -> str:
        """Ask for a raw completion."""
        body = {"prompt": prompt, "max_tokens": SHORT, "ignore_eos": True, **options}
        known = {node["metadata"]["node_id"] for node in await self.nodes()}
        rendered = await self.render("completions", body)
        own = {"prompt": prompt, "max_tokens": body.pop("max_tokens")}
        extra = {name: value for name, value in body.items() if name not in own}
        reply = await self._client.completions.create(model=self.engine.model, **own, extra_body=extra)
        await self.check(rendered, known, extends=extends)
        return reply.choices[0].text

    async def render(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the next call would send."""
        async with self.engine.http.post(f"/{self.session}/v1/{path}/render", json=body) as response:
            rendered: dict[str, Any] = await response.json()
        assert response.status == 200, rendered
        return rendered

    async def ask(self, body: dict[str, Any], *, stream: bool = False, **headers: str) -> list[Message]:
        """The answers to a body, unchecked."""
        extra = {name: body[name] for name in body if name not in _OPENAI_NAMES}
        own = {name: body[name] for name in body if name in _OPENAI_NAMES}
        asked = {"model": self.engine.model, **own, "extra_body": extra, "extra_headers": headers}
        if stream:
            return await self._streamed(asked)
        reply = await self._client.chat.completions.create(**asked)
        return [choice.message.model_dump(exclude_none=True) for choice in reply.choices]

    async def _streamed(self, asked: dict[str, Any]) -> list[Message]:
        answers: dict[int, Message] = {}
        calls: dict[tuple[int, int], dict[str, Any]] = {}
        async for chunk in await self._client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                answer = answers.setdefault(choice.index, {"role": "assistant", "content": ""})
                answer["content"] += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    at = choice.index, piece.index
                    if at not in calls:
                        calls[at] = {
                            "id": piece.id,
                            "type": "function",
                            "function": {"name": "", "arguments": ""},
                        }
                        answer.setdefault("tool_calls", []).append(calls[at])
                    calls[at]["function"]["name"] += piece.function.name or ""
                    calls[at]["function"]["arguments"] += piece.function.arguments or ""
        return [answer for _, answer in sorted(answers.items())]

    async def leave(self, messages: Sequence[Message], *, after: int, **options: Any) -> None:
        """Ask for a stream and go away after some chunks."""
        stream = await self._client.chat.completions.create(
            model=self.engine.model, messages=messages, max_tokens=400, stream=True, extra_body=options
        )
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == after:
                break
        await stream.close()

    async def check(
        self, rendered: dict[str, Any], known: set[str], *, n: int = 1, extends: bool | None = None
    ) -> list[Node]:
        """The nodes of a call that was rendered so; they must be what `render` said."""
        prompt = rendered["token_ids"]
        mine = [
            node
            for node in await self.nodes()
            if node["metadata"]["node_id"] not in known
            and node["tokens"][: -node["metadata"]["num_generated"]] == prompt
        ]
        if len(mine) != n:
            raise Drifted(f"{len(mine)} new nodes in place of {n} begin with the rendered prompt")
        for node in mine:
            metadata = node["metadata"]
            assert metadata["parent_id"] == rendered["parent_id"]
            assert extends is None or (metadata["parent_id"] is not None) == extends, metadata[
                "branch_reason"
            ]
            self.generated += metadata["num_generated"]
            self.turns += 1
        return mine

    async def prove(self) -> list[Node]:
        """Score everything that was recorded again. Raises `Drifted`. The leaves, every generated token unmasked."""
        leaves = await self.nodes()
        for leaf in leaves:
            scores = await self.engine.rescore(leaf["tokens"])
            self.engine.worst = max(self.engine.worst, compare(leaf, scores, self.constrained))
        trained = sum(
            token != MASKED for node in await self.nodes("owned") for token in node["masked_tokens"]
        )
        if trained != self.generated:
            raise Drifted(f"{trained} tokens are trainable, {self.generated} were generated")
        record = await self.engine.record()
        if record["drifted"] or record["untrainable"]:
            raise Drifted(f"the server counts {record}")
        self.engine.turns += self.turns
        self.engine.tokens += self.generated
        await self._client.close()
        return leaves


_OPENAI_NAMES = frozenset(
    {"messages", "max_tokens", "n", "stop", "temperature", "top_p", "seed", "tools", "tool_choice", "logprobs",
     "top_logprobs", "presence_penalty", "frequency_penalty", "logit_bias", "response_format"}
)  # fmt: skip
"""What the SDK has arguments for; everything else goes into its `extra_body`."""


def compare(node: Node, scores: Sequence[float | None], constrained: set[int] | None = None) -> float:
    """Compare a node with what its tokens were scored again with; the largest difference. Raises `Drifted`."""
    tokens, masked, logprobs = node["tokens"], node["masked_tokens"], node["logprobs"]
    if not len(tokens) == len(masked) == len(logprobs) == len(scores):
        raise Drifted("tokens, mask and logprobs differ in length")
    if not node["metadata"]["trainable"]:
        raise Drifted(node["metadata"]["untrainable_reason"])
    worst = 0.0
    for at, (token, shown, logprob, score) in enumerate(zip(tokens, masked, logprobs, scores, strict=True)):
        if shown == MASKED:
            assert logprob == MASKED_LOGPROB
            continue
        assert shown == token
        assert score is not None
        difference = logprob - score
        if at in (constrained or ()):
            difference = min(difference, 0.0)  # among fewer tokens each is likelier
        if abs(difference) > TOLERANCE:
            raise Drifted(f"token {token} at {at} was recorded with {logprob}, and scores {score}")
        worst = max(worst, abs(difference))
    return worst


# ---- the scenarios

QUESTIONS = [
    "Name a colour.",
    "Another one?",
    "Why that one?",
    "In one word?",
    "Is it warm?",
    "And cold?",
    "Thanks!",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


SYSTEM = {"role": "system", "content": "Be brief."}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


async def _talk(rollout: Rollout, history: list[Message], questions: Sequence[str], **options: Any) -> None:
    """Go on with a conversation, one turn a question."""
    for question in questions:
        history.append(user(question))
        answered = any(message["role"] == "assistant" for message in history)
        history += await rollout.chat(history, extends=answered, **options)


async def seven_turns(engine: Engine) -> None:
    rollout = await Rollout.begin(engine)
    await _talk(rollout, [SYSTEM], QUESTIONS, temperature=0.8)
    (leaf,) = await rollout.prove()
    assert leaf["metadata"]["branch_reason"] is None


async def seven_streamed_turns(engine: Engine) -> None:
    rollout = await Rollout.begin(engine)
    await _talk(rollout, [SYSTEM], QUESTIONS, stream=True, temperature=0.8)
    assert len(await rollout.prove()) == 1


async def tool_results(engine: Engine) -> None:
    """Calls that the client says were made, their results, and answers that go on from them."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM, user("What is the weather in Paris and Rome?")]
    for turn, city in enumerate(["Paris", "Rome"]):
        arguments = json.dumps({"city": city}, indent=2 * turn)
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "weather", "arguments": arguments},
        }
        history += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"sun": True, "city": city})},
        ]
        history += await rollout.chat(history, tools=TOOLS, extends=turn > 0, stream=turn > 0)
        await _talk(rollout, history, ["And next?"], tools=TOOLS)
    assert len(await rollout.prove()) == 1


async def demanded_calls(engine: Engine) -> None:
    """Calls of the model's own, forced by structured outputs, and what follows them."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM, user("What is the weather in Rome?")]
    for turn in range(2):
        options = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60}
        options |= {"parallel_tool_calls": False, "temperature": 0.0}
        start = len((await rollout.render("chat/completions", {"messages": history, **options}))["token_ids"])
        (answer,) = await rollout.chat(history, extends=turn > 0, stream=turn > 0, **options)
        (call,) = answer["tool_calls"]
        assert json.loads(call["function"]["arguments"])["city"] in {"Paris", "Rome"}
        (leaf,) = await rollout.nodes()
        assert leaf["metadata"]["finish_reason"] == "tool_calls"
        rollout.constrained.update(range(start, len(leaf["tokens"])))
        history += [answer, {"role": "tool", "tool_call_id": call["id"], "content": "Sunny."}]
        history += await rollout.chat(history, tools=TOOLS)
        history.append(user("And now?"))
    assert len(await rollout.prove()) == 1


async def four_choices(engine: Engine) -> None:
    """n = 4, plain and streamed, each round going on from another choice."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM, user("Tell me a story.")]
    for turn in range(2):
        answers = await rollout.chat(
            history, n=4, stream=turn == 1, extends=turn > 0, temperature=1.0, seed=turn
        )
        assert len(answers) == 4
        history += [answers[turn], user("Go on.")]
    assert len(await rollout.prove()) == 7


async def concurrent_siblings(engine: Engine) -> None:
    """Four ways to go on from one node at once, and one more after them."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM]
    await _talk(rollout, history, ["Name an animal."])
    ways = [[*history, user(f"Is it {word}?")] for word in ("big", "small", "red", "blue")]
    answers = await asyncio.gather(
        *(rollout.chat(way, stream=number % 2 > 0) for number, way in enumerate(ways))
    )
    await rollout.chat([*ways[2], *answers[2], user("Sure?")])
    assert len(await rollout.prove()) == 4


async def sixteen_sessions(engine: Engine) -> None:
    """Sixteen sessions at once, plain and streamed, of two turns each."""

    async def one(number: int) -> None:
        rollout = await Rollout.begin(engine)
        options = {"stream": number % 2 > 0, "temperature": 1.0, "max_tokens": 3 + number % 4}
        await _talk(rollout, [SYSTEM], [f"I am number {number}.", "More."], **options)
        assert len(await rollout.prove()) == 1

    await asyncio.gather(*(one(number) for number in range(16)))


async def clients_that_leave(engine: Engine) -> None:
    """A client leaves mid-stream: the engine stops, its part is recorded, and the conversation goes on."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM]
    await _talk(rollout, history, ["Name a planet."])
    history.append(user("Tell me all about it."))
    for after in (1, 5):
        known = {node["metadata"]["node_id"] for node in await rollout.nodes()}
        rendered = await rollout.render("chat/completions", {"messages": history})
        await rollout.leave(history, after=after, ignore_eos=True)
        await engine.idle()
        node = await _aborted(rollout, rendered, known)
        assert node["metadata"]["finish_reason"] == "abort"
        assert 0 < node["metadata"]["num_generated"] < 400
    history += await rollout.chat(history)
    await _talk(rollout, history, ["Thanks."], stream=True)
    assert len(await rollout.prove()) == 3


async def cut_turns(engine: Engine) -> None:
    """Turns ended by their length, by a stop string and by a stop id; each is closed once when the next follows."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM]
    await _talk(rollout, history, ["Count to ten."], max_tokens=5, temperature=0.0)
    await _talk(rollout, history, ["And now?"], max_tokens=12, temperature=0.0, ignore_eos=True)
    (leaf,) = await rollout.nodes()
    stop_id = leaf["tokens"][-6]
    text = history.pop()["content"]
    stop = text[len(text) // 2 :][:3]
    for number, options in enumerate([{"stop": [stop]}, {"stop_token_ids": [stop_id]}]):
        (answer,) = await rollout.chat(
            history, max_tokens=12, temperature=0.0, ignore_eos=True, stream=number > 0, **options
        )
        cut = (await rollout.nodes())[-1]
        assert cut["metadata"]["finish_reason"] == "stop", cut["metadata"]
        assert cut["metadata"]["stop_reason"] in {stop, stop_id}
        assert stop not in answer["content"] or number
        assert cut["tokens"][-1] == stop_id or not number
        await _talk(rollout, [*history, answer], ["Go on."])
    for leaf in await rollout.prove():
        seams = [at for at in range(1, len(leaf["tokens"])) if _ends_before(leaf, at)]
        assert len(seams) == leaf["full_text"].count("<|im_start|>assistant") - 1 > 0
        for at in seams:
            assert leaf["tokens"][at - 1 : at + 1].count(engine.end) == 1, (at, leaf["full_text"])


def _ends_before(leaf: Node, at: int) -> bool:
    """Whether the model's words end and others' begin at a place."""
    masked = leaf["masked_tokens"]
    return masked[at - 1] != MASKED and masked[at] == MASKED


async def samplings(engine: Engine) -> None:
    """Sampling of every kind: logprobs are raw all the same, and what applied is recorded."""
    rollout = await Rollout.begin(engine, sampling={"temperature": 0.9})
    history = [SYSTEM]
    for number, options in enumerate(
        [
            {"temperature": 1.5, "seed": 1},
            {"top_p": 0.7, "seed": 2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
            {"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.2},
            {"logit_bias": {"28": 3.0}, "min_tokens": 6},
            {"logprobs": True, "top_logprobs": 3},
        ]
    ):
        await _talk(rollout, history, [QUESTIONS[number]], **options)
        (leaf,) = await rollout.nodes()
        assert leaf["metadata"]["sampling"]["temperature"] == 0.9
        for name in options.keys() - {"temperature", "logit_bias", "logprobs"}:
            assert leaf["metadata"]["sampling"][name] == options[name]
        assert leaf["metadata"]["logprobs_mode"] == "raw_logprobs"
        assert {"max_tokens", "top_p", "top_k", "min_p", "repetition_penalty"} <= leaf["metadata"][
            "sampling"
        ].keys()
    await rollout.prove()


async def edited_histories(engine: Engine) -> None:
    """History changed, a turn asked again, an answer sent back in another form."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM]
    await _talk(rollout, history, QUESTIONS[:3], temperature=0.8)
    await rollout.chat([SYSTEM, user("Name a bird."), *history[2:5], user("Why?")], extends=False)
    await rollout.chat(history[:4], temperature=0.8)
    parts = [{"type": "text", "text": f" {history[2]['content']} "}]
    await rollout.chat([*history[:2], {"role": "assistant", "content": parts}, user("Sure?")], stream=True)
    reasons = [leaf["metadata"]["branch_reason"] for leaf in await rollout.prove()]
    assert reasons[0] is None
    assert reasons[1:] == [
        "messages[1].content differs", "the same messages again", "messages[3].content differs"
    ]  # fmt: skip


async def raw_prompts(engine: Engine) -> None:
    """Raw completions that go on from each other, by text and by ids."""
    rollout = await Rollout.begin(engine)
    text = "Once upon a time"
    for turn in range(3):
        text += await rollout.complete(text, extends=turn > 0, temperature=0.0)
        text += ", and then"
    (leaf,) = await rollout.nodes()
    ids = leaf["tokens"]
    for _ in range(2):
        await rollout.complete([*ids, 28, 284], temperature=1.0)
        ids = max((node["tokens"] for node in await rollout.nodes()), key=len)
    assert len(await rollout.prove()) == 1


async def retries(engine: Engine) -> None:
    """The same request twice at once is joined, and one that is marked as a retry replayed: one rollout each."""
    rollout = await Rollout.begin(engine)
    history = [SYSTEM]
    await _talk(rollout, history, ["Name a tree."])
    for turn, stream in enumerate([False, True]):
        history.append(user(f"Another one, not the {turn + 1}."))
        body = {"messages": history, "max_tokens": SHORT, "temperature": 1.0}
        known = {node["metadata"]["node_id"] for node in await rollout.nodes()}
        rendered = await rollout.render("chat/completions", body)
        answers = await asyncio.gather(*(rollout.ask(body, stream=stream) for _ in range(3)))
        answers.append(await rollout.ask(body, stream=stream, **{"x-stainless-retry-count": "1"}))
        assert all(answer == answers[0] for answer in answers)
        await rollout.check(rendered, known, extends=True)
        history += answers[0]
    await _talk(rollout, history, ["Thanks."])
    assert len(await rollout.prove()) == 1


async def _aborted(rollout: Rollout, rendered: dict[str, Any], known: set[str]) -> Node:
    """The node of a call whose client has left. Fails where there is none after ten seconds."""
    async with asyncio.timeout(10):
        while all(node["metadata"]["node_id"] in known for node in await rollout.nodes()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
    (node,) = await rollout.check(rendered, known, extends=True)
    assert node["metadata"]["delivery"] == "aborted"
    return node


SCENARIOS = [
    seven_turns,
    seven_streamed_turns,
    tool_results,
    four_choices,
    concurrent_siblings,
    sixteen_sessions,
    clients_that_leave,
    cut_turns,
    samplings,
    edited_histories,
    raw_prompts,
    retries,
]
"""What every engine must pass; `demanded_calls` needs structured outputs."""


# ---- the check itself


async def damages_are_seen(engine: Engine) -> None:
    """One wrong id, a doubled or a lost end of turn, a shifted logprob: the comparison fails for each."""
    rollout = await Rollout.begin(engine)
    await _talk(rollout, [SYSTEM], QUESTIONS[:2])
    (leaf,) = await rollout.prove()
    shown = [at for at, token in enumerate(leaf["masked_tokens"]) if token != MASKED]
    end = leaf["tokens"].index(engine.end, shown[0])
    for damage in (
        lambda node: _replace(node, 4, node["tokens"][4] + 1),
        lambda node: _replace(node, shown[1], node["tokens"][shown[1]] + 1),
        lambda node: _insert(node, end),
        lambda node: _remove(node, end + 1),
        lambda node: node["logprobs"].__setitem__(shown[2], node["logprobs"][shown[2]] - 0.01),
    ):
        damaged = json.loads(json.dumps(leaf))
        damage(damaged)
        scores = await engine.rescore(damaged["tokens"])
        try:
            compare(damaged, scores)
        except Drifted:
            continue
        raise AssertionError("the check sees no difference")


def _replace(node: Node, at: int, token: int) -> None:
    node["tokens"][at] = token
    if node["masked_tokens"][at] != MASKED:
        node["masked_tokens"][at] = token


def _insert(node: Node, at: int) -> None:
    for name, value in (
        ("tokens", node["tokens"][at]),
        ("masked_tokens", MASKED),
        ("logprobs", MASKED_LOGPROB),
    ):
        node[name].insert(at, value)


def _remove(node: Node, at: int) -> None:
    for name in ("tokens", "masked_tokens", "logprobs"):
        del node[name][at]
