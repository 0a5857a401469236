"""The agent's binary, on the volume from which the workspace's container starts it."""

import os
from pathlib import Path

from .files import read_chunks
from .outcome import MaterializeError
from .reasons import Reason

NAME = "agent"
MODE = 0o755


def install_agent(binary: Path, directory: Path) -> None:
    """Copy the binary in one step: it is there whole or not at all."""
    temporary = directory / f".{NAME}.new"
    try:
        source = os.open(binary, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MaterializeError(
            Reason.MATERIALIZATION_FAILED, f"The workspace image holds no agent at {binary}."
        ) from None
    try:
        with temporary.open("wb") as target:
            for chunk in read_chunks(source):
                target.write(chunk)
            os.fchmod(target.fileno(), MODE)
    finally:
        os.close(source)
    temporary.replace(directory / NAME)


def agent_missing(directory: Path) -> bool:
    """Whether the volume has lost its agent."""
    return not (directory / NAME).is_file()
