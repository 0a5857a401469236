"""The stdio of one pods/exec as an asyncio transport, so that any asyncio protocol can speak over it.

The WebSocket is the one of ``kubernetes.aio``; it carries channels, the first byte of each message. Back
pressure goes both ways: what is written is bounded by pausing the protocol, and nothing is taken from the
WebSocket while the protocol has paused reading.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator

import aiohttp

from .errors import Code, ConnectError, ConnectionLostError, StreamError

logger = logging.getLogger(__name__)

STDIN, STDOUT, STDERR, ERROR = range(4)
#: Payload of one WebSocket message.
CHUNK = 64 << 10
#: Unsent bytes at which the protocol is paused, and resumed.
HIGH, LOW = 1 << 20, 256 << 10
#: What is kept of complaints, for the error's text.
MAX_COMPLAINT = 2048
CLOSE_TIMEOUT = 2.0
#: What kubelets and runtimes say of a container that has not started, or has ended.
_NOT_RUNNING = ("container not found", "not running", "is terminated", "failed to exec in container")


class ExecTransport(asyncio.Transport):
    """Joins a protocol to a WebSocket of pods/exec."""

    def __init__(
        self, websocket: "aiohttp.ClientWebSocketResponse[bool]", protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self._websocket = websocket
        connection = websocket._response.connection
        self._socket = connection.transport if connection is not None else None
        self._protocol: asyncio.BaseProtocol = protocol
        #: What goes out with other pieces, and, as tuples, messages as they are.
        self._pending: deque[bytes | tuple[bytes]] = deque()
        self._size = 0
        self._work = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self._paused = self._closing = self._lost_told = False
        self._complaint = bytearray()
        protocol.connection_made(self)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._send())]
        self._closer: asyncio.Task[None] | None = None

    # -- asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See :class:`asyncio.BaseTransport`."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See :class:`asyncio.BaseTransport`."""
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See :class:`asyncio.WriteTransport`."""
        if not self._closing and data:
            self._add(data if isinstance(data, bytes) else bytes(data), len(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send pieces as one message, with one copy."""
        if not self._closing:
            message = b"".join((b"\0", *list_of_data))
            self._add((message,), len(message) - 1)

    def _add(self, item: bytes | tuple[bytes], size: int) -> None:
        self._pending.append(item)
        self._size += size
        self._work.set()
        if self._size > HIGH and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        """See :class:`asyncio.ReadTransport`."""
        self._readable.clear()

    def resume_reading(self) -> None:
        """See :class:`asyncio.ReadTransport`."""
        self._readable.set()

    def is_reading(self) -> bool:
        """See :class:`asyncio.ReadTransport`."""
        return self._readable.is_set()

    def get_write_buffer_size(self) -> int:
        """See :class:`asyncio.WriteTransport`."""
        return self._size

    def can_write_eof(self) -> bool:
        """Pods/exec has no half-close that works everywhere."""
        return False

    def is_closing(self) -> bool:
        """See :class:`asyncio.BaseTransport`."""
        return self._closing

    def close(self) -> None:
        """Send what is pending, then close."""
        if not self._closing:
            self._closing = True
            self._work.set()  # the sender ends once it has nothing left

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._end(None)

    # -- the two directions

    async def _send(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._pending:
                    for message in self._next():
                        await self._websocket.send_bytes(message)
                        self._size -= len(message) - 1
                        if self._paused and self._size < LOW:
                            self._paused = False
                            self._protocol.resume_writing()
                if self._closing:
                    self._end(None)
                    return
        except (aiohttp.ClientError, OSError) as error:
            self._end(ConnectionLostError(Code.CONNECTION_LOST, f"the connection was lost ({_name(error)})"))

    def _next(self) -> Iterator[bytes]:
        """The next messages: small pieces go together, what is large in several."""
        first = self._pending.popleft()
        if isinstance(first, tuple):
            yield first[0]
            return
        run = [first]
        while self._pending and isinstance(following := self._pending[0], bytes):
            run.append(following)
            self._pending.popleft()
        view = memoryview(run[0] if len(run) == 1 else b"".join(run))
        for start in range(0, len(view), CHUNK):
            yield b"\0" + view[start : start + CHUNK]

    async def _receive(self) -> None:
        why: StreamError | None = None
        try:
            while True:
                if not self._readable.is_set():
                    await self._readable.wait()
                message = await self._websocket.receive()
                if message.type is not aiohttp.WSMsgType.BINARY:
                    if message.type is aiohttp.WSMsgType.TEXT or not isinstance(message.data, Exception):
                        break
                    raise message.data
                data = message.data
                if len(data) < 2:
                    continue  # the empty message of each channel at the start
                channel = data[0]
                if channel == STDOUT:
                    self._protocol.data_received(data[1:])  # type: ignore[attr-defined]
                elif channel == STDERR:
                    self._complain(data[1:])
                elif channel == ERROR:
                    why = self._said(data[1:])
                    break
        except (aiohttp.ClientError, OSError) as error:
            why = ConnectionLostError(Code.CONNECTION_LOST, f"the connection was lost ({_name(error)})")
        except Exception as error:
            why = ConnectionLostError(Code.CONNECTION_LOST, f"the connection broke ({_name(error)})")
        self._end(why or self._ended("the stream into the sandbox has ended"))

    def _complain(self, text: bytes) -> None:
        self._complaint += text[: MAX_COMPLAINT - len(self._complaint)]

    def _said(self, status: bytes) -> StreamError:
        """What the ERROR channel says; it closes the stream."""
        try:
            said = json.loads(status)
            message = str(said.get("message") or said.get("reason") or "")
        except (ValueError, AttributeError, RecursionError):
            message = status[:MAX_COMPLAINT].decode(errors="replace")
        return self._ended(" ".join(message.split()) or "the stream into the sandbox has ended")

    def _ended(self, message: str) -> StreamError:
        complaint = " ".join(self._complaint.decode(errors="replace").split())
        full = f"{message}: {complaint}" if complaint else message
        if any(sign in message for sign in _NOT_RUNNING):
            return ConnectError(Code.CONTAINER_NOT_RUNNING, full, retryable=True)
        return ConnectionLostError(Code.CONNECTION_LOST, full)

    def _end(self, error: StreamError | None) -> None:
        """Tell the protocol, once, and let go of the WebSocket."""
        if self._lost_told:
            return
        self._lost_told = self._closing = True
        self._pending.clear()
        self._size = 0
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._closer = asyncio.create_task(self._close_websocket())
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    async def _close_websocket(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._websocket.close()
        except Exception:
            logger.debug("closing a stream", exc_info=True)
        finally:
            # TLS would wait for the server's goodbye, beyond the life of an event loop that ends now.
            if self._socket is not None:
                self._socket.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed; bounded. Whoever wants it closed has said so before."""
        if self._closing and not self._lost_told:
            await _ended_within(CLOSE_TIMEOUT, *self._tasks)
            self._end(None)  # what is pending does not go out: the path is stuck
        if self._closer is not None:
            await _ended_within(CLOSE_TIMEOUT + 1, self._closer, *self._tasks)


async def _ended_within(seconds: float, *tasks: "asyncio.Task[None]") -> None:
    # Tasks of an event loop that has ended are done, and must not be waited for in this one.
    if pending := [task for task in tasks if not task.done()]:
        await asyncio.wait(pending, timeout=seconds)


def _name(error: BaseException) -> str:
    return type(error).__name__
