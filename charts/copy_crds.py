"""Copies crds/*.yaml into the chart: python3 charts/copy_crds.py [--check].

A chart can only read files of its own folder, so it holds a copy. The templates add what the values ask for.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "crds"
COPY = REPOSITORY / "charts" / "sandbox-operator" / "files" / "crds"


def differences() -> list[str]:
    """Names of the files that are missing, left over or different in the chart."""
    source, copy = _contents(SOURCE), _contents(COPY)
    return sorted(name for name in source.keys() | copy.keys() if source.get(name) != copy.get(name))


def copy() -> None:
    """Makes the chart's files those of crds/."""
    COPY.mkdir(parents=True, exist_ok=True)
    for name in differences():
        source = SOURCE / name
        if source.exists():
            (COPY / name).write_bytes(source.read_bytes())
        else:
            (COPY / name).unlink()


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.yaml")}


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if changed := differences():
            sys.exit(
                f"The chart's CRDs differ from crds/ ({', '.join(changed)}): run python3 charts/copy_crds.py."
            )
    else:
        copy()
