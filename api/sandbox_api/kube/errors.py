"""One tree of exceptions for everything that can go wrong between us and an API server.

Messages are made from what the server said and from the kind of a connection's failure. They never hold
request bodies, headers, or URLs with credentials in them.
"""

# ruff: noqa: N818 - named as the API server names them

from collections.abc import Mapping
from typing import Any, ClassVar

#: Servers may echo whole objects in a message.
MAX_MESSAGE = 2048


class KubeError(Exception):
    """The root of the tree."""


class CredentialsError(KubeError):
    """There is no usable configuration of an API server: the message says what is missing."""


class ApiError(KubeError):
    """The API server refused a request.

    Attributes:
        status: HTTP status; 0 where there was no answer.
        reason: The server's machine-readable reason, such as ``NotFound``.
        message: One sentence for people.
        details: ``details`` of the server's Status object (``kind``, ``name``, ``causes``…).
        retry_after: Seconds that the server asked us to wait, where it did.
    """

    #: Whether the very same request may succeed later.
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        message = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type["ApiError"], tuple[Any, ...]]:
        return type(self), (self.status, self.reason, self.message, self.details, self.retry_after)

    def __str__(self) -> str:
        return f"{self.message} ({self.status} {self.reason})" if self.status else self.message

    @property
    def causes(self) -> list[Mapping[str, Any]]:
        """The server's causes: ``field``, ``reason`` and ``message`` each, where it gave any."""
        causes = self.details.get("causes")
        return [c for c in causes if isinstance(c, dict)] if isinstance(causes, list) else []

    @property
    def namespace_terminating(self) -> bool:
        """Whether the namespace is being deleted and takes no new objects."""
        return any(cause.get("reason") == "NamespaceTerminating" for cause in self.causes)


class BadRequest(ApiError):
    """400: the request makes no sense to the server, for example an unknown field under strict validation."""


class Unauthorized(ApiError):
    """401, also after the credentials were refreshed."""


class Forbidden(ApiError):
    """403: RBAC, admission, or a quota."""


class NotFound(ApiError):
    """404."""


class AlreadyExists(ApiError):
    """409 on create."""


class Conflict(ApiError):
    """409: the object has changed, or a precondition did not hold. Read it again, then decide again."""


class Gone(ApiError):
    """410: the resource version or continue token is too old. List again."""


class Invalid(ApiError):
    """422: the object breaks its schema or a validation rule; ``causes`` name the fields."""


class TooManyRequests(ApiError):
    """429, also after bounded waiting."""

    retryable = True


class ServerError(ApiError):
    """5xx."""

    retryable = True


class ServerTimeout(ServerError):
    """504, or 500 with reason ServerTimeout: whether the write happened is not known."""


class Unreachable(ApiError):
    """No answer: the connection failed or broke, or time ran out. Whether a write happened is not known."""

    retryable = True

    def __init__(
        self,
        status: int = 0,
        reason: str = "Unreachable",
        message: str = "the API server does not answer",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(status, reason, message, details, retry_after)


_BY_REASON: Mapping[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Gone,
    "Gone": Gone,
    "ServerTimeout": ServerTimeout,
    "Timeout": ServerTimeout,
}
_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
    504: ServerTimeout,
}


def from_status(
    status: Mapping[str, Any], *, http_status: int = 0, retry_after: float | None = None
) -> ApiError:
    """The exception for a Status object, as in an answer's body or in a watch's ERROR event.

    Args:
        status: The Status object; anything else, such as a proxy's own JSON, is survived.
        http_status: Status of the answer, used where the object names none.
        retry_after: Seconds of the Retry-After header.
    """
    code = status.get("code")
    code = code if isinstance(code, int) and code else http_status or 500
    reason = str(status.get("reason") or "Unknown")
    message = str(status.get("message") or f"the API server answered {code}")
    details = status.get("details")
    details = details if isinstance(details, dict) else {}
    if retry_after is None and isinstance(details.get("retryAfterSeconds"), int | float):
        retry_after = float(details["retryAfterSeconds"]) or None
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(code) or (ServerError if code >= 500 else ApiError)
    return kind(code, reason, message, details, retry_after)
