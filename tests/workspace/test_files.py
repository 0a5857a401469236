import os
import stat
from pathlib import Path

import pytest
from sandbox_workspace.files import Workspace
from sandbox_workspace.outcome import MaterializeError
from sandbox_workspace.tree import empty_directory, measure, remove_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    return outside


def test_made_parents_have_their_mode_whatever_the_umask_and_setgid(root: Path) -> None:
    root.chmod(0o2777)
    before = os.umask(0o077)
    try:
        with Workspace(root) as workspace:
            workspace.write_file((b"a", b"b", b"f"), [b"x", b"y"], 0o604)
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "a/b").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "a/b/f").stat().st_mode) == 0o604
    assert (root / "a/b/f").read_bytes() == b"xy"


@pytest.mark.parametrize("segments", [(b"l",), (b"l", b"f"), (b"d", b"l", b"f"), (b"d", b"l")])
def test_links_are_never_followed(root: Path, outside: Path, segments: tuple[bytes, ...]) -> None:
    (root / "d").mkdir()
    (root / "l").symlink_to(outside)
    (root / "d/l").symlink_to("../../outside")
    with Workspace(root) as workspace:
        with pytest.raises(MaterializeError, match="is a link") as caught:
            workspace.write_file(segments, [b"evil"], 0o644)
        assert caught.value.reason == "PathConflict"
        with pytest.raises(MaterializeError, match="is a link"):
            workspace.make_directory(segments)
        with pytest.raises(MaterializeError, match="is a link"):
            workspace.set_directory_mode(segments, 0o777)
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_a_link_to_a_file_is_not_written_through(root: Path, outside: Path) -> None:
    (root / "f").symlink_to(outside / "kept")
    (root / "dangling").symlink_to(outside / "new")
    with Workspace(root) as workspace:
        for name in (b"f", b"dangling"):
            with pytest.raises(MaterializeError, match="is a link"):
                workspace.write_file((name,), [b"evil"], 0o644)
    assert (outside / "kept").read_text() == "kept"
    assert not (outside / "new").exists()


def test_what_stands_where_something_else_shall_be(root: Path) -> None:
    (root / "file").write_text("old")
    (root / "directory").mkdir()
    os.mkfifo(root / "fifo")
    with Workspace(root) as workspace:
        for segments in ((b"file", b"x"), (b"fifo", b"x")):
            with pytest.raises(MaterializeError, match="is a file"):
                workspace.make_directory(segments)
        with pytest.raises(MaterializeError, match="is a directory"):
            workspace.write_file((b"directory",), [b"x"], 0o644)
        with pytest.raises(MaterializeError, match="is a file"):
            workspace.write_file((b"fifo",), [b"x"], 0o644)
        workspace.write_file((b"file",), [b"new"], 0o644)
    assert (root / "file").read_text() == "new"


def test_a_hard_link_s_other_name_keeps_its_content(root: Path, outside: Path) -> None:
    os.link(outside / "kept", root / "f")
    with Workspace(root) as workspace:
        workspace.write_file((b"f",), [b"new"], 0o644)
    assert (outside / "kept").read_text() == "kept"


def test_emptying_leaves_the_root_and_what_links_point_to(root: Path, outside: Path) -> None:
    inode = root.stat().st_ino
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/b/f").write_text("x")
    (root / ".hidden").write_text("x")
    (root / "l").symlink_to(outside)
    (root / "a/l").symlink_to(outside / "kept")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "a/fifo")
    (root / os.fsdecode(b"\xff\n")).mkdir()
    (root / "a/b").chmod(0)
    with Workspace(root) as workspace:
        workspace.empty()
    assert list(root.iterdir()) == []
    assert root.stat().st_ino == inode
    assert (outside / "kept").read_text() == "kept"


def test_a_tree_deeper_than_any_recursion(root: Path) -> None:
    current = os.open(root, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    assert measure(root).content == 0
    handle = os.open(root, os.O_RDONLY)
    empty_directory(handle)
    os.close(handle)
    assert list(root.iterdir()) == []


def test_measure_counts_files_and_follows_nothing(root: Path, outside: Path) -> None:
    (root / "a").mkdir()
    (root / "a/f").write_bytes(b"x" * 10)
    (root / "g").write_bytes(b"x" * 5)
    (root / "l").symlink_to(outside)
    assert measure(root).content == 15


def test_removing_what_is_not_there(root: Path) -> None:
    remove_tree(root / "missing")


def test_moving_in(root: Path, outside: Path) -> None:
    source = root / ".scratch"
    (source / "repository/docs").mkdir(parents=True)
    (source / "repository/docs/f").write_text("x")
    (source / "repository/file").write_text("x")
    (source / "repository/l").symlink_to(outside)
    (root / "full").mkdir()
    (root / "full/x").touch()
    (root / "empty").mkdir()
    (root / "link").symlink_to(outside)
    with Workspace(root) as workspace:
        for below in ([b"repository", b"l"], [b"repository", b"file"], [b"repository", b"l", b"x"]):
            with pytest.raises(NotADirectoryError):
                workspace.move_in(source, below, (b"new",))
        with pytest.raises(FileNotFoundError):
            workspace.move_in(source, [b"repository", b"none"], (b"new",))
        for taken in (b"full", b"link"):
            with pytest.raises(MaterializeError) as caught:
                workspace.move_in(source, [b"repository"], (taken,))
            assert caught.value.reason == "PathConflict"
        workspace.move_in(source, [b"repository", b"docs"], (b"empty",))
    assert (root / "empty/f").read_text() == "x"
