"""Rules about git repositories: which addresses and names may reach a command line of git at all.

The init container parses addresses by one strict expression of its own; what these rules let through it may
still refuse, such as http to a host that the administrator did not list.
"""

import re

from .rules import Rule

_HOST = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?$"
_REPO = r"^[^-/\s?#@:\\][^\s?#@:\\]*$"
_SCHEME = r"^(https|ssh|http|git)://"
_CREDENTIALS = r"^((https|http|git)://[^/]*@|ssh://[^/]*:[^/]*@)"
_ADDRESS = r"^[a-z]+://([A-Za-z0-9_][^@/]*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(:[0-9]{1,5})?/[^\s?#\\]+$"
_NO_REF = r"^[-/.]|\.\.|//|/\.|@\{|\.lock(/|$)|[/.]$|^@$|[\x00-\x20\x7f~^:?*\[\\]"


def _cel(pattern: str) -> str:
    """A pattern as a raw CEL string: patterns here hold no quotes."""
    return f"r'{pattern}'"


def _matches(pattern: str, text: str) -> bool:
    # CEL's $ is the end of the text and its \s is ASCII's; Python's $ would let a last line break through.
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None


HOST_RULES = (
    Rule(
        f"self.matches({_cel(_HOST)})",
        "a host is a name or address, with a port where it is not 443, such as github.com",
        lambda text: _matches(_HOST, text),
    ),
)
REPO_RULES = (
    Rule(
        f"self.matches({_cel(_REPO)})",
        "a repository is its path on the host, such as owner/name, not beginning with - or /",
        lambda text: _matches(_REPO, text),
    ),
)
URL_RULES = (
    Rule(
        f"self.matches({_cel(_SCHEME)})",
        "the url begins with https:// or ssh://, or with http:// or git:// for hosts that the "
        "administrator allows",
        lambda text: _matches(_SCHEME, text),
    ),
    Rule(
        f"!self.matches({_cel(_CREDENTIALS)})",
        "the url holds no credentials: put them into a Secret and name it in credentialsSecretRef",
        lambda text: not _matches(_CREDENTIALS, text),
    ),
    Rule(
        f"self.matches({_cel(_ADDRESS)})",
        "the url has a host and a path, without query, fragment and spaces",
        lambda text: _matches(_ADDRESS, text),
    ),
)
REF_RULES = (
    Rule(
        f"!self.matches({_cel(_NO_REF)})",
        "a ref is a branch, a tag or a full commit id, spelt as git allows",
        lambda text: not _matches(_NO_REF, text),
    ),
)
