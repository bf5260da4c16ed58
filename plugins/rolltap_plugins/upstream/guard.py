"""Runs a command as a child and ends it, with all that it started, when standard input is closed.

Run as a script: `python guard.py GRACE_SECONDS COMMAND...`. It stands between rolltap and an engine: the kernel closes
the pipe to its standard input however rolltap ends, by SIGKILL too, so the engine is never left behind. It uses nothing
but the standard library and imports nothing of rolltap.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """In the child, on Linux: be killed when the guard itself is. The guard has one thread while it forks."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _end_with_input(child: "subprocess.Popen[bytes]", grace: float) -> None:
    while os.read(0, 4096):
        pass
    _signal(child.pid, signal.SIGTERM)
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        _signal(child.pid, signal.SIGKILL)


def main() -> int:
    """Run the command; returns its exit code, 128 + N where signal N ended it."""
    grace, command = float(sys.argv[1]), sys.argv[2:]
    child = subprocess.Popen(  # noqa: S603 - the command is the config's
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - no other thread yet
    )
    threading.Thread(target=_end_with_input, args=(child, grace), daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # workers that outlived it
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
