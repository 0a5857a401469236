"""A large file up and down, against one plain pods/exec stream.

The plain stream is the WebSocket of ``kubernetes.aio``, with `cat` in the container: the same API server, kubelet and
TLS, and nothing on top. Both write to and read from the workspace's own volume; neither forces it to the disk.
"""

import json
import os
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration, CoreV1Api
from kubernetes.aio.stream import WsApiClient

from .cluster import Bench, BenchError
from .figures import Bound, Figure, times
from .opened import CONTAINER, Opened, opened

BOUND = Bound("ratio", 0.9, at_least=True)
SIZE = 256 << 20
STDIN, STDOUT, STDERR, ERROR = range(4)
#: Payload of a message of the plain stream. Larger ones made it no quicker.
CHUNK = 64 << 10


async def measure(bench: Bench) -> list[Figure]:
    """The four in turn."""
    wanted = bench.samples(5, 1)
    size = SIZE if not bench.quick else 32 << 20
    taken: dict[str, list[float]] = {"upload": [], "download": [], "plain up": [], "plain down": []}
    async with opened(bench, "transfer") as sandbox:
        plain = await PlainStreams.load(bench.namespace, sandbox.pod)
        try:
            for number in range(wanted + 1):  # the first round warms up
                for what, operation in (
                    ("upload", _upload(sandbox, size)),
                    ("plain up", plain.upload("/workspace/plain.bin", size)),
                    ("download", _download(sandbox, size)),
                    ("plain down", plain.download("/workspace/plain.bin", size)),
                ):
                    began = time.perf_counter()
                    await operation
                    if number:
                        taken[what].append(size / (time.perf_counter() - began) / 1e6)
        finally:
            await plain.close()
    note = f"{size >> 20} MiB; baseline: one pods/exec with cat"
    return [
        times("transfer.upload", taken["upload"], taken["plain up"], "MB/s", BOUND, note),
        times("transfer.download", taken["download"], taken["plain down"], "MB/s", BOUND, note),
    ]


async def pieces(size: int) -> AsyncGenerator[bytes, None]:
    """Content that nobody can compress, in pieces as they come from a file."""
    piece = os.urandom(256 << 10)
    for _ in range(size // len(piece)):
        yield piece


async def _upload(sandbox: Opened, size: int) -> None:
    _whole(await sandbox.agent.write("/workspace/agent.bin", pieces(size)), size)


async def _download(sandbox: Opened, size: int) -> None:
    got = 0
    async for piece in sandbox.agent.read_stream("/workspace/agent.bin"):
        got += len(piece)
    _whole(got, size)


class PlainStreams:
    """pods/exec as ``kubernetes.aio`` gives it, in version 5 of its protocol: that can end stdin."""

    def __init__(self, client: WsApiClient, namespace: str, pod: str) -> None:
        self._client = client
        self._namespace = namespace
        self._pod = pod

    @classmethod
    async def load(cls, namespace: str, pod: str) -> "PlainStreams":
        """Read the kubeconfig."""
        configuration = cast("Configuration", type.__call__(Configuration))
        await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration, persist_config=False
        )
        client = WsApiClient(configuration)  # type: ignore[no-untyped-call]
        return cls(client, namespace, pod)

    async def close(self) -> None:
        """End the client."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def upload(self, path: str, size: int) -> None:
        """`cat > path`."""
        websocket = await self._open("sh", "-c", f"cat > {path}")
        async with websocket:
            async for content in pieces(size):
                view = memoryview(content)
                for start in range(0, len(view), CHUNK):
                    await websocket.send_bytes(b"\0" + view[start : start + CHUNK])
            await websocket.send_bytes(bytes((255, STDIN)))
            await _drained(websocket)

    async def download(self, path: str, size: int) -> None:
        """`cat path`."""
        websocket = await self._open("cat", path)
        async with websocket:
            _whole(await _drained(websocket), size)

    async def _open(self, *command: str) -> "aiohttp.ClientWebSocketResponse[bool]":
        opening: Any = await CoreV1Api(self._client).connect_get_namespaced_pod_exec_without_preload_content(
            name=self._pod,
            namespace=self._namespace,
            container=CONTAINER,
            command=list(command),
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            _headers={"sec-websocket-protocol": "v5.channel.k8s.io"},
        )
        return cast("aiohttp.ClientWebSocketResponse[bool]", await opening)


async def _drained(websocket: "aiohttp.ClientWebSocketResponse[bool]") -> int:
    """Bytes of stdout until the command has ended well."""
    got = 0
    while True:
        message = await websocket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise BenchError(f"the plain stream ended without a status ({message.type.name})")
        channel = message.data[0]
        if channel == STDOUT:
            got += len(message.data) - 1
        elif channel == ERROR:
            status = json.loads(message.data[1:])
            if status.get("status") != "Success":
                raise BenchError(f"the plain stream: {status.get('message')}")
            return got


def _whole(got: int, size: int) -> None:
    if got != size:
        raise BenchError(f"{got} bytes arrived of {size}")
