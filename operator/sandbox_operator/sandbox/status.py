"""The status of a Sandbox: conditions as kstatus reads them, and when a write is worth it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox_api.v1alpha1 import ConditionType, Reason

from sandbox_operator.durations import format_time

from .diagnose import Problem
from .text import one_line

_MAX_CONDITION_MESSAGE = 1024
#: Reasons of a start that goes its way. They come and go within a second or two, so a change among them
#: alone is not worth a write.
PROGRESS = frozenset({Reason.STARTING, Reason.SCHEDULING, Reason.MATERIALIZING})
#: Fields that a change of is always written.
_MATERIAL = (
    "observedGeneration",
    "podName",
    "incarnation",
    "podGeneration",
    "serviceName",
    "startedAt",
    "restarts",
    "network",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a plan thinks of a sandbox; :func:`render` makes a status of it.

    Attributes:
        ready: The sandbox is as desired, and its workspace can be used.
        reason: Why it is so or not.
        message: One sentence.
        workspace_reason: Why the workspace is whole or not; ``Materialized`` means that it is.
        outdated: Fields of the spec that the pod was not made from.
        outdated_problem: What is wrong with a new spec that a running pod ignores.
        stalled: Nothing goes on until somebody acts.
        problem: What is wrong.
        fields: The other fields of the status; None removes one.
    """

    ready: bool
    reason: Reason
    message: str
    workspace_reason: Reason
    outdated: tuple[str, ...] = ()
    outdated_problem: Problem | None = None
    stalled: bool = False
    problem: Problem | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def render(verdict: Verdict, old: Mapping[str, Any], generation: int, now: float) -> dict[str, Any]:
    """The whole new status.

    Args:
        verdict: What is to be said.
        old: The status so far; its times of transition are kept where nothing changed.
        generation: Generation of the spec that the verdict speaks of.
        now: Seconds since the epoch.
    """
    filled = verdict.workspace_reason is Reason.MATERIALIZED
    settled = verdict.ready or verdict.stalled
    said = verdict.message
    conditions = [
        (ConditionType.READY, verdict.ready, verdict.reason, said),
        (ConditionType.AVAILABLE, verdict.ready, verdict.reason, said),
        (
            ConditionType.WORKSPACE_READY,
            filled,
            verdict.workspace_reason,
            "The workspace holds what the manifest asks for." if filled else said,
        ),
        _up_to_date(verdict),
        (
            ConditionType.RECONCILING,
            not settled,
            Reason.AT_REST if settled else verdict.reason,
            "" if settled else said,
        ),
        (
            ConditionType.STALLED,
            verdict.stalled,
            verdict.reason if verdict.stalled else Reason.AT_REST,
            said if verdict.stalled else "",
        ),
    ]
    status: dict[str, Any] = {
        **{key: value for key, value in old.items() if key not in {"conditions", "failure"}},
        "observedGeneration": generation,
        "conditions": [
            _condition(kind, value, reason, message, old, generation, now)
            for kind, value, reason, message in conditions
        ],
    }
    status.update(verdict.fields)
    if verdict.problem is not None:
        status["failure"] = _failure(verdict.problem)
    return {key: value for key, value in status.items() if value is not None}


def worth_writing(old: Mapping[str, Any], new: Mapping[str, Any], *, progress: bool = False) -> bool:
    """Whether a user or a program would see a difference that matters.

    Args:
        old: Status as last written.
        new: Status as rendered.
        progress: Whether a change among the reasons of progress matters by now.
    """
    if any(old.get(key) != new.get(key) for key in _MATERIAL):
        return True
    if _essence_of_failure(old) != _essence_of_failure(new):
        return True
    return _essence(old, progress) != _essence(new, progress)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch from one status to another: whole values of top-level fields, None for those gone."""
    patch = {key: value for key, value in new.items() if old.get(key) != value}
    patch.update({key: None for key in old if key not in new})
    if (was := old.get("failure")) and (now := patch.get("failure")):
        # Merge patches go into objects: what an earlier failure had more must be named to go.
        patch["failure"] = {**dict.fromkeys(was.keys() - now.keys()), **now}
    return patch


def find(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    """A condition; empty where there is none."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Mapping[str, Any] = condition
            return found
    return {}


def _up_to_date(verdict: Verdict) -> tuple[ConditionType, bool, Reason, str]:
    kind = ConditionType.UP_TO_DATE
    if verdict.outdated_problem is not None:
        message = f"The running pod goes on; the new spec cannot be taken: {verdict.outdated_problem.message}"
        return kind, False, verdict.outdated_problem.reason, message
    if verdict.outdated:
        shown = ", ".join(verdict.outdated[:20])
        message = f"Changed since the pod was made, taken at its next start: {shown}"
        return kind, False, Reason.RESTART_REQUIRED, message
    return kind, True, Reason.UP_TO_DATE, ""


def _condition(
    kind: ConditionType,
    value: bool,
    reason: Reason,
    message: str,
    old: Mapping[str, Any],
    generation: int,
    now: float,
) -> dict[str, Any]:
    before = find(old, kind)
    state = "True" if value else "False"
    since = before.get("lastTransitionTime") if before.get("status") == state else None
    return {
        "type": kind.value,
        "status": state,
        "reason": reason.value,
        "message": one_line(message, _MAX_CONDITION_MESSAGE),
        "lastTransitionTime": since or format_time(now),
        "observedGeneration": generation,
    }


def _failure(problem: Problem) -> dict[str, Any]:
    failure: dict[str, Any] = {
        "reason": problem.reason.value,
        "message": one_line(problem.message, _MAX_CONDITION_MESSAGE),
        "retryable": problem.retryable,
    }
    if problem.entry is not None:
        failure["entry"] = problem.entry
    return failure


def _essence(status: Mapping[str, Any], progress: bool) -> list[tuple[str, str, str]]:
    return [
        (
            condition["type"],
            condition["status"],
            condition["reason"] if progress or condition["reason"] not in PROGRESS else Reason.STARTING.value,
        )
        for condition in status.get("conditions") or ()
    ] + [
        ("UpToDate message", "", condition["message"])
        for condition in status.get("conditions") or ()
        if condition["type"] == ConditionType.UP_TO_DATE
    ]


def _essence_of_failure(status: Mapping[str, Any]) -> tuple[Any, ...] | None:
    failure = status.get("failure")
    if not failure:
        return None
    return failure.get("reason"), failure.get("entry"), failure.get("retryable")
