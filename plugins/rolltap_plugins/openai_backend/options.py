"""The options of a backend of kind "openai"."""

import os
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct, field

from rolltap import ConfigError, read_options
from rolltap_plugins.upstream.options import Seconds, api_key, check_url, server_url
from rolltap_plugins.upstream.requests import Style

_OPENAI = "api.openai.com"


class Options(Struct, frozen=True, kw_only=True):
    """What a backend of kind "openai" understands. Either `url` or `api_base` says where the server is."""

    url: str = ""
    """Address of a server, with or without `/v1` at its end."""
    api_base: str = ""
    """What SDKs call the base URL, taken as it is: requests go to `api_base` + "/chat/completions"."""
    api_key_env: str = ""
    """Environment variable that holds the server's API key."""
    model: str = ""
    """The server's own name of the model; default: the name that clients use."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of every request."""
    connect_timeout_s: Seconds = 10.0
    timeout_s: Seconds = 1200.0
    """The longest silence of the server within a reply, queueing included."""
    max_tokens_field: Literal["", "max_tokens", "max_completion_tokens"] = ""
    """What the server calls the limit of generated tokens; default: "max_tokens", and OpenAI's own service the other."""
    reasoning_field: str | None = None
    """The field of a message that past thinking is sent in, "": none; default: "reasoning_content", and none for
    OpenAI's own service."""
    developer_role: bool | None = None
    """Whether the server takes messages of the role "developer"; default: OpenAI's own service alone. Others get them
    as system messages."""
    systems: Literal["", "first", "anywhere"] = ""
    """Where the server takes system messages. "first", the default but for OpenAI's own service: one, in front; what
    agents send later goes into the user's messages."""
    stream_usage: bool = True
    """Whether streams are asked to report usage; some old servers refuse the question."""

    @classmethod
    def read(cls, table: Mapping[str, Any], model: str, environ: Mapping[str, str] = os.environ) -> "Options":
        """The options in `table`, checked. Raises `ConfigError` that names the key, the value and the way out."""
        where = f"model {model!r}, backend of kind 'openai'"
        options = read_options(table, cls, where)
        if bool(options.url) == bool(options.api_base):
            raise ConfigError(f"{where}: give either 'url', a server's address, or 'api_base', its base URL")
        check_url("url" if options.url else "api_base", options.url or options.api_base, where)
        api_key(options.api_key_env, where, environ)
        return options

    @property
    def base(self) -> str:
        """What the paths of requests are put after."""
        return server_url(self.url) + "/v1" if self.url else self.api_base.rstrip("/")

    @property
    def style(self) -> Style:
        """What the server takes."""
        openai = urlsplit(self.base).hostname == _OPENAI
        reasoning = "" if openai else "reasoning_content"
        return Style(
            max_tokens=self.max_tokens_field or ("max_completion_tokens" if openai else "max_tokens"),
            reasoning=reasoning if self.reasoning_field is None else self.reasoning_field,
            template_kwargs=not openai,
            openai=openai,
            developer=openai if self.developer_role is None else self.developer_role,
            systems=self.systems or ("anywhere" if openai else "first"),
            stream_usage=self.stream_usage,
        )
