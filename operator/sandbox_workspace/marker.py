"""The marker: how far materialize came in this pod, on a volume that the workspace cannot write.

An init container runs again over a living workspace when the pod's sandbox is made anew (a killed pause
process, a rebooted node). Only the marker tells that from a first start.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .outcome import Receipt

NAME = "materialized.json"


class State(StrEnum):
    """How far an earlier run came."""

    STARTED = "started"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Marker:
    """What an earlier run left."""

    state: State
    pod_uid: str
    digest: str
    receipt: Receipt | None = None

    def to_json(self) -> dict[str, object]:
        """The form in the file."""
        document: dict[str, object] = {
            "state": self.state.value,
            "podUid": self.pod_uid,
            "digest": self.digest,
        }
        if self.receipt is not None:
            document["receipt"] = self.receipt.to_json()
        return document


def read_marker(directory: Path) -> Marker | None:
    """The marker of an earlier run; None at a pod's first.

    One that cannot be read counts as `started`: the write is one rename, so only a node that lost power
    within seconds of it leaves such a thing, and what stood in the workspace then is not whole either.
    """
    try:
        content = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        document = json.loads(content)
        state = State(document["state"])
        receipt = _parse_receipt(document["receipt"]) if state is State.DONE else None
        return Marker(state, str(document["podUid"]), str(document["digest"]), receipt)
    except (ValueError, TypeError, KeyError):
        return Marker(State.STARTED, "", "")


def write_marker(directory: Path, marker: Marker) -> None:
    """Replace the marker in one step."""
    temporary = directory / f".{NAME}.new"
    temporary.write_text(json.dumps(marker.to_json()))
    temporary.chmod(0o644)
    temporary.replace(directory / NAME)


def _parse_receipt(document: dict[str, Any]) -> Receipt:
    return Receipt(int(document["entries"]), int(document["bytes"]), float(document["seconds"]))
