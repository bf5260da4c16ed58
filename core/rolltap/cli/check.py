"""`rolltap check`: everything that serving needs, tried once, without serving."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec import Struct

from rolltap.bases.backends import Backend, TokenBackend
from rolltap.bases.stores import Store
from rolltap.cli.options import config_option, configured, plugins_dir_option
from rolltap.rendering import Renderer, probe

if TYPE_CHECKING:
    from rolltap.config import BackendConfig, Config, ModelConfig
    from rolltap.plugins import Plugins


class Line(Struct, frozen=True):
    """What a look at one thing showed."""

    word: Literal["ok", "note", "problem"]
    subject: str
    text: str


@click.command()
@config_option
@plugins_dir_option
def check(config_file: str | None, plugins_dir: str | None) -> None:
    """Check config, plugins, tokenizers, templates and backends, without serving.

    Prints a line for each: ok, a note, or a problem. Ends with exit code 1 where there is a problem.
    """
    from rolltap.plugins import Plugins  # noqa: PLC0415

    config = configured(config_file, plugins_dir=plugins_dir)
    # What fails is a line of the answer; it need not be logged too.
    logging.getLogger("rolltap.plugins").addHandler(logging.NullHandler())
    if not asyncio.run(_report(config, Plugins.load(config.plugins))):
        sys.exit(1)


async def _report(config: "Config", plugins: "Plugins") -> bool:
    """Print each line as it comes; whether all is well."""
    click.echo("ok       config")
    well = True
    async for line in look(config, plugins):
        click.echo(f"{line.word:8} {line.subject}: {line.text}")
        well = well and line.word != "problem"
    return well


async def look(config: "Config", plugins: "Plugins") -> AsyncIterator[Line]:
    """Look at one thing after the other."""
    for record in plugins.records:
        if record.error:
            yield Line("problem", f"plugin {record.name} ({record.source})", record.error)
    loaded = [record.name for record in plugins.records if record.state == "loaded"]
    yield Line("ok" if loaded else "problem", "plugins", f"{len(loaded)} loaded: {', '.join(loaded)}")
    yield await _store(config, plugins)
    for model in config.models:
        async for line in _model(model, plugins):
            yield line


async def _store(config: "Config", plugins: "Plugins") -> Line:
    subject = f"store {config.store.kind}"
    try:
        store = await plugins.call_first(
            "create_store", kind=config.store.kind, options=dict(config.store.options)
        )
        if not isinstance(store, Store):
            return Line("problem", subject, _unfit(store, "stores"))
        await store.start()
        await store.close()
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is what was to be found
        return Line("problem", subject, _reason(error))
    return Line("ok", subject, "can be opened")


async def _model(model: "ModelConfig", plugins: "Plugins") -> AsyncIterator[Line]:
    tokenizer = model.tokenizer
    in_tokens = False
    for number, options in enumerate(model.backends):
        subject = f"model {model.name}, backend {options.kind}-{number}"
        backend, line = await _backend(subject, options, model, plugins)
        yield line
        if backend is not None:
            tokenizer = tokenizer or backend.tokenizer
            in_tokens = in_tokens or isinstance(backend, TokenBackend)
    loaded = None
    if tokenizer or in_tokens:
        loaded, found = await _tokenizer(model, tokenizer)
        for line in found:
            yield line
    yield await _parser("tool_parser", model, plugins, tools=[], tokenizer=loaded)
    if model.reasoning_parser:
        yield await _parser("reasoning_parser", model, plugins, tokenizer=loaded)


async def _backend(
    subject: str, config: "BackendConfig", model: "ModelConfig", plugins: "Plugins"
) -> tuple[Backend | None, Line]:
    """Start the backend, ask what it is able to do, and close it again."""
    backend = None
    try:
        backend = await plugins.call_first(
            "create_backend", kind=config.kind, options=dict(config.options), model=model.name
        )
        if not isinstance(backend, Backend):
            return None, Line("problem", subject, _unfit(backend, "backends"))
        try:
            await backend.start()
            facts = await backend.check()
        finally:
            await backend.close()
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is what was to be found
        return backend, Line("problem", subject, _reason(error))
    text = ", ".join(f"{name}: {value}" for name, value in facts.items())
    return backend, Line("ok", subject, text or "starts")


async def _tokenizer(model: "ModelConfig", tokenizer: str) -> tuple[Any, list[Line]]:
    """The model's tokenizer, and what there is to say about it and its template; None where it can't be loaded."""
    subject = f"model {model.name}, tokenizer {tokenizer or '(none)'}"
    if not tokenizer:
        detail = "a backend works in tokens, so `tokenizer` must be set: a hub id or a folder"
        return None, [Line("problem", subject, detail)]
    try:
        renderer = await asyncio.to_thread(Renderer.load, tokenizer, chat_template=model.chat_template)
        probed = await asyncio.to_thread(probe, renderer)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a template is what was to be found
        return None, [Line("problem", subject, _reason(error))]
    # A template that does something unusual is served all the same: it is said, and is no failure.
    found = [
        Line("ok" if each.ok else "note", f"model {model.name}, {each.name}", each.detail) for each in probed
    ]
    return renderer.tokenizer, [Line("ok", subject, "loads"), *found]


async def _parser(hook: str, model: "ModelConfig", plugins: "Plugins", **arguments: Any) -> Line:
    name = getattr(model, hook)
    subject = f"model {model.name}, {hook} {name}"
    try:
        found = await plugins.call_first(hook, name=name, **arguments)
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is what was to be found
        return Line("problem", subject, _reason(error))
    if found is None:
        return Line("problem", subject, "no plugin has a parser of this name")
    return Line("ok", subject, "found")


def _unfit(made: object, what: str) -> str:
    if made is None:
        return f"no plugin creates {what} of this kind"
    return f"the plugin for this kind made a value of type {type(made).__name__}, which is none of rolltap's {what}"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
