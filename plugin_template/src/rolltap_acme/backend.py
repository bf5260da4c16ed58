"""The chat backend "acme": it repeats the last message, word by word. Put your provider's client in its place."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from rolltap import ChatBackend, ChatDelta, ChatRequest, ConfigError, hookimpl


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of the backend's table in the config, besides `kind`."""

    delay_s: float = 0.0
    """How long each word takes, in seconds."""


class AcmeChatBackend(ChatBackend):
    """Messages in, deltas out. `start` and `close` are the places for a client session."""

    parameters = frozenset({"max_tokens"})  # a request that sets another one is refused by name

    def __init__(self, options: Options) -> None:
        self._options = options

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Yield each piece as it comes. If the client leaves, this generator is closed where it stands."""
        words = request.messages[-1].text.split()
        said = words[: request.sampling.max_tokens]
        for number, word in enumerate(said):
            await asyncio.sleep(self._options.delay_s)
            yield ChatDelta(text=word if number == 0 else f" {word}")
        yield ChatDelta(finish_reason="stop" if said == words else "length")


@hookimpl
def create_backend(kind: str, options: dict[str, Any]) -> AcmeChatBackend | None:
    """Answer for `kind = "acme"`."""
    if kind != "acme":
        return None
    try:
        return AcmeChatBackend(msgspec.convert(options, Options))
    except msgspec.ValidationError as error:
        raise ConfigError(f"a backend of kind 'acme': {error}") from None


@hookimpl
def offers() -> dict[str, list[str]]:
    """What `rolltap plugins` and messages about unknown names show."""
    return {"create_backend": ["acme"]}
