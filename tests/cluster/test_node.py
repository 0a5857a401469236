"""What happens on the node beneath a sandbox: its pause process dies, its kubelet starts anew."""

import pytest

from dev.local import choice
from dev.local.locations import cluster_name
from dev.local.native import NativeCluster

from .conftest import Namespace

#: Every name with inode, time and mode: a file that was written again differs.
LISTING = "find . -printf '%P %i %T@ %m\\n' | sort"


@pytest.fixture
def node() -> NativeCluster:
    """The node, where it can be entered."""
    standing = choice.existing(cluster_name())
    if not isinstance(standing, NativeCluster):
        pytest.skip("needs a node that can be entered: the native cluster")
    return standing


def ctr(node: NativeCluster, *command: str) -> str:
    done = node.run_inside(["ctr", "--namespace", "k8s.io", *command], timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill_pause_process(node: NativeCluster, pod_uid: str) -> None:
    chosen = f'labels."io.kubernetes.pod.uid"=={pod_uid},labels."io.cri-containerd.kind"==sandbox'
    for container in ctr(node, "containers", "list", "--quiet", chosen).split():
        ctr(node, "tasks", "kill", "--signal", "SIGKILL", container)


def test_the_init_container_that_runs_again_over_a_living_workspace_touches_nothing(
    namespace: Namespace, node: NativeCluster
) -> None:
    namespace.create("keep", entries={"a": {"file": {"content": "from the manifest"}}, "c": {"dir": {}}})
    namespace.wait_ready("keep")
    namespace.sh("keep", "echo changed > a; echo new > b; rmdir c; touch -d 2001-02-03 b")
    before = namespace.sh("keep", LISTING)
    pod = namespace.get("pod", namespace.pod_name("keep"))
    assert pod
    kill_pause_process(node, pod["metadata"]["uid"])

    def init_runs_again() -> bool:
        now = namespace.get("pod", pod["metadata"]["name"])
        status = (now or {})["status"]["initContainerStatuses"][0]
        return status["containerID"] != pod["status"]["initContainerStatuses"][0]["containerID"]

    namespace.until(init_runs_again, "the init container to run again", 90)
    namespace.wait_ready("keep", 120)
    after = namespace.get("pod", namespace.pod_name("keep"))
    assert after
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert namespace.sh("keep", LISTING) == before
