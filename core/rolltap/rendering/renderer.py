"""One model's way between messages, token ids and text."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from rolltap.errors import BadRequest
from rolltap.rendering.boundary import BoundaryFinder, TurnBoundary
from rolltap.rendering.codec import Codec
from rolltap.rendering.detokenizer import Detokenizer, make_detokenizer
from rolltap.rendering.messages import as_dict, check_content, name_calls, place_systems
from rolltap.rendering.suffix import SuffixRenderer
from rolltap.rendering.template import ChatTemplate
from rolltap.rendering.template_capabilities import TemplateCapabilities, find_capabilities
from rolltap.rendering.tokenizer import generation_eos_ids, load_tokenizer
from rolltap.types.chat import ChatRequest


class Rendered(Struct, frozen=True):
    """A prompt, or the part of it that is new, as text and as the ids it is sent as."""

    text: str
    ids: list[int]


class Renderer:
    """Renders and tokenizes for one model. Made once, at start; safe to use from several threads.

    Rendering and encoding take time in proportion to the text they are given; long texts belong off the event loop.
    """

    def __init__(
        self, tokenizer: Any, *, name: str = "", chat_template: str = "", eos_ids: Iterable[int] = ()
    ) -> None:
        """Learn how the tokenizer's chat template works, by rendering messages of rolltap's own.

        `name` is what errors call the tokenizer; `chat_template` a .jinja file to use in place of its own template;
        `eos_ids` the end ids of the model beside the tokenizer's.
        """
        self.tokenizer = tokenizer
        self.codec = Codec(tokenizer)
        self.template = ChatTemplate(tokenizer, name=name, file=chat_template)
        eos = tokenizer.eos_token_id
        self.stop_ids: frozenset[int] = frozenset(eos_ids if eos is None else [eos, *eos_ids])
        """The ids at which an engine stops by itself: the tokenizer's end id and the model's."""
        self._suffixes: SuffixRenderer | None = None
        self.boundary = TurnBoundary(end_ids=self.stop_ids, next_turn_ids=frozenset())
        self.capabilities = TemplateCapabilities()
        """What the chat template takes and shows."""
        if not self.template.missing:
            self.capabilities = find_capabilities(self.template)
            finder = BoundaryFinder(self.template, self.capabilities, self.codec, self.stop_ids)
            self.boundary = finder.find()
            self._suffixes = SuffixRenderer(self.template, self.capabilities, finder, self.boundary)

    @classmethod
    def load(cls, tokenizer: str, *, chat_template: str = "") -> "Renderer":
        """The renderer for a tokenizer's hub id or folder. Raises `ConfigError` where one of the two is wrong."""
        loaded = load_tokenizer(tokenizer)
        return cls(loaded, name=tokenizer, chat_template=chat_template, eos_ids=generation_eos_ids(tokenizer))

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end what a model produced. They are part of the record, and not shown at the end of a text."""
        return self.boundary.ids

    @property
    def dummy_prefix(self) -> str:
        """What a suffix is rendered behind, in place of the old messages: the name of a dummy prefix."""
        return "" if self._suffixes is None else self._suffixes.dummy_prefix.__name__

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text; special tokens that it spells are recognised.

        With `add_special_tokens`, as for a raw prompt: with the BOS that some tokenizers put in front.
        """
        return self.codec.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens shown."""
        return self.codec.decode(ids)

    def token_bytes(self, index: int) -> bytes:
        """The bytes of one token, as the `bytes` of a client's logprobs."""
        return self.codec.token_bytes(index)

    def prompt(self, request: ChatRequest) -> Rendered:
        """The whole prompt of a request, from its messages.

        Raises `BadRequest` where the template, or a token backend, does not take them.
        """
        check_content(request.messages)
        if self._suffixes is None:
            raise BadRequest(self.template.refusal)
        placed = place_systems(name_calls(request.messages, self.capabilities), self.capabilities)
        messages = [as_dict(message, self.capabilities) for message in placed]
        text = self.template.render(messages, tools=request.tools, variables=request.template_kwargs)
        return Rendered(text, self.codec.encode(text))

    def suffix(self, request: ChatRequest, kept: int, last_id: int) -> Rendered:
        """What to append to a recorded sequence to make it the request's prompt.

        :param request: the request; `messages[:kept]` are what the sequence covers, the last of them the assistant's.
        :param last_id: the sequence's last id. Where it ends the turn, the suffix begins behind the end; where the
            turn was cut (by its length or a stop string), with the end. So a turn is closed exactly once.

        The ids of the sequence stand, whatever the template would make of the old messages. Raises `BadRequest` as
        `prompt` does.
        """
        if not 0 < kept <= len(request.messages) or request.messages[kept - 1].role != "assistant":
            raise ValueError(f"kept={kept} must count messages up to an assistant's")
        check_content(request.messages[kept:], kept)
        if self._suffixes is None:
            raise BadRequest(self.template.refusal)
        text = self._suffixes.text(request, kept, last_id)
        return Rendered(text, self.codec.encode_after(last_id, text))

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A detokenizer for one choice. Turn-ending ids at the end are not shown, special tokens only if wanted."""
        skipped = self.codec.special_ids if skip_special_tokens else frozenset()
        return make_detokenizer(self.codec, skipped, self.end_ids)
