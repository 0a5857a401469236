import errno
import json

import pytest
from sandbox_workspace.outcome import (
    MAX_TERMINATION_BYTES,
    MaterializeError,
    Receipt,
    failure_message,
    failure_of,
    success_message,
)
from sandbox_workspace.reasons import Reason


def test_success() -> None:
    assert json.loads(success_message(Receipt(3, 123, 0.40001))) == {
        "ok": True,
        "entries": 3,
        "bytes": 123,
        "seconds": 0.4,
    }


def test_failure() -> None:
    error = MaterializeError(Reason.GIT_REF_NOT_FOUND, "one\nsentence", entry="repo")
    assert json.loads(failure_message(error)) == {
        "ok": False,
        "entry": "repo",
        "reason": "GitRefNotFound",
        "message": "one sentence",
        "retryable": False,
    }


@pytest.mark.parametrize("text", ["x", "\U0001f600", "\x01", '"\\', "\ud800", "\u202e\u0000"])
@pytest.mark.parametrize("length", [1, 512, 100_000])
def test_always_whole_json_within_the_kubelet_s_limit(text: str, length: int) -> None:
    error = MaterializeError(Reason.GIT_FAILED, text * length, entry=text * length)
    encoded = failure_message(error)
    assert len(encoded) <= MAX_TERMINATION_BYTES
    assert json.loads(encoded)["reason"] == "GitFailed"
    assert len(json.loads(encoded)["message"]) <= 1024


def test_an_entry_of_any_legal_length_is_named_whole() -> None:
    path = "\x01" * 512
    assert (
        json.loads(failure_message(MaterializeError(Reason.GIT_FAILED, "m" * 900, entry=path)))["entry"]
        == path
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_volume(code: int) -> None:
    failure = failure_of(OSError(code, "full"), "a")
    assert (failure.reason, failure.retryable, failure.entry) == (Reason.WORKSPACE_FULL, False, "a")


def test_the_unexpected() -> None:
    failure = failure_of(OSError(errno.EIO, "broken"))
    assert (failure.reason, failure.retryable) == (Reason.MATERIALIZATION_FAILED, True)
    failure = failure_of(KeyError("x"))
    assert (failure.reason, failure.retryable) == (Reason.MATERIALIZATION_FAILED, False)
