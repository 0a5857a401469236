"""What a run says: a line for each figure, and the file by which a program compares runs."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .figures import Figure

RESULTS = Path(__file__).parent / "results" / "latest.json"


def line(figure: Figure) -> str:
    """A figure for people."""
    against = "" if figure.baseline is None else f"baseline {_short(figure.baseline)}"
    ratio = "" if figure.ratio is None else f"ratio {_short(figure.ratio)}"
    verdict = "" if figure.bound is None else f"{figure.bound}: {'ok' if figure.ok else 'MISSED'}"
    spread = "" if figure.low is None else f"[{_short(figure.low)}..{_short(figure.high)}]"
    columns = (
        (figure.name, 38),
        (f"{_short(figure.value)} {figure.unit}", 14),
        (spread, 16),
        (against, 17),
        (ratio, 12),
        (f"n={figure.n}", 6),
        (verdict, 0),
    )
    return "  ".join(text.ljust(width) for text, width in columns).rstrip()


def missed(figures: Iterable[Figure]) -> list[Figure]:
    """Those that do not keep their bound."""
    return [figure for figure in figures if not figure.ok]


def document(figures: Sequence[Figure], *, quick: bool, groups: Sequence[str]) -> dict[str, Any]:
    """The results' file: what was run and nothing else."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "machine": _machine(),
        "quick": quick,
        "groups": list(groups),
        "ok": not missed(figures),
        "figures": [figure.to_wire() for figure in figures],
    }


def write(result: dict[str, Any], path: Path = RESULTS) -> None:
    """Put the results in place, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    unfinished.replace(path)


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _commit() -> str | None:
    """The commit, with ``+`` where tracked files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _machine() -> dict[str, Any]:
    try:
        load = [round(each, 1) for each in os.getloadavg()]
    except OSError:
        load = []
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_end": load,
    }


def _processor() -> str:
    try:
        for each in Path("/proc/cpuinfo").read_text().splitlines():
            if each.startswith("model name"):
                return each.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
