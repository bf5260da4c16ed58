"""Weight updates: calls wait while engines are paused, and every engine is told."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from rolltap.backend_handle import BackendHandle
from rolltap.bases.backends import PauseMode
from rolltap.errors import ErrorInfo, RequestError, Unsupported

FIRST_POLL_S, MAX_POLL_S = 0.02, 1.0
"""How often an engine is asked whether it serves again: less often the longer it takes."""

ENGINE_ANSWER_S = 60.0
"""How long one engine may take to answer a pause, a resume or a new version; with `wait`, the pause's own limit."""


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one engine answered."""

    model: str
    name: str
    ok: bool
    supported: bool = True
    """Whether the backend can do it at all; where it can't, its calls wait here and nothing else happens."""
    error: str = ""


class WeightUpdates:
    """Pauses, resumes and versions of all engines of the server."""

    def __init__(self, handles: Sequence[BackendHandle]) -> None:
        self._handles = handles
        self._open = asyncio.Event()
        self._open.set()
        self._busy = asyncio.Lock()
        self._versions: dict[str, int | str] = {}
        self.paused_since: float | None = None
        """Seconds since the epoch."""

    @property
    def paused(self) -> bool:
        """Whether calls wait."""
        return not self._open.is_set()

    def version(self, model: str) -> int | str | None:
        """The version that the model's weights were said to have last, by `set_version` or `resume`."""
        return self._versions.get(model)

    async def wait_open(self, limit_s: float) -> None:
        """Wait until no pause holds calls back. Raises `RequestError` (503) after `limit_s` seconds."""
        if self._open.is_set():
            return
        try:
            await asyncio.wait_for(self._open.wait(), limit_s)
        except TimeoutError:
            raise paused_too_long(limit_s) from None

    async def pause(self, mode: PauseMode) -> list[Told]:
        """Hold calls back, then pause every engine."""
        async with self._busy:
            self._open.clear()
            self.paused_since = self.paused_since or time.time()
            return await self._tell(lambda handle: handle.backend.pause(mode), waits=mode == "wait")

    async def resume(self, version: int | str | None = None) -> list[Told]:
        """Resume every engine; calls go on once all have resumed."""
        async with self._busy:
            if version is not None:
                self._note(version, "")
            told = await self._tell(lambda handle: handle.backend.resume())
            if all(each.ok or not each.supported for each in told):
                self._open.set()
                self.paused_since = None
            return told

    async def set_version(
        self, version: int | str, *, path: str | None = None, model: str = ""
    ) -> list[Told]:
        """From now on the weights are of this version; with `path`, the backends that can load them from there."""
        async with self._busy:
            handles = [handle for handle in self._handles if not model or handle.model == model]
            told = await self._tell(
                lambda handle: handle.backend.set_weights(version, path), handles=handles, waits=True
            )
            if all(each.ok for each in told):
                self._note(version, model)
            return told

    def _note(self, version: int | str, model: str) -> None:
        for handle in self._handles:
            if not model or handle.model == model:
                self._versions[handle.model] = version

    def state(self) -> dict[str, Any]:
        """What `GET /admin/state` says."""
        return {
            "paused": self.paused,
            "paused_since": self.paused_since,
            "versions": dict(self._versions),
            "backends": [
                {
                    "model": handle.model,
                    "name": handle.name,
                    "healthy": handle.view.healthy,
                    "in_flight": handle.in_flight,
                    "queued": handle.queued,
                }
                for handle in self._handles
            ],
        }

    async def _tell(
        self,
        ask: Callable[[BackendHandle], Awaitable[None]],
        *,
        handles: Sequence[BackendHandle] | None = None,
        waits: bool = False,
    ) -> list[Told]:
        asked = self._handles if handles is None else handles
        return await asyncio.gather(
            *(_answer(handle, ask, None if waits else ENGINE_ANSWER_S) for handle in asked)
        )


async def _answer(
    handle: BackendHandle, ask: Callable[[BackendHandle], Awaitable[None]], limit_s: float | None
) -> Told:
    try:
        async with asyncio.timeout(limit_s):
            await ask(handle)
    except Unsupported as error:
        return Told(model=handle.model, name=handle.name, ok=False, supported=False, error=str(error))
    except TimeoutError:
        error_text = f"no answer within {limit_s:g} s" if limit_s else "no answer in time"
        return Told(model=handle.model, name=handle.name, ok=False, error=error_text)
    except Exception as error:  # noqa: BLE001 - whatever an engine's client raises is what is told
        return Told(model=handle.model, name=handle.name, ok=False, error=f"{type(error).__name__}: {error}")
    return Told(model=handle.model, name=handle.name, ok=True)


async def wait_serving(handle: BackendHandle, until: float, limit_s: float) -> None:
    """Wait until an engine that has aborted serves again. Raises `RequestError` (503) at `until` (monotonic)."""
    pause_s = FIRST_POLL_S
    while True:
        try:
            if not await handle.backend.is_paused():
                return
        except Exception as error:  # noqa: BLE001 - an engine that is being restarted answers later
            handle.warn_once(f"could not be asked whether it is paused ({type(error).__name__}: {error})")
        if time.monotonic() + pause_s > until:
            raise paused_too_long(limit_s)
        await asyncio.sleep(pause_s)
        pause_s = min(MAX_POLL_S, pause_s * 2)


def paused_too_long(limit_s: float) -> RequestError:
    """The error of a call that has waited for as long as it may."""
    return RequestError(
        ErrorInfo(
            status=503,
            message=f"the engine has been paused for longer than pause_limit_s = {limit_s:g}",
            code="paused",
            retry_after=30,
        )
    )
