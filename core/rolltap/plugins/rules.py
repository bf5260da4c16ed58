"""The rules a plugin keeps to, checked before it is registered, so that a broken one is never half there."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pluggy

from rolltap import hookspecs
from rolltap.errors import PluginError
from rolltap.wording import suggestion

_MARK = f"{hookspecs.PROJECT}_spec"

HOOKS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(function).parameters)
    for name, function in vars(hookspecs).items()
    if inspect.isfunction(function) and hasattr(function, _MARK)
}
"""Every hook's name and the names of its arguments."""

SYNC_HOOKS = frozenset({"offers", "register_commands", "register_routes"})
"""Hooks that are called where nothing can be awaited."""

NAMED_HOOKS = frozenset(
    {
        "create_backend",
        "create_store",
        "export_format",
        "message_converter",
        "reasoning_parser",
        "tool_parser",
    }
)
"""Hooks that are asked by a name, a kind or a dialect: what a plugin may offer."""


_GIVEN_AS_THEY_ARE = frozenset({"reasoning_parser", "tool_parser"})
"""Hooks whose answer may be a class: what stands under a declared name is the answer, and is not called."""


def implementations(plugin: object, manager: pluggy.PluginManager) -> dict[str, Callable[..., Any]]:
    """The plugin's marked functions that implement a hook of ours, by hook; declared names are such a function too."""
    marked = {hook: function for hook, function, _ in _marked(plugin, manager) if hook in HOOKS}
    return marked | {hook: _asked_by_name(hook, names) for hook, names in declared(plugin).items()}


def declared(plugin: object) -> dict[str, Mapping[str, Any]]:
    """The mappings that stand in the place of hooks which are asked by a name: `tool_parser = {"angle": AngleParser}`."""
    return {
        hook: names
        for hook in sorted(NAMED_HOOKS)
        if isinstance(names := getattr(plugin, hook, None), Mapping)
    }


def _asked_by_name(hook: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """A hook's function that answers for declared names: with what stands there, or with what that makes."""
    wanted, *others = HOOKS[hook]

    def answer(**arguments: Any) -> Any:
        found = names.get(arguments[wanted])
        if hook in _GIVEN_AS_THEY_ARE or found is None:
            return found
        return found(**{name: arguments[name] for name in _taken(found, others)})

    return answer


def _taken(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    """Those of the arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return list(names)
    return [name for name in names if name in parameters]


def problems(plugin: object, manager: pluggy.PluginManager) -> list[str]:
    """What is wrong with the plugin, a sentence each; [] where nothing is."""
    if inspect.isclass(plugin):
        return [f"is a class; use an instance, {plugin.__name__}()"]
    found, names = _marked(plugin, manager), declared(plugin)
    if not found and not names:
        return [_no_hook(plugin)]
    return [
        *(
            problem
            for hook, function, options in found
            for problem in _hook_problems(hook, function, options)
        ),
        *(problem for hook, mapping in names.items() for problem in _name_problems(hook, mapping)),
    ]


def _name_problems(hook: str, names: Mapping[Any, Any]) -> list[str]:
    return [
        f"{hook} declares {name!r}: {value!r}; it must be a name and a class, or another callable"
        for name, value in names.items()
        if not isinstance(name, str) or not callable(value)
    ]


def offers(plugin: object, functions: Mapping[str, Callable[..., Any]]) -> dict[str, list[str]]:
    """The names that a plugin declares, and those that it says it offers. Raises `PluginError` where that makes no sense."""
    found = {hook: list(names) for hook, names in declared(plugin).items()}
    if "offers" not in functions:
        return found
    try:
        said = functions["offers"]()
        offered = {hook: [names] if isinstance(names, str) else list(names) for hook, names in said.items()}
    except Exception as error:
        raise PluginError(
            f"offers failed: {type(error).__name__}: {error}; it must return a dict of hooks and lists of names"
        ) from error
    for hook, names in offered.items():
        if hook not in NAMED_HOOKS:
            raise PluginError(
                f"offers names {hook!r}, which is asked by no name{suggestion(str(hook), NAMED_HOOKS)} "
                f"(hooks that are: {', '.join(sorted(NAMED_HOOKS))})"
            )
        if hook not in functions:
            raise PluginError(f"offers names for {hook}, which the plugin does not implement")
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise PluginError(f"offers {wrong[0]!r} for {hook}; names must be strings")
    return found | offered


def arguments_taken(function: Callable[..., Any], hook: str) -> tuple[str, ...]:
    """The hook's arguments that the function takes, those with a default and `**rest` included."""
    return tuple(_taken(function, HOOKS[hook]))


def _marked(
    plugin: object, manager: pluggy.PluginManager
) -> list[tuple[str, Callable[..., Any], Mapping[str, Any]]]:
    """Each marked function with the hook it is for and its options."""
    found: list[tuple[str, Callable[..., Any], Mapping[str, Any]]] = []
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is not None:
            found.append((options.get("specname") or attribute, getattr(plugin, attribute), options))
    return found


def _no_hook(plugin: object) -> str:
    if hasattr(plugin, f"{hookspecs.PROJECT}_impl"):
        return "is itself a function; the entry point must name the module or object that holds it"
    unmarked = [hook for hook in HOOKS if callable(getattr(plugin, hook, None))]
    on = f" on {', '.join(unmarked)}" if unmarked else ""
    return f"implements no hook; did you forget @rolltap.hookimpl{on}?"


def _hook_problems(hook: str, function: Callable[..., Any], options: Mapping[str, Any]) -> list[str]:
    if hook not in HOOKS:
        if options.get("optionalhook"):
            return []
        return [f"{hook} is not a hook{suggestion(hook, HOOKS)} (hooks: {', '.join(sorted(HOOKS))})"]
    found = []
    if options.get("wrapper") or options.get("hookwrapper"):
        found.append(f"{hook} is a hook wrapper; rolltap has none, return a value or None instead")
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        found.append(f"{hook} is a generator; return a value or None instead of yielding")
    if hook in SYNC_HOOKS and inspect.iscoroutinefunction(function):
        found.append(
            f"{hook} is a coroutine function; it is called where nothing can be awaited, use a plain `def`"
        )
    if wrong := _wrong_arguments(hook, function):
        allowed = ", ".join(HOOKS[hook])
        found.append(f"{hook} takes {', '.join(wrong)}; its arguments may be {allowed}, by these names")
    return found


def _wrong_arguments(hook: str, function: Callable[..., Any]) -> list[str]:
    """The parameters that must be given and that the hook does not have, or that cannot be given by name."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY
        or (
            parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
            and parameter.default is parameter.empty
            and name not in HOOKS[hook]
        )
    ]
