"""The native cluster's binaries, built from Go modules once per machine into the cache.

Each component has a folder named after a hash of all that goes into it, so that only a change builds anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dev.local import prerequisites
from dev.local.locations import REPOSITORY, SOURCES, cache
from dev.local.progress import run_long, say
from dev.local.tool_error import ToolError

Component = Literal["kube", "addons", "runtime"]

_ABOUT: dict[Component, str] = {
    "kube": "Building the Kubernetes binary (about 5 minutes on 2 cores, once per machine)",
    "addons": "Building DNS, network policies and volumes (about 2 minutes on 2 cores, once per machine)",
    "runtime": "Building containerd and runc (about 1 minute on 2 cores, once per machine)",
}


def component(name: Component) -> Path:
    """The folder with the binaries of a component, built if it is not there yet."""
    go = prerequisites.need_go()
    folder = cache() / "cluster" / f"{name}-{_key(name, go)}"
    if folder.exists():
        return folder
    if name == "runtime":
        prerequisites.need_packages(
            prerequisites.BUILD_PACKAGES,
            "Building the container runtime",
            cache() / "cluster" / "packages.log",
        )
    with locked(cache() / "cluster" / f"{name}.lock", f"the build of {name}"):
        if not folder.exists():
            _build(name, folder)
    return folder


def kubectl() -> Path:
    """The kubectl that belongs to the Kubernetes binary."""
    return component("kube") / "kubectl"


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Holds a lock between processes; the kernel lets go of it if the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another process to end {what} …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: Component, folder: Path) -> None:
    if shutil.disk_usage(folder.parent).free < 6 << 30:
        raise ToolError(
            f"Building {name} needs 6 GiB free below {folder.parent}: make room or set XDG_CACHE_HOME."
        )
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        partial.chmod(0o755)
        command = ["bash", str(SOURCES / "build.sh"), name, str(partial)]
        run_long(
            _ABOUT[name],
            command,
            folder.parent / f"{name}.log",
            timeout=3600,
            cwd=REPOSITORY,
            environment=_plain(),
        )
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _plain() -> dict[str, str]:
    """The environment without what would make the same sources give another binary."""
    return {k: v for k, v in os.environ.items() if k not in {"GOFLAGS", "GOOS", "GOARCH", "GOWORK"}}


def _key(name: Component, go: str) -> str:
    digest = hashlib.sha256(go.encode())
    files = [SOURCES / "build.sh", *sorted((SOURCES / name).iterdir())]
    if name == "runtime":
        files.append(SOURCES / "pause" / "pause.c")
    for file in files:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]
