"""Writing below the workspace's root, and nowhere else.

Every path is walked from an open directory, name by name, without following links (what openat2 calls
BENEATH and NO_SYMLINKS; names are checked by the plan and are never `..`). So a repository that plants a
link where a later entry lies cannot send that entry's bytes elsewhere: the entry fails with PathConflict.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from .outcome import MaterializeError
from .reasons import Reason
from .room import BLOCK, Room
from .tree import empty_directory

PARENT_MODE = 0o755
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Segments = Sequence[bytes]


class Workspace:
    """The volume that becomes the workspace."""

    def __init__(self, root: Path, room: Room | None = None):
        self.root = root
        self.room = room or Room()
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def empty(self) -> None:
        """Remove all that stands in the volume, but not the volume's own root."""
        empty_directory(self._fd)

    def set_root_mode(self) -> None:
        """Give the root itself its mode; where the kubelet owns it, for the pod's group, it stays."""
        try:
            os.fchmod(self._fd, PARENT_MODE)
        except PermissionError:
            return

    def make_directory(self, segments: Segments) -> None:
        """Make a directory and its parents; one that stands there already is good."""
        with self._directory(segments):
            pass

    def make_parents(self, segments: Segments) -> None:
        """Make the directories above a path, not the path itself."""
        self.make_directory(segments[:-1])

    def write_file(self, segments: Segments, chunks: Iterable[bytes], mode: int) -> int:
        """Write a file of these bytes and this mode, in place of a regular one; return its size."""
        size = 0
        with self._directory(segments[:-1]) as parent:
            name = segments[-1]
            found = _lstat(parent, name)
            if found is not None:
                if not stat.S_ISREG(found.st_mode):
                    raise _conflict(segments, found, "a file shall be written")
                os.unlink(name, dir_fd=parent)
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
            try:
                for chunk in chunks:
                    before, size = size, size + len(chunk)
                    self.room.take(self.room.blocks(size) - self.room.blocks(before))
                    _write_all(descriptor, chunk)
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
        return size

    def set_directory_mode(self, segments: Segments, mode: int) -> None:
        """Give a directory its final mode."""
        with self._directory(segments) as directory:
            os.fchmod(directory, mode)

    def check_free(self, segments: Segments) -> None:
        """Make sure that a directory can be moved to a path: nothing is there, or an empty directory."""
        with self._directory(segments[:-1]) as parent:
            found = _lstat(parent, segments[-1])
            if found is None:
                return
            if not stat.S_ISDIR(found.st_mode):
                raise _conflict(segments, found, "a repository shall be placed")
            with self._directory(segments) as directory, os.scandir(directory) as content:
                if next(content, None) is not None:
                    raise MaterializeError(
                        Reason.PATH_CONFLICT, "The directory for the repository is not empty."
                    )

    def move_in(self, source: Path, below: Segments, segments: Segments) -> None:
        """Move a directory, found beneath `source` without following links, to a free path, in one step.

        Raises:
            NotADirectoryError, FileNotFoundError, OSError: where `below` is no directory.
        """
        with _existing(source, below[:-1]) as from_parent:
            os.close(os.open(below[-1], _DIRECTORY, dir_fd=from_parent))
            self.check_free(segments)
            with self._directory(segments[:-1]) as parent:
                os.rename(below[-1], segments[-1], src_dir_fd=from_parent, dst_dir_fd=parent)

    @contextmanager
    def _directory(self, segments: Segments) -> Iterator[int]:
        """An open directory; it and its parents are made where they are missing."""
        current = os.dup(self._fd)
        try:
            for level, name in enumerate(segments, 1):
                following, made = _enter(current, segments[:level], name)
                if made:
                    self.room.take(BLOCK)
                os.close(current)
                current = following
            yield current
        finally:
            os.close(current)


def read_chunks(descriptor: int, size: int = 1024 * 1024) -> Iterator[bytes]:
    """The bytes of an open file, to its end."""
    while chunk := os.read(descriptor, size):
        yield chunk


def _enter(parent: int, segments: Segments, name: bytes) -> tuple[int, bool]:
    """An open directory, and whether it was made."""
    made = False
    try:
        os.mkdir(name, PARENT_MODE, dir_fd=parent)
        made = True
    except FileExistsError:
        pass
    try:
        directory = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        found = _lstat(parent, name)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise _conflict(segments, found, "a directory shall be") from None
        raise
    if made:  # a volume's root may hand its setgid bit down
        os.fchmod(directory, PARENT_MODE)
    return directory, made


@contextmanager
def _existing(top: Path, segments: Segments) -> Iterator[int]:
    """An open directory that must exist beneath another."""
    current = os.open(top, _DIRECTORY)
    try:
        for name in segments:
            following = os.open(name, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _lstat(parent: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


def _conflict(segments: Segments, found: os.stat_result, wanted: str) -> MaterializeError:
    if stat.S_ISLNK(found.st_mode):
        what = "a link"
    elif stat.S_ISDIR(found.st_mode):
        what = "a directory"
    else:
        what = "a file"
    path = b"/".join(segments).decode(errors="replace")
    return MaterializeError(Reason.PATH_CONFLICT, f"{path!r} is {what} already, where {wanted}.")
