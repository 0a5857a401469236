"""What a sandbox can do instead of becoming ready. Errors of the API server are those of sandbox_api.kube."""

from sandbox_api.v1alpha1 import Failure, Sandbox


class SandboxProblem(Exception):  # noqa: N818 - the root; what is raised is one of the errors below
    """The root of the tree.

    Attributes:
        sandbox: ``namespace/name``.
        retryable: Whether trying again without a change may help.
    """

    def __init__(self, sandbox: str, message: str, *, retryable: bool) -> None:
        super().__init__(f"sandbox {sandbox}: {message}")
        self.sandbox = sandbox
        self.message = message
        self.retryable = retryable


class SandboxFailedError(SandboxProblem):
    """The operator says that the sandbox cannot become available as it is.

    Attributes:
        reason: One of ``sandbox_api.v1alpha1.Reason``.
        entry: Manifest entry that failed, where one did.
    """

    def __init__(self, sandbox: str, failure: Failure) -> None:
        where = f" (entry {failure.entry!r})" if failure.entry else ""
        super().__init__(sandbox, f"{failure.reason}{where}: {failure.message}", retryable=failure.retryable)
        self.reason = failure.reason
        self.entry = failure.entry


class SandboxGoneError(SandboxProblem):
    """There is no such sandbox (any more), or it is being deleted."""

    def __init__(self, sandbox: str, message: str = "it does not exist") -> None:
        super().__init__(sandbox, message, retryable=False)


class SandboxTimeoutError(SandboxProblem):
    """It took longer than the caller would wait; the sandbox itself may still come.

    Attributes:
        failure: What the operator last complained of, where it did.
    """

    def __init__(self, sandbox: str, message: str, failure: Failure | None = None) -> None:
        why = f"; last seen: {failure.reason}: {failure.message}" if failure else ""
        super().__init__(sandbox, message + why, retryable=True)
        self.failure = failure


def final_failure(sandbox: Sandbox) -> Failure | None:
    """The failure that ends all waiting: one that no retry can help, or that the operator has given up on."""
    status = sandbox.status
    if status is None or status.failure is None:
        return None
    if (status.observed_generation or 0) < sandbox.metadata.generation:
        return None  # it speaks of an older spec
    stalled = any(c.type == "Stalled" and c.status == "True" for c in status.conditions or ())
    return status.failure if stalled or not status.failure.retryable else None


def condition(sandbox: Sandbox, name: str) -> str:
    """Status of a condition: True, False or Unknown."""
    status = sandbox.status
    found = [c.status for c in (status.conditions if status else None) or () if c.type == name]
    return found[0] if found else "Unknown"
