"""The options of a vLLM backend's table in the config."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from rolltap import ConfigError, read_options

Seconds = Annotated[float, Meta(gt=0)]
LogprobsMode = Literal["", "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


class Options(Struct, frozen=True, kw_only=True):
    """What a backend of kind "vllm" understands. Either `url` or `launch` says where the engine is."""

    url: str = ""
    """Address of a running server, with or without `/v1` at its end."""
    api_key_env: str = ""
    """Environment variable that holds the server's API key."""
    model: str = ""
    """The name that the engine serves; default: the first that it lists."""
    endpoint: Literal["auto", "generate", "completions"] = "auto"
    """`/inference/v1/generate` or `/v1/completions`; "auto" takes the first where the server has it."""
    logprobs_mode: LogprobsMode = ""
    """What the server was started with (`--logprobs-mode`); default: asked of it, else vLLM's own default."""
    connect_timeout_s: Seconds = 10.0
    timeout_s: Seconds = 1200.0
    """The longest silence of the engine within a reply, queueing included."""

    launch: str = ""
    """Model folder or hub id: rolltap starts the engine with it, watches it and ends it."""
    launch_args: list[str] = field(default_factory=list)
    """Further arguments of `vllm serve`."""
    launch_python: str = ""
    """The interpreter that has vLLM; default: rolltap's own."""
    launch_env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the engine besides rolltap's own, such as CUDA_VISIBLE_DEVICES."""
    launch_timeout_s: Seconds = 1800.0
    """How long the engine may take until it is ready, a model's download included."""
    launch_wait_s: Seconds = 120.0
    """How long a request waits for an engine that is being started again."""

    @classmethod
    def read(cls, table: Mapping[str, Any], model: str, environ: Mapping[str, str] = os.environ) -> "Options":
        """The options in `table`, checked. Raises `ConfigError` that names the key, the value and the way out."""
        options = read_options(table, cls, _where(model))
        options._check(model, environ)
        return msgspec.structs.replace(options, url=options.url.rstrip("/").removesuffix("/v1").rstrip("/"))

    def _check(self, model: str, environ: Mapping[str, str]) -> None:
        if bool(self.url) == bool(self.launch):
            raise ConfigError(
                f"{_where(model)}: give either 'url', the address of a running server, or 'launch', "
                "the model with which rolltap starts one"
            )
        if self.url:
            self._check_url(model)
        else:
            self._check_launch(model)
        if self.api_key_env and self.api_key_env not in environ:
            raise ConfigError(
                f"{_where(model)}: 'api_key_env' names {self.api_key_env!r}, which is not in the environment"
            )

    def _check_url(self, model: str) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ConfigError(
                f"{_where(model)}: 'url' is {self.url!r}; expected an address such as 'http://127.0.0.1:8000'"
            )
        for name in self.__struct_fields__:
            if name.startswith("launch_") and name in self.changed():
                raise ConfigError(f"{_where(model)}: {name!r} has a meaning only together with 'launch'")

    def _check_launch(self, model: str) -> None:
        for argument in self.launch_args:
            if argument.partition("=")[0] in {"--host", "--port"}:
                raise ConfigError(
                    f"{_where(model)}: 'launch_args' has {argument!r}, but rolltap chooses the engine's address; "
                    "leave it out, or start the engine yourself and give its 'url'"
                )

    def changed(self) -> set[str]:
        """The names of the options that differ from their defaults."""
        defaults = Options()
        return {name for name in self.__struct_fields__ if getattr(self, name) != getattr(defaults, name)}

    def launch_arg(self, name: str) -> str | None:
        """The value of a `--name` in `launch_args`, given as two arguments or with "="; None where it isn't there."""
        for position, argument in enumerate(self.launch_args):
            key, equals, value = argument.partition("=")
            if key != name:
                continue
            if equals:
                return value
            return self.launch_args[position + 1] if position + 1 < len(self.launch_args) else None
        return None


def _where(model: str) -> str:
    return f"model {model!r}, backend of kind 'vllm'"
