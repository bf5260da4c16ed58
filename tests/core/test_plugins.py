"""The plugin manager: where plugins come from, what is wrong with them, and how their hooks are asked."""

import asyncio
import logging
import re
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import msgspec
import pytest

import rolltap
from rolltap import ConfigError, PluginError
from rolltap.config import PluginsConfig
from rolltap.plugins import Plugins

PARSER = """
import rolltap

@rolltap.hookimpl
def tool_parser(name):
    return NAME
"""


def parser(answer: str) -> str:
    return PARSER.replace("NAME", repr(answer))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, first on the path; in it a "rolltap" without built-ins, in place of ours."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    install = installer(folder)
    install("rolltap", "9.9")
    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


def installer(folder: Path):
    def install(package: str, version: str, **modules: str) -> None:
        """Install a package with an entry point for each module; `NAME="module"` or `NAME=source of one`."""
        info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = ["[rolltap]"]
        for name, source in modules.items():
            if "\n" in source:
                module = f"{package.replace('-', '_')}_{name}"
                (folder / f"{module}.py").write_text(dedent(source))
            else:
                module = source
            lines.append(f"{name} = {module}")
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    return install


@pytest.fixture
def folder(tmp_path, site):
    """A folder of single-file plugins: `folder(name=source)` writes some and gives the settings that load them."""
    path = tmp_path / "plugins"
    path.mkdir()

    def write(**files: str) -> PluginsConfig:
        for name, source in files.items():
            (path / f"{name}.py").write_text(dedent(source))
        return PluginsConfig(dir=str(path))

    return write


def only(plugins: Plugins):
    (record,) = plugins.records
    return record


def plugin(**functions) -> SimpleNamespace:
    """An object whose functions are marked."""
    return SimpleNamespace(**{name: rolltap.hookimpl(function) for name, function in functions.items()})


def manager(**plugins: object) -> Plugins:
    """A manager with these plugins, registered in this order."""
    loaded = Plugins()
    for name, each in plugins.items():
        loaded.register(each, name)
    return loaded


@pytest.fixture
def any_answer(monkeypatch):
    """For tests of who is asked: what a hook may answer is another matter."""
    monkeypatch.setattr("rolltap.plugins.answers.wrong", lambda hook, answer: "")


@pytest.mark.usefixtures("any_answer")
class TestSources:
    async def test_all_of_them_the_later_asked_first(self, site, folder):
        site("rolltap", "9.9", built_in=parser("built-in"))
        site("zebra", "1.0", a_third=parser("zebra"))
        site("ape", "2.0", b_third=parser("ape"))
        settings = folder(one=parser("one"), two=parser("two"))
        given = plugin(tool_parser=lambda name: None if name == "pass" else "given")
        plugins = Plugins.load(settings, [given])
        assert [record.name for record in plugins.records] == [
            "built_in", "a_third", "b_third", "one", "two", "SimpleNamespace",
        ]  # fmt: skip
        assert [(r.source, r.version) for r in plugins.records] == [
            ("built-in", "9.9"),
            ("package zebra (zebra_a_third)", "1.0"),
            ("package ape (ape_b_third)", "2.0"),
            (f"{settings.dir}/one.py", ""),
            (f"{settings.dir}/two.py", ""),
            ("given to create_app", ""),
        ]
        assert {r.state for r in plugins.records} == {"loaded"}
        asked = []
        while len(plugins.records) > 0:
            asked.append(await plugins.call_first("tool_parser", name="x", tools=[], tokenizer=None))
            plugins.unregister(plugins.records[-1].name)
        assert asked == ["given", "two", "one", "ape", "zebra", "built-in"]

    async def test_an_entry_point_may_name_an_object(self, site):
        source = """
            import rolltap

            class Mine:
                @rolltap.hookimpl
                def tool_parser(self, name):
                    return "mine"

            mine = Mine()
        """
        site("pack", "1", first=source)
        site("pack", "1", second="pack_first:mine")
        plugins = Plugins.load(PluginsConfig())
        assert await plugins.call_first("tool_parser", name="x", tools=[], tokenizer=None) == "mine"

    def test_files_get_module_names_of_their_own(self, folder, tmp_path):
        before = set(sys.modules)
        settings = folder(json=parser("json"), mine="import rolltap, json\nCODE = json.dumps\n" + parser("m"))
        plugins = Plugins.load(settings)
        assert [record.error for record in plugins.records] == [None, None]
        assert sys.modules["json"].__name__ == "json"
        other = tmp_path / "other"
        other.mkdir()
        (other / "mine.py").write_text(parser("other"))
        Plugins.load(PluginsConfig(dir=str(other)))
        ours = [name for name in set(sys.modules) - before if name.startswith("rolltap_dir_plugins.mine")]
        assert len(ours) == 2

    def test_classes_of_a_file_find_their_module(self, folder):
        """dataclasses and msgspec look their class's module up in sys.modules."""
        source = """
            from __future__ import annotations
            from typing import get_type_hints
            import msgspec, rolltap

            class Options(msgspec.Struct):
                url: str

            @rolltap.hookimpl
            def create_backend(options):
                return msgspec.convert(options, Options)
        """
        assert only(Plugins.load(folder(mine=source))).state == "loaded"

    def test_what_is_no_plugin_file_is_left_alone(self, folder):
        settings = folder(_helper="raise RuntimeError", __init__="raise RuntimeError")
        (Path(settings.dir) / "notes.txt").write_text("")
        (Path(settings.dir) / "folder.py").mkdir()
        assert Plugins.load(settings).records == []

    def test_a_missing_folder(self, tmp_path):
        missing = tmp_path / "missing"
        with pytest.raises(ConfigError, match=rf'plugins\.dir = "{missing}" is not a folder'):
            Plugins.load(PluginsConfig(dir=str(missing)))

    def test_objects_of_one_class_are_numbered(self, site):
        plugins = Plugins.load(
            PluginsConfig(), [plugin(tool_parser=lambda: 1), plugin(tool_parser=lambda: 2)]
        )
        assert [record.name for record in plugins.records] == ["SimpleNamespace", "SimpleNamespace-2"]

    async def test_disabled_plugins_are_not_even_imported(self, site):
        site("rolltap", "9.9", hermes="raise RuntimeError('imported')\n", other=parser("other"))
        plugins = Plugins.load(PluginsConfig(disable=["hermes"]))
        assert [(r.name, r.state, r.error, r.hooks) for r in plugins.records] == [
            ("hermes", "disabled", None, []),
            ("other", "loaded", None, ["tool_parser"]),
        ]

    async def test_one_of_the_same_name_takes_the_place_of_a_disabled_built_in(self, site, folder):
        site("rolltap", "9.9", hermes=parser("built-in"), other=parser("other"))
        settings = folder(hermes=parser("mine"), other=parser("too much"))
        plugins = Plugins.load(msgspec.structs.replace(settings, disable=["hermes"]))
        assert [(record.name, record.source, record.state) for record in plugins.records] == [
            ("hermes", "built-in", "disabled"),
            ("other", "built-in", "loaded"),
            ("hermes", f"{settings.dir}/hermes.py", "loaded"),
            ("other", f"{settings.dir}/other.py", "failed"),
        ]

    def test_disabling_what_is_not_built_in_disables_all_of_that_name(self, folder):
        settings = msgspec.structs.replace(folder(mine=parser("mine")), disable=["mine"])
        assert only(Plugins.load(settings)).state == "disabled"

    def test_disabling_what_is_not_there_names_the_nearest(self, site):
        site("rolltap", "9.9", hermes=parser("h"), local=parser("l"))
        with pytest.raises(ConfigError) as caught:
            Plugins.load(PluginsConfig(disable=["local", "hermse"]))
        assert str(caught.value) == (
            'plugins.disable[1] = "hermse" is not a plugin; did you mean "hermes"? (found: hermes, local)'
        )


FAILURES = [
    (
        "import nothing_of_that_name\n",
        r"failed to load: ModuleNotFoundError: No module named 'nothing_of_that_name' \(.*mine\.py:1\)",
    ),
    ("\n\n1 / 0\n", r"failed to load: ZeroDivisionError: division by zero \(.*mine\.py:3\)"),
    ("def broken(:\n", r"failed to load: SyntaxError: invalid syntax \(mine\.py, line 1\)"),
    ("raise SystemExit('bye')\n", r"failed to load: SystemExit: bye \(.*mine\.py:1\)"),
    ("from rolltap import hookimpl\n", r"implements no hook; did you forget @rolltap\.hookimpl\?"),
    (
        "def tool_parser(name): ...\n",
        r"implements no hook; did you forget @rolltap\.hookimpl on tool_parser\?",
    ),
    (
        "import rolltap\n@rolltap.hookimpl\ndef tool_parsr(name): ...\n",
        r'tool_parsr is not a hook; did you mean "tool_parser"\? \(hooks: classify_error, create_backend, .*\)',
    ),
    (
        "import rolltap\n@rolltap.hookimpl\ndef tool_parser(name, toolz, *rest, more=1): ...\n",
        r"tool_parser takes toolz; its arguments may be name, tools, tokenizer, by these names",
    ),
    (
        "import rolltap\n@rolltap.hookimpl\ndef tool_parser(name, /, *, model): ...\n",
        r"tool_parser takes name, model; its arguments may be name, tools, tokenizer, by these names",
    ),
    (
        "import rolltap\n@rolltap.hookimpl(wrapper=True)\ndef tool_parser(name):\n    return (yield)\n",
        r"tool_parser is a hook wrapper; rolltap has none, .*",
    ),
    (
        "import rolltap\n@rolltap.hookimpl(hookwrapper=True)\ndef tool_parser(name):\n    yield\n",
        r"tool_parser is a hook wrapper; rolltap has none, .*",
    ),
    (
        "import rolltap\n@rolltap.hookimpl\ndef tool_parser(name):\n    yield 1\n",
        r"tool_parser is a generator; return .*",
    ),
    (
        "import rolltap\n@rolltap.hookimpl\nasync def create_backend(kind):\n    yield 1\n",
        r"create_backend is a generator; return .*",
    ),
    (
        "import rolltap\n@rolltap.hookimpl\nasync def register_routes(app): ...\n",
        r"register_routes is a coroutine function; .* use a plain `def`",
    ),
    (
        "import rolltap\n@rolltap.hookimpl\ndef tool_parser(x): ...\n@rolltap.hookimpl\ndef record_nodes(): ...\n",
        r"record_nodes is not a hook.*; tool_parser takes x; .*",
    ),
]


@pytest.mark.usefixtures("any_answer")
class TestFailures:
    @pytest.mark.parametrize(("source", "reason"), FAILURES)
    async def test_a_broken_plugin_is_named_with_its_reason_and_the_others_go_on(
        self, folder, caplog, source, reason
    ):
        settings = folder(mine=source, other=parser("other"))
        plugins = Plugins.load(settings)
        broken, other = plugins.records
        assert (broken.name, broken.state, broken.hooks) == ("mine", "failed", [])
        assert broken.error is not None
        assert re.fullmatch(reason, broken.error)
        assert caplog.record_tuples == [
            (
                "rolltap.plugins.manager",
                logging.ERROR,
                f"plugin mine ({settings.dir}/mine.py) is not loaded: {broken.error}",
            )
        ]
        assert other.state == "loaded"
        assert await plugins.call_first("tool_parser", name="x", tools=[], tokenizer=None) == "other"

    def test_a_file_that_failed_leaves_no_module(self, folder):
        before = set(sys.modules)
        Plugins.load(folder(half="import rolltap\n1 / 0\n"))
        assert not [name for name in set(sys.modules) - before if name.startswith("rolltap_dir_plugins")]

    async def test_a_broken_plugin_is_not_partly_registered(self, folder):
        source = parser("half") + "\n@rolltap.hookimpl\ndef record_node(nodes): ...\n"
        plugins = Plugins.load(folder(mine=source))
        assert only(plugins).state == "failed"
        assert await plugins.call_first("tool_parser", name="x", tools=[], tokenizer=None) is None

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            (
                "no_such_module_at_all",
                r"failed to load: ModuleNotFoundError: No module named 'no_such_module_at_all'",
            ),
            (
                "json:nothing_there",
                r"failed to load: AttributeError: module 'json' has no attribute 'nothing_there'",
            ),
            ("rolltap:ToolParser", r"is a class; use an instance, ToolParser()"),
            (
                "pack_fine:tool_parser",
                r"is itself a function; the entry point must name the module or object that holds it",
            ),
        ],
    )
    def test_entry_points_that_lead_nowhere(self, site, target, reason):
        site("pack", "1", fine=parser("fine"))
        site("pack", "1", mine=target)
        record = only(Plugins.load(PluginsConfig()))
        assert (record.name, record.source, record.error) == ("mine", f"package pack ({target})", reason)

    def test_of_two_plugins_of_one_name_the_first_stays(self, site, folder):
        site("rolltap", "9.9", hermes=parser("built-in"))
        site("pack", "1", hermes=parser("pack"))
        settings = folder(hermes=parser("file"))
        plugins = Plugins.load(settings)
        assert [record.state for record in plugins.records] == ["loaded", "failed", "failed"]
        assert plugins.records[1].error == (
            'the name "hermes" is taken by another plugin (built-in); '
            "give this one (package pack (pack_hermes)) another name"
        )
        assert f"give this one ({settings.dir}/hermes.py) another name" in str(plugins.records[2].error)

    def test_a_name_whose_first_plugin_failed_is_free(self, site, folder):
        site("rolltap", "9.9", hermes="1 / 0\n")
        plugins = Plugins.load(folder(hermes=parser("file")))
        assert [record.state for record in plugins.records] == ["failed", "loaded"]

    def test_one_object_under_two_names(self, site):
        site("pack", "1", one=parser("x"))
        site("pack", "1", one="pack_one", two="pack_one")
        assert [r.error for r in Plugins.load(PluginsConfig()).records] == [
            None,
            "is the same object as plugin one, which is already loaded",
        ]

    def test_register_raises_what_load_keeps(self):
        plugins = manager(one=plugin(tool_parser=lambda name: None))
        with pytest.raises(PluginError, match=r'^two: tool_parsr is not a hook; did you mean "tool_parser"'):
            plugins.register(plugin(tool_parsr=lambda: None), "two")
        with pytest.raises(
            PluginError, match=r'^one: the name "one" is taken by another plugin \(registered\)'
        ):
            plugins.register(plugin(tool_parser=lambda: None), "one")
        assert [record.name for record in plugins.records] == ["one"]

    def test_unregister_of_what_is_not_there(self):
        plugins = manager(hermes=plugin(tool_parser=lambda name: None))
        with pytest.raises(
            PluginError, match=r'^hermse: no plugin of that name is loaded; did you mean "hermes"\?'
        ):
            plugins.unregister("hermse")

    def test_a_hook_of_a_later_version_may_be_marked_optional(self):
        @rolltap.hookimpl(optionalhook=True)
        def hook_of_tomorrow(argument): ...

        plugins = manager(one=SimpleNamespace(hook_of_tomorrow=hook_of_tomorrow))
        assert only(plugins).hooks == []


ASK = {"name": "x", "tools": [1], "tokenizer": "t"}


@pytest.mark.usefixtures("any_answer")
class TestCallFirst:
    async def test_the_first_answer_wins_and_later_ones_are_not_asked(self):
        asked = []

        async def later(name):
            raise AssertionError("asked")

        async def answers(name):
            asked.append("answers")
            return "answer"

        def passes(name):
            asked.append("passes")

        plugins = manager(
            a=plugin(tool_parser=later), b=plugin(tool_parser=answers), c=plugin(tool_parser=passes)
        )
        assert await plugins.call_first("tool_parser", **ASK) == "answer"
        assert asked == ["passes", "answers"]

    async def test_nobody_answers(self):
        assert await Plugins().call_first("tool_parser", **ASK) is None
        assert await manager(a=plugin(tool_parser=lambda: None)).call_first("tool_parser", **ASK) is None

    @pytest.mark.parametrize("answer", [0, "", [], False])
    async def test_only_none_means_not_mine(self, answer):
        plugins = manager(a=plugin(tool_parser=lambda: "other"), b=plugin(tool_parser=lambda: answer))
        assert await plugins.call_first("tool_parser", **ASK) == answer

    async def test_an_awaitable_of_a_plain_function_is_awaited(self):
        async def answer(value):
            await asyncio.sleep(0)
            return value

        plugins = manager(
            a=plugin(tool_parser=lambda: answer("a")), b=plugin(tool_parser=lambda: answer(None))
        )
        assert await plugins.call_first("tool_parser", **ASK) == "a"

    @pytest.mark.parametrize(
        ("function", "given"),
        [
            (lambda: 7, 7),
            (lambda tokenizer, name: {"tokenizer": tokenizer, "name": name}, {"tokenizer": "t", "name": "x"}),
            (lambda name, tools=None: {"name": name, "tools": tools}, {"name": "x", "tools": [1]}),
            (lambda name, other=5: {"name": name, "other": other}, {"name": "x", "other": 5}),
            (lambda *, name: {"name": name}, {"name": "x"}),
            (lambda **rest: rest, ASK),
            (lambda name, **rest: {"n": name, **rest}, {"n": "x", "tools": [1], "tokenizer": "t"}),
            (lambda name, tools, tokenizer: [name, tools, tokenizer], ["x", [1], "t"]),
        ],
    )
    async def test_each_is_given_the_arguments_it_takes(self, function, given):
        assert await manager(a=plugin(tool_parser=function)).call_first("tool_parser", **ASK) == given

    async def test_methods_and_static_methods(self):
        class Mine:
            @rolltap.hookimpl
            def tool_parser(self, name):
                return None

            @staticmethod
            @rolltap.hookimpl
            def create_store(kind):
                return kind

        plugins = manager(a=Mine())
        assert only(plugins).hooks == ["create_store", "tool_parser"]
        assert await plugins.call_first("create_store", kind="memory", options={}) == "memory"
        assert await plugins.call_first("tool_parser", **ASK) is None

    async def test_tryfirst_and_trylast(self):
        def mark(answer, **options):
            return SimpleNamespace(tool_parser=rolltap.hookimpl(**options)(lambda name: answer))

        plugins = manager(a=mark("first", tryfirst=True), b=mark("plain"), c=mark("last", trylast=True))
        order = []
        for name in ("a", "b", "c"):
            order.append(await plugins.call_first("tool_parser", **ASK))
            plugins.unregister(name)
        assert order == ["first", "plain", "last"]

    async def test_a_plugin_that_comes_later_is_asked_at_once(self):
        plugins = manager(a=plugin(tool_parser=lambda: "a"))
        assert await plugins.call_first("tool_parser", **ASK) == "a"
        plugins.register(plugin(tool_parser=lambda: "b"), "b")
        assert await plugins.call_first("tool_parser", **ASK) == "b"

    @pytest.mark.parametrize("is_async", [False, True])
    async def test_an_exception_names_plugin_and_hook(self, is_async):
        def fails(name):
            raise ValueError("no such name")

        async def fails_later(name):
            fails(name)

        plugins = manager(mine=plugin(tool_parser=fails_later if is_async else fails))
        with pytest.raises(
            PluginError, match=r"^mine: tool_parser raised ValueError: no such name$"
        ) as caught:
            await plugins.call_first("tool_parser", **ASK)
        assert isinstance(caught.value.__cause__, ValueError)

    @pytest.mark.parametrize("error", [ConfigError("c"), rolltap.BadRequest("b"), PluginError("p")])
    async def test_our_own_errors_pass_unchanged(self, error):
        def fails(name):
            raise error

        with pytest.raises(type(error)) as caught:
            await manager(mine=plugin(tool_parser=fails)).call_first("tool_parser", **ASK)
        assert caught.value is error

    async def test_a_failure_leaks_no_coroutine(self):
        """An un-awaited coroutine would warn, and a warning is an error here."""

        async def never(name):
            raise AssertionError("created")

        def fails(name):
            raise ValueError

        plugins = manager(a=plugin(tool_parser=never), b=plugin(tool_parser=fails))
        with pytest.raises(PluginError):
            await plugins.call_first("tool_parser", **ASK)

    async def test_cancellation_passes(self):
        async def hangs(name):
            await asyncio.Event().wait()

        task = asyncio.ensure_future(manager(a=plugin(tool_parser=hangs)).call_first("tool_parser", **ASK))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class TestNotify:
    async def test_everybody_is_told_also_after_a_failure(self, caplog):
        told = []

        def fails(node):
            raise ValueError("disk full")

        async def fails_later(node):
            raise rolltap.BadRequest("wrong")

        async def works(session, node):
            told.append((session, node))

        def works_too(node):
            told.append(node)

        plugins = manager(
            a=plugin(record_node=works), b=plugin(record_node=fails), c=plugin(record_node=fails_later),
            d=plugin(record_node=works_too),
        )  # fmt: skip
        await plugins.notify("record_node", session="s", node="n")
        assert told == ["n", ("s", "n")]
        assert plugins.failures == {"b": 1, "c": 1}
        assert [record.getMessage() for record in caplog.records] == [
            "plugin c failed in record_node",
            "plugin b failed in record_node",
        ]
        assert caplog.records[1].exc_info[1].__cause__.args == ("disk full",)
        await plugins.notify("record_node", session="s", node="n")
        assert plugins.failures == {"b": 2, "c": 2}

    async def test_cancellation_passes(self):
        async def hangs(node):
            await asyncio.Event().wait()

        plugins = manager(a=plugin(record_node=hangs))
        task = asyncio.ensure_future(plugins.notify("record_node", session="s", node="n"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not plugins.failures

    @pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
    async def test_what_would_end_a_program_is_the_plugins_failure(self, error):
        async def ends(node):
            raise error

        def ends_at_once(node):
            raise error

        plugins = manager(a=plugin(record_node=ends), b=plugin(record_node=ends_at_once))
        await plugins.notify("record_node", session="s", node="n")
        assert plugins.failures == {"a": 1, "b": 1}


class TestCallAllSync:
    def test_everybody_is_called(self):
        plugins = manager(
            a=plugin(register_routes=lambda app: app.append("a")), b=plugin(register_routes=lambda app: "b")
        )
        app: list[str] = []
        assert plugins.call_all_sync("register_routes", app=app) == ["b"]
        assert app == ["a"]

    def test_an_exception_names_the_plugin(self):
        def fails(app):
            raise ValueError("taken")

        plugins = manager(mine=plugin(register_routes=fails))
        with pytest.raises(PluginError, match=r"^mine: register_routes raised ValueError: taken$"):
            plugins.call_all_sync("register_routes", app=None)

    def test_our_own_errors_pass_unchanged(self):
        def fails(app):
            raise ConfigError("wrong")

        with pytest.raises(ConfigError, match=r"^wrong$"):
            manager(mine=plugin(register_routes=fails)).call_all_sync("register_routes", app=None)

    def test_an_awaitable_is_refused_and_leaks_no_coroutine(self):
        async def later(): ...

        plugins = manager(mine=plugin(register_routes=lambda app: later()))
        with pytest.raises(PluginError, match=r"^mine: register_routes returned an awaitable"):
            plugins.call_all_sync("register_routes", app=None)


class TestOffers:
    def test_who_is_asked_first_and_what_that_hides(self):
        def offering(*names):
            return plugin(tool_parser=lambda name: None, offers=lambda: {"tool_parser": names})

        plugins = manager(a=offering("x", "y"), b=offering("y"), c=plugin(tool_parser=lambda name: None))
        assert plugins.order("tool_parser") == ["c", "b", "a"]
        assert plugins.offered("tool_parser") == {"y": ["b", "a"], "x": ["a"]}
        assert [record.offers for record in plugins.records] == [
            {"tool_parser": ["x", "y"]},
            {"tool_parser": ["y"]},
            {},
        ]

    def test_a_single_name_may_stand_alone(self):
        plugins = manager(a=plugin(tool_parser=lambda name: None, offers=lambda: {"tool_parser": "x"}))
        assert plugins.offered("tool_parser") == {"x": ["a"]}

    def test_the_hint_is_the_nearest_name_or_some(self):
        names = [f"name{number}" for number in range(10)]
        plugins = manager(a=plugin(tool_parser=lambda name: None, offers=lambda: {"tool_parser": names}))
        assert plugins.hint("tool_parser", "nmae7") == '; did you mean "name7"?'
        assert plugins.hint("tool_parser", "else") == f" (offered: {', '.join(names[:8])}, …)"
        assert plugins.hint("reasoning_parser", "else") == ""

    @pytest.mark.parametrize(
        ("offers", "problem"),
        [
            (lambda: 1 / 0, "offers failed: ZeroDivisionError: division by zero; it must return a dict"),
            (
                lambda: ["x"],
                "offers failed: AttributeError: .*; it must return a dict of hooks and lists of names",
            ),
            (lambda: {"tool_parser": 3}, "offers failed: TypeError: .*; it must return a dict"),
            (
                lambda: {"tool_parsr": ["x"]},
                "names 'tool_parsr', which is asked by no name; did you mean \"tool_parser\"",
            ),
            (lambda: {"record_node": ["x"]}, "names 'record_node', which is asked by no name"),
            (
                lambda: {"create_backend": ["x"]},
                "names for create_backend, which the plugin does not implement",
            ),
            (lambda: {"tool_parser": ["x", 3]}, "offers 3 for tool_parser; names must be strings"),
        ],
    )
    def test_what_makes_no_sense_is_said_and_the_plugin_not_loaded(self, offers, problem):
        plugins = Plugins()
        with pytest.raises(PluginError, match=f"^mine: .*{problem}"):
            plugins.register(plugin(tool_parser=lambda name: None, offers=offers), "mine")
        assert plugins.records == []
        assert plugins.order("tool_parser") == []


class TestWaysOut:
    def test_each_failure_says_what_to_do(self, site, folder):
        site("pack", "1", needs="import nothing_of_that_name\n", broken="1 / 0\n", twice=parser("x"))
        settings = folder(twice=parser("x"), mine="1 / 0\n")
        ways = {(r.name, r.source.partition(" ")[0]): r.way_out for r in Plugins.load(settings).records}
        assert ways == {
            ("needs", "package"): (
                "install what it needs (pip install nothing_of_that_name, if the package has the module's name), "
                'or leave it out: [plugins] disable = ["needs"]'
            ),
            ("broken", "package"): (
                "update or remove its package (pip install -U pack, pip uninstall pack), "
                'or leave it out: [plugins] disable = ["broken"]'
            ),
            ("twice", "package"): None,
            ("twice", f"{settings.dir}/twice.py"): "one of the two must go, or go by another name",
            ("mine", f"{settings.dir}/mine.py"): 'mend it, or leave it out: [plugins] disable = ["mine"]',
        }


class TestAnswers:
    @pytest.mark.parametrize(
        ("hook", "arguments", "good", "bad", "words"),
        [
            (
                "tool_parser",
                ASK,
                rolltap.TagToolParser,
                rolltap.TagReasoningParser,
                "the class TagReasoningParser",
            ),
            (
                "tool_parser",
                ASK,
                lambda: None,
                "x",
                "a value of type str; it must be a ToolParser's class, an instance, or a call",
            ),
            (
                "message_converter",
                {"dialect": "x"},
                None,
                rolltap.MessageConverter,
                "the class MessageConverter",
            ),
            (
                "create_store",
                {"kind": "x", "options": {}},
                None,
                {},
                "a value of type dict; it must be a Store, or None",
            ),
            (
                "create_backend",
                {"kind": "x", "options": {}, "model": ""},
                None,
                3,
                "a value of type int; it must be a TokenBackend",
            ),
            (
                "classify_error",
                {"error": None, "backend": None},
                rolltap.ErrorInfo(status=1, message=""),
                4,
                "a value of type int",
            ),
        ],
    )
    async def test_a_wrong_type_is_named_with_plugin_hook_and_what_is_allowed(
        self, hook, arguments, good, bad, words
    ):
        plugins = manager(mine=plugin(**{hook: lambda: good}))
        answer = await plugins.ask(hook, **arguments)
        assert answer == (None if good is None else ("mine", good))
        plugins = manager(mine=plugin(**{hook: lambda: bad}))
        with pytest.raises(PluginError, match=f"^mine: {hook} answered with {words}") as caught:
            await plugins.ask(hook, **arguments)
        assert caught.value.plugin == "mine"
