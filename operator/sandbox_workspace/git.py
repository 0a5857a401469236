"""Repositories: one clone at depth 1, from an untrusted host, in a hidden place, then moved to its own.

The usual case is one git process and one connection: `git clone --branch` looks for a branch before a tag,
as people expect. Only a commit id or a full name (refs/…) takes the longer way of init, fetch and checkout.
"""

import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from . import process
from .files import Workspace
from .git_credentials import Access, prepare_access
from .git_errors import classify
from .git_settings import base_settings, environment, goes_through_proxy
from .git_url import GitUrl, parse_git_url
from .outcome import MaterializeError, failure_of, log
from .plan import GitPolicy, GitRepository
from .reach import check_reachable
from .reasons import Reason
from .room import Room
from .tree import measure, remove_tree

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")
#: Servers of protocol version 0 and of some makers give a commit only as part of a branch or tag.
_NEEDS_HISTORY = re.compile(r"unadvertised object|want \S+ not valid", re.IGNORECASE)
#: One file of the repository alone is larger than the room that is left.
_TOO_LARGE = re.compile(r"file too large", re.IGNORECASE)
_WANTED = "refs/sandbox/wanted"
_CLONE = ("clone", "--quiet", "--depth=1", "--single-branch", "--no-tags", "--template=")


@dataclass(frozen=True, slots=True)
class _Git:
    """git in one scratch directory, with one deadline for all its commands."""

    scratch: Path
    url: GitUrl
    env: dict[str, str]
    access: Access
    timeout_seconds: int
    deadline: float
    room: Room

    @property
    def repository(self) -> Path:
        return self.scratch / "repository"

    def try_run(self, *arguments: str, cwd: Path | None = None) -> process.Finished:
        try:
            finished = process.run(
                ["git", *arguments],
                cwd=cwd or self.repository,
                env=self.env,
                deadline=self.deadline,
                largest_file=self.room.left,
                watch=lambda: self.room.watch(self.scratch),
            )
        except process.ChildTimeoutError:
            raise MaterializeError(
                Reason.GIT_TIMEOUT,
                f"The repository was not complete after {self.timeout_seconds} seconds.",
                retryable=True,
            ) from None
        if finished.code and self.room.limit is not None and _TOO_LARGE.search(finished.err):
            raise self.room.full()
        return finished

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        finished = self.try_run(*arguments, cwd=cwd)
        if finished.code:
            raise self.failure(finished)
        return finished.out.strip()

    def failure(self, finished: process.Finished) -> MaterializeError:
        return classify(self.access.scrub(finished.err), with_credentials=self.access.given)


def place_repository(
    entry: GitRepository, policy: GitPolicy, workspace: Workspace, sources: Path, private: Path
) -> int:
    """Clone a repository to its place in the workspace; return the bytes that now stand there.

    `private` is an empty directory of this entry's own that nobody else sees.
    """
    started = time.monotonic()
    deadline = started + policy.timeout_seconds
    url = parse_git_url(entry.url, policy.insecure_hosts)
    access = prepare_access(url, _below(sources, entry.credentials), _below(sources, entry.ca), private)
    workspace.check_free(entry.segments)
    log(f"Cloning from {url.host}", entry=entry.path)
    if not goes_through_proxy(url):
        check_reachable(url.address, url.port, deadline)
    settings = [*base_settings(url, policy.timeout_seconds), *access.settings]
    scratch = workspace.root / f".sandbox-{secrets.token_hex(16)}"
    scratch.mkdir()
    try:
        scratch.chmod(0o700)  # without the setgid bit that a volume's root hands down
        git = _Git(
            scratch,
            url,
            environment(url, settings, private, access.env),
            access,
            policy.timeout_seconds,
            deadline,
            workspace.room,
        )
        commit = _get(git, entry)
        below = ("repository", *(entry.subpath.split("/") if entry.subpath else ()))
        size = measure(scratch.joinpath(*below))
        workspace.room.take(size.taken)
        try:
            workspace.move_in(scratch, [name.encode() for name in below], entry.segments)
        except (FileNotFoundError, NotADirectoryError):
            raise _no_subpath(entry.subpath or "") from None
    except OSError as error:
        raise _scrubbed(failure_of(error), access) from None
    finally:
        remove_tree(scratch)
    log(f"Cloned {commit} in {time.monotonic() - started:.1f} s", entry=entry.path)
    return size.content


def _get(git: _Git, entry: GitRepository) -> str:
    """Bring the repository into the scratch directory and return its commit."""
    ref = None if entry.ref == "HEAD" else entry.ref
    checkout = entry.subpath is None
    if ref is not None and (_COMMIT.fullmatch(ref) or ref.startswith("refs/")):
        _fetch(git, ref)
        if checkout:
            git.run("checkout", "--quiet", "--detach", _WANTED)
        else:
            git.run("update-ref", "--no-deref", "HEAD", f"{_WANTED}^{{commit}}")
        git.run("update-ref", "-d", _WANTED)
    else:
        _clone(git, ref, checkout=checkout)
    head = git.try_run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.strip()
    if ref is not None and _COMMIT.fullmatch(ref) and head != ref:
        raise MaterializeError(Reason.GIT_REF_NOT_FOUND, f"{ref} is no commit of the repository.")
    if entry.subpath is not None:
        if not head:
            raise _no_subpath(entry.subpath)
        found = git.try_run("checkout", "--quiet", "HEAD", "--", entry.subpath)
        if found.code:
            raise _no_subpath(entry.subpath) if "did not match" in found.err else git.failure(found)
    return head or "nothing: the repository is empty"


def _clone(git: _Git, ref: str | None, *, checkout: bool) -> None:
    options = [] if checkout else ["--no-checkout"]
    if ref is not None:
        options.append(f"--branch={ref}")
    finished = git.try_run(*_CLONE, *options, "--", git.url.text, git.repository.name, cwd=git.scratch)
    if not finished.code:
        return
    failure = git.failure(finished)
    if failure.reason is Reason.GIT_REF_NOT_FOUND and ref is not None and _SHORT_COMMIT.fullmatch(ref):
        failure = MaterializeError(
            failure.reason,
            f"There is no branch or tag {ref}; a commit is written in full.",
        )
    raise failure


def _fetch(git: _Git, ref: str) -> None:
    object_format = "sha256" if len(ref) == 64 and _COMMIT.fullmatch(ref) else "sha1"
    git.run(
        "init",
        "--quiet",
        "--template=",
        f"--object-format={object_format}",
        git.repository.name,
        cwd=git.scratch,
    )
    git.run("remote", "add", "origin", git.url.text)
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head")
    finished = git.try_run(*fetch, "--depth=1", "origin", f"+{ref}:{_WANTED}")
    if not finished.code:
        return
    if not (_COMMIT.fullmatch(ref) and _NEEDS_HISTORY.search(finished.err)):
        raise git.failure(finished)
    log("The host does not give single commits; fetching the whole history")
    git.run(*fetch, "origin", "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
    if git.try_run("update-ref", _WANTED, ref).code:
        raise git.failure(finished)


def _below(sources: Path, name: str | None) -> Path | None:
    return None if name is None else sources / name


def _no_subpath(subpath: str) -> MaterializeError:
    return MaterializeError(
        Reason.GIT_SUBPATH_NOT_FOUND, f"The repository has no directory {subpath!r} at this ref."
    )


def _scrubbed(failure: MaterializeError, access: Access) -> MaterializeError:
    failure.message = access.scrub(failure.message)
    return failure
