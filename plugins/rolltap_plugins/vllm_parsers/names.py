"""The names of vLLM's parsers, read from its installed files: nothing of it is imported."""

import ast
import logging
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Registry = Literal["tool", "reasoning"]

_PLACES: dict[Registry, tuple[str, ...]] = {
    "tool": ("tool_parsers/__init__.py", "entrypoints/openai/tool_parsers/__init__.py"),
    "reasoning": ("reasoning/__init__.py",),
}
"""Where the registries are, relative to the package; the newest place first."""

_log = logging.getLogger(__name__)


def folder() -> Path | None:
    """Where vLLM is installed; None where it isn't."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def listed(kind: Registry) -> frozenset[str]:
    """All names of one registry; none where vLLM isn't installed."""
    package = folder()
    if package is None:
        return frozenset()
    for place in _PLACES[kind]:
        file = package / place
        if file.is_file() and (found := registered(file.read_text(encoding="utf-8"))):
            return found
    _log.warning(
        "the vLLM at %s lists its %s parsers in a way that this rolltap does not know: none of them is offered",
        package,
        kind,
    )
    return frozenset()


def registered(source: str) -> frozenset[str]:
    """The keys of the dict that a module assigns to a name ending in `_TO_REGISTER`: a registry of vLLM's."""
    found: set[str] = set()
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.Dict):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if any(isinstance(target, ast.Name) and target.id.endswith("_TO_REGISTER") for target in targets):
            keys = (key.value for key in statement.value.keys if isinstance(key, ast.Constant))
            found.update(key for key in keys if isinstance(key, str))
    return frozenset(found)
