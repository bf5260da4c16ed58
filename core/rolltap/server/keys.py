"""The server's keys: those of the config, and those of a file that can be read anew."""

import hmac
import logging
import tomllib
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from rolltap.errors import ConfigError

log = logging.getLogger(__name__)


class Keys:
    """What opens the server. Only hashes of the keys are kept."""

    def __init__(self, keys: Iterable[str], file: str = "") -> None:
        """Raises `ConfigError` where the file can't be read or holds something else than keys."""
        self._configured = [_hash(key) for key in keys]
        self.file = file
        self._of_file = _read(file) if file else []

    def __bool__(self) -> bool:
        return bool(self._configured or self.file)

    def opened_by(self, sent: Iterable[str]) -> bool:
        """Whether one of the keys was sent. Every pair is compared, in a time that tells nothing of the keys."""
        known = [*self._configured, *self._of_file]
        found = [hmac.compare_digest(key, _hash(each)) for each in sent for key in known]
        return any(found)

    def reload(self) -> None:
        """Read the file again. The keys stay as they were where it is wrong, and the log says so."""
        try:
            self._of_file = _read(self.file) if self.file else []
        except ConfigError as error:
            log.warning("the keys stay as they were: %s", error)
        else:
            log.info("read %d keys from server.api_keys_file", len(self._of_file))


def _hash(key: str) -> bytes:
    """The hash of a header's value as it was sent: aiohttp decodes what is not UTF-8 with surrogates."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read(file: str) -> list[bytes]:
    where = f"server.api_keys_file = {file!r}"
    try:
        found = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}: the file can't be read: {error.strerror or error}") from error
    except ValueError as error:  # its own text may quote a key
        raise ConfigError(f'{where}: the file must have one `name = "key"` a line, in UTF-8') from error
    for name, key in found.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"{where}: {name} must be a key in quotes, and not empty")
    return [_hash(key) for key in found.values()]
