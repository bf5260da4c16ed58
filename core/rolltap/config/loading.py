"""The config as a whole: read from a file or a dict, overridden by the environment, checked."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from rolltap.config import environment
from rolltap.config.schema import Path, allowed, dotted, keys, nearest_key, parsed, shown, type_at, value_at
from rolltap.config.sections import ModelConfig, PluginsConfig, ServerConfig, StoreConfig
from rolltap.errors import ConfigError

EMBEDDED_MODEL = "smollm2-135m"
"""The name of the model that is served without a config."""

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be configured, checked."""

    server: ServerConfig = field(default_factory=ServerConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    plugins: PluginsConfig = field(default_factory=PluginsConfig)
    models: Annotated[
        list[ModelConfig],
        Meta(min_length=1, description="at least one [[models]] table, with a name and backends"),
    ]

    @classmethod
    def load(
        cls,
        source: "str | os.PathLike[str] | Mapping[str, Any] | Config | None",
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> "Config":
        """The config from a TOML file, a dict in the same shape, or None: the embedded model.

        The environment's ROLLTAP_SECTION__KEY variables win over the source. A `Config` is given back as it is.
        Paths in a file are relative to its folder, others to the working directory.

        Raises `ConfigError` whose message names the file or variable, the key, the value and what is allowed.
        """
        if isinstance(source, Config):
            return source
        raw, name, folder = _read(source)
        if folder is not None:
            _resolve_paths(raw, folder)
        origins = environment.apply(raw, environ, cls)

        def origin(path: Path) -> str:
            variable = environment.origin(path, origins)
            return f"environment variable {variable}" if variable else name

        try:
            config = msgspec.convert(_with_options(raw), cls)
        except msgspec.ValidationError as error:
            path, message = _explained(str(error), raw)
            raise ConfigError(f"{origin(path)}: {message}") from None
        _check_names(config, origin)
        _check_patterns(config, origin)
        return config


def _read(source: Any) -> tuple[dict[str, Any], str, FilePath | None]:
    """The source's tables (a copy), its name for messages, and the folder its paths are relative to."""
    if source is None:
        return (
            {"models": [{"name": EMBEDDED_MODEL, "backends": [{"kind": "local"}]}]},
            "embedded config",
            None,
        )
    if isinstance(source, Mapping):
        return _copied(source), "config", None
    file = FilePath(source)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")), str(file), file.absolute().parent
    except OSError as error:
        raise ConfigError(f"{file}: the config cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: the config is not UTF-8 text: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def _copied(value: Any) -> Any:
    """A copy of the tables and lists alone: options may hold objects of the caller's, which stay the same."""
    if isinstance(value, Mapping):
        return {str(key): _copied(inner) for key, inner in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _resolve_paths(raw: dict[str, Any], folder: FilePath) -> None:
    """Make the core's own paths absolute. A tokenizer is a path where it begins like one, else a hub id."""
    for section, key in (("plugins", "dir"), ("store", "path"), ("server", "api_keys_file")):
        table = raw.get(section)
        if isinstance(table, dict):
            _resolve(table, key, folder)
    models = raw.get("models")
    for model in models if isinstance(models, list) else []:
        if isinstance(model, dict):
            _resolve(model, "chat_template", folder)
            if str(model.get("tokenizer")).startswith(("./", "../", "~")):
                _resolve(model, "tokenizer", folder)


def _resolve(table: dict[str, Any], key: str, folder: FilePath) -> None:
    value = table.get(key)
    if isinstance(value, str) and value:
        table[key] = str(folder / FilePath(value).expanduser())


def _with_options(raw: dict[str, Any]) -> dict[str, Any]:
    """The tables as the types have them: what belongs to a plugin gathered in `options`."""
    shaped = dict(raw)
    if "store" in raw:
        shaped["store"] = _gathered(raw["store"])
    if isinstance(raw.get("models"), list):
        shaped["models"] = [
            {**model, "backends": [_gathered(backend) for backend in model["backends"]]}
            if isinstance(model, dict) and isinstance(model.get("backends"), list)
            else model
            for model in raw["models"]
        ]
    return shaped


def _gathered(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    kind = {"kind": table["kind"]} if "kind" in table else {}
    return {**kind, "options": {key: value for key, value in table.items() if key != "kind"}}


def _explained(problem: str, raw: dict[str, Any]) -> tuple[Path, str]:
    """Which key a message of msgspec is about, and the same in our words."""
    what, _, at = problem.partition(" - at `$")
    path = parsed(at.removesuffix("`"))
    if found := _UNKNOWN.fullmatch(what):
        known = ", ".join(keys(type_at(Config, path)))
        where = f"keys of {dotted(path)}" if path else "sections"
        path = (*path, found[1])
        return path, (
            f"unknown key {dotted(path)} = {shown(path, value_at(raw, path))}; "
            f"the nearest known key is {nearest_key(Config, path)} (the {where} are: {known})"
        )
    if found := _MISSING.fullmatch(what):
        path = (*path, found[1])
        return path, f"{dotted(path)} is missing; it must be {allowed(type_at(Config, path))}"
    value = shown(path, value_at(raw, path))
    return path, f"{dotted(path)} = {value} is not allowed; it must be {allowed(type_at(Config, path))}"


def _check_names(config: Config, origin: Callable[[Path], str]) -> None:
    """Two models of one name: a client could never reach the second."""
    seen: dict[str, int] = {}
    for index, model in enumerate(config.models):
        if model.name in seen:
            path: Path = ("models", index, "name")
            raise ConfigError(
                f'{origin(path)}: {dotted(path)} = "{model.name}" is not allowed; '
                f"it must differ from models[{seen[model.name]}].name"
            )
        seen[model.name] = index


def _check_patterns(config: Config, origin: Callable[[Path], str]) -> None:
    for number, model in enumerate(config.models):
        for index, pattern in enumerate(model.drop_system_text):
            try:
                re.compile(pattern)
            except re.error as error:
                path: Path = ("models", number, "drop_system_text", index)
                raise ConfigError(
                    f"{origin(path)}: {dotted(path)} = {shown(path, pattern)} is not allowed; "
                    f"it must be a regular expression ({error})"
                ) from None
