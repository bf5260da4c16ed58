"""Tools and template variables of a session: each kept once, under the hash of its JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rolltap.record.canonical import canonical_digest, digest, tools_digest
from rolltap.types.frozen import FrozenDict, frozen
from rolltap.types.ledger import Context, Definition


class Definitions:
    """What the session's calls have defined so far, and what of it tells one conversation from another."""

    def __init__(self) -> None:
        self._values: dict[bytes, Any] = {}
        self._canonical: dict[tuple[bool, bytes], bytes] = {}

    def add(self, definition: Definition) -> None:
        """Keep one that a call brought."""
        self._values.setdefault(definition.hash, frozen(definition.value))

    def tools(self, context: Context) -> Sequence[Mapping[str, Any]]:
        """The tools of a conversation, in OpenAI's form, as the client sent them."""
        found: Sequence[Mapping[str, Any]] = self._values.get(context.tools, ())
        return found

    def context(
        self, model: str, tools: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]
    ) -> tuple[Context, tuple[Definition, ...]]:
        """What a conversation stands on, and what of it this session has not kept yet."""
        new: list[Definition] = []
        hashes = [self._hash(value, new) if value else b"" for value in (tools, template_kwargs)]
        return Context(model, *hashes), tuple(new)

    def canonical(self, context: Context, new: Sequence[Definition] = ()) -> bytes:
        """The context's canonical digest. The order of tools, and of the keys in them, does not count."""
        values = {definition.hash: definition.value for definition in new}
        tools = self._digest(context.tools, values, tools=True)
        template_kwargs = self._digest(context.template_kwargs, values, tools=False)
        return digest(b"\0".join([context.model.encode(), tools, template_kwargs]))

    def same_tools(self, one: Context, other: Context) -> bool:
        """Whether two conversations were offered the same tools."""
        return self._digest(one.tools, {}, tools=True) == self._digest(other.tools, {}, tools=True)

    def _hash(self, value: Any, new: list[Definition]) -> bytes:
        found = digest(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
        if found not in self._values:
            new.append(Definition(found, value))
        return found

    def _digest(self, hash_: bytes, new: Mapping[bytes, Any], *, tools: bool) -> bytes:
        known = self._canonical.get((tools, hash_))
        if known is None:
            value = self._values.get(hash_, new.get(hash_, () if tools else FrozenDict()))
            known = tools_digest(value) if tools else canonical_digest(value)
            self._canonical[tools, hash_] = known
        return known
