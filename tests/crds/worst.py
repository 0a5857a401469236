"""The most expensive sandboxes that the schema admits: as many, as long, as deep as it goes."""

import itertools
from collections.abc import Iterator
from typing import Any

from sandbox_api.v1alpha1 import (
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    MAX_ENVIRONMENT_BYTES,
    MAX_INLINE_CHARACTERS,
    MAX_PATH_LEVELS,
)

#: What each of the most entries may have in words; paths alone may be much longer where there are fewer.
SHARE = MAX_ENTRY_BYTES // MAX_ENTRIES


def deep_paths(length: int) -> Iterator[str]:
    """Paths of a length and the greatest depth, that share no parent: every look-up of an ancestor misses."""
    for number in itertools.count():
        first = f"{number:06}"
        rest = length - len(first) - (MAX_PATH_LEVELS - 1)
        width, extra = divmod(rest, MAX_PATH_LEVELS - 1)
        segments = ["s" * (width + (i < extra)) for i in range(MAX_PATH_LEVELS - 1)]
        yield "/".join([first, *segments])


def _entries(make: Any, count: int, path: int) -> dict[str, Any]:
    return {name: make(number) for number, name in zip(range(count), deep_paths(path), strict=False)}


def _files(character: str, count: int) -> Any:
    share = MAX_INLINE_CHARACTERS // count
    return lambda _: {"file": {"content": character * share}, "permissions": "rwxrwxrwx", "ephemeral": False}


def _git(_: int) -> dict[str, Any]:
    return {"gitRepo": {"url": "https://h/" + "p" * 30, "ref": "r" * 20, "subpath": "/".join(["d"] * 12)}}


def _git_by_host(_: int) -> dict[str, Any]:
    return {
        "gitRepo": {
            "host": "h" * 9, "repo": "r" * 9, "ref": "r" * 9, "subpath": "s" * 9,
            "credentialsSecretRef": {"name": "n" * 9}, "caConfigMapRef": {"name": "n" * 9, "key": "k" * 9},
        }
    }  # fmt: skip


def worst_specs(count: int = MAX_ENTRIES) -> dict[str, dict[str, Any]]:
    """By name: each kind of entry ``count`` times, and everything else as large as it may be.

    With more entries than the schema admits, the bound on what is in them together has to grow as well.
    """
    label = "d" * 120 + ".example/" + "n" * 60
    variable = {"valueFrom": {"secretKeyRef": {"name": "n" * 200, "key": "k" * 200}}}
    value = MAX_ENVIRONMENT_BYTES // 256 - 205
    rest: dict[str, Any] = {
        "image": "i" * 512,
        "command": ["c" * 256] * 64,
        "args": ["a" * 256] * 64,
        "ports": list(range(1, 17)),
        "resources": {
            "requests": {f"{i}" + label: "1" * 20 + "Ki" for i in range(10, 26)},
            "limits": {f"{i}" + label: "1" * 20 + "Ki" for i in range(10, 26)},
        },
        "pod": {
            "labels": {label + str(i): "v" * 63 for i in range(10, 42)},
            "annotations": {label + str(i): "v" * 320 for i in range(10, 42)},
            "nodeSelector": {label + str(i): "v" * 63 for i in range(10, 42)},
            "tolerations": [{"key": "k" * 317, "value": "v" * 63}] * 32,
            "imagePullSecrets": [{"name": "n" * 252 + str(i)} for i in range(8)],
            "affinity": {"nodeAffinity": "x" * 16_000},
        },
    }

    def spec(entries: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**more, "manifest": {**more.get("manifest", {}), "entries": entries}}

    return {
        "files": spec(
            _entries(_files("c", count), count, SHARE),
            **rest,
            manifest={
                "environment": [{"name": "V" * 200 + str(i), "value": "v" * value} for i in range(100, 356)],
                "pathGrants": [{"path": "/p" * 250 + f"/{i}"} for i in range(32)],
                "root": "/r" * 127,
            },
        ),
        "files in wide characters": spec(_entries(_files("🐍", count), count, SHARE)),
        "references of the environment": spec(
            {"a": {"dir": {}}},
            manifest={
                "environment": [{"name": "V" * 107 + str(i), **variable} for i in range(100, 356)],
            },
        ),
        "one variable": spec(
            {"a": {"dir": {}}}, manifest={"environment": [{"name": "V", "value": "🐍" * 32767}]}
        ),
        "base64": spec(
            _entries(
                lambda _: {"file": {"contentBase64": "A" * (MAX_INLINE_CHARACTERS // count)}}, count, SHARE
            )
        ),
        "keys of Secrets": spec(
            _entries(
                lambda _: {
                    "file": {"contentFrom": {"secretKeyRef": {"name": "n" * 20, "key": "k" * 20}}},
                    "description": "d" * (SHARE - 30 - 40),
                    "permissions": "rwxrwxrwx",
                },
                count,
                30,
            )
        ),
        "repositories by url": spec(_entries(_git, count, 30)),
        "repositories by host": spec(_entries(_git_by_host, count, 30)),
        "empty": spec(_entries(lambda _: {"localDir": {}}, count, SHARE)),
        "few with the longest paths": spec(_entries(lambda _: {"localDir": {}}, MAX_ENTRY_BYTES // 512, 512)),
    }
