"""The most expensive sandboxes that the schema admits: as many, as long, as deep as it goes."""

import itertools
from collections.abc import Iterator
from typing import Any

from sandbox_api.v1alpha1 import MAX_ENTRIES, MAX_INLINE_CHARACTERS, MAX_PATH_BYTES, MAX_PATH_LEVELS


def deep_paths() -> Iterator[str]:
    """Paths of the greatest length and depth, that share no parent: every look-up of an ancestor misses."""
    for number in itertools.count():
        first = f"{number:06}"
        rest = MAX_PATH_BYTES - len(first) - (MAX_PATH_LEVELS - 1)
        width, extra = divmod(rest, MAX_PATH_LEVELS - 1)
        segments = ["s" * (width + (i < extra)) for i in range(MAX_PATH_LEVELS - 1)]
        yield "/".join([first, *segments])


def _entries(make: Any, count: int) -> dict[str, Any]:
    return {path: make(number) for number, path in zip(range(count), deep_paths(), strict=False)}


def _git(_: int) -> dict[str, Any]:
    return {
        "gitRepo": {
            "url": "https://h/" + "p" * 1014,
            "ref": "r" * 255,
            "subpath": "/".join(["d" * 127] * 4),
        }
    }


def _git_by_host(_: int) -> dict[str, Any]:
    return {"gitRepo": {"host": "h" * 255, "repo": "r" * 512, "ref": "r" * 255, "subpath": "s" * 512}}


def worst_specs(count: int = MAX_ENTRIES) -> dict[str, dict[str, Any]]:
    """By name: each kind of entry ``count`` times, and everything else as large as it may be."""
    share = MAX_INLINE_CHARACTERS // count
    variable = {"name": "V" * 200, "valueFrom": {"secretKeyRef": {"name": "n" * 253, "key": "k" * 253}}}
    label = "d" * 120 + ".example/" + "n" * 60
    rest: dict[str, Any] = {
        "image": "i" * 512,
        "command": ["c" * 4096] * 16,
        "args": ["a" * 4096] * 16,
        "ports": list(range(1, 17)),
        "resources": {
            "requests": {"r" * 250 + str(i): "1" * 20 + "Ki" for i in range(10, 26)},
            "limits": {"r" * 250 + str(i): "1" * 20 + "Ki" for i in range(10, 26)},
        },
        "pod": {
            "labels": {label + str(i): "v" * 63 for i in range(10, 42)},
            "annotations": {label + str(i): "v" * 2048 for i in range(10, 42)},
            "nodeSelector": {label + str(i): "v" * 63 for i in range(10, 42)},
            "tolerations": [{"key": "k" * 317, "value": "v" * 63}] * 32,
        },
    }

    def spec(entries: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**more, "manifest": {**more.get("manifest", {}), "entries": entries}}

    return {
        "files": spec(
            _entries(lambda _: {"file": {"content": "c" * share}}, count),
            **rest,
            manifest={
                "environment": [{**variable, "name": "V" * 200 + str(i)} for i in range(256)],
                "pathGrants": [{"path": "/p" * 250 + f"/{i}"} for i in range(32)],
                "root": "/r" * 127,
            },
        ),
        "base64": spec(_entries(lambda _: {"file": {"contentBase64": "A" * share}}, count)),
        "keys of Secrets": spec(
            _entries(
                lambda _: {
                    "file": {"contentFrom": {"secretKeyRef": {"name": "n" * 253, "key": "k" * 253}}},
                    "description": "d" * 1024,
                    "permissions": "rwxrwxrwx",
                },
                count,
            )
        ),
        "repositories by url": spec(_entries(_git, count)),
        "repositories by host": spec(_entries(_git_by_host, count)),
        "empty": spec(_entries(lambda _: {"localDir": {}}, count)),
    }
