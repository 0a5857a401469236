"""The mux against every border, credit, reset and garbage of a peer. The peer here is the test itself."""

import asyncio
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner_client.stream import mux as m
from runner_client.stream.errors import (
    AgentError,
    ConnectionLostError,
    OperationError,
    ProtocolViolationError,
)

HEAD = struct.Struct("!BBHII")


class Wire(asyncio.Transport):
    """Keeps what the mux sends, frame by frame."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.aborted = False

    def write(self, data) -> None:
        self.sent += data

    def close(self) -> None:
        self.aborted = True

    abort = close

    def frames(self):
        data, pos, found = bytes(self.sent), 0, []
        while pos < len(data):
            _, kind, flags, number, length = HEAD.unpack_from(data, pos)
            pos += HEAD.size
            size = length if kind == m.DATA else 0
            found.append((kind, flags, number, length, data[pos : pos + size]))
            pos += size
        self.sent.clear()
        return found


def joined(**kw) -> tuple[m.Mux, Wire]:
    mux, wire = m.Mux(**kw), Wire()
    mux.connection_made(wire)
    return mux, wire


def frame(kind: int, flags: int, number: int, length: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(0, kind, flags, number, length) + payload


def data(number: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(m.DATA, flags, number, len(payload), payload)


def run(coroutine):
    return asyncio.run(coroutine)


@given(
    pieces=st.lists(st.tuples(st.sampled_from([1, 3, 5]), st.binary(max_size=300)), max_size=20),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=200),
)
def test_frames_cut_anywhere_say_the_same(pieces, cuts):
    async def main():
        mux, _ = joined()
        streams = {s.number: s for s in (mux.open(), mux.open(), mux.open())}
        wire = b"".join(data(number, payload) for number, payload in pieces)
        wire += frame(m.PING, m.SYN, 0, 7) + b"".join(frame(m.WINDOW_UPDATE, m.FIN, n, 0) for n in streams)
        pos, i = 0, 0
        while pos < len(wire):
            n = cuts[i % len(cuts)]
            mux.data_received(wire[pos : pos + n])
            pos, i = pos + n, i + 1
        assert mux.lost is None
        for number, stream in streams.items():
            expected = b"".join(payload for n, payload in pieces if n == number)
            assert await stream.read(len(expected) + 1) == expected

    run(main())


@given(
    sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=6),
    grants=st.lists(st.integers(1, 400_000), min_size=1, max_size=10),
)
@settings(deadline=None)
def test_no_more_is_sent_than_was_granted_and_all_of_it_arrives(sizes, grants):
    async def main():
        mux, wire = joined()
        stream = mux.open()
        content = b"".join(bytes([i % 251]) * size for i, size in enumerate(sizes))

        async def write():
            pos = 0
            for size in sizes:
                await stream.write(content[pos : pos + size])
                pos += size

        writer = asyncio.create_task(write())
        credit, got, i = m.INITIAL_WINDOW, bytearray(), 0
        while not writer.done() or len(got) < len(content):
            await asyncio.sleep(0)
            for kind, _, number, length, payload in wire.frames():
                if kind == m.DATA:
                    assert number == stream.number
                    assert length <= m.FRAME
                    got += payload
                    credit -= length
                    assert credit >= 0
            if not writer.done():
                grant = grants[i % len(grants)]
                i += 1
                credit += grant
                mux.data_received(frame(m.WINDOW_UPDATE, 0, stream.number, grant))
        assert got == content

    run(main())


@given(st.lists(st.binary(max_size=64), max_size=30))
@settings(max_examples=300)
def test_garbage_neither_raises_nor_grows_nor_hangs(chunks):
    async def main():
        mux, wire = joined()
        stream = mux.open()
        reading = asyncio.create_task(stream.read(1 << 30))
        for chunk in chunks:
            mux.data_received(chunk)
            await asyncio.sleep(0)
            assert len(mux._head) < HEAD.size
            assert len(stream._in) <= sum(map(len, chunks))
        if mux.lost is not None:
            assert wire.aborted
        mux.connection_lost(None)
        with pytest.raises(AgentError):
            await reading

    run(main())


@given(
    st.lists(
        st.tuples(
            st.sampled_from([m.DATA, m.WINDOW_UPDATE, m.PING, m.GO_AWAY, 9]),
            st.integers(0, 15),
            st.sampled_from([0, 1, 2, 3, 5, 4_294_967_295]),
            st.integers(0, 5000),
        ),
        max_size=40,
    )
)
@settings(max_examples=300)
def test_well_formed_nonsense_neither_raises_nor_leaves_a_waiter(frames):
    async def main():
        mux, _ = joined()
        streams = [mux.open(), mux.open()]
        waiting = [asyncio.create_task(s.read(1 << 30)) for s in streams]
        for kind, flags, number, length in frames:
            mux.data_received(frame(kind, flags, number, length, b"x" * length if kind == m.DATA else b""))
        mux.connection_lost(OSError("gone"))
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, bytes | AgentError)

    run(main())


async def test_a_stream_never_holds_more_than_its_window():
    mux, wire = joined()
    stream = mux.open()
    for _ in range(m.WINDOW // m.FRAME):
        mux.data_received(data(stream.number, bytes(m.FRAME)))
    assert mux.lost is None
    mux.data_received(data(stream.number, b"x"))
    assert isinstance(mux.lost, ProtocolViolationError)
    assert wire.aborted


async def test_reading_gives_credit_back():
    mux, wire = joined()
    stream = mux.open()
    wire.frames()
    for _ in range(4 * m.WINDOW // m.FRAME):
        mux.data_received(data(stream.number, bytes(m.FRAME)))
        await stream.read(m.FRAME)
    assert mux.lost is None
    assert sum(f[3] for f in wire.frames() if f[0] == m.WINDOW_UPDATE) == 4 * m.WINDOW


async def test_reset_wakes_reader_and_writer():
    mux, _ = joined()
    stream = mux.open()
    reader = asyncio.create_task(stream.read(1))
    writer = asyncio.create_task(stream.write(bytes(m.INITIAL_WINDOW + 1)))
    await asyncio.sleep(0)
    mux.data_received(frame(m.WINDOW_UPDATE, m.RST, stream.number, 0))
    for task in (reader, writer):
        with pytest.raises(ConnectionLostError):
            await task
    stream.close()
    assert mux.usable


async def test_writing_to_a_stream_that_the_peer_ended_fails_but_its_last_words_can_be_read():
    mux, _ = joined()
    stream = mux.open()
    writer = asyncio.create_task(stream.write(bytes(m.INITIAL_WINDOW + 1)))
    await asyncio.sleep(0)
    mux.data_received(data(stream.number, b"no space", flags=m.FIN))
    with pytest.raises(m.ClosedByPeerError):
        await writer
    assert await stream.read(100) == b"no space"


async def test_close_resets_once_and_late_frames_are_thrown_away():
    mux, wire = joined()
    stream = mux.open()
    wire.frames()
    mux.data_received(frame(m.DATA, 0, stream.number, 10, b"12345"))
    stream.close()
    stream.close()
    assert [f[:3] for f in wire.frames()] == [(m.WINDOW_UPDATE, m.RST, stream.number)]
    mux.data_received(b"67890" + data(stream.number, b"late") + frame(m.PING, m.SYN, 0, 3))
    assert wire.frames() == [(m.PING, m.ACK, 0, 3, b"")]
    assert mux.lost is None


async def test_opening_and_the_first_bytes_are_one_write():
    mux, wire = joined()
    mux.open(b"hello")
    assert wire.frames() == [
        (m.WINDOW_UPDATE, m.SYN, 1, m.WINDOW - m.INITIAL_WINDOW, b""),
        (m.DATA, 0, 1, 5, b"hello"),
    ]


async def test_streams_opened_by_the_peer_are_a_violation():
    mux, wire = joined()
    mux.data_received(frame(m.WINDOW_UPDATE, m.SYN, 2, 0))
    assert isinstance(mux.lost, ProtocolViolationError)
    assert wire.aborted


async def test_a_ping_flood_without_reading_is_a_violation():
    mux, _ = joined()
    mux.pause_writing()
    for i in range(m.MAX_UNANSWERED_PINGS + 1):
        mux.data_received(frame(m.PING, m.SYN, 0, i))
    assert isinstance(mux.lost, ProtocolViolationError)


async def test_writers_wait_for_the_transport():
    mux, wire = joined()
    stream = mux.open()
    wire.frames()
    mux.pause_writing()
    writer = asyncio.create_task(stream.write(b"x"))
    await asyncio.sleep(0)
    assert not wire.sent
    mux.resume_writing()
    await writer
    assert wire.frames() == [(m.DATA, 0, 1, 1, b"x")]


async def test_a_cancelled_waiter_does_not_disturb_the_others():
    mux, wire = joined()
    stream, other = mux.open(), mux.open()
    mux.pause_writing()
    cancelled = asyncio.create_task(stream.write(b"x"))
    kept = asyncio.create_task(other.write(b"y"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    mux.resume_writing()
    await kept
    assert wire.frames()[-1][4] == b"y"


async def test_silence_is_asked_about_and_then_believed():
    mux, wire = joined(ping_after=0.02, ping_timeout=0.02)
    stream = mux.open()
    wire.frames()
    reading = asyncio.create_task(stream.read(1))
    with pytest.raises(ConnectionLostError, match="not been heard"):
        await reading
    assert (m.PING, m.SYN, 0, 1, b"") in wire.frames()
    assert wire.aborted


async def test_an_answered_ping_keeps_the_connection():
    mux, wire = joined(ping_after=0.01, ping_timeout=0.5)
    answered = 0
    while answered < 3:
        await asyncio.sleep(0.005)
        for kind, flags, _, opaque, _ in wire.frames():
            if kind == m.PING and flags == m.SYN:
                answered += 1
                mux.data_received(frame(m.PING, m.ACK, 0, opaque))
    assert mux.lost is None
    mux.close()


async def test_the_number_of_streams_is_bounded():
    mux, _ = joined()
    streams = [mux.open() for _ in range(m.MAX_STREAMS)]
    with pytest.raises(OperationError) as caught:
        mux.open()
    assert caught.value.retryable
    streams[0].close()
    mux.open()


async def test_after_go_away_open_streams_go_on_and_new_ones_are_refused():
    mux, _ = joined()
    stream = mux.open()
    mux.data_received(frame(m.GO_AWAY, 0, 0, 0) + data(stream.number, b"ok"))
    assert await stream.read(2) == b"ok"
    with pytest.raises(ConnectionLostError):
        mux.open()
