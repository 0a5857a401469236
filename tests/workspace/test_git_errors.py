"""What git says, word for word, and what becomes of it."""

import pytest
from sandbox_workspace.git_errors import classify

CASES = [
    ("fatal: unable to access 'https://h/x/': Could not resolve host: h", "GitHostUnreachable", True),
    (
        "fatal: unable to access 'https://h/x/': Failed to connect to h port 443: Connection refused",
        "GitHostUnreachable",
        True,
    ),
    ("fatal: unable to access 'https://h/x/': The requested URL returned error: 503", "GitFailed", True),
    ("fatal: unable to access 'https://h/x/': The requested URL returned error: 429", "GitFailed", True),
    ("fatal: unable to access 'https://h/x/': The requested URL returned error: 302", "GitRefused", False),
    (
        "fatal: unable to access 'https://h/x/': The requested URL returned error: 403",
        "GitAuthenticationFailed",
        False,
    ),
    ("fatal: Authentication failed for 'https://h/x/'", "GitAuthenticationFailed", False),
    (
        "fatal: could not read Username for 'https://h': terminal prompts disabled",
        "GitAuthenticationFailed",
        False,
    ),
    ("fatal: repository 'https://h/x/' not found", "GitRepositoryNotFound", False),
    (
        "warning: Could not find remote branch x to clone.\nfatal: Remote branch x not found in upstream origin",
        "GitRefNotFound",
        False,
    ),
    ("fatal: remote error: upload-pack: not our ref eeee", "GitRefNotFound", False),
    ("fatal: couldn't find remote ref refs/heads/x", "GitRefNotFound", False),
    ("fatal: unable to access 'https://h/x/': Operation too slow. Less than 1 bytes/sec", "GitTimeout", True),
    (
        "fatal: unable to access 'https://h/x/': server certificate verification failed. CAfile: none CRLfile: none",
        "GitRefused",
        False,
    ),
    (
        "fatal: unable to access 'https://h/x/': SSL certificate problem: unable to get local issuer certificate",
        "GitRefused",
        False,
    ),
    (
        "error: object abc: hasDotgit: contains '.git'\nfatal: fsck error in packed object",
        "GitRefused",
        False,
    ),
    ("fatal: write error: No space left on device", "WorkspaceFull", False),
    ("error: unable to write file x: Disk quota exceeded", "WorkspaceFull", False),
    (
        "error: RPC failed; curl 56 Recv failure: Connection reset by peer\nfatal: early EOF",
        "GitFailed",
        True,
    ),
    ("error: index-pack died of signal 9\nfatal: index-pack failed", "GitFailed", True),
    ("fatal: transport 'file' not allowed", "GitRefused", False),
    ("fatal: something new in a later version", "GitFailed", False),
    ("", "GitFailed", False),
    # The server's own words decide nothing.
    (
        "remote: No space left on device\nremote: fatal: Authentication failed\nfatal: early EOF",
        "GitFailed",
        True,
    ),
]


@pytest.mark.parametrize(("err", "reason", "retryable"), CASES)
def test_classify(err: str, reason: str, retryable: bool) -> None:
    failure = classify(err, with_credentials=True)
    assert (failure.reason, failure.retryable) == (reason, retryable)


def test_the_detail_is_bounded_and_printable() -> None:
    message = classify("fatal: \x1b[31m" + "x" * 100_000, with_credentials=False).message
    assert len(message) < 500
    assert message.isprintable()
