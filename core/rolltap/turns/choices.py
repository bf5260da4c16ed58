"""One choice of a token backend's answer: from token deltas to chat deltas, and to what is recorded."""

import logging
import math
import secrets
from array import array
from collections.abc import Sequence
from typing import Any

from rolltap.bases.parsers import CallFragment, Reasoning
from rolltap.reading import OutputReader
from rolltap.rendering import Renderer, StopStrings
from rolltap.turns.delta_checks import check_finish_reason
from rolltap.types.chat import ChatRequest, Message, ToolCall
from rolltap.types.generation import ChatDelta, FinishReason, TokenDelta, TokenLogprob, ToolCallDelta
from rolltap.types.ledger import Output
from rolltap.types.nodes import pack_ids, pack_logprobs

log = logging.getLogger(__name__)

MOST_LOGPROB = 0.01
"""A logprob is at most 0; engines that compute in 16 bits round a little above it."""


def prompt_difference(sent: Sequence[int], delta: TokenDelta) -> str | None:
    """How the prompt that the engine shows differs from the one it was sent; None where it does not, or shows none."""
    echoed, length = delta.prompt_token_ids, delta.num_prompt_tokens
    if echoed is None:
        return None if length is None or length == len(sent) else _other_length(length, len(sent))
    if echoed in (sent, [*sent]):
        return None
    at = next((i for i, pair in enumerate(zip(sent, echoed, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return _other_length(len(echoed), len(sent))
    return f"the engine saw another prompt than it was sent: id {echoed[at]} in place of {sent[at]} at {at}"


def _other_length(saw: int, sent: int) -> str:
    return f"the engine saw a prompt of {saw} ids and was sent {sent}"


def new_call_id() -> str:
    """An id for a tool call, unique wherever it goes."""
    return f"call_{secrets.token_hex(12)}"


class TokenChoice:
    """Reads one choice. Feed it the choice's token deltas; `finished` says when it has ended."""

    def __init__(
        self,
        index: int,
        renderer: Renderer,
        request: ChatRequest,
        reader: OutputReader,
        *,
        show_special: bool,
        goes_on_from: int | None = None,
    ) -> None:
        """`goes_on_from` is the last id of an answer that was begun: some tokenizers show what follows by it."""
        self.index = index
        self.begun = False
        """Whether the engine has said anything of it."""
        self.finished = False
        self.was_cut = False
        """Whether a stop string ended it here, whatever the engine does."""
        self._renderer = renderer
        self._top_logprobs = request.sampling.top_logprobs
        self._tells_ids = request.return_token_ids
        self._detokenizer = renderer.detokenizer(skip_special_tokens=not show_special)
        if goes_on_from is not None:
            self._detokenizer.feed([goes_on_from])
        self._stop = StopStrings(request.sampling.stop) if request.sampling.stop else None
        self._reader = reader
        self._calls = 0
        self._one_call = request.parallel_tool_calls is False
        self._leaves_out = False
        """Whether a call was left out, and with the first one all that follow."""
        self._ids = array("i")
        self._logprobs: array[float] | None = array("d")
        self.aborted = False
        """Whether the engine gave it up; what it has so far may be gone on from."""
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None
        self._echo: str | None = None
        self._extras: dict[str, Any] = {}
        self._piece_start = 0
        """Where in the output the request that is being answered began: 0, until an abort was gone on from."""
        self._spans: list[Any] = []
        """Which weights wrote what, up to there."""
        self._piece_spans: list[Any] | None = None
        self._continued = 0

    def feed(self, delta: TokenDelta) -> list[ChatDelta]:
        """The chat deltas that are certain after these tokens. What comes after the end is ignored."""
        self.begun = True
        if self.finished or self.aborted:
            return []
        self._note(delta)
        text, taken = self._text(delta)
        self._keep(delta, taken)
        deltas = self._read(self._reader.feed(text)) if text else []
        if self._top_logprobs is not None and delta.logprobs is not None:
            logprobs = self._client_logprobs(delta, taken)
            if deltas:
                deltas[0].logprobs = logprobs
            elif logprobs:
                deltas.append(ChatDelta(index=self.index, logprobs=logprobs))
        if self._tells_ids and taken:
            if not deltas:
                deltas.append(ChatDelta(index=self.index))
            deltas[0].token_ids = delta.token_ids[:taken]
        if self._finish_reason is not None:
            deltas += self._finish()
        return deltas

    def end(self) -> ChatDelta:
        """The choice's last delta, with its finish reason; to be sent once the record is stored."""
        reason = self._finish_reason
        if self._calls and reason == "stop":
            reason = "tool_calls"
        stop = self._stop_reason if isinstance(self._stop_reason, str) else None
        return ChatDelta(index=self.index, finish_reason=reason, stop_sequence=stop)

    @property
    def ids(self) -> list[int]:
        """What the model produced so far."""
        return self._ids.tolist()

    def end_piece(self, before: int | str | None, after: int | str | None) -> None:
        """A request has been answered, or given up. `before` and `after` are the versions of the weights when it was
        sent and now, as far as somebody has said so; what the engine itself has said goes first.
        """
        start, end = self._piece_start, len(self._ids)
        if self._piece_spans is not None:
            self._spans += [_shifted(span, start) for span in self._piece_spans]
        elif end > start and (before is not None or after is not None):
            self._spans.append([start, end, after if before == after else [before, after]])
        self._piece_start, self._piece_spans = end, None

    def go_on(self) -> None:
        """The choice is sent to an engine again, with what it has."""
        self.aborted = False
        self._continued += 1

    @property
    def num_tokens(self) -> int:
        """How many tokens the model produced."""
        return len(self._ids)

    def output(
        self, node_id: str, *, text: str | None, message: Message | None, aborted: bool, error: str | None
    ) -> Output:
        """What is recorded of this choice."""
        reason = self.end().finish_reason
        return Output(
            node_id=node_id,
            ids=pack_ids(self._ids),
            logprobs=pack_logprobs(self._logprobs) if self._logprobs is not None else None,
            text=text,
            message=message,
            finish_reason=reason or "abort" if aborted else reason,
            stop_reason=self._stop_reason,
            untrainable_reason=self._untrainable_reason(),
            drifted=self.drifted,
            delivery="aborted" if aborted else "delivered",
            error=error,
            weight_versions=tuple(_joined(self._spans)) or None,
            continued=self._continued,
            **self._extras,
        )

    def prove_prompt(self, delta: TokenDelta, difference: str | None) -> None:
        """Keep how the engine showed the prompt it saw, and the difference from the one it was sent, if any."""
        if delta.prompt_token_ids is not None:
            self._extras["prompt_proof"] = delta.prompt_proof
        elif delta.num_prompt_tokens is not None:
            self._extras.setdefault("prompt_proof", "length")
        self._echo = difference or self._echo

    @property
    def drifted(self) -> bool:
        """Whether the engine's echo differed from what it was sent."""
        return self._echo is not None

    def _note(self, delta: TokenDelta) -> None:
        if delta.logprobs_mode is not None:
            self._extras["logprobs_mode"] = delta.logprobs_mode
        for name in ("routed_experts", "sampling_mask"):
            value = getattr(delta, name)
            if value is not None:  # of the tokens that this request has generated
                self._extras[name] = self._extras.get(name, b"") + value
        if delta.weight_versions is not None:
            self._piece_spans = list(delta.weight_versions)
        if delta.finish_reason == "abort":
            self.aborted = True
        elif delta.finish_reason is not None:
            check_finish_reason(delta.finish_reason, self.index)
            self._finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason

    def _text(self, delta: TokenDelta) -> tuple[str, int]:
        """The text of a delta's tokens, and how many of them count: those after a stop string don't."""
        if self._stop is None:
            return self._detokenizer.feed(delta.token_ids), len(delta.token_ids)
        text = ""
        for taken, token in enumerate(delta.token_ids, 1):
            piece, matched = self._stop.feed(self._detokenizer.feed([token]))
            text += piece
            if matched is not None:
                self._finish_reason, self._stop_reason = "stop", matched
                self.was_cut = True
                return text, taken
        return text, len(delta.token_ids)

    def _keep(self, delta: TokenDelta, taken: int) -> None:
        self._ids.extend(delta.token_ids[:taken])
        if delta.logprobs is None or len(delta.logprobs) != len(delta.token_ids):
            if delta.token_ids:
                self._logprobs = None
        elif self._logprobs is not None:
            self._logprobs.extend(delta.logprobs[:taken])

    def _read(self, pieces: Sequence[str | Reasoning | ToolCall]) -> list[ChatDelta]:
        deltas = []
        for piece in pieces:
            match piece:
                case str():
                    deltas.append(ChatDelta(index=self.index, text=piece))
                case Reasoning():
                    deltas.append(ChatDelta(index=self.index, reasoning=piece.text))
                case CallFragment(name=""):
                    if not self._leaves_out:
                        more = ToolCallDelta(index=self._calls - 1, arguments=piece.arguments)
                        deltas.append(ChatDelta(index=self.index, tool_calls=[more]))
                case ToolCall() if self._one_call and self._calls:
                    self._leaves_out = True
                    log.info("a call of %s is left out: the client allows one call at a time", piece.name)
                case ToolCall():
                    call = ToolCallDelta(
                        index=self._calls,
                        id=piece.id or new_call_id(),
                        name=piece.name,
                        arguments=piece.arguments,
                    )
                    self._calls += 1
                    deltas.append(ChatDelta(index=self.index, tool_calls=[call]))
        return deltas

    def _finish(self) -> list[ChatDelta]:
        self.finished = True
        text = self._detokenizer.finish()
        if self._stop is not None and not isinstance(self._stop_reason, str):
            text, matched = self._stop.feed(text)
            if matched is None:
                text += self._stop.finish()
            else:
                self._finish_reason, self._stop_reason = "stop", matched
        elif self._stop is not None:
            text = ""
        return self._read([*(self._reader.feed(text) if text else ()), *self._reader.finish()])

    def _untrainable_reason(self) -> str | None:
        if self._echo is not None:
            return self._echo
        if not self._ids:
            return "the engine returned no token ids"
        if self._logprobs is None:
            return "the engine did not return one logprob for each token"
        for at, logprob in enumerate(self._logprobs):
            if not -math.inf < logprob <= MOST_LOGPROB:
                return f"the logprob of generated token {at} is {logprob:g}"
        return None

    def _client_logprobs(self, delta: TokenDelta, taken: int) -> list[TokenLogprob]:
        tops = delta.top_logprobs or [{}] * taken
        logprobs = []
        for token, logprob, top in zip(delta.token_ids[:taken], delta.logprobs or (), tops, strict=False):
            likeliest = sorted(top.items(), key=lambda item: -item[1])[: self._top_logprobs]
            logprobs.append(token_logprob(self._renderer, token, logprob, likeliest))
        return logprobs


def token_logprob(
    renderer: Renderer, token: int, logprob: float, others: Sequence[tuple[int, float]] = ()
) -> TokenLogprob:
    """A token for the client, with the alternatives that were asked for."""
    return TokenLogprob(
        token=renderer.decode([token]),
        logprob=logprob,
        id=token,
        bytes=list(renderer.token_bytes(token)),
        top=[token_logprob(renderer, other, value) for other, value in others],
    )


def _shifted(span: Any, by: int) -> Any:
    """A span of one request's tokens as one of the whole output's; what is no span stays as the engine said it."""
    match span:
        case [int(start), int(end), version]:
            return [start + by, end + by, version]
    return span


def _joined(spans: Sequence[Any]) -> list[Any]:
    """The spans, neighbours of one version made one."""
    joined: list[Any] = []
    for span in spans:
        match joined, span:
            case [*_, [int(start), int(middle), known]], [int(at), int(end), version] if (
                middle == at and known == version
            ):
                joined[-1] = [start, end, version]
            case _:
                joined.append(span)
    return joined
