"""Writes the generated parts of plugins/README.md: the built-in plugins, their options, and every hook.

`make docs` runs it. With --check it writes nothing, and ends with 1 where the README is not what it would write.
"""

import ast
import importlib.metadata
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

import rolltap
from rolltap import hookspecs
from rolltap.plugins import HOOKS
from rolltap.plugins.rules import declared

README = Path(__file__).parents[1] / "plugins" / "README.md"

# What these answer for depends on what is installed.
VARYING = {"vllm-parsers": "every name of the installed vLLM's that no other plugin answers for"}


def builtins() -> dict[str, ModuleType]:
    """The built-in plugins by their names."""
    points = importlib.metadata.distribution("rolltap").entry_points.select(group="rolltap")
    return {point.name: point.load() for point in sorted(points)}


def catalogue() -> Iterator[str]:
    """A table of all plugins, then the options of those that have some."""
    yield "| plugin | what it is | answers for |\n|---|---|---|\n"
    for name, module in builtins().items():
        yield f"| `{name}` | {in_table(summary(module))} | {names(name, module)} |\n"
    for module in builtins().values():
        if hasattr(module, "create_backend"):
            for options in found_options(module):
                yield from option_table(module, options)


def summary(documented: object) -> str:
    """The first sentence or paragraph of a docstring, without the full stop."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split()).removesuffix(".")


def in_table(text: str) -> str:
    """The text as it stands in a Markdown table; within code a bar must be escaped too."""
    return text.replace("|", r"\|")


def names(plugin: str, module: ModuleType) -> str:
    """What the plugin says it offers."""
    if plugin in VARYING:
        return VARYING[plugin]
    offered = {hook: list(names) for hook, names in declared(module).items()}
    offered |= module.offers() if hasattr(module, "offers") else {}
    return "; ".join(f"{hook}: {', '.join(f'`{name}`' for name in some)}" for hook, some in offered.items())


def found_options(module: ModuleType) -> list[type[msgspec.Struct]]:
    """The struct in the plugin's module that a backend's table is read into."""
    return [
        value
        for name, value in vars(module).items()
        if name.endswith("Options") and isinstance(value, type) and issubclass(value, msgspec.Struct)
    ]


def option_table(module: ModuleType, options: type[msgspec.Struct]) -> Iterator[str]:
    """The keys of a backend's table, with their defaults and what stands below each in the source."""
    (kind,) = module.offers()["create_backend"]
    yield f'\nOptions of `kind = "{kind}"`:\n\n| key | default | meaning |\n|---|---|---|\n'
    documented, types = field_docs(options), get_type_hints(options)
    for field in msgspec.structs.fields(options):
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        shown = "" if default is None else f"`{json.dumps(default)}`"
        meaning = [documented.get(field.name, ""), *choices(types[field.name])]
        yield f"| `{field.name}` | {shown} | {in_table(' '.join(filter(None, meaning)))} |\n"


def choices(kind: object) -> list[str]:
    """What a field may be, where that is a few words."""
    if get_origin(kind) is not Literal:
        return []
    return [f"One of {', '.join(f'`{json.dumps(choice)}`' for choice in get_args(kind) if choice)}."]


def field_docs(options: type[msgspec.Struct]) -> dict[str, str]:
    """The strings below the fields in the sources of the class and of those that it derives from."""
    found = {}
    for owner in options.__mro__[: options.__mro__.index(msgspec.Struct)]:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)  # noqa: S101 - the source of a class
        for field, below in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        found.setdefault(field.target.id, " ".join(text.split()))
    return found


ENGINES = {"vllm": "VLLMBackend", "sglang": "SGLangBackend", "local": "LocalBackend"}
"""The token backends among the built-in plugins."""


def engines() -> Iterator[str]:
    """What each engine can do, by its backend's own declarations."""
    modules = builtins()
    backends = [getattr(modules[name], backend) for name, backend in ENGINES.items()]
    yield f"| | {' | '.join(f'`{name}`' for name in ENGINES)} |\n|---|{'---|' * len(ENGINES)}\n"
    for name in sorted(rolltap.SAMPLING_PARAMETERS):
        takes = [backend.parameters is None or name in backend.parameters for backend in backends]
        if not all(takes):
            yield engine_row(f"`{name}`", takes)
    yield engine_row("stops at strings itself", [backend.stops_at_strings for backend in backends])
    for label, method in (("can be paused", "pause"), ("keeps a version of its weights", "set_weights")):
        own = [getattr(backend, method) is not getattr(rolltap.Backend, method) for backend in backends]
        yield engine_row(label, own)
    launches = [
        "launch" in options.__struct_fields__ for name in ENGINES for options in found_options(modules[name])
    ]
    yield engine_row("can be started by rolltap as a process", launches)
    own = [sorted((backend.parameters or frozenset()) - rolltap.SAMPLING_PARAMETERS) for backend in backends]
    listed = (", ".join(f"`{name}`" for name in names) or "none" for names in own)
    yield f"| parameters of its own | {' | '.join(listed)} |\n"


def engine_row(label: str, values: list[bool]) -> str:
    """A row of yes and no."""
    return f"| {label} | {' | '.join('yes' if value else 'no' for value in values)} |\n"


def hooks() -> Iterator[str]:
    """A part for every hook, in the order of hookspecs.py."""
    users = {name: [hook for hook in HOOKS if hasattr(module, hook)] for name, module in builtins().items()}
    for hook in HOOKS:
        text, arguments, example = parts(inspect.getdoc(getattr(hookspecs, hook)) or "")
        yield f"### {hook}({', '.join(HOOKS[hook])})\n\n{text}\n\n"
        yield "".join(f"- {line}\n" for line in arguments)
        yield "\n" if arguments else ""
        yield f"{example}\n\n"
        by = [f"`{name}`" for name, own in users.items() if hook in own]
        yield f"Built-in: {', '.join(by) if by else 'none'}.\n\n"


def parts(doc: str) -> tuple[str, list[str], str]:
    """A hook's docstring as Markdown: the text, a line for each argument, the example."""
    before, _, example = doc.partition("\nExample: ")
    text, _, fields = before.partition("\n:")
    lines = [" ".join(field.split()) for field in re.split(r"\n:", fields)] if fields else []
    arguments = [
        re.sub(
            r"^(?:param )?(\w+): ",
            lambda name: f"{name[1] if name[1] == 'returns' else f'`{name[1]}`'}: ",
            each,
        )
        for each in lines
    ]
    title, _, code = example.partition("::\n\n")
    shown = f"Example: {' '.join(title.split())}\n\n```python\n{textwrap.dedent(code).strip()}\n```"
    return text.strip(), arguments, shown


def filled(readme: str) -> str:
    """The README with its generated parts as they should be."""
    for name, make in (("engines", engines), ("catalogue", catalogue), ("hooks", hooks)):
        begin, end = f"<!-- {name}: written by `make docs` -->\n", f"<!-- /{name} -->"
        before, found, rest = readme.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise SystemExit(f"{README} has no {begin.strip()} … {end}")
        readme = f"{before}{begin}\n{''.join(make()).strip()}\n\n{end}{after}"
    return readme


def main() -> None:
    """Write, or check."""
    text = README.read_text(encoding="utf-8")
    wanted = filled(text)
    if sys.argv[1:] == ["--check"]:
        if text != wanted:
            raise SystemExit(f"{README} is out of date: run `make docs`")
    else:
        README.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
