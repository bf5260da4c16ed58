"""The command, as a user runs it: what it prints, what it ends with, and how it stops."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

import rolltap
from rolltap.cli import main
from rolltap.cli.runner import bind, url_host

ROLLTAP = str(Path(sys.executable).with_name("rolltap"))
PATIENCE_S = 30

PLUGIN = '''
"""A store, backends and slow routes: what a server needs to start, and tests to stop it."""

import asyncio
import pathlib
import socket

import rolltap
from aiohttp import web


class Lists(rolltap.Store):
    async def append(self, session, entry):
        return 1

    async def read(self, session, after=0):
        return []

    async def sessions(self, *, after=0, limit=1000):
        return []

    async def delete(self, session):
        pass


class Chat(rolltap.ChatBackend):
    def __init__(self, start):
        self.trouble = start

    async def start(self):
        if self.trouble == "hang":
            pathlib.Path("hanging").touch()
            await asyncio.Event().wait()
        if self.trouble.isdigit():
            self.thief = socket.create_server(("127.0.0.1", int(self.trouble)))
        if self.trouble == "wrong":
            raise rolltap.ConfigError("the backend's url is wrong")

    async def close(self):
        if hasattr(self, "thief"):
            self.thief.close()

    async def check(self):
        return {"logprobs": True, "version": 7}

    async def chat(self, request):
        yield rolltap.ChatDelta(text="Hi.", finish_reason="stop")


@rolltap.hookimpl
def create_store(kind):
    return Lists() if kind == "lists" else None


@rolltap.hookimpl
def create_backend(kind, options):
    return Chat(options.get("start", "")) if kind == "chat" else None


@rolltap.hookimpl
def tool_parser(name):
    return rolltap.TagToolParser if name == "none" else None


@rolltap.hookimpl
def offers():
    return {"create_backend": ["chat"], "create_store": ["lists"], "tool_parser": ["none"]}


async def slow(request):
    pathlib.Path("slow-began").touch()
    try:
        await asyncio.sleep(float(request.query["seconds"]))
    except asyncio.CancelledError:
        pathlib.Path("slow-cancelled").touch()
        raise
    return web.Response(text="finished")


@rolltap.hookimpl
def register_routes(app):
    app.router.add_get("/test/slow", slow)
'''

CONFIG = """
[server]
port = 0
[store]
kind = "lists"
[plugins]
dir = "plugins"
[[models]]
name = "first"
tool_parser = "none"
backends = [{kind = "chat"}]
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config and a plugin, where the commands run."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(PLUGIN)
    (tmp_path / "rolltap.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ROLLTAP_")]:
        monkeypatch.delenv(name)
    return tmp_path


def run(*arguments: str, config: bool = True) -> tuple[int, str, str]:
    """Run a command that ends by itself, in this process; its exit code, standard output and standard error."""
    result = CliRunner().invoke(main, [*arguments, *(["--config", "rolltap.toml"] if config else [])])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def change(home: Path, old: str, new: str) -> None:
    text = (home / "rolltap.toml").read_text()
    assert old in text
    (home / "rolltap.toml").write_text(text.replace(old, new))


class Server:
    """`rolltap serve`, the real command, in a process of its own."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        with Path("stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                [ROLLTAP, "serve", "--config", "rolltap.toml", *arguments],
                env={"ROLLTAP_STORE__KIND": "memory", **os.environ, **environ},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def ready(self) -> str:
        """Wait for the line that says it is."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, Path("stderr").read_text()
        found = re.search(r":(\d+)$", line)
        self.port = int(found[1]) if found else 0
        return line

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def ended(self) -> tuple[int, str]:
        """Wait for its end; the exit code and what else it printed."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output


@pytest.fixture
def serve(home):
    """`serve(*options)` starts the command; it is killed after the test if it still runs."""
    started: list[Server] = []

    def start(*arguments: str, **environ: str) -> Server:
        started.append(Server(*arguments, **environ))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.communicate()


def appears(file: Path) -> None:
    """Wait for a file that the plugin makes."""
    end = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < end, f"{file.name} did not appear"
        time.sleep(0.01)


class TestServe:
    def test_from_the_ready_line_to_a_stop_that_finishes_what_is_in_flight(self, serve, home):
        server = serve()
        assert re.fullmatch(r"rolltap is serving first on http://127\.0\.0\.1:[1-9]\d*\n", server.ready())
        status, body = server.get("/health")
        assert (status, json.loads(body)["model"]) == (200, "first")
        answers: list[tuple[int, str]] = []
        client = Thread(target=lambda: answers.append(server.get("/test/slow?seconds=1")))
        client.start()
        appears(home / "slow-began")
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == (0, ""), "no more than one line on standard output"
        client.join()
        assert answers == [(200, "finished")]
        with pytest.raises(ConnectionRefusedError):
            server.get("/health")
        assert "GET /health" not in Path("stderr").read_text(), "no access log unless asked for"

    def test_a_second_signal_ends_it_at_once(self, serve, home):
        server = serve()
        server.ready()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /test/slow?seconds=60 HTTP/1.1\r\nHost: h\r\n\r\n")
            appears(home / "slow-began")
            server.process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(0.5)
            server.process.send_signal(signal.SIGINT)
            assert server.ended() == (-signal.SIGINT, "")

    def test_a_signal_before_it_is_ready(self, serve, home):
        change(home, 'kind = "chat"', 'kind = "chat", start = "hang"')
        server = serve()
        appears(home / "hanging")
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == (0, "")

    def test_a_client_that_leaves_cancels_its_request_and_the_access_log_can_be_switched_on(
        self, serve, home
    ):
        server = serve("--host", "localhost", ROLLTAP_SERVER__ACCESS_LOG="true")
        assert "http://localhost:" in server.ready()
        server.get("/health")
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /test/slow?seconds=60 HTTP/1.1\r\nHost: h\r\n\r\n")
            appears(home / "slow-began")
        appears(home / "slow-cancelled")
        server.process.send_signal(signal.SIGINT)
        assert server.ended() == (0, "")
        assert "GET /health" in Path("stderr").read_text()

    def test_a_mistake_is_one_message_and_exit_code_2(self, serve, home):
        change(home, "port = 0", "port = -1")
        assert serve().ended() == (2, "")
        assert Path("stderr").read_text() == (
            "Error: rolltap.toml: server.port = -1 is not allowed; it must be a port from 0 (any free one) to 65535\n"
        )

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('kind = "lists"', 'kind = "cloud"', "store.kind = 'cloud': no plugin creates such a store"),
            ('kind = "chat"', 'kind = "chta"', "no plugin creates backends of kind 'chta'"),
            ('kind = "chat"', 'kind = "chat", start = "wrong"', "the backend's url is wrong"),
            (
                'dir = "plugins"',
                'dir = "nowhere"',
                'nowhere" is not a folder; it must be one that holds .py files',
            ),
            ('dir = "plugins"', 'dir = "plugins"\ndisable = ["mien"]', 'did you mean "mine"?'),
            ("[server]", "[sever]", "the nearest known key is server"),
        ],
    )
    def test_what_keeps_it_from_starting(self, home, old, new, message):
        change(home, old, new)
        code, output, error = run("serve")
        assert (code, output) == (2, "")
        assert error.startswith("Error: rolltap.toml: ")
        assert message in error

    def test_a_plugin_whose_routes_fail(self, home):
        (home / "plugins" / "mine.py").write_text(
            PLUGIN.replace("    app.router", "    1 / 0\n    app.router")
        )
        code, _, error = run("serve")
        assert (code, error) == (
            2,
            "Error: mine: register_routes raised ZeroDivisionError: division by zero\n",
        )

    @pytest.mark.parametrize("command", ["serve", "plugins", "check"])
    def test_a_plugins_folder_that_is_not_there_is_the_options_fault(self, home, command):
        code, output, error = run(command, "--plugins-dir", "nowhere")
        assert (code, output) == (2, "")
        assert error == (
            'Error: --plugins-dir = "nowhere" is not a folder; it must be one that holds .py files\n'
        )

    @pytest.mark.parametrize("command", ["plugins", "check"])
    def test_what_the_config_asks_of_plugins_is_the_files_fault(self, home, command):
        change(home, 'dir = "plugins"', 'dir = "nowhere"')
        code, _, error = run(command)
        assert code == 2
        assert error.startswith("Error: rolltap.toml: plugins.dir = ")

    def test_a_port_in_use(self, home):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            code, output, error = run("serve", "--port", str(port))
        assert (code, output) == (2, "")
        assert error == (
            f"Error: cannot listen on 127.0.0.1:{port}: the port is in use; "
            "choose another with --port (0: any free one) or server.port\n"
        )

    def test_a_port_that_another_process_listens_on_while_this_one_starts(self, home):
        (probe,) = bind("127.0.0.1", 0)
        port = probe.getsockname()[1]
        probe.close()
        change(home, 'kind = "chat"', f'kind = "chat", start = "{port}"')
        code, output, error = run("serve", "--port", str(port))
        assert (code, output) == (2, "")
        assert error.startswith(f"Error: cannot listen on 127.0.0.1:{port}: the port is in use")

    @pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
    def test_a_host_that_is_not_this_machine(self, home, host):
        code, _, error = run("serve", "--host", host)
        assert code == 2
        assert error.startswith(f"Error: cannot listen on {host}:0: ")
        assert "set --host or server.host to an address of this machine" in error

    def test_several_workers(self, home):
        code, _, error = run("serve", "--workers", "2")
        assert code == 2
        assert (
            "--workers = 2 is not allowed; it must be 1: several processes need a store that they share"
            in error
        )

    @pytest.mark.parametrize(
        "arguments", [["--port", "70000"], ["--port", "x"], ["--workers", "0"], ["--prot", "1"]]
    )
    def test_wrong_options(self, home, arguments):
        code, output, error = run("serve", *arguments)
        assert (code, output) == (2, "")
        assert arguments[0] in error

    def test_all_sockets_of_a_host_have_one_port(self):
        sockets = bind("localhost", 0)
        try:
            assert len({each.getsockname()[1] for each in sockets}) == 1
            assert ("127.0.0.1", sockets[0].getsockname()[1]) in [each.getsockname()[:2] for each in sockets]
        finally:
            for each in sockets:
                each.close()

    def test_an_address_that_the_machine_lacks_is_left_out_where_the_host_has_another(self, monkeypatch):
        real = socket.getaddrinfo

        def with_a_foreign_one(host, port, **options):
            return real("192.0.2.1", port, **options) + real("127.0.0.1", port, **options)

        monkeypatch.setattr(socket, "getaddrinfo", with_a_foreign_one)
        (only,) = bind("localhost", 0)
        with only:
            assert only.getsockname()[0] == "127.0.0.1"

    @pytest.mark.parametrize(
        ("host", "shown"), [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("localhost", "localhost")]
    )
    def test_hosts_in_urls(self, host, shown):
        assert url_host(host) == shown


class TestPlugins:
    def test_the_table(self, home):
        (home / "plugins" / "broken.py").write_text("import nothing_of_that_name\n")
        code, output, error = run("plugins")
        assert (code, error) == (0, "")
        rows = [
            [cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line
        ]
        mine = next(row for row in rows if row[0] == "mine")
        assert mine[2].endswith("mine.py")
        assert re.fullmatch(
            r"create_backend 1/\d+, create_store 1/\d+, register_routes 1/\d+, tool_parser 1/\d+", mine[3]
        )
        assert mine[4:] == ["chat, lists, none", "loaded"]
        broken = next(row for row in rows if row[0] == "broken")
        assert broken[3:] == ["", "", "failed"]
        assert (
            f"broken ({home}/plugins/broken.py) is not loaded: failed to load: ModuleNotFoundError: "
            "No module named 'nothing_of_that_name'"
        ) in output
        assert (
            "    the way out: install what it needs (pip install nothing_of_that_name, if the package has the module's "
            'name), or leave it out: [plugins] disable = ["broken"]\n'
        ) in output

    def test_what_a_name_clash_hides(self, home):
        source = PLUGIN.replace('"none"', '"hermes"')
        (home / "plugins" / "mine.py").write_text(source)
        (home / "plugins" / "another.py").write_text(source)
        code, output, _ = run("plugins")
        assert code == 0
        assert (
            "tool_parser hermes: mine is asked first and hides another, hermes; "
            '[plugins] disable = ["mine"] uncovers it\n'
        ) in output
        report = json.loads(run("plugins", "--json")[1])
        assert {
            "hook": "tool_parser",
            "names": ["hermes"],
            "answers": "mine",
            "hidden": ["another", "hermes"],
        } in report["clashes"]
        assert report["order"]["tool_parser"][:2] == ["mine", "another"]
        change(home, 'dir = "plugins"', 'dir = "plugins"\ndisable = ["mine", "another"]')
        assert json.loads(run("plugins", "--json")[1])["clashes"] == []

    def test_many_names_are_cut_in_the_table(self, home):
        names = [f"name{number}" for number in range(20)]
        (home / "plugins" / "mine.py").write_text(PLUGIN.replace('["none"]', repr(names)))
        assert "name5, and 14 more" in run("plugins")[1]
        assert json.loads(run("plugins", "--json")[1])["plugins"][-1]["offers"]["tool_parser"] == names

    def test_json(self, home):
        (home / "plugins" / "off.py").write_text("")
        change(home, 'dir = "plugins"', 'disable = ["off"]')
        code, output, _ = run("plugins", "--json", "--plugins-dir", "plugins")
        assert code == 0
        assert json.loads(output)["plugins"][-2:] == [
            {
                "name": "mine",
                "source": "plugins/mine.py",
                "version": "",
                "hooks": ["create_backend", "create_store", "offers", "register_routes", "tool_parser"],
                "offers": {"create_backend": ["chat"], "create_store": ["lists"], "tool_parser": ["none"]},
                "state": "loaded",
                "error": None,
                "way_out": None,
            },
            {
                "name": "off",
                "source": "plugins/off.py",
                "version": "",
                "hooks": [],
                "offers": {},
                "state": "disabled",
                "error": None,
                "way_out": None,
            },
        ]

    def test_a_wrong_config(self, home):
        change(home, 'dir = "plugins"', "dir = 3")
        code, output, error = run("plugins")
        assert (code, output) == (2, "")
        assert "plugins.dir = 3 is not allowed; it must be a string" in error


class TestCheck:
    def test_all_is_well(self, home):
        code, output, error = run("check")
        assert (code, error) == (0, "")
        lines = output.splitlines()
        assert lines[0] == "ok       config"
        assert re.fullmatch(r"ok       plugins: \d+ loaded: .*\bmine\b.*", lines[1])
        assert lines[2] == "ok       store lists: can be opened, by mine"
        assert "ok       dialect openai.chat: ChatConverter, by openai-chat" in lines
        first = lines.index("ok       model first, backend chat-0: by mine, logprobs: True, version: 7")
        assert lines[first + 1 :] == [
            "ok       model first, select_backend: chat-0, by routing",
            "ok       model first, tool_parser none: by mine",
            "ok       record_node: no plugin is to be told",
            "ok       classify_error: a timeout is a 504, by errors",
        ]

    def test_each_choice_of_ones_own_plugin_is_shown(self, home):
        (home / "plugins" / "more.py").write_text(
            """
import rolltap

class Plan(rolltap.TagReasoningParser):
    open, close = "<plan>", "</plan>"

@rolltap.hookimpl
def reasoning_parser(name):
    return Plan if name == "plan" else None

@rolltap.hookimpl
def select_backend(backends):
    return backends[-1]

@rolltap.hookimpl
def record_node(node): ...

@rolltap.hookimpl
def classify_error(error):
    return rolltap.ErrorInfo(status=418, message="no")
"""
        )
        change(
            home, 'backends = [{kind = "chat"}]',
            'reasoning_parser = "plan"\nbackends = [{kind = "chat"}, {kind = "chat"}]',
        )  # fmt: skip
        code, output, _ = run("check")
        assert code == 0
        for line in (
            "model first, select_backend: chat-1, by more",
            "model first, reasoning_parser plan: by more",
            "record_node: is told to more",
            "classify_error: a timeout is a 418, by more",
        ):
            assert f"ok       {line}\n" in output

    def test_a_plugin_that_fails_when_asked_is_a_problem(self, home):
        failing = "".join(
            f"@rolltap.hookimpl\ndef {hook}():\n    raise ValueError('no')\n"
            for hook in ("message_converter", "select_backend", "classify_error")
        )
        (home / "plugins" / "more.py").write_text(f"import rolltap\n{failing}")
        code, output, _ = run("check")
        assert code == 1
        for subject, hook in (
            ("dialect openai.chat", "message_converter"),
            ("model first, select_backend", "select_backend"),
            ("classify_error", "classify_error"),
        ):
            assert f"problem  {subject}: more: {hook} raised ValueError: no\n" in output

    def test_every_problem_is_a_line(self, home):
        (home / "plugins" / "broken.py").write_text("1 / 0\n")
        change(home, 'kind = "lists"', 'kind = "cloud"')
        change(
            home,
            'tool_parser = "none"\nbackends = [{kind = "chat"}]',
            'tool_parser = "hermse"\nreasoning_parser = "nothing"\ntokenizer = "./nowhere"\n'
            'backends = [{kind = "chat", start = "wrong"}, {kind = "other"}]',
        )
        code, output, _ = run("check")
        assert code == 1
        problems = [
            line.removeprefix("problem  ") for line in output.splitlines() if line.startswith("problem")
        ]
        assert problems[0].startswith(
            f"plugin broken ({home}/plugins/broken.py): failed to load: ZeroDivisionError"
        )
        assert problems[0].endswith('; mend it, or leave it out: [plugins] disable = ["broken"]')
        assert problems[1].startswith("store cloud: no plugin creates stores of this kind (offered: lists, ")
        assert problems[2] == "model first, backend chat-0: the backend's url is wrong"
        assert problems[3].startswith(
            "model first, backend other-1: no plugin creates backends of this kind (offered: "
        )
        assert problems[4].startswith(f"model first, tokenizer {home}/nowhere: ")
        assert problems[5].startswith(
            "model first, reasoning_parser nothing: no plugin has a parser of this name"
        )
        assert problems[6].startswith("model first, tool_parser hermse: no plugin has a parser of this name")
        assert problems[6].endswith('; did you mean "hermes"?')
        assert len(problems) == 7

    def test_a_token_backend_without_a_tokenizer(self, home):
        source = PLUGIN.replace("rolltap.ChatBackend", "rolltap.TokenBackend").replace(
            "async def chat", "async def generate"
        )
        (home / "plugins" / "mine.py").write_text(source)
        code, output, _ = run("check")
        assert code == 1
        assert (
            "problem  model first, tokenizer (none): a backend works in tokens, so `tokenizer` must be set"
            in output
        )

    def test_what_the_template_does_is_noted_and_no_problem(self, home, rolltap_tokenizer):
        change(home, 'tool_parser = "none"', f'tool_parser = "none"\ntokenizer = "{rolltap_tokenizer}"')
        code, output, _ = run("check")
        assert code == 0
        assert f"ok       model first, tokenizer {rolltap_tokenizer}: loads\n" in output
        probed = re.findall(r"^(ok|note) +model first, append-only, (\w+): ", output, re.MULTILINE)
        assert {name for _, name in probed} == {"plain", "tools", "thinking"}

    def test_what_a_plugin_makes_must_be_one_of_ours(self, home):
        (home / "plugins" / "mine.py").write_text(
            PLUGIN.replace("return Lists()", "return 3").replace("return Chat(", "return str(")
        )
        code, output, _ = run("check")
        assert code == 1
        assert (
            "problem  store lists: mine: create_store answered with a value of type int; it must be a Store, or None\n"
            in output
        )
        assert (
            "chat-0: mine: create_backend answered with a value of type str; it must be a TokenBackend or a ChatBackend, or None\n"
            in output
        )

    def test_a_wrong_config_is_no_finding(self, home):
        change(home, 'kind = "lists"', "kind = 3")
        assert run("check")[:2] == (2, "")


def test_version():
    assert run("version", config=False) == (0, f"rolltap {rolltap.__version__}\n", "")


def test_help_names_every_command():
    code, output, _ = run("--help", config=False)
    assert code == 0
    known = {"serve", "plugins", "check", "export", "new-plugin", "show", "tail", "version"}
    assert set(main.commands) == known
    for name in main.commands:
        assert re.search(rf"^  {name} ", output, re.MULTILINE)


def test_the_command_line_loads_nothing_heavy():
    code = "import sys, rolltap.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "vllm", "rich", "rolltap_plugins"} & set(loaded)
