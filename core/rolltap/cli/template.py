"""The template for projects with plugins: where it is, what belongs to it, and how it is copied under another name."""

import keyword
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path

from rolltap.errors import ConfigError

KINDS: Mapping[str, str] = {
    "parser": "parser",
    "backend": "backend",
    "token-backend": "token_backend",
    "recorder": "recorder",
    "router": "router",
    "errors": "errors",
}
"""The kinds of plugins, and the template's module for each."""

_COMMON = (
    ".github/workflows/test.yml",
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "src/rolltap_acme/__init__.py",
    "src/rolltap_acme/py.typed",
    "tests/conftest.py",
)
_FURTHER = {"backend": ("rolltap.toml",)}
"""Files that a kind has besides its module and the module's test."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_ACME = re.compile(r"rolltap[-_]acme|acme|Acme|ACME")
_ABOUT_THE_TEMPLATE = re.compile(r"\n<!-- template -->.*?<!-- /template -->\n", re.DOTALL)
_TAKEN = frozenset({"rolltap", "rolltap_plugins", "test", "tests"})


def write(name: str, kinds: Iterable[str], folder: Path) -> None:
    """Write a project with these kinds of plugins into a new folder. Raises `ConfigError`."""
    names = _names(name)
    modules = {KINDS[kind] for kind in kinds}
    if folder.exists():
        raise ConfigError(f"{folder} exists already; choose another name, or another folder with --to")
    try:
        for file in template_files(modules):
            text = (folder_of_template() / file).read_text(encoding="utf-8")
            target = folder / _renamed(file, names)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(
                _renamed(_about(modules, _ABOUT_THE_TEMPLATE.sub("", text)), names), encoding="utf-8"
            )
    except OSError as error:
        raise ConfigError(f"{folder} can't be written: {error.strerror or error}") from error


def folder_of_template() -> Path:
    """The template's folder: within the installed package, or in the repository that rolltap is installed from."""
    packaged = Path(str(files("rolltap"))) / "plugin_template"
    return packaged if packaged.is_dir() else packaged.parents[2] / "plugin_template"


def template_files(modules: Iterable[str]) -> list[str]:
    """The template's files that a project with these modules has."""
    chosen = list(modules)
    own = [
        file
        for module in chosen
        for file in (f"src/rolltap_acme/{module}.py", f"tests/test_{module}.py", *_FURTHER.get(module, ()))
    ]
    return sorted([*_COMMON, *own])


def _names(name: str) -> dict[str, str]:
    """What stands for each of the template's names."""
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        lower = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        example = lower if _NAME.fullmatch(lower) else "rolltap-mine"
        raise ConfigError(
            f'"{name}" is not a name for a package: it must be of lower-case letters, digits and single "-", and begin '
            f'with a letter, such as "{example}"'
        )
    if package in _TAKEN or package in sys.stdlib_module_names or keyword.iskeyword(package):
        raise ConfigError(
            f'"{name}" would hide a module of that name; choose another, such as "rolltap-{name}"'
        )
    word = name.removeprefix("rolltap-").removeprefix("rolltap_")
    camel = "".join(part.capitalize() for part in re.split(r"[-_]", word))
    upper = word.replace("-", "_").upper()
    return {
        "rolltap-acme": name,
        "rolltap_acme": package,
        "acme": word,
        # A class or a variable can't begin with a digit, as what follows "rolltap-" may.
        "Acme": camel if camel[0].isalpha() else f"Plugin{camel}",
        "ACME": upper if upper[0].isalpha() else f"PLUGIN_{upper}",
    }


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return _ACME.sub(lambda found: names[found.group()], text)


def _about(modules: Iterable[str], text: str) -> str:
    """The text without the lines about modules that the project does not have."""
    others = sorted(set(KINDS.values()) - set(modules))
    if not others:
        return text
    other = "|".join(others)
    about_another = re.compile(rf"\b(?:{other})\.py\b|\brolltap_acme\.(?:{other})\"")
    return "".join(line for line in text.splitlines(keepends=True) if not about_another.search(line))
