"""Options that backends with an upstream have: an address, a key, time limits, and how to start an engine."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from rolltap import ConfigError, read_options

Seconds = Annotated[float, Meta(gt=0)]


def check_url(name: str, url: str, where: str) -> None:
    """Raise `ConfigError` where `url`, the option `name`, is no address, or has a secret in it."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(
            f"{where}: {name!r} is {url!r}; expected an address such as 'http://127.0.0.1:8000'"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"{where}: {name!r} has a user or a password in it, and addresses are shown in logs and to clients; "
            f"leave it {parts.scheme}://{parts.netloc.rpartition('@')[2]} and name the key with 'api_key_env'"
        )


def server_url(url: str) -> str:
    """The address of a server, given with or without `/v1` at its end."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def api_key(
    variable: str, where: str, environ: Mapping[str, str] = os.environ, *, option: str = "api_key_env"
) -> str | None:
    """The key that the option names; None where it names none. Raises `ConfigError` for one not set."""
    if not variable:
        return None
    if not environ.get(variable):
        raise ConfigError(
            f"{where}: {option!r} names {variable!r}, which is not in the environment; set it, or leave the option "
            "out where the upstream needs no key"
        )
    return environ[variable]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """What every backend of an engine understands. Either `url` or `launch` says where the engine is."""

    KIND: ClassVar[str]
    """The `kind` of the backend's table."""

    url: str = ""
    """Address of a running server, with or without `/v1` at its end."""
    api_key_env: str = ""
    """Environment variable that holds the server's API key."""
    model: str = ""
    """The name that the engine serves; default: the first that it lists."""
    connect_timeout_s: Seconds = 10.0
    timeout_s: Seconds = 1200.0
    """The longest silence of the engine within a reply, queueing included. A reply that nobody streams is silent until
    it is whole."""

    launch: str = ""
    """Model folder or hub id: rolltap starts the engine with it, watches it and ends it."""
    launch_args: list[str] = field(default_factory=list)
    """Further arguments of the engine's own command."""
    launch_python: str = ""
    """The interpreter that has the engine; default: rolltap's own."""
    launch_env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the engine besides rolltap's own, such as CUDA_VISIBLE_DEVICES."""
    launch_timeout_s: Seconds = 1800.0
    """How long the engine may take until it is ready, a model's download included."""
    launch_wait_s: Seconds = 120.0
    """How long a request waits for an engine that is being started again."""

    @classmethod
    def read(cls, table: Mapping[str, Any], model: str, environ: Mapping[str, str] = os.environ) -> Self:
        """The options in `table`, checked. Raises `ConfigError` that names the key, the value and the way out."""
        where = f"model {model!r}, backend of kind {cls.KIND!r}"
        options = read_options(table, cls, where)
        options.check(where, environ)
        return msgspec.structs.replace(options, url=server_url(options.url))

    def check(self, where: str, environ: Mapping[str, str]) -> None:
        """Raise `ConfigError` for options that contradict each other."""
        if bool(self.url) == bool(self.launch):
            raise ConfigError(
                f"{where}: give either 'url', the address of a running server, or 'launch', "
                "the model with which rolltap starts one"
            )
        if self.url:
            check_url("url", self.url, where)
            for name in sorted(self._changed()):
                if name.startswith("launch_"):
                    raise ConfigError(f"{where}: {name!r} has a meaning only together with 'launch'")
        for argument in self.launch_args:
            if argument.partition("=")[0] in {"--host", "--port"}:
                raise ConfigError(
                    f"{where}: 'launch_args' has {argument!r}, but rolltap chooses the engine's address; "
                    "leave it out, or start the engine yourself and give its 'url'"
                )
        api_key(self.api_key_env, where, environ)

    def launch_arg(self, *names: str) -> str | None:
        """The value of a `--name` in `launch_args`, given as two arguments or with "="; None where it isn't there."""
        for position, argument in enumerate(self.launch_args):
            key, equals, value = argument.partition("=")
            if key not in names:
                continue
            if equals:
                return value
            return self.launch_args[position + 1] if position + 1 < len(self.launch_args) else None
        return None

    def _changed(self) -> set[str]:
        """The names of the options that differ from their defaults."""
        defaults = type(self)()
        return {name for name in self.__struct_fields__ if getattr(self, name) != getattr(defaults, name)}
