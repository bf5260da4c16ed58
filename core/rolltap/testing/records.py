"""Tests for the record: a node must be exactly what the backend was sent and what it returned."""

from collections.abc import Mapping, Sequence
from typing import Any

from rolltap.testing.backends import TokenCall
from rolltap.types.nodes import NodeView

MASKED = -100
"""What `masked_tokens` holds where the sequence must not be trained on."""


def assert_exact(
    node: NodeView | Mapping[str, Any], call: TokenCall, *earlier: TokenCall, choice: int = 0
) -> None:
    """Compare a node with the calls of a `ScriptedTokenBackend` that it was made by, token for token.

    The node's tokens must be what `call` was sent and returned; what was generated, and nothing else, unmasked, with the
    logprobs that came with it.

    :param node: a node as `GET /{sid}/nodes` gives it, or as a `record_node` hook is given it.
    :param call: the call that made the node.
    :param earlier: the calls whose outputs (of choice 0) the node owns too, in any order: the turns before this one.
    :param choice: which of the call's choices the node is.
    :raises AssertionError: with the place of the first difference, and both sides.
    """
    sent, returned = call.prompt_ids, call.output_ids[choice]
    tokens = sent + returned
    masked, logprobs = [MASKED] * len(tokens), [1.0] * len(tokens)
    for each, number in ((call, choice), *((before, 0) for before in earlier)):
        start = len(each.prompt_ids)
        end = start + len(each.output_ids[number])
        masked[start:end] = each.output_ids[number]
        logprobs[start:end] = each.output_logprobs[number]
    _same("tokens", _of(node, "tokens"), tokens)
    _same("masked_tokens", _of(node, "masked_tokens"), masked)
    _same("logprobs", _of(node, "logprobs"), logprobs)


def _of(node: NodeView | Mapping[str, Any], name: str) -> Sequence[Any]:
    values: Sequence[Any] = node[name] if isinstance(node, Mapping) else getattr(node, name)
    return values


def _same(name: str, recorded: Sequence[Any], expected: Sequence[Any]) -> None:
    for place, (one, other) in enumerate(zip(recorded, expected, strict=False)):
        if one != other:
            raise AssertionError(
                f"{name}[{place}] is {one!r} in the record, and was {other!r} at the backend\n"
                f"    recorded: {_around(recorded, place)}\n    backend:  {_around(expected, place)}"
            )
    if len(recorded) != len(expected):
        raise AssertionError(
            f"{name} has {len(recorded)} entries in the record, and had {len(expected)} at the backend"
        )


def _around(values: Sequence[Any], place: int) -> str:
    start = max(0, place - 3)
    return f"[{start}:] " + ", ".join(f"{value!r}" for value in values[start : place + 4])
