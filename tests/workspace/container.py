"""The init container of the tests: directories in place of its volumes, and runs of the real command."""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POD_UID = "6b1b7d0e-4f0c-4a52-9a50-000000000001"
AGENT = b"\x7fELF not really\0" * 1000


@dataclass
class Run:
    code: int
    message: dict[str, Any]
    raw_message: bytes
    stderr: str


@dataclass
class Container:
    base: Path
    python: str = sys.executable
    user: int | None = None
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for directory in (self.workspace, self.agent_dir, self.sources):
            directory.mkdir()
        self.agent_binary.write_bytes(AGENT)
        self.agent_binary.chmod(0o755)
        self.termination_log.touch()
        self.termination_log.chmod(0o666)

    @property
    def workspace(self) -> Path:
        return self.base / "workspace"

    @property
    def agent_dir(self) -> Path:
        return self.base / "agent"

    @property
    def sources(self) -> Path:
        return self.base / "sources"

    @property
    def agent_binary(self) -> Path:
        return self.base / "agent-binary"

    @property
    def termination_log(self) -> Path:
        return self.base / "termination-log"

    def mount(self, name: str, **keys: bytes | str) -> None:
        """A ConfigMap or Secret as the kubelet mounts it: keys are links to a directory that a link names."""
        directory = self.sources / name
        data = directory / "..2026_01_01_00_00_00.1"
        data.mkdir(parents=True)
        (directory / "..data").symlink_to(data.name)
        for key, content in keys.items():
            key = key.replace("__", "-")
            (data / key).write_bytes(content.encode() if isinstance(content, str) else content)
            (directory / key).symlink_to(f"..data/{key}")

    def start(self, plan: Mapping[str, Any] | str | bytes, **env: str) -> subprocess.Popen[str]:
        text = plan if isinstance(plan, str | bytes) else json.dumps(plan)
        variables = {"PATH": os.environ["PATH"], "POD_UID": POD_UID, **self.env}
        if isinstance(text, bytes):
            (self.base / "plan.json").write_bytes(text)
            variables["SANDBOX_PLAN_FILE"] = str(self.base / "plan.json")
        else:
            variables["SANDBOX_PLAN"] = text
        arguments = [
            *(self.python, "-m", "sandbox_workspace", "materialize"),
            *("--workspace", str(self.workspace), "--agent-dir", str(self.agent_dir)),
            *("--sources", str(self.sources), "--agent-binary", str(self.agent_binary)),
            *("--termination-log", str(self.termination_log)),
        ]
        self.termination_log.write_bytes(b"")
        return subprocess.Popen(
            arguments,
            env=variables | env,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd="/",
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )

    def finish(self, process: subprocess.Popen[str], timeout: float = 60) -> Run:
        _, stderr = process.communicate(timeout=timeout)
        raw = self.termination_log.read_bytes()
        return Run(process.returncode, json.loads(raw), raw, stderr)

    def run(self, plan: Mapping[str, Any] | str | bytes, **env: str) -> Run:
        return self.finish(self.start(plan, **env))

    def fill(self, *entries: dict[str, Any], **git: Any) -> Run:
        return self.run(plan_of(*entries, **git))

    def marker(self) -> dict[str, Any]:
        return json.loads((self.agent_dir / "materialized.json").read_text())

    def kill_when(self, process: subprocess.Popen[str], pattern: str, number: int = signal.SIGKILL) -> None:
        """Send a signal once something in the workspace matches."""
        until = time.monotonic() + 20
        while not any(self.workspace.glob(pattern)):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.005)
        process.send_signal(number)


def plan_of(*entries: dict[str, Any], **git: Any) -> dict[str, Any]:
    complete = [{"mode": "0755", **entry} for entry in entries]
    digest = hashlib.blake2b(json.dumps(complete).encode(), digest_size=16).hexdigest()
    return {"version": 1, "digest": digest, "entries": complete, "git": git}


def file(path: str, content: str | bytes = "text\n", **fields: Any) -> dict[str, Any]:
    if isinstance(content, bytes):
        return {"path": path, "kind": "file", "contentBase64": base64.b64encode(content).decode(), **fields}
    return {"path": path, "kind": "file", "content": content, **fields}


def tree_of(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that `stat` tells of a tree, and the content."""
    found: dict[str, tuple[Any, ...]] = {}
    for directory, directories, files in os.walk(root):
        for name in ["", *directories, *files]:
            path = Path(directory) / name
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
            found[str(path.relative_to(root))] = (
                *(
                    status.st_ino,
                    status.st_mode,
                    status.st_uid,
                    status.st_gid,
                    status.st_nlink,
                    status.st_size,
                ),
                *(status.st_mtime_ns, status.st_ctime_ns, content),
            )
    return found


def descendants(pid: int) -> Sequence[int]:
    """Processes below another, those of other sessions too."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for parent in found:
        found.extend(child for child, its_parent in parents.items() if its_parent == parent)
    return found[1:]
