"""What `rolltap check` looks at of one model: its backends, its tokenizer and template, its parsers, its routing."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from rolltap.backend_handle import BackendHandle
from rolltap.bases.backends import Backend, TokenBackend
from rolltap.rendering import Renderer, probe
from rolltap.types.chat import ChatRequest, Message

if TYPE_CHECKING:
    from rolltap.config import BackendConfig, ModelConfig
    from rolltap.plugins import Plugins

_TINY = ChatRequest(messages=(Message(role="user", content="Hello."),))


class Line(Struct, frozen=True):
    """What a look at one thing showed."""

    word: Literal["ok", "note", "problem"]
    subject: str
    text: str


def reason(error: BaseException) -> str:
    """The exception in one line."""
    return " ".join(str(error).split()) or type(error).__name__


async def model_lines(model: "ModelConfig", plugins: "Plugins") -> AsyncIterator[Line]:
    """Look at one thing after the other, in the order in which a request meets them."""
    tokenizer = model.tokenizer
    handles: list[BackendHandle] = []
    for number, options in enumerate(model.backends):
        handle, line = await _backend(f"{options.kind}-{number}", options, model, plugins)
        yield line
        if handle is not None:
            handles.append(handle)
            tokenizer = tokenizer or handle.backend.tokenizer
    renderer = None
    if tokenizer or any(isinstance(handle.backend, TokenBackend) for handle in handles):
        renderer, found = await _tokenizer(model, tokenizer)
        for line in found:
            yield line
    if handles:
        yield await _route(model, plugins, handles)
    loaded = renderer.tokenizer if renderer is not None else None
    if model.reasoning_parser:
        yield await _parser("reasoning_parser", model, plugins, tokenizer=loaded)
    if model.tool_parser:
        yield await _parser("tool_parser", model, plugins, tools=[], tokenizer=loaded)


async def _backend(
    name: str, config: "BackendConfig", model: "ModelConfig", plugins: "Plugins"
) -> tuple[BackendHandle | None, Line]:
    """Start the backend, ask what it is able to do, and close it again."""
    subject = f"model {model.name}, backend {name}"
    handle = None
    try:
        found = await plugins.ask(
            "create_backend", kind=config.kind, options=dict(config.options), model=model.name
        )
        if found is None:
            hint = plugins.hint("create_backend", config.kind)
            return None, Line("problem", subject, f"no plugin creates backends of this kind{hint}")
        backend: Backend = found.value
        handle = BackendHandle(backend, name=name, kind=config.kind, model=model.name, plugin=found.plugin)
        try:
            await backend.start()
            facts = await backend.check()
        finally:
            await backend.close()
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is what was to be found
        return handle, Line("problem", subject, reason(error))
    text = ", ".join([f"by {found.plugin}", *(f"{key}: {value}" for key, value in facts.items())])
    return handle, Line("ok", subject, text)


async def _tokenizer(model: "ModelConfig", tokenizer: str) -> tuple[Renderer | None, list[Line]]:
    """The model's renderer, and what there is to say about tokenizer and template; None where it can't be loaded."""
    subject = f"model {model.name}, tokenizer {tokenizer or '(none)'}"
    if not tokenizer:
        detail = "a backend works in tokens, so `tokenizer` must be set: a hub id or a folder"
        return None, [Line("problem", subject, detail)]
    try:
        renderer = await asyncio.to_thread(Renderer.load, tokenizer, chat_template=model.chat_template)
        probed = await asyncio.to_thread(probe, renderer)
        tiny = await asyncio.to_thread(renderer.prompt, _TINY)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a template is what was to be found
        return None, [Line("problem", subject, reason(error))]
    # A template that does something unusual is served all the same: it is said, and is no failure.
    found = [
        Line("ok" if each.ok else "note", f"model {model.name}, {each.name}", each.detail) for each in probed
    ]
    prompt = Line("ok", f"model {model.name}, prompt", f'"Hello." is {len(tiny.ids)} tokens: {tiny.text!r}')
    return renderer, [Line("ok", subject, "loads"), *found, prompt]


async def _route(model: "ModelConfig", plugins: "Plugins", handles: list[BackendHandle]) -> Line:
    subject = f"model {model.name}, select_backend"
    try:
        found = await plugins.ask(
            "select_backend", request=_TINY, session=None, backends=[handle.view for handle in handles]
        )
    except Exception as error:  # noqa: BLE001 - as above
        return Line("problem", subject, reason(error))
    if found is None:
        return Line("ok", subject, f"{handles[0].name}, the first: no plugin chooses")
    if all(found.value is not handle.view for handle in handles):
        return Line("problem", subject, f"{found.plugin} chose {found.value!r}, which is none of the model's")
    return Line("ok", subject, f"{found.value.name}, by {found.plugin}")


async def _parser(hook: str, model: "ModelConfig", plugins: "Plugins", **arguments: Any) -> Line:
    name = getattr(model, hook)
    subject = f"model {model.name}, {hook} {name}"
    try:
        found = await plugins.ask(hook, name=name, **arguments)
    except Exception as error:  # noqa: BLE001 - as above
        return Line("problem", subject, reason(error))
    if found is None:
        return Line("problem", subject, f"no plugin has a parser of this name{plugins.hint(hook, name)}")
    return Line("ok", subject, f"by {found.plugin}")
