"""Loading tokenizers, and saying what is wrong with a name."""

import json
import socket

import huggingface_hub
import pytest
import transformers

from rendering_conversations import Renderers
from rolltap.errors import ConfigError
from rolltap.rendering import Renderer
from rolltap.rendering.codec import Codec
from rolltap.rendering.tokenizer import generation_eos_ids, hub_answers, load_tokenizer
from rolltap.testing.tokenizers import tiny_tokenizer


@pytest.fixture
def folder(tmp_path):
    return tiny_tokenizer(tmp_path / "tokenizer")


@pytest.mark.parametrize("name", ["/gone", "./gone", "~/gone", "a/b/c"])
def test_a_folder_that_is_not_there(name):
    with pytest.raises(
        ConfigError, match=f"tokenizer '{name}': there is no such folder; give an existing one, or a hub id"
    ):
        Renderer.load(name)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match="the folder has no tokenizer in it"):
        load_tokenizer(str(tmp_path))


def test_a_folder_with_a_broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="the folder's tokenizer cannot be loaded"):
        load_tokenizer(str(folder))


class LocalEntryNotFoundError(OSError):
    pass


class RepositoryNotFoundError(OSError):
    pass


class GatedRepoError(OSError):
    pass


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (LocalEntryNotFoundError, "not in the local cache and the hub cannot be reached"),
        (RepositoryNotFoundError, "no such folder here and no such model on the hub"),
        (GatedRepoError, "access to it is restricted on the hub"),
        (ValueError, "it cannot be loaded: details"),
    ],
)
def test_what_the_hub_says(monkeypatch, cause, said):
    """Each cause as transformers chains it: inside an OSError with a text of many lines."""

    def fail(name, **_):
        assert name == "someone/model"
        raise OSError("details\nand more") from cause("inner")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(ConfigError, match=f"^tokenizer 'someone/model': .*{said}") as caught:
        load_tokenizer("someone/model")
    assert "\n" not in str(caught.value)


@pytest.fixture
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def test_a_hub_that_cannot_be_reached_is_not_asked(no_proxy, monkeypatch):
    """Its client tries each file six times in 23 seconds: what is in the cache, or an error, must not wait for that."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        url = f"http://127.0.0.1:{hub.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        assert hub_answers()
    assert not hub_answers()
    local = []

    def fails(_, *, local_files_only, **more):
        local.append(local_files_only)
        raise OSError("not there") from LocalEntryNotFoundError("inner")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fails)
    with pytest.raises(
        ConfigError, match="'someone/model': it is not in the local cache and the hub cannot be"
    ):
        load_tokenizer("someone/model")
    monkeypatch.setattr(
        transformers.utils.hub,
        "cached_file",
        lambda *_, local_files_only, **more: local.append(local_files_only),
    )
    assert generation_eos_ids("someone/model") == []
    assert local == [True, True]


def test_a_proxy_may_reach_the_hub_for_us(no_proxy, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://hub.invalid")
    assert not hub_answers()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert hub_answers()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert not hub_answers()


def test_the_models_end_ids(folder):
    assert generation_eos_ids(str(folder)) == []
    file = folder / "generation_config.json"
    for written, read in ((7, [7]), ([7, 8], [7, 8]), (None, [])):
        file.write_text(json.dumps({"eos_token_id": written}))
        assert generation_eos_ids(str(folder)) == read
    renderer = Renderer.load(str(folder))
    assert renderer.stop_ids == {renderer.tokenizer.eos_token_id}
    file.write_text("[]")
    with pytest.raises(ConfigError, match=r"generation_config\.json: not a JSON object"):
        generation_eos_ids(str(folder))


def test_a_stored_truncation_is_not_applied(folder):
    file = folder / "tokenizer.json"
    stored = json.loads(file.read_text())
    stored["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(stored))
    codec = Codec(load_tokenizer(str(folder)))
    assert codec.decode(codec.encode("more than two tokens")) == "more than two tokens"


def test_raw_prompts_get_the_bos_that_the_tokenizer_adds(tmp_path):
    renderer = Renderers(tmp_path)("llama3")
    bos = renderer.tokenizer.bos_token_id
    assert renderer.encode("Hi", add_special_tokens=True) == [bos, *renderer.encode("Hi")]
    assert bos not in renderer.encode("Hi")


def test_special_tokens_are_recognised_wherever_they_stand(folder):
    """As the engines' own chat endpoints do it: see `Codec.encode`."""
    renderer = Renderer.load(str(folder))
    assert renderer.codec.id_of("<|im_end|>") in renderer.encode("I say <|im_end|> and go on")
