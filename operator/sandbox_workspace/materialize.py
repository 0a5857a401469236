"""Filling a workspace: once per pod, whole or not at all, and never over what lives in it already."""

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from .agent_binary import agent_missing, install_agent
from .files import Workspace, read_chunks
from .marker import Marker, State, read_marker, write_marker
from .outcome import MaterializeError, Receipt, failure_of, log
from .plan import AwaitedFile, Directory, Entry, GitPolicy, GitRepository, InlineFile, Plan, SourceFile
from .reasons import Reason
from .room import Room
from .tree import remove_tree

_PRIVATE_PREFIX = ".private-"
_AGENT_DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are in the container."""

    workspace: Path = Path("/mnt/workspace")
    agent_dir: Path = Path("/mnt/agent")
    sources: Path = Path("/mnt/sources")
    agent_binary: Path = Path("/usr/local/bin/agent")


def materialize(plan: Plan, pod_uid: str, places: Places) -> Receipt:
    """Bring the workspace to where its first command may start.

    Raises:
        MaterializeError: what stands in the workspace is not whole; the next run begins with an empty one.
    """
    started = time.monotonic()
    marker = read_marker(places.agent_dir)
    if marker is not None and marker.state is State.DONE and marker.receipt and marker.pod_uid == pod_uid:
        return _check(marker, plan, places)
    with Workspace(places.workspace, Room(plan.workspace_bytes)) as workspace:
        if marker is not None and marker.state is State.STARTED:
            log("An earlier try did not end; the workspace is emptied and filled anew")
            workspace.empty()
        write_marker(places.agent_dir, Marker(State.STARTED, pod_uid, plan.digest))
        _remove_private(places.agent_dir)
        install_agent(places.agent_binary, places.agent_dir)
        total = _fill(plan, workspace, places)
    _set_agent_directory_mode(places.agent_dir)
    receipt = Receipt(len(plan.entries), total, time.monotonic() - started)
    write_marker(places.agent_dir, Marker(State.DONE, pod_uid, plan.digest, receipt))
    return receipt


def _check(marker: Marker, plan: Plan, places: Places) -> Receipt:
    """A run over a living workspace, which is left alone.

    Even where the plan has become another one: what was made there since cannot be made again.
    """
    if marker.digest != plan.digest:
        log("The plan is not the one that this workspace was filled from; the workspace stays as it is")
    _remove_private(places.agent_dir)
    if agent_missing(places.agent_dir):
        install_agent(places.agent_binary, places.agent_dir)
    if marker.receipt is None:
        raise MaterializeError(
            Reason.MATERIALIZATION_FAILED, "The marker of the filled workspace has no receipt."
        )
    return marker.receipt


def _fill(plan: Plan, workspace: Workspace, places: Places) -> int:
    total = 0
    for entry in plan.entries:
        try:
            total += _place(entry, plan.git, workspace, places)
        except Exception as error:
            raise failure_of(error, entry.path) from error
    # Only now, the deepest first: a directory without the right to write may have entries beneath it.
    for entry in sorted(plan.entries, key=lambda entry: len(entry.segments), reverse=True):
        if isinstance(entry, Directory | GitRepository):
            try:
                workspace.set_directory_mode(entry.segments, entry.mode)
            except Exception as error:
                raise failure_of(error, entry.path) from error
    workspace.set_root_mode()
    return total


def _place(entry: Entry, policy: GitPolicy, workspace: Workspace, places: Places) -> int:
    match entry:
        case Directory():
            workspace.make_directory(entry.segments)
        case AwaitedFile():
            workspace.make_parents(entry.segments)
        case InlineFile():
            return workspace.write_file(entry.segments, [entry.content], entry.mode)
        case SourceFile():
            return _copy_source(entry, workspace, places.sources)
        case GitRepository():
            return _clone(entry, policy, workspace, places)
        case _:
            raise TypeError(f"no way to make {type(entry).__name__}")
    return 0


def _copy_source(entry: SourceFile, workspace: Workspace, sources: Path) -> int:
    # The kubelet serves keys through links of its own, so links are followed here.
    try:
        descriptor = os.open(sources / entry.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise MaterializeError(
            Reason.SOURCE_NOT_FOUND, f"{entry.source_name} is not there.", retryable=True
        ) from None
    try:
        return workspace.write_file(entry.segments, read_chunks(descriptor), entry.mode)
    finally:
        os.close(descriptor)


def _clone(entry: GitRepository, policy: GitPolicy, workspace: Workspace, places: Places) -> int:
    from .git import place_repository  # a plan without repositories starts sooner without it

    private = places.agent_dir / f"{_PRIVATE_PREFIX}{secrets.token_hex(16)}"
    private.mkdir(mode=0o700)
    try:
        return place_repository(entry, policy, workspace, places.sources, private)
    finally:
        remove_tree(private)


def _remove_private(agent_dir: Path) -> None:
    """Remove what a killed run had no time to: the workspace mounts this volume later."""
    for left in agent_dir.glob(f"{_PRIVATE_PREFIX}*"):
        remove_tree(left)


def _set_agent_directory_mode(agent_dir: Path) -> None:
    try:
        agent_dir.chmod(_AGENT_DIRECTORY_MODE)
    except PermissionError:  # the kubelet's own directory: the workspace mounts it read-only anyway
        return
