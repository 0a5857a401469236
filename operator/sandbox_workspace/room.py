"""How much the volume of the workspace may hold: with more, the kubelet evicts the pod, and its successor is as large.

Counted as the kubelet counts: blocks that are taken, directories too.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from .outcome import MaterializeError
from .reasons import Reason
from .tree import measure

#: What a small file and a directory take on the usual file systems.
BLOCK = 4096
_UNITS = ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)
#: While something else writes, it is looked at so often, and looking may take a tenth of the time.
_PAUSE = 0.2
_SHARE = 10


@dataclass(slots=True)
class Room:
    """What is left of a volume.

    Attributes:
        limit: Bytes that it may hold; None: nobody says.
        used: Bytes that it holds.
    """

    limit: int | None = None
    used: int = 0

    @property
    def left(self) -> int | None:
        """Bytes that may still come."""
        return None if self.limit is None else max(0, self.limit - self.used)

    def take(self, size: int) -> None:
        """Count bytes.

        Raises:
            MaterializeError: They are too many.
        """
        self.used += size
        if self.limit is not None and self.used > self.limit:
            raise self.full()

    def blocks(self, size: int) -> int:
        """Bytes that a file of so many bytes takes."""
        return -(-size // BLOCK) * BLOCK

    def watch(self, directory: Path) -> float:
        """Look at a directory that is being written and not counted yet; returns the seconds until the next look.

        Raises:
            MaterializeError: It holds too much.
        """
        if self.left is None:
            return 3600.0
        started = time.monotonic()
        if measure(directory).taken > self.left:
            raise self.full()
        return max(_PAUSE, _SHARE * (time.monotonic() - started))

    def full(self) -> MaterializeError:
        """The failure."""
        return MaterializeError(
            Reason.WORKSPACE_FULL,
            f"The workspace holds at most {in_words(self.limit or 0)} and has no room for this entry: raise"
            " workspace.emptyDir.sizeLimit, or put less into the manifest.",
        )


def in_words(size: int) -> str:
    """A size as people write it: 10Gi."""
    for unit, factor in _UNITS:
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size} bytes"
