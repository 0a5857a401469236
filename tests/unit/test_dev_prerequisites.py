"""What is missing is said in one sentence with its remedy."""

import os
import platform
import shutil
from pathlib import Path

import pytest

from dev.local import prerequisites
from dev.local.tool_error import ToolError


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with nothing in it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_go_missing(bare_machine: Path) -> None:
    with pytest.raises(ToolError, match=r"Go is missing: install Go 1\.26 or newer"):
        prerequisites.need_go()


@pytest.mark.parametrize("version", ["go1.19.8", "go1.25.9", "devel"])
def test_go_too_old(bare_machine: Path, version: str) -> None:
    program(bare_machine, "go", f"echo {version}")
    with pytest.raises(ToolError, match="Go is too old"):
        prerequisites.need_go()


def test_go_new_enough(bare_machine: Path) -> None:
    program(bare_machine, "go", "echo go1.30")
    assert prerequisites.need_go() == "go1.30"


def test_packages_without_apt(bare_machine: Path) -> None:
    with pytest.raises(ToolError, match=r"needs no-such-package: there is no apt-get here"):
        prerequisites.need_packages(["no-such-package"], "A test", bare_machine / "log")


def test_packages_without_root(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare_machine, "apt-get", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolError, match="sudo apt-get install no-such-package"):
        prerequisites.need_packages(["no-such-package"], "A test", bare_machine / "log")


def test_an_installation_that_fails_shows_why(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = shutil.which("sh", path=os.defpath)
    assert shell
    (bare_machine / "sh").symlink_to(shell)
    program(bare_machine, "apt-get", "echo no such package; exit 100")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ToolError, match=r"no such package\n.*failed with exit code 100"):
        prerequisites.need_packages(["no-such-package"], "A test", bare_machine / "log")


def test_root_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolError, match="needs root"):
        prerequisites.need_root("The native cluster")


def test_linux_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(ToolError, match="needs Linux, and this is Darwin"):
        prerequisites.need_linux()
