"""Repositories by ssh, through a stand-in for ssh that shows how it was called and serves the repository itself."""

import json
import os
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sandbox_workspace.git_credentials import prepare_access
from sandbox_workspace.git_url import parse_git_url

from tests.workspace.container import Container, plan_of
from tests.workspace.git_server import silent_host
from tests.workspace.repositories import Ordinary, git

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0LXNlY3JldC1zZWNyZXQ=\n-----END OPENSSH PRIVATE KEY-----"

STAND_IN = """#!/usr/bin/env python3
import json, os, pathlib, shlex, sys
arguments = sys.argv[1:]
options = dict(a.split("=", 1) for a in arguments if "=" in a and " " not in a)
identity = pathlib.Path(options["IdentityFile"])
report = {"arguments": arguments, "options": options, "environment": dict(os.environ),
          "key": identity.read_text(), "mode": identity.stat().st_mode,
          "directory_mode": identity.parent.stat().st_mode,
          "known_hosts": pathlib.Path(options["UserKnownHostsFile"]).read_text()}
pathlib.Path(%(report)r).write_text(json.dumps(report))
if %(error)r:
    sys.exit(sys.stderr.write(%(error)r) and 255)
program, path = shlex.split(arguments[-1])
os.execvp("git", ["git", "-c", "safe.directory=*", program.removeprefix("git-"), %(root)r + path])
"""


class Ssh:
    def __init__(self, directory: Path, root: Path):
        self.directory = directory
        self.report_file = directory / "report"
        self.root = root
        self.answer("")

    def answer(self, error: str) -> None:
        program = self.directory / "ssh"
        values = {"report": str(self.report_file), "error": error, "root": str(self.root)}
        program.write_text(STAND_IN % values)
        program.chmod(0o755)

    def report(self) -> dict[str, Any]:
        return json.loads(self.report_file.read_text())


@pytest.fixture
def ssh(tmp_path: Path, repositories: Path, ordinary: Ordinary) -> Ssh:
    directory = tmp_path / "bin"
    directory.mkdir()
    return Ssh(directory, repositories)


@pytest.fixture
def ssh_container(container: Container, ssh: Ssh) -> Container:
    container.env["PATH"] = f"{ssh.directory}:{os.environ['PATH']}"
    return container


def fill(container: Container, url: str, **fields: Any) -> Any:
    entry = {"path": "repo", "kind": "git", "url": url, "credentials": "git-0", **fields}
    return container.run(plan_of(entry))


@pytest.mark.parametrize(("user", "expected"), [("", "git"), ("me@", None)])
def test_arguments_and_key(
    ssh_container: Container, ssh: Ssh, ordinary: Ordinary, user: str, expected: str | None
) -> None:
    ssh_container.mount("git-0", **{"ssh-privatekey": KEY, "known_hosts": "127.0.0.1 ssh-ed25519 AAAA\n"})
    with silent_host() as port:
        run = fill(ssh_container, f"ssh://{user}127.0.0.1:{port}/public/repo")
    assert run.code == 0, run.message
    assert git(ssh_container.workspace / "repo", "rev-parse", "HEAD") == ordinary.main
    report = ssh.report()
    options = report["options"]
    for name, value in {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "GlobalKnownHostsFile": "/dev/null",
        "ProxyCommand": "none",
    }.items():
        assert options[name] == value
    assert options.get("User") == expected
    assert f"{user}127.0.0.1" in report["arguments"]
    assert report["arguments"][:2] == ["-F", "/dev/null"]
    assert report["key"] == KEY + "\n"
    assert stat.S_IMODE(report["mode"]) == 0o600
    assert stat.S_IMODE(report["directory_mode"]) == 0o700
    assert report["known_hosts"].startswith("127.0.0.1")
    assert "c2VjcmV0" not in json.dumps([report["arguments"], report["environment"]]) + run.stderr
    assert not Path(options["IdentityFile"]).exists()
    ssh.report_file.unlink()  # the stand-in's own
    files = [path for path in ssh_container.base.rglob("*") if path.is_file() and not path.is_symlink()]
    kept = [str(path) for path in files if "c2VjcmV0" in path.read_text(errors="replace")]
    assert len(kept) == 1, kept  # the mounted Secret's own


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"ssh-privatekey": KEY}, "`ssh-keyscan -p 22 host.example`"),
        ({"known_hosts": "x"}, "ssh-privatekey"),
        ({"token": "x"}, "ssh-privatekey"),
    ],
)
def test_keys_that_cannot_serve(ssh_container: Container, keys: dict[str, str], told: str) -> None:
    ssh_container.mount("git-0", **keys)
    run = fill(ssh_container, "ssh://git@host.example/x")
    assert (run.message["reason"], run.message["retryable"]) == ("GitRefused", False)
    assert told in run.message["message"]


def test_without_credentials(ssh_container: Container) -> None:
    run = ssh_container.run(plan_of({"path": "repo", "kind": "git", "url": "ssh://git@host.example/x"}))
    assert run.message["reason"] == "GitRefused"


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        ("Host key verification failed.\n", "GitRefused", False),
        ("git@127.0.0.1: Permission denied (publickey).\n", "GitAuthenticationFailed", False),
        ("ERROR: Repository not found.\n", "GitRepositoryNotFound", False),
        ("No user exists for uid 12345\n", "GitRefused", False),
        ("Connection closed by 127.0.0.1 port 22\n", "GitFailed", True),
        ("ssh: connect to host 127.0.0.1 port 22: Connection timed out\n", "GitHostUnreachable", True),
    ],
)
def test_refusals(ssh_container: Container, ssh: Ssh, error: str, reason: str, retryable: bool) -> None:
    ssh.answer(error)
    ssh_container.mount("git-0", **{"ssh-privatekey": KEY, "known_hosts": "127.0.0.1 ssh-ed25519 AAAA\n"})
    with silent_host() as port:
        run = fill(ssh_container, f"ssh://git@127.0.0.1:{port}/public/repo")
    assert (run.message["reason"], run.message["retryable"]) == (reason, retryable), run.message


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs an ssh client")
def test_the_real_ssh_understands_every_option(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/ssh-privatekey").write_text(KEY)
    (tmp_path / "secret/known_hosts").write_text("")
    access = prepare_access(
        parse_git_url("ssh://host.example/x", frozenset()), tmp_path / "secret", None, tmp_path
    )
    command = [*shlex.split(access.env["GIT_SSH_COMMAND"]), "-G", "host.example"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    effective = done.stdout.splitlines()
    for line in ("stricthostkeychecking true", "identitiesonly yes", "user git", "batchmode yes"):
        assert line in effective
    assert "c2VjcmV0" not in repr(access)


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/ssh-privatekey").write_text(KEY)
    (tmp_path / "secret/known_hosts").write_text("")
    access = prepare_access(
        parse_git_url("ssh://host.example/x", frozenset()), tmp_path / "secret", None, tmp_path
    )
    command = shlex.split(access.env["GIT_SSH_COMMAND"])
    assert command[:5] == [
        "env",
        "LD_PRELOAD=libnss_wrapper.so",
        f"NSS_WRAPPER_PASSWD={tmp_path / 'passwd'}",
        "NSS_WRAPPER_GROUP=/etc/group",
        "ssh",
    ]
    assert (tmp_path / "passwd").read_text().startswith("sandbox:x:54321:")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs an ssh client")
def test_the_real_ssh_runs_for_a_user_without_a_name(user_container: Container) -> None:
    if not list(Path("/usr/lib").glob("*/libnss_wrapper.so")):
        pytest.skip("needs libnss-wrapper")
    user_container.mount("git-0", **{"ssh-privatekey": KEY, "known_hosts": "127.0.0.1 ssh-ed25519 AAAA\n"})
    with silent_host() as port:
        run = user_container.run(
            {
                **plan_of(
                    {
                        "path": "repo",
                        "kind": "git",
                        "url": f"ssh://127.0.0.1:{port}/x",
                        "credentials": "git-0",
                    }
                ),
                "git": {"timeoutSeconds": 2},
            }
        )
    assert run.message["reason"] == "GitTimeout", run.message
