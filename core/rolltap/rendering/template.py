"""Rendering a model's chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rolltap.errors import BadRequest, ConfigError
from rolltap.wording import well_formed

_RESERVED = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "conversations",
        "messages",
        "return_assistant_tokens_mask",
        "tools",
    }
)
_PROBE = "a user's words"


class ChatTemplate:
    """A chat template, rendered as transformers renders it: same filters, functions, tags and sandbox."""

    def __init__(self, tokenizer: Any, *, name: str, file: str = "") -> None:
        """Use the tokenizer's own template or, where `file` is given, that .jinja file's.

        Raises `ConfigError` for a file that is not there or a template that is not valid Jinja.
        """
        # Not tokenizer.apply_chat_template: it drops keys whose value is None, which some templates ask for.
        from transformers.utils.chat_template_utils import render_jinja_template

        # Annotated as returning a string, it returns the texts and the spans that were generated.
        self._render: Any = render_jinja_template
        self._tokenizer = tokenizer
        self._name = name
        self._override = _read(file) if file else None
        self._where = f"chat_template {file!r}: it" if file else f"{name}: its chat template"
        self._special_tokens = dict(tokenizer.special_tokens_map)
        self.refusal = (
            f"the tokenizer {name!r} has no chat template, so this model cannot take messages: set its "
            "chat_template to a .jinja file, or use /v1/completions"
        )
        self.missing = self._override is None and not tokenizer.chat_template
        self._in_parts = False
        if not self.missing:
            self._in_parts = not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    def source(self, *, tools: bool) -> str:
        """The template's text; a tokenizer may have another one for requests with tools."""
        if self.missing:
            raise BadRequest(self.refusal)
        if self._override is not None:
            return self._override
        try:
            text: str = self._tokenizer.get_chat_template(None, [{}] if tools else None)
        except ValueError as error:
            raise ConfigError(f"{self._name}: none of its chat templates can be used: {error}") from error
        return text

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """The conversation's text, with the opening of the assistant's next turn unless that is not wanted.

        `variables` are passed to the template; `add_generation_prompt` among them wins. Raises `BadRequest` with
        the template's own words where it refuses the messages.
        """
        import jinja2  # noqa: PLC0415 - not needed before transformers is

        variables = variables or {}
        if reserved := sorted(_RESERVED.intersection(variables)):
            raise BadRequest(
                f"the template variable {reserved[0]!r} is rolltap's own and cannot be set",
                param=f"chat_template_kwargs.{reserved[0]}",
            )
        source = self.source(tools=bool(tools))
        if self._in_parts:
            messages = [_in_parts(message) for message in messages]
        known: dict[str, Any] = {
            **self._special_tokens,
            "add_generation_prompt": generation_prompt,
            **variables,
        }
        try:
            texts, _ = self._render(
                [list(messages)], tools=list(tools) or None, chat_template=source, **known
            )
        except jinja2.TemplateSyntaxError as error:
            line = f" (line {error.lineno})" if error.lineno else ""
            raise ConfigError(f"{self._where} is not valid: {error.message}{line}") from error
        except jinja2.TemplateError as error:
            verb = "refuses" if type(error) is jinja2.TemplateError else "cannot show"
            raise BadRequest(
                f"the model's chat template {verb} these messages: {error}", param="messages"
            ) from error
        except Exception as error:  # a template is somebody's program, given a client's messages
            raise BadRequest(
                f"the model's chat template cannot show these messages: {type(error).__name__}: {error}",
                param="messages",
            ) from error
        return well_formed(texts[0])

    def _shows(self, content: Any) -> bool:
        """Whether a user's content is shown in this form: templates of vision models may take parts alone."""
        messages = [{"role": "user", "content": content}]
        try:
            # Both of a tokenizer's templates, if it has one for requests with tools: both must be valid.
            return all(_PROBE in self.render(messages, tools=[{}] * count) for count in range(2))
        except BadRequest:
            return False


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template {file!r}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"chat_template {file!r}: is not UTF-8 text") from error
