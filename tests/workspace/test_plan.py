import json
from typing import Any

import pytest
from sandbox_workspace.outcome import MaterializeError
from sandbox_workspace.plan import (
    AwaitedFile,
    Directory,
    GitRepository,
    InlineFile,
    SourceFile,
    parse_plan,
)

from tests.workspace.container import file, plan_of


def parse(*entries: dict[str, Any], **git: Any) -> Any:
    return parse_plan(json.dumps(plan_of(*entries, **git)))


def refusal(*entries: dict[str, Any], **git: Any) -> MaterializeError:
    with pytest.raises(MaterializeError) as caught:
        parse(*entries, **git)
    assert not caught.value.retryable
    return caught.value


def test_every_kind_of_the_contract() -> None:
    plan = parse(
        {"path": "src", "kind": "dir"},
        file("src/a.md", "text", mode="0644"),
        file("b.bin", b"\x00\xff", mode="0600"),
        {"path": "c", "kind": "file", "source": "0/key", "sourceName": "ConfigMap docs, key key"},
        {
            "path": "repo",
            "kind": "git",
            "url": "https://h/x.git",
            "ref": "main",
            "subpath": "docs",
            "credentials": "git-0",
            "ca": "git-0-ca/ca.crt",
        },
        {"path": "data", "kind": "upload-dir"},
        {"path": "big.bin", "kind": "upload-file", "mode": "0644"},
        insecureHosts=["h:80"],
        timeoutSeconds=7,
    )
    assert plan.entries == (
        Directory("src", 0o755),
        InlineFile("src/a.md", 0o644, b"text"),
        InlineFile("b.bin", 0o600, b"\x00\xff"),
        SourceFile("c", 0o755, "0/key", "ConfigMap docs, key key"),
        GitRepository("repo", 0o755, "https://h/x.git", "main", "docs", "git-0", "git-0-ca/ca.crt"),
        Directory("data", 0o755),
        AwaitedFile("big.bin", 0o644),
    )
    assert plan.git.insecure_hosts == {"h:80"}
    assert plan.git.timeout_seconds == 7


@pytest.mark.parametrize(
    "path",
    [
        *("", "/abs", "a//b", "a/", ".", "./a", "a/.", "..", "../a", "a/../b", "a\0b", "\ud800"),
        *("x" * 256, "/".join(["xxxxxxxxx"] * 60), "/".join("abcdefghijklm")),
    ],
)
def test_a_path_that_is_none(path: str) -> None:
    assert refusal(file(path)).reason == "InvalidSpec"


@pytest.mark.parametrize("path", [" ", "-rf", "a b", "a\nb", "\u00fc/\U0001f600", "...", "a'\"$`", ".git"])
def test_an_odd_path_is_a_path(path: str) -> None:
    assert parse(file(path)).entries[0].path == path


@pytest.mark.parametrize(
    "entry",
    [
        file("a", mode="755"),
        file("a", mode="4755"),
        file("a", mode=493),
        {"path": "a", "kind": "socket"},
        {"path": "a", "kind": "file"},
        {"path": "a", "kind": "file", "content": "x", "contentBase64": "eA=="},
        {"path": "a", "kind": "file", "content": "\ud800"},
        {"path": "a", "kind": "file", "contentBase64": "eA"},
        {"path": "a", "kind": "file", "contentBase64": "eA==\n"},
        {"path": "a", "kind": "file", "contentBase64": "e A=="},
        {"path": "a", "kind": "file", "contentBase64": "\u00e9A=="},
        {"path": "a", "kind": "file", "source": "../etc/passwd"},
        {"path": "a", "kind": "file", "source": "/etc/passwd"},
        {"path": "a", "kind": "file", "source": "0/..data"},
        {"path": "a", "kind": "dir", "content": "x"},
        {"path": "a", "kind": "dir", "owner": "root"},
        {"path": "a", "kind": "git"},
        {"path": "a", "kind": "git", "url": "https://h/x", "subpath": "../x"},
        {"path": "a", "kind": "git", "url": "https://h/x", "subpath": "x/.GIT/y"},
        {"path": "a", "kind": "git", "url": "https://h/x", "credentials": ".."},
    ],
)
def test_an_entry_that_is_none_is_named(entry: dict[str, Any]) -> None:
    failure = refusal(entry)
    assert failure.reason == "InvalidSpec"
    assert failure.entry == "a"


@pytest.mark.parametrize(
    "ref",
    [
        *(
            "-upload-pack=x",
            "--x",
            "a b",
            "a..b",
            "a//b",
            "/a",
            "a/",
            "a.lock",
            "a.lock/b",
            "a@{1}",
            "@",
            "a~1",
        ),
        *("a^", "a:b", "+a", "a?", "a*", "a[", "a\\b", "a\nb", "", ".a", "a/.b", "a."),
    ],
)
def test_a_ref_that_is_none(ref: str) -> None:
    if ref == "+a":
        return  # a plus sign is part of names, and is never written first in a refspec of ours
    assert refusal({"path": "a", "kind": "git", "url": "https://h/x", "ref": ref}).reason == "GitRefused"


@pytest.mark.parametrize(
    "ref", ["main", "feature/x-1", "v1.0+b", "f" * 40, "refs/pull/1/head", "\u00fc", "HEAD"]
)
def test_refs_that_people_have(ref: str) -> None:
    assert parse({"path": "a", "kind": "git", "url": "https://h/x", "ref": ref}).entries[0].ref == ref


def test_beneath_a_file() -> None:
    assert "is a file" in refusal(file("a"), file("a/b")).message
    assert (
        "is a file" in refusal({"path": "a", "kind": "upload-file"}, {"path": "a/b/c", "kind": "dir"}).message
    )
    parse({"path": "a", "kind": "git", "url": "https://h/x"}, file("a/b"))


def test_order_and_doubles() -> None:
    assert "beneath" in refusal(file("a/b"), {"path": "a", "kind": "dir"}).message
    assert "twice" in refusal(file("a"), file("a")).message


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", "null", "{}", '{"version": 2, "digest": "d", "entries": []}'),
        *('{"version": 1, "digest": "d", "entries": [1]}', '{"version": true, "digest": "d", "entries": []}'),
        '{"version": 1, "digest": "d", "entries": [], "extra": 1}',
        '{"version": 1, "digest": "a b", "entries": []}',
        '{"version": 1, "version": 1, "digest": "d", "entries": []}',
        '{"version": 1, "digest": "d", "entries": [], "git": {"timeoutSeconds": 0}}',
        '{"version": 1, "digest": "d", "entries": [], "git": {"insecureHosts": [1]}}',
        "[" * 100_000,
    ],
)
def test_a_plan_that_is_none(text: str) -> None:
    with pytest.raises(MaterializeError) as caught:
        parse_plan(text)
    assert caught.value.reason == "InvalidSpec"


def test_too_much() -> None:
    assert "512" in refusal(*(file(str(n)) for n in range(513))).message
    with pytest.raises(MaterializeError, match="larger"):
        parse_plan("x" * (4 * 1024 * 1024 + 1))


def test_a_file_s_content_does_not_show_in_its_representation() -> None:
    assert "secret" not in repr(parse(file("a", "secret")).entries[0])
