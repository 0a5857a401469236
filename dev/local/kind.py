"""A kind cluster, where a Docker engine answers. It needs no root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.local import binaries, prerequisites
from dev.local.locations import cache, cluster
from dev.local.progress import run_long, say
from dev.local.tool_error import ToolError

FLAVOUR = "kind"
VERSION = "v0.33.0"
"""The one place that pins kind. Since v0.24 its network enforces NetworkPolicy, which the tests need."""

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run_quietly(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a short command and keeps its output."""
    return subprocess.run(list(command), capture_output=True, text=True, check=False, timeout=120)


def program() -> str:
    """The kind program: the machine's own, or one built into the cache."""
    own = shutil.which("kind")
    if own:
        return own
    prerequisites.need_go()
    folder = cache() / "cluster" / f"kind-{VERSION}"
    if not (folder / "kind").exists():
        with binaries.locked(folder.parent / "kind.lock", "the build of kind"):
            if not (folder / "kind").exists():
                partial = folder.with_name(f".kind-{VERSION}")
                environment = {**os.environ, "GOBIN": str(partial), "GOFLAGS": "-trimpath"}
                command = ["go", "install", f"sigs.k8s.io/kind@{VERSION}"]
                log = folder.parent / "kind.log"
                run_long(
                    "Building kind (once per machine)", command, log, timeout=900, environment=environment
                )
                partial.rename(folder)
    return str(folder / "kind")


class KindCluster:
    """One kind cluster by its name."""

    def __init__(self, name: str, run: Run = run_quietly, kind: Callable[[], str] = program) -> None:
        self.name = name
        self.state = cluster(name)
        self.kubeconfig = self.state / "kubeconfig"
        self._run = run
        self._kind = kind

    @property
    def kind_name(self) -> str:
        """The name that kind and Docker know the cluster by."""
        return f"sandbox-operator-{self.name}"

    def running(self) -> bool:
        """Whether kind has the cluster and its API server answers."""
        if self.kind_name not in self._run([self._kind(), "get", "clusters"]).stdout.split():
            return False
        probe = [str(binaries.kubectl()), "--kubeconfig", str(self.kubeconfig), "--request-timeout=5s"]
        return self.kubeconfig.exists() and self._run([*probe, "get", "--raw", "/readyz"]).returncode == 0

    def up(self) -> None:
        """Creates the cluster; one that no longer answers is replaced."""
        if self.running():
            say(f"The kind cluster {self.name} is already up.")
            return
        kind = self._kind()
        if self.kind_name in self._run([kind, "get", "clusters"]).stdout.split():
            self.down()
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "cluster.json").write_text(json.dumps({"flavour": FLAVOUR}) + "\n")
        command = [
            kind,
            "create",
            "cluster",
            "--name",
            self.kind_name,
            "--kubeconfig",
            str(self.kubeconfig),
            "--wait",
            "180s",
        ]
        run_long(
            f"Creating the kind cluster {self.name}", command, self.state / "log" / "kind.log", timeout=900
        )

    def down(self) -> None:
        """Deletes the cluster and its state."""
        done = self._run([self._kind(), "delete", "cluster", "--name", self.kind_name])
        if done.returncode != 0:
            raise ToolError(f"kind could not delete {self.kind_name}: {done.stderr.strip()[-300:]}")
        if self.state.exists():
            shutil.rmtree(self.state)

    def load_image(self, file: Path) -> None:
        """Imports an image archive into the cluster's node."""
        done = self._run([self._kind(), "load", "image-archive", str(file), "--name", self.kind_name])
        if done.returncode != 0:
            raise ToolError(f"Loading {file} into kind failed: {done.stderr.strip()[-500:]}")
