"""What does not fit into the volume is refused by name, before the kubelet evicts the pod for it."""

import json
import os
import time
from pathlib import Path

import pytest
from sandbox_workspace.outcome import MaterializeError
from sandbox_workspace.plan import parse_plan
from sandbox_workspace.process import run
from sandbox_workspace.room import Room, in_words
from sandbox_workspace.tree import measure

from tests.workspace.container import Container, Run, file, plan_of
from tests.workspace.git_server import GitServer
from tests.workspace.repositories import git

MB = 1024 * 1024


def fill(container: Container, limit: int, *entries: dict[str, object], hosts: tuple[str, ...] = ()) -> Run:
    return container.run({**plan_of(*entries, insecureHosts=list(hosts)), "workspaceBytes": limit})


def refused(run: Run, entry: str) -> None:
    assert run.code == 1, run.stderr
    assert run.message["reason"] == "WorkspaceFull", run.message
    assert run.message["entry"] == entry
    assert run.message["retryable"] is False
    assert "workspace.emptyDir.sizeLimit" in run.message["message"]


@pytest.fixture(scope="session")
def large(repositories: Path) -> None:
    """Repositories of what cannot be compressed: one large file, and many small ones."""
    for name, count, size in (("one-large", 1, 8 * MB), ("many-small", 400, 20_000)):
        path = repositories / "public" / name
        path.mkdir(parents=True)
        git(path, "init", "-q", "-b", "main")
        for number in range(count):
            (path / f"{number}").write_bytes(os.urandom(size))
        git(path, "add", ".")
        git(path, "commit", "-q", "-m", "x")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["one-large", "many-small"])
@pytest.mark.parametrize("fields", [{}, {"ref": "refs/heads/main"}, {"subpath": "1"}])
def test_a_repository_that_is_too_large(
    container: Container, server: GitServer, name: str, fields: dict[str, str]
) -> None:
    entry = {"path": "repo", "kind": "git", "url": server.url(f"public/{name}"), **fields}
    run = fill(container, 4 * MB, file("first"), entry, hosts=(server.address,))
    refused(run, "repo")
    assert "at most 4Mi" in run.message["message"]
    # Nothing of it is left that would count on.
    assert {path.name for path in container.workspace.iterdir()} == {"first"}
    assert [path.name for path in container.agent_dir.iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("large")
def test_pack_and_checkout_together_are_too_large(container: Container, server: GitServer) -> None:
    entry = {"path": "repo", "kind": "git", "url": server.url("public/one-large")}
    refused(fill(container, 12 * MB, entry, hosts=(server.address,)), "repo")


@pytest.mark.usefixtures("large")
def test_repositories_that_are_too_large_together(container: Container, server: GitServer) -> None:
    entries = [
        {"path": path, "kind": "git", "url": server.url("public/many-small")} for path in ("a", "b", "c")
    ]
    refused(fill(container, 40 * MB, *entries, hosts=(server.address,)), "c")


@pytest.mark.usefixtures("large")
def test_a_repository_that_just_fits(container: Container, server: GitServer) -> None:
    entry = {"path": "repo", "kind": "git", "url": server.url("public/many-small")}
    run = fill(container, 20 * MB, entry, file("last"), hosts=(server.address,))
    assert run.code == 0, run.message
    assert measure(container.workspace).taken <= 20 * MB


def test_files_count_in_blocks_and_so_do_directories(container: Container) -> None:
    refused(fill(container, MB, *(file(f"{i:03}") for i in range(257))), "256")
    # The next try begins with an empty volume.
    refused(fill(container, MB, *(file(f"{i:03}/d/a/b/c") for i in range(52))), "051/d/a/b/c")


def test_files_from_sources_are_stopped_in_the_middle(container: Container) -> None:
    container.mount("0", large=b"x" * (2 * MB))
    entry = {"path": "a", "kind": "file", "source": "0/large", "sourceName": "Secret s, key large"}
    refused(fill(container, MB, entry), "a")
    assert (container.workspace / "a").stat().st_size <= MB


def test_no_limit_is_none(container: Container) -> None:
    text = json.dumps(plan_of(file("a", "x" * 2 * MB)))
    assert container.run(text.encode()).code == 0


@pytest.mark.parametrize("limit", [0, -1, "1", True, 1.5])
def test_a_limit_is_a_number_of_bytes(limit: object) -> None:
    with pytest.raises(MaterializeError, match="workspaceBytes"):
        parse_plan(json.dumps({**plan_of(), "workspaceBytes": limit}))


def test_what_writes_too_much_is_killed_while_it_writes(tmp_path: Path) -> None:
    script = "i=0; while :; do i=$((i+1)); head -c 100000 /dev/zero > f$i & wait; done"
    room = Room(MB)
    with pytest.raises(MaterializeError, match="at most 1Mi"):
        run(
            ["sh", "-c", script],
            cwd=tmp_path,
            env=dict(os.environ),
            deadline=time.monotonic() + 60,
            watch=lambda: room.watch(tmp_path),
        )
    written = measure(tmp_path).taken
    time.sleep(0.1)
    assert measure(tmp_path).taken == written


def test_a_child_without_output_is_watched_too(tmp_path: Path) -> None:
    room = Room(MB)
    with pytest.raises(MaterializeError):
        run(
            ["sh", "-c", "exec >&- 2>&-; while :; do head -c 100000 /dev/zero >> f; done"],
            cwd=tmp_path,
            env=dict(os.environ),
            deadline=time.monotonic() + 60,
            watch=lambda: room.watch(tmp_path),
        )


def test_the_limit_of_a_file_is_the_child_s_alone(tmp_path: Path) -> None:
    finished = run(
        ["sh", "-c", "head -c 5000 /dev/zero > f"],
        cwd=tmp_path,
        env=dict(os.environ),
        deadline=time.monotonic() + 60,
        largest_file=1000,
    )
    assert finished.code != 0
    assert (tmp_path / "f").stat().st_size == 1000
    (tmp_path / "g").write_bytes(b"x" * 5000)


@pytest.mark.parametrize(
    ("size", "words"), [(10 * 2**30, "10Gi"), (1536 * MB, "1536Mi"), (1000, "1000 bytes")]
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert in_words(size) == words
