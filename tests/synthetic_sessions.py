"""Sessions that no agent has run, as the entries of their logs: many, long, branched, untrainable, hostile.

`Writer` writes one log; the functions below it make the sessions that a viewer must be able to show.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from rolltap import Message, Store, ToolCall, hookimpl
from rolltap.record import (
    CallBegun,
    CallRecorded,
    Context,
    Definition,
    Entry,
    Output,
    Prompt,
    RewardGiven,
    SessionCreated,
    SessionInfo,
    SessionSealed,
    Times,
    TokenCounts,
    pack_ids,
    pack_logprobs,
)
from rolltap_plugins.stores.memory import MemoryStore

Encode = Callable[[str], list[int]]

START = 1_764_547_200.0
SUBJECTS = ["parser", "scheduler", "cache", "tokenizer", "router", "ledger", "sampler", "exporter"]
VERBS = ["fix", "profile", "document", "rewrite", "test", "migrate"]
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command in a shell",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
TOOLS_HASH = b"tools-of-the-synthetic-sessions!"
SAMPLING = {"temperature": 0.7, "top_p": 0.95, "max_tokens": 1024}
OPENING = {"system": "<|im_start|>system\n", "user": "<|im_start|>user\n", "tool": "<|im_start|>tool\n"}


class Writer:
    """Writes the log of one session: each call goes on from any earlier one."""

    def __init__(self, number: int, encode: Encode, *, model: str, **settings: object) -> None:
        self.random = random.Random(number)
        self.uuid = f"{number:08x}-0000-4000-8000-{self.random.getrandbits(48):012x}"
        self.clock = START + number * 7.0
        info = SessionInfo(uuid=self.uuid, model_name=model, created_at=self.clock, **settings)
        self.entries: list[Entry] = [SessionCreated(info=info)]
        self._encode = encode
        self._model = model
        self._calls = 0

    def call(
        self,
        messages: Sequence[Message],
        *answers: Message,
        parent: str | None = None,
        think_s: float = 1.4,
        **fields: object,
    ) -> str:
        """Record a call that adds messages after `parent`'s; return its first node's id."""
        self._calls += 1
        name = f"call-{self._calls}"
        ids = self._prompt(messages, parent)
        outputs = [self._output(f"{name}.{at}", answer, **fields) for at, answer in enumerate(answers)]
        received = self.clock + self.random.uniform(0.2, 1.5)
        sent = received + self.random.uniform(0.002, 0.3)
        first = sent + 0.05 + len(ids) / 40_000
        ended = first + think_s * self.random.uniform(0.5, 1.5)
        self.clock = ended
        self.entries.append(CallBegun(call_id=name, begun_at=sent))
        self.entries.append(
            CallRecorded(
                call_id=name,
                parent_id=parent,
                after_id=parent,
                context=Context(self._model, TOOLS_HASH),
                definitions=(Definition(TOOLS_HASH, [TOOL]),) if self._calls == 1 else (),
                prompt=Prompt(ids=pack_ids(ids), messages=tuple(messages)),
                outputs=tuple(outputs),
                backend="vllm-0",
                sampling=SAMPLING,
                dialect="openai.chat",
                client="AsyncOpenAI/Python 2.8.1",
                request_id=f"req_{self.random.getrandbits(64):016x}",
                streamed=True,
                times=Times(received, sent, first, ended),
                usage=TokenCounts(len(ids), sum(len(each.ids) // 4 for each in outputs), len(ids) // 2),
            )
        )
        return outputs[0].node_id

    def reward(self, value: float) -> None:
        """Give the session its reward."""
        self.entries.append(RewardGiven(value=value, given_at=self.clock))

    def seal(self) -> None:
        """Seal the session."""
        self.entries.append(SessionSealed(snapshot="0" * 64, sealed_at=self.clock))

    def _prompt(self, messages: Sequence[Message], parent: str | None) -> list[int]:
        text = "" if parent is None else "<|im_end|>\n"
        for message in messages:
            text += f"{OPENING[message.role]}{message.text}<|im_end|>\n"
        return self._encode(text + "<|im_start|>assistant\n")

    def _output(self, node_id: str, answer: Message, **fields: object) -> Output:
        text = f"<think>{answer.reasoning}</think>\n" if answer.reasoning else ""
        text += answer.text
        for call in answer.tool_calls:
            text += f'\n<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        ids = self._encode(text + "<|im_end|>")
        logprobs = [-(self.random.expovariate(2.2) ** 2) for _ in ids]
        return Output(
            node_id=node_id,
            ids=pack_ids(ids),
            logprobs=pack_logprobs(logprobs),
            message=answer,
            finish_reason="tool_calls" if answer.tool_calls else "stop",
            logprobs_mode="raw_logprobs",
            weight_versions=((0, len(ids), 12),),
            **fields,  # type: ignore[arg-type]
        )


def said(role: str, text: str, **fields: object) -> Message:
    """A message."""
    return Message(role=role, content=text, **fields)  # type: ignore[arg-type]


def runs(command: str, *, thinking: str = "", at: int = 0) -> Message:
    """An answer that calls the tool."""
    return Message(
        role="assistant",
        content="Let me look.",
        reasoning=thinking or None,
        tool_calls=(ToolCall("run", f'{{"command": "{command}"}}', f"call_{at}"),),
    )


def result(text: str, *, at: int = 0) -> Message:
    """What the tool said."""
    return Message(role="tool", content=text, tool_call_id=f"call_{at}")


def small(number: int, encode: Encode, model: str) -> Writer:
    """One of very many: a question or two, most with a reward."""
    chance = random.Random(number)
    subject, verb = chance.choice(SUBJECTS), chance.choice(VERBS)
    writer = Writer(number, encode, model=model, group=f"{verb}-{subject}", labels={"task": verb})
    node = writer.call([said("user", f"Please {verb} the {subject}.")], said("assistant", "It is done."))
    if number % 3:
        drift = (
            {"untrainable_reason": "the echo of the prompt differs at token 7", "drifted": True}
            if number % 11 == 0
            else {}
        )
        writer.call([said("user", "And now?")], said("assistant", "All tests pass."), parent=node, **drift)
    if number % 4:
        writer.reward(round(chance.random(), 3))
    if number % 2:
        writer.seal()
    return writer


def branched(number: int, encode: Encode, model: str, *, turns: int = 9) -> Writer:
    """An agent at work: tools, thinking, a retry from the middle, a sub-agent, two choices, one untrainable."""
    writer = Writer(
        number, encode, model=model, group="fix-parser", labels={"task": "fix", "difficulty": "hard"}
    )
    node = writer.call(
        [
            said("system", "You are a careful engineer. Use the tool; keep answers short.\n" * 6),
            said("user", "The parser drops the last call of a batch. Find out why, and mend it."),
        ],
        runs("ls -la src", thinking="First I need to see what is there.", at=0),
    )
    path = [node]
    for turn in range(1, turns):
        listing = "\n".join(f"-rw-r--r-- 1 dev dev {1000 + turn * at} part_{at}.py" for at in range(12))
        answer = runs(
            f"pytest -x tests/part_{turn}.py", thinking="The listing shows the parts." * turn, at=turn
        )
        path.append(
            writer.call([result(listing, at=turn - 1)], answer, parent=path[-1], think_s=0.4 + turn / 5)
        )
    writer.call(
        [result("ERROR: no such file", at=3)],
        said("assistant", "That file is gone; I shall look in the history."),
        parent=path[3],
    )
    helper = writer.call(
        [said("system", "You summarise test output."), said("user", "Summarise: 3 failed, 214 passed.")],
        said("assistant", "Three of 217 tests fail."),
    )
    writer.call([said("user", "Which?")], said("assistant", "parser, batch, flush"), parent=helper)
    writer.call(
        [result("1 passed", at=turns - 1)],
        said("assistant", "The batch is flushed before its last call is closed. Mended, and a test added."),
        said("assistant", "Done: `flush()` now closes open calls first."),
        parent=path[-1],
        untrainable_reason="the engine gave no logprobs for 2 of 31 tokens",
    )
    writer.reward(0.75)
    return writer


def long(number: int, encode: Encode, model: str, *, tokens: int = 100_000) -> Writer:
    """One node of so many tokens, half of them generated."""
    writer = Writer(number, encode, model=model, group="long-context")
    words = writer.random.choices(
        ["the", "answer", "to", "question", "is", "forty", "two", "of", "course", "sunny", "rain", "today"],
        k=400,
    )
    block = " ".join(words) + ".\n"
    times = max(1, tokens // 2 // len(encode(block)))
    writer.call([said("user", block * times)], said("assistant", block * times))
    return writer


HOSTILE = [
    '<script>window.hacked = true</script><img src=x onerror="window.hacked = true">',
    "\u202egnp.exe\u202c and \u05e9\u05dc\u05d5\u05dd, \u0645\u0631\u062d\u0628\u0627 in one line \u2066x\u2069",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 bell and \x00 nul, \x08 backspace",
    "javascript:alert(1) {{constructor.constructor('window.hacked=true')()}} ${7*7}",
]


def hostile(number: int, encode: Encode, model: str, *, line: int = 1_000_000) -> Writer:
    """Texts that try to be something else than text, in every place that a client may fill; one very long line."""
    writer = Writer(
        number,
        encode,
        model=model,
        group='<b onmouseover="window.hacked=true">group</b>',
        labels={"<i>": HOSTILE[0]},
    )
    node = None
    for text in HOSTILE:
        node = writer.call([said("user", text)], said("assistant", text, reasoning=text), parent=node)
    writer.call([said("user", "x" * line)], said("assistant", "So long a line."), parent=node)
    return writer


def many(encode: Encode, model: str, count: int) -> Iterator[Writer]:
    """The special ones, and as many small ones as make `count`."""
    for number in range(count - 3):
        yield small(number, encode, model)
    yield hostile(count - 3, encode, model)
    yield long(count - 2, encode, model)
    yield branched(count - 1, encode, model)


class FilledStore(MemoryStore):
    """A store that begins with these logs."""

    def __init__(self, writers: Iterable[Writer]) -> None:
        super().__init__()
        self._writers = writers

    async def start(self) -> None:
        """Write them."""
        await super().start()
        for writer in self._writers:
            for entry in writer.entries:
                await self.append(writer.uuid, entry)


class Filled:
    """A plugin: `[store] kind = "filled"` holds these logs from the start."""

    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers = writers

    @hookimpl
    def create_store(self, kind: str) -> Store | None:
        """Answer for "filled"."""
        return FilledStore(self._writers) if kind == "filled" else None
