"""A second way for the content of one large operation: a pods/exec of its own, without bridge and mux.

The operation stays on its stream. When enough of its content has gone over that, a lane is opened in the background;
once it stands, SWITCH on the stream says that the rest goes there. Where a lane cannot be had the stream goes on.
"""

import asyncio
import logging
import secrets
from collections import deque
from typing import cast

from .connector import Connector
from .errors import AgentError, Code, ConnectionLostError, ProtocolViolationError, StreamError
from .messages import HEAD, MAX_LENGTH, Receive, Send, error_of, request_line

logger = logging.getLogger(__name__)

#: Content that has gone over the stream before a lane is opened, where nobody knows how much there is.
AFTER = 16 << 20
#: Content that is known to be at least so long gets a lane from the beginning.
LARGE = 32 << 20
#: Payload of one message that we send over a lane.
PIECE = 256 << 10
#: Lanes of one client at once: container runtimes take many exec at once badly.
MAX_LANES = 4
OPEN_TIMEOUT = 20.0
#: After a lane could not be opened none is tried for so long.
PAUSE = 60.0
#: Received and not yet read: reading is paused, and resumed.
HIGH, LOW = 2 << 20, 512 << 10
#: Pieces smaller than this are joined: a hostile agent may send them of a byte each.
SMALL = 4096


class LaneLostError(ConnectionLostError):
    """The lane broke; the session's stream may still stand."""


class Lane(asyncio.Protocol):
    """One lane. One task reads or writes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._joined = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self._error: StreamError | None = None
        self._arrived: deque[tuple[int, bytes | bytearray]] = deque()
        self._size = 0
        self._reading = True
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._writable = True
        # parser
        self._head = bytearray()
        self._kind = -1
        self._left = 0
        self._whole = bytearray()
        self._last = False

    # -- for callers

    async def join(self, name: str) -> None:
        """Say for which operation this lane is, and wait until the agent has taken it.

        Raises:
            OperationError: The agent has no such operation (any more).
            LaneLostError: It ended before that.
        """
        if self._transport is not None:
            self._transport.write(request_line({"op": "lane", "id": name}))
        kind, _ = await self.receive()
        if kind != Receive.REPLY:
            raise ProtocolViolationError(f"the agent answered a lane with a message of kind {kind}")

    @property
    def arrived(self) -> bool:
        """Whether :meth:`receive` need not wait."""
        return bool(self._arrived)

    async def receive(self) -> tuple[int, bytes | bytearray]:
        """The next piece of content, which may be a part of a message, or another message.

        Raises:
            OperationError: The message is the agent's ERROR.
            LaneLostError: The lane ended before its last message.
        """
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        kind, piece = self._arrived.popleft()
        self._size -= len(piece)
        if not self._reading and self._size < LOW and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        if kind == Receive.ERROR:
            raise error_of(bytes(piece))
        return kind, piece

    async def send(self, content: memoryview) -> None:
        """Send content as INPUT, waiting for the connection.

        Raises:
            LaneLostError: The lane has ended.
        """
        for start in range(0, len(content), PIECE):
            piece = content[start : start + PIECE]
            await self._write(HEAD.pack(Send.INPUT, len(piece)), piece)

    async def send_end(self) -> None:
        """Say that the content is complete."""
        await self._write(HEAD.pack(Send.END, 0))

    async def _write(self, *parts: bytes | memoryview) -> None:
        while not self._writable and self._error is None:
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self._error is not None:
            raise self._error
        if self._transport is not None:
            self._transport.writelines(parts)

    def close(self) -> None:
        """Be done with it. Never blocks."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(LaneLostError(Code.CONNECTION_LOST, "the stream was closed by this client"))
        self._arrived.clear()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        why = exc.message if isinstance(exc, AgentError) else str(exc or "it ended")
        self._fail(
            LaneLostError(Code.CONNECTION_LOST, f"the stream that carries the content was lost: {why}")
        )

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._writable = False

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._writable = True
        _wake(self._writer)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self._error is not None:
            return
        try:
            if self._joined and self._kind == Receive.REPLY and len(data) <= self._left:
                self._left -= len(data)
                self._content(data)  # the common case, without a copy
                if not self._left:
                    self._kind = -1
            else:
                self._parse(memoryview(data))
        except ProtocolViolationError as error:
            self._fail(error)
            if self._transport is not None:
                self._transport.abort()
            return
        if self._size > HIGH and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
        _wake(self._reader)

    def _parse(self, view: memoryview) -> None:
        pos, end = 0, len(view)
        while pos < end:
            if self._kind < 0:
                missing = HEAD.size - len(self._head)
                self._head += view[pos : pos + missing]
                pos += missing
                if len(self._head) < HEAD.size:
                    return
                kind, length = HEAD.unpack(self._head)
                self._head.clear()
                if length > MAX_LENGTH:
                    raise ProtocolViolationError(f"a message of {length} bytes is longer than {MAX_LENGTH}")
                if self._last:
                    raise ProtocolViolationError("the agent sent something after its last message")
                self._kind, self._left = kind, length
            piece = view[pos : pos + self._left]
            pos += len(piece)
            self._left -= len(piece)
            if self._joined and self._kind == Receive.REPLY:
                if piece:
                    self._content(bytes(piece))
            else:
                self._whole += piece
                if not self._left:
                    self._last = self._joined
                    self._joined = True
                    self._arrived.append((self._kind, bytes(self._whole)))
                    self._size += len(self._whole)
                    self._whole.clear()
            if not self._left:
                self._kind = -1

    def _content(self, piece: bytes) -> None:
        self._size += len(piece)
        if len(piece) < SMALL and self._arrived:
            kind, before = self._arrived[-1]
            if kind == Receive.REPLY and len(before) < SMALL:
                joined = before if isinstance(before, bytearray) else bytearray(before)
                joined += piece
                self._arrived[-1] = kind, joined
                return
        self._arrived.append((Receive.REPLY, piece))

    def _fail(self, error: StreamError) -> None:
        if self._error is None:
            self._error = error
        if not self.ended.done():
            self.ended.set_result(None)
        _wake(self._reader)
        _wake(self._writer)


class Lanes:
    """The lanes of one client."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._lanes: list[Lane] = []
        self._not_before = 0.0

    def __len__(self) -> int:
        """Lanes that are open, or being opened."""
        self._lanes = [lane for lane in self._lanes if not lane.ended.done()]
        return len(self._lanes)

    def start(self, name: str) -> "asyncio.Task[Lane] | None":
        """Begin to open a lane for an operation; None where there is none to be had now."""
        if len(self) >= MAX_LANES or asyncio.get_running_loop().time() < self._not_before:
            return None
        lane = Lane()
        self._lanes.append(lane)
        opening = asyncio.create_task(self._open(lane, name))
        # One that is cancelled before its first step never comes to its own end.
        opening.add_done_callback(lambda done: lane.close() if done.cancelled() else None)
        return opening

    async def _open(self, lane: Lane, name: str) -> Lane:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                await self._connector.lane(lane)
                await lane.join(name)
        except BaseException as error:
            lane.close()
            if isinstance(error, Exception):
                self._not_before = asyncio.get_running_loop().time() + PAUSE
                logger.debug("no lane", exc_info=True)
            raise
        return lane


class Crossing:
    """The way of one operation from its stream to a lane. Must be closed.

    Attributes:
        name: Under which the operation waits for its lane.
    """

    def __init__(self, lanes: Lanes, size: int | None) -> None:
        self.name = secrets.token_hex(16)
        self._lanes = lanes
        self._wait = AFTER if size is None else 0
        self._tried = False
        self._opening: asyncio.Task[Lane] | None = None

    def lane(self, count: int) -> Lane | None:
        """The lane, once there is one.

        Args:
            count: Bytes that have gone over the stream since the last call.
        """
        self._wait -= count
        if self._wait <= 0 and not self._tried:
            self._tried = True
            self._opening = self._lanes.start(self.name)
        opening = self._opening
        if opening is None or not opening.done():
            return None
        if opening.cancelled() or opening.exception() is not None or opening.result().ended.done():
            return None
        return opening.result()

    async def aclose(self) -> None:
        """End the lane, also one that is being opened."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            opening.result().close()


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
