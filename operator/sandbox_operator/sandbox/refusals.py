"""What it means for a sandbox when the API server refuses one of its children. Pure."""

import re

from sandbox_api.kube import ApiError, BadRequest, Forbidden, Invalid
from sandbox_api.v1alpha1 import Reason

from .diagnose import Problem
from .text import one_line

_TOO_LARGE = re.compile(
    r"request is too large|entity too large|larger than max|exceeds the limit", re.IGNORECASE
)


class Refused(Exception):  # noqa: N818 - what happened, as the plan gets to know it
    """A child cannot be made: the plan is to be made again, knowing why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def problem_of(error: ApiError) -> Problem | None:
    """The problem that a refusal of a child is; None where it is none of the sandbox's."""
    message = one_line(error.message)
    if error.namespace_terminating:
        return Problem(Reason.TERMINATING, "The namespace is being deleted and takes no pods.", True)
    if isinstance(error, Forbidden):
        if "exceeded quota" in message or "failed quota" in message:
            return Problem(Reason.QUOTA_EXCEEDED, message, True)
        if _is_rbac(message):
            return None
        # Rules of the cluster change without the sandbox's spec, so trying again may help.
        return Problem(Reason.ADMISSION_DENIED, message, True)
    if isinstance(error, Invalid):
        if "admission webhook" in message or "ValidatingAdmissionPolicy" in message:
            return Problem(Reason.ADMISSION_DENIED, message, True)
        return Problem(Reason.INVALID_SPEC, f"The API server does not take the pod: {message}", False)
    if isinstance(error, BadRequest):
        if "admission webhook" in message:
            return Problem(Reason.ADMISSION_DENIED, message, True)
        return Problem(Reason.INVALID_SPEC, f"The API server does not take the pod: {message}", False)
    if _TOO_LARGE.search(message):  # said with a code of the server's own failures
        return Problem(
            Reason.INVALID_SPEC, f"What the spec asks for makes a pod that is too large: {message}", False
        )
    return None


def _is_rbac(message: str) -> bool:
    """Whether our own rights are missing: a matter of the installation, not of the sandbox."""
    return bool(re.search(r'User "[^"]*" cannot \w+ resource', message))


def name_conflict(kind: str, name: str) -> Problem:
    """The name of a child is taken by an object that is not ours."""
    return Problem(
        Reason.NAME_CONFLICT,
        f"{kind} {name!r} exists and does not belong to this sandbox; it is left alone.",
        True,
    )
