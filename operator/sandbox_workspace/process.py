"""Running a child for a bounded time, with bounded output; nothing of it outlives the call."""

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@dataclass(slots=True)
class _Clock:
    """When something is to be done next: at the deadline to give up, before it to look."""

    deadline: float
    watch: Callable[[], float] | None
    look_at: float = 0.0

    def tick(self) -> float:
        """Do what is due; returns the seconds until something is again."""
        now = time.monotonic()
        if now >= self.deadline:
            raise ChildTimeoutError
        if self.watch is None:
            return self.deadline - now
        if now >= self.look_at:
            pause = self.watch()
            now = time.monotonic()
            self.look_at = now + pause
        return max(0.0, min(self.deadline, self.look_at) - now)


def run(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    deadline: float,
    largest_file: int | None = None,
    watch: Callable[[], float] | None = None,
) -> Finished:
    """Run a child in a session of its own until the deadline (of time.monotonic).

    However the call ends, by an exception from a signal or from `watch` too, the whole session is killed.

    Args:
        arguments: The program and its arguments.
        cwd: Where it runs.
        env: Its whole environment.
        deadline: When it is killed.
        largest_file: Bytes that a file can have which it writes.
        watch: Called now and then; returns the seconds until it wants to be called again.

    Raises:
        ChildTimeoutError: it did not end in time.
    """
    with _file_size_limit(largest_file):
        process = subprocess.Popen(
            arguments,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Ignored, as Python itself has it, the signal becomes an error that the child tells of.
            restore_signals=largest_file is None,
        )
    clock = _Clock(deadline, watch)
    try:
        out, err = _collect(process, clock)
        while True:
            try:
                code = process.wait(clock.tick())
                break
            except subprocess.TimeoutExpired:
                continue
        return Finished(code, out.decode(errors="replace"), err.decode(errors="replace"))
    finally:
        _end(process)


@contextlib.contextmanager
def _file_size_limit(size: int | None) -> Iterator[None]:
    """Let children that are started meanwhile write no larger file."""
    if size is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ceilings = [limit for limit in (size, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(ceilings), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _collect(process: subprocess.Popen[bytes], clock: _Clock) -> tuple[bytearray, bytearray]:
    out, err = bytearray(), bytearray()
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the child has no pipes")
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while selector.get_map():
            for key, _ in selector.select(clock.tick()):
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
