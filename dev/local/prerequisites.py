"""What the machine must have: what is missing is installed where we may, or named with its remedy."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from dev.local.progress import run_long
from dev.local.tool_error import ToolError

GO = (1, 26)
BUILD_PACKAGES = ("gcc", "libc6-dev", "libseccomp-dev")
NODE_PACKAGES = (
    "containernetworking-plugins",
    "iptables",
    "nftables",
    "conntrack",
    "iproute2",
    "procps",
    "openssl",
)
CERTIFICATE_PACKAGES = ("openssl",)
IMAGE_PACKAGES = ("buildah", "debootstrap")


def need_linux() -> None:
    """The native cluster is made of Linux namespaces."""
    if platform.system() != "Linux":
        raise ToolError(
            f"The native cluster needs Linux, and this is {platform.system()}: start a Docker engine and set "
            "CLUSTER=kind."
        )


def need_root(purpose: str) -> None:
    """Namespaces, mounts and control groups can only be made by root."""
    if os.geteuid() != 0:
        raise ToolError(
            f"{purpose} needs root: run the command with sudo, or start a Docker engine and set CLUSTER=kind."
        )


def need_go() -> str:
    """The version of the Go compiler, which must be there and new enough."""
    if shutil.which("go") is None:
        raise ToolError(
            f"Go is missing: install Go {GO[0]}.{GO[1]} or newer and put its bin folder into PATH."
        )
    asked = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False)
    version = asked.stdout.strip()
    if asked.returncode != 0:
        raise ToolError(f"Go does not work ({asked.stderr.strip()[-300:]}): try `go env GOVERSION`.")
    match = re.match(r"go(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < GO:
        raise ToolError(
            f"Go is too old ({version or 'version unknown'}): install Go {GO[0]}.{GO[1]} or newer."
        )
    return version


def need_command(name: str, remedy: str) -> str:
    """The path of a program that must be there."""
    path = shutil.which(name)
    if path is None:
        raise ToolError(f"{name} is missing: {remedy}.")
    return path


def need_packages(packages: Iterable[str], purpose: str, log: Path) -> None:
    """Installs the Debian packages that are missing; where we may not or cannot, says how to."""
    missing = [package for package in packages if not _installed(package)]
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise ToolError(
            f"{purpose} needs {names}: there is no apt-get here, so install them (or their like) by hand."
        )
    if os.geteuid() != 0:
        raise ToolError(f"{purpose} needs {names}: install them with `sudo apt-get install {names}`.")
    script = f"apt-get update -qq && apt-get install -y -qq --no-upgrade --no-install-recommends {names}"
    run_long(
        f"Installing the Debian packages {names}",
        ["sh", "-c", script],
        log,
        timeout=900,
        environment={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


def _installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return _there_without_dpkg(package)
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"


def _there_without_dpkg(package: str) -> bool:
    """On other distributions: judge by a file of the package."""
    signs = {
        "containernetworking-plugins": "/usr/lib/cni/bridge",
        "libc6-dev": "/usr/include/stdio.h",
        "libseccomp-dev": "/usr/include/seccomp.h",
    }
    if package in signs:
        return Path(signs[package]).exists()
    programs = {"nftables": "nft", "iproute2": "ip", "procps": "sysctl"}
    return shutil.which(programs.get(package, package)) is not None
