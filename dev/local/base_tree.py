"""The base of the images where no registry can be reached: a tree made from the distribution's own packages.

The mirror is the one that this machine's apt uses, and so are its proxies.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dev.local import prerequisites
from dev.local.locations import cache
from dev.local.progress import run_long
from dev.local.tool_error import ToolError

PACKAGES = ("python3", "python3-pytest", "git", "ca-certificates", "openssh-client", "libnss-wrapper")
# What minimal images leave out too: lists and archives of apt, documentation, translations, logs.
_NOT_NEEDED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
)


def key() -> str:
    """What the base depends on, as a short hash."""
    return hashlib.sha256(repr((_codename(), PACKAGES, _NOT_NEEDED)).encode()).hexdigest()[:12]


def python_version() -> str:
    """The version of Python that the base gets (the one of this machine's distribution)."""
    shown = subprocess.run(
        ["apt-cache", "show", "python3"], capture_output=True, text=True, check=False
    ).stdout
    for line in shown.splitlines():
        if line.startswith("Version: "):
            return ".".join(line.removeprefix("Version: ").split(".")[:2])
    raise ToolError("apt does not know the package python3: run `apt-get update`.")


def write_archive(archive: Path) -> None:
    """Makes the tree and packs it."""
    prerequisites.need_root("Making an image base from distribution packages")
    log = cache() / "images" / "base.log"
    folder = Path(tempfile.mkdtemp(prefix=".base-", dir=cache() / "images"))
    try:
        codename = _codename()
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", codename]
        command += [str(folder / "tree"), _mirror(codename)]
        step = f"Making the image base from the packages of {codename} (about 40 s, once per machine)"
        run_long(step, command, log, timeout=1200, environment=_with_proxies())
        for path in _NOT_NEEDED:
            shutil.rmtree(folder / "tree" / path, ignore_errors=True)
            (folder / "tree" / path).mkdir(parents=True)
        for file in (folder / "tree/var/log").rglob("*"):
            if file.is_file():
                file.unlink()
        pack = ["tar", "-C", str(folder / "tree"), "--numeric-owner", "-cf", str(archive), "."]
        subprocess.run(pack, check=True, timeout=300)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _codename() -> str:
    release = Path("/etc/os-release")
    for line in release.read_text().splitlines() if release.exists() else []:
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip('"')
    raise ToolError(
        "This distribution has no code name in /etc/os-release: build the images with Docker instead."
    )


def _mirror(codename: str) -> str:
    shown = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for line in shown.splitlines():
        uri, release, component = [*line.split(), "", "", ""][:3]
        if release == codename and component == "main":
            return uri
    raise ToolError(
        f"apt has no source for {codename} main: add the distribution's own to /etc/apt/sources.list."
    )


def _with_proxies() -> dict[str, str]:
    environment = dict(os.environ)
    for scheme in ("http", "https"):
        command = ["apt-config", "shell", "PROXY", f"Acquire::{scheme}::Proxy"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        proxy = shown.removeprefix("PROXY=").strip("'")
        if proxy and proxy != "DIRECT":
            environment.setdefault(f"{scheme}_proxy", proxy)
    return environment
