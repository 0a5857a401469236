"""A native cluster comes up again after a crash, and takes everything along when it goes."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.local import binaries
from dev.local.native import NativeCluster
from dev.local.recorded_process import RecordedProcess

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="a native cluster needs root"),
]


@pytest.fixture
def native() -> Iterator[NativeCluster]:
    cluster = NativeCluster(f"test-{os.getpid()}")
    yield cluster
    cluster.down()


def kubectl(cluster: NativeCluster, *arguments: str) -> str:
    command = [str(binaries.kubectl()), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def leftovers(cluster: NativeCluster) -> list[str]:
    """What of the cluster is still on the machine."""
    found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{cluster.control_group}")]
    found += [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if str(cluster.state) in line
    ]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(cluster.state) in command:
            found.append(command)
    return found + ([str(cluster.state)] if cluster.state.exists() else [])


@pytest.mark.parametrize("victim", ["node", "first process inside", "forwarder"])
def test_it_survives_the_death_of(victim: str, native: NativeCluster) -> None:
    native.up()
    kubectl(native, "create", "namespace", "kept")
    node, forwarder = (RecordedProcess.read(native.state, part) for part in ("node", "forwarder"))
    assert node
    assert forwarder
    dead = {"node": node, "forwarder": forwarder}.get(victim) or RecordedProcess.of(node.children()[0])
    os.kill(dead.pid, signal.SIGKILL)
    assert dead.wait_for_end(10)
    assert not native.running()
    native.up()
    native.up()
    assert "kept" in kubectl(native, "get", "namespace", "kept", "-o", "name")
    assert "Ready" in kubectl(native, "get", "nodes")
    native.down()
    assert leftovers(native) == []
    native.down()


def test_what_a_crash_left_is_removed(native: NativeCluster) -> None:
    native.up()
    for part in ("forwarder", "node"):
        process = RecordedProcess.read(native.state, part)
        assert process
        os.kill(process.pid, signal.SIGKILL)
    native.down()
    assert leftovers(native) == []
