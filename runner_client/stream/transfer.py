"""Content of an operation, up and down: over its stream, and over a lane once that is worth it."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from .content import Content, pieces
from .errors import Code, ConnectionLostError, ProtocolViolationError
from .lane import LARGE, Crossing, Lane, LaneLostError, Lanes
from .messages import END, SWITCH, Receive, Send, number, parse, parse_object, receive, send
from .mux import ClosedByPeerError, Stream

#: Taken from the content at a time.
STEP = 1 << 20
#: What the agent has, after a lane broke, to say why on the stream.
WHY = 5.0
#: Seconds in which an agent that is there must take or send something. What it sends adds to them at this rate (bytes a
#: second), so that one that sends a little now and then is not waited for without end.
STALL, SLOWEST = 60.0, 16 << 10
#: Seconds for the answer to what may take long: removing a tree, placing what has been uploaded.
ANSWER = 600.0


def upload_size(content: Content) -> int | None:
    """Bytes to upload, where that is known without reading."""
    if isinstance(content, memoryview):
        return content.nbytes
    if isinstance(content, bytes | bytearray):
        return len(content)
    if isinstance(content, io.BytesIO):
        return len(content.getbuffer()) - content.tell()
    return None


def crossing_for(lanes: Lanes | None, size: int | None) -> Crossing | None:
    """How an operation may get a lane; None where it is too small, or the agent knows of no lanes.

    Args:
        lanes: The client's.
        size: Bytes of content, None where nobody knows.
    """
    if lanes is None or (size is not None and size < LARGE):
        return None
    return Crossing(lanes, size)


async def upload(stream: Stream, content: Content, crossing: Crossing | None) -> Any:
    """Send content and its end; returns the agent's answer.

    Raises:
        OperationError: The agent refused.
        ConnectionLostError: The stream or the lane broke: it may or may not have been done.
    """
    source = pieces(content)
    lane: Lane | None = None
    try:
        async for piece in source:
            view = memoryview(piece).cast("B")
            for start in range(0, len(view), STEP):
                part = view[start : start + STEP]
                async with bounded(STALL):
                    await (send(stream, Send.INPUT, part) if lane is None else lane.send(part))
                if lane is not None:
                    continue
                if crossing is not None and (lane := crossing.lane(len(part))) is not None:
                    async with bounded(STALL):
                        await stream.write(SWITCH)
        async with bounded(STALL):
            await (stream.write(END) if lane is None else lane.send_end())
    except (ClosedByPeerError, LaneLostError):
        pass  # it refused: the answer says why
    finally:
        await source.aclose()  # type: ignore[attr-defined]
    async with bounded(ANSWER):
        return await (reply(stream) if lane is None else _reply_beside(stream, lane))


async def _reply_beside(stream: Stream, lane: Lane) -> Any:
    """The answer to content that went over a lane, which may break before the answer comes."""
    waiting = asyncio.ensure_future(reply(stream))
    try:
        await asyncio.wait([waiting, lane.ended], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await asyncio.wait([waiting], timeout=WHY)
        if waiting.done() and not isinstance(waiting.exception(), ConnectionLostError):
            return waiting.result()
        if lane.ended.done():
            await lane.receive()  # raises why
        return await waiting
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()


async def reply(stream: Stream) -> Any:
    """The one REPLY of an operation."""
    kind, payload = await receive(stream)
    if kind != Receive.REPLY:
        raise unexpected(kind)
    return parse(payload)


async def download(
    stream: Stream, limit: int | None, crossing: Crossing | None = None
) -> AsyncIterator[bytes]:
    """Content in pieces, at most ``limit`` bytes; ends only when it is complete.

    Raises:
        OperationError: The agent refused, or could not go on.
        ConnectionLostError: The stream or the lane broke.
        ProtocolViolationError: The agent sent more than was asked for, or less than it says.
    """
    size, waited = 0, 0.0
    lane: Lane | None = None
    switched = False
    clock = asyncio.get_running_loop().time
    while True:
        if lane is not None and switched and lane.arrived:
            kind, payload = await lane.receive()
        else:
            began = clock()
            async with bounded(STALL + size / SLOWEST - waited):
                kind, payload = await (lane.receive() if lane is not None and switched else receive(stream))
            waited += clock() - began
        if kind == Receive.REPLY:
            if not payload:
                continue
            size += len(payload)
            if limit is not None and size > limit:
                raise ProtocolViolationError("the agent sent more than was asked for")
            if crossing is not None and lane is None and (lane := crossing.lane(len(payload))) is not None:
                # One that ended the stream has sent all there is: the rest has arrived, and is read from it.
                with suppress(ClosedByPeerError):
                    async with bounded(STALL):
                        await stream.write(SWITCH)
            yield bytes(payload)
        elif kind == Receive.SWITCHED and lane is not None and not switched:
            switched = True
        elif kind == Receive.END:
            if payload and number(parse_object(bytes(payload)), "bytes", size) != size:
                raise ProtocolViolationError("the agent sent another number of bytes than it says")
            return
        else:
            raise unexpected(kind)


@asynccontextmanager
async def bounded(seconds: float) -> AsyncIterator[None]:
    """Bound a wait for an agent that answers pings, and may do nothing else.

    Raises:
        ConnectionLostError: It took longer.
    """
    try:
        async with asyncio.timeout(max(0.0, seconds)) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise ConnectionLostError(
            Code.CONNECTION_LOST, f"the agent is there, but did nothing for {seconds:.0f} s"
        ) from None


def unexpected(kind: int) -> ProtocolViolationError:
    """The error for a message where it has no place."""
    return ProtocolViolationError(f"the agent sent a message of kind {kind} where it has no place")
