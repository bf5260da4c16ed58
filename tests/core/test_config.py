"""The config: every way in, and an error for every way it can be wrong."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import ConfigError
from rolltap.config import BackendConfig, Config, ModelConfig, PluginsConfig, ServerConfig, StoreConfig

MODEL = '[[models]]\nname = "m"\n[[models.backends]]\nkind = "scripted"\n'


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        file = tmp_path / "rolltap.toml"
        file.write_text(text)
        return file

    return write


def load(source, **environ) -> Config:
    return Config.load(source, environ=environ)


def error(source, **environ) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, **environ)
    return str(caught.value)


def outcome(source, **environ) -> str:
    """The error's message, or "fine"."""
    try:
        load(source, **environ)
    except ConfigError as caught:
        return str(caught)
    return "fine"


def test_no_source_is_the_embedded_model():
    config = load(None)
    assert config == Config(models=[ModelConfig(name="smollm2-135m", backends=[BackendConfig(kind="local")])])
    assert (config.server.host, config.server.port, config.store.kind) == ("127.0.0.1", 9100, "sqlite")
    assert config.models[0].history == "recorded"
    assert config.models[0].tool_parser == "hermes"
    assert not config.server.access_log


def test_every_key_of_a_file(write, tmp_path):
    config = load(
        write(
            """
            [server]
            host = "0.0.0.0"
            port = 0
            api_keys = ["a", "b"]
            access_log = true
            max_body_mb = 1
            request_timeout_s = 2.5
            max_sessions = 3
            session_ttl_s = 4
            max_in_flight = 5
            max_queued = 0
            [store]
            kind = "sqlite"
            path = "rolltap.db"
            [plugins]
            disable = ["hermes"]
            dir = "/plugins"
            [[models]]
            name = "qwen3-4b"
            tokenizer = "Qwen/Qwen3-4B"
            chat_template = "/t.jinja"
            tool_parser = "mine"
            reasoning_parser = "think"
            history = "template"
            drop_system_text = ["x"]
            [[models.backends]]
            kind = "vllm"
            url = "http://127.0.0.1:8000"
            [[models.backends]]
            kind = "anyllm"
            options = 1
            """
        )
    )
    assert config.server == ServerConfig(
        host="0.0.0.0",
        port=0,
        api_keys=["a", "b"],
        access_log=True,
        max_body_mb=1.0,
        request_timeout_s=2.5,
        max_sessions=3,
        session_ttl_s=4.0,
        max_in_flight=5,
        max_queued=0,
    )
    assert config.store == StoreConfig(kind="sqlite", options={"path": str(tmp_path / "rolltap.db")})
    assert config.plugins == PluginsConfig(disable=["hermes"], dir="/plugins")
    assert config.models == [
        ModelConfig(
            name="qwen3-4b",
            tokenizer="Qwen/Qwen3-4B",
            chat_template="/t.jinja",
            tool_parser="mine",
            reasoning_parser="think",
            history="template",
            drop_system_text=["x"],
            backends=[
                BackendConfig(kind="vllm", options={"url": "http://127.0.0.1:8000"}),
                BackendConfig(kind="anyllm", options={"options": 1}),
            ],
        )
    ]


def test_a_dict_keeps_its_objects_and_is_not_changed():
    script = object()
    source = {"models": [{"name": "m", "backends": [{"kind": "scripted", "script": script}]}]}
    config = load(source, ROLLTAP_MODELS__0__NAME="other")
    assert config.models[0].backends[0].options["script"] is script
    assert config.models[0].name == "other"
    assert source["models"][0]["name"] == "m"


def test_a_config_is_given_back_as_it_is():
    config = load(None)
    assert load(config, ROLLTAP_SERVER__PORT="1") is config


def test_relative_paths_are_relative_to_the_file(write, tmp_path):
    config = load(
        write(
            '[plugins]\ndir = "mine"\n[store]\nkind = "sqlite"\npath = "here.db"\n'
            '[[models]]\nname = "a"\ntokenizer = "./tok"\nchat_template = "t.jinja"\nbackends = [{kind = "x"}]\n'
            '[[models]]\nname = "b"\ntokenizer = "org/tok"\nbackends = [{kind = "x", file = "f"}]\n'
        )
    )
    assert config.plugins.dir == str(tmp_path / "mine")
    assert Path(config.models[0].tokenizer) == tmp_path / "tok"
    assert config.models[0].chat_template == str(tmp_path / "t.jinja")
    assert config.models[1].tokenizer == "org/tok"
    assert config.models[1].chat_template == ""
    assert config.store.options == {"path": str(tmp_path / "here.db")}
    assert config.models[1].backends[0].options == {"file": "f"}


def test_paths_from_the_environment_are_relative_to_the_working_directory(write):
    assert load(write(MODEL), ROLLTAP_PLUGINS__DIR="mine").plugins.dir == "mine"


@pytest.mark.parametrize(
    ("variable", "text", "read"),
    [
        ("SERVER__PORT", "9200", lambda c: c.server.port == 9200),
        ("SERVER__HOST", "::1", lambda c: c.server.host == "::1"),
        ("SERVER__ACCESS_LOG", "true", lambda c: c.server.access_log is True),
        ("SERVER__REQUEST_TIMEOUT_S", "7", lambda c: c.server.request_timeout_s == 7.0),
        ("SERVER__API_KEYS", "123", lambda c: c.server.api_keys == ["123"]),
        ("STORE__KIND", "redis", lambda c: c.store.kind == "redis"),
        ("STORE__URL", "redis://h/0", lambda c: c.store.options == {"url": "redis://h/0"}),
        ("PLUGINS__DISABLE", '["hermes", "local"]', lambda c: c.plugins.disable == ["hermes", "local"]),
        ("PLUGINS__DISABLE", "hermes, local", lambda c: c.plugins.disable == ["hermes", "local"]),
        ("PLUGINS__DISABLE", '"hermes"', lambda c: c.plugins.disable == ["hermes"]),
        ("PLUGINS__DISABLE", "", lambda c: c.plugins.disable == []),
        ("MODELS__0__NAME", "123", lambda c: c.models[0].name == "123"),
        ("MODELS__0__NAME", '"quoted"', lambda c: c.models[0].name == "quoted"),
        ("MODELS__0__NAME", "a\nother = 1", lambda c: c.models[0].name == "a\nother = 1"),
        (
            "MODELS__0__BACKENDS",
            '[{kind = "k", x = 1}]',
            lambda c: c.models[0].backends[0].options == {"x": 1},
        ),
        ("MODELS__0__BACKENDS__0__LAUNCH", "7", lambda c: c.models[0].backends[0].options == {"launch": 7}),
        (
            "MODELS__0__BACKENDS__0__URL",
            "http://h",
            lambda c: c.models[0].backends[0].options["url"] == "http://h",
        ),
        ("MODELS__0__BACKENDS__1__KIND", "more", lambda c: c.models[0].backends[1].kind == "more"),
    ],
)
def test_the_environment_wins(write, variable, text, read):
    for source in (write(MODEL + "[server]\nport = 1\n"), None):
        assert read(load(source, **{f"ROLLTAP_{variable}": text}))


def test_the_environment_can_add_models_in_any_order_of_variables():
    added = {f"ROLLTAP_MODELS__{i}__NAME": f"m{i}" for i in range(11, 0, -1)}
    added |= {f"ROLLTAP_MODELS__{i}__BACKENDS__0__KIND": "k" for i in range(1, 12)}
    assert [model.name for model in load(None, **added).models][1:] == [f"m{i}" for i in range(1, 12)]


def test_other_variables_are_left_alone():
    assert load(None, ROLLTAP_CACHE="x", OTHER__PORT="1", rolltap_server__port="2") == load(None)


WRONG = [
    ("[server]\nport = 70000\n" + MODEL, "server.port = 70000", "0 (any free one) to 65535"),
    ("[server]\nport = true\n" + MODEL, "server.port = true", "a port"),
    ('[server]\nport = "9100"\n' + MODEL, 'server.port = "9100"', "a port"),
    ('[server]\nhost = ""\n' + MODEL, 'server.host = ""', "a host name"),
    ("[server]\nmax_body_mb = 0\n" + MODEL, "server.max_body_mb = 0", "a number above 0"),
    ("[server]\nrequest_timeout_s = -1\n" + MODEL, "server.request_timeout_s = -1", "seconds above 0"),
    ("[server]\nsession_ttl_s = nan\n" + MODEL, "server.session_ttl_s = NaN", "seconds above 0"),
    ("[server]\nmax_sessions = 0\n" + MODEL, "server.max_sessions = 0", "at least 1"),
    ("[server]\nmax_queued = -1\n" + MODEL, "server.max_queued = -1", "at least 0"),
    ("[server]\naccess_log = 1\n" + MODEL, "server.access_log = 1", "true or false"),
    ("server = 3\n" + MODEL, "server = 3", "a table"),
    ('[store]\nkind = ""\n' + MODEL, 'store.kind = ""', "not empty"),
    ("store = 3\n" + MODEL, "store = 3", "a table"),
    ("[plugins]\ndisable = 3\n" + MODEL, "plugins.disable = 3", "a list of strings"),
    ('[plugins]\ndisable = ["a", 3]\n' + MODEL, "plugins.disable[1] = 3", "a name"),
    ("", "models is missing", "at least one [[models]] table"),
    ("models = []\n", "models = []", "at least one [[models]] table"),
    ("models = 3\n", "models = 3", "at least one [[models]] table"),
    ("models = [3]\n", "models[0] = 3", "a table"),
    ('[[models]]\nname = "m"\n', "models[0].backends is missing", "at least one backend's table"),
    ('[[models]]\nname = "m"\nbackends = []\n', "models[0].backends = []", "at least one backend's table"),
    ('[[models]]\nname = "m"\nbackends = [3]\n', "models[0].backends[0] = 3", "a table"),
    ('[[models]]\nbackends = [{kind = "k"}]\n', "models[0].name is missing", "a name that is not empty"),
    (
        MODEL + "[[models.backends]]\nkind = 3\n",
        "models[0].backends[1].kind = 3",
        "a kind that some plugin creates",
    ),
    (MODEL + '[[models.backends]]\nurl = "u"\n', "models[0].backends[1].kind is missing", "a kind"),
    (MODEL + MODEL, 'models[1].name = "m"', "differ from models[0].name"),
    (
        '[[models]]\nname = "m"\nhistory = "none"\nbackends = [{kind = "k"}]\n',
        'models[0].history = "none"',
        'one of "recorded", "template"',
    ),
    (
        '[[models]]\nname = "m"\ndrop_system_text = ["a", "("]\nbackends = [{kind = "k"}]\n',
        'models[0].drop_system_text[1] = "("',
        "a regular expression (missing ), unterminated subpattern at position 0)",
    ),
    ("[server]\nprot = 1\n" + MODEL, "unknown key server.prot = 1", "nearest known key is server.port"),
    (
        "[servre]\nport = 1\n" + MODEL,
        "unknown key servre = ",
        "nearest known key is server (the sections are",
    ),
    ("port = 1\n" + MODEL, "unknown key port = 1", "nearest known key is server.port"),
    ("[plugins]\ntokenizer = 1\n" + MODEL, "plugins.tokenizer", "nearest known key is models[0].tokenizer"),
    ("[plugins]\nqqq = 1\n" + MODEL, "unknown key plugins.qqq = 1", "nearest known key is plugins."),
    (
        '[[models]]\nname = "m"\ntoolparser = "x"\nbackends = [{kind = "k"}]\n',
        'unknown key models[0].toolparser = "x"',
        "nearest known key is models[0].tool_parser",
    ),
]


@pytest.mark.parametrize(("text", "key_and_value", "way_out"), WRONG)
def test_a_wrong_file_names_file_key_value_and_what_is_allowed(write, text, key_and_value, way_out):
    file = write(text)
    message = error(file)
    assert message.startswith(f"{file}: ")
    assert key_and_value in message
    assert way_out in message
    assert "\n" not in message


def test_a_wrong_dict_is_called_the_config():
    assert error({"models": []}).startswith("config: models = []")
    assert error({1: 2, "models": []}).startswith("config: unknown key 1 = 2")


@pytest.mark.parametrize(
    ("variable", "text", "rest"),
    [
        ("ROLLTAP_SERVER__PORT", "http", 'server.port = "http" is not allowed; it must be a port'),
        ("ROLLTAP_SERVER__PROT", "1", "unknown key server.prot = 1; the nearest known key is server.port"),
        ("ROLLTAP_SERVR__PORT", "1", 'unknown key servr = {"port": 1}; the nearest known key is server'),
        ("ROLLTAP_SERVER__", "1", "unknown key server. = 1; the nearest known key is server."),
        (
            "ROLLTAP_MODELS__X__NAME",
            "a",
            "models is a list, so a number must follow it, as in ROLLTAP_MODELS__0",
        ),
        ("ROLLTAP_MODELS__5__NAME", "a", "models[5] would leave a gap; the next one is models[1]"),
        ("ROLLTAP_MODELS__1__NAME", "a", "models[1].backends is missing"),
        ("ROLLTAP_SERVER__PORT__X", "1", "server.port.x cannot be set, server.port is one value"),
        ("ROLLTAP_MODELS__0__BACKENDS", "local", 'models[0].backends = "local" is not allowed'),
    ],
)
def test_a_wrong_variable_is_named(write, variable, text, rest):
    message = error(write("[server]\nport = 1\n" + MODEL), **{variable: text})
    assert message.startswith(f"environment variable {variable}: {rest}")


def test_a_duplicate_name_from_the_environment(write):
    two = MODEL + MODEL.replace('"m"', '"n"')
    assert error(write(two), ROLLTAP_MODELS__1__NAME="m").startswith(
        "environment variable ROLLTAP_MODELS__1__NAME"
    )


def test_the_file_is_named_where_another_key_comes_from_the_environment(write):
    file = write("[server]\nport = -1\n" + MODEL)
    assert error(file, ROLLTAP_SERVER__HOST="h").startswith(f"{file}: server.port = -1")


def test_keys_are_not_shown():
    message = error(None, ROLLTAP_SERVER__API_KEYS='["sk-secret", 3]')
    assert "sk-secret" not in message
    assert "server.api_keys[1] = (not shown)" in message
    message = error({"models": [{"name": "m", "backends": [{"kind": "k"}]}], "api_keys": ["sk-secret"]})
    assert "sk-secret" not in message
    assert "unknown key api_keys" in message


def test_a_long_value_is_cut():
    assert len(error({"models": "x" * 10_000})) < 300


def test_files_that_cannot_be_read(tmp_path):
    missing = tmp_path / "nothing.toml"
    assert error(missing) == f"{missing}: the config cannot be read: No such file or directory"
    assert error(str(tmp_path)) == f"{tmp_path}: the config cannot be read: Is a directory"
    broken = tmp_path / "broken.toml"
    broken.write_text("[server\n")
    assert re.fullmatch(rf"{broken}: not valid TOML: .*line 1.*", error(broken))
    broken.write_bytes(b"\xff\xfe")
    assert error(broken).startswith(f"{broken}: the config is not UTF-8 text")


def test_every_field_says_what_is_allowed_in_words(write):
    """A new key must not end in a bare type name: its error is a sentence."""
    for section, kind in (("server", ServerConfig), ("plugins", PluginsConfig)):
        for field in msgspec.structs.fields(kind):
            message = error({section: {field.name: {}}, "models": []})
            assert message.startswith(f"config: {section}.{field.name} = ")
            assert re.search(r"it must be (an?|one of|true or false)\b", message)


names = st.text(min_size=1, max_size=20)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(names, inner),
        max_leaves=8,
    )
)
def test_whatever_is_given_the_answer_is_a_config_or_a_config_error(value):
    for source in (
        {"models": value},
        {"server": value, "models": []},
        {"models": [{"name": "m", "backends": value}]},
    ):
        assert outcome(source).startswith(("fine", "config: "))


@given(
    st.dictionaries(
        st.text("ABCS_019", max_size=12).map(lambda s: f"ROLLTAP_{s}"),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        max_size=3,
    )
)
def test_whatever_the_environment_holds_the_answer_is_a_config_or_a_config_error(environ):
    assert outcome(None, **environ).startswith(("fine", "environment variable ROLLTAP_"))
