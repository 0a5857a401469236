"""What materialize says when it ends: one JSON object, as termination message and as a log line."""

import errno
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from .reasons import Reason

#: The kubelet cuts a termination message here, and a cut one is no JSON any more.
MAX_TERMINATION_BYTES = 4096
#: What `status.failure.message` admits, with room for the operator's own words.
MAX_MESSAGE_CHARACTERS = 900
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class MaterializeError(Exception):
    """The workspace cannot be filled; `message` is one sentence for people."""

    def __init__(self, reason: Reason, message: str, *, retryable: bool = False, entry: str | None = None):
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retryable = retryable
        self.entry = entry


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was put into the workspace."""

    entries: int
    bytes: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """The form that the marker and the termination message have."""
        return {"entries": self.entries, "bytes": self.bytes, "seconds": round(self.seconds, 3)}


def failure_of(error: Exception, entry: str | None = None) -> MaterializeError:
    """Turn whatever went wrong into a failure with a reason, naming the entry it belongs to."""
    if isinstance(error, MaterializeError):
        error.entry = error.entry or entry
        return error
    if isinstance(error, OSError) and error.errno in _FULL:
        return MaterializeError(Reason.WORKSPACE_FULL, "The workspace's volume is full.", entry=entry)
    # The kernel's refusals may pass (a volume that is just being attached); an error of ours comes again.
    return MaterializeError(
        Reason.MATERIALIZATION_FAILED,
        f"{type(error).__name__}: {error}",
        retryable=isinstance(error, OSError | MemoryError),
        entry=entry,
    )


def one_line(text: str, limit: int) -> str:
    """Bounded printable text: what cannot be printed, line ends too, becomes a space."""
    cleaned = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def success_message(receipt: Receipt) -> bytes:
    """The termination message of a filled workspace."""
    return _encode({"ok": True, **receipt.to_json()})


def failure_message(failure: MaterializeError) -> bytes:
    """The termination message of a failure: always whole JSON and never longer than the kubelet reads."""
    limit = MAX_MESSAGE_CHARACTERS
    entry = failure.entry
    while True:
        document: dict[str, object] = {"ok": False}
        if entry is not None:
            document["entry"] = entry
        document["reason"] = failure.reason.value
        document["message"] = one_line(failure.message, limit)
        document["retryable"] = failure.retryable
        encoded = _encode(document)
        if len(encoded) <= MAX_TERMINATION_BYTES:
            return encoded
        limit //= 2
        if limit < 100:
            limit, entry = MAX_MESSAGE_CHARACTERS // 4, one_line(entry or "", 200)


def report(message: bytes, termination_log: Path) -> None:
    """Leave the outcome where the kubelet reads it, and in the container's log.

    A termination log that cannot be written hides no outcome: the exit code and the log still have it.
    """
    try:
        descriptor = os.open(termination_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(message)
    except OSError as error:
        log(f"The termination message could not be written: {error}")
    print(message.decode(), file=sys.stderr, flush=True)


def log(message: str, *, entry: str | None = None) -> None:
    """One JSON line on stderr about work in progress."""
    document = {"message": one_line(message, MAX_MESSAGE_CHARACTERS)}
    if entry is not None:
        document = {"entry": entry, **document}
    print(_encode(document).decode(), file=sys.stderr, flush=True)


def _encode(document: dict[str, object] | dict[str, str]) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(", ", ": "))
    return text.encode("utf-8", errors="replace")
