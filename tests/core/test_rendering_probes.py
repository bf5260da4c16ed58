"""What is found out about a template at load: its form, its turns' ends, and what `rolltap check` says."""

import pytest

from rendering_conversations import ENDS, TEMPLATES, Renderers, family
from rolltap.rendering import Renderer, probe
from rolltap.types.chat import ChatRequest, Message, ToolCall

FORMS = {
    # arguments as dicts, shown at all, content beside calls, systems
    "chatml": (True, True, None, "anywhere"),
    "qwen3": (True, True, None, "anywhere"),
    "llama3": (True, True, None, "anywhere"),
    "glm": (True, True, "", "anywhere"),
    "deepseek": (False, True, None, "first"),
    "mistral": (True, True, None, "first"),
    "harmony": (True, True, None, "anywhere"),
    "plain": (True, False, "", "anywhere"),
    "answer_marks": (True, True, None, "anywhere"),
    "last_end": (True, True, None, "anywhere"),
    "spaced": (True, False, "", "anywhere"),
    "first_call": (True, True, "", "anywhere"),
    "real-smollm2": (True, False, "", "anywhere"),
}

LOSE_THINKING = {"qwen3", "harmony", "real-qwen3", "real-glm-4.6"}
"""Templates that show an answer's thinking until a next question comes."""


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    return Renderers(tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture
def with_template(renderers, tmp_path):
    def make(text):
        (tmp_path / "own.jinja").write_text(text, encoding="utf-8")
        return Renderer(renderers("chatml").tokenizer, chat_template=str(tmp_path / "own.jinja"))

    return make


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_ends_of_turns_are_found(renderers, template):
    renderer, name = renderers(template), family(template)
    assert {renderer.codec.text_of(index) for index in renderer.end_ids} == ENDS[name].stops
    assert {renderer.codec.text_of(index) for index in renderer.boundary.next_turn_ids} == set(
        ENDS[name].headers.values()
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_form_is_found(renderers, template):
    form = renderers(template).capabilities
    expected = FORMS.get(template, FORMS[family(template)])
    assert (form.dict_arguments, form.shows_calls, form.empty_content, form.systems) == expected


def test_forms_of_single_families(renderers):
    assert [name for name in TEMPLATES if renderers(name).capabilities.short_call_ids] == ["mistral"]
    assert [name for name in TEMPLATES if renderers(name).capabilities.developer] == ["harmony"]
    assert [name for name in TEMPLATES if not renderers(name).capabilities.text_with_calls_and_reasoning] == [
        "harmony"
    ]
    takes_text = {family(name) for name in TEMPLATES if renderers(name).capabilities.text_arguments}
    assert takes_text == {"chatml", "qwen3", "deepseek"}


@pytest.mark.parametrize(
    ("shown", "as_dict"),
    [
        ("{{ call.function.arguments }}", False),  # Python's spelling of a dict is no JSON
        ("{{ call.function.arguments | tojson }}", True),  # JSON in a JSON string is not what it was
        ("{% for key in call.function.arguments %}{{ call.function.arguments[key] }}{% endfor %}", True),
    ],
)
def test_arguments_are_given_as_the_template_shows_them_right(with_template, shown, as_dict):
    renderer = with_template(
        "{% for m in messages %}<|im_start|>{{ m.content or '' }}"
        "{% for call in m.tool_calls or [] %}" + shown + "{% endfor %}<|im_end|>{% endfor %}"
    )
    assert renderer.capabilities.dict_arguments == as_dict


def test_a_template_without_systems_is_given_their_text_as_the_users(with_template):
    renderer = with_template(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no systems') }}{% endif %}"
        "<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    )
    messages = [Message(role="system", content="Be brief."), Message(role="user", content="Hello")]
    assert (
        renderer.prompt(ChatRequest(messages=messages)).text
        == "<|im_start|>user: Be brief.\n\nHello<|im_end|>"
    )


def test_a_system_message_in_the_middle_is_shown_where_it_stands(renderers):
    renderer = renderers("deepseek")
    messages = [
        Message(role=role, content=text)
        for role, text in (("system", "S1"), ("user", "U1"), ("assistant", "A1"))
    ]
    later = [Message(role="system", content="S2"), Message(role="user", content="U2")]
    request = ChatRequest(messages=[*messages, *later])
    assert renderer.prompt(request).text.endswith("<｜User｜>S2\n\nU2<｜Assistant｜><think>\n")  # noqa: RUF001
    suffix = renderer.suffix(request, 3, renderer.tokenizer.eos_token_id)
    assert suffix.text == "<｜User｜>S2\n\nU2<｜Assistant｜><think>\n"  # noqa: RUF001


def test_ids_that_mistral_refuses_are_made_short(renderers):
    call = ToolCall(name="f", id="call_0123456789abcdef")
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content="b", tool_call_id=call.id),
    ]
    text = renderers("mistral").prompt(ChatRequest(messages=messages)).text
    assert call.id not in text
    assert '"content": "b"' in text


def test_an_end_that_was_added_but_is_not_special_is_found(tmp_path):
    made = Renderers(tmp_path)("deepseek")
    (tmp_path / "own.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<think>\n{% endfor %}", encoding="utf-8"
    )
    renderer = Renderer(made.tokenizer, chat_template=str(tmp_path / "own.jinja"))
    assert {renderer.codec.text_of(index) for index in renderer.boundary.end_ids} >= {"<think>"}


def findings(renderer):
    return {finding.name: (finding.ok, finding.detail) for finding in probe(renderer)}


@pytest.mark.parametrize("template", TEMPLATES)
def test_probing_says_what_holds_for_each_template(renderers, template):
    found, name = findings(renderers(template)), family(template)
    assert found["turn boundary"][0]
    assert found["append-only, plain"][0] == (name not in ("deepseek", "mistral"))
    assert found["append-only, thinking"][0] == (template not in LOSE_THINKING)
    assert found["tools"][0] == (name not in ("deepseek", "plain", "spaced") and template != "real-smollm2")
    assert found["second turn"][0]
    assert found["tool results"][0] == (name != "spaced")
    assert found["parallel calls"][0] == (name not in ("first_call", "harmony", "llama3"))
    assert ("opens the thinking" in found["generation prompt"][1]) == (name == "deepseek")
    assert ("adds special tokens" in found["BOS"][1]) == (name in ("llama3", "deepseek", "mistral"))


def test_probing_names_the_ids(renderers):
    renderer = renderers("glm")
    detail = findings(renderer)["turn boundary"][1]
    for token in ("<|endoftext|>", "<|user|>", "<|observation|>"):
        assert f"{token} ({renderer.codec.id_of(token)})" in detail


def test_probing_says_what_ends_no_turn(with_template, renderers):
    tokenizer = renderers("chatml").tokenizer
    eos, tokenizer.eos_token = tokenizer.eos_token, None
    try:
        ok, detail = findings(with_template("{% for m in messages %}{{ m.content }}\n{% endfor %}"))[
            "turn boundary"
        ]
    finally:
        tokenizer.eos_token = eos
    assert not ok
    assert "no token ends a turn" in detail


def test_probing_a_template_that_refuses_everything(with_template):
    found = findings(with_template("{{ raise_exception('no') }}"))
    assert not found["generation prompt"][0]
    assert not found["tools"][0]


def test_probing_says_what_a_template_refuses(with_template):
    found = findings(
        with_template(
            "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content.x.y }}{% endif %}{{ m.content }}{% endfor %}"
        )
    )
    assert not found["second turn"][0]
    assert "has no attribute 'x'" in found["second turn"][1]
    assert found["tool results"] == (
        False, "the template refuses a tool's result: requests with one are answered with a 400"
    )  # fmt: skip


def test_the_opening_of_an_answer_is_found_where_the_last_message_ends_in_another_way(renderers):
    assert findings(renderers("last_end"))["generation prompt"] == (True, "'<|assistant|>'")


def test_probing_says_where_no_answer_is_opened(renderers):
    assert findings(renderers("mistral"))["generation prompt"] == (True, "none: the template opens no answer")
