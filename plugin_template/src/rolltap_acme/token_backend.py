"""The token backend "acme-tokens": it draws each next token from the prompt. Put your engine's client in its place."""

import math
import random
from collections import Counter
from collections.abc import AsyncIterator

from rolltap import TokenBackend, TokenDelta, TokenRequest, hookimpl


class AcmeTokenBackend(TokenBackend):
    """Ids in, ids and their logprobs out: exactly the engine's, since they are what is recorded and trained on."""

    parameters = frozenset({"n", "max_tokens", "seed"})  # a request that sets another one is refused by name

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        """Yield tokens as they come, each with its logprob; the last of a choice says why it ended."""
        prompt_ids, sampling = request.prompt_ids, request.sampling
        chance = random.Random(sampling.seed)
        counts = Counter(prompt_ids)
        length = sampling.max_tokens or 16
        for index in range(sampling.n):
            for left in reversed(range(length)):
                token = chance.choice(prompt_ids)
                yield TokenDelta(
                    index=index,
                    token_ids=[token],
                    logprobs=[math.log(counts[token] / len(prompt_ids))],
                    finish_reason=None if left else "length",
                )


@hookimpl
def create_backend(kind: str) -> TokenBackend | None:
    """Answer for `kind = "acme-tokens"`."""
    return AcmeTokenBackend() if kind == "acme-tokens" else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """What `rolltap plugins` and messages about unknown names show."""
    return {"create_backend": ["acme-tokens"]}
