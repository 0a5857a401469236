"""Large content over a lane: the real agent, the real subcommand, and everything that can break between them."""

import asyncio
import dataclasses
import io
import os
import struct
import tarfile
from pathlib import Path

import pytest
from local_agent import eventually

from runner_client.stream import lane as lanes
from runner_client.stream import transfer
from runner_client.stream.errors import (
    Code,
    ConnectError,
    ConnectionLostError,
    ExistsError,
    OperationError,
    PathRefusedError,
    ProtocolViolationError,
)
from runner_client.stream.lane import Lane, LaneLostError
from runner_client.stream.messages import Receive

MIB = 1 << 20


def slow(function, pause):
    async def slowly(*args):
        await asyncio.sleep(pause)
        return await function(*args)

    return slowly


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(lanes, "AFTER", MIB)
    monkeypatch.setattr(transfer, "LARGE", 2 * MIB)
    # On one machine a stream would have carried it all before there is a lane.
    for name, pause in (("send", 0.01), ("receive", 0.0005)):
        monkeypatch.setattr(transfer, name, slow(getattr(transfer, name), pause))


def content(size: int) -> bytes:
    return os.urandom(1 << 16) * (size >> 16)


async def slowly(backend, whole: bytes, *, lane: int = 1, then=None):
    """The content, with its second half only when so many lanes have carried something."""
    half = len(whole) // 2
    for start in range(0, half, 1 << 18):
        yield whole[start : min(half, start + (1 << 18))]
    while sum(one.sent > 200 for one in backend.lanes) < lane:
        yield b"\0" * (1 << 16)
        await asyncio.sleep(0.001)
    if then is not None:
        await then()
    yield whole[half:]


async def gone(backend) -> None:
    """The processes that brought the lanes."""
    await eventually(lambda: all(lane.process.poll() is not None for lane in backend.lanes))


def carried(backend) -> int:
    return sum(lane.sent + lane.received for lane in backend.lanes)


@pytest.mark.parametrize("kind", ["bytes", "memoryview", "BytesIO", "file", "generator"])
async def test_large_files_are_exact_up_and_down(client, backend, workspace, tmp_path, kind):
    whole = content(24 * MIB)
    source = tmp_path / "source"
    source.write_bytes(whole)

    async def generated():
        for start in range(0, len(whole), 100_000):
            yield whole[start : start + 100_000]

    with source.open("rb") as file:
        sources = {
            "bytes": whole,
            "memoryview": memoryview(whole),
            "BytesIO": io.BytesIO(whole),
            "file": file,
            "generator": generated(),
        }
        assert await client.write(str(workspace / "f"), sources[kind]) == len(whole)
    assert (workspace / "f").read_bytes() == whole
    assert await client.read(str(workspace / "f")) == whole
    await gone(backend)
    assert len(backend.lanes) == 2
    assert all(lane.sent + lane.received > MIB for lane in backend.lanes)
    assert [path.name for path in workspace.iterdir()] == ["f"]


async def test_small_content_gets_no_lane(client, backend, workspace):
    whole = content(MIB)
    await client.write(str(workspace / "f"), whole)
    assert await client.read(str(workspace / "f"), limit=10) == whole[:10]
    assert await client.read(str(workspace / "f"), limit=MIB) == whole
    assert not backend.lanes


async def test_a_part_of_a_large_file(client, backend, workspace):
    whole = content(16 * MIB)
    (workspace / "f").write_bytes(whole)
    limit = len(whole) - 2 * MIB
    assert await client.read(str(workspace / "f"), offset=MIB, limit=limit) == whole[MIB : MIB + limit]
    assert carried(backend)


async def test_archives_go_by_lane_as_well(client, backend, workspace):
    (workspace / "a").mkdir()
    for number in range(20):
        (workspace / "a" / str(number)).write_bytes(content(MIB))
    packed = b"".join([piece async for piece in client.archive(str(workspace / "a"))])
    assert carried(backend) > 8 * MIB
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert len(archive.getnames()) == 20
    before = carried(backend)
    members, size = await client.extract(str(workspace / "b"), packed)
    assert (members, size) == (20, 20 * MIB)
    assert carried(backend) - before > 8 * MIB
    assert (workspace / "b/7").read_bytes() == (workspace / "a/7").read_bytes()


async def test_many_at_once_share_few_lanes(client, backend, workspace):
    whole = content(8 * MIB)
    await asyncio.gather(*(client.write(str(workspace / str(n)), whole) for n in range(12)))
    assert all((workspace / str(n)).read_bytes() == whole for n in range(12))
    assert 1 <= len(backend.lanes) <= 12
    await gone(backend)
    assert len(client._lanes) == 0


async def test_an_agent_that_knows_no_lanes_is_asked_for_none(client, backend, workspace):
    client.info = dataclasses.replace(await client.connect(), lanes=False)
    whole = content(8 * MIB)
    await client.write(str(workspace / "f"), whole)
    assert await client.read(str(workspace / "f")) == whole
    assert not backend.lanes


async def test_where_a_lane_cannot_be_opened_the_stream_goes_on(client, backend, workspace):
    backend.no_lane = ConnectError(Code.FORBIDDEN, "no")
    tries = 0
    original = backend.lane

    async def counted(protocol):
        nonlocal tries
        tries += 1
        return await original(protocol)

    backend.lane = counted
    whole = content(16 * MIB)
    for _ in range(2):
        assert await client.write(str(workspace / "f"), whole) == len(whole)
        assert await client.read(str(workspace / "f")) == whole
    assert tries == 1
    assert not backend.lanes


@pytest.mark.parametrize("how", ["killed", "cut"])
async def test_an_upload_whose_lane_breaks_leaves_nothing(client, backend, workspace, how):
    (workspace / "f").write_bytes(b"old")

    async def cut():
        if how == "killed":
            backend.lanes[0].process.kill()
        else:
            backend.lanes[0].abort()
        await asyncio.sleep(0.1)

    with pytest.raises(ConnectionLostError) as caught:
        await client.write(str(workspace / "f"), slowly(backend, content(8 * MIB), then=cut))
    assert not caught.value.retryable
    await gone(backend)
    assert (workspace / "f").read_bytes() == b"old"
    assert [path.name for path in workspace.iterdir()] == ["f"]
    assert client.connected  # the session's stream is as it was
    await client.write(str(workspace / "g"), b"x")


async def test_an_upload_whose_stream_breaks_leaves_nothing(client, backend, workspace):
    async def cut():
        backend.cut()
        await asyncio.sleep(0.1)

    with pytest.raises(ConnectionLostError):
        await client.write(str(workspace / "f"), slowly(backend, content(8 * MIB), then=cut))
    await gone(backend)
    await eventually(lambda: not list(workspace.iterdir()))


@pytest.mark.parametrize("how", ["killed", "cut"])
async def test_a_download_whose_lane_breaks_is_asked_once_more(client, backend, workspace, how):
    whole = content(64 * MIB)
    (workspace / "f").write_bytes(whole)

    async def cut():
        await eventually(lambda: backend.lanes and backend.lanes[0].received > MIB)
        if how == "killed":
            backend.lanes[0].process.kill()
        else:
            backend.lanes[0].abort()

    cutting = asyncio.create_task(cut())
    assert await client.read(str(workspace / "f")) == whole
    await cutting
    await gone(backend)
    assert len(backend.lanes) == 2


async def test_a_download_as_a_stream_that_breaks_says_so(client, backend, workspace):
    (workspace / "f").write_bytes(content(64 * MIB))

    async def read():
        async for _ in client.read_stream(str(workspace / "f")):
            if backend.lanes and backend.lanes[0].received > MIB:
                backend.lanes[0].process.kill()

    with pytest.raises(LaneLostError):
        await read()
    await gone(backend)


async def test_a_reader_that_stops_early_ends_its_lane(client, backend, workspace):
    (workspace / "f").write_bytes(content(64 * MIB))
    stream = client.read_stream(str(workspace / "f"))
    async for _ in stream:
        if carried(backend) > MIB:
            break
    await stream.aclose()
    await gone(backend)
    assert len(client._lanes) == 0


async def test_a_slow_reader_holds_little(client, backend, workspace):
    (workspace / "f").write_bytes(content(64 * MIB))
    stream = client.read_stream(str(workspace / "f"))
    size = 0
    async for piece in stream:
        size += len(piece)
        if carried(backend) > MIB:
            break
    await asyncio.sleep(0.2)
    assert carried(backend) < 8 * MIB
    async for piece in stream:
        size += len(piece)
    assert size == 64 * MIB


async def test_a_lane_that_stands_when_all_has_been_sent_is_not_used(client, workspace):
    whole = content(MIB)
    (workspace / "f").write_bytes(whole)
    got = []
    async with client._stream({"op": "read", "path": str(workspace / "f")}) as stream:

        class Late:
            def lane(self, count):
                return Lane() if stream.ended else None

        async for piece in transfer.download(stream, None, Late()):
            got.append(piece)
            await eventually(lambda: stream.ended)
    assert len(got) > 1
    assert b"".join(got) == whole


async def test_cancelling_an_upload_leaves_nothing(client, backend, workspace):
    task = asyncio.create_task(
        client.write(str(workspace / "f"), slowly(backend, content(8 * MIB), then=lambda: asyncio.sleep(60)))
    )
    await eventually(lambda: backend.lanes and backend.lanes[0].sent > 200)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(backend)
    assert not list(workspace.iterdir())


async def test_a_source_that_fails_leaves_nothing(client, backend, workspace):
    async def fail():
        raise ValueError("the source")

    with pytest.raises(ValueError, match="the source"):
        await client.write(str(workspace / "f"), slowly(backend, content(8 * MIB), then=fail))
    await gone(backend)
    assert not list(workspace.iterdir())


async def test_refusals_are_those_of_the_small_way(client, backend, workspace, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (workspace / "link").symlink_to(outside)
    (workspace / "there").write_bytes(b"old")
    cases: list[tuple[str, dict, type[OperationError]]] = [
        ("link/f", {}, PathRefusedError),
        ("missing/f", {}, OperationError),
        ("there", {"exclusive": True}, ExistsError),
        ("there/f", {}, OperationError),
        (".", {}, OperationError),
    ]
    if os.getuid():
        (workspace / "closed").mkdir(mode=0o555)
        cases.append(("closed/f", {}, OperationError))
    for name, options, kind in cases:
        said = []
        for whole in (b"small", content(16 * MIB)):
            with pytest.raises(kind) as caught:
                await client.write(f"{workspace}/{name}", whole, **options)
            said.append((caught.value.code, caught.value.path, caught.value.errno, caught.value.message))
        assert said[0] == said[1]
    await gone(backend)
    assert not list(outside.iterdir())


async def test_a_refusal_in_the_middle_says_why(client, backend, workspace):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("a", "b"):
            member = tarfile.TarInfo(name)
            member.size = 16 * MIB
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(OperationError) as caught:
        await client.extract(str(workspace), packed.getvalue(), max_bytes=20 * MIB)
    assert caught.value.code == Code.TOO_LARGE
    assert carried(backend) > MIB
    assert [path.name for path in workspace.iterdir()] == ["a"]


async def test_the_session_saves_and_fills_a_large_workspace_by_lane(cluster_in_memory, backend, workspace):
    from agents.sandbox.manifest import Manifest

    from runner_client import KubernetesSandboxClient

    sdk = KubernetesSandboxClient(access=cluster_in_memory)
    session = await sdk.create(manifest=Manifest(root=str(workspace)))
    await session.start()
    whole = content(24 * MIB)
    await session.write(Path("big"), io.BytesIO(whole))
    saved = await session.persist_workspace()
    await session.rm("big")
    await session.hydrate_workspace(saved)
    with await session.read(Path("big")) as file:
        assert file.read() == whole
    assert len(backend.lanes) == 4
    saved.close()
    await sdk.delete(session)
    await gone(backend)


# -- an agent that cannot be trusted


class NoTransport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.paused = self.aborted = False

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def abort(self):
        self.aborted = True


def said(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack("!BI", kind, len(payload)) + payload


@pytest.fixture
async def lane():
    lane = Lane()
    lane.connection_made(NoTransport())
    lane.data_received(said(Receive.REPLY, b"{}"))
    assert await lane.receive() == (Receive.REPLY, b"{}")
    return lane


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
async def test_messages_come_whole_whatever_the_pieces(lane, step):
    sent = said(Receive.REPLY, b"a" * 50) + said(Receive.REPLY) + said(Receive.REPLY, b"b" * 3000)
    sent += said(Receive.END, b'{"bytes":3050}')
    for start in range(0, len(sent), step):
        lane.data_received(sent[start : start + step])
    got = b""
    while (message := await lane.receive())[0] == Receive.REPLY:
        got += message[1]
    assert got == b"a" * 50 + b"b" * 3000
    assert message == (Receive.END, b'{"bytes":3050}')


async def test_tiny_pieces_are_joined_and_reading_is_paused(lane):
    for _ in range(300):
        lane.data_received(said(Receive.REPLY, b"x") * 10_000)
    assert lane._transport.paused
    assert len(lane._arrived) < 1000
    total = 0
    while total < 3_000_000:
        total += len((await lane.receive())[1])
    assert not lane._transport.paused


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!BI", Receive.REPLY, MIB + 1),
        said(Receive.END, b"{}") + said(Receive.REPLY, b"x"),
        said(Receive.ERROR, b"{}") + said(Receive.ERROR, b"{}"),
    ],
)
async def test_what_breaks_the_protocol_ends_the_lane(lane, sent):
    lane.data_received(sent)
    assert lane._transport.aborted
    lane._arrived.clear()
    with pytest.raises(ProtocolViolationError):
        await lane.receive()
