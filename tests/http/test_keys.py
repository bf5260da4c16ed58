"""Keys of the config and of a file: what they open, and what a stranger sees."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rolltap.errors import ConfigError
from rolltap.server.keys import Keys
from rolltap.testing import ScriptedTokenBackend
from served import served

MODEL = {"name": "m", "backends": [{"kind": "openai", "url": "http://127.0.0.1:9/v1"}]}
PROXY = """
[[models]]
name = "m"
backends = [{kind = "openai", url = "http://127.0.0.1:9/v1"}]

[store]
kind = "memory"

"""


@pytest.mark.parametrize("sent", [b"k\xe9y", "schlüssel".encode(), b"\xff\xfe", b"k" * 4000])
@pytest.mark.parametrize("header", [b"x-api-key", b"x-goog-api-key", b"Authorization"])
async def test_a_wrong_key_of_any_bytes_is_refused(rolltap_serve, rolltap_tokenizer, header, sent):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, ["Hi."]), config={"server": {"api_keys": ["key"]}}
    )
    value = (b"Bearer " if header == b"Authorization" else b"") + sent
    status = await _raw_status(server, header + b": " + value)
    assert status == 401


async def test_a_key_of_other_letters_opens(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, ["Hi."]), config={"server": {"api_keys": ["schlüssel"]}}
    )
    assert await _raw_status(server, "x-api-key: schlüssel".encode()) == 200
    assert await _raw_status(server, b"x-api-key: schl\xfcssel") == 401


async def _raw_status(server, header):
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /sessions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + header + b"\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_a_stranger_learns_only_that_the_server_lives(rolltap_serve, rolltap_tokenizer):
    server = await rolltap_serve(
        ScriptedTokenBackend(rolltap_tokenizer, ["Hi."]), config={"server": {"api_keys": ["key"]}}
    )
    async with server.http.get("/health") as response:
        assert set(await response.json()) == {"status", "model"}
    async with server.http.get("/health", headers={"x-api-key": "key"}) as response:
        assert {"status", "model", "sessions", "backends"} <= set(await response.json())


@pytest.mark.parametrize("text", ["trainer = 3", 'trainer = ""', "trainer = secret-word", "[table]"])
def test_a_wrong_file_is_named_and_its_keys_are_not(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match="api_keys_file") as caught:
        Keys([], str(file))
    assert "secret-word" not in str(caught.value)


def test_a_wrong_file_leaves_the_keys_as_they_were(tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_text('a = "one"\n')
    keys = Keys(["zero"], str(file))
    file.write_text("a = ")
    keys.reload()
    assert keys.opened_by(["one"])
    assert "the keys stay as they were" in caplog.text
    file.write_text('a = "two"\n')
    keys.reload()
    assert [keys.opened_by([key]) for key in ("zero", "one", "two")] == [True, False, True]


async def test_the_file_is_read_again_on_sighup(tmp_path):
    (tmp_path / "keys").write_text('first = "one"\n')
    async with served(PROXY + '[server]\napi_keys_file = "keys"\n', tmp_path) as server:

        async def status(key):
            async with server.http.get("/sessions", headers={"x-api-key": key}) as response:
                return response.status

        assert [await status("one"), await status("two")] == [200, 401]
        (tmp_path / "keys").write_text('second = "two"\n')
        os.kill(server.process.pid, signal.SIGHUP)
        async with asyncio.timeout(10):
            while await status("two") != 200:  # noqa: ASYNC110 - of a process, which tells nobody
                await asyncio.sleep(0.05)
        assert await status("one") == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_without_keys_does_not_listen_to_other_machines(tmp_path, host):
    (tmp_path / "rolltap.toml").write_text(PROXY + f'[server]\nhost = "{host}"\nport = 0\n')
    command = [Path(sys.executable).with_name("rolltap"), "serve", "--config", tmp_path / "rolltap.toml"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "server.allow_public = true" in done.stderr


async def test_it_does_where_the_config_says_so(tmp_path):
    public = '[server]\nhost = "0.0.0.0"\nallow_public = true\n'
    async with served(PROXY + public, tmp_path) as server, server.http.get("/health") as response:
        assert response.status == 200
