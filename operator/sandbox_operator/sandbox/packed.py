"""Large specs at rest: packed, since the store holds every Sandbox and Python's objects take several times the text."""

import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

#: Specs of more JSON than this are packed; nearly all are far smaller, and are read at every reconcile.
LARGE = 16 * 1024
#: Packed specs that were read last: one reconcile reads its spec many times.
_READ_LAST = 4


@dataclass(frozen=True, slots=True)
class PackedSpec:
    """A spec as compressed JSON."""

    data: bytes

    def read(self) -> dict[str, Any]:
        """The spec; it is not to be changed."""
        return _read(self.data)


def packed(spec: dict[str, Any]) -> dict[str, Any] | PackedSpec:
    """A spec as it is, or packed where it is large."""
    try:
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # no CRD of ours lets it by
        return spec
    if len(text) <= LARGE:
        return spec
    return PackedSpec(zlib.compress(text.encode("utf-8", "surrogatepass"), 1))


@lru_cache(maxsize=_READ_LAST)
def _read(data: bytes) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass"))
    return spec
