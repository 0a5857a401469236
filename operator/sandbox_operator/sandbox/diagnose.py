"""What a pod's status says about the sandbox. Pure; judged by container statuses, not by the pod's phase.

What containers say of themselves (termination messages) is untrusted: parsed, typed, bounded.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sandbox_api.v1alpha1 import MAX_PATH_BYTES, Reason

from . import names
from .text import MAX_MESSAGE, one_line

#: Reasons that the init container may give for its failure.
MATERIALIZE_REASONS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.MATERIALIZATION_FAILED,
        Reason.SOURCE_NOT_FOUND,
        Reason.PATH_CONFLICT,
        Reason.WORKSPACE_FULL,
        Reason.GIT_HOST_UNREACHABLE,
        Reason.GIT_AUTHENTICATION_FAILED,
        Reason.GIT_REPOSITORY_NOT_FOUND,
        Reason.GIT_REF_NOT_FOUND,
        Reason.GIT_SUBPATH_NOT_FOUND,
        Reason.GIT_REFUSED,
        Reason.GIT_TIMEOUT,
        Reason.GIT_FAILED,
    }
)
_PULL = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError",
     "SignatureValidationFailed"}
)  # fmt: skip
_CONFIG = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError",
     "PreStartHookError", "PostStartHookError"}
)  # fmt: skip
_EVICTIONS = {
    "EvictionByEvictionAPI": "The pod was evicted through the API, for example by a node's drain",
    "PreemptionByScheduler": "The pod made room for one of higher priority",
    "TerminationByKubelet": "The node ended the pod",
    "DeletionByTaintManager": "The node got a taint that the pod does not tolerate",
}
_MAX_TERMINATION = 4096


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, as ``status.failure`` has it."""

    reason: Reason
    message: str
    retryable: bool
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class PodState:
    """What a pod is to its sandbox.

    Attributes:
        uid: UID of the pod.
        usable: The workspace runs and can be used.
        progress: What a start that is neither usable nor failing is busy with.
        problem: What is wrong, where something is.
        over: The pod will never be usable again; a successor is needed.
        fatal: A successor would fail in the same way.
        filled: The init container has ended well.
        receipt: What it says it has done: entries, bytes, seconds.
        restarts: Restarts of the workspace container.
        restarted_by: Why the workspace container last ended, where it runs again.
    """

    uid: str
    usable: bool = False
    progress: Reason = Reason.STARTING
    problem: Problem | None = None
    over: bool = False
    fatal: bool = False
    filled: bool = False
    receipt: dict[str, Any] | None = None
    restarts: int = 0
    restarted_by: Problem | None = None


def diagnose(pod: Mapping[str, Any]) -> PodState:
    """Judge a pod by its trimmed or whole object."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    workspace = _container(status, "containerStatuses", names.WORKSPACE)
    state = PodState(uid=str(metadata.get("uid") or ""), restarts=int(workspace.get("restartCount") or 0))
    if metadata.get("deletionTimestamp") or status.get("phase") in {"Failed", "Succeeded"}:
        return replace(state, over=True, problem=_end(pod, status))
    if scheduling := _scheduling(pod, status):
        return replace(state, progress=Reason.SCHEDULING, problem=scheduling[0])
    return _running(_init(state, status), status, workspace)


def _end(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Problem:
    """Why a pod that is over is so."""
    message = one_line(str(status.get("message") or ""))
    reason = str(status.get("reason") or "")
    target = _condition(status, "DisruptionTarget")
    if reason == "NodeLost" or (_node_lost(status) and pod["metadata"].get("deletionTimestamp")):
        return Problem(Reason.NODE_LOST, "The node of the pod does not answer any more.", True)
    if reason == "Evicted":
        return Problem(Reason.EVICTED, f"The node evicted the pod: {message or 'no reason given'}", True)
    if target.get("status") == "True":
        why = str(target.get("reason") or "")
        if why == "DeletionByPodGC":
            return Problem(Reason.NODE_LOST, "The node of the pod is gone.", True)
        said = _EVICTIONS.get(why, "The pod was disrupted")
        return Problem(Reason.EVICTED, f"{said}: {one_line(str(target.get('message') or ''))}", True)
    if pod["metadata"].get("deletionTimestamp"):
        return Problem(Reason.POD_LOST, "The pod was deleted.", True)
    said = ": ".join(part for part in (reason, message) if part)
    return Problem(Reason.POD_LOST, f"The pod ended{': ' + said if said else '.'}", True)


def _scheduling(pod: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Problem | None] | None:
    """None once the pod has a node, else the problem of its scheduling, if there is one."""
    if (pod.get("spec") or {}).get("nodeName"):
        return None
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "True":
        return None
    if scheduled.get("reason") == "Unschedulable":
        message = one_line(str(scheduled.get("message") or "no node can take the pod"))
        return (Problem(Reason.UNSCHEDULABLE, message, True),)
    return (None,)


def _init(state: PodState, status: Mapping[str, Any]) -> PodState:
    """What the init container is doing, or has said."""
    init = _container(status, "initContainerStatuses", names.MATERIALIZE)
    current = init.get("state") or {}
    ended = current.get("terminated")
    if ended is not None and ended.get("exitCode") == 0:
        return replace(state, filled=True, receipt=_receipt(ended))
    if (waiting := current.get("waiting")) and (problem := _waiting(waiting, names.MATERIALIZE)):
        return replace(state, problem=problem, fatal=not problem.retryable)
    last = ended or (init.get("lastState") or {}).get("terminated")
    if last is not None and last.get("exitCode") != 0:
        problem = _materialize_problem(last)
        return replace(state, progress=Reason.MATERIALIZING, problem=problem, fatal=not problem.retryable)
    if "running" in current:
        return replace(state, progress=Reason.MATERIALIZING)
    return state


def _running(state: PodState, status: Mapping[str, Any], workspace: Mapping[str, Any]) -> PodState:
    """What the ordinary containers are doing."""
    if state.problem is not None:
        return state
    current = workspace.get("state") or {}
    last = (workspace.get("lastState") or {}).get("terminated")
    for name, container in _containers(status):
        if (waiting := (container.get("state") or {}).get("waiting")) and (
            problem := _waiting(waiting, name)
        ):
            return replace(state, problem=problem, fatal=not problem.retryable)
    if "terminated" in current:
        return replace(state, problem=_exit(current["terminated"]))
    if "waiting" in current:
        if current["waiting"].get("reason") == "CrashLoopBackOff" and last is not None:
            return replace(state, problem=_exit(last))
        return state
    if "running" not in current or not workspace.get("ready"):
        return state
    if _node_lost(status):
        return replace(
            state,
            problem=Problem(Reason.NODE_LOST, "The node of the pod does not answer.", True),
        )
    return replace(
        state,
        usable=True,
        filled=True,
        restarted_by=_exit(last) if last is not None and state.restarts else None,
    )


def _waiting(waiting: Mapping[str, Any], container: str) -> Problem | None:
    reason, message = str(waiting.get("reason") or ""), one_line(str(waiting.get("message") or ""))
    if reason in _PULL:
        return Problem(Reason.IMAGE_PULL_FAILED, f"Container {container}: {message or reason}", True)
    if reason == "InvalidImageName":
        return Problem(Reason.INVALID_IMAGE, f"Container {container}: {message or reason}", False)
    if reason in _CONFIG:
        return Problem(Reason.CONTAINER_CONFIG_ERROR, f"Container {container}: {message or reason}", True)
    return None


def _exit(terminated: Mapping[str, Any]) -> Problem:
    """Why the workspace container ended."""
    reason, code = str(terminated.get("reason") or ""), terminated.get("exitCode")
    if reason == "OOMKilled":
        return Problem(
            Reason.OUT_OF_MEMORY,
            "A process of the workspace used more memory than resources.limits.memory allows.",
            True,
        )
    if reason in {"StartError", "ContainerCannotRun"}:
        message = one_line(str(terminated.get("message") or reason))
        return Problem(Reason.CONTAINER_CONFIG_ERROR, f"Container {names.WORKSPACE}: {message}", True)
    signal = terminated.get("signal")
    how = f"was ended by signal {signal}" if signal else f"ended with exit code {code}"
    return Problem(Reason.WORKSPACE_EXITED, f"The workspace container {how}.", True)


def _materialize_problem(terminated: Mapping[str, Any]) -> Problem:
    """What the init container says about its failure."""
    if terminated.get("reason") == "OOMKilled":
        return Problem(
            Reason.OUT_OF_MEMORY,
            "The init container needed more memory than the administrator gives it.",
            True,
        )
    said = _json(terminated)
    try:
        reason = Reason(str(said.get("reason")))
    except ValueError:
        reason = Reason.MATERIALIZATION_FAILED
    if reason not in MATERIALIZE_REASONS:
        reason = Reason.MATERIALIZATION_FAILED
    message = said.get("message")
    entry = said.get("entry")
    code = terminated.get("exitCode")
    return Problem(
        reason,
        one_line(message) if isinstance(message, str) and message else
        one_line(f"The init container ended with exit code {code}. {terminated.get('reason') or ''}"),
        # Only a clear no ends the attempts: a container that was killed has said nothing.
        said.get("retryable") is not False,
        entry if isinstance(entry, str) and 0 < len(entry.encode("utf-8", "replace")) <= MAX_PATH_BYTES else None,
    )  # fmt: skip


def _receipt(terminated: Mapping[str, Any]) -> dict[str, Any] | None:
    said = _json(terminated)
    entries, size, seconds = said.get("entries"), said.get("bytes"), said.get("seconds")
    numbers = (entries, size, seconds)
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 2**53 for n in numbers):
        return None
    return {"entries": int(entries or 0), "bytes": int(size or 0), "seconds": round(float(seconds or 0), 3)}


def _json(terminated: Mapping[str, Any]) -> dict[str, Any]:
    try:
        said = json.loads(str(terminated.get("message") or "")[:_MAX_TERMINATION])
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _node_lost(status: Mapping[str, Any]) -> bool:
    """Whether the node controller has given the node up.

    It sets the pod's Ready to False and leaves ContainersReady; the kubelet itself keeps the two together,
    since our pods have no readiness gates.
    """
    return (
        _condition(status, "Ready").get("status") == "False"
        and _condition(status, "ContainersReady").get("status") == "True"
    )


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Mapping[str, Any] = condition
            return found
    return {}


def _container(status: Mapping[str, Any], where: str, name: str) -> Mapping[str, Any]:
    for container in status.get(where) or ():
        if container.get("name") == name:
            found: Mapping[str, Any] = container
            return found
    return {}


def _containers(status: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The ordinary containers, the workspace first: its problems are the user's."""
    for name in (names.WORKSPACE, names.KEEPER):
        yield name, _container(status, "containerStatuses", name)


__all__ = ["MATERIALIZE_REASONS", "MAX_MESSAGE", "PodState", "Problem", "diagnose"]
