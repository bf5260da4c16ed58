"""Loading a tokenizer, and what its folder says about the end of a turn."""

import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from rolltap.errors import ConfigError

_HUB_ANSWERS_WITHIN_S = 3.0

_WORDS_FOR_OFFLINE = ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError")


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a hub id or a folder, as `transformers.AutoTokenizer` loads it.

    Raises `ConfigError` that tells a missing folder from one without a tokenizer, an unknown id and a hub that
    cannot be reached. Code that a model's repository brings along is not run.
    """
    # Else it says, each time, that PyTorch is missing: tokenizers need none.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    folder = _folder(name)
    if folder is not None and not folder.is_dir():
        raise ConfigError(
            f"tokenizer {name!r}: there is no such folder; give an existing one, or a hub id like 'Qwen/Qwen3-4B'"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder or name), local_files_only=folder is None and not hub_answers()
        )
    except Exception as error:  # whatever goes wrong inside, it is this one setting that is wrong
        raise ConfigError(_load_failure(name, folder, error)) from error
    return tokenizer


def hub_answers() -> bool:
    """Whether the hub can be reached. Its client would try for a minute, also for what is in the cache already."""
    from huggingface_hub import constants  # noqa: PLC0415 - not needed before a tokenizer is

    if constants.HF_HUB_OFFLINE:
        return False
    hub = urlsplit(constants.ENDPOINT)
    if hub.scheme in getproxies():
        return True  # a proxy reaches what this machine may not
    try:
        address = (hub.hostname, hub.port or {"http": 80}.get(hub.scheme, 443))
        socket.create_connection(address, timeout=_HUB_ANSWERS_WITHIN_S).close()
    except OSError:
        return False
    return True


def _folder(name: str) -> Path | None:
    """The folder that a name means; None for a hub id. What exists wins, then what can only be a path."""
    path = Path(name).expanduser()
    looks_like_path = name.startswith(("/", "./", "../", "~", ".\\")) or name.count("/") > 1 or "\\" in name
    return path if path.is_dir() or looks_like_path else None


def _load_failure(name: str, folder: Path | None, error: BaseException) -> str:
    kinds = set()
    cause: BaseException | None = error
    while cause is not None:
        kinds.add(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    first_line = str(error).strip().split("\n", 1)[0]
    if folder is not None:
        if not any((folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json")):
            return f"tokenizer {name!r}: the folder has no tokenizer in it (no tokenizer.json)"
        return f"tokenizer {name!r}: the folder's tokenizer cannot be loaded: {first_line}"
    if "GatedRepoError" in kinds:
        return f"tokenizer {name!r}: access to it is restricted on the hub; log in with `hf auth login`"
    if kinds & {"RepositoryNotFoundError", "HFValidationError"}:
        return f"tokenizer {name!r}: there is no such folder here and no such model on the hub"
    if kinds.intersection(_WORDS_FOR_OFFLINE):
        return (
            f"tokenizer {name!r}: it is not in the local cache and the hub cannot be reached; "
            "connect to the internet once, or give a folder that has it"
        )
    return f"tokenizer {name!r}: it cannot be loaded: {first_line}"


def generation_eos_ids(name: str) -> list[int]:
    """The end ids that the model's generation_config.json names; none where it has no such file."""
    from transformers.utils.hub import cached_file

    folder = _folder(name)
    path = cached_file(
        str(folder or name),
        "generation_config.json",
        local_files_only=folder is None and not hub_answers(),
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return []
    try:
        ids = json.loads(Path(path).read_bytes()).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not a JSON object: {error}") from error
    return [ids] if isinstance(ids, int) else [item for item in ids or [] if isinstance(item, int)]
