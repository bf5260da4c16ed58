"""Answers that the client has begun: the prompt ends with its words, and the model goes on from there."""

import secrets

import msgspec

from rolltap.errors import BadRequest
from rolltap.rendering import Rendered, Renderer
from rolltap.types.chat import ChatRequest, Message

_MARK = f"begun{secrets.token_hex(8)}"
"""Stands where the model goes on."""


def split_begun(request: ChatRequest) -> tuple[tuple[Message, ...], Message | None]:
    """The request's conversation, and the beginning of the answer where the client has given one."""
    if request.continues and request.messages:
        return request.messages[:-1], request.messages[-1]
    return request.messages, None


def begun_prompt(request: ChatRequest, renderer: Renderer, kept: int, last_id: int | None) -> Rendered:
    """What follows the recorded messages, up to the last word of the begun answer, the request's last message.

    `kept` messages are recorded, in a sequence that ends in `last_id`; None where nothing is. The template shows the
    answer as it shows one in a history: whatever it puts in front of it, such as closed thinking, is there.
    """
    begun = request.messages[-1]
    marked = msgspec.structs.replace(begun, content=begun.text + _MARK)
    asked = msgspec.structs.replace(
        request,
        messages=(*request.messages[:-1], marked),
        template_kwargs={**request.template_kwargs, "add_generation_prompt": False},
    )
    rendered = renderer.prompt(asked) if last_id is None else renderer.suffix(asked, kept, last_id)
    text, found, _ = rendered.text.partition(_MARK)
    if not found:
        raise BadRequest(
            "the model's chat template does not show an answer that stands last, so the model can't go on from it",
            param=f"messages[{len(request.messages) - 1}]",
        )
    ids = renderer.encode(text) if last_id is None else renderer.codec.encode_after(last_id, text)
    return Rendered(text, ids)


def whole_answer(begun: Message | None, said: Message) -> Message:
    """An answer with its beginning, as the client will send it back."""
    if begun is None:
        return said
    return msgspec.structs.replace(
        said,
        content=begun.text + said.text,
        reasoning="".join(filter(None, [begun.reasoning, said.reasoning])) or None,
        extra={**begun.extra, **said.extra},
    )
