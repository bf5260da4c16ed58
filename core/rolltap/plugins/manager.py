"""The plugin manager: finds plugins, checks them, and asks their hooks."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any, NamedTuple

import pluggy

from rolltap import hookspecs
from rolltap.config import PluginsConfig
from rolltap.errors import ConfigError, PluginError, RolltapError
from rolltap.plugins import rules, sources
from rolltap.plugins.records import PluginRecord
from rolltap.wording import suggestion

logger = logging.getLogger(__name__)


class _Implementation(NamedTuple):
    """One plugin's function for a hook; `takes` is None where it takes all of the hook's arguments."""

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

    def __init__(self) -> None:
        self.records: list[PluginRecord] = []
        """Every plugin that was found, in the order of loading."""
        self.failures: Counter[str] = Counter()
        """How often each plugin failed in `notify`, by its name."""
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._resolved: dict[str, tuple[_Implementation, ...]] = {}

    @classmethod
    def load(cls, settings: PluginsConfig, extra: Sequence[object] = ()) -> "Plugins":
        """Find and load all plugins: built-in, installed, in the settings' folder, and `extra`, in this order.

        One that cannot be loaded is logged, kept in `records` with its error, and left out. Raises `ConfigError`
        where the settings name a plugin or a folder that is not there.
        """
        found = [*sources.installed(), *(sources.in_folder(settings.dir) if settings.dir else ())]
        candidates = [*found, *sources.given(extra)]
        _check_disabled(settings.disable, {candidate.name for candidate in candidates})
        plugins = cls()
        for candidate in candidates:
            plugins._load(candidate, disabled=candidate.name in settings.disable)
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
        self.records = [record for record in self.records if record.name != name or record.state != "loaded"]
        self._resolved.clear()

    async def call_first(self, hook: str, **arguments: Any) -> Any:
        """Ask one plugin after the other; the first answer that is not None, or None.

        An exception becomes a `PluginError` that names the plugin; rolltap's own errors pass unchanged.
        """
        for implementation in self._implementations(hook):
            try:
                answer = implementation.call(arguments)
                if answer is not None and isawaitable(answer):
                    answer = await answer
            except RolltapError:
                raise
            except Exception as error:
                raise _raised(implementation, hook, error) from error
            if answer is not None:
                return answer
        return None

    async def notify(self, hook: str, **arguments: Any) -> None:
        """Tell every plugin. One that fails is logged and counted, and the others are told all the same."""
        for implementation in self._implementations(hook):
            try:
                answer = implementation.call(arguments)
                if answer is not None and isawaitable(answer):
                    await answer
            except Exception:
                self.failures[implementation.plugin] += 1
                logger.exception("plugin %s failed in %s", implementation.plugin, hook)

    def call_all_sync(self, hook: str, **arguments: Any) -> list[Any]:
        """Call every plugin's plain function; their answers that are not None. Errors as in `call_first`."""
        answers = []
        for implementation in self._implementations(hook):
            try:
                answer = implementation.call(arguments)
            except RolltapError:
                raise
            except Exception as error:
                raise _raised(implementation, hook, error) from error
            if isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise PluginError(
                    f"{implementation.plugin}: {hook} returned an awaitable; it must not be async"
                )
            if answer is not None:
                answers.append(answer)
        return answers

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
            record.state, record.error = "failed", problem
            logger.error("plugin %s (%s) is not loaded: %s", record.name, record.source, problem)

    def _add(self, plugin: object, record: PluginRecord) -> str:
        """Register the plugin and note its hooks; or say what is wrong, and leave everything as it was."""
        for other in self._loaded():
            if other is not record and other.name == record.name:
                return (
                    f'the name "{record.name}" is taken by another plugin ({other.source}); '
                    f"give this one ({record.source}) another name"
                )
        if known := self._manager.get_name(plugin):
            return f"is the same object as plugin {known}, which is already loaded"
        if found := rules.problems(plugin, self._manager):
            return "; ".join(found)
        self._manager.register(plugin, record.name)
        self._resolved.clear()
        record.hooks = sorted(rules.implementations(plugin, self._manager))
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


def _implementation(registered: pluggy.HookImpl, hook: str) -> _Implementation:
    takes = rules.arguments_taken(registered.function, hook)
    return _Implementation(
        registered.plugin_name, registered.function, None if takes == rules.HOOKS[hook] else takes
    )


def _raised(implementation: _Implementation, hook: str, error: Exception) -> PluginError:
    return PluginError(f"{implementation.plugin}: {hook} raised {type(error).__name__}: {error}")


def _check_disabled(disabled: Iterable[str], found: set[str]) -> None:
    for index, name in enumerate(disabled):
        if name not in found:
            raise ConfigError(
                f'plugins.disable[{index}] = "{name}" is not a plugin{suggestion(name, found)} '
                f"(found: {', '.join(sorted(found)) or 'none'})"
            )
