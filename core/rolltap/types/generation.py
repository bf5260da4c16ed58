"""What comes back, free of any wire format: token deltas, chat deltas, the finished completion."""

from typing import Any, Literal

from msgspec import Struct, field

from rolltap.types.chat import ImagePart, Sampling, ToolCall
from rolltap.types.frozen import freeze_fields

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "abort"]


class Usage(Struct, kw_only=True):
    """Token counts of one request. `cached_tokens` is the part of `prompt_tokens` that the engine had cached."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class TokenRequest(Struct, kw_only=True, frozen=True):
    """What a token backend is asked: to generate `sampling.n` choices after `prompt_ids`."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stream: bool = True
    """Whether anybody reads the tokens as they come. Where nobody does, one delta a choice is enough."""
    session: str = ""
    """The session's id; "" for a request without one."""
    request_id: str = ""
    """Names the request in logs; the same in the reply's `x-request-id`."""
    priority: int = 0
    """Lower is sooner, for engines that schedule by it."""
    cache_salt: str = ""
    """Requests of other salts must not share cached prefixes with this one; "": all share."""
    images: tuple[ImagePart, ...] = ()
    """The prompt's images, in order, for engines that take them."""

    def __post_init__(self) -> None:
        """Make lists tuples."""
        freeze_fields(self, tuples=("prompt_ids", "images"))


class TokenDelta(Struct, kw_only=True):
    """Some tokens of one choice, as the engine produced them.

    `token_ids` and `logprobs` have one length; `logprobs` is None where the engine gave none (the node is then
    recorded as untrainable, nothing is made up). The last delta of a choice has `finish_reason`.
    """

    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    top_logprobs: list[dict[int, float]] | None = None
    """For each token the most likely ids and their logprobs, where `sampling.top_logprobs` asked for them."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop id or the stop string that ended the choice, where the engine says."""
    prompt_token_ids: list[int] | None = None
    """The prompt as the engine saw it, where it echoes it (in the first delta); compared with what was sent."""
    prompt_proof: str = "echo"
    """How the engine shows `prompt_token_ids`: "echo" where it repeats them, "logprobs" where each has a logprob."""
    num_prompt_tokens: int | None = None
    """How long the prompt was for the engine; compared with what was sent where the engine shows no ids."""
    prompt_logprobs: list[dict[int, float] | None] | None = None
    """For each token of the prompt its own logprob and the most likely others', by their ids; None for the first. In
    any delta, where `sampling.extra` asked for "prompt_logprobs", a number of alternatives."""
    cached_tokens: int | None = None
    logprobs_mode: str | None = None
    """What the logprobs are: "raw_logprobs" (before temperature and the like) or "processed_logprobs"."""
    weight_versions: list[Any] | None = None
    """Spans `[start, end, version]` over the tokens of this request's choice, with its last delta; a version that can't
    be placed within its span is `[old, new]`."""
    routed_experts: bytes | None = None
    sampling_mask: bytes | None = None
    sampling: dict[str, Any] | None = None
    """The parameters that apply to the request, with the backend's defaults filled in (in the first delta); recorded
    over those that were asked for."""


class ToolCallDelta(Struct, kw_only=True):
    """A piece of a tool call: `id` and `name` in the first one, then fragments of `arguments`.

    `index` counts the calls of one choice from 0 without gaps.
    """

    index: int = 0
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: dict[str, Any] | None = None
    """What the upstream wrote beside the call; kept with it."""


class TokenLogprob(Struct, kw_only=True):
    """One generated token for the client: its text, its bytes, its logprob and the alternatives asked for."""

    token: str
    logprob: float
    id: int | None = None
    bytes: list[int] | None = None
    top: list["TokenLogprob"] = field(default_factory=list)


class PromptToken(Struct, kw_only=True):
    """One token of the prompt for the client, with its logprob where the engine gave one."""

    token: str
    id: int
    logprob: float | None = None
    top: list[TokenLogprob] = field(default_factory=list)


class ChatDelta(Struct, kw_only=True):
    """A step of one choice: what a chat backend yields and what a converter turns into the client's frames."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta | ToolCall] = field(default_factory=list)
    """Fragments; a whole `ToolCall` is taken as one new call."""
    finish_reason: FinishReason | None = None
    stop_sequence: str | None = None
    """The stop string that ended the choice."""
    usage: Usage | None = None
    """Of the whole request; the last one counts."""
    logprobs: list[TokenLogprob] | None = None
    token_ids: list[int] | None = None
    """The ids of this step, where the client wants them."""
    prompt_token_ids: list[int] | None = None
    """The prompt's ids, in a choice's first step, where the client wants them."""
    prompt_logprobs: list[PromptToken] | None = None
    """The prompt's tokens with their logprobs, in a choice's last step, where the client asked for them."""
    extra: dict[str, Any] | None = None
    """Further fields of the choice's message that the upstream sent, for a client of its own dialect."""
    reply_extra: dict[str, Any] | None = None
    """Further fields of the whole reply, such as `system_fingerprint`."""


class Choice(Struct, kw_only=True):
    """One finished choice of a completion."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_sequence: str | None = None
    logprobs: list[TokenLogprob] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[PromptToken] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Completion(Struct, kw_only=True):
    """A finished reply: the chat deltas of one request, collected."""

    id: str
    model: str
    created: int
    choices: list[Choice] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    ended: int | None = None
    """When it was finished: seconds since the epoch, as `created`; None while it is not."""
    node_ids: tuple[str, ...] = ()
    """The recorded nodes, one a choice; empty without a session."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the upstream's reply."""
