"""Where plugins come from: installed packages, the built-in ones first; a folder of files; the caller's objects."""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from rolltap.errors import ConfigError
from rolltap.hookspecs import PROJECT

_PACKAGE_OF_FILES = "rolltap_dir_plugins"
_BUILT_IN = "built-in"


@dataclass(frozen=True)
class Candidate:
    """A plugin that was found and not loaded yet; `load` imports it and may raise anything."""

    name: str
    source: str
    load: Callable[[], object]
    version: str = ""
    package: str = ""
    """The distribution that it was installed with; "" for built-ins, files and objects."""

    @property
    def built_in(self) -> bool:
        """Whether it came with rolltap itself."""
        return self.source == _BUILT_IN


def installed() -> list[Candidate]:
    """The entry points of the group "rolltap": rolltap's own first, then the others by name."""
    found = [(_distribution(point), point) for point in importlib.metadata.entry_points(group=PROJECT)]
    found.sort(key=lambda pair: (pair[0][0] != PROJECT, pair[1].name, pair[0][0]))
    return [
        Candidate(
            name=point.name,
            source=_BUILT_IN if package == PROJECT else f"package {package} ({point.value})",
            load=point.load,
            version=version,
            package="" if package == PROJECT else package,
        )
        for (package, version), point in found
    ]


def in_folder(folder: str) -> list[Candidate]:
    """Each .py file of the folder, by name; those that begin with an underscore are left out.

    Raises `ConfigError` where the folder is not there.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f'plugins.dir = "{folder}" is not a folder; it must be one that holds .py files')
    return [
        Candidate(name=file.stem, source=str(file), load=partial(_import_file, file))
        for file in sorted(path.glob("*.py"))
        if file.is_file() and not file.name.startswith("_")
    ]


def given(plugins: Sequence[object]) -> Iterator[Candidate]:
    """The caller's own objects, named after their module or class, and numbered where that is not enough."""
    seen: dict[str, int] = {}
    for plugin in plugins:
        base = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__name__
        seen[base] = seen.get(base, 0) + 1
        name = base if seen[base] == 1 else f"{base}-{seen[base]}"
        yield Candidate(name=name, source="given to create_app", load=_giving(plugin))


def cause(error: BaseException) -> str:
    """The exception in one line, with the place in the plugin's code that raised it."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_plugin_code(frame.filename)]
    if not frames or isinstance(error, SyntaxError):
        return text
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})"


def _is_plugin_code(filename: str) -> bool:
    return not filename.startswith(("<", str(Path(__file__).parent), str(Path(importlib.__file__).parent)))


def _giving(plugin: object) -> Callable[[], object]:
    return lambda: plugin


def _distribution(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """The name and version of the package that an entry point belongs to."""
    return (point.dist.name, point.dist.version) if point.dist else ("of unknown name", "")


def _import_file(file: Path) -> ModuleType:
    """Import a file as a module of a name of its own, which hides no other module."""
    folder = hashlib.sha256(str(file.parent.resolve()).encode()).hexdigest()[:8]
    name = f"{_PACKAGE_OF_FILES}.{file.stem}_{folder}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
