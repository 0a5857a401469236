"""Where the development tools keep things: outside the clone, so that clones share what is expensive."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dev.local.tool_error import ToolError

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "dev" / "cluster"
"""The sources of the native cluster: Go modules, shell scripts and configuration."""

DEFAULT_NAME = "sbx"


def cache() -> Path:
    """The folder for what can be built again: binaries, base trees, images."""
    return _home("XDG_CACHE_HOME", ".cache") / "sandbox-operator"


def clusters() -> Path:
    """The folder that has one folder of state for each cluster."""
    return _home("XDG_STATE_HOME", ".local/state") / "sandbox-operator" / "clusters"


def cluster_name() -> str:
    """The name of the cluster that this shell works with."""
    name = os.environ.get("CLUSTER_NAME") or DEFAULT_NAME
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", name):
        raise ToolError(
            f"CLUSTER_NAME {name!r} is no cluster name: use up to 30 small letters, digits and dashes."
        )
    return name


def cluster(name: str | None = None) -> Path:
    """The folder with the state of one cluster."""
    return clusters() / (name or cluster_name())


def cluster_lock(name: str) -> Path:
    """The file whose lock keeps two commands from working on one cluster at once."""
    return clusters().parent / "locks" / name


def _home(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable)
    return Path(value) if value else Path.home() / fallback
