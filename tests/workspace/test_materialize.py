import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.workspace.container import AGENT, POD_UID, Container, file, plan_of, tree_of

ODD_NAMES = [
    "a b",
    "it's",
    '"q"',
    "a\nb",
    "-rf",
    "--",
    " lead",
    "\u00fc\u6f22\U0001f600",
    "$(x)`y`",
    "*?[",
    "\x01\x7f",
    "con\\",
]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_all_kinds(container: Container) -> None:
    every_byte = bytes(range(256)) * 3
    container.mount("0", key=every_byte)
    run = container.fill(
        {"path": "src", "kind": "dir", "mode": "0750"},
        file("src/a.md", "t\u00e4xt\r\n\n", mode="0640"),
        file("b.bin", every_byte, mode="0600"),
        {"path": "deep/er/c.bin", "kind": "file", "source": "0/key", "sourceName": "ConfigMap c, key key"},
        file("empty", "", mode="0400"),
        file("zero", b""),
        {"path": "up/load", "kind": "upload-dir", "mode": "0700"},
        {"path": "some/where/big.bin", "kind": "upload-file"},
    )
    assert run.code == 0
    root = container.workspace
    assert (root / "src/a.md").read_bytes() == "t\u00e4xt\r\n\n".encode()
    assert (root / "b.bin").read_bytes() == every_byte
    assert (root / "deep/er/c.bin").read_bytes() == every_byte
    assert (root / "empty").read_bytes() == (root / "zero").read_bytes() == b""
    modes = {"src": 0o750, "src/a.md": 0o640, "b.bin": 0o600, "deep": 0o755, "deep/er": 0o755, "empty": 0o400}
    modes |= {"deep/er/c.bin": 0o755, "up": 0o755, "up/load": 0o700, "some/where": 0o755, ".": 0o755}
    assert {name: mode(root / name) for name in modes} == modes
    assert list((root / "some/where").iterdir()) == []
    assert run.message == {
        "ok": True,
        "entries": 8,
        "bytes": 2 * len(every_byte) + len((root / "src/a.md").read_bytes()),
        "seconds": run.message["seconds"],
    }
    assert container.marker() == {
        "state": "done",
        "podUid": POD_UID,
        "digest": container.marker()["digest"],
        "receipt": {k: v for k, v in run.message.items() if k != "ok"},
    }
    assert (container.agent_dir / "agent").read_bytes() == AGENT
    assert sorted(p.name for p in container.agent_dir.iterdir()) == ["agent", "materialized.json"]
    assert mode(container.agent_dir) == mode(container.agent_dir / "agent") == 0o755
    assert mode(container.agent_dir / "materialized.json") == 0o644


def test_odd_names_at_every_level(container: Container) -> None:
    run = container.fill(*(file(f"{name}/{name}", name) for name in ODD_NAMES))
    assert run.code == 0, run.message
    for name in ODD_NAMES:
        assert (container.workspace / name / name).read_text() == name


def test_directories_without_the_right_to_write(container: Container) -> None:
    run = container.fill(
        {"path": "a", "kind": "dir", "mode": "0500"},
        {"path": "a/b", "kind": "dir", "mode": "0000"},
        file("a/b/f", mode="0000"),
    )
    assert run.code == 0
    assert mode(container.workspace / "a") == 0o500
    assert mode(container.workspace / "a/b") == 0


def test_an_empty_plan_and_a_plan_in_a_file(container: Container) -> None:
    assert container.run(json.dumps(plan_of(file("a"))).encode()).code == 0
    assert (container.workspace / "a").exists()


def test_no_plan_or_a_wrong_one(container: Container) -> None:
    for plan in ("", "nonsense", b"nonsense"):
        run = container.run(plan)
        assert run.code == 1
        assert run.message["reason"] == "InvalidSpec"
    run = container.run(plan_of(), POD_UID="")
    assert run.message["reason"] == "InvalidSpec"
    assert list(container.workspace.iterdir()) == list(container.agent_dir.iterdir()) == []


def test_a_missing_source_names_the_entry_and_may_come_yet(container: Container) -> None:
    entry = {"path": "docs/c", "kind": "file", "source": "0/c", "sourceName": "ConfigMap docs, key c"}
    (container.sources / "0").mkdir()
    run = container.fill(entry)
    assert run.code == 1
    assert run.message == {
        "ok": False,
        "entry": "docs/c",
        "reason": "SourceNotFound",
        "message": "ConfigMap docs, key c is not there.",
        "retryable": True,
    }
    assert container.marker()["state"] == "started"
    (container.sources / "0").rmdir()
    container.mount("0", c="now")
    assert container.fill(entry).code == 0
    assert (container.workspace / "docs/c").read_text() == "now"


def test_an_image_without_agent(container: Container) -> None:
    container.agent_binary.unlink()
    run = container.fill(file("a"))
    assert run.message["reason"] == "MaterializationFailed"
    assert "agent" in run.message["message"]


def test_a_full_volume(container: Container) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to mount a small volume")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", container.workspace], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount here")
    try:
        run = container.fill(file("small"), file("big", b"x" * 60_000), file("more", b"x" * 30_000))
        assert run.message["reason"] == "WorkspaceFull"
        assert run.message["entry"] == "more"
        assert run.message["retryable"] is False
        assert container.fill(file("small")).code == 0
        assert [p.name for p in container.workspace.iterdir()] == ["small"]
    finally:
        subprocess.run(["umount", container.workspace], check=True)


class TestMarker:
    def test_a_second_run_touches_nothing(self, container: Container) -> None:
        plan = plan_of({"path": "d", "kind": "dir", "mode": "0700"}, file("d/a"), file("gone"))
        first = container.run(plan)
        root = container.workspace
        (root / "d/a").write_text("changed by the agent")
        (root / "new").write_text("made by the agent")
        (root / "gone").unlink()
        root.chmod(0o777)
        before = tree_of(root), tree_of(container.agent_dir)
        second = container.run(plan)
        assert (tree_of(root), tree_of(container.agent_dir)) == before
        assert second.code == 0
        assert second.message == first.message

    def test_a_second_run_needs_neither_sources_nor_hosts(self, container: Container) -> None:
        container.mount("0", c="x")
        plan = plan_of({"path": "c", "kind": "file", "source": "0/c"})
        assert container.run(plan).code == 0
        shutil.rmtree(container.sources / "0")
        assert container.run(plan).code == 0

    def test_a_lost_agent_comes_back(self, container: Container) -> None:
        plan = plan_of(file("a"))
        container.run(plan)
        (container.agent_dir / "agent").unlink()
        before = tree_of(container.workspace)
        assert container.run(plan).code == 0
        assert (container.agent_dir / "agent").read_bytes() == AGENT
        assert mode(container.agent_dir / "agent") == 0o755
        assert tree_of(container.workspace) == before

    def test_another_plan_does_not_overwrite_living_work(self, container: Container) -> None:
        first = container.fill(file("a", "one"))
        before = tree_of(container.workspace)
        second = container.fill(file("a", "two"))
        assert tree_of(container.workspace) == before
        assert second.message == first.message
        assert "stays as it is" in second.stderr

    @pytest.mark.parametrize("broken", ["", "{", "[]", '{"state": "done"}', '{"state": "other"}'])
    def test_a_broken_marker_is_a_try_that_did_not_end(self, container: Container, broken: str) -> None:
        (container.workspace / "half").write_text("half")
        (container.agent_dir / "materialized.json").write_text(broken)
        assert container.fill(file("a")).code == 0
        assert [p.name for p in container.workspace.iterdir()] == ["a"]
        assert container.marker()["state"] == "done"

    def test_a_failed_try_is_wiped_without_following_links(
        self, container: Container, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").write_text("kept")
        assert container.fill(file("half"), {"path": "c", "kind": "file", "source": "0/c"}).code == 1
        inode = container.workspace.stat().st_ino
        (container.workspace / "link").symlink_to(outside)
        (container.workspace / "locked").mkdir(mode=0)
        assert container.fill(file("whole")).code == 0
        assert [p.name for p in container.workspace.iterdir()] == ["whole"]
        assert container.workspace.stat().st_ino == inode
        assert (outside / "kept").read_text() == "kept"

    def test_without_a_marker_nothing_is_wiped(self, container: Container) -> None:
        (container.workspace / "there-before").write_text("x")
        assert container.fill(file("a")).code == 0
        assert (container.workspace / "there-before").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_between_entries_leaves_the_marker_started(container: Container, number: int) -> None:
    process = container.start(plan_of(*(file(f"d{n}/f", "x" * 100) for n in range(512))))
    container.kill_when(process, "d1*", number)
    run = container.finish(process)
    if run.code == 0:
        pytest.skip("the run was quicker than the signal")
    assert run.code == 1
    assert run.message["retryable"] is True
    assert container.marker()["state"] == "started"


class TestUnprivileged:
    """As the pod runs it: an ordinary user, on volumes that root owns and a group may write."""

    def test_fill_run_again_and_repair(self, user_container: Container) -> None:
        container = user_container
        plan = plan_of(
            {"path": "a", "kind": "dir", "mode": "0500"},
            {"path": "a/b", "kind": "dir", "mode": "0000"},
            file("a/b/f", b"\x00\xff", mode="0000"),
            file("x/y", mode="0640"),
        )
        first = container.run(plan)
        assert first.code == 0, first.message
        root = container.workspace
        assert (mode(root / "a"), mode(root / "a/b"), mode(root / "a/b/f")) == (0o500, 0, 0)
        assert (mode(root / "x"), mode(root / "x/y")) == (0o755, 0o640)
        assert (root / "a/b/f").read_bytes() == b"\x00\xff"
        assert {path.lstat().st_uid for path in root.rglob("*")} == {container.user}
        assert mode(root) == 0o2777  # the kubelet's own directory

        before = tree_of(root)
        assert container.run(plan).message == first.message
        assert tree_of(root) == before

        marker = container.agent_dir / "materialized.json"
        marker.write_text(marker.read_text().replace("done", "started"))
        assert container.run(plan).code == 0
        assert mode(root / "a") == 0o500

    def test_what_it_may_not_write_fails_with_the_reason(self, user_container: Container) -> None:
        user_container.workspace.chmod(0o755)
        run = user_container.fill(file("a"))
        assert run.code == 1
        assert run.message["reason"] == "MaterializationFailed"
        assert "Permission denied" in run.message["message"]
