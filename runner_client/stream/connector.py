"""How a connection to an agent is made: the seam between the agent's operations and what carries them."""

import asyncio
from typing import Protocol


class Connector(Protocol):
    """Opens connections to one agent. In production that is a pods/exec; in tests a unix socket."""

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Join a protocol to a new connection.

        Raises:
            ConnectError: There is no way to the agent; the code says why.
        """
        ...

    async def lane(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Join a protocol to a lane (see ``lane``): the stdio of ``agent lane``.

        Raises:
            ConnectError: There is none.
        """
        ...
