"""Says what a long step does while it runs, and keeps its output for the case that it fails."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dev.local.tool_error import ToolError

HEARTBEAT = 20.0


def say(text: str) -> None:
    """Prints a line about what is being done; standard output stays free for results."""
    print(text, file=sys.stderr, flush=True)


def run_long(
    step: str,
    command: Sequence[str],
    log: Path,
    *,
    timeout: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a long command, says so now and then, and shows the end of its output if it fails."""
    say(f"{step} …")
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    told = begun
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment,
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                    if now - begun > timeout:
                        raise ToolError(
                            f"{step}: not done after {timeout:.0f} s; its output is in {log}."
                        ) from None
                    if now - told > HEARTBEAT:
                        told = now
                        say(f"  … still {step[:1].lower()}{step[1:]} ({now - begun:.0f} s)")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise ToolError(f"{tail}\n{step}: failed with exit code {code}; the whole output is in {log}.")
    say(f"  done in {time.monotonic() - begun:.0f} s")
