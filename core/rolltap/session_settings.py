"""What `POST /sessions/create` takes, checked when the session is made and not at its first request."""

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from rolltap.backend_handle import BackendHandle
from rolltap.errors import BadRequest
from rolltap.types.chat import Sampling
from rolltap.types.ledger import Limits, SessionInfo
from rolltap.wording import suggestion

T = TypeVar("T")

_PROBLEM = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`")

_OTHER_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
}
"""What the dialects call them."""

_NO_SAMPLING = frozenset({"model", "messages", "prompt", "tools", "tool_choice", "stream", "stream_options"})
"""Fields of a request that no session can pin."""


class SessionRequest(Struct):
    """The body of `POST /sessions/create`. A field that is null is one that was not sent."""

    tool_parser: str | None = None
    track_tree: bool = False
    base_url: str | None = None
    model: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    group: str = ""
    labels: dict[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()


def session_request(body: Mapping[str, Any]) -> SessionRequest:
    """The settings that a body asks for. Raises `BadRequest` that names a wrong field."""
    for name in body:
        if name not in SessionRequest.__struct_fields__:
            fields = ", ".join(SessionRequest.__struct_fields__)
            raise BadRequest(
                f"{name!r} is no setting of a session{suggestion(name, SessionRequest.__struct_fields__)} "
                f"(the settings are: {fields})",
                param=name,
            )
    wanted = converted(body, SessionRequest)
    wanted.base_url = wanted.base_url or None
    return wanted


def new_info(wanted: SessionRequest, *, model: str, tool_parser: str, base_url: str | None) -> SessionInfo:
    """A new session's settings, under an id of its own."""
    return SessionInfo(
        uuid=str(uuid.uuid4()),
        model_name=model,
        tool_parser=tool_parser,
        base_url=base_url,
        track_tree=wanted.track_tree,
        sampling=wanted.sampling,
        metadata=wanted.metadata,
        group=wanted.group,
        labels=wanted.labels,
        limits=wanted.limits,
        created_at=time.time(),
    )


def check_pins(pins: Mapping[str, Any], backends: Sequence[BackendHandle]) -> None:
    """Raise `BadRequest` for a pin that is wrong, or that none of the backends takes: every request would fail."""
    names = pinned(Sampling(), pins).names()
    for handle in backends:
        takes = handle.backend.parameters
        if takes is None or names <= takes:
            return
    unknown = [
        name for name in sorted(names) if all(name not in (h.backend.parameters or ()) for h in backends)
    ]
    wrong = unknown[0] if unknown else ", ".join(sorted(names))
    known = backends[0].backend.parameters or frozenset[str]()
    raise BadRequest(
        f"sampling.{wrong}: no backend of this session takes that{suggestion(wrong, known)}",
        param=f"sampling.{wrong}",
    )


def pinned(sampling: Sampling, pins: Mapping[str, Any]) -> Sampling:
    """The client's sampling parameters under a session's pins, which win. Raises `BadRequest` for a wrong pin."""
    if not pins:
        return sampling
    named = {_OTHER_NAMES.get(name, name): value for name, value in pins.items() if value is not None}
    for name in sorted(_NO_SAMPLING.intersection(named)):
        raise BadRequest(f"sampling.{name} is no sampling parameter", param=f"sampling.{name}")
    if isinstance(named.get("stop"), str):
        named["stop"] = [named["stop"]]
    if "" in (named.get("stop") or ()):
        raise BadRequest(
            "sampling.stop has an empty string, which every text ends with", param="sampling.stop"
        )
    typed = converted(named, Sampling, "sampling.")
    known = {name: getattr(typed, name) for name in named if name in Sampling.__struct_fields__}
    unknown = {name: value for name, value in named.items() if name not in known}
    known["extra"] = {**sampling.extra, **typed.extra, **unknown}
    return msgspec.structs.replace(sampling, **known)


def converted(values: Mapping[str, Any], kind: type[T], prefix: str = "") -> T:
    """A body's fields as a struct; those that are null are left out. Raises `BadRequest` that names a wrong one."""
    present = {name: value for name, value in values.items() if value is not None}
    try:
        return msgspec.convert(present, kind, str_keys=True)
    except msgspec.ValidationError as error:
        found = _PROBLEM.fullmatch(str(error))
        what, path = (found["what"], prefix + found["path"]) if found else (str(error), prefix.rstrip("."))
        raise BadRequest(f"{path}: {what[:1].lower()}{what[1:]}", param=path) from None
