"""Emptying and measuring whole trees, however deep, whatever their modes, without following a link.

Both go step by step instead of recursing: a repository can nest directories deeper than Python recurses and
than a process may hold files open.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL_OWNER = 0o700


def remove_tree(path: Path) -> None:
    """Remove a directory of ours with all that it holds."""
    try:
        directory = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        empty_directory(directory)
    finally:
        os.close(directory)
    path.rmdir()


def empty_directory(top: int) -> None:
    """Remove everything in an open directory, but not the directory itself.

    Nobody else may move directories in it meanwhile: the way back up is `..`.
    """
    current = os.dup(top)
    try:
        levels = [_remove_files(current)]
        entered: list[str] = []
        while True:
            if levels[-1]:
                name = levels[-1].pop()
                current = _replace(current, _open_fully(name, current))
                entered.append(name)
                levels.append(_remove_files(current))
            elif entered:
                current = _replace(current, os.open("..", _DIRECTORY, dir_fd=current))
                os.rmdir(entered.pop(), dir_fd=current)
                levels.pop()
            else:
                return
    finally:
        os.close(current)


@dataclass(slots=True)
class Size:
    """Size of a tree.

    Attributes:
        content: Bytes of its regular files.
        taken: Bytes that all of it takes on its file system.
    """

    content: int = 0
    taken: int = 0


def measure(top: Path) -> Size:
    """Look how large a tree is, also while somebody writes it."""
    found = Size()
    waiting = [os.fspath(top)]
    while waiting:
        # A path longer than the kernel takes, or one that is gone by now: what can be seen is what counts.
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.taken += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    elif stat.S_ISREG(status.st_mode):
                        found.content += status.st_size
    return found


def _remove_files(directory: int) -> list[str]:
    """Remove what is no directory; return the directories."""
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in found if is_directory]


def _open_fully(name: str, parent: int) -> int:
    """Open a directory of ours so that its content can be removed, whatever its mode."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & _ALL_OWNER != _ALL_OWNER:
            Path(f"/proc/self/fd/{handle}").chmod(_ALL_OWNER)
        return os.open(name, _DIRECTORY, dir_fd=parent)
    finally:
        os.close(handle)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new
