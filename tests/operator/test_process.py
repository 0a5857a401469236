"""The process as it is deployed: kopf's feed, probes, signals, the lease, and a kill at any moment."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from sandbox_api.kube import CRDS, LEASES, PODS, SANDBOXES, KubeClient, KubeconfigCredentials

from dev.local.control_plane import ControlPlane
from dev.local.locations import REPOSITORY

from .toy import Cluster


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def definitions() -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text()) for path in (REPOSITORY / "crds").glob("*.yaml")]


class Process:
    """One operator process."""

    def __init__(self, kubeconfig: Path, namespace: str, port: int = 0, **settings: str) -> None:
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "SANDBOX_OPERATOR_WATCH_NAMESPACES": namespace,
            "SANDBOX_OPERATOR_PROBES_PORT": str(port),
            **{f"SANDBOX_OPERATOR_{name.upper()}": value for name, value in settings.items()},
        }

    async def start(self) -> "Process":
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandbox_operator", env=self.environment, stderr=asyncio.subprocess.PIPE
        )
        self.lines: list[str] = []
        self.reader = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())

    async def logged(self, text: str, seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while not any(text in line for line in self.lines):
            assert time.monotonic() < end, f"{text!r} is not in {self.lines}"
            assert self.process.returncode is None, self.lines
            await asyncio.sleep(0.02)

    async def end(self, number: signal.Signals) -> float:
        """Signal it; returns the seconds until it ended."""
        started = time.monotonic()
        if self.process.returncode is None:
            self.process.send_signal(number)
        await asyncio.wait_for(self.process.wait(), 15)
        await self.reader
        return time.monotonic() - started


@asynccontextmanager
async def running(
    kubeconfig: Path, cluster: Cluster, port: int = 0, **settings: str
) -> AsyncIterator[Process]:
    process = await Process(kubeconfig, cluster.namespace, port, **settings).start()
    try:
        await process.logged("everything is listed")
        yield process
    finally:
        await process.end(signal.SIGKILL)


async def test_the_process_serves_probes_and_ends_within_two_seconds(
    control_plane: Path, cluster: Cluster, port: int
) -> None:
    async with running(control_plane, cluster, port) as process, cluster.kubelet():
        await cluster.create()
        await cluster.ready()
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/healthz") as answer,
        ):
            assert answer.status == 200
        assert await process.end(signal.SIGTERM) < 2.5
        assert process.process.returncode == 0
        for line in process.lines:
            assert json.loads(line)["level"] in {"info", "warning"}, line


async def test_kopf_writes_nothing_on_our_objects(control_plane: Path, cluster: Cluster) -> None:
    async with running(control_plane, cluster), cluster.kubelet():
        await cluster.create()
        await cluster.ready()
        metadata = (await cluster.sandbox())["metadata"]
        assert not [key for key in metadata.get("annotations") or {} if "kopf" in key]
        assert metadata["finalizers"] == ["sandbox-operator.dev/cleanup"]
        managers = {entry["manager"] for entry in metadata["managedFields"]}
        assert managers == {"sandbox-operator", "test"}


async def test_a_restart_of_the_process_changes_nothing(control_plane: Path, cluster: Cluster) -> None:
    async with running(control_plane, cluster), cluster.kubelet():
        await asyncio.gather(*(cluster.create(f"box-{n}") for n in range(50)))
        for n in range(50):
            await cluster.ready(f"box-{n}", 30)

    async def versions() -> dict[str, str]:
        items = [*(await cluster.api.list(SANDBOXES, cluster.namespace)).items, *await cluster.pods()]
        return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}

    before = await versions()
    async with running(control_plane, cluster):
        await asyncio.sleep(1.5)
    assert await versions() == before


async def test_a_process_killed_at_any_moment_leaves_one_pod_each_and_the_same_end(
    control_plane: Path, cluster: Cluster
) -> None:
    rng = random.Random(7)
    async with cluster.kubelet():
        for round_ in range(6):
            names = [f"box-{round_}-{n}" for n in range(12)]
            process = await Process(control_plane, cluster.namespace).start()
            await process.logged("everything is listed")
            creating = asyncio.gather(*(cluster.create(name) for name in names))
            await asyncio.sleep(rng.uniform(0.0, 0.25))
            await process.end(signal.SIGKILL)
            await creating
            async with running(control_plane, cluster):
                statuses = {name: await cluster.ready(name, 20) for name in names}
                assert all(status["incarnation"] == 1 for status in statuses.values())
                owners = [pod["metadata"]["ownerReferences"][0]["uid"] for pod in await cluster.pods()]
                assert len(owners) == len(set(owners)) == len(names)
            process = await Process(control_plane, cluster.namespace).start()
            await process.logged("everything is listed")
            deleting = asyncio.gather(*(cluster.delete(name) for name in names))
            await asyncio.sleep(rng.uniform(0.0, 0.15))
            await process.end(signal.SIGKILL)
            await deleting
            async with running(control_plane, cluster):
                for name in names:
                    await cluster.until(lambda name=name: cluster.gone(name), f"{name} to go")
            assert not await cluster.pods()


async def test_one_of_two_replicas_works_and_the_other_takes_over(
    control_plane: Path, cluster: Cluster
) -> None:
    settings = {"lease": "lead", "NAMESPACE": cluster.namespace}
    async with running(control_plane, cluster, identity="one", **settings) as first, cluster.kubelet():
        await first.logged("this replica is the active one")
        async with running(control_plane, cluster, identity="two", **settings) as second:
            await cluster.create("a")
            await cluster.ready("a")
            lease = await cluster.api.get(LEASES, "lead", cluster.namespace)
            assert lease["spec"]["holderIdentity"] == "one"
            assert not any("active one" in line for line in second.lines)
            await first.end(signal.SIGTERM)
            await second.logged("this replica is the active one", 6)
            await cluster.create("b")
            await cluster.ready("b")


async def test_a_replica_that_dies_is_followed_when_its_lease_has_run_out(
    control_plane: Path, cluster: Cluster
) -> None:
    settings = {"lease": "lead", "NAMESPACE": cluster.namespace}
    async with running(control_plane, cluster, identity="one", **settings) as first, cluster.kubelet():
        await first.logged("this replica is the active one")
        await first.end(signal.SIGKILL)
        await cluster.create()
        async with running(control_plane, cluster, identity="two", **settings) as second:
            await second.logged("this replica is the active one", 22)
            await cluster.ready()
        async with running(control_plane, cluster, identity="two", **settings) as again:
            # A container that restarts in its pod has its old name and need not wait.
            await again.logged("this replica is the active one", 4)
        assert (await cluster.api.list(PODS, cluster.namespace)).items


class Way:
    """The way to the API server, which can be cut and joined again."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._connections: set[asyncio.StreamWriter] = set()

    async def open(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", port)
        return int(self._server.sockets[0].getsockname()[1])

    async def cut(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._connections |= {writer, there_writer}
        await asyncio.gather(
            self._pump(reader, there_writer), self._pump(there_reader, writer), return_exceptions=True
        )

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


def _server(kubeconfig: Path) -> int:
    """The port of its API server."""
    config = yaml.safe_load(kubeconfig.read_text())
    return int(config["clusters"][0]["cluster"]["server"].rpartition(":")[2])


def _kubeconfig(original: Path, port: int, directory: Path) -> Path:
    """The same with another port."""
    config = yaml.safe_load(original.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_an_api_server_that_is_away_for_a_while_is_survived(
    control_plane: Path, cluster: Cluster, tmp_path: Path
) -> None:
    way = Way(_server(control_plane))
    port = await way.open()
    kubeconfig = _kubeconfig(control_plane, port, tmp_path)
    async with running(kubeconfig, cluster) as process, cluster.kubelet():
        await cluster.create("a")
        await cluster.ready("a")
        await way.cut()
        await cluster.create("b")
        await cluster.delete("a")
        await asyncio.sleep(6)
        assert process.process.returncode is None, process.lines
        await way.open(port)
        await cluster.ready("b", 40)
        await cluster.until(lambda: cluster.gone("a"), "a to go", 40)
        await cluster.create("c")
        await cluster.ready("c", 40)
        await way.cut()
        assert await process.end(signal.SIGTERM) < 6


async def test_an_operator_that_comes_before_its_resources_waits_for_them(
    definitions: list[dict[str, Any]],
) -> None:
    with ControlPlane() as bare:
        async with KubeClient(KubeconfigCredentials(bare.kubeconfig)) as api:
            cluster = Cluster(api, "default")
            process = await Process(bare.kubeconfig, "").start()
            await process.logged("cannot be listed yet")
            for definition in definitions:
                await api.create(CRDS, definition, field_manager="test")
            await process.logged("everything is listed")
            async with cluster.kubelet():
                await cluster.create()
                await cluster.ready()
            await process.end(signal.SIGTERM)


async def test_it_can_be_stopped_while_it_waits() -> None:
    with ControlPlane() as bare:
        process = await Process(bare.kubeconfig, "").start()
        await process.logged("cannot be listed yet")
        assert await process.end(signal.SIGTERM) < 2.5


async def test_settings_that_make_no_sense_end_it_with_one_sentence(
    control_plane: Path, cluster: Cluster
) -> None:
    process = await Process(control_plane, cluster.namespace, workers="many").start()
    assert await asyncio.wait_for(process.process.wait(), 10) == 2
    await process.reader
    [line] = process.lines
    assert "SANDBOX_OPERATOR_WORKERS" in line
