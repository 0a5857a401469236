"""Rules about paths: those of entries, relative to the workspace, and absolute ones in the container."""

from collections.abc import Iterator
from typing import Any

from .rules import KeyRule, Rule
from .texts import size

MAX_PATH_BYTES = 512
MAX_PATH_LEVELS = 12
#: What file systems allow.
MAX_SEGMENT_BYTES = 255

#: Ours, or made by the kernel and the container runtime: nothing of a user's can be at or beneath them.
RESERVED_TREES = ("/.sandbox", "/proc", "/sys", "/dev")
#: A volume here would hide what the image or our own volumes have beneath.
NOT_A_ROOT_TREE = (*RESERVED_TREES, "/etc", "/home/sandbox")
NOT_A_ROOT = ("/bin", "/home", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var")

_RELATIVE_CEL = (
    "!{0}.contains('\\u0000') && !('/' + {0} + '/').contains('//')"
    " && !('/' + {0} + '/').contains('/./') && !('/' + {0} + '/').contains('/../')"
)
_ABSOLUTE_CEL = (
    "self.startsWith('/') && !self.contains('\\u0000') && !(self + '/').contains('//')"
    " && !(self + '/').contains('/./') && !(self + '/').contains('/../')"
)


def is_relative(path: str) -> bool:
    """Whether a path is relative and has no empty, ``.`` or ``..`` segment and no zero byte."""
    return "\0" not in path and not any(segment in {"", ".", ".."} for segment in path.split("/"))


def is_absolute(path: str) -> bool:
    """Whether a path is absolute and otherwise as :func:`is_relative` wants it."""
    return path.startswith("/") and is_relative(path[1:])


def is_bounded(path: str) -> bool:
    """Whether the path is one that a file system takes, and not too deep for us."""
    segments = path.split("/")
    return (
        size(path) <= MAX_PATH_BYTES
        and len(segments) <= MAX_PATH_LEVELS
        and all(size(segment) <= MAX_SEGMENT_BYTES for segment in segments)
    )


def ancestors(path: str) -> Iterator[str]:
    """The paths above a path, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def within(path: str, trees: tuple[str, ...]) -> bool:
    """Whether a path is one of the trees or beneath it."""
    return any(path == tree or path.startswith(tree + "/") for tree in trees)


def _is_file(entry: Any) -> bool:
    return entry.file is not None or entry.local_file is not None


def _nothing_beneath_a_file(levels: tuple[int, ...]) -> KeyRule:
    """The rule, as far as it concerns the first so many levels of a path: all at once would cost too much.

    Each ancestor is cut out and looked up. Comparing entries in pairs would be shorter, would pass
    installation, and would exceed the cost limit with some hundred entries.
    """
    return KeyRule(
        f"!k.contains('/') || k.size() > {MAX_PATH_BYTES} || {list(levels)}.all(i,"
        " [k.split('/', i + 1)].all(p, p.size() <= i"
        " || [k.substring(0, k.size() - p[i].size() - 1)].all(a,"
        " !(a in self) || !(has(self[a].file) || has(self[a].localFile)))))",
        "an entry cannot lie beneath one that is a file",
        holds_for=lambda path, entries: (
            not any(
                above in entries and _is_file(entries[above])
                for above in ancestors(path)
                if above.count("/") + 1 in levels
            )
        ),
    )


def _within_cel(trees: tuple[str, ...]) -> str:
    return f"{_cel_list(trees)}.exists(t, self == t || self.startsWith(t + '/'))"


def _cel_list(items: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{item}'" for item in items) + "]"


ENTRY_PATH_RULES = (
    KeyRule(
        _RELATIVE_CEL.format("k"),
        "a path of an entry is relative to the workspace, without empty, . or .. segments and zero bytes",
        holds_for=lambda key, _: is_relative(key),
    ),
    KeyRule(
        # The length first: the rest is then cheap whatever comes.
        f"k.size() <= {MAX_PATH_BYTES} && bytes(k).size() <= {MAX_PATH_BYTES}"
        f" && k.split('/').size() <= {MAX_PATH_LEVELS}"
        f" && k.split('/').all(s, bytes(s).size() <= {MAX_SEGMENT_BYTES})",
        f"a path of an entry has at most {MAX_PATH_BYTES} bytes and {MAX_PATH_LEVELS} levels"
        f" of at most {MAX_SEGMENT_BYTES} bytes each",
        holds_for=lambda key, _: is_bounded(key),
    ),
    *(_nothing_beneath_a_file(levels) for levels in ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11))),
)

ROOT_RULES = (
    Rule(
        f"{_ABSOLUTE_CEL} && !self.contains(':')",
        "the root is an absolute path without empty, . or .. segments, colons and a slash at its end",
        lambda path: is_absolute(path) and ":" not in path,
    ),
    Rule(
        f"!(self in {_cel_list(NOT_A_ROOT)}) && !{_within_cel(NOT_A_ROOT_TREE)}",
        f"the workspace would hide what the container needs: the root cannot be {', '.join(NOT_A_ROOT)},"
        f" nor be or lie beneath {', '.join(NOT_A_ROOT_TREE)}",
        lambda path: path not in NOT_A_ROOT and not within(path, NOT_A_ROOT_TREE),
    ),
)

GRANT_RULES = (
    Rule(
        _ABSOLUTE_CEL,
        "a granted path is absolute, without empty, . or .. segments and a slash at its end",
        is_absolute,
    ),
    Rule(
        f"bytes(self).size() <= {MAX_PATH_BYTES}",
        f"a granted path has at most {MAX_PATH_BYTES} bytes",
        lambda path: size(path) <= MAX_PATH_BYTES,
    ),
    Rule(
        f"!{_within_cel(('/.sandbox', '/proc'))}",
        "paths at or beneath /.sandbox and /proc cannot be granted",
        lambda path: not within(path, ("/.sandbox", "/proc")),
    ),
)

SUBPATH_RULES = (
    Rule(
        _RELATIVE_CEL.format("self"),
        "a subpath is relative to the repository, without empty, . or .. segments and zero bytes",
        is_relative,
    ),
    Rule(
        # By pattern: to split half a thousand subpaths would cost too much.
        f"bytes(self).size() <= {MAX_PATH_BYTES} && !self.matches('^([^/]*/){{{MAX_PATH_LEVELS}}}')",
        f"a subpath has at most {MAX_PATH_BYTES} bytes and {MAX_PATH_LEVELS} levels",
        lambda path: size(path) <= MAX_PATH_BYTES and path.count("/") < MAX_PATH_LEVELS,
    ),
    Rule(
        "!('/' + self.lowerAscii() + '/').contains('/.git/')",
        "a subpath cannot lie in .git",
        lambda path: ".git" not in path.lower().split("/"),
    ),
)
