"""Installs or upgrades the operator's chart on the cluster: .venv/bin/python dev/install.py.

Helm comes as a Python package that bundles it, so that no helm program has to be there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import helm_python as helm

from dev.local import binaries, choice, current
from dev.local.locations import REPOSITORY, cluster_name
from dev.local.progress import say
from dev.local.tool_error import ToolError, exit_code

CHART = REPOSITORY / "charts" / "sandbox-operator"
RELEASE = "sandbox-operator"
NAMESPACE = "sandbox-system"
TIMEOUT = 180
PLAIN_GIT_HOSTS = ["git.sandbox-demo.svc"]
"""The demo's git server: inside the cluster, without encryption."""


def values(images: dict[str, str], *, policies_enforced: bool) -> dict[str, Any]:
    """The chart's values for a development cluster."""

    def named(image: str) -> dict[str, str]:
        repository, _, tag = images[image].rpartition(":")
        return {"repository": repository, "tag": tag}

    return {
        "images": {"operator": named("operator"), "workspace": named("workspace")},
        "sandboxes": {"image": images["demo"]},
        "networkPolicies": {"enforced": policies_enforced},
        "allowed": {"insecureGitHosts": PLAIN_GIT_HOSTS},
    }


def install(target: choice.Cluster, images: dict[str, str]) -> None:
    """Brings the release to what the working tree says, and waits until the operator is ready."""
    enforced = choice.recorded_flavour(target.name) != current.FLAVOUR  # of another's cluster we cannot know
    wanted = values(images, policies_enforced=enforced)
    with helm.Config(kubeconfig_path=target.kubeconfig, namespace=NAMESPACE) as config:
        state = _release_state(config)
        try:
            if state is not None and (state.startswith("pending") or state == "failed"):
                say("The last installation was cut off: installing again …")
                config.uninstall(RELEASE, timeout=TIMEOUT, wait="watcher")
                state = None
            action = config.install if state is None else config.upgrade
            options: dict[str, Any] = {"create_namespace": True} if state is None else {"max_history": 3}
            with _without_warnings():
                action(str(CHART), RELEASE, wanted, timeout=TIMEOUT, wait="watcher", **options)
        except helm.HelmError as error:
            raise ToolError(f"{_why(target.kubeconfig)}\nInstalling the operator failed: {error}") from None
    say(f"The operator is installed in the namespace {NAMESPACE}.")


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Helm's library writes the API server's warnings to stderr, past Python. The tests of the chart heed them."""
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _release_state(config: helm.Config) -> str | None:
    try:
        with _without_warnings():
            return str(config.status(RELEASE)["status"])
    except helm.HelmNotFoundError:
        return None


def _why(kubeconfig: Path) -> str:
    """What the cluster says of the operator's pods, for an installation that did not come up."""
    pods = _kubectl(kubeconfig, "get", "pods", "-n", NAMESPACE, "-o", "wide")
    log = _kubectl(
        kubeconfig, "logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=sandbox-operator", "--tail=15"
    )
    return f"{pods.stdout.strip()}\n{log.stdout.strip()}"


def _kubectl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.kubectl()), "--kubeconfig", str(kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def main() -> int:
    """Installs on the cluster of CLUSTER_NAME; what is missing or wrong is said in one sentence."""
    return exit_code(_install_here)


def _install_here() -> None:
    target = choice.existing(cluster_name())
    record = target.state / "images.json" if target else None
    if target is None or record is None or not record.exists():
        raise ToolError(f"The cluster {cluster_name()} has no images yet: run `make cluster`.")
    install(target, json.loads(record.read_text()))


if __name__ == "__main__":
    sys.exit(main())
