"""Running a child for a bounded time, with bounded output; nothing of it outlives the call."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The end of what a child said is kept: a hostile server can make git say anything, for ever.
MAX_OUTPUT = 16 * 1024
_CHUNK = 64 * 1024


class ChildTimeoutError(Exception):
    """The child did not end in time and was killed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child ended."""

    code: int
    out: str
    err: str


def run(arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], deadline: float) -> Finished:
    """Run a child in a session of its own until the deadline (of time.monotonic).

    However the call ends, by an exception from a signal too, the whole session is killed.

    Raises:
        ChildTimeoutError: it did not end in time.
    """
    process = subprocess.Popen(
        arguments,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = _collect(process, deadline)
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ChildTimeoutError from None
        return Finished(code, out.decode(errors="replace"), err.decode(errors="replace"))
    finally:
        _end(process)


def _collect(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytearray, bytearray]:
    out, err = bytearray(), bytearray()
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the child has no pipes")
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ChildTimeoutError
            for key, _ in selector.select(remaining):
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
                del key.data[:-MAX_OUTPUT]
    return out, err


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the child's session.

    The group still bears the child's id after the child was reaped, as long as one of its processes lives.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
