"""Many streams over one connection: the client's side of yamux (hashicorp/yamux, spec.md) on asyncio.

Bounds, since the other side is not trusted: a stream holds at most its window, a frame may not exceed it, the
other side opens no streams, and what it makes us answer (pings) is counted. Payload is handed on as it
arrives, so the parser itself never holds more than a header.
"""

import asyncio
import struct
from collections import deque
from typing import cast

from .errors import Code, ConnectionLostError, OperationError, ProtocolViolationError, StreamError

DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
#: version, type, flags, stream, length
HEAD = struct.Struct("!BBHII")

INITIAL_WINDOW = 256 << 10
WINDOW = 4 << 20
#: Payload of one DATA frame that we send: large enough to be cheap, small enough to let others through.
FRAME = 64 << 10
#: A hostile agent must not make us allocate by granting credit that nobody could use.
MAX_CREDIT = 64 << 20
MAX_STREAMS = 256
MAX_UNANSWERED_PINGS = 16
_LAST_ID = 0xFFFF_FFFF


class ClosedByPeerError(StreamError):
    """The agent ended the stream: it reads no more. What it said before can still be read."""

    def __init__(self) -> None:
        super().__init__(Code.CONNECTION_LOST, "the agent ended the stream")


class Stream:
    """Bytes both ways, each way with its own end. One task reads and one task writes at a time."""

    def __init__(self, mux: "Mux", number: int) -> None:
        self.number = number
        self._mux = mux
        self._in = bytearray()
        self._window = WINDOW  # what the peer may still send
        self._owed = 0  # what was read and not yet given back to the peer's credit
        self._credit = INITIAL_WINDOW  # what we may still send
        self._eof = self._fin_sent = self._closed = False
        self._error: StreamError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive (what has arrived may still be there to read)."""
        return self._eof or self._error is not None

    # -- reading

    async def read(self, n: int) -> bytes:
        """Exactly ``n`` bytes, or what was left of them when the stream ended."""
        buffer = self._in
        while len(buffer) < n:
            if self._error is not None:
                raise self._error
            if self._eof:
                n = len(buffer)
                break
            await self._arrival()
        return self._take(n)

    async def read_some(self, limit: int = FRAME) -> bytes:
        """What has arrived, at least one byte and at most ``limit``; ``b""`` at the end of the stream."""
        while not self._in:
            if self._error is not None:
                raise self._error
            if self._eof:
                return b""
            await self._arrival()
        return self._take(min(limit, len(self._in)))

    def _take(self, n: int) -> bytes:
        with memoryview(self._in) as view:
            data = bytes(view[:n])
        del self._in[:n]
        self._owed += n
        if self._owed >= WINDOW // 4 and not self.ended:
            self._mux.send(WINDOW_UPDATE, 0, self.number, self._owed)
            self._window += self._owed
            self._owed = 0
        return data

    async def _arrival(self) -> None:
        self._reader = self._mux.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    # -- writing

    async def write(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send all parts, waiting for the peer's credit and for the connection.

        Raises:
            ClosedByPeerError: The peer has ended the stream.
        """
        size = sum(map(len, parts))
        if size <= min(FRAME, self._credit) and self._mux.writable:
            self._check_writable()
            self._credit -= size
            self._mux.send(DATA, 0, self.number, size, *parts)
            return
        for part in parts:
            view = memoryview(part)
            while view:
                while True:
                    self._check_writable()
                    if not self._credit:
                        await self._room()
                    elif not self._mux.writable:
                        await self._mux.drained()
                    else:
                        break
                piece = view[: min(FRAME, self._credit)]
                self._credit -= len(piece)
                self._mux.send(DATA, 0, self.number, len(piece), piece)
                view = view[len(piece) :]

    def _check_writable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._eof or self._closed or self._fin_sent:
            raise ClosedByPeerError

    async def _room(self) -> None:
        self._writer = self._mux.loop.create_future()
        try:
            await self._writer
        finally:
            self._writer = None

    def write_eof(self) -> None:
        """Say that we send nothing more. To the agent this means: stop."""
        if not self._fin_sent and not self._closed and self._error is None:
            self._fin_sent = True
            self._mux.send(WINDOW_UPDATE, FIN, self.number, 0)

    def close(self) -> None:
        """Be done with the stream: an orderly end if the peer has ended it, else a reset. Never blocks."""
        if self._closed:
            return
        if self._error is None and not (self._eof and self._fin_sent):
            self._mux.send(WINDOW_UPDATE, FIN if self._eof else RST, self.number, 0)
        self._closed = True
        self._in = bytearray()
        self._mux.forget(self)
        self._wake()

    # -- called by the mux

    def admit(self, length: int) -> None:
        """Check a frame against the window, before its payload is taken."""
        if length > self._window:
            raise ProtocolViolationError(f"a stream sent {length} bytes, more than its window")
        self._window -= length

    def feed(self, piece: memoryview) -> None:
        """Take payload."""
        self._in += piece
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def grant(self, length: int) -> None:
        """Take credit."""
        self._credit = min(self._credit + length, MAX_CREDIT)
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def end(self) -> None:
        """The peer sends nothing more."""
        self._eof = True
        self._wake()

    def fail(self, error: StreamError) -> None:
        """Nothing more will happen on this stream."""
        if self._error is None and not self._closed:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


class Mux(asyncio.Protocol):
    """One connection to an agent, as an asyncio protocol over any transport.

    Args:
        ping_after: Seconds of silence after which the peer is asked whether it is there.
        ping_timeout: Seconds it has for the answer; then the path counts as dead.
    """

    def __init__(self, *, ping_after: float = 15.0, ping_timeout: float = 10.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.lost: StreamError | None = None
        self.writable = True
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._going_away = False
        self._transport: asyncio.Transport | None = None
        self._drain_waiters: deque[asyncio.Future[None]] = deque()
        # parser
        self._head = bytearray()
        self._left = 0
        self._target: Stream | None = None
        self._target_flags = 0
        # liveness
        self._ping_after, self._ping_timeout = ping_after, ping_timeout
        self._heard = self.loop.time()
        self._asked: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._unanswered: list[int] = []

    @property
    def usable(self) -> bool:
        """Whether new streams can be opened."""
        return (
            self._transport is not None
            and self.lost is None
            and not self._going_away
            and self._next < _LAST_ID
        )

    # -- for callers

    def open(self, first: bytes | memoryview = b"") -> Stream:
        """Open a stream and send its first bytes (at most ``FRAME``) along with the opening.

        Raises:
            OperationError: There are too many streams already.
            ConnectionLostError: The connection is no longer usable.
        """
        if not self.usable:
            raise self.lost or ConnectionLostError(
                Code.CONNECTION_LOST, "the agent takes no more streams", retryable=True
            )
        if len(self._streams) >= MAX_STREAMS:
            raise OperationError(
                Code.TOO_MANY,
                f"{MAX_STREAMS} operations are already under way in this session",
                retryable=True,
            )
        stream = self._streams[self._next] = Stream(self, self._next)
        self._next += 2
        opening = HEAD.pack(0, WINDOW_UPDATE, SYN, stream.number, WINDOW - INITIAL_WINDOW)
        if first:
            stream._credit -= len(first)
            opening = b"".join((opening, HEAD.pack(0, DATA, 0, stream.number, len(first)), first))
        self._write(opening)
        return stream

    async def drained(self) -> None:
        """Wait until the transport takes more, or the connection is lost."""
        if self.writable:
            return
        waiter = self.loop.create_future()
        self._drain_waiters.append(waiter)
        await waiter

    def close(self) -> None:
        """Say goodbye and end the connection; streams that are open fail."""
        if self._transport is not None and self.lost is None:
            self.send(GO_AWAY, 0, 0, 0)
            self._transport.close()
        self._fail(ConnectionLostError(Code.CONNECTION_LOST, "the connection was closed by this client"))

    # -- for streams

    def send(
        self, kind: int, flags: int, number: int, length: int, *parts: bytes | bytearray | memoryview
    ) -> None:
        """Send one frame; the caller keeps to credit and to ``writable``."""
        head = HEAD.pack(0, kind, flags, number, length)
        self._write(b"".join((head, *parts)) if parts else head)

    def forget(self, stream: Stream) -> None:
        """The stream is closed: what still arrives for it is thrown away."""
        self._streams.pop(stream.number, None)
        if self._target is stream:
            self._target = None

    def _write(self, data: bytes) -> None:
        if self._transport is not None and self.lost is None:
            self._transport.write(data)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._heard = self.loop.time()
        self._schedule(self._ping_after)

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        if isinstance(exc, StreamError):
            self._fail(exc)
        else:
            why = f": {exc}" if exc is not None else ""
            self._fail(
                ConnectionLostError(Code.CONNECTION_LOST, f"the connection to the agent was lost{why}")
            )

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self.writable = False

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self.writable = True
        while self._unanswered:
            self.send(PING, ACK, 0, self._unanswered.pop())
        while self._drain_waiters:
            waiter = self._drain_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self.lost is not None:
            return
        self._heard = self.loop.time()
        try:
            with memoryview(data) as view:
                self._parse(view)
        except ProtocolViolationError as error:
            self._abort(error)

    def _parse(self, view: memoryview) -> None:
        pos, end = 0, len(view)
        while pos < end:
            if self._left:
                n = min(self._left, end - pos)
                if self._target is not None:
                    self._target.feed(view[pos : pos + n])
                pos += n
                self._left -= n
                if not self._left:
                    self._finish(self._target, self._target_flags)
                continue
            missing = HEAD.size - len(self._head)
            if not self._head and end - pos >= HEAD.size:
                fields = HEAD.unpack_from(view, pos)
                pos += HEAD.size
            else:
                self._head += view[pos : pos + missing]
                pos += missing
                if len(self._head) < HEAD.size:
                    return
                fields = HEAD.unpack(self._head)
                self._head.clear()
            self._frame(*fields)

    def _frame(self, version: int, kind: int, flags: int, number: int, length: int) -> None:
        if version != 0:
            raise ProtocolViolationError(f"version {version} of yamux is not known")
        if kind in (DATA, WINDOW_UPDATE):
            if number == 0 or number % 2 == 0 or number >= self._next:
                raise ProtocolViolationError(f"the agent used stream {number}, which was never opened")
            stream = self._streams.get(number)
            if kind == DATA and length:
                if stream is not None:
                    stream.admit(length)
                elif length > WINDOW:
                    raise ProtocolViolationError(f"a frame of {length} bytes is too long")
                self._left, self._target, self._target_flags = length, stream, flags
                return
            if kind == WINDOW_UPDATE and stream is not None:
                stream.grant(length)
            self._finish(stream, flags)
        elif kind == PING:
            if flags & SYN:
                self._answer(length)
        elif kind == GO_AWAY:
            self._going_away = True
        else:
            raise ProtocolViolationError(f"frames of type {kind} are not known")

    def _finish(self, stream: Stream | None, flags: int) -> None:
        if stream is None:
            return
        if flags & RST:
            stream.fail(ConnectionLostError(Code.CONNECTION_LOST, "the agent reset the stream"))
            self._streams.pop(stream.number, None)
        elif flags & FIN:
            stream.end()

    def _answer(self, opaque: int) -> None:
        if self.writable:
            self.send(PING, ACK, 0, opaque)
        elif len(self._unanswered) < MAX_UNANSWERED_PINGS:
            self._unanswered.append(opaque)
        else:
            raise ProtocolViolationError("the agent sends pings without taking the answers")

    # -- liveness

    def _look(self) -> None:
        if self.lost is not None:
            return
        now = self.loop.time()
        if now - self._due > 1.0:
            # The loop was busy, so what has arrived may not have been seen yet.
            self._schedule(min(1.0, self._ping_timeout))
            return
        silence = now - self._heard
        if self._asked is not None and self._heard <= self._asked:
            self._abort(
                ConnectionLostError(Code.CONNECTION_LOST, f"the agent has not been heard for {silence:.0f} s")
            )
            return
        self._asked = None
        wait = self._ping_after - silence
        if wait <= 0:
            self._asked = now
            self.send(PING, SYN, 0, 1)
            wait = self._ping_timeout
        self._schedule(wait)

    def _schedule(self, wait: float) -> None:
        self._due = self.loop.time() + wait
        self._timer = self.loop.call_at(self._due, self._look)

    def _abort(self, error: StreamError) -> None:
        self._fail(error)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: StreamError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._timer is not None:
            self._timer.cancel()
        self._head.clear()
        self._left, self._target = 0, None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        self.resume_writing()
