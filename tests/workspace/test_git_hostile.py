"""Repositories that want to run a program or to write elsewhere. The bait is what a payload would touch."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.workspace.container import Container, Run, file
from tests.workspace.git_server import TOKEN, GitServer, serve
from tests.workspace.repositories import ENVIRONMENT, Hostile, Ordinary, git

DOT_GITS = {"dotgit": b".git", "upper": b".GIT", "hfs": b".g\xe2\x80\x8cit", "ntfs": b"git~1", "up": b".."}


def clone(container: Container, server: GitServer, name: str, *more: dict[str, Any], **fields: Any) -> Run:
    entry = {"path": "repo", "kind": "git", "url": server.url(f"public/{name}.git"), **fields}
    return container.fill(entry, *more, insecureHosts=[server.address])


@pytest.fixture(autouse=True)
def nothing_ran(bait: Path) -> Any:
    yield
    assert not bait.exists()


def assert_refused(container: Container, run: Run) -> None:
    assert run.message["reason"] == "GitRefused", run.message
    assert run.message["retryable"] is False
    assert list(container.workspace.iterdir()) == []


@pytest.mark.parametrize("name", DOT_GITS)
def test_git_directories_by_every_name(
    container: Container, server: GitServer, hostile: Hostile, name: str
) -> None:
    if not (hostile.root / f"{name}.git").exists():
        hostile.git_directory_named(name, DOT_GITS[name])
    assert_refused(container, clone(container, server, name))
    head = git(hostile.root / f"{name}.git", "rev-parse", "main")
    assert_refused(container, clone(container, server, name, ref=head))


def test_a_name_with_a_slash(container: Container, server: GitServer, hostile: Hostile) -> None:
    hostile.new("slash")
    hostile.repository("slash", [hostile.file("slash", b"../escape")])
    assert_refused(container, clone(container, server, "slash"))


def test_a_link_for_gitmodules(container: Container, server: GitServer, hostile: Hostile) -> None:
    hostile.new("modlink")
    hostile.repository("modlink", [hostile.link("modlink", b".gitmodules", "/etc/passwd")])
    assert_refused(container, clone(container, server, "modlink"))


def test_a_link_and_a_directory_of_one_name(
    container: Container, server: GitServer, hostile: Hostile, tmp_path: Path
) -> None:
    hostile.new("twice")
    inside = hostile.tree("twice", [hostile.file("twice", b"f")])
    hostile.repository("twice", [hostile.link("twice", b"l", str(tmp_path)), ("40000", b"l", inside)])
    assert_refused(container, clone(container, server, "twice"))
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("sub-option", "-u./payload"),
        ("sub-ext", "ext::sh -c touch% {bait}"),
        ("sub-file", "file://{root}/repo"),
        ("sub-beside", "../repo"),
    ],
)
def test_submodules_are_refused_or_left_empty(
    container: Container, server: GitServer, hostile: Hostile, ordinary: Ordinary, name: str, url: str
) -> None:
    hostile.submodule(name, url.format(bait=hostile.bait, root=hostile.root), ordinary.main)
    run = clone(container, server, name)
    if name == "sub-option":
        assert_refused(container, run)
    else:
        assert run.code == 0
        assert list((container.workspace / "repo/s").iterdir()) == []


def test_a_submodule_s_host_gets_no_token(
    container: Container, server: GitServer, hostile: Hostile, ordinary: Ordinary, repositories: Path
) -> None:
    container.mount("git-0", token=TOKEN)
    with serve(repositories) as evil:
        hostile.submodule("sub-evil", evil.url("private/repo"), ordinary.main)
        assert clone(container, server, "sub-evil", credentials="git-0").code == 0
        assert evil.requests == []


def test_a_submodule_s_place_can_hold_an_entry(
    container: Container, server: GitServer, hostile: Hostile, ordinary: Ordinary
) -> None:
    hostile.submodule("sub-place", "../repo", ordinary.main)
    other = {"path": "repo/s", "kind": "git", "url": server.url("public/repo")}
    assert clone(container, server, "sub-place", other).code == 0
    assert (container.workspace / "repo/s/README.md").exists()


@pytest.mark.parametrize("target", ["/", "{outside}", "../../outside", "../other", "."])
@pytest.mark.parametrize(
    "later",
    [
        file("repo/trap/f", "evil"),
        file("repo/trap", "evil"),
        {"path": "repo/trap", "kind": "dir", "mode": "0777"},
        {"path": "repo/trap/d", "kind": "upload-dir", "mode": "0777"},
        {"path": "repo/trap/d/f", "kind": "upload-file"},
    ],
)
def test_a_planted_link_redirects_no_later_entry(
    container: Container, server: GitServer, hostile: Hostile, target: str, later: dict[str, Any]
) -> None:
    outside = container.base / "outside"
    outside.mkdir()
    other = {"path": "other", "kind": "dir", "mode": "0700"}
    name = f"trap-{abs(hash((target, later['path'], later['kind'])))}"
    hostile.new(name)
    hostile.repository(name, [hostile.link(name, b"trap", target.format(outside=outside))])
    run = clone(container, server, name, other, later)
    assert run.message["reason"] == "PathConflict"
    assert run.message["entry"] == later["path"]
    assert list(outside.iterdir()) == list((container.workspace / "other").iterdir()) == []


def test_a_planted_link_redirects_no_repository(
    container: Container, server: GitServer, hostile: Hostile, tmp_path: Path
) -> None:
    hostile.new("trap-git")
    hostile.repository("trap-git", [hostile.link("trap-git", b"trap", str(tmp_path))])
    before = sorted(tmp_path.iterdir())
    for path in ("repo/trap", "repo/trap/x"):
        later = {"path": path, "kind": "git", "url": server.url("public/repo")}
        assert clone(container, server, "trap-git", later).message["reason"] == "PathConflict"
    assert sorted(tmp_path.iterdir()) == before


def test_links_are_content(container: Container, server: GitServer, hostile: Hostile) -> None:
    hostile.new("links")
    hostile.repository(
        "links", [hostile.link("links", b"abs", "/etc"), hostile.link("links", b"up", "../..")]
    )
    assert clone(container, server, "links").code == 0
    assert (container.workspace / "repo/abs").readlink() == Path("/etc")
    for subpath in ("abs", "up", "abs/ssl"):
        run = clone(Container(_sub(container)), server, "links", subpath=subpath)
        assert run.message["reason"] == "GitSubpathNotFound"


def test_an_embedded_bare_repository_runs_nothing(
    container: Container, server: GitServer, hostile: Hostile, bait: Path
) -> None:
    hostile.embedded_bare("bare")
    assert clone(container, server, "bare", file("repo/b/x")).code == 0
    assert clone(Container(_sub(container)), server, "bare", subpath="b").code == 0
    assert not bait.exists()
    # That it would: git without our settings, in the directory.
    subprocess.run(
        ["git", "status"], cwd=container.workspace / "repo/b", capture_output=True, env=ENVIRONMENT
    )
    assert bait.exists()
    bait.unlink()


def test_filters_and_attributes_run_nothing(
    container: Container, server: GitServer, hostile: Hostile
) -> None:
    hostile.new("filters")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n"
    entries = [
        hostile.file("filters", b".gitattributes", b"* filter=lfs diff=lfs merge=lfs\n"),
        hostile.file("filters", b".lfsconfig", f"[lfs]\n\turl = {server.url('lfs')}\n".encode()),
        hostile.file("filters", b"big.bin", pointer),
    ]
    hostile.repository("filters", entries)
    assert clone(container, server, "filters").code == 0
    assert (container.workspace / "repo/big.bin").read_bytes() == pointer
    assert not any("lfs" in path.rpartition("public")[0] for path in server.paths())


def test_a_deep_tree_is_cloned_and_wiped(container: Container, server: GitServer, hostile: Hostile) -> None:
    hostile.new("deep")
    tree = hostile.tree("deep", [hostile.file("deep", b"f")])
    raw = [("40000", b"d", tree)]
    for _ in range(1200):
        raw = [("40000", b"d", hostile.tree("deep", raw))]
    hostile.repository("deep", raw)
    missing = {"path": "x", "kind": "file", "source": "0/none"}
    assert clone(container, server, "deep", missing).message["reason"] == "SourceNotFound"
    assert container.fill(file("only")).code == 0
    assert [p.name for p in container.workspace.iterdir()] == ["only"]


def test_old_slips_of_the_pen_are_accepted(container: Container, server: GitServer, hostile: Hostile) -> None:
    hostile.new("old")
    inside = hostile.tree("old", [hostile.file("old", b"f")])
    tree = hostile.tree("old", [("040000", b"d", inside)])
    raw = f"tree {tree}\nauthor A <a@example.com> 1 +051800\ncommitter A 1 +0000\n\nx\n".encode()
    path = hostile.root / "old.git"
    commit = git(path, "hash-object", "-t", "commit", "-w", "--stdin", "--literally", data=raw)
    git(path, "update-ref", "refs/heads/main", commit)
    run = clone(container, server, "old")
    assert run.code == 0, run.message
    assert (container.workspace / "repo/d/f").exists()


def _sub(container: Container) -> Path:
    path = container.base / f"sub-{len(list(container.base.iterdir()))}"
    path.mkdir()
    return path
