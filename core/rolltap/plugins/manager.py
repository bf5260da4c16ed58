"""The plugin manager: finds plugins, checks them, and asks their hooks."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from time import perf_counter
from typing import Any, NamedTuple

import pluggy

from rolltap import hookspecs
from rolltap.config import PluginsConfig
from rolltap.errors import ConfigError, PluginError, RolltapError, failure
from rolltap.plugins import answers, rules, sources, tracing
from rolltap.plugins.advice import way_out
from rolltap.plugins.answers import Answer
from rolltap.plugins.records import PluginRecord
from rolltap.wording import suggestion

logger = logging.getLogger(__name__)

BLOCKING_S = 0.25
"""A hook that does not give the loop back for so long, while requests are being served, is named in the log."""

_FAILURES = (Exception, SystemExit, KeyboardInterrupt)
"""What a plugin's code may raise without ending the server."""

_AT_START = frozenset({"create_backend", "create_store"})
"""Hooks that may take as long as it takes: to connect, to download."""

_SHOWN_NAMES = 8


class _Implementation(NamedTuple):
    """One plugin's function for a hook; `takes` is None where it takes all of the hook's arguments."""

    hook: str
    plugin: str
    function: Callable[..., Any]
    takes: tuple[str, ...] | None

    def call(self, arguments: Mapping[str, Any]) -> Any:
        if self.takes is None:
            return self.function(**arguments)
        return self.function(**{name: arguments[name] for name in self.takes})


class Plugins:
    """The plugins of one application. The one registered last is asked first.

    pluggy keeps the implementations and their order; the calls are made here, one by one, because an
    implementation may be a coroutine function and because one that raises must not harm the others.
    """

    def __init__(self, *, time_limit_s: float | None = None) -> None:
        self.records: list[PluginRecord] = []
        """Every plugin that was found, in the order of loading."""
        self.failures: Counter[str] = Counter()
        """How often each plugin spoilt a request or was not able to record a node, by its name."""
        self.blocked: Counter[str] = Counter()
        """How often each plugin held up all requests for longer than `BLOCKING_S`, by its name."""
        self._time_limit_s = time_limit_s
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._originals: dict[str, object] = {}
        self._resolved: dict[str, tuple[_Implementation, ...]] = {}

    @classmethod
    def load(cls, settings: PluginsConfig, extra: Sequence[object] = ()) -> "Plugins":
        """Find and load all plugins: built-in, installed, in the settings' folder, and `extra`, in this order.

        One that cannot be loaded is logged, kept in `records` with its error, and left out. Where a built-in one is
        disabled, another of its name takes its place. Raises `ConfigError`
        where the settings name a plugin or a folder that is not there.
        """
        found = [*sources.installed(), *(sources.in_folder(settings.dir) if settings.dir else ())]
        candidates = [*found, *sources.given(extra)]
        _check_disabled(settings.disable, {candidate.name for candidate in candidates})
        plugins = cls(time_limit_s=settings.time_limit_s or None)
        built_in = {candidate.name for candidate in candidates if candidate.built_in}
        for candidate in candidates:
            replaces = candidate.name in built_in and not candidate.built_in
            plugins._load(candidate, disabled=candidate.name in settings.disable and not replaces)
        return plugins

    def register(self, plugin: object, name: str, *, source: str = "registered", version: str = "") -> None:
        """Add one plugin. Raises `PluginError` where it breaks a rule; then nothing of it is registered."""
        record = PluginRecord(name=name, source=source, version=version)
        if problem := self._add(plugin, record):
            raise PluginError(f"{name}: {problem}")
        self.records.append(record)

    def unregister(self, name: str) -> None:
        """Take a loaded plugin out again. Raises `PluginError` where there is none of that name."""
        if self._manager.get_plugin(name) is None:
            loaded = [record.name for record in self._loaded()]
            raise PluginError(f"{name}: no plugin of that name is loaded{suggestion(name, loaded)}")
        self._manager.unregister(name=name)
        del self._originals[name]
        self.records = [record for record in self.records if record.name != name or record.state != "loaded"]
        self._resolved.clear()

    def count(self, error: PluginError) -> None:
        """Count a failure that ended a request, for its plugin."""
        if error.plugin:
            self.failures[error.plugin] += 1

    def order(self, hook: str) -> list[str]:
        """The plugins that implement a hook, in the order in which they are asked."""
        return [implementation.plugin for implementation in self._implementations(hook)]

    def offered(self, hook: str) -> dict[str, list[str]]:
        """The names that plugins offer for a hook, and who offers each: the first is asked first and hides the others."""
        offers = {record.name: record.offers.get(hook, ()) for record in self._loaded()}
        found: dict[str, list[str]] = {}
        for plugin in self.order(hook):
            for name in offers[plugin]:
                found.setdefault(name, []).append(plugin)
        return found

    def hint(self, hook: str, name: str) -> str:
        """For a message that nobody answers for a name: the nearest one that is offered, or some of them."""
        known = sorted(self.offered(hook))
        if close := suggestion(name, known):
            return close
        shown = ", ".join(known[:_SHOWN_NAMES]) + (", …" if len(known) > _SHOWN_NAMES else "")
        return f" (offered: {shown})" if shown else ""

    async def ask(self, hook: str, **arguments: Any) -> Answer | None:
        """Ask one plugin after the other; the first answer that is not None, with its plugin, or None.

        An exception, an answer of a wrong type, or none in time becomes a `PluginError` that names the plugin;
        rolltap's own errors pass unchanged.
        """
        trace = tracing.current_trace()
        if trace is None:
            for implementation in self._implementations(hook):
                value = self._begun(implementation, arguments)
                if value is not None and isawaitable(value):
                    value = await self._awaited(implementation, value)
                if value is not None:
                    return self._checked(implementation, value)
            return None
        return await self._ask_traced(trace, hook, arguments)

    async def call_first(self, hook: str, **arguments: Any) -> Any:
        """As `ask`, without the plugin's name."""
        answer = await self.ask(hook, **arguments)
        return None if answer is None else answer.value

    async def notify(self, hook: str, **arguments: Any) -> None:
        """Tell every plugin. One that fails is logged and counted, and the others are told all the same."""
        trace = tracing.current_trace()
        for implementation in self._implementations(hook):
            try:
                if trace is None:
                    await self._value(implementation, arguments)
                    continue
                with tracing.step(trace, hook, arguments) as step:
                    step.plugin, step.asked = implementation.plugin, 1
                    await self._value(implementation, arguments)
            except RolltapError:
                self.failures[implementation.plugin] += 1
                logger.exception("plugin %s failed in %s", implementation.plugin, hook)

    def call_all_sync(self, hook: str, **arguments: Any) -> list[Any]:
        """Call every plugin's plain function; their answers that are not None. Errors as in `ask`."""
        answers = []
        for implementation in self._implementations(hook):
            answer = self._begun(implementation, arguments)
            if isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise failure(implementation.plugin, f"{hook} returned an awaitable; it must not be async")
            if answer is not None:
                answers.append(answer)
        return answers

    async def _ask_traced(
        self, trace: tracing.Trace, hook: str, arguments: Mapping[str, Any]
    ) -> Answer | None:
        with tracing.step(trace, hook, arguments) as step:
            for implementation in self._implementations(hook):
                step.asked += 1
                step.plugin = implementation.plugin
                value = await self._value(implementation, arguments)
                if value is not None:
                    return self._checked(implementation, value)
            step.plugin = None
            return None

    async def _value(self, implementation: _Implementation, arguments: Mapping[str, Any]) -> Any:
        """One plugin's answer, whatever it is."""
        value = self._begun(implementation, arguments)
        if value is None or not isawaitable(value):
            return value
        return await self._awaited(implementation, value)

    def _begun(self, implementation: _Implementation, arguments: Mapping[str, Any]) -> Any:
        """Call one plugin's function: its answer, or an awaitable of it."""
        began = perf_counter()
        try:
            return implementation.call(arguments)
        except RolltapError:
            raise
        except (
            *_FAILURES,
            asyncio.CancelledError,
        ) as error:  # nothing was awaited: nobody has cancelled this task
            raise failure(implementation.plugin, _raised(implementation, error)) from error
        finally:
            took = perf_counter() - began
            if took > BLOCKING_S and implementation.hook not in _AT_START | rules.SYNC_HOOKS:
                self._note_blocking(implementation, took)

    async def _awaited(self, implementation: _Implementation, value: Awaitable[Any]) -> Any:
        limit = asyncio.timeout(None if implementation.hook in _AT_START else self._time_limit_s)
        try:
            async with limit:
                return await value
        except RolltapError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            problem = f"{implementation.hook} was cancelled from within: a task that it waits for was"
            raise failure(implementation.plugin, problem) from error
        except _FAILURES as error:
            if not limit.expired():
                raise failure(implementation.plugin, _raised(implementation, error)) from error
            problem = (
                f"{implementation.hook} took longer than [plugins] time_limit_s = {self._time_limit_s:g}"
            )
            raise failure(implementation.plugin, problem) from None

    def _checked(self, implementation: _Implementation, value: Any) -> Answer:
        if problem := answers.wrong(implementation.hook, value):
            raise failure(implementation.plugin, problem)
        return Answer(implementation.plugin, value)

    def _note_blocking(self, implementation: _Implementation, took: float) -> None:
        self.blocked[implementation.plugin] += 1
        logger.warning(
            "plugin %s held up every request for %.2f s in %s; make it a coroutine function that awaits, or do the "
            "work in asyncio.to_thread",
            implementation.plugin,
            took,
            implementation.hook,
        )

    def _load(self, candidate: sources.Candidate, *, disabled: bool) -> None:
        record = PluginRecord(name=candidate.name, source=candidate.source, version=candidate.version)
        self.records.append(record)
        if disabled:
            record.state = "disabled"
            return
        try:
            problem = self._add(candidate.load(), record)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code runs here, and may do anything
            problem = f"failed to load: {sources.cause(error)}"
        if problem:
            record.state, record.error, record.way_out = "failed", problem, way_out(candidate, problem)
            logger.error("plugin %s (%s) is not loaded: %s", record.name, record.source, problem)

    def _add(self, plugin: object, record: PluginRecord) -> str:
        """Register the plugin and note its hooks; or say what is wrong, and leave everything as it was."""
        for other in self._loaded():
            if other is not record and other.name == record.name:
                return (
                    f'the name "{record.name}" is taken by another plugin ({other.source}); '
                    f"give this one ({record.source}) another name"
                )
        for known, original in self._originals.items():
            if original is plugin:
                return f"is the same object as plugin {known}, which is already loaded"
        if found := rules.problems(plugin, self._manager):
            return "; ".join(found)
        functions = rules.implementations(plugin, self._manager)
        try:
            record.offers = rules.offers(plugin, functions)
        except PluginError as error:
            return str(error)
        self._manager.register(_Marked(functions) if rules.declared(plugin) else plugin, record.name)
        self._originals[record.name] = plugin
        self._resolved.clear()
        record.hooks = sorted(functions)
        return ""

    def _loaded(self) -> Iterator[PluginRecord]:
        return (record for record in self.records if record.state == "loaded")

    def _implementations(self, hook: str) -> tuple[_Implementation, ...]:
        """The hook's implementations in the order they are asked in; kept until a plugin comes or goes."""
        resolved = self._resolved.get(hook)
        if resolved is None:
            found = reversed(getattr(self._manager.hook, hook).get_hookimpls())
            resolved = self._resolved[hook] = tuple(_implementation(each, hook) for each in found)
        return resolved


class _Marked:
    """A plugin with names declared in mappings, as pluggy takes it: an object with marked functions."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        for hook, function in functions.items():
            marked = hasattr(function, f"{hookspecs.PROJECT}_impl")
            setattr(self, hook, function if marked else hookspecs.hookimpl(function))


def _implementation(registered: pluggy.HookImpl, hook: str) -> _Implementation:
    takes = rules.arguments_taken(registered.function, hook)
    return _Implementation(
        hook, registered.plugin_name, registered.function, None if takes == rules.HOOKS[hook] else takes
    )


def _raised(implementation: _Implementation, error: BaseException) -> str:
    return f"{implementation.hook} raised {type(error).__name__}: {error}"


def _check_disabled(disabled: Iterable[str], found: set[str]) -> None:
    for index, name in enumerate(disabled):
        if name not in found:
            raise ConfigError(
                f'plugins.disable[{index}] = "{name}" is not a plugin{suggestion(name, found)} '
                f"(found: {', '.join(sorted(found)) or 'none'})"
            )
