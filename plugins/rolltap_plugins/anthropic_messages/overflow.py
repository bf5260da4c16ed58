"""Upstreams' words for a context that is too small, in the words by which Anthropic's clients know what to do.

Where the prompt fits and the answer that was asked for does not, a client asks for a shorter answer; where the prompt
itself does not fit, it shortens the conversation.
"""

import re

from rolltap import ErrorInfo

_TOO_LONG = "prompt is too long"
_LIMIT = re.compile(
    r"(?:maximum (?:context|model) length|max_model_len)\D{0,20}(\d+)|must be <= (\d+)", re.IGNORECASE
)
_INPUT = re.compile(
    r"(\d+) (?:input tokens|tokens? (?:from|in) the (?:input|prompt)|(?:text )?in the (?:messages|prompt|input)|`inputs`)",
    re.IGNORECASE,
)
_OUTPUT = re.compile(
    r"(?:is )?too large: (\d+)|(\d+) (?:output tokens|(?:tokens )?(?:in|for) the completion|`max_new_tokens`)",
    re.IGNORECASE,
)


def context_message(info: ErrorInfo) -> str:
    """The error's message, in Anthropic's words where it tells of a context that is too small."""
    text = info.message
    if info.code != "context_length_exceeded" and not (info.status == 400 and _OUTPUT.search(text)):
        return text
    given, asked, limit = (_number(pattern, text) for pattern in (_INPUT, _OUTPUT, _LIMIT))
    if given is not None and asked is not None and limit is not None and given < limit:
        return (
            f"input length and `max_tokens` exceed context limit: {given} + {asked} > {limit}, "
            f"decrease input length or `max_tokens` and try again ({text})"
        )
    if info.code == "context_length_exceeded" and _TOO_LONG not in text:
        return f"{_TOO_LONG}: {text}"
    return text


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return None if found is None else int(next(filter(None, found.groups())))
