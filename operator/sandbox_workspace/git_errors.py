"""From what git wrote on stderr to a reason, a sentence, and whether trying again may help.

Lines that begin with `remote:` are the server's words and decide nothing. git speaks English here
(LC_ALL=C); a phrase that another version of git words differently falls through to GitFailed, which still
carries git's own line.
"""

import re
from dataclasses import dataclass

from .outcome import MaterializeError, one_line
from .reasons import Reason

_MAX_DETAIL = 300


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    reason: Reason
    sentence: str
    retryable: bool = False


def _rule(pattern: str, reason: Reason, sentence: str, *, retryable: bool = False) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), reason, sentence, retryable)


#: The first that matches decides.
_RULES = (
    _rule(
        r"no space left on device|disk quota exceeded",
        Reason.WORKSPACE_FULL,
        "The workspace's volume is full.",
    ),
    _rule(
        r"fsck error|is not a valid tree|invalid path '"
        r"|: (?:hasDot|hasDotdot|hasDotgit|fullPathname|gitmodules|symlinkTarget|duplicateEntries)",
        Reason.GIT_REFUSED,
        "The repository holds objects that git's checks refuse.",
    ),
    _rule(
        r"returned error: 30[12378]|unable to update url base from redirection",
        Reason.GIT_REFUSED,
        "The host redirects to another URL, which is not followed; name the final URL.",
    ),
    _rule(
        r"transport '[^']*' not allowed",
        Reason.GIT_REFUSED,
        "The repository leads to a transport that is not allowed.",
    ),
    _rule(
        r"certificate|SSL: no alternative|CRLfile",
        Reason.GIT_REFUSED,
        "The host's certificate is not trusted; name its authority in caConfigMapRef.",
    ),
    _rule(
        r"host key verification failed|no matching host key",
        Reason.GIT_REFUSED,
        "The host's key is not the one in known_hosts.",
    ),
    _rule(
        r"no user exists for uid",
        Reason.GIT_REFUSED,
        "ssh needs a user name for the pod's user id, and the workspace image has neither one nor libnss-wrapper, "
        "which would give it; use https.",
    ),
    _rule(
        r"could not read username|could not read password",
        Reason.GIT_AUTHENTICATION_FAILED,
        "The host asks for credentials: the repository is private, or it does not exist.",
    ),
    _rule(
        r"authentication failed|permission denied|returned error: 40[13]|error in libcrypto|invalid format",
        Reason.GIT_AUTHENTICATION_FAILED,
        "The host does not accept the credentials.",
    ),
    _rule(
        r"repository '[^']*' not found|repository not found|does not appear to be a git repository"
        r"|access denied or repository not exported|returned error: 4(?:04|10)",
        Reason.GIT_REPOSITORY_NOT_FOUND,
        "There is no such repository on the host.",
    ),
    _rule(
        r"remote branch .* not found|couldn't find remote ref|not our ref|want \S+ not valid"
        r"|unadvertised object|invalid refspec",
        Reason.GIT_REF_NOT_FOUND,
        "The repository has no such branch, tag or commit.",
    ),
    _rule(
        r"operation too slow|operation timed out",
        Reason.GIT_TIMEOUT,
        "The host stopped sending.",
        retryable=True,
    ),
    _rule(
        r"could not resolve|unable to look up|failed to connect|couldn't connect|could not connect"
        r"|unable to connect|connection refused|connection timed out|no route to host|network is unreachable",
        Reason.GIT_HOST_UNREACHABLE,
        "The host cannot be reached.",
        retryable=True,
    ),
    _rule(
        r"returned error: (?:5\d\d|429|408)",
        Reason.GIT_FAILED,
        "The host answers with an error of its own.",
        retryable=True,
    ),
    _rule(
        r"died of signal|out of memory|cannot allocate",
        Reason.GIT_FAILED,
        "git was killed, most likely for want of memory.",
        retryable=True,
    ),
    _rule(
        r"hung up|early eof|connection reset|connection closed|rpc failed|empty reply|broken pipe"
        r"|unexpected disconnect|GnuTLS|gnutls_handshake|SSL_|could not read from remote",
        Reason.GIT_FAILED,
        "The connection to the host broke.",
        retryable=True,
    ),
)
_OTHER = _rule("", Reason.GIT_FAILED, "git failed.")


def classify(err: str, *, with_credentials: bool) -> MaterializeError:
    """The failure that git's stderr tells of; `err` holds no secrets any more."""
    lines = [line.strip() for line in err.splitlines()]
    own = [line for line in lines if line and not line.startswith("remote:")]
    text = "\n".join(own)
    rule = next((rule for rule in _RULES if rule.pattern.search(text)), _OTHER)
    sentence = rule.sentence
    if rule.reason is Reason.GIT_AUTHENTICATION_FAILED and not with_credentials:
        sentence = (
            "The host asks for credentials: the repository is private (then name a Secret in"
            " credentialsSecretRef), or it does not exist."
        )
    detail = _telling_line(own, rule.pattern)
    if detail:
        sentence = f"{sentence} (git: {one_line(detail, _MAX_DETAIL)})"
    return MaterializeError(rule.reason, sentence, retryable=rule.retryable)


def _telling_line(lines: list[str], pattern: re.Pattern[str]) -> str:
    """The line that decided, else git's last word."""
    matching = [line for line in lines if pattern.pattern and pattern.search(line)]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return next(iter(matching or fatal[-1:] or lines[-1:]), "")
