"""Suffixes: what follows a recorded sequence, whatever the template thinks of its old messages."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rendering_conversations import (
    CALLS,
    ENDS,
    REAL_TOKENS,
    TEMPLATES,
    TEXTS,
    TOOLS,
    Renderers,
    conversations,
    family,
)
from rolltap.errors import BadRequest
from rolltap.rendering import Renderer
from rolltap.types.chat import ChatRequest, ImagePart, Message, TextPart, ToolCall

EVERY = [*TEMPLATES, *REAL_TOKENS]
SPOKEN = "spoken-words-that-nobody-else-says"
APPEND_ONLY = [
    "chatml", "qwen3", "llama3", "glm", "mistral", "plain", "answer_marks", "last_end", "spaced", "first_call"
]  # fmt: skip
RELAXED = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    return Renderers(tmp_path_factory.mktemp("tokenizers"))


def calls_of(template):
    return CALLS.get(family(template), 2)


def rendered(renderer: Renderer, messages, *, tools=TOOLS):
    return renderer.prompt(ChatRequest(messages=messages, tools=tools)).text


def after_the_last_turn(renderer, messages, kept):
    """What the template shows after the words of the last kept message, in the whole real conversation."""
    spoken = messages[kept - 1]
    if spoken.tool_calls and renderer.capabilities.shows_calls:
        calls = [
            msgspec.structs.replace(call, arguments=f'{{"city": "{SPOKEN}"}}') for call in spoken.tool_calls
        ]
        spoken = msgspec.structs.replace(spoken, content=SPOKEN if spoken.text else None, tool_calls=calls)
    else:
        spoken = Message(role="assistant", content=SPOKEN)
    text = rendered(renderer, [*messages[: kept - 1], spoken, *messages[kept:]])
    return text.rpartition(SPOKEN)[2]


def kept_counts(messages):
    return [index + 1 for index, message in enumerate(messages) if message.role == "assistant"]


@pytest.mark.parametrize("template", EVERY)
@RELAXED
@given(data=st.data())
def test_a_suffix_is_what_the_template_shows_after_the_recorded_turn(renderers, template, data):
    renderer = renderers(template)
    messages = data.draw(conversations(calls=calls_of(template)))
    kept = data.draw(st.sampled_from(kept_counts(messages)))
    ends = ENDS[family(template)]
    closer = ends.call if messages[kept - 1].tool_calls and renderer.capabilities.shows_calls else ends.answer
    tail = after_the_last_turn(renderer, messages, kept)
    closed = tail[tail.index(closer) + len(closer) :] if closer else tail

    request = ChatRequest(messages=messages, tools=TOOLS)
    cut = renderer.suffix(request, kept, renderer.encode("a")[0])
    if closer:
        assert cut.text == closer + closed
        for stop in ends.stops:
            assert renderer.suffix(request, kept, renderer.codec.id_of(stop)).text == closed
    else:
        # Nothing belongs to the turn but its own markup; the next message's opening ends it.
        markup = ends.markup if messages[kept - 1].tool_calls else ""
        assert tail == markup + cut.text
        header = ends.headers.get(messages[kept].role, "")
        for stop in ends.stops:
            suffix = renderer.suffix(request, kept, renderer.codec.id_of(stop)).text
            assert suffix == (cut.text.split(header, 1)[1] if stop == header else cut.text)
    assert renderer.decode(cut.ids) == cut.text


@pytest.mark.parametrize("template", APPEND_ONLY)
@RELAXED
@given(data=st.data())
def test_a_recorded_conversation_is_the_rendered_one(renderers, template, data):
    """Prompt, output, suffix, output, suffix …: the same text, and the same ids, as the whole rendered at once."""
    renderer, ends = renderers(template), ENDS[template]
    # Mistral's templates move the system text and the tools with each turn: append-only without them.
    plain = template == "mistral"
    messages = data.draw(conversations(calls=0 if plain else calls_of(template), system=not plain))
    tools = [] if plain else TOOLS
    request = ChatRequest(messages=messages, tools=tools)
    kept = kept_counts(messages)[0]
    record = renderer.prompt(ChatRequest(messages=messages[: kept - 1], tools=tools)).ids
    for kept in kept_counts(messages):
        after = rendered(renderer, messages[: kept + 1], tools=tools)
        produced = after[len(rendered(renderer, messages[: kept - 1], tools=tools)) :]
        closer = ends.call if messages[kept - 1].tool_calls else ends.answer
        closer = closer or ends.headers.get(messages[kept].role, "")
        own = produced[: produced.index(closer) + len(closer)] if closer else messages[kept - 1].text
        record += renderer.codec.encode_after(record[-1], own)
        following = next((i for i in kept_counts(messages) if i > kept), len(messages) + 1)
        step = msgspec.structs.replace(request, messages=messages[: following - 1])
        record += renderer.suffix(step, kept, record[-1]).ids
        whole = renderer.prompt(step)
        assert renderer.decode(record) == renderer.decode(whole.ids)
        if ends.answer:  # without a token between the turns, ids may join over the seam
            assert record == whole.ids


@pytest.mark.parametrize("template", EVERY)
@RELAXED
@given(data=st.data())
def test_a_turn_is_closed_exactly_once_however_it_ended(renderers, template, data):
    renderer = renderers(template)
    messages = data.draw(conversations(calls=calls_of(template)))
    kept = data.draw(st.sampled_from(kept_counts(messages)))
    ends = ENDS[family(template)]
    messages[kept] = msgspec.structs.replace(messages[kept], content="Next.")  # not a header spelled out
    stops = {renderer.codec.id_of(stop) for stop in ends.stops}
    last = data.draw(st.sampled_from([*sorted(stops), *renderer.encode("word {")]))
    ids = renderer.suffix(ChatRequest(messages=messages, tools=TOOLS), kept, last).ids
    first_is_end = bool(ids) and ids[0] in stops
    if not ends.answer and not ends.headers:
        assert not first_is_end
    elif ends.headers:
        # The opening of the next message is shown exactly once: recorded, or in the suffix.
        following = ends.headers[messages[kept].role]
        shown = renderer.decode(ids).lstrip().startswith(following)
        assert shown == (last != renderer.codec.id_of(following))
    else:
        assert first_is_end == (last not in stops)


@pytest.mark.parametrize("template", [name for name in EVERY if CALLS.get(family(name), 2)])
def test_a_cut_call_leaves_no_markup(renderers, template):
    """The rest of a call that was cut is not made up: the turn ends where the model stopped."""
    call = ToolCall(name="get_weather", arguments='{"city": "Paris"}', id="call00001")
    messages = [
        Message(role="user", content="Weather?"),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content="Sunny", tool_call_id=call.id, name=call.name),
    ]
    renderer = renderers(template)
    text = renderer.suffix(ChatRequest(messages=messages, tools=TOOLS), 2, renderer.encode("a")[0]).text
    assert "Paris" not in text
    assert "</tool_call>" not in text.split("Sunny")[0]
    assert text.startswith(ENDS[family(template)].call)


def test_what_a_user_spells_is_not_taken_for_the_end_of_a_turn(renderers):
    """In a template without a closer, the first closer in the text is the user's."""
    renderer = renderers("plain")
    messages = [
        Message(role="user", content="Hello"),
        Message(role="assistant", content="Hi"),
        Message(role="user", content="What does </s> mean?"),
    ]
    suffix = renderer.suffix(ChatRequest(messages=messages), 2, renderer.tokenizer.eos_token_id)
    assert suffix.text == "\n\n### user:\nWhat does </s> mean?\n\n### assistant:\n"


def test_a_call_in_a_template_without_an_end_id_ends_with_its_markup(renderers, tmp_path):
    template = tmp_path / "calling.jinja"
    template.write_text(
        "{% for m in messages %}{{ '### ' + m.role + ':\\n' + (m.content or '') }}"
        "{% for call in m.tool_calls or [] %}<call>{{ call.function.arguments | tojson }}</call>{% endfor %}"
        "{{ '\\n\\n' }}{% endfor %}{{ '### assistant:\\n' if add_generation_prompt }}"
    )
    renderer = Renderer(renderers("plain").tokenizer, chat_template=str(template))
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", tool_calls=[ToolCall(name="f", id="call00001")]),
        Message(role="tool", content="What is </s>?", tool_call_id="call00001"),
    ]
    for last in (renderer.tokenizer.eos_token_id, renderer.encode("a")[0]):
        suffix = renderer.suffix(ChatRequest(messages=messages), 2, last)
        assert suffix.text == "\n\n### tool:\nWhat is </s>?\n\n### assistant:\n"


def test_glm_keeps_what_the_model_stopped_with_when_another_message_comes(renderers):
    renderer = renderers("glm")
    observation = renderer.codec.id_of("<|observation|>")
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    assert renderer.suffix(ChatRequest(messages=messages), 2, observation).text == "<|user|>\nc<|assistant|>"


@pytest.mark.parametrize(
    "template", ["deepseek", *(name for name in TEMPLATES if name == "real-deepseek-r1")]
)
def test_deepseeks_second_call_differs_from_its_first(renderers, template):
    renderer = renderers(template)
    end = renderer.tokenizer.eos_token_id

    def after(rounds):
        messages = [Message(role="user", content="q")]
        for number in range(rounds):
            call = ToolCall(name="f", id=f"call{number:05}")
            messages.append(Message(role="assistant", tool_calls=[call]))
            messages.append(Message(role="tool", content="r", tool_call_id=call.id))
        return renderer.suffix(ChatRequest(messages=messages), len(messages) - 1, end).text

    assert renderer.dummy_prefix == "with_a_call"
    assert after(1).startswith("<｜tool▁outputs▁begin｜>")  # noqa: RUF001
    assert after(2).startswith("\n<｜tool▁output▁begin｜>")  # noqa: RUF001
    assert after(2) == after(5)


def test_a_template_that_counts_messages_is_given_all_roles(renderers, tmp_path):
    template = tmp_path / "counting.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ loop.index }} {{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    renderer = Renderer(renderers("chatml").tokenizer, chat_template=str(template))
    messages = [
        Message(role=role, content=role) for role in ("user", "assistant", "user", "assistant", "user")
    ]
    suffix = renderer.suffix(ChatRequest(messages=messages), 4, renderer.codec.id_of("<|im_end|>"))
    assert renderer.dummy_prefix == "all_roles"
    assert suffix.text == "\n<|im_start|>5 user\nuser<|im_end|>\n"


def test_a_template_that_repeats_the_tools_is_given_the_real_ones(renderers):
    renderer = renderers("mistral")
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    text = renderer.suffix(
        ChatRequest(messages=messages, tools=TOOLS), 2, renderer.tokenizer.eos_token_id
    ).text
    assert text.startswith('[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "get_weather"')


def test_a_template_that_repeats_the_system_text_is_given_the_real_one(renderers):
    renderer = renderers("mistral")
    messages = [Message(role=role, content=role) for role in ("system", "user", "assistant", "user")]
    suffix = renderer.suffix(ChatRequest(messages=messages), 3, renderer.tokenizer.eos_token_id)
    assert suffix.text == "[INST] system\n\nuser[/INST]"


def test_variables_reach_the_suffix(renderers):
    renderer = renderers("qwen3")
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    request = ChatRequest(messages=messages, template_kwargs={"enable_thinking": False})
    assert renderer.suffix(request, 2, 0).text.endswith("assistant\n<think>\n\n</think>\n\n")


@given(text=TEXTS)
@RELAXED
def test_sentencepiece_puts_no_blank_at_the_seam(renderers, text):
    renderer = renderers("mistral")
    end = renderer.tokenizer.eos_token_id
    assert [end, *renderer.codec.encode_after(end, text)] == renderer.encode("</s>" + text)


def test_old_messages_cost_nothing(renderers):
    """Long old texts are not rendered: the suffix comes out the same without them."""
    renderer = renderers("qwen3")
    new = Message(role="user", content="And now?")
    long = [Message(role=role, content="word " * 50) for _ in range(200) for role in ("user", "assistant")]
    short = [Message(role="user", content="x"), Message(role="assistant", content="y")]
    seen = []
    render = renderer.template.render
    renderer.template.render = lambda messages, **rest: (
        seen.append(len(str(messages))) or render(messages, **rest)
    )
    try:
        texts = [
            renderer.suffix(ChatRequest(messages=[*old, new]), len(old), renderer.tokenizer.eos_token_id).text
            for old in (short, long)
        ]
    finally:
        del renderer.template.render
    assert texts[0] == texts[1]
    assert seen[0] == seen[1]


def test_an_image_among_the_new_messages_is_refused_by_its_place(renderers):
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content=[TextPart("see"), ImagePart("data:image/png;base64,AA==")]),
    ]
    with pytest.raises(BadRequest, match="image parts are not supported by token backends yet") as caught:
        renderers("chatml").suffix(ChatRequest(messages=messages), 2, 0)
    assert caught.value.info.param == "messages[2].content"


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
def test_kept_must_end_with_an_assistants_message(renderers, kept):
    messages = [Message(role=role, content="x") for role in ("user", "assistant", "user")]
    with pytest.raises(ValueError, match="must count messages up to an assistant's"):
        renderers("chatml").suffix(ChatRequest(messages=messages), kept, 0)


def test_a_template_that_hides_answers_says_what_to_do(renderers, tmp_path):
    template = tmp_path / "hiding.jinja"
    template.write_text(
        "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    renderer = Renderer(renderers("chatml").tokenizer, chat_template=str(template))
    messages = [Message(role=role, content="x") for role in ("user", "assistant", "user")]
    with pytest.raises(BadRequest, match='set history = "template" for this model'):
        renderer.suffix(ChatRequest(messages=messages), 2, 0)
