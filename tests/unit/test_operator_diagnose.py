"""A table of pods and what each means for its sandbox."""

import json
from typing import Any

import pytest
from sandbox_api.v1alpha1 import Reason
from sandbox_operator.sandbox.diagnose import MAX_MESSAGE, PodState, diagnose

from .operator_objects import container, ended, pod, pod_status, running

FILLED = container(
    "materialize", terminated=ended(0, '{"ok": true, "entries": 1, "bytes": 2, "seconds": 0.1}')
)


def failed(**said: Any) -> dict[str, Any]:
    return container("materialize", terminated=ended(1, json.dumps({"ok": False, **said})))


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod_status(FILLED, container("workspace", waiting={"reason": reason, "message": message}))


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("status", "reason", "retryable", "fatal"),
    [
        pytest.param(waiting("ErrImagePull", "not found"), Reason.IMAGE_PULL_FAILED, True, False, id="pull"),
        pytest.param(
            waiting("ImagePullBackOff", "x"), Reason.IMAGE_PULL_FAILED, True, False, id="pull-backoff"
        ),
        pytest.param(waiting("ErrImageNeverPull"), Reason.IMAGE_PULL_FAILED, True, False, id="never-pull"),
        pytest.param(waiting("InvalidImageName", "bad"), Reason.INVALID_IMAGE, False, True, id="image-name"),
        pytest.param(
            waiting("CreateContainerConfigError", 'secret "x" not found'),
            Reason.CONTAINER_CONFIG_ERROR,
            True,
            False,
            id="config",
        ),
        pytest.param(
            waiting("CreateContainerError"), Reason.CONTAINER_CONFIG_ERROR, True, False, id="create"
        ),
        pytest.param(
            pod_status(container("materialize", waiting={"reason": "ImagePullBackOff"})),
            Reason.IMAGE_PULL_FAILED,
            True,
            False,
            id="our-own-image",
        ),
        pytest.param(
            pod_status(
                FILLED,
                container("workspace", running={}),
                container("keeper", waiting={"reason": "ErrImagePull"}),
            ),
            Reason.IMAGE_PULL_FAILED,
            True,
            False,
            id="keepers-image",
        ),
        pytest.param(
            pod_status(FILLED, container("workspace", terminated=ended(3))),
            Reason.WORKSPACE_EXITED,
            True,
            False,
            id="exited",
        ),
        pytest.param(
            pod_status(
                FILLED,
                container(
                    "workspace",
                    restarts=2,
                    last=ended(137, reason="OOMKilled"),
                    waiting={"reason": "CrashLoopBackOff"},
                ),
            ),
            Reason.OUT_OF_MEMORY,
            True,
            False,
            id="oom",
        ),
        pytest.param(
            pod_status(
                FILLED,
                container(
                    "workspace",
                    last=ended(128, "exec format error", "StartError"),
                    waiting={"reason": "CrashLoopBackOff"},
                ),
            ),
            Reason.CONTAINER_CONFIG_ERROR,
            True,
            False,
            id="cannot-start",
        ),
        pytest.param(
            pod_status(failed(reason="GitRefNotFound", message="m", retryable=False)),
            Reason.GIT_REF_NOT_FOUND,
            False,
            True,
            id="git-ref",
        ),
        pytest.param(
            pod_status(failed(reason="GitHostUnreachable", message="m", retryable=True)),
            Reason.GIT_HOST_UNREACHABLE,
            True,
            False,
            id="git-host",
        ),
        pytest.param(
            pod_status(
                container(
                    "materialize",
                    last=ended(1, '{"reason": "SourceNotFound", "retryable": true}'),
                    waiting={"reason": "CrashLoopBackOff"},
                )
            ),
            Reason.SOURCE_NOT_FOUND,
            True,
            False,
            id="waits-to-be-tried-again",
        ),
        pytest.param(
            pod_status(
                container(
                    "materialize",
                    last=ended(1, '{"reason": "SourceNotFound", "retryable": true}'),
                    running={},
                )
            ),
            Reason.SOURCE_NOT_FOUND,
            True,
            False,
            id="is-being-tried-again",
        ),
        pytest.param(
            pod_status(container("materialize", terminated=ended(137, reason="OOMKilled"))),
            Reason.OUT_OF_MEMORY,
            True,
            False,
            id="init-oom",
        ),
        pytest.param(
            pod_status(container("materialize", terminated=ended(2, "Traceback…"))),
            Reason.MATERIALIZATION_FAILED,
            True,
            False,
            id="no-json",
        ),
        pytest.param(
            pod_status(failed(reason="Available", message="m")),
            Reason.MATERIALIZATION_FAILED,
            True,
            False,
            id="not-its-reason",
        ),
        pytest.param(
            pod_status(failed(reason=["x"], message={}, retryable="no", entry=5)),
            Reason.MATERIALIZATION_FAILED,
            True,
            False,
            id="wrong-types",
        ),
    ],
)
def test_a_pod_that_fails_says_why(
    status: dict[str, Any], reason: Reason, retryable: bool, fatal: bool
) -> None:
    state = diagnose(pod(status))
    assert state.problem is not None
    assert (state.problem.reason, state.problem.retryable, state.fatal) == (reason, retryable, fatal)
    assert not state.usable
    assert not state.over


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (pod(running(), deletionTimestamp="2026-01-01T00:00:00Z"), Reason.POD_LOST),
        (pod({"phase": "Failed", "reason": "Evicted", "message": "exceeds"}), Reason.EVICTED),
        (pod({"phase": "Failed", "reason": "NodeLost"}), Reason.NODE_LOST),
        (pod({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "gpu"}), Reason.POD_LOST),
        (pod({"phase": "Succeeded"}), Reason.POD_LOST),
        (
            pod(
                {"conditions": [condition("DisruptionTarget", "True", "EvictionByEvictionAPI")]},
                deletionTimestamp="2026-01-01T00:00:00Z",
            ),
            Reason.EVICTED,
        ),
        (
            pod(
                {"phase": "Failed", "conditions": [condition("DisruptionTarget", "True", "DeletionByPodGC")]}
            ),
            Reason.NODE_LOST,
        ),
        (
            pod(
                {"conditions": [condition("Ready", "False"), condition("ContainersReady", "True")]},
                deletionTimestamp="2026-01-01T00:00:00Z",
            ),
            Reason.NODE_LOST,
        ),
    ],
)
def test_a_pod_that_is_over_needs_a_successor(made: dict[str, Any], reason: Reason) -> None:
    state = diagnose(made)
    assert state.over
    assert not state.usable
    assert state.problem is not None
    assert (state.problem.reason, state.problem.retryable) == (reason, True)


@pytest.mark.parametrize(
    ("made", "progress"),
    [
        (pod(node=""), Reason.SCHEDULING),
        (
            pod({"conditions": [condition("PodScheduled", "False", "SchedulingGated")]}, node=""),
            Reason.SCHEDULING,
        ),
        (pod(), Reason.STARTING),
        (pod(pod_status(container("materialize", waiting={"reason": "PodInitializing"}))), Reason.STARTING),
        (pod(pod_status(container("materialize", running={}))), Reason.MATERIALIZING),
        (
            pod(pod_status(FILLED, container("workspace", waiting={"reason": "PodInitializing"}))),
            Reason.STARTING,
        ),
    ],
)
def test_a_start_that_goes_its_way_is_no_problem(made: dict[str, Any], progress: Reason) -> None:
    state = diagnose(made)
    assert (state.problem, state.progress, state.usable) == (None, progress, False)


def test_unschedulable_says_what_the_scheduler_says() -> None:
    status = {
        "conditions": [condition("PodScheduled", "False", "Unschedulable", "0/3 nodes:\ninsufficient memory")]
    }
    problem = diagnose(pod(status, node="")).problem
    assert problem is not None
    assert (problem.reason, problem.message) == (Reason.UNSCHEDULABLE, "0/3 nodes: insufficient memory")


def test_a_running_workspace_is_usable_and_brings_its_receipt() -> None:
    state = diagnose(pod(running()))
    assert state.usable
    assert state.receipt == {"entries": 2, "bytes": 3, "seconds": 0.5}


def test_a_workspace_that_runs_but_is_not_ready_is_not_usable() -> None:
    status = running()
    status["containerStatuses"][1]["ready"] = False
    assert not diagnose(pod(status)).usable


def test_the_phase_alone_means_nothing() -> None:
    assert not diagnose(pod({"phase": "Running"})).usable
    status = running() | {"phase": "Pending"}
    assert diagnose(pod(status)).usable


def test_a_node_that_is_given_up_makes_the_workspace_unusable_but_not_over() -> None:
    status = running() | {"conditions": [condition("Ready", "False"), condition("ContainersReady", "True")]}
    state = diagnose(pod(status))
    assert not state.usable
    assert not state.over
    assert state.problem is not None
    assert state.problem.reason is Reason.NODE_LOST


@pytest.mark.parametrize(
    "message",
    [
        "",
        "x",
        "[]",
        "null",
        '{"entries": -1, "bytes": 0, "seconds": 0}',
        '{"entries": true, "bytes": 0, "seconds": 0}',
        '{"entries": 1e400, "bytes": 0, "seconds": 0}',
        "[" * 4000,
        '{"entries": NaN, "bytes": 0, "seconds": 0}',
    ],
)
def test_a_receipt_that_makes_no_sense_is_left_out(message: str) -> None:
    status = pod_status(
        container("materialize", terminated=ended(0, message)), container("workspace", running={})
    )
    state = diagnose(pod(status))
    assert state.usable
    assert state.receipt is None


def test_what_a_container_says_is_bounded_and_one_line() -> None:
    long = "a\nb\x00\u202e" + "c" * 5000
    problem = diagnose(
        pod(pod_status(failed(reason="GitFailed", message=long[:3000], entry="e" * 600)))
    ).problem
    assert problem is not None
    assert len(problem.message) <= MAX_MESSAGE
    assert problem.message.isprintable()
    assert problem.entry is None


def test_a_restart_is_remembered_with_its_cause() -> None:
    status = running()
    status["containerStatuses"][1] |= {
        "restartCount": 2,
        "lastState": {"terminated": ended(137, reason="OOMKilled")},
    }
    state = diagnose(pod(status))
    assert state.usable
    assert state.restarts == 2
    assert state.restarted_by is not None
    assert state.restarted_by.reason is Reason.OUT_OF_MEMORY


def test_an_empty_pod_can_be_judged() -> None:
    assert isinstance(diagnose({"metadata": {}}), PodState)
