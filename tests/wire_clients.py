"""Real SDKs' clients over scripted replies, and the deltas of replies made up by hypothesis."""

import importlib
import json
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import msgspec
from hypothesis import strategies as st

from rolltap import (
    ChatDelta,
    ChatRequest,
    Choice,
    Completion,
    ErrorReply,
    FinishReason,
    MessageConverter,
    ToolCall,
    ToolCallDelta,
    Usage,
)

CREATED = 1_700_000_000


def http_library(sdk: ModuleType) -> Any:
    """The HTTP library below an SDK: httpx or its successor, as the SDK's version has it."""
    client = next(base for base in sdk.DefaultHttpxClient.__mro__ if base.__name__ == "Client")
    return importlib.import_module(client.__module__.partition(".")[0])


def http_client(sdk: ModuleType, reply: bytes | dict[str, Any] | ErrorReply) -> Any:
    """A client for an SDK in which every request is answered with a stream's bytes, a plain body or an error."""
    library = http_library(sdk)

    def handle(request: Any) -> Any:
        if isinstance(reply, ErrorReply):
            return library.Response(reply.status, json=reply.body, headers=dict(reply.headers))
        if isinstance(reply, dict):
            return library.Response(200, json=reply)
        return library.Response(200, content=reply, headers={"content-type": "text/event-stream"})

    return sdk.DefaultHttpxClient(transport=library.MockTransport(handle))


def blank(converter: MessageConverter) -> Completion:
    """A reply that has not begun."""
    return Completion(id=f"{converter.id_prefix}1", model="tiny", created=CREATED)


def collected(completion: Completion, deltas: Iterable[ChatDelta], usage: Usage | None = None) -> Completion:
    """The completion that these deltas are, put together as simply as can be."""
    choices: dict[int, Choice] = {}
    for delta in deltas:
        choice = choices.setdefault(delta.index, Choice(index=delta.index))
        choice.text += delta.text
        choice.reasoning += delta.reasoning
        if delta.logprobs:
            choice.logprobs = [*(choice.logprobs or []), *delta.logprobs]
        for call in delta.tool_calls:
            assert isinstance(call, ToolCallDelta)
            if call.name is not None:
                assert call.index == len(choice.tool_calls)
                choice.tool_calls.append(ToolCall(name=call.name, arguments="", id=call.id or ""))
            so_far = choice.tool_calls[call.index]
            choice.tool_calls[call.index] = msgspec.structs.replace(
                so_far,
                arguments=so_far.arguments + call.arguments,
                extra={**so_far.extra, **(call.extra or {})},
            )
        if delta.finish_reason:
            choice.finish_reason, choice.stop_sequence = delta.finish_reason, delta.stop_sequence
    completion.choices = [choices[index] for index in sorted(choices)]
    completion.usage = usage or Usage()
    return completion


def streamed(
    converter: MessageConverter,
    request: ChatRequest,
    deltas: Sequence[ChatDelta],
    usage: Usage | None = None,
) -> tuple[bytes, Completion]:
    """A whole stream's bytes, and the completion it is a stream of."""
    encoder = converter.stream(request, blank(converter))
    frames = [encoder.start(), *(encoder.delta(delta) for delta in deltas)]
    completion = collected(blank(converter), deltas, usage)
    return b"".join([*frames, encoder.finish(completion)]), completion


def frames(stream: bytes) -> list[tuple[str | None, Any]]:
    """A stream's frames: each one's event (None where it has no name) and data (parsed where it is JSON)."""
    parts = stream.decode().split("\n\n")
    assert parts.pop() == "", "the last frame does not end with an empty line"
    read = []
    for part in parts:
        lines = part.split("\n")
        event = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
        (line,) = lines
        data = line.removeprefix("data: ")
        assert data != line
        read.append((event, data if data == "[DONE]" else json.loads(data)))
    return read


def valid(shape: Any, data: Any) -> Any:
    """The data as an SDK's own type, validated; Any, since SDKs declare nearly everything as optional."""
    return shape.model_validate(data)


_ENDS: list[FinishReason] = ["stop", "length", "content_filter"]
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=6), max_size=3).map(
    json.dumps
)


@st.composite
def calls(draw: st.DrawFn, index: int) -> list[ToolCallDelta]:
    """The fragments of one call."""
    arguments = draw(_ARGUMENTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    name = draw(st.text("abcdef_", min_size=1, max_size=6))
    first = ToolCallDelta(index=index, id=f"call_{index}", name=name, arguments=pieces[0])
    return [first, *(ToolCallDelta(index=index, arguments=piece) for piece in pieces[1:])]


@st.composite
def replies(
    draw: st.DrawFn, *, choices: int = 1, tools: bool = True, reasoning: bool = True
) -> list[ChatDelta]:
    """The deltas of a reply: any order of thinking, text and interleaved calls, choices interleaved."""
    tracks = []
    for index in range(choices):
        texts = [ChatDelta(index=index, text=text) for text in draw(st.lists(_TEXT, max_size=5))]
        thoughts = [ChatDelta(index=index, reasoning=text) for text in draw(st.lists(_TEXT, max_size=3))]
        number = draw(st.integers(0, 3)) if tools else 0
        queues = [draw(calls(at)) for at in range(number)]
        fragments = _interleaved(draw, queues)
        deltas = (thoughts if reasoning else []) + texts
        deltas += [ChatDelta(index=index, tool_calls=[fragment]) for fragment in fragments]
        reason: FinishReason = "tool_calls" if number else draw(st.sampled_from(_ENDS))
        tracks.append([*deltas, ChatDelta(index=index, finish_reason=reason)])
    return _merged(draw, tracks)


def _interleaved(draw: st.DrawFn, queues: list[list[ToolCallDelta]]) -> list[ToolCallDelta]:
    """Any order that keeps each call's own and begins the calls by their index."""
    fragments: list[ToolCallDelta] = []
    begun = 0
    while any(queues):
        open_ones = [at for at, queue in enumerate(queues) if queue and at <= begun]
        at = draw(st.sampled_from(open_ones))
        begun = max(begun, at + 1)
        fragments.append(queues[at].pop(0))
    return fragments


def _merged(draw: st.DrawFn, tracks: list[list[ChatDelta]]) -> list[ChatDelta]:
    merged: list[ChatDelta] = []
    while any(tracks):
        at = draw(st.sampled_from([at for at, track in enumerate(tracks) if track]))
        merged.append(tracks[at].pop(0))
    return merged
