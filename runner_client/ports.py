"""Ports of a sandbox on this machine's loopback, each carried through the session's own stream."""

import asyncio
import contextlib

from .stream.agent import AgentClient
from .stream.errors import AgentError
from .stream.mux import Stream


class PortForwards:
    """Listeners on 127.0.0.1, one for each port that was asked for; all of them end with the session."""

    def __init__(self) -> None:
        self._servers: dict[int, asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self, agent: AgentClient, port: int) -> int:
        """The local port that leads to a port of the sandbox; the same one every time.

        Whether something listens there already is seen by each connection, which is closed if nothing does.
        """
        self._enter()
        server = self._servers.get(port)
        if server is None:

            async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                if task is not None:
                    self._connections.add(task)
                    task.add_done_callback(self._connections.discard)
                await _carry(agent, port, reader, writer)

            server = self._servers[port] = await asyncio.start_server(join, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End all listeners and what goes through them."""
        self._enter()
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=5)

    def _enter(self) -> None:
        """What another event loop listened on has ended with it."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._servers, self._connections = {}, set()


async def _carry(
    agent: AgentClient, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        stream = await agent.forward(port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_out(stream, reader))
                group.create_task(_back(stream, writer))
        finally:
            stream.close()
    except* (AgentError, OSError):
        pass  # as a connection that broke
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _out(stream: Stream, reader: asyncio.StreamReader) -> None:
    while piece := await reader.read(64 << 10):
        await stream.write(piece)
    stream.write_eof()


async def _back(stream: Stream, writer: asyncio.StreamWriter) -> None:
    while piece := await stream.read_some():
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
