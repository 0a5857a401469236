"""Fills the folder that the images are built from: sources, unpacked dependencies, the agent's binary.

All that needs a network or a compiler happens here, on the host, so that one Dockerfile serves Docker and
a build without any registry.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from dev.local import prerequisites
from dev.local.locations import REPOSITORY, cache
from dev.local.progress import run_long
from dev.local.tool_error import ToolError

PACKAGES = {
    "sandbox_api": "api/sandbox_api",
    "sandbox_operator": "operator/sandbox_operator",
    "sandbox_workspace": "operator/sandbox_workspace",
}
_WHEEL_PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}


def requirements() -> list[str]:
    """What the operator's image must hold, from pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return sorted([*project["dependencies"], *project["optional-dependencies"]["operator"]])


def sources_of_agent() -> list[Path]:
    """The files that the agent's binary is made of."""
    return [
        f
        for f in _files(REPOSITORY / "agent")
        if f.suffix in {".go", ".mod", ".sum"} and "_test.go" not in f.name
    ]


def sources_of(package: str) -> list[Path]:
    """The files of one of our packages."""
    return list(_files(REPOSITORY / PACKAGES[package]))


def digest(parts: Iterable[str], files: Iterable[Path]) -> str:
    """A hash of texts and of files with their paths in the repository."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() + b"\0")
    for file in sorted(files):
        whole.update(str(file.relative_to(REPOSITORY)).encode() + b"\0")
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:12]


def fill(context: Path, architectures: Iterable[str], python: str) -> None:
    """Fills the context anew; what is expensive comes from the cache."""
    if context.exists():
        shutil.rmtree(context)
    context.mkdir(parents=True)
    for name, source in PACKAGES.items():
        shutil.copytree(
            REPOSITORY / source, context / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for architecture in architectures:
        shutil.copy(_agent(architecture), context / f"agent-linux-{architecture}")
        shutil.copytree(_dependencies(architecture, python), context / f"packages-{architecture}")


def _agent(architecture: str) -> Path:
    go = prerequisites.need_go()
    binary = cache() / "images" / f"agent-{architecture}-{digest([go, architecture], sources_of_agent())}"
    if not binary.exists():
        main = "./cmd/agent" if (REPOSITORY / "agent" / "cmd" / "agent").is_dir() else "."
        partial = binary.with_name(f".{binary.name}.{os.getpid()}")
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(partial), main]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOOS": "linux", "GOARCH": architecture}
        run_long(
            f"Building the agent for {architecture}",
            command,
            cache() / "images" / "agent.log",
            timeout=900,
            cwd=REPOSITORY / "agent",
            environment=environment,
        )
        partial.rename(binary)
    return binary


def _dependencies(architecture: str, python: str) -> Path:
    """The operator's dependencies, unpacked into a folder, for the Python and the machine of the image."""
    wanted = requirements()
    folder = cache() / "images" / f"packages-{architecture}-{digest([python, *wanted], [])}"
    if folder.exists():
        return folder
    if (
        subprocess.run(
            [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False
        ).returncode
        != 0
    ):
        raise ToolError("pip is missing: run `make venv` first, and this with .venv/bin/python.")
    machine = _WHEEL_PLATFORMS[architecture]
    partial = Path(tempfile.mkdtemp(prefix=".packages-", dir=_made(folder.parent)))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", python, "--target", str(partial / "all")]
    for platform in (f"manylinux_2_28_{machine}", f"manylinux_2_17_{machine}", f"manylinux2014_{machine}"):
        command += ["--platform", platform]
    step = f"Fetching the operator's dependencies for Python {python} on {architecture}"
    try:
        run_long(step, [*command, *wanted], cache() / "images" / "pip.log", timeout=900)
        shutil.rmtree(partial / "all" / "bin", ignore_errors=True)
        (partial / "all").chmod(0o755)
        (partial / "all").rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
            yield file


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
