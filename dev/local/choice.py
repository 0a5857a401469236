"""Decides which kind of cluster to use, by the variable CLUSTER and by what the machine has."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dev.local import control_plane, current, kind, native
from dev.local.kind import Run, run_quietly
from dev.local.locations import cluster
from dev.local.tool_error import ToolError

CHOICES = ("auto", "native", "kind", "current")


class Cluster(Protocol):
    """What all clusters can do."""

    name: str
    state: Path
    kubeconfig: Path

    def running(self) -> bool: ...  # noqa: D102
    def up(self) -> None: ...  # noqa: D102
    def down(self) -> None: ...  # noqa: D102
    def load_image(self, file: Path) -> None: ...  # noqa: D102


def docker_answers(run: Run = run_quietly, which: Callable[[str], str | None] = shutil.which) -> bool:
    """Whether a Docker engine answers; a client alone does not count."""
    return (
        which("docker") is not None
        and run(["docker", "info", "--format", "{{.ServerVersion}}"]).returncode == 0
    )


def flavour(run: Run = run_quietly, which: Callable[[str], str | None] = shutil.which) -> str:
    """The kind of cluster to bring up here."""
    wish = os.environ.get("CLUSTER") or "auto"
    if wish not in CHOICES:
        raise ToolError(f"CLUSTER={wish} is not known: use one of {', '.join(CHOICES)}.")
    if wish == "kind" and not docker_answers(run, which):
        raise ToolError(
            "CLUSTER=kind needs a Docker engine, and `docker info` fails: start it, or set CLUSTER=native."
        )
    if wish != "auto":
        return wish
    return kind.FLAVOUR if docker_answers(run, which) else native.FLAVOUR


def recorded_flavour(name: str) -> str | None:
    """The kind of a cluster that has been brought up."""
    try:
        return str(json.loads((cluster(name) / "cluster.json").read_text())["flavour"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def wanted(name: str) -> Cluster:
    """The cluster to bring up under a name. One that stands as another kind must be taken down first."""
    chosen = flavour()
    standing = recorded_flavour(name)
    if standing is not None and standing != chosen:
        raise ToolError(
            f"The cluster {name} exists as {standing} and {chosen} is wanted: run `make clean-cluster` "
            "first, or use another CLUSTER_NAME."
        )
    return make(name, chosen)


def existing(name: str) -> Cluster | None:
    """The cluster that was brought up under a name."""
    standing = recorded_flavour(name)
    return None if standing is None else make(name, standing)


def make(name: str, chosen: str) -> Cluster:
    """A cluster of the kind given."""
    if chosen == kind.FLAVOUR:
        return kind.KindCluster(name)
    if chosen == current.FLAVOUR:
        return current.CurrentCluster(name)
    if chosen == control_plane.FLAVOUR:
        return _NamedControlPlane(name)
    return native.NativeCluster(name)


class _NamedControlPlane(control_plane.ControlPlane):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def load_image(self, file: Path) -> None:
        raise ToolError(f"{file} cannot be loaded: a bare control plane runs no pods.")
