"""`rolltap new-plugin`: which files it makes, and that what it makes installs, passes its own tests and serves."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from rolltap.cli import main, template

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "plugin_template"
ALL = {
    ".github/workflows/test.yml",
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "rolltap.toml",
    "src/rolltap_acme/__init__.py",
    "src/rolltap_acme/backend.py",
    "src/rolltap_acme/errors.py",
    "src/rolltap_acme/parser.py",
    "src/rolltap_acme/py.typed",
    "src/rolltap_acme/recorder.py",
    "src/rolltap_acme/router.py",
    "src/rolltap_acme/token_backend.py",
    "tests/conftest.py",
    "tests/test_backend.py",
    "tests/test_errors.py",
    "tests/test_parser.py",
    "tests/test_recorder.py",
    "tests/test_router.py",
    "tests/test_token_backend.py",
}
PARSER_ALONE = {
    file
    for file in ALL
    if not any(kind in file for kind in ("backend", "errors", "recorder", "router", "toml"))
} | {"pyproject.toml"}


def run(*arguments):
    """The command in this process: its exit code, standard output and standard error."""
    result = CliRunner().invoke(main, ["new-plugin", *arguments])
    return result.exit_code, result.stdout, result.stderr


def files(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestFiles:
    def test_one_of_each_kind_is_all_of_the_template(self, here):
        code, output, _ = run("rolltap-my-format")
        assert code == 0
        assert output == (
            "rolltap-my-format is made. Next:\n\n    cd rolltap-my-format\n    pip install -e '.[dev]'\n    pytest\n"
        )
        assert files(here / "rolltap-my-format") == {
            file.replace("rolltap_acme", "rolltap_my_format") for file in ALL
        }

    def test_nothing_of_the_template_is_left_out_and_nothing_is_there_besides(self):
        found = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."],
            cwd=TEMPLATE, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        assert set(found) == ALL

    def test_one_kind_has_its_own_files_and_is_told_of_no_other(self, here):
        assert run("mine", "--kind", "parser")[0] == 0
        assert files(here / "mine") == {file.replace("rolltap_acme", "mine") for file in PARSER_ALONE}
        text = "".join(file.read_text() for file in (here / "mine").rglob("*") if file.is_file())
        for kind in ("recorder.py", "router.py", "backend.py", "errors.py", "mine.router", "rolltap.toml"):
            assert kind not in text

    def test_two_kinds_and_another_folder(self, here):
        assert run("mine", "--kind", "router", "--kind", "backend", "--to", "a/b")[0] == 0
        made = files(here / "a" / "b")
        assert {"rolltap.toml", "tests/test_router.py", "tests/test_backend.py"} < made
        assert "tests/test_token_backend.py" not in made
        assert '"mine.backend"' in (here / "a/b/pyproject.toml").read_text()

    def test_every_name_is_the_new_one(self, here):
        assert run("rolltap-my-format")[0] == 0
        folder = here / "rolltap-my-format"
        text = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
        assert "acme" not in text.lower()
        assert "<!--" not in text
        assert "class MyFormatToolParser" in text
        assert "MY_FORMAT_RECORDS" in text
        assert 'name = "rolltap-my-format"' in text

    def test_a_name_that_begins_with_a_digit_after_the_prefix(self, here):
        assert run("rolltap-4bit")[0] == 0
        for file in (here / "rolltap-4bit").rglob("*.py"):
            compile(file.read_text(), str(file), "exec")


class TestMistakes:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("My Plugin", '"My Plugin" is not a name for a package: .*, such as "my-plugin"'),
            ("../up", r'"\.\./up" is not a name for a package: .*, such as "up"'),
            ("1st", '"1st" is not a name for a package: .*, such as "st"'),
            ("--", '"--" is not a name for a package|No such option'),
            ("a--b", '"a--b" is not a name'),
            ("ü", '"ü" is not a name for a package: .*, such as "rolltap-mine"'),
            ("json", '"json" would hide a module of that name; choose another, such as "rolltap-json"'),
            ("rolltap-plugins", '"rolltap-plugins" would hide a module'),
            ("class", '"class" would hide a module'),
        ],
    )
    def test_names(self, here, name, message):
        code, output, error = run("--", name)
        assert (code, output) == (2, "")
        assert re.search(message, error), error
        assert list(here.iterdir()) == []

    def test_a_folder_that_is_there(self, here):
        (here / "mine").mkdir()
        code, output, error = run("mine")
        assert (code, output) == (2, "")
        assert error == "Error: mine exists already; choose another name, or another folder with --to\n"
        assert files(here) == set()

    def test_a_folder_that_cannot_be_written(self, here):
        (here / "file").write_text("")
        code, _, error = run("mine", "--to", "file/mine")
        assert code == 2
        assert error == "Error: file/mine can't be written: Not a directory\n"

    def test_an_unknown_kind(self, here):
        code, _, error = run("mine", "--kind", "pasrer")
        assert code == 2
        assert "'parser', 'backend', 'token-backend', 'recorder', 'router', 'errors'" in error


def test_the_template_is_in_the_wheel(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*command, "-w", tmp_path, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    prefix = "rolltap/plugin_template/"
    assert {name.removeprefix(prefix) for name in names if name.startswith(prefix)} == ALL
    assert template.folder_of_template() == TEMPLATE, "and an editable install has it from the repository"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a fresh environment that sees what is installed in this one, rolltap included."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder}))
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return folder / "bin" / "python"


def call(python, *arguments, cwd):
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ROLLTAP"))
    }
    done = subprocess.run(
        [python, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python, folder):
    """As `pip install .` does, without the network: what it requires is there."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def ask(python, folder):
    """Serve the project's own config, and ask once."""
    code = "from rolltap.cli import main; main()"
    server = subprocess.Popen(
        [python, "-c", code, "serve", "--config", "rolltap.toml", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = server.stdout.readline().split()[-1]
        body = {"messages": [{"role": "user", "content": "one two"}]}
        request = Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()


def test_from_nothing_to_passing_tests_and_a_served_request_in_a_minute(here, python):
    began = time.monotonic()
    assert run("rolltap-my-format")[0] == 0
    folder = here / "rolltap-my-format"
    install(python, folder)
    told = call(python, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", cwd=folder)
    assert ask(python, folder) == "one two"
    seconds = time.monotonic() - began
    assert " passed" in told
    assert seconds < 60
    listed = call(python, "-c", "from rolltap.cli import main; main()", "plugins", "--json", cwd=folder)
    mine = [each for each in json.loads(listed)["plugins"] if "rolltap-my-format" in each["source"]]
    assert {each["name"]: each["state"] for each in mine} == {
        f"my-format-{kind}": "loaded" for kind in template.KINDS
    }


def test_types_and_style_hold_under_any_name(here, python):
    """Under its own name `make lint` looks at the template."""
    name = "other"
    assert run(name)[0] == 0
    assert "Success" in call(
        python, "-m", "mypy", "--cache-dir", ROOT / ".mypy_cache" / "template", cwd=here / name
    )
    call(python, "-m", "ruff", "check", "--no-cache", cwd=here / name)
    call(python, "-m", "ruff", "format", "--check", "--no-cache", cwd=here / name)
