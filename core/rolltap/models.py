"""The configured models at run time: their backends, started, and their tokenizers, loaded."""

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from rolltap.backend_handle import BackendHandle
from rolltap.bases.backends import Backend, TokenBackend
from rolltap.config import Config, ModelConfig
from rolltap.errors import BadRequest, ConfigError, NotFound, PluginError, RolltapError
from rolltap.plugins import Plugins
from rolltap.rendering import Renderer, probe
from rolltap.types.chat import Message

log = logging.getLogger(__name__)


class Model:
    """One model as clients know it."""

    def __init__(
        self, config: ModelConfig, backends: Sequence[BackendHandle], renderer: Renderer | None
    ) -> None:
        self.config = config
        self.name = config.name
        self.backends = backends
        self.renderer = renderer
        self._volatile = [re.compile(pattern) for pattern in config.drop_system_text]

    @property
    def tokenizing(self) -> Renderer:
        """The renderer. Raises `BadRequest` where the model has no tokenizer."""
        if self.renderer is None:
            raise BadRequest(f"model {self.name!r} has no tokenizer, so its prompts have no token ids")
        return self.renderer

    def without_volatile(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages without the text that the config's `drop_system_text` names; only system text has any."""
        if not self._volatile:
            return messages
        return tuple(map(self._without_volatile, messages))

    def _without_volatile(self, message: Message) -> Message:
        if message.role not in {"system", "developer"}:
            return message
        text = message.text
        for pattern in self._volatile:
            text = pattern.sub("", text)
        return msgspec.structs.replace(message, content=text)

    def candidates(self, base_url: str | None) -> list[BackendHandle]:
        """Its backends, or the one at `base_url` where that is set. Raises `NotFound` listing them."""
        if base_url is None:
            return list(self.backends)
        found = [handle for handle in self.backends if handle.url and _same_url(handle.url, base_url)]
        if not found:
            known = ", ".join(handle.url or f"{handle.name} (no address)" for handle in self.backends)
            raise NotFound(
                f"base_url {base_url!r} is no backend of model {self.name!r}; its backends are: {known}",
                code="backend_not_found",
                param="base_url",
            )
        return found


def _same_url(one: str, other: str) -> bool:
    """Whether two addresses are the same, with or without the `/v1` that OpenAI's clients want."""
    return one.rstrip("/").removesuffix("/v1") == other.rstrip("/").removesuffix("/v1")


class Models:
    """All models of the server; the first is the default."""

    def __init__(self, models: Sequence[Model], *, unknown_model: str = "error") -> None:
        self._models = {model.name: model for model in models}
        self.default = models[0]
        self.unknown_model = unknown_model
        """What a session's request for a model that is not configured gets: "session" (its own model) or "error"."""

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> Model:
        """The model of that name; "" is the default. Raises `NotFound` listing the names."""
        if not name:
            return self.default
        if name not in self._models:
            raise NotFound(
                f"model {name!r} is not configured; this server has: {', '.join(self._models)}",
                code="model_not_found",
                param="model",
            )
        return self._models[name]

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def decode(self, name: str, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens shown; "" for a model that has left the config or has no tokenizer."""
        model = self._models.get(name)
        return "" if model is None or model.renderer is None else model.renderer.decode(list(ids))

    async def close(self) -> None:
        """Close every backend."""
        for model in self:
            for handle in model.backends:
                await handle.backend.close()


async def load_models(config: Config, plugins: Plugins) -> Models:
    """Create and start every backend, load every tokenizer. What was started is closed if one fails."""
    started: list[Backend] = []
    models: list[Model] = []
    try:
        for model in config.models:
            handles = [
                await _start(number, model, config, plugins, started) for number in range(len(model.backends))
            ]
            _check_names(model, handles)
            models.append(Model(model, handles, await _renderer(model, handles)))
            await _check_parsers(models[-1], plugins)
    except BaseException:
        for backend in started:
            await backend.close()
        raise
    return Models(models, unknown_model=config.server.unknown_model)


async def _start(
    number: int, model: ModelConfig, settings: Config, plugins: Plugins, started: list[Backend]
) -> BackendHandle:
    config = model.backends[number]
    made = await plugins.ask(
        "create_backend", kind=config.kind, options=dict(config.options), model=model.name
    )
    if made is None:
        raise ConfigError(
            f"model {model.name!r}: no plugin creates backends of kind {config.kind!r}"
            f"{plugins.hint('create_backend', config.kind)}; `rolltap plugins` shows what is loaded and what failed"
        )
    backend: Backend = made.value
    started.append(backend)
    try:
        await backend.start()
    except RolltapError:
        raise
    except Exception as error:
        raise PluginError(
            f"model {model.name!r}: its backend of kind {config.kind!r} can't start: {error}",
            plugin=made.plugin,
        ) from error
    return BackendHandle(
        backend,
        name=f"{config.kind}-{number}",
        kind=config.kind,
        model=model.name,
        url=str(config.options.get("url") or config.options.get("api_base") or backend.url).rstrip("/"),
        plugin=made.plugin,
        time_limit_s=settings.plugins.backend_time_limit_s or None,
        max_in_flight=settings.server.max_in_flight,
        max_queued=settings.server.max_queued,
    )


def _check_names(model: ModelConfig, handles: Sequence[BackendHandle]) -> None:
    urls = [handle.url.removesuffix("/v1") for handle in handles if handle.url]
    doubled = sorted({url for url in urls if urls.count(url) > 1})
    if doubled:
        raise ConfigError(
            f"model {model.name!r}: two backends at {', '.join(doubled)}; one address, one backend"
        )


async def _check_parsers(model: Model, plugins: Plugins) -> None:
    """Find out at start, not at the first request, that a parser is missing."""
    tokenizer = model.renderer.tokenizer if model.renderer is not None else None
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("tool_parser", model.config.tool_parser, {"tools": []}),
        ("reasoning_parser", model.config.reasoning_parser, {}),
    ]
    for hook, name, more in wanted:
        if name and await plugins.call_first(hook, name=name, tokenizer=tokenizer, **more) is None:
            raise ConfigError(
                f"model {model.name!r}: no plugin offers the {hook} {name!r}{plugins.hint(hook, name)}; "
                f'`rolltap plugins` shows what is loaded, and {hook} = "" does without one'
            )


async def _renderer(model: ModelConfig, handles: Sequence[BackendHandle]) -> Renderer | None:
    """The model's tokenizer and template; None where no backend works in tokens and the config names none."""
    own = (handle.backend.tokenizer for handle in handles)
    tokenizer = model.tokenizer or next(filter(None, own), "")
    in_tokens = [handle.name for handle in handles if isinstance(handle.backend, TokenBackend)]
    if tokenizer:
        renderer = await asyncio.to_thread(Renderer.load, tokenizer, chat_template=model.chat_template)
        for finding in await asyncio.to_thread(probe, renderer) if in_tokens else ():
            if not finding.ok:
                log.warning("model %s, %s: %s", model.name, finding.name, finding.detail)
        return renderer
    if in_tokens:
        raise ConfigError(
            f"model {model.name!r}: its backend {in_tokens[0]} works in tokens and needs `tokenizer`, "
            "a hub id or a folder"
        )
    return None
