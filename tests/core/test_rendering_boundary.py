"""The seam between an assistant's turn and what follows, for templates of every make."""

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rendering_conversations import TOOLS
from rolltap.rendering import Renderer
from rolltap.rendering.tokenizer import load_tokenizer
from rolltap.testing.tokenizers import tiny_tokenizer
from rolltap.types.chat import ChatRequest, Message, ToolCall

SPECIAL = [
    "<eos>",
    "<end>",
    "<s>",
    "<A>",
    "</A>",
    "<R>",
    "</R>",
    "<start>",
    "<user>",
    "<assistant>",
    "<tool>",
]
USER = Message(role="user", content="Hello")
NEXT = Message(role="user", content="What do <end> and <eos> mean?")


CALLS = [ToolCall(name="f", id="call00001"), ToolCall(name="g", id="call00002")]
RESULTS = [
    Message(role="tool", content=f"r{number}", tool_call_id=call.id, name=call.name)
    for number, call in enumerate(CALLS)
]
CALLED = Message(role="assistant", tool_calls=CALLS)


class Style(NamedTuple):
    """How a template made for a test writes its messages."""

    closes: str
    """When the end token follows an answer: "always", "last", "unless last", or "never"."""
    end: str
    """The end token; only "<eos>" is known to the model."""
    marked: bool
    """Whether "<R>" and "</R>" stand around an answer."""
    closes_users: bool
    """Whether the end token follows a user's message."""
    space: tuple[str, str]
    """White space before the end token, and after it."""
    header: str
    """What opens a message: a special token of its role, one for all roles, or words."""
    stops_at_headers: bool
    """Whether the model stops by the next message's header too."""
    bos: str

    def template(self) -> str:
        condition = {
            "always": "true", "last": "loop.last and not add_generation_prompt",
            "unless last": "not loop.last or add_generation_prompt", "never": "false",
        }[self.closes]  # fmt: skip
        marks = ("<R>", "</R>") if self.marked else ("", "")
        before, after = (repr(space) for space in self.space)
        return (
            f"{{{{- {self.bos!r} }}}}{{%- for m in messages %}}{{{{- {self.opening('X')!r}.replace('X', m.role) }}}}"
            f"{{%- if m.role == 'assistant' %}}{{{{- {marks[0]!r} + (m.content or '') }}}}"
            "{%- for call in m.tool_calls or [] %}{{- '(' + call.function.arguments | tojson + ')' }}{%- endfor %}"
            f"{{{{- {marks[1]!r} }}}}"
            f"{{{{- {before} + {self.end!r} if {condition} else '' }}}}"
            f"{{%- else %}}{{{{- m.content + ({self.end!r} if {self.closes_users} else '') }}}}{{%- endif %}}"
            f"{{{{- {after} }}}}{{%- endfor %}}"
            f"{{{{- {self.opening('assistant')!r} if add_generation_prompt else '' }}}}"
        )

    def opening(self, role: str) -> str:
        return {"own": f"<{role}>", "shared": f"<start>{role}\n", "words": f"### {role}:\n"}[self.header]


STYLES = st.builds(
    Style,
    st.sampled_from(["always", "last", "unless last", "never"]),
    st.sampled_from(["<eos>", "<end>"]),
    st.booleans(),
    st.booleans(),
    st.tuples(st.sampled_from(["", "\n"]), st.sampled_from(["", "\n", "\n\n    "])),
    st.sampled_from(["own", "shared", "words"]),
    st.booleans(),
    st.sampled_from(["", "<s>", "<eos>"]),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), special_tokens=SPECIAL, eos_token="<eos>")
    return load_tokenizer(str(folder))


@pytest.fixture(scope="module")
def with_template(tokenizer, tmp_path_factory):
    file = tmp_path_factory.mktemp("template") / "own.jinja"

    def make(text, *stops):
        file.write_text(text, encoding="utf-8")
        ids = tokenizer.convert_tokens_to_ids(list(stops))
        return Renderer(tokenizer, chat_template=str(file), eos_ids=ids)

    return make


def after(renderer, messages, last, *, tools=()):
    """What follows a record of the messages up to the last assistant's that ends in the token `last`."""
    kept = max(index for index, message in enumerate(messages) if message.role == "assistant") + 1
    last_id = renderer.codec.id_of(last)
    last_id = renderer.encode(last)[-1] if last_id is None else last_id
    return renderer.suffix(ChatRequest(messages=messages, tools=list(tools)), kept, last_id).text


@pytest.mark.parametrize("calls", [False, True])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(style=STYLES)
def test_a_turn_is_closed_once_in_templates_of_every_make(with_template, calls, style):
    stops = ["<user>", "<tool>", "<start>"] if style.stops_at_headers else []
    renderer = with_template(style.template(), *stops)
    answer, following, words = Message(role="assistant", content="Hi"), NEXT, "Hi"
    if calls:
        answer, following, words = CALLED, RESULTS[0], "({})({})"
    messages = [USER, answer, following]
    closing = style.end if style.closes in ("always", "unless last") else ""
    mark = "</R>" if style.marked else ""
    rest = style.space[1] + style.opening(following.role) + following.text
    rest += (style.end if style.closes_users else "") + style.space[1] + style.opening("assistant")
    whole = renderer.prompt(ChatRequest(messages=messages)).text
    assert whole.endswith(words + mark + (style.space[0] if closing else "") + closing + rest)

    # The model ended its turn: nothing before the header is repeated, nothing of it is lost.
    assert after(renderer, messages, "<eos>") == rest
    # It was cut: the turn is closed as the template closes it, without the markup of its own before that.
    assert after(renderer, messages, "word") == (closing or mark) + rest
    # It stopped by what opens the next message.
    opener = {"own": f"<{following.role}>", "shared": "<start>"}.get(style.header)
    if opener and not closing and not mark:
        assert after(renderer, messages, opener) == rest.split(opener, 1)[1]


MARKED = (
    "{% for m in messages %}{{ '<A>' + m.role if m.role != 'assistant' else '<A><R>' }}{{ m.content }}"
    "{{ '</R>' if m.role == 'assistant' }}</A>{% endfor %}{{ '<A>' if add_generation_prompt }}"
)


def test_marks_of_an_answer_before_the_end_are_not_the_end(with_template):
    renderer = with_template(MARKED, "</A>")
    messages = [USER, Message(role="assistant", content="Hi"), Message(role="user", content="And now?")]
    rest = "<A>userAnd now?</A><A>"
    assert after(renderer, messages, "</A>") == rest
    assert after(renderer, messages, "word") == "</A>" + rest
    assert after(renderer, messages, "</R>") == "</A>" + rest
    assert renderer.codec.id_of("</R>") not in renderer.end_ids


def test_roles_that_open_the_next_message_are_not_ends_of_this_one(with_template):
    renderer = with_template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{{ '<assistant>' if add_generation_prompt else eos_token }}"
    )
    messages = [USER, Message(role="assistant", content="Hi"), Message(role="user", content="And now?")]
    assert after(renderer, messages, "<eos>") == "<user>And now?<assistant>"
    assert after(renderer, messages, "word") == "<user>And now?<assistant>"


CALLING = (
    "{% for m in messages %}<start>{{ m.role }}\n"
    "{% if m.tool_calls %}{CONTENT}{% for c in m.tool_calls %}{CALL}{% endfor %}{% elif SHOWN %}{{ m.content }}{% endif %}"
    "<end>\n{% endfor %}{{ '<start>assistant\n' if add_generation_prompt }}"
)
CALL = "<R>{{ c.function.name }} {{ c.function.arguments | tojson }}</R>"


def calling(*, content="", call=CALL, shown="true"):
    return CALLING.replace("{CONTENT}", content).replace("{CALL}", call).replace("SHOWN", shown)


@pytest.mark.parametrize(
    ("content", "empty"),
    [
        ("{{ m.content.split('x')[-1] if not loop.last }}", ""),
        ("{{ m.content.split('x')[-1] if loop.last }}", ""),
        ("{% for part in m.content if not loop.last %}{{ part.text + '' }}{% endfor %}", ""),
        ("{{ m.content[0].text + '' if not loop.last }}", [{"type": "text", "text": ""}]),
        ("{{ 1 // 0 if m.content is not none }}", None),
        ("{{ '' if m.content is none or not loop.last else m.content + 1 }}", None),
    ],
)
def test_no_content_is_given_in_the_form_that_is_taken_in_every_place(with_template, content, empty):
    renderer = with_template(calling(content=content))
    assert renderer.capabilities.empty_content == empty
    for more in ([], [Message(role="assistant", content="Hi"), NEXT]):
        request = ChatRequest(messages=[USER, CALLED, *RESULTS, *more], tools=TOOLS)
        assert "r0<end>\n<start>tool\nr1<end>\n" in renderer.prompt(request).text
    assert after(renderer, [USER, CALLED, *RESULTS], "<end>") == (
        "\n<start>tool\nr0<end>\n<start>tool\nr1<end>\n<start>assistant\n"
    )


@pytest.mark.parametrize(
    ("call", "parallel"),
    [
        (CALL, "shown"),
        ("{% if loop.first %}" + CALL + "{% endif %}", "first"),
        ("{% if loop.last %}" + CALL + "{% endif %}", "first"),
        ("{% if loop.length > 1 %}{{ raise_exception('one at a time') }}{% endif %}" + CALL, "refused"),
    ],
)
def test_recorded_parallel_calls_go_on_whatever_the_template_shows_of_them(with_template, call, parallel):
    renderer = with_template(calling(call=call))
    assert renderer.capabilities.parallel_calls == parallel
    for early in ([], [USER, CALLED, *RESULTS, Message(role="assistant", content="Hi")]):
        rest = after(renderer, [*early, USER, CALLED, *RESULTS], "<end>", tools=TOOLS)
        assert rest == "\n<start>tool\nr0<end>\n<start>tool\nr1<end>\n<start>assistant\n"


@pytest.mark.parametrize("shown", ["true", "m.role != 'tool'"])
def test_it_is_known_whether_results_of_tools_are_shown(with_template, shown):
    renderer = with_template(calling(shown=shown))
    assert renderer.capabilities.shows_tool_results == (shown == "true")
    assert ("r0" in after(renderer, [USER, CALLED, *RESULTS], "<end>")) == (shown == "true")


def test_what_a_later_message_spells_is_not_taken_for_the_end_where_the_first_is_hidden(with_template):
    renderer = with_template(
        "{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content or '' }}{% endfor %}<assistant>"
    )
    rest = after(renderer, [USER, CALLED, *RESULTS, NEXT], "<eos>")
    assert rest == f"<user>{NEXT.content}<assistant>"
