"""What tests need of the outside: a bare control plane, or the cluster that `make test` has brought up."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dev.local import binaries, choice
from dev.local.control_plane import ControlPlane
from dev.local.locations import REPOSITORY, cluster_name

MARK_OF_FOLDER = {"cluster": "cluster", "crds": "apiserver", "operator": "apiserver"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a test needs is said by the folder it lies in."""
    tests = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(tests):
            mark = MARK_OF_FOLDER.get(item.path.relative_to(tests).parts[0])
            if mark:
                item.add_marker(mark)


@dataclass(frozen=True)
class RunningCluster:
    """A whole cluster with the operator installed."""

    kubeconfig: Path
    images: dict[str, str]
    """The names of the images there: operator, workspace, demo (a plain distribution with Python and git)."""


@pytest.fixture(scope="session")
def cluster() -> RunningCluster:
    """The cluster of CLUSTER_NAME, or the one of SANDBOX_TEST_KUBECONFIG (with images.json beside it)."""
    if os.environ.get("SANDBOX_TEST_SKIP_CLUSTER"):
        pytest.skip("SANDBOX_TEST_SKIP_CLUSTER is set")
    given = os.environ.get("SANDBOX_TEST_KUBECONFIG")
    if given:
        kubeconfig = Path(given)
    else:
        standing = choice.existing(cluster_name())
        if standing is None or not standing.running():
            pytest.fail(
                f"The cluster {cluster_name()} is not up: `make cluster` (or SANDBOX_TEST_SKIP_CLUSTER=1).",
                pytrace=False,
            )
        kubeconfig = standing.kubeconfig
    images = kubeconfig.parent / "images.json"
    if not images.exists():
        pytest.fail(f"{images} is missing: run `make cluster`.", pytrace=False)
    return RunningCluster(kubeconfig, json.loads(images.read_text()))


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Path]:
    """The kubeconfig of a fresh API server that knows our resources, without kubelet and controllers."""
    with ControlPlane() as started:
        crds = REPOSITORY / "crds"
        if any(crds.glob("*.yaml")):
            run_kubectl(started.kubeconfig, "apply", "--server-side", "-f", str(crds))
            run_kubectl(
                started.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"
            )
        yield started.kubeconfig


@pytest.fixture(scope="session")
def kubectl(cluster: RunningCluster) -> Callable[..., subprocess.CompletedProcess[str]]:
    """kubectl on the running cluster: kubectl("get", "pods", stdin=None, check=True, timeout=120)."""

    def run(
        *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return run_kubectl(cluster.kubeconfig, *arguments, stdin=stdin, check=check, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def control_plane_kubectl(control_plane: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """kubectl on the bare control plane, with the same arguments."""

    def run(
        *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return run_kubectl(control_plane, *arguments, stdin=stdin, check=check, timeout=timeout)

    return run


def run_kubectl(
    kubeconfig: Path, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs kubectl; with `check` a failure fails the test with what kubectl said."""
    command = [str(binaries.kubectl()), "--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, errors="replace", check=False, timeout=timeout
    )
    if check and done.returncode != 0:
        pytest.fail(f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}", pytrace=False)
    return done
