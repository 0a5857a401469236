"""Our errors as the SDK's: the right class, retryability kept, a context for programs, and no secrets.

Message and context reach logs, sinks and sometimes the model, so they hold what the API server, the operator
and the agent said, and never request bodies or environment values.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecNonZeroError,
    ExecTransportError,
    GitCloneError,
    InvalidManifestPathError,
    OpName,
    SandboxError,
    SandboxRuntimeError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.types import ExecResult
from sandbox_api.kube import (
    AlreadyExists,
    ApiError,
    CredentialsError,
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)

from .failures import SandboxFailedError, SandboxProblem, SandboxTimeoutError
from .stream.errors import (
    AgentError,
    Code,
    ConnectionLostError,
    NotFoundError,
    PathRefusedError,
    StoppingError,
    StreamError,
    UnsupportedUserError,
)

BACKEND = "kubernetes"


def configuration_error(
    message: str, *, op: OpName = "start", context: Mapping[str, object] | None = None
) -> ConfigurationError:
    """Something that the caller must change; no retry helps."""
    return ConfigurationError(
        message=message,
        error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
        op=op,
        context={"backend": BACKEND, **(context or {})},
        retryable=False,
    )


def describe(error: BaseException) -> dict[str, object]:
    """What programs may want to know of one of our errors."""
    if isinstance(error, AgentError):
        known: dict[str, object] = {"code": str(error.code), "path": error.path, "errno": error.errno}
    elif isinstance(error, ApiError):
        known = {"status": error.status, "reason": error.reason}
    elif isinstance(error, SandboxFailedError):
        known = {"sandbox": error.sandbox, "reason": error.reason, "entry": error.entry}
    elif isinstance(error, SandboxTimeoutError):
        failure = error.failure
        known = {"sandbox": error.sandbox, "reason": failure.reason if failure else "StartTimeout"}
    elif isinstance(error, SandboxProblem):
        known = {"sandbox": error.sandbox}
    else:
        known = {}
    return {"backend": BACKEND, "detail": str(error), **{k: v for k, v in known.items() if v is not None}}


def retryable(error: BaseException) -> bool | None:
    """Whether the same call may be made again with a chance of success; None where nobody knows."""
    if isinstance(error, ApiError) and error.reason == "ConnectionRefused":
        return False  # a certificate that is not trusted, or a proxy that does not let us through
    if isinstance(error, AgentError | ApiError | SandboxProblem):
        return error.retryable
    return None


def start_error(error: Exception, root: Path) -> Exception:
    """For a start that failed. Errors of the SDK's own and git failures keep their class."""
    if isinstance(error, SandboxError):
        return error
    if isinstance(error, CredentialsError):
        return configuration_error(str(error))
    if isinstance(error, SandboxFailedError) and error.reason.startswith("Git"):
        git = GitCloneError(
            url=f"entry {error.entry}",
            ref=error.reason,
            stderr=error.message,
            context=describe(error),
            cause=error,
        )
        git.retryable = error.retryable
        return git
    if isinstance(error, ApiError | AgentError | SandboxProblem):
        return WorkspaceStartError(
            path=root,
            message=f"failed to start the sandbox: {error}",
            context=describe(error),
            cause=error,
            retryable=retryable(error),
        )
    return error


def create_error(error: ApiError | CredentialsError, namespace: str, name: str) -> SandboxError:
    """For a Sandbox that the API server would not create; says what to do about the usual causes."""
    if isinstance(error, CredentialsError | Unreachable | ServerError | TooManyRequests | Unauthorized):
        return api_error(error, "start")
    if isinstance(error, NotFound) and error.details.get("kind") != "namespaces":
        message = (
            "this cluster does not know the kind Sandbox (sandboxes.sandbox-operator.dev): "
            "install the chart sandbox-operator first"
        )
    elif isinstance(error, Forbidden):
        message = f"the Kubernetes API does not allow this sandbox: {error.message}"
    elif isinstance(error, AlreadyExists):
        message = f"there is already a sandbox {namespace}/{name}: delete it, or leave options.name out"
    else:
        message = f"the Kubernetes API refused the sandbox: {error.message}"
    return configuration_error(message, context=describe(error))


def api_error(error: ApiError | CredentialsError, op: OpName) -> SandboxError:
    """For a request that the API server refused, or did not answer, or for which there are no credentials."""
    if isinstance(error, CredentialsError):
        return configuration_error(str(error), op=op)
    if isinstance(error, Unauthorized):
        return configuration_error(
            "the Kubernetes API does not accept these credentials: they have run out, or are another cluster's; "
            "log in again, or get a new token",
            op=op,
            context=describe(error),
        )
    return SandboxRuntimeError(
        message=f"the Kubernetes API: {error}",
        error_code=ErrorCode.WORKSPACE_START_ERROR if op == "start" else ErrorCode.WORKSPACE_STOP_ERROR,
        op=op,
        context=describe(error),
        cause=error,
        retryable=retryable(error),
    )


def explain(error: AgentError, *, change: bool = False) -> str:
    """What happened, and what to do where the sandbox's pod is the cause.

    Args:
        error: What happened.
        change: Whether what was asked would have changed something.
    """
    if isinstance(error, StoppingError) or error.code == Code.POD_NOT_FOUND:
        return (
            "the pod of the sandbox was deleted or is being stopped, and nothing more can be done in it: "
            f"start() the session again to go on in its next one ({error.message})"
        )
    if error.code == Code.CONTAINER_NOT_RUNNING:
        return f"{error.message}: try again in a moment, or start() the session again"
    if change and isinstance(error, ConnectionLostError):
        return f"{error.message}: it may or may not have been done"
    return error.message


def killed_error(command: Sequence[str | Path]) -> SandboxError:
    """For a command that ended because its container was being stopped."""
    return ExecTransportError(
        command=command,
        message="exec transport error: the command was killed because the pod of the sandbox is being deleted or "
        "stopped: start() the session again to go on in its next one",
        context={"backend": BACKEND, "code": "stopping"},
        retryable=False,
    )


def exec_error(error: AgentError, command: Sequence[str | Path]) -> SandboxError:
    """For a command that could not be run, or whose end is not known."""
    if isinstance(error, UnsupportedUserError):
        return unsupported_user(error, "exec")
    return ExecTransportError(
        command=command,
        message=f"exec transport error: {explain(error, change=True)}",
        context=describe(error),
        cause=error,
        retryable=error.retryable,
    )


def unsupported_user(error: AgentError, op: OpName) -> ConfigurationError:
    """For ``run_as`` and ``user=``."""
    return configuration_error(
        "this sandbox cannot act as another user than its pod's own (run_as, user=); leave the user out",
        op=op,
        context={"detail": str(error)},
    )


def read_error(error: AgentError, path: Path) -> SandboxError:
    """For a file that could not be read."""
    if isinstance(error, NotFoundError):
        return WorkspaceReadNotFoundError(path=path, context=describe(error), cause=error)
    if isinstance(error, PathRefusedError):
        return path_error(error, path)
    if isinstance(error, UnsupportedUserError):
        return unsupported_user(error, "read")
    # What changes nothing may be asked again after any break.
    again = error.retryable or isinstance(error, ConnectionLostError)
    failed = WorkspaceArchiveReadError(path=path, context=describe(error), cause=error, retryable=again)
    failed.message = f"failed to read {path}: {explain(error)}"
    failed.args = (failed.message,)
    return failed


def write_error(error: AgentError, path: Path) -> SandboxError:
    """For a change that could not be made, or of which nobody knows whether it was."""
    if isinstance(error, PathRefusedError):
        return path_error(error, path)
    if isinstance(error, UnsupportedUserError):
        return unsupported_user(error, "write")
    return WorkspaceArchiveWriteError(
        path=path,
        message=f"failed to write {path}: {explain(error, change=True)}",
        context=describe(error),
        cause=error,
        retryable=error.retryable,
    )


def path_too_long(path: str, size: int, limit: int, *, for_write: bool) -> SandboxError:
    """For a path that no file can have. Of the path itself only the beginning is in the error."""
    message = f"the path {path[:80]}… has {size} bytes; a path has at most {limit}"
    shown, context = Path(f"{path[:80]}…"), {"backend": BACKEND, "reason": "path_too_long"}
    if for_write:
        return WorkspaceArchiveWriteError(path=shown, message=message, context=context, retryable=False)
    failed = WorkspaceArchiveReadError(path=shown, context=context, retryable=False)
    failed.message, failed.args = message, (message,)
    return failed


def path_error(error: AgentError, path: Path) -> SandboxError:
    """For a path that the agent's confinement refuses; the same classes as the SDK's own checks use."""
    if error.code == Code.READ_ONLY:
        return WorkspaceArchiveWriteError(
            path=path,
            context={**describe(error), "reason": "read_only_extra_path_grant"},
            cause=error,
            retryable=False,
        )
    reason: Literal["absolute", "escape_root"] = "absolute" if path.is_absolute() else "escape_root"
    return InvalidManifestPathError(rel=path.as_posix(), reason=reason, context=describe(error), cause=error)


def command_error(error: AgentError, path: Path, command: Sequence[str | Path]) -> SandboxError:
    """For ls, rm, mkdir and mv, commands to the SDK: an answer is a non-zero exit, a break is not."""
    if isinstance(error, PathRefusedError):
        return path_error(error, path)
    if isinstance(error, UnsupportedUserError):
        return unsupported_user(error, "exec")
    if isinstance(error, StreamError):
        return exec_error(error, command)
    said = ExecResult(stdout=b"", stderr=str(error).encode(errors="replace"), exit_code=1)
    return ExecNonZeroError(said, command=command, context=describe(error), cause=error)
