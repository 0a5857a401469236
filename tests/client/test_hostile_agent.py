"""An agent that somebody in the workspace has put in the real one's place: what it says costs the client little."""

import asyncio
import json
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox.errors import SandboxError
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec

from runner_client import KubernetesSandboxClient
from runner_client.stream import transfer
from runner_client.stream.agent import AgentClient
from runner_client.stream.errors import ConnectionLostError, ProtocolViolationError
from runner_client.stream.messages import Receive
from runner_client.stream.mux import Mux

FRAME = struct.Struct("!BBHII")
DATA, WINDOW_UPDATE, PING = range(3)
SYN, ACK, FIN = 1, 2, 4
HELLO = {"protocol": 1, "agent": "x", "boot_id": "b", "uid": 1, "gid": 1, "root": "/w"}
MIB = 1 << 20


def said(kind: Receive, payload: bytes = b"") -> bytes:
    return struct.pack("!BI", kind, len(payload)) + payload


class HostileAgent:
    """Speaks yamux as it should, and within it whatever a test wants; also the Connector to it."""

    def __init__(self, answer: Callable[[], Iterator[bytes]]) -> None:
        self._answer = answer
        self._credit: dict[int, int] = {}
        self._more = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, mux: Mux) -> None:
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().create_connection(lambda: mux, sock=ours)
        reader, self._writer = await asyncio.open_connection(sock=theirs)
        self._tasks.append(asyncio.create_task(self._serve(reader, self._writer)))

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: dict[int, bytes] = {}
        while True:
            _, kind, flags, number, length = FRAME.unpack(await reader.readexactly(FRAME.size))
            if kind == DATA:
                line = requests.get(number, b"") + await reader.readexactly(length)
                requests[number] = line
                if line.endswith(b"\n"):
                    request = json.loads(line)
                    self._tasks.append(asyncio.create_task(self._reply(writer, number, request["op"])))
            elif kind == WINDOW_UPDATE:
                self._credit[number] = self._credit.get(number, 256 << 10) + length
                self._more.set()
            elif kind == PING and flags == SYN:
                writer.write(FRAME.pack(0, PING, ACK, 0, length))

    async def _reply(self, writer: asyncio.StreamWriter, number: int, operation: str) -> None:
        hello = said(Receive.REPLY, json.dumps(HELLO).encode())
        for content in iter([hello]) if operation == "hello" else self._answer():
            rest = content
            while rest:
                while not (credit := self._credit[number]):
                    self._more.clear()
                    await self._more.wait()
                piece, rest = rest[:credit], rest[credit:]
                self._credit[number] -= len(piece)
                writer.write(FRAME.pack(0, DATA, 0, number, len(piece)) + piece)
                await writer.drain()
        writer.write(FRAME.pack(0, WINDOW_UPDATE, FIN, number, 0))


class SilentAgent(HostileAgent):
    """Says who it is, answers pings, and does nothing else; or sends a byte of content now and then."""

    def __init__(self, *, trickles: bool = False) -> None:
        super().__init__(lambda: iter(()))
        self._trickles = trickles

    async def _reply(self, writer: asyncio.StreamWriter, number: int, operation: str) -> None:
        if operation == "hello":
            await super()._reply(writer, number, operation)
            return
        while True:
            await asyncio.sleep(0.02)
            if self._trickles:
                piece = said(Receive.REPLY, b"x")
                writer.write(FRAME.pack(0, DATA, 0, number, len(piece)) + piece)


Connect = Callable[[Callable[[], Iterator[bytes]]], AgentClient]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    agents: list[HostileAgent] = []
    clients: list[AgentClient] = []

    def make(answer: Callable[[], Iterator[bytes]]) -> AgentClient:
        agents.append(HostileAgent(answer))
        clients.append(AgentClient(agents[-1]))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()
    for agent in agents:
        await agent.aclose()


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """The most memory that Python objects took so far."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


async def test_output_in_empty_pieces_takes_no_memory(connect: Connect, peak: Callable[[], int]) -> None:
    def answer() -> Iterator[bytes]:
        for _ in range(300):
            yield said(Receive.STDOUT) * 2000
        yield said(Receive.EXIT, b'{"code": 0}')

    result = await connect(answer).exec(["x"])
    assert result.stdout == b""
    assert peak() < 3 * MIB


async def test_output_in_tiny_pieces_takes_hardly_more_than_its_size(
    connect: Connect, peak: Callable[[], int]
) -> None:
    def answer() -> Iterator[bytes]:
        for _ in range(60):
            yield said(Receive.STDERR, b"ab") * 2000
        yield said(Receive.EXIT, b'{"code": 0}')

    result = await connect(answer).exec(["x"])
    assert result.stderr == b"ab" * 120_000
    assert peak() < 3 * MIB


async def test_a_listing_of_nothing_but_brackets_is_refused_before_it_is_parsed(
    connect: Connect, peak: Callable[[], int]
) -> None:
    def answer() -> Iterator[bytes]:
        yield said(Receive.REPLY, b"[[]")
        for _ in range(40):
            yield said(Receive.REPLY, b",[]" * 100_000)
        yield said(Receive.REPLY, b"]") + said(Receive.END)

    with pytest.raises(ProtocolViolationError, match="listing"):
        await connect(answer).list("/w")
    assert peak() < 64 * MIB


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".", ".."])
async def test_a_name_that_leads_elsewhere_is_refused(connect: Connect, name: str) -> None:
    entry = {"name": name, "kind": "file", "size": 1, "mode": 420, "mtime_ns": 1, "uid": 1, "gid": 1}

    def answer() -> Iterator[bytes]:
        yield said(Receive.REPLY, json.dumps([entry]).encode()) + said(Receive.END)

    with pytest.raises(ProtocolViolationError, match="name"):
        await connect(answer).list("/w")


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\xff\xff\xff",
        said(Receive.REPLY, b"[" * 100_000),
        said(Receive.REPLY, b'{"removed": 1e999}'),
        said(Receive.REPLY, b'{"removed": ' + b"9" * 10_000 + b"}"),
        said(Receive.REPLY, b"null"),
        said(Receive.EXIT, b"{}"),
        b"\x63\x00\x00\x00\x00",
        said(Receive.ERROR, b"[]"),
    ],
    ids=["endless", "nested", "infinite", "long number", "null", "exit", "unknown kind", "error"],
)
async def test_an_answer_that_is_none_is_an_error_of_its_own(connect: Connect, content: bytes) -> None:
    with pytest.raises(ProtocolViolationError):
        await connect(lambda: iter([content])).remove("/w/x")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STALL", 0.3)
    monkeypatch.setattr(transfer, "ANSWER", 0.4)


@pytest.mark.usefixtures("impatient")
async def test_an_agent_that_only_answers_pings_holds_no_file_operation_for_ever() -> None:
    agent = SilentAgent()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(MIB)

    async with AgentClient(agent) as client:
        for asked in (
            lambda: client.read("/w/a"),
            lambda: client.list("/w"),
            lambda: client.stat("/w/a"),
            lambda: client.mkdir("/w/a"),
            lambda: client.remove("/w/a", recursive=True),
            lambda: client.move("/w/a", "/w/b"),
            lambda: client.write("/w/a", b"small"),
            lambda: client.write("/w/a", bytes(MIB // 8)),
            lambda: client.write("/w/a", endless()),
            lambda: client.extract("/w/a", bytes(MIB // 8)),
            lambda: client.forward(80),
            lambda: anext(client.archive("/w")),
        ):
            async with asyncio.timeout(10):
                with pytest.raises(ConnectionLostError, match="did nothing"):
                    await asked()
        assert client.connected
    await agent.aclose()


@pytest.mark.usefixtures("impatient")
async def test_content_that_trickles_is_not_waited_for_without_end() -> None:
    agent = SilentAgent(trickles=True)
    async with AgentClient(agent) as client, asyncio.timeout(10):
        with pytest.raises(ConnectionLostError, match="did nothing"):
            await client.read("/w/a")
    await agent.aclose()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ending", ["aclose", "stop and delete"])
async def test_a_sandbox_whose_agent_is_silent_is_deleted_without_its_last_save(
    cluster_in_memory: Any, workspace: Path, tmp_path: Path, ending: str
) -> None:
    client = KubernetesSandboxClient(access=cluster_in_memory)
    snapshot = LocalSnapshotSpec(base_path=tmp_path)
    session = await client.create(manifest=Manifest(root=str(workspace)), snapshot=snapshot)
    await session.start()
    agent = SilentAgent()
    await session._inner._agent.aclose()
    session._inner._agent = AgentClient(agent)
    async with asyncio.timeout(10):
        with pytest.raises(SandboxError, match="did nothing"):
            await (session.aclose() if ending == "aclose" else session.stop())
        await client.delete(session)
    assert not cluster_in_memory.sandboxes()
    await agent.aclose()
