"""What a client asks, free of any wire format: messages, tools, sampling, the request."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(Struct, frozen=True, tag="text"):
    """A piece of text inside a message's content."""

    text: str


class ImagePart(Struct, frozen=True, tag="image"):
    """An image inside a message's content; `url` is an http(s) or a `data:` URL."""

    url: str


Content = str | list[TextPart | ImagePart] | None


class ToolCall(Struct):
    """A call the model made. `arguments` is JSON text, as the model wrote it where that was JSON."""

    name: str
    arguments: str = "{}"
    id: str = ""


class Message(Struct, kw_only=True):
    """One message of the conversation, whatever dialect it came in."""

    role: Role
    content: Content = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The content's text, parts joined without anything between them; "" where there is none."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or () if isinstance(part, TextPart))

    @property
    def images(self) -> list[ImagePart]:
        """The content's images, in order."""
        if isinstance(self.content, list):
            return [part for part in self.content if isinstance(part, ImagePart)]
        return []


class ToolChoice(Struct, frozen=True):
    """Whether the model may, must or must not call tools; `name` is set where mode is "named"."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


class Sampling(Struct, kw_only=True, omit_defaults=True):
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
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
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
    extra: dict[str, Any] = field(default_factory=dict)

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


class ChatRequest(Struct, kw_only=True):
    """One request, decoded from its dialect. Either `messages` or `prompt` says what to continue."""

    model: str = ""
    messages: list[Message] = field(default_factory=list)
    prompt: str | list[int] | None = None
    """A raw prompt (text or token ids) in place of messages."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """In OpenAI's shape, `{"type": "function", "function": {…}}`: what chat templates expect."""
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool | None = None
    sampling: Sampling = field(default_factory=Sampling)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further variables for the chat template, such as `enable_thinking`."""
    stream: bool = False
    include_usage: bool = False
    """Whether a streamed reply ends with a report of usage, where the dialect leaves that to the client."""
    echo: bool = False
    """Whether the reply's text begins with the prompt (OpenAI Completions)."""
    previous_id: str | None = None
    """The reply whose conversation `messages` go on from, where the dialect refers to it by an id."""
    keep: bool = False
    """Whether a later request may refer to this one's reply by its id."""
    num_instructions: int = 0
    """How many of the first messages hold for this request alone and are not kept with its reply."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the client said that changes no token: user ids, cache keys and the like."""
