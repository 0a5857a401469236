"""Writes a container image of one layer as an archive, without any image builder."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

from dev.local.tool_error import ToolError

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def machine_architecture() -> str:
    """This machine's architecture, as images and Go call it."""
    try:
        return _ARCHITECTURES[platform.machine()]
    except KeyError:
        raise ToolError(
            f"The architecture {platform.machine()} is not supported: use an amd64 or arm64 machine."
        ) from None


def write_image(archive: Path, reference: str, files: dict[str, Path], command: Sequence[str]) -> None:
    """Writes an image that has just the files given (path in the image -> file here), all owned by root."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o755
            tar.addfile(entry)
        for path, source in files.items():
            content = source.read_bytes()
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o755
            tar.addfile(entry, io.BytesIO(content))
    config = json.dumps(
        {
            "architecture": machine_architecture(),
            "os": "linux",
            "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": ["sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()],
            },
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for path, content in ((name, config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
