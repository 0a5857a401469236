"""Bytes to upload, whatever they come from, in pieces, with little of them in memory at a time."""

import asyncio
import io
from collections.abc import AsyncIterator
from typing import IO, Union

PIECE = 1 << 20

#: What can be uploaded. Streams are read from where they stand; they may block, so they are read in a thread.
Content = Union[bytes, bytearray, memoryview, IO[bytes], io.IOBase, AsyncIterator[bytes]]  # noqa: UP007 - an alias at run time


async def pieces(content: Content) -> AsyncIterator[bytes | bytearray | memoryview]:
    """The content in pieces of any size; the next piece is fetched while one is being sent."""
    if isinstance(content, bytes | bytearray | memoryview):
        yield content
    elif isinstance(content, io.BytesIO):
        yield content.read()
    elif isinstance(content, AsyncIterator):
        async for piece in content:
            yield piece
    else:
        async for piece in _read_ahead(content):
            yield piece


async def _read_ahead(stream: IO[bytes] | io.IOBase) -> AsyncIterator[bytes]:
    def read() -> bytes:
        data = stream.read(PIECE)
        if isinstance(data, str):
            raise TypeError("expected a binary stream, got one of text")
        return data or b""

    following = asyncio.ensure_future(asyncio.to_thread(read))
    try:
        while piece := await following:
            following = asyncio.ensure_future(asyncio.to_thread(read))
            yield piece
    finally:
        if not following.done():
            # The thread cannot be stopped; the stream must not be closed under it.
            await asyncio.wait([following])
        elif not following.cancelled():
            following.exception()
