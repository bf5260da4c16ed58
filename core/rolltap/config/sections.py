"""The config's tables as types. A field's `Meta` says, for people, what is allowed there."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Port = Annotated[int, Meta(ge=0, le=65535, description="a port from 0 (any free one) to 65535")]
Count = Annotated[int, Meta(ge=1, description="an integer of at least 1")]
CountOrNone = Annotated[int, Meta(ge=0, description="an integer of at least 0")]
Positive = Annotated[float, Meta(gt=0, description="a number above 0")]
Seconds = Annotated[float, Meta(gt=0, description="a number of seconds above 0")]
SecondsOrNone = Annotated[float, Meta(ge=0, description="a number of seconds, or 0 for no limit")]
Name = Annotated[str, Meta(min_length=1, description="a name that is not empty")]
Kind = Annotated[str, Meta(min_length=1, description="a kind that some plugin creates, and not empty")]


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[server]`: where rolltap listens, whom it lets in, and how much it takes on."""

    host: Annotated[str, Meta(min_length=1, description="a host name or an address to listen on")] = (
        "127.0.0.1"
    )
    port: Port = 9100
    api_keys: list[Name] = field(default_factory=list)
    api_keys_file: str = ""
    """More keys: a file with one `name = "key"` a line, read again on SIGHUP."""
    allow_public: bool = False
    """Whether the server may listen on other addresses than loopback without keys."""
    access_log: bool = False
    """Whether each request is logged; costs up to half the throughput."""
    log_format: Literal["text", "json"] = "text"
    max_body_mb: Positive = 64
    request_timeout_s: Seconds = 1200
    idle_timeout_s: Seconds = 75
    """How long a connection may be kept open between two requests."""
    max_sessions: Count = 10000
    session_ttl_s: Seconds = 86400
    """Counted from the end of the session's last call."""
    unknown_model: Literal["session", "error"] = "session"
    """In a session, a request for a model that is not configured is answered by the session's own, or refused."""
    drain_s: Seconds = 25
    """On SIGTERM: how long calls in flight may take to finish. What still runs then ends with its dialect's error."""
    loop: Literal["asyncio", "uvloop"] = "asyncio"
    """The event loop: Python's own, or the faster one of the extra `uvloop`."""
    max_in_flight: Count = 512
    """Upstream requests at once, for each backend."""
    max_queued: CountOrNone = 4096
    """Requests that wait for one of these, for each backend; past it: 429."""


class StoreConfig(Struct, frozen=True, kw_only=True):
    """`[store]`: which store keeps the sessions. All keys but `kind` are its plugin's and sit in `options`."""

    kind: Kind = "sqlite"
    options: dict[str, Any] = field(default_factory=dict)


class PluginsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[plugins]`: which plugins not to load, a folder of single-file ones, and how long they may take."""

    disable: list[Name] = field(default_factory=list)
    dir: str = ""
    time_limit_s: SecondsOrNone = 120
    """How long one plugin may take to answer a hook, those that create backends and stores excepted."""
    backend_time_limit_s: SecondsOrNone = 0
    """How long a backend may be silent within an answer."""


class BackendConfig(Struct, frozen=True, kw_only=True):
    """One `[[models.backends]]`. All keys but `kind` are its plugin's and sit in `options`."""

    kind: Kind
    options: dict[str, Any] = field(default_factory=dict)


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[models]]`: what clients ask for by `name`, and the backends that answer."""

    name: Name
    tokenizer: str = ""
    """A hub id or a folder; empty: the backend's own."""
    chat_template: str = ""
    """A Jinja file in place of the tokenizer's own template."""
    tool_parser: str = "hermes"
    reasoning_parser: str = ""
    """Empty: thinking stays in the content."""
    stream_arguments: bool = False
    """Whether a call is sent while its arguments are written, where the tool parser can; else once it is whole."""
    history: Literal["recorded", "template"] = "recorded"
    """Where the text of earlier turns comes from: the recorded ids, or the template rendered anew."""
    on_abort: Literal["continue", "restart", "end"] = "continue"
    """What is done where the engine gives a call up, as for an update of its weights: it is gone on from where it was;
    begun anew; or ended with an error. A call that can't be gone on from is begun anew where nothing of it was sent."""
    on_engine_loss: Literal["continue", "fail"] = "continue"
    """Whether a call whose engine dies in the middle is gone on from at another one of the same weights."""
    pause_limit_s: Seconds = 1800
    """How long a call waits for an engine to resume; outside every other time limit."""
    cache_salt: Literal["", "version"] = ""
    """"version": the engine reads no cached prefix of other weights."""
    drop_system_text: list[str] = field(default_factory=list)
    """Regular expressions: what they match is left out of system messages, so that text which changes with each
    request does not keep a later turn from extending an earlier one."""
    backends: Annotated[list[BackendConfig], Meta(min_length=1, description="at least one backend's table")]
