"""The plan: what shall stand in the workspace, in order.

The operator writes it, and it is checked here again in full: between the two lie an annotation and a
ConfigMap, and what passes decides where this container writes.
"""

import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from .outcome import MaterializeError, one_line
from .reasons import Reason

T = TypeVar("T")

VERSION = 1
MAX_PLAN_BYTES = 4 * 1024 * 1024
MAX_ENTRIES = 512
MAX_PATH_BYTES = 512
MAX_PATH_LEVELS = 12
MAX_SEGMENT_BYTES = 255
DEFAULT_GIT_TIMEOUT = 300
MAX_GIT_TIMEOUT = 24 * 3600

_MODE = re.compile(r"0[0-7]{3}")
_DIGEST = re.compile(r"[0-9A-Za-z:_-]{1,256}")
#: As `git check-ref-format` has it, and never an option.
_REF = re.compile(
    r"(?![-/.])(?!.*(?:\.\.|//|/\.|@\{|\.lock(?:/|$)))(?!@$)[^\x00-\x20\x7f~^:?*\[\\]{1,255}(?<![/.])"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at one path of the workspace."""

    path: str
    mode: int

    @property
    def segments(self) -> tuple[bytes, ...]:
        """The path's names, as the kernel takes them."""
        return tuple(self.path.encode().split(b"/"))


@dataclass(frozen=True, slots=True)
class Directory(Entry):
    """A directory, also one that the client fills later."""


@dataclass(frozen=True, slots=True)
class InlineFile(Entry):
    """A file whose bytes are in the plan."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SourceFile(Entry):
    """A file whose bytes are in a mounted ConfigMap or Secret."""

    source: str
    source_name: str


@dataclass(frozen=True, slots=True)
class AwaitedFile(Entry):
    """A file that the client sends later: only its parents are made."""


@dataclass(frozen=True, slots=True)
class GitRepository(Entry):
    """A repository, cloned at depth 1."""

    url: str
    ref: str | None
    subpath: str | None
    credentials: str | None
    ca: str | None


@dataclass(frozen=True, slots=True)
class GitPolicy:
    """What the administrator says about git."""

    insecure_hosts: frozenset[str] = frozenset()
    timeout_seconds: int = DEFAULT_GIT_TIMEOUT


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that materialize does."""

    digest: str
    entries: tuple[Entry, ...]
    git: GitPolicy
    workspace_bytes: int | None = None


def parse_plan(text: str | bytes) -> Plan:
    """Read and check a plan.

    Raises:
        MaterializeError: with reason InvalidSpec and the entry at fault.
    """
    if len(text) > MAX_PLAN_BYTES:
        raise _invalid(f"The plan is larger than {MAX_PLAN_BYTES} bytes.")
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"The plan is not JSON: {one_line(str(error), 200)}.") from None
    fields = _Fields(document, "The plan")
    if fields.take("version", int) != VERSION:
        raise _invalid(f"This workspace image reads plans of version {VERSION} only.")
    digest = fields.take("digest", str)
    if not _DIGEST.fullmatch(digest):
        raise _invalid("The plan's digest is malformed.")
    entries = _parse_entries(fields.take("entries", list))
    policy = _parse_policy(fields.take_optional("git", dict))
    workspace_bytes = fields.take_optional("workspaceBytes", int)
    if workspace_bytes is not None and workspace_bytes <= 0:
        raise _invalid("The plan's workspaceBytes is not a number of bytes.")
    fields.end()
    return Plan(digest, entries, policy, workspace_bytes)


def _parse_policy(document: dict[str, Any] | None) -> GitPolicy:
    if document is None:
        return GitPolicy()
    fields = _Fields(document, "The plan's git settings")
    hosts = fields.take_optional("insecureHosts", list) or []
    timeout = fields.take_optional("timeoutSeconds", int)
    fields.end()
    if not all(isinstance(host, str) for host in hosts):
        raise _invalid("insecureHosts is a list of strings.")
    if timeout is None:
        timeout = DEFAULT_GIT_TIMEOUT
    if not 0 < timeout <= MAX_GIT_TIMEOUT:
        raise _invalid(f"git.timeoutSeconds is between 1 and {MAX_GIT_TIMEOUT}.")
    return GitPolicy(frozenset(hosts), timeout)


def _parse_entries(documents: list[Any]) -> tuple[Entry, ...]:
    if len(documents) > MAX_ENTRIES:
        raise _invalid(f"The plan has more than {MAX_ENTRIES} entries.")
    seen: dict[str, Entry] = {}
    parents: set[str] = set()
    for document in documents:
        entry = _parse_entry(document)
        if entry.path in seen:
            raise _invalid("The path is named twice.", entry.path)
        if entry.path in parents:
            raise _invalid("The entry comes after one that lies beneath it.", entry.path)
        for parent in _parents(entry.path):
            parents.add(parent)
            above = seen.get(parent)
            if isinstance(above, InlineFile | SourceFile | AwaitedFile):
                raise _invalid(f"The entry lies beneath {parent!r}, which is a file.", entry.path)
        seen[entry.path] = entry
    return tuple(seen.values())


def _parse_entry(document: Any) -> Entry:
    fields = _Fields(document, "An entry")
    path = fields.take("path", str)
    _check_path(path)
    fields.entry = path
    fields.what = "The entry"
    kind = fields.take("kind", str)
    mode_text = fields.take("mode", str)
    if not _MODE.fullmatch(mode_text):
        raise _invalid("The mode is four octal digits, such as 0755.", path)
    mode = int(mode_text, 8)
    entry: Entry
    match kind:
        case "dir" | "upload-dir":
            entry = Directory(path, mode)
        case "upload-file":
            entry = AwaitedFile(path, mode)
        case "file":
            entry = _parse_file(path, mode, fields)
        case "git":
            entry = _parse_git(path, mode, fields)
        case _:
            raise _invalid(f"There is no kind of entry {one_line(kind, 40)!r}.", path)
    fields.end()
    return entry


def _parse_file(path: str, mode: int, fields: "_Fields") -> Entry:
    content = fields.take_optional("content", str)
    encoded = fields.take_optional("contentBase64", str)
    source = fields.take_optional("source", str)
    if sum(value is not None for value in (content, encoded, source)) != 1:
        raise _invalid("A file has exactly one of content, contentBase64 and source.", path)
    if source is not None:
        _check_source(source, path)
        return SourceFile(path, mode, source, fields.take_optional("sourceName", str) or source)
    if content is not None:
        try:
            return InlineFile(path, mode, content.encode())
        except UnicodeEncodeError:
            raise _invalid("The content is not valid Unicode; use contentBase64.", path) from None
    try:
        return InlineFile(path, mode, binascii.a2b_base64(encoded or "", strict_mode=True))
    except ValueError as error:
        raise _invalid(f"contentBase64 is not standard base64 without line breaks ({error}).", path) from None


def _parse_git(path: str, mode: int, fields: "_Fields") -> Entry:
    url = fields.take("url", str)
    ref = fields.take_optional("ref", str)
    subpath = fields.take_optional("subpath", str)
    credentials = fields.take_optional("credentials", str)
    ca = fields.take_optional("ca", str)
    if ref is not None and not _REF.fullmatch(ref):
        raise MaterializeError(
            Reason.GIT_REFUSED, f"{one_line(ref, 100)!r} is not a name of a branch or tag.", entry=path
        )
    if subpath is not None:
        _check_subpath(subpath, path)
    for source in (credentials, ca):
        if source is not None:
            _check_source(source, path)
    return GitRepository(path, mode, url, ref, subpath, credentials, ca)


def _check_path(path: str) -> None:
    problem = _path_problem(path)
    if problem:
        raise _invalid(f"{one_line(path, 100)!r} is no path of an entry: {problem}.")


def _check_subpath(subpath: str, path: str) -> None:
    problem = _path_problem(subpath)
    if problem is None and any(segment.lower() == ".git" for segment in subpath.split("/")):
        problem = "it lies in .git"
    if problem:
        raise _invalid(f"The subpath {one_line(subpath, 100)!r} cannot be used: {problem}.", path)


def _check_source(source: str, path: str) -> None:
    """Sources lie below one directory; the kubelet's own files there begin with two dots."""
    if _path_problem(source) or any(segment.startswith("..") for segment in source.split("/")):
        raise _invalid("The plan names a source outside the mounted ones.", path)


def _path_problem(path: str) -> str | None:
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    segments = encoded.split(b"/")
    if b"\0" in encoded:
        return "it holds a zero byte"
    if path.startswith("/"):
        return "it is absolute"
    if not all(segments):
        return "it has an empty segment"
    if any(segment in (b".", b"..") for segment in segments):
        return "it has a segment . or .."
    if len(encoded) > MAX_PATH_BYTES or max(map(len, segments)) > MAX_SEGMENT_BYTES:
        return f"it is longer than {MAX_PATH_BYTES} bytes, or a segment of it than {MAX_SEGMENT_BYTES}"
    if len(segments) > MAX_PATH_LEVELS:
        return f"it has more than {MAX_PATH_LEVELS} levels"
    return None


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return document


def _invalid(message: str, entry: str | None = None) -> MaterializeError:
    return MaterializeError(Reason.INVALID_SPEC, message, entry=entry)


class _Fields:
    """Takes typed fields out of a JSON object; what is left over at the end is refused."""

    _names: ClassVar[dict[type, str]] = {str: "a string", int: "a number", list: "a list", dict: "an object"}

    def __init__(self, document: Any, what: str):
        if not isinstance(document, dict):
            raise _invalid(f"{what} is not a JSON object.")
        self._document = dict(document)
        self.what = what
        self.entry: str | None = None

    def take(self, name: str, kind: type[T]) -> T:
        value = self.take_optional(name, kind)
        if value is None:
            raise _invalid(f"{self.what} has no {name}.", self.entry)
        return value

    def take_optional(self, name: str, kind: type[T]) -> T | None:
        value = self._document.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _invalid(f"{self.what}: {name} is not {self._names[kind]}.", self.entry)
        return value

    def end(self) -> None:
        if self._document:
            unknown = one_line(", ".join(sorted(map(str, self._document))), 100)
            raise _invalid(f"{self.what} has fields that this image does not know: {unknown}.", self.entry)
