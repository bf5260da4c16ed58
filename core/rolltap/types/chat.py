"""What a client asks, free of any wire format: messages, tools, sampling, the request."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from rolltap.types.frozen import EMPTY, FrozenDict, freeze_fields, frozen

Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(Struct, frozen=True, tag="text", omit_defaults=True, gc=False):
    """A piece of text inside a message's content."""

    text: str
    extra: dict[str, Any] = EMPTY
    """What the client wrote beside it, such as `cache_control`: for an upstream of the same kind."""

    def __post_init__(self) -> None:
        """Freeze `extra`."""
        freeze_fields(self, values=("extra",))


class ImagePart(Struct, frozen=True, tag="image", omit_defaults=True, gc=False):
    """An image inside a message's content; `url` is an http(s) or a `data:` URL."""

    url: str
    extra: dict[str, Any] = EMPTY
    """What the client wrote beside it, such as `detail`."""

    def __post_init__(self) -> None:
        """Freeze `extra`."""
        freeze_fields(self, values=("extra",))


class FilePart(Struct, frozen=True, tag="file", omit_defaults=True, kw_only=True, gc=False):
    """A document or a recording inside a message's content."""

    media_type: str
    """Such as "application/pdf" or "audio/wav"; "" where the client did not say."""
    url: str = ""
    """An http(s) or a `data:` URL; "" where the file is known to the upstream by an id in `extra`."""
    name: str = ""
    extra: dict[str, Any] = EMPTY
    """What the client wrote beside it."""

    def __post_init__(self) -> None:
        """Freeze `extra`."""
        freeze_fields(self, values=("extra",))


Part = TextPart | ImagePart | FilePart
Content = str | tuple[Part, ...] | None


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """A call the model made. `arguments` is JSON text, as the model wrote it where that was JSON."""

    name: str
    arguments: str = "{}"
    id: str = ""
    extra: dict[str, Any] = EMPTY
    """What the upstream wrote beside it, such as a signature that it wants back."""

    def __post_init__(self) -> None:
        """Freeze `extra`."""
        freeze_fields(self, values=("extra",))


class Message(Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """One message of the conversation, whatever dialect it came in. A list given for a tuple is made one."""

    role: Role
    content: Content = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: dict[str, Any] = EMPTY
    """Further fields of the message, for an upstream that knows them. No template and no match looks at them."""

    def __post_init__(self) -> None:
        """Keep lists and dicts from being changed behind the message's back."""
        freeze_fields(self, tuples=("tool_calls", "content"), values=("extra",))

    @property
    def text(self) -> str:
        """The content's text, parts joined without anything between them; "" where there is none."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or () if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The content's images, in order."""
        if isinstance(self.content, tuple):
            return tuple(part for part in self.content if isinstance(part, ImagePart))
        return ()

    @property
    def files(self) -> tuple[FilePart, ...]:
        """The content's documents and recordings, in order."""
        if isinstance(self.content, tuple):
            return tuple(part for part in self.content if isinstance(part, FilePart))
        return ()


class ToolChoice(Struct, frozen=True):
    """Whether the model may, must or must not call tools; `name` is set where mode is "named"."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


class Sampling(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How to sample. None means: not asked for, the backend's own default applies. The ranges hold for what clients
    send; whoever makes one in Python is not checked.

    `extra` holds parameters that rolltap has no name for; a backend that takes them says so in its `parameters`.
    """

    n: Annotated[int, Meta(ge=1, le=4096)] = 1
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[int, float] | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    """How many alternatives to report for each token; 0: the sampled token's logprob alone. None: not reported
    to the client (the record has the sampled token's in any case)."""
    response_format: dict[str, Any] | None = None
    """Structured output in OpenAI's shape: `{"type": "json_schema", "json_schema": {…}}` and the like."""
    extra: dict[str, Any] = EMPTY

    def __post_init__(self) -> None:
        """Freeze what was given as lists and dicts."""
        freeze_fields(
            self, tuples=("stop", "stop_token_ids"), values=("logit_bias", "response_format", "extra")
        )

    def names(self) -> set[str]:
        """The names of the parameters that are set, those in `extra` included; `n` only where it is not 1."""
        named = {
            name
            for name in self.__struct_fields__
            if name not in {"n", "extra"} and getattr(self, name) is not None
        }
        if self.n != 1:
            named.add("n")
        return named | set(self.extra)


class ChatRequest(Struct, kw_only=True, frozen=True):
    """One request, decoded from its dialect. Either `messages` or `prompt` says what to continue.

    Nothing of it can be changed: `msgspec.structs.replace(request, model="other")` makes another one. Lists and dicts
    that it is made with are frozen.
    """

    model: str = ""
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    """A raw prompt (text or token ids) in place of messages."""
    more_prompts: tuple[str | tuple[int, ...], ...] = ()
    """Further raw prompts of the same request, each answered by a call of its own; choices are numbered through."""
    tools: tuple[dict[str, Any], ...] = ()
    """In OpenAI's shape, `{"type": "function", "function": {…}}`: what chat templates expect."""
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool | None = None
    sampling: Sampling = field(default_factory=Sampling)
    template_kwargs: dict[str, Any] = EMPTY
    """Further variables for the chat template, such as `enable_thinking`."""
    stream: bool = False
    include_usage: bool = False
    """Whether a streamed reply ends with a report of usage, where the dialect leaves that to the client."""
    continuous_usage: bool = False
    """Whether each delta of a streamed reply says how many tokens there have been so far."""
    return_token_ids: bool = False
    """Whether the client wants the ids of the prompt and of each choice, which token backends have."""
    echo: bool = False
    """Whether the reply's text begins with the prompt (OpenAI Completions)."""
    previous_id: str | None = None
    """The reply whose conversation `messages` go on from, where the dialect refers to it by an id."""
    keep: bool = False
    """Whether a later request may refer to this one's reply by its id."""
    num_instructions: int = 0
    """How many of the first messages hold for this request alone and are not kept with its reply."""
    continues: bool = False
    """Whether the last message is the beginning of the answer: the model goes on from its last word."""
    client_fields: dict[str, Any] = EMPTY
    """What the client said of itself that changes no token, such as `user` and `metadata`."""
    upstream: dict[str, Any] = EMPTY
    """What only an upstream provider has a use for, such as `prompt_cache_key` and `service_tier`: passed through."""
    state: Any = None
    """The converter's own: what `encode` and `stream` must know of the request beyond the neutral fields."""

    def __post_init__(self) -> None:
        """Freeze what was given as lists and dicts."""
        freeze_fields(
            self, tuples=("messages", "prompt"), values=("template_kwargs", "client_fields", "upstream")
        )
        if self.tools and not (type(self.tools) is tuple and type(self.tools[0]) is FrozenDict):
            force_setattr(self, "tools", tuple(frozen(tool) for tool in self.tools))
        elif type(self.tools) is not tuple:
            force_setattr(self, "tools", ())
