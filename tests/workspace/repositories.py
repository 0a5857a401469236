"""Repositories for the tests: an ordinary one, and hostile ones that no honest git would write."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = os.environ | {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}
TreeEntry = tuple[str, bytes, str]


def git(directory: Path, *arguments: str, data: bytes | None = None) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=directory, input=data, capture_output=True, check=True, env=ENVIRONMENT
    )
    return done.stdout.decode().strip()


@dataclass(frozen=True)
class Ordinary:
    """Commits of the ordinary repository by what points to them."""

    first: str
    main: str
    feature: str
    both_branch: str
    both_tag: str


def make_ordinary(path: Path) -> Ordinary:
    """Branches main and feature/x, tags v1 (annotated) and light, and a branch and a tag that are both named `both`."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    (path / "docs/deep").mkdir(parents=True)
    (path / "README.md").write_text("first\n")
    (path / "docs/a.md").write_text("a\n")
    (path / "docs/deep/b.md").write_text("b\n")
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o755)
    (path / "link-to-docs").symlink_to("docs")

    def commit(message: str) -> str:
        git(path, "add", "-A")
        git(path, "commit", "-q", "--allow-empty", "-m", message)
        return git(path, "rev-parse", "HEAD")

    first = commit("first")
    git(path, "tag", "-a", "-m", "one", "v1")
    git(path, "tag", "light")
    git(path, "checkout", "-q", "-b", "feature/x")
    (path / "README.md").write_text("feature\n")
    feature = commit("feature")
    git(path, "tag", "both")
    git(path, "checkout", "-q", "-b", "both", "main")
    (path / "README.md").write_text("branch both\n")
    both = commit("both")
    git(path, "checkout", "-q", "main")
    (path / "README.md").write_text("main\n")
    main = commit("main")
    return Ordinary(first, main, feature, both_branch=both, both_tag=feature)


class Hostile:
    """Writes bare repositories from raw objects."""

    def __init__(self, root: Path, bait: Path):
        self.root = root
        self.bait = bait  # what a payload would touch

    def repository(self, name: str, entries: list[TreeEntry]) -> str:
        path = self.root / f"{name}.git"
        if not path.exists():
            self.new(name)
        commit = git(path, "commit-tree", self.tree(name, entries), "-m", "x")
        git(path, "update-ref", "refs/heads/main", commit)
        return commit

    def new(self, name: str) -> None:
        path = self.root / f"{name}.git"
        path.parent.mkdir(parents=True, exist_ok=True)
        git(path.parent, "init", "-q", "--bare", "-b", "main", path.name)

    def blob(self, name: str, content: bytes) -> str:
        return git(self.root / f"{name}.git", "hash-object", "-w", "--stdin", data=content)

    def tree(self, name: str, entries: list[TreeEntry]) -> str:
        raw = b"".join(mode.encode() + b" " + file + b"\0" + bytes.fromhex(h) for mode, file, h in entries)
        return git(
            *(self.root / f"{name}.git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally"),
            data=raw,
        )

    def file(self, name: str, file: bytes, content: bytes = b"x\n", mode: str = "100644") -> TreeEntry:
        return (mode, file, self.blob(name, content))

    def link(self, name: str, file: bytes, target: str) -> TreeEntry:
        return self.file(name, file, target.encode(), "120000")

    def hook(self) -> bytes:
        return f"#!/bin/sh\ntouch {self.bait}\n".encode()

    def git_directory_named(self, name: str, directory: bytes) -> None:
        """A tree that would become a git directory with a hook."""
        self.new(name)
        hooks = self.tree(name, [self.file(name, b"post-checkout", self.hook(), "100755")])
        inside = self.tree(name, [("40000", b"hooks", hooks)])
        self.repository(name, [("40000", directory, inside), self.file(name, b"z")])

    def submodule(self, name: str, url: str, commit: str) -> None:
        self.new(name)
        modules = f'[submodule "s"]\n\tpath = s\n\turl = {url}\n'.encode()
        self.repository(name, [self.file(name, b".gitmodules", modules), ("160000", b"s", commit)])

    def embedded_bare(self, name: str) -> None:
        """A bare repository in the working tree, whose configuration runs a program at `git status`."""
        self.new(name)
        config = (
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n"
            f'\tfsmonitor = "touch {self.bait};false"\n'
        ).encode()
        kept = self.tree(name, [self.file(name, b".keep", b"")])
        bare = self.tree(
            name,
            [
                self.file(name, b"HEAD", b"ref: refs/heads/main\n"),
                self.file(name, b"config", config),
                ("40000", b"objects", kept),
                ("40000", b"refs", kept),
            ],
        )
        self.repository(name, [("40000", b"b", bare)])
