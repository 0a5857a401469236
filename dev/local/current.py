"""The cluster of the current kubeconfig context: images go through a registry that the user can push to."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from dev.local import binaries
from dev.local.kind import Run, run_quietly
from dev.local.locations import cluster
from dev.local.progress import say
from dev.local.tool_error import ToolError

FLAVOUR = "current"


def image_prefix() -> str:
    """What image names begin with, so that the cluster can pull what we push."""
    prefix = os.environ.get("IMAGE_PREFIX", "").strip().rstrip("/")
    if not prefix:
        raise ToolError(
            "CLUSTER=current needs IMAGE_PREFIX: set it to a registry and path you can push to (HOST/TEAM)."
        )
    return prefix


class CurrentCluster:
    """The context that was current at `up`: a later change of context does not move the tests elsewhere."""

    def __init__(self, name: str, run: Run = run_quietly) -> None:
        self.name = name
        self.state = cluster(name)
        self.kubeconfig = self.state / "kubeconfig"
        self._run = run

    def running(self) -> bool:
        """Whether the context has been taken note of and answers."""
        probe = [str(binaries.kubectl()), "--kubeconfig", str(self.kubeconfig), "--request-timeout=10s"]
        return self.kubeconfig.exists() and self._run([*probe, "get", "--raw", "/readyz"]).returncode == 0

    def up(self) -> None:
        """Takes note of the current context."""
        image_prefix()
        kubectl = str(binaries.kubectl())
        shown = self._run([kubectl, "config", "view", "--minify", "--flatten", "--raw"])
        if shown.returncode != 0:
            raise ToolError(
                "There is no current kubeconfig context: choose one with `kubectl config use-context`."
            )
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "cluster.json").write_text(json.dumps({"flavour": FLAVOUR}) + "\n")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(shown.stdout)
        if not self.running():
            raise ToolError(
                "The current kubeconfig context does not answer: check it with `kubectl cluster-info`."
            )
        context = self._run([kubectl, "config", "current-context"]).stdout.strip()
        say(f"Using the current kubeconfig context {context}.")

    def down(self) -> None:
        """Forgets the context; the cluster is not ours to remove."""
        if self.state.exists():
            shutil.rmtree(self.state)

    def load_image(self, file: Path) -> None:
        """Images are pushed when they are built; there is nothing to load."""
        raise ToolError(
            f"{file} cannot be loaded into a cluster that is not ours: push the image to a registry."
        )
