"""Repositories from real hosts on the loopback address."""

import os
import re
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workspace.container import Container, Run, descendants, file, plan_of, tree_of
from tests.workspace.git_server import (
    TOKEN,
    USER,
    GitServer,
    black_hole,
    git_daemon,
    serve,
    silent_host,
)
from tests.workspace.repositories import Ordinary, git


def repo(url: str, **fields: Any) -> dict[str, Any]:
    return {"path": "repo", "kind": "git", "url": url, **fields}


def fill(
    container: Container, server: GitServer, entry: dict[str, Any], *more: dict[str, Any], **policy: Any
) -> Run:
    return container.fill(entry, *more, **{"insecureHosts": [server.address], **policy})


def scratch(container: Container) -> list[str]:
    """What a run left behind that is no entry."""
    left = [p.name for p in container.workspace.iterdir() if p.name.startswith(".sandbox")]
    return left + [p.name for p in container.agent_dir.iterdir() if p.name.startswith(".")]


class TestRefs:
    @pytest.mark.parametrize(
        ("ref", "commit"),
        [
            *((None, "main"), ("HEAD", "main"), ("main", "main"), ("feature/x", "feature")),
            *(("v1", "first"), ("light", "first"), ("both", "both_branch")),
            *(("refs/tags/both", "both_tag"), ("refs/heads/feature/x", "feature")),
        ],
    )
    def test_branches_before_tags(
        self, container: Container, server: GitServer, ordinary: Ordinary, ref: str | None, commit: str
    ) -> None:
        entry = repo(server.url("public/repo")) | ({"ref": ref} if ref else {})
        run = fill(container, server, entry)
        assert run.code == 0, run.stderr
        root = container.workspace / "repo"
        assert git(root, "rev-parse", "HEAD") == getattr(ordinary, commit)
        assert git(root, "status", "--porcelain") == ""
        assert git(root, "rev-list", "--count", "--all", "HEAD") == "1"
        assert scratch(container) == []

    @pytest.mark.parametrize("commit", ["first", "main", "feature"])
    def test_a_commit(self, container: Container, server: GitServer, ordinary: Ordinary, commit: str) -> None:
        wanted = getattr(ordinary, commit)
        assert fill(container, server, repo(server.url("public/repo"), ref=wanted)).code == 0
        root = container.workspace / "repo"
        assert git(root, "rev-parse", "HEAD") == wanted
        assert git(root, "status", "--porcelain") == ""
        assert git(root, "rev-list", "--count", "HEAD") == "1"
        assert git(root, "for-each-ref") == ""

    def test_a_commit_from_an_old_server(
        self, container: Container, repositories: Path, ordinary: Ordinary
    ) -> None:
        with serve(repositories, newest_protocol=0) as server:
            run = fill(container, server, repo(server.url("public/repo"), ref=ordinary.first))
            assert run.code == 0, run.message
            assert git(container.workspace / "repo", "rev-parse", "HEAD") == ordinary.first
            container.agent_dir.joinpath("materialized.json").unlink()
            run = fill(container, server, repo(server.url("public/repo"), ref="d" * 40, path="other"))
            assert run.message["reason"] == "GitRefNotFound"

    def test_a_sha256_repository(self, container: Container, server: GitServer, repositories: Path) -> None:
        path = repositories / "public/sha256"
        path.mkdir()
        git(path, "init", "-q", "-b", "main", "--object-format=sha256")
        (path / "f").write_text("x")
        git(path, "add", "f")
        git(path, "commit", "-q", "-m", "x")
        commit = git(path, "rev-parse", "HEAD")
        assert len(commit) == 64
        run = fill(
            container,
            server,
            repo(server.url("public/sha256"), ref=commit),
            repo(server.url("public/sha256"), ref="main", path="by-name"),
        )
        assert run.code == 0, run.stderr
        assert git(container.workspace / "repo", "rev-parse", "HEAD") == commit
        assert git(container.workspace / "by-name", "rev-parse", "HEAD") == commit

    @pytest.mark.parametrize("ref", ["nonexistent", "e" * 40, "refs/heads/nonexistent", "abcdef0", "mai"])
    def test_a_ref_that_is_not_there(self, container: Container, server: GitServer, ref: str) -> None:
        run = fill(container, server, repo(server.url("public/repo"), ref=ref))
        assert run.code == 1
        assert run.message["reason"] == "GitRefNotFound"
        assert run.message["entry"] == "repo"
        assert run.message["retryable"] is False
        assert scratch(container) == []
        assert list(container.workspace.iterdir()) == []

    def test_an_object_that_is_no_commit(
        self, container: Container, server: GitServer, repositories: Path
    ) -> None:
        tag = git(repositories / "public/repo", "rev-parse", "refs/tags/v1")
        blob = git(repositories / "public/repo", "rev-parse", "main:README.md")
        for ref in (tag, blob):
            assert fill(container, server, repo(server.url("public/repo"), ref=ref)).message["reason"] in (
                *("GitRefNotFound", "GitFailed"),
            )

    def test_an_empty_repository(self, container: Container, server: GitServer, repositories: Path) -> None:
        git(repositories, "init", "-q", "--bare", "public/empty.git")
        assert fill(container, server, repo(server.url("public/empty.git"))).code == 0
        assert [p.name for p in (container.workspace / "repo").iterdir()] == [".git"]

    def test_few_requests(self, container: Container, server: GitServer, ordinary: Ordinary) -> None:
        fill(container, server, repo(server.url("public/repo"), ref="main"))
        assert len(server.requests) == 3, server.paths()  # capabilities, refs, pack
        server.requests.clear()
        fill(container, server, repo(server.url("public/repo"), ref=ordinary.first))
        assert len(server.requests) <= 3


class TestResult:
    def test_history_and_origin_stay(self, container: Container, server: GitServer) -> None:
        assert fill(container, server, repo(server.url("public/repo"), mode="0750")).code == 0
        root = container.workspace / "repo"
        assert git(root, "remote", "get-url", "origin") == server.url("public/repo")
        assert git(root, "branch", "--show-current") == "main"
        assert stat.S_IMODE(root.stat().st_mode) == 0o750
        assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o755
        assert stat.S_IMODE((root / "README.md").stat().st_mode) == 0o644
        assert (root / "link-to-docs").is_symlink()
        assert not (root / ".git/hooks").exists()
        config = (root / ".git/config").read_text()
        for setting in ("credential", "fsckObjects", "hooksPath", "sslCAInfo", "protocol"):
            assert setting.lower() not in config.lower()

    @pytest.mark.parametrize("by_commit", [False, True])
    def test_a_subpath_becomes_the_entry(
        self, container: Container, server: GitServer, ordinary: Ordinary, by_commit: bool
    ) -> None:
        ref = ordinary.main if by_commit else "main"
        run = fill(container, server, repo(server.url("public/repo"), ref=ref, subpath="docs", mode="0700"))
        assert run.code == 0, run.message
        root = container.workspace / "repo"
        assert sorted(str(p.relative_to(root)) for p in root.rglob("*")) == ["a.md", "deep", "deep/b.md"]
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        assert run.message["bytes"] == 4
        assert scratch(container) == []

    @pytest.mark.parametrize(
        "subpath", ["none", "README.md", "link-to-docs", "link-to-docs/deep", "docs/none", "do*"]
    )
    def test_a_subpath_that_is_no_directory(
        self, container: Container, server: GitServer, subpath: str
    ) -> None:
        run = fill(container, server, repo(server.url("public/repo"), subpath=subpath))
        assert run.message["reason"] == "GitSubpathNotFound", run.message
        assert run.message["retryable"] is False
        assert scratch(container) == []

    def test_entries_beneath_a_repository(self, container: Container, server: GitServer) -> None:
        run = fill(
            container,
            server,
            repo(server.url("public/repo")),
            file("repo/README.md", "mine\n"),
            file("repo/docs/new/f", "new"),
            repo(server.url("public/repo"), path="repo/vendor/other", subpath="docs"),
        )
        assert run.code == 0, run.message
        assert (container.workspace / "repo/README.md").read_text() == "mine\n"
        assert (container.workspace / "repo/docs/a.md").read_text() == "a\n"
        assert (container.workspace / "repo/docs/new/f").read_text() == "new"
        assert (container.workspace / "repo/vendor/other/a.md").exists()

    def test_an_entry_beneath_a_file_or_link_of_the_repository(
        self, container: Container, server: GitServer
    ) -> None:
        for path in ("repo/README.md/x", "repo/link-to-docs/x", "repo/link-to-docs", "repo/docs"):
            run = fill(container, server, repo(server.url("public/repo")), file(path))
            assert run.message["reason"] == "PathConflict", run.message
            assert run.message["entry"] == path
            assert run.message["retryable"] is False

    def test_a_directory_that_is_not_empty(self, container: Container, server: GitServer) -> None:
        run = fill(
            container,
            server,
            repo(server.url("public/repo")),
            repo(server.url("public/repo"), path="repo/docs"),
        )
        assert run.message["reason"] == "PathConflict"
        assert run.message["entry"] == "repo/docs"

    def test_a_living_repository_is_left_alone(self, container: Container, server: GitServer) -> None:
        plan = plan_of(repo(server.url("public/repo")), insecureHosts=[server.address])
        assert container.run(plan).code == 0
        root = container.workspace / "repo"
        (root / "work").write_text("x")
        git(root, "add", "work")
        git(root, "commit", "-q", "-m", "work")
        before = tree_of(container.workspace)
        server.requests.clear()
        assert container.run(plan).code == 0
        assert tree_of(container.workspace) == before
        assert server.requests == []


class TestHosts:
    def test_not_there(self, container: Container, server: GitServer) -> None:
        run = fill(container, server, repo(server.url("public/none")))
        assert (run.message["reason"], run.message["retryable"]) == ("GitRepositoryNotFound", False)

    @pytest.mark.parametrize("path", ["broken", "busy"])
    def test_an_error_of_the_host(self, container: Container, server: GitServer, path: str) -> None:
        run = fill(container, server, repo(server.url(f"{path}/repo")))
        assert (run.message["reason"], run.message["retryable"]) == ("GitFailed", True)

    def test_a_redirect(self, container: Container, server: GitServer) -> None:
        run = fill(container, server, repo(server.url("redirect/repo")))
        assert (run.message["reason"], run.message["retryable"]) == ("GitRefused", False)
        assert "redirect" in run.message["message"]
        assert len(server.requests) == 1

    def test_nobody_listens(self, container: Container, server: GitServer) -> None:
        started = time.monotonic()
        run = container.fill(repo("https://127.0.0.1:1/x"))
        assert (run.message["reason"], run.message["retryable"]) == ("GitHostUnreachable", True)
        assert "Connection refused" in run.message["message"]
        assert time.monotonic() - started < 10

    def test_no_such_name(self, container: Container) -> None:
        run = container.fill(repo("https://host.invalid/x"))
        assert (run.message["reason"], run.message["retryable"]) == ("GitHostUnreachable", True)
        assert "resolved" in run.message["message"]

    def test_a_policy_drops_everything(self, container: Container) -> None:
        with black_hole() as port:
            started = time.monotonic()
            run = container.fill(repo(f"https://127.0.0.1:{port}/x"), timeoutSeconds=2)
        assert (run.message["reason"], run.message["retryable"]) == ("GitHostUnreachable", True)
        assert "egress" in run.message["message"]
        assert time.monotonic() - started < 5

    @pytest.mark.parametrize("scheme", ["http", "https", "git"])
    def test_takes_the_connection_and_is_silent(self, container: Container, scheme: str) -> None:
        with silent_host() as port:
            started = time.monotonic()
            run = container.fill(
                repo(f"{scheme}://127.0.0.1:{port}/x"), timeoutSeconds=2, insecureHosts=[f"127.0.0.1:{port}"]
            )
        assert (run.message["reason"], run.message["retryable"]) == ("GitTimeout", True)
        assert time.monotonic() - started < 6
        assert scratch(container) == []

    def test_insecure_hosts_are_by_name_and_port(self, container: Container, server: GitServer) -> None:
        run = container.fill(repo(server.url("public/repo")))
        assert (run.message["reason"], run.message["retryable"]) == ("GitRefused", False)
        run = container.fill(repo(server.url("public/repo")), insecureHosts=["127.0.0.1:1"])
        assert run.message["reason"] == "GitRefused"
        assert server.requests == []

    def test_the_git_protocol(self, container: Container, repositories: Path, ordinary: Ordinary) -> None:
        with git_daemon(repositories) as port:
            policy = {"insecureHosts": [f"127.0.0.1:{port}"]}
            assert container.fill(repo(f"git://127.0.0.1:{port}/public/repo"), **policy).code == 0
            (container.agent_dir / "materialized.json").unlink()
            run = container.fill(repo(f"git://127.0.0.1:{port}/public/none", path="other"), **policy)
            assert run.message["reason"] == "GitRepositoryNotFound"
        assert git(container.workspace / "repo", "rev-parse", "HEAD") == ordinary.main

    def test_a_proxy_is_used(self, container: Container, server: GitServer) -> None:
        run = container.run(
            plan_of(repo("http://host.invalid/public/repo"), insecureHosts=["host.invalid"]),
            http_proxy=f"http://{server.address}",
        )
        assert run.code == 1
        assert server.paths()[0].startswith("GET http://host.invalid/public/repo/info/refs")


class TestPrivateAuthority:
    def test_trusted(
        self, container: Container, tls_server: GitServer, certificate: tuple[Path, Path], ordinary: Ordinary
    ) -> None:
        container.mount("git-0-ca", **{"ca.crt": certificate[0].read_bytes()})
        run = container.fill(repo(tls_server.url("public/repo"), ca="git-0-ca/ca.crt"))
        assert run.code == 0, run.message
        assert git(container.workspace / "repo", "rev-parse", "HEAD") == ordinary.main
        assert "sslCAInfo" not in (container.workspace / "repo/.git/config").read_text()

    def test_not_named(self, container: Container, tls_server: GitServer) -> None:
        run = container.fill(repo(tls_server.url("public/repo")))
        assert (run.message["reason"], run.message["retryable"]) == ("GitRefused", False)
        assert "caConfigMapRef" in run.message["message"]

    def test_added_to_the_system_s(
        self, container: Container, tls_server: GitServer, certificate: tuple[Path, Path], tmp_path: Path
    ) -> None:
        from tests.workspace.git_server import make_certificate

        other = tmp_path / "other"
        other.mkdir()
        container.mount("git-0-ca", **{"ca.crt": make_certificate(other)[0].read_bytes()})
        plan = plan_of(repo(tls_server.url("public/repo"), ca="git-0-ca/ca.crt"))
        assert container.run(plan).message["reason"] == "GitRefused"
        assert container.run(plan, SSL_CERT_FILE=str(certificate[0])).code == 0

    def test_missing_or_nonsense(self, container: Container, tls_server: GitServer) -> None:
        container.mount("git-0-ca", **{"ca.crt": "nonsense"})
        run = container.fill(repo(tls_server.url("public/repo"), ca="git-0-ca/none"))
        assert (run.message["reason"], run.message["retryable"]) == ("SourceNotFound", True)
        run = container.fill(repo(tls_server.url("public/repo"), ca="git-0-ca/ca.crt"))
        assert (run.message["reason"], run.message["retryable"]) == ("GitRefused", False)


class TestCredentials:
    @pytest.mark.parametrize(
        "keys", [{"token": TOKEN}, {"username": USER, "password": TOKEN}, {"password": TOKEN + "\n"}]
    )
    def test_a_private_repository(
        self, container: Container, server: GitServer, ordinary: Ordinary, keys: dict[str, str]
    ) -> None:
        container.mount("git-0", **keys)
        run = fill(container, server, repo(server.url("private/repo"), credentials="git-0"))
        assert run.code == 0, run.message
        assert git(container.workspace / "repo", "rev-parse", "HEAD") == ordinary.main

    def test_none_given(self, container: Container, server: GitServer) -> None:
        run = fill(container, server, repo(server.url("private/repo")))
        assert (run.message["reason"], run.message["retryable"]) == ("GitAuthenticationFailed", False)
        assert "credentialsSecretRef" in run.message["message"]

    def test_wrong(self, container: Container, server: GitServer) -> None:
        container.mount("git-0", token="wrong-token")
        run = fill(container, server, repo(server.url("private/repo"), credentials="git-0"))
        assert (run.message["reason"], run.message["retryable"]) == ("GitAuthenticationFailed", False)
        assert "wrong-token" not in run.stderr + run.raw_message.decode()

    def test_forbidden(self, container: Container, server: GitServer) -> None:
        run = fill(container, server, repo(server.url("forbidden/repo")))
        assert (run.message["reason"], run.message["retryable"]) == ("GitAuthenticationFailed", False)

    def test_not_mounted_yet(self, container: Container, server: GitServer) -> None:
        for make in (lambda: None, (container.sources / "git-0").mkdir):
            make()
            run = fill(container, server, repo(server.url("private/repo"), credentials="git-0"))
            assert (run.message["reason"], run.message["retryable"]) == ("SourceNotFound", True)

    @pytest.mark.parametrize(
        "keys",
        [
            {"other": "x"},
            {"username": "x"},
            {"password": ""},
            {"password": "a\nhost=evil"},
            {"password": b"\xff"},
            {"token": TOKEN, "username": "a\nb"},
            {"ssh-privatekey": "x", "known_hosts": "x"},
        ],
    )
    def test_keys_that_cannot_serve(
        self, container: Container, server: GitServer, keys: dict[str, str | bytes]
    ) -> None:
        container.mount("git-0", **keys)
        run = fill(container, server, repo(server.url("private/repo"), credentials="git-0"))
        assert (run.message["reason"], run.message["retryable"]) == ("GitRefused", False)
        assert server.requests == []

    def test_quotes_in_the_secret_and_in_the_directory(self, container: Container, server: GitServer) -> None:
        container.mount('it\'s $(touch x) "0"', token=TOKEN)
        run = fill(container, server, repo(server.url("private/repo"), credentials='it\'s $(touch x) "0"'))
        assert run.code == 0, run.message

    def test_only_the_named_host_gets_them(
        self, container: Container, server: GitServer, repositories: Path
    ) -> None:
        container.mount("git-0", token=TOKEN)
        with serve(repositories) as other:
            run = container.fill(
                repo(server.url("private/repo"), credentials="git-0"),
                repo(other.url("private/repo"), path="other"),
                insecureHosts=[server.address, other.address],
            )
            assert run.message["entry"] == "other"
            assert run.message["reason"] == "GitAuthenticationFailed"
            assert not any(authorization for _, _, authorization in other.requests)

    @pytest.mark.parametrize("token", [TOKEN, "wrong-SECRET-token"])
    def test_the_token_shows_nowhere(self, container: Container, server: GitServer, token: str) -> None:
        container.mount("git-0", token=token)
        seen: list[bytes] = []
        done, caught = threading.Event(), threading.Event()
        # The host answers once git's own process that speaks to it has been looked at.
        server.before_answer = lambda: caught.wait(20)
        process = container.start(
            plan_of(repo(server.url("private/repo"), credentials="git-0"), insecureHosts=[server.address])
        )

        def sample() -> None:
            while not done.is_set():
                for pid in (process.pid, *descendants(process.pid)):
                    for name in ("cmdline", "environ"):
                        try:
                            seen.append(Path(f"/proc/{pid}/{name}").read_bytes())
                        except OSError:
                            continue
                        if b"git-remote-http" in seen[-1]:
                            caught.set()

        sampler = threading.Thread(target=sample)
        sampler.start()
        run = container.finish(process)
        done.set()
        sampler.join()
        assert (run.code == 0) == (token == TOKEN)
        assert caught.is_set()
        kept = [p.read_bytes() for p in container.workspace.rglob("*") if p.is_file()]
        kept += [p.read_bytes() for p in container.agent_dir.rglob("*") if p.is_file()]
        everything = b"\n".join([*seen, *kept, run.stderr.encode(), run.raw_message])
        for form in (token, re.sub(r"[^A-Za-z0-9]", "", token), token.replace("/", "%2F")):
            assert form.encode() not in everything


class TestEnd:
    """A host that sends slowly gives time to end the run in the middle."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_in_the_middle_of_a_clone(
        self, container: Container, server: GitServer, ordinary: Ordinary, number: int
    ) -> None:
        with silent_host() as port:
            policy = {"insecureHosts": [f"127.0.0.1:{port}", server.address]}
            process = container.start(plan_of(file("before"), repo(f"http://127.0.0.1:{port}/x"), **policy))
            container.kill_when(process, ".sandbox-*/*", 0)
            until = time.monotonic() + 10
            while not any("git-remote-http" in _command(pid) for pid in descendants(process.pid)):
                assert time.monotonic() < until
            children = descendants(process.pid)
            started = time.monotonic()
            process.send_signal(number)
            if number == signal.SIGTERM:
                run = container.finish(process)
                assert run.code == 1
                assert run.message["reason"] == "MaterializationFailed"
                assert run.message["retryable"] is True
                assert time.monotonic() - started < 2
                assert not any(_alive(pid) for pid in children)
            else:
                process.communicate()
                for pid in children:  # in a pod, the end of PID 1 does it
                    if _alive(pid):
                        os.kill(pid, signal.SIGKILL)
        assert container.marker()["state"] == "started"
        run = container.fill(file("before"), repo(server.url("public/repo")), **policy)
        assert run.code == 0, run.message
        assert sorted(p.name for p in container.workspace.iterdir()) == ["before", "repo"]
        assert git(container.workspace / "repo", "rev-parse", "HEAD") == ordinary.main
        assert scratch(container) == []


def test_unprivileged(user_container: Container, server: GitServer, ordinary: Ordinary) -> None:
    user_container.mount("git-0", token=TOKEN)
    run = fill(
        user_container,
        server,
        repo(server.url("private/repo"), credentials="git-0", ref=ordinary.first),
        repo(server.url("public/repo"), path="docs", subpath="docs", mode="0500"),
    )
    assert run.code == 0, run.stderr
    root = user_container.workspace
    assert {path.lstat().st_uid for path in root.rglob("*")} == {user_container.user}
    assert stat.S_IMODE((root / "docs").stat().st_mode) == 0o500
    assert stat.S_IMODE((root / "repo/docs").stat().st_mode) == 0o755
    assert scratch(user_container) == []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
