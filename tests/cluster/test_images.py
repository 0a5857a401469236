"""Images as users bring them: without a shell, with another stop signal, with an entry point of their own."""

import io
import json
import tarfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dev.local import choice
from dev.local.locations import cluster_name
from runner_client import AgentError, Sandboxes

from .conftest import Namespace


def make_image(folder: Path, name: str, config: dict[str, Any]) -> Path:
    """An image of one empty layer, in the form that `docker save` writes."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for directory in ("tmp", "etc"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(info)
    blob = layer.getvalue()
    described = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(blob).hexdigest()}"]},
        }
    ).encode()
    index = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    file = folder / "image.tar"
    with tarfile.open(file, "w") as archive:
        members = (
            ("config.json", described),
            ("layer.tar", blob),
            ("manifest.json", json.dumps(index).encode()),
        )
        for path, data in members:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file


@pytest.fixture
def bring(tmp_path: Path):
    """Brings an image of one empty layer with the given configuration to the cluster."""
    standing = choice.existing(cluster_name())
    assert standing

    def load(name: str, **config: Any) -> str:
        image = f"sandbox-operator/test-{name}:1"
        standing.load_image(make_image(tmp_path, image, config))
        return image

    return load


async def test_an_image_with_nothing_in_it_can_be_worked_in(
    namespace: Namespace, cluster: Any, bring: Any
) -> None:
    namespace.create(
        "bare",
        image=bring("empty"),
        imagePullPolicy="Never",
        entries={"a.txt": {"file": {"content": "here"}}},
    )
    namespace.wait_ready("bare")
    async with (
        Sandboxes(namespace=namespace.name, kubeconfig=cluster.kubeconfig) as sandboxes,
        await sandboxes.connect("bare") as agent,
    ):
        assert await agent.read("/workspace/a.txt") == b"here"
        await agent.write("/workspace/b.txt", b"there")
        assert [info.name for info in await agent.list("/workspace")] == ["a.txt", "b.txt"]
        with pytest.raises(AgentError, match="sh") as refused:
            await agent.exec(["sh", "-c", "true"])
        assert refused.value.code == "command_not_found"


def test_another_stop_signal_ends_the_pod_as_quickly(namespace: Namespace, bring: Any) -> None:
    namespace.create(
        "quit",
        image=bring("quit", StopSignal="SIGQUIT"),
        imagePullPolicy="Never",
        lifecycle={"stopGrace": "60s"},
    )
    namespace.wait_ready("quit")
    started = time.monotonic()
    # An agent that is deaf to the signal would hold the pod for its whole grace.
    namespace.delete("quit", timeout=45)
    namespace.until(lambda: not namespace.children(), "the pod to go", 45 - (time.monotonic() - started))
