"""The tar stream of uploads, read back by the standard library."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from agents.sandbox.entries import LocalDir, LocalFile
from agents.sandbox.errors import LocalDirReadError, LocalFileReadError
from agents.sandbox.workspace_paths import SandboxPathGrant
from hypothesis import given, settings
from hypothesis import strategies as st

from runner_client.manifest_mapping import Upload
from runner_client.uploads import UploadStream


def read(uploads, base, grants=(), size=1000) -> dict[str, tuple]:
    stream = UploadStream(uploads, root=Path("/workspace"), base_dir=base, grants=grants)
    blob = bytearray()
    while piece := stream.read(size):
        assert len(piece) <= size
        blob += piece
    with tarfile.open(fileobj=io.BytesIO(bytes(blob))) as tar:
        return {m.name: (m.mode, tar.extractfile(m).read() if m.isreg() else None) for m in tar.getmembers()}


def test_all_kinds(tmp_path):
    (tmp_path / "d/sub/deep").mkdir(parents=True)
    (tmp_path / "d/a").write_bytes(b"1")
    (tmp_path / "d/sub/deep/run").write_bytes(b"2" * 70_000)
    (tmp_path / "d/sub/deep/run").chmod(0o4755)
    os.mkfifo(tmp_path / "d/fifo")
    uploads = [
        Upload("memory", 0o640, content=b"m" * 513),
        Upload("made", 0o700),
        Upload("tree", 0o755, source=LocalDir(src=Path("d"))),
        Upload("one", 0o600, source=LocalFile(src=Path("d/a"))),
    ]
    (tmp_path / "d/a").chmod(0o644)
    found = read(uploads, tmp_path)
    assert found == {
        "memory": (0o640, b"m" * 513),
        "made": (0o700, None),
        "tree": (0o755, None),
        "tree/a": (0o644, b"1"),
        "tree/sub": (0o755, None),
        "tree/sub/deep": (0o755, None),
        "tree/sub/deep/run": (0o755, b"2" * 70_000),
        "one": (0o600, b"1"),
    }


def test_a_directory_as_the_workspace_itself(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_bytes(b"1")
    assert list(read([Upload("", 0o755, source=LocalDir(src=Path("d")))], tmp_path)) == ["a"]


def test_links_and_what_lies_outside_are_refused(tmp_path):
    base = tmp_path / "base"
    (base / "d").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"s")
    (base / "link").symlink_to(tmp_path / "secret")
    (base / "linked").symlink_to(base / "d")
    for source, kind in (
        (LocalFile(src=Path("link")), LocalFileReadError),
        (LocalFile(src=Path("../secret")), LocalFileReadError),
        (LocalFile(src=Path("none")), LocalFileReadError),
        (LocalFile(src=Path("d")), LocalFileReadError),
        (LocalDir(src=Path("linked")), LocalDirReadError),
        (LocalDir(src=tmp_path), LocalDirReadError),
        (LocalDir(src=Path("none")), LocalDirReadError),
    ):
        with pytest.raises(kind):
            read([Upload("x", 0o755, source=source)], base)


def test_a_grant_opens_a_source(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/f").write_bytes(b"1")
    grants = (SandboxPathGrant(path=str(tmp_path / "shared")),)
    source = LocalFile(src=tmp_path / "shared/f")
    assert read([Upload("x", 0o644, source=source)], tmp_path / "base", grants)["x"][1] == b"1"


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    stream = UploadStream(
        [Upload("f", 0o644, source=LocalFile(src=Path("f")))], root=Path("/w"), base_dir=tmp_path
    )
    stream.read(1000)
    os.truncate(tmp_path / "f", 10)
    with pytest.raises(LocalFileReadError) as caught:
        list(iter(lambda: stream.read(100_000), b""))
    assert caught.value.context["reason"] == "path_changed_during_copy"


@given(st.lists(st.binary(max_size=3000), max_size=8), st.integers(1, 5000))
@settings(deadline=None)
def test_any_sizes_read_in_any_pieces(contents, size):
    uploads = [Upload(f"f{i}", 0o644, content=content) for i, content in enumerate(contents)]
    found = read(uploads, Path("/"), size=size)
    assert [content for _, content in found.values()] == contents
