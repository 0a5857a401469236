"""Processes that outlive the command that started them, found again by number, start time and boot.

A number alone may belong to another process by the time one wants to end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SUFFIX = ".process.json"


@dataclass(frozen=True)
class RecordedProcess:
    """A process as it was when it was started."""

    pid: int
    started: str
    boot: str

    @classmethod
    def of(cls, pid: int) -> RecordedProcess:
        """The process that has this number now."""
        return cls(pid, _start_time(pid) or "gone", _boot())

    @classmethod
    def read(cls, folder: Path, name: str) -> RecordedProcess | None:
        """The process recorded under a name, whether it still runs or not."""
        try:
            record = json.loads((folder / (name + SUFFIX)).read_text())
            return cls(int(record["pid"]), str(record["started"]), str(record["boot"]))
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def write(self, folder: Path, name: str) -> None:
        """Records the process under a name, in a file that is never half-written."""
        whole = folder / (name + SUFFIX)
        partial = whole.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)) + "\n")
        partial.replace(whole)

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return self.boot == _boot() and self.started == _start_time(self.pid)

    def wait_for_end(self, seconds: float) -> bool:
        """Whether the process has ended within the time."""
        end = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def end(self, *, grace: float = 0.0) -> bool:
        """Ends the process, with TERM first where it is given time; says whether it is gone."""
        for sig, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            if not self.alive():
                return True
            if seconds <= 0:
                continue
            try:
                os.kill(self.pid, sig)
            except ProcessLookupError:
                return True
            if self.wait_for_end(seconds):
                self._reap()
                return True
        return False

    def _reap(self) -> None:
        """Lets the kernel forget the process if it was our own child."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def children(self) -> list[int]:
        """The numbers of the process's own children."""
        try:
            return [int(n) for n in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []


def start_recorded(
    folder: Path,
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
) -> RecordedProcess:
    """Starts a process that goes on without us, in a session of its own, and records it under a name."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",  # the clone may be removed while it runs
            env=environment,
        )
    record = RecordedProcess.of(process.pid)
    record.write(folder, name)
    # Popen would warn about a process still running when it is thrown away: this one is meant to.
    process.returncode = 0
    return record


def all_recorded(folder: Path) -> list[RecordedProcess]:
    """Every process recorded in a folder, the latest started first."""
    files = sorted(folder.glob("*" + SUFFIX), key=lambda f: f.stat().st_mtime, reverse=True)
    found = (RecordedProcess.read(folder, f.name.removesuffix(SUFFIX)) for f in files)
    return [process for process in found if process is not None]


def _start_time(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
