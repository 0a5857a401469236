"""What can go wrong between us and the agent: one tree.

``OperationError`` is an answer: the agent refused or could not do what was asked. ``StreamError`` is the lack
of one: the path to the agent failed, and for what was under way nobody knows how far it got.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

#: Longest message that is believed; the agent is not trusted to be brief.
MAX_TEXT = 2048


class Code(StrEnum):
    """Codes of errors: those of the protocol, and those of the path to the agent."""

    # said by the agent
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    NOT_A_DIRECTORY = "not_a_directory"
    IS_A_DIRECTORY = "is_a_directory"
    NOT_EMPTY = "not_empty"
    PERMISSION_DENIED = "permission_denied"
    PATH_ESCAPES = "path_escapes"
    OUTSIDE_ROOTS = "outside_roots"
    READ_ONLY = "read_only"
    NO_SPACE = "no_space"
    TOO_LARGE = "too_large"
    INVALID_REQUEST = "invalid_request"
    INVALID_ARCHIVE = "invalid_archive"
    UNKNOWN_OPERATION = "unknown_operation"
    UNKNOWN_PROCESS = "unknown_process"
    WRONG_BOOT = "wrong_boot"
    OUTPUT_LOST = "output_lost"
    UNSUPPORTED_USER = "unsupported_user"
    COMMAND_NOT_FOUND = "command_not_found"
    NOT_EXECUTABLE = "not_executable"
    TOO_MANY = "too_many"
    TIMEOUT = "timeout"
    CONNECTION_REFUSED = "connection_refused"
    CANCELED = "canceled"
    STOPPING = "stopping"
    IO = "io"
    # said by us
    CONNECT_FAILED = "connect_failed"
    POD_NOT_FOUND = "pod_not_found"
    CONTAINER_NOT_RUNNING = "container_not_running"
    FORBIDDEN = "forbidden"
    CONNECTION_LOST = "connection_lost"
    PROTOCOL_VIOLATION = "protocol_violation"


class AgentError(Exception):
    """The root of the tree.

    Attributes:
        code: What happened, for programs; a plain string where a newer agent says something unknown to us.
        message: One sentence for people.
        path: Path that it is about, where it is about one.
        errno: The system's name for it (``ENOENT``), where the system refused.
        retryable: Whether the same call may succeed later, and may safely be made again.
    """

    def __init__(
        self,
        code: Code | str,
        message: str,
        *,
        path: str | None = None,
        errno: str | None = None,
        retryable: bool = False,
    ) -> None:
        message = message if len(message) <= MAX_TEXT else message[: MAX_TEXT - 1] + "…"
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.errno = errno
        self.retryable = retryable

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message} ({self.code})"


class OperationError(AgentError):
    """The agent refused, or the system refused the agent."""


class NotFoundError(OperationError):
    """Nothing has that name."""


class ExistsError(OperationError):
    """Something already has that name."""


class PathRefusedError(OperationError):
    """The path leaves the workspace and its grants, or is granted for reading only."""


class UnsupportedUserError(OperationError):
    """This sandbox cannot act as another user."""


class StoppingError(OperationError):
    """The agent's container is being stopped, and nothing more is begun in it: try again in the sandbox's next pod."""


class StreamError(AgentError):
    """There is no answer: the path to the agent failed."""


class ConnectError(StreamError):
    """The path to the agent could not be opened: nothing has happened in the sandbox."""


class ConnectionLostError(StreamError):
    """The path broke while an operation was under way: it may or may not have happened."""


class ProtocolViolationError(StreamError):
    """The other side does not speak the protocol, or breaks its bounds."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.PROTOCOL_VIOLATION, message)


_KINDS: Mapping[str, type[OperationError]] = {
    Code.NOT_FOUND: NotFoundError,
    Code.EXISTS: ExistsError,
    Code.PATH_ESCAPES: PathRefusedError,
    Code.OUTSIDE_ROOTS: PathRefusedError,
    Code.READ_ONLY: PathRefusedError,
    Code.UNSUPPORTED_USER: UnsupportedUserError,
    Code.STOPPING: StoppingError,
}
#: How agents said ``stopping`` before there was a code for it: as ``io``.
_STOPPING = "the agent is stopping"
#: Refused before anything was done, for a reason that passes.
_RETRYABLE = frozenset({Code.TOO_MANY, Code.CONNECTION_REFUSED, Code.STOPPING})


def from_wire(said: Mapping[str, Any]) -> OperationError:
    """The exception for an ERROR message of the agent, whatever is in it."""
    code: Code | str = str(said.get("code") or Code.IO)[:64]
    if code in Code.__members__.values():
        code = Code(code)
    if code == Code.IO and said.get("message") == _STOPPING:
        code = Code.STOPPING
    path, errno = said.get("path"), said.get("errno")
    return _KINDS.get(code, OperationError)(
        code,
        str(said.get("message") or "the agent gave no reason"),
        path=path[:4096] if isinstance(path, str) and path else None,
        errno=errno[:32] if isinstance(errno, str) and errno else None,
        retryable=code in _RETRYABLE,
    )
