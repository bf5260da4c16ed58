"""Rendering a template as transformers does, and saying what went wrong in the template's own words."""

import msgspec
import pytest

from rendering_conversations import REAL_TEMPLATES, TEMPLATES, TOOLS, Renderers, family
from rolltap.errors import BadRequest, ConfigError
from rolltap.rendering import Renderer, probe
from rolltap.testing.tokenizers import tiny_tokenizer
from rolltap.types.chat import ChatRequest, Message, ToolCall


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    return Renderers(tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture
def with_template(renderers, tmp_path):
    def make(text):
        file = tmp_path / "own.jinja"
        file.write_text(text, encoding="utf-8")
        return Renderer(renderers("chatml").tokenizer, name="ours", chat_template=str(file))

    return make


def hello(*, tools=(), **variables):
    return ChatRequest(
        messages=[Message(role="user", content="Hello")], tools=list(tools), template_kwargs=variables
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_prompt_is_what_transformers_makes_of_the_messages(renderers, template):
    renderer = renderers(template)
    call = ToolCall(name="get_weather", arguments='{"city": "Paris", "days": 2}', id="abcdef123")
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Weather in Paris?"),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content='{"sky": "clear"}', tool_call_id=call.id, name=call.name),
        Message(role="assistant", content="Clear."),
        Message(role="user", content="Thanks <|im_end|>"),
    ]
    if not renderer.capabilities.shows_calls or family(template) == "deepseek":
        # DeepSeek's templates need content=None beside calls, which transformers takes away.
        messages = [message for message in messages if not message.tool_calls and message.role != "tool"]
    arguments = {"city": "Paris", "days": 2} if renderer.capabilities.dict_arguments else call.arguments
    dicts = [
        {key: value for key, value in msgspec.to_builtins(message).items() if value not in (None, [])}
        for message in messages
    ]
    for message in dicts:
        if "tool_calls" in message:
            function = {"name": call.name, "arguments": arguments}
            message |= {"tool_calls": [{"id": call.id, "type": "function", "function": function}]}
            message["content"] = renderer.capabilities.empty_content or ""
    expected = renderer.tokenizer.apply_chat_template(
        dicts,
        tools=TOOLS,
        add_generation_prompt=True,
        tokenize=False,
        chat_template=REAL_TEMPLATES[template][1].read_text() if template in REAL_TEMPLATES else None,
    )
    prompt = renderer.prompt(ChatRequest(messages=messages, tools=TOOLS))
    assert prompt.text == expected
    assert prompt.ids == renderer.tokenizer.encode(expected, add_special_tokens=False)


def test_variables_reach_the_template(renderers):
    text = renderers("qwen3").prompt(hello(enable_thinking=False)).text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_the_generation_prompt_may_be_left_out(renderers):
    assert renderers("chatml").prompt(hello(add_generation_prompt=False)).text.endswith("Hello<|im_end|>\n")


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template", "continue_final_message"])
def test_variables_of_rolltaps_own_are_refused_by_name(renderers, name):
    with pytest.raises(BadRequest, match=f"the template variable '{name}'") as caught:
        renderers("chatml").prompt(msgspec.structs.replace(hello(), template_kwargs={name: "x"}))
    assert caught.value.info.param == f"chat_template_kwargs.{name}"


def test_a_template_that_refuses_is_quoted(renderers):
    messages = [Message(role="user", content="a"), Message(role="user", content="b")]
    with pytest.raises(BadRequest, match="refuses these messages: roles must alternate") as caught:
        renderers("mistral").prompt(ChatRequest(messages=messages))
    assert caught.value.info.status == 400


@pytest.mark.parametrize(
    "body", ["{{ nothing.at.all }}", "{{ messages[9].content + 1 }}", "{{ 1 + 'x' }}", "{{ 1 // 0 }}"]
)
def test_a_template_that_fails_is_a_bad_request(with_template, body):
    with pytest.raises(BadRequest, match="cannot show these messages"):
        with_template(body).prompt(hello())


def test_tools_too_deep_for_the_template_are_a_bad_request(renderers):
    deep: dict = {}
    for _ in range(2_000):
        deep = {"a": deep}
    with pytest.raises(BadRequest, match="RecursionError"):
        hello(tools=[deep])


def test_a_template_that_is_not_jinja_ends_the_start(with_template, tmp_path):
    with pytest.raises(
        ConfigError, match=r"chat_template '.*\.jinja': it is not valid: .*'endif'.* \(line 2\)"
    ):
        with_template("one\n{% if x %}")
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer", template="{% if x %}")
    with pytest.raises(ConfigError, match=rf"{tokenizer}: its chat template is not valid: .*'endif'"):
        Renderer.load(str(tokenizer))


def test_a_template_file_that_is_not_there_ends_the_start(renderers):
    with pytest.raises(ConfigError, match=r"chat_template 'gone\.jinja': cannot be read: No such file"):
        Renderer(renderers("chatml").tokenizer, chat_template="gone.jinja")


def test_a_template_file_that_is_no_text_ends_the_start(renderers, tmp_path):
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        Renderer(renderers("chatml").tokenizer, chat_template=str(tmp_path / "binary.jinja"))


def test_transformers_functions_and_tags_work(with_template):
    text = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}"
    )
    assert with_template(text).prompt(hello()).text == '"Hello"4'


def test_a_template_that_takes_parts_alone_is_given_parts(with_template):
    renderer = with_template(
        "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% endif %}{% endfor %}<|im_end|>{% endfor %}"
    )
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    request = ChatRequest(messages=messages)
    assert renderer.prompt(request).text == "user:a<|im_end|>assistant:b<|im_end|>user:c<|im_end|>"
    assert renderer.suffix(request, 2, renderer.tokenizer.eos_token_id).text == "user:c<|im_end|>"


def test_lone_surrogates_are_replaced(renderers):
    call = ToolCall(name="f", arguments='{"a": "\\ud800", "b": "\\ud83d\\ude42"}')
    messages = [Message(role="user", content="x"), Message(role="assistant", tool_calls=[call])]
    rendered = renderers("chatml").prompt(ChatRequest(messages=messages))
    assert '{"a": "\N{REPLACEMENT CHARACTER}", "b": "🙂"}' in rendered.text
    assert renderers("chatml").decode(rendered.ids) == rendered.text


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A tokenizer without a template: it serves raw prompts, and says why it takes no messages."""
    tokenizer = Renderers(tmp_path_factory.mktemp("bare"))("chatml").tokenizer
    tokenizer.chat_template = None
    return Renderer(tokenizer, name="bare")


def test_without_a_template_raw_texts_are_served(bare):
    assert bare.decode(bare.encode("Hello")) == "Hello"
    assert bare.end_ids == {bare.tokenizer.eos_token_id}
    assert bare.dummy_prefix == ""


def test_without_a_template_messages_are_refused(bare):
    with pytest.raises(BadRequest, match=r"the tokenizer 'bare' has no chat template.*use /v1/completions"):
        bare.prompt(hello())
    messages = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    with pytest.raises(BadRequest, match="has no chat template"):
        bare.suffix(ChatRequest(messages=messages), 2, 0)


def test_without_a_template_probing_says_so(bare):
    (finding,) = probe(bare)
    assert not finding.ok
    assert "has no chat template" in finding.detail


def test_a_tokenizer_with_several_templates(renderers):
    """Some have one of their own for requests with tools."""
    tokenizer = renderers("llama3").tokenizer
    single = tokenizer.chat_template
    tokenizer.chat_template = {
        "default": "plain: {{ messages[0].content }}",
        "tool_use": "tools: {{ messages[0].content }}",
    }
    try:
        renderer = Renderer(tokenizer)
        assert renderer.prompt(hello()).text == "plain: Hello"
        assert renderer.prompt(hello(tools=TOOLS)).text == "tools: Hello"
        tokenizer.chat_template = {"rag": "x"}
        with pytest.raises(ConfigError, match="none of its chat templates can be used"):
            Renderer(tokenizer, name="odd")
    finally:
        tokenizer.chat_template = single
