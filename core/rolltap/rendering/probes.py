"""What there is to know about a tokenizer and its chat template before a server is trusted with them."""

from collections.abc import Iterable

from msgspec import Struct

from rolltap.errors import BadRequest
from rolltap.rendering.messages import as_dict, place_systems
from rolltap.rendering.renderer import Renderer
from rolltap.rendering.template_capabilities import PROBE_TOOLS
from rolltap.types.chat import ChatRequest, Message, ToolCall


class Finding(Struct, frozen=True):
    """One thing that was looked at. Where `ok` is false, `detail` says what it means for the user."""

    name: str
    ok: bool
    detail: str


_SYSTEM = Message(role="system", content="Be brief.")
_USER = Message(role="user", content="Is it raining?")
_NEXT = Message(role="user", content="And tomorrow?")
_ANSWER = Message(role="assistant", content="It is not.")
_CALL = ToolCall(name="probe", id="call00001", arguments='{"query": "rain"}')
_CALLING = Message(role="assistant", tool_calls=(_CALL,))
_RESULT = Message(role="tool", content="Dry.", tool_call_id=_CALL.id, name=_CALL.name)
_THINKING = Message(role="assistant", content="It is not.", reasoning="Look at the sky.")


def probe(renderer: Renderer) -> list[Finding]:
    """Look at everything; in the order in which `rolltap check` shows it."""
    if renderer.template.missing:
        return [Finding("chat template", False, renderer.template.refusal)]
    return [
        _boundary(renderer),
        _second_turn(renderer),
        _append_only(renderer, "append-only, plain", [_SYSTEM, _USER, _ANSWER], _NEXT),
        _append_only(renderer, "append-only, tools", [_SYSTEM, _USER, _CALLING], _RESULT),
        _append_only(renderer, "append-only, thinking", [_SYSTEM, _USER, _THINKING], _NEXT),
        _suffix(renderer),
        _bos(renderer),
        _generation_prompt(renderer),
        _tools(renderer),
        _tool_results(renderer),
        _parallel_calls(renderer),
        _systems(renderer),
    ]


def _text(
    renderer: Renderer, messages: list[Message], *, tools: bool = False, prompt: bool = True
) -> str | None:
    placed = [
        as_dict(message, renderer.capabilities) for message in place_systems(messages, renderer.capabilities)
    ]
    try:
        return renderer.template.render(placed, tools=PROBE_TOOLS if tools else (), generation_prompt=prompt)
    except BadRequest:
        return None


def _names(renderer: Renderer, ids: Iterable[int]) -> str:
    return ", ".join(f"{renderer.codec.token(index)} ({index})" for index in sorted(ids))


def _boundary(renderer: Renderer) -> Finding:
    end_ids, next_turn_ids = renderer.boundary.end_ids, renderer.boundary.next_turn_ids
    if not end_ids and not next_turn_ids:
        return Finding(
            "turn boundary",
            False,
            "no token ends a turn: neither the tokenizer nor the template names one, so only a length or a stop "
            "string ends an answer",
        )
    said = [f"a turn ends with {_names(renderer, end_ids)}"] if end_ids else []
    if next_turn_ids:
        said.append(f"or with what begins the next: {_names(renderer, next_turn_ids)}")
    return Finding("turn boundary", True, " ".join(said))


def _second_turn(renderer: Renderer) -> Finding:
    try:
        renderer.prompt(ChatRequest(messages=(_USER, _ANSWER, _NEXT)))
    except BadRequest as error:
        return Finding("second turn", False, f"a conversation ends after the first answer: {error}")
    return Finding("second turn", True, "the template takes an answer and a next question")


def _append_only(renderer: Renderer, name: str, old: list[Message], new: Message) -> Finding:
    tools = any(message.tool_calls for message in old)
    before, after = _text(renderer, old[:-1], tools=tools), _text(renderer, [*old, new], tools=tools)
    if before is None or after is None:
        return Finding(name, True, "the template does not take such a conversation")
    words = old[-1].reasoning
    if words and words not in (_text(renderer, old, prompt=False) or ""):
        return Finding(name, True, "the template knows no thinking")
    # With its opening of the answer, the first prompt must be the beginning of the second.
    if after.startswith(before) and (not words or words in after):
        return Finding(name, True, "yes")
    return Finding(
        name,
        False,
        'the template renders earlier turns differently once later ones follow: with history = "recorded" what the '
        "model produced stands, so prompts differ from those of the engine's own chat endpoint",
    )


def _suffix(renderer: Renderer) -> Finding:
    details = {
        "last_turn": "rendered on their own",
        "with_a_call": "rendered on their own; the template remembers whether there was a call before",
        "all_roles": "rendered behind the roles of all earlier ones, which the template looks at: slow when long",
    }
    return Finding("new turns", True, details[renderer.dummy_prefix])


def _bos(renderer: Renderer) -> Finding:
    plain, full = renderer.encode("x"), renderer.encode("x", add_special_tokens=True)
    if plain == full:
        return Finding("BOS", True, "encoding adds none")
    prompt = _text(renderer, [_USER]) or ""
    bos = renderer.tokenizer.bos_token
    own = "writes it itself" if bos and prompt.startswith(bos) else "writes none, and neither does the engine"
    return Finding(
        "BOS", True, f"encoding a raw prompt adds special tokens; for messages, the template {own}"
    )


def _generation_prompt(renderer: Renderer) -> Finding:
    closed, opened = _text(renderer, [_USER], prompt=False), _text(renderer, [_USER])
    if closed is None or opened is None:
        return Finding("generation prompt", False, "the template refuses a conversation of one user message")
    # A template that ends the last message in a way of its own has more after it than the opening.
    opening = opened.removeprefix(closed) if opened.startswith(closed) else opened.rpartition(_USER.text)[2]
    if closed == opened:
        return Finding("generation prompt", True, "none: the template opens no answer")
    thinking = ", which opens the thinking" if opening.rstrip().endswith("<think>") else ""
    return Finding("generation prompt", True, f"{opening!r}{thinking}")


def _tools(renderer: Renderer) -> Finding:
    text, capabilities = _text(renderer, [_USER], tools=True), renderer.capabilities
    if text is None or PROBE_TOOLS[0]["function"]["name"] not in text:
        return Finding(
            "tools", False, "the template does not show tools to the model: an agent's tools are not seen"
        )
    if not capabilities.shows_calls:
        return Finding("tools", False, "the template does not show the calls of earlier turns to the model")
    form = "objects" if capabilities.dict_arguments else "text"
    return Finding("tools", True, f"shown; arguments of calls are given as {form}")


def _tool_results(renderer: Renderer) -> Finding:
    refused = [
        name
        for name, messages in (
            ("a tool's result", [_USER, _CALLING, _RESULT]),
            ("a question after a tool's result", [_USER, _CALLING, _RESULT, _ANSWER, _NEXT]),
        )
        if _text(renderer, messages, tools=True) is None
    ]
    if refused:
        return Finding(
            "tool results",
            False,
            f"the template refuses {refused[0]}: requests with one are answered with a 400",
        )
    if not renderer.capabilities.shows_tool_results:
        return Finding(
            "tool results",
            False,
            "the template does not show the results of tools: the model answers without having seen them",
        )
    return Finding("tool results", True, "shown")


def _parallel_calls(renderer: Renderer) -> Finding:
    details = {
        "shown": "may stand in one message",
        "first": "the template shows some of the calls of one message alone; recorded turns keep all of them",
        "refused": "the template refuses several calls in one message: recorded turns can be continued, but a "
        "conversation that a client brings along with such a message is answered with a 400",
    }
    found = renderer.capabilities.parallel_calls
    return Finding("parallel calls", found == "shown", details[found])


def _systems(renderer: Renderer) -> Finding:
    details = {
        "anywhere": "may stand anywhere",
        "first": "are shown at the beginning alone; the text of later ones is put into the user's messages",
        "nowhere": "are not shown; their text is put into the user's messages",
    }
    return Finding("system messages", True, details[renderer.capabilities.systems])
