"""Bare control planes for tests."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dev.local import binaries
from dev.local.control_plane import ControlPlane
from dev.local.recorded_process import all_recorded

pytestmark = pytest.mark.apiserver


def kubectl(control_plane: ControlPlane, *arguments: str) -> str:
    command = [str(binaries.kubectl()), "--kubeconfig", str(control_plane.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_two_at_once_know_nothing_of_each_other() -> None:
    with ControlPlane() as one, ControlPlane() as two:
        kubectl(one, "create", "namespace", "only-here")
        assert "only-here" in kubectl(one, "get", "namespaces")
        assert "only-here" not in kubectl(two, "get", "namespaces")
        processes = [*all_recorded(one.state), *all_recorded(two.state)]
        assert len(processes) == 4
    assert not any(process.alive() for process in processes)
    assert not one.state.exists()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, signal; from dev.local.control_plane import ControlPlane\n"
        "plane = ControlPlane(); plane.up(); print(plane.state, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    state = Path(done.stdout.strip())
    processes = all_recorded(state)
    assert len(processes) == 2
    end = time.monotonic() + 10
    while any(process.alive() for process in processes) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(process.alive() for process in processes)
    leftover = ControlPlane(state.name)
    leftover.down()
    leftover.down()
    assert not state.exists()
