"""The language inside a stream: one line of JSON, then messages of a kind, a length and a payload."""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from .errors import Code, ConnectionLostError, OperationError, ProtocolViolationError, from_wire
from .mux import FRAME, Stream

HEAD = struct.Struct("!BI")
#: Longest request line, and longest payload of a message.
MAX_LENGTH = 1 << 20
#: Payload of one message that we send: with both headers it fills one frame.
CHUNK = FRAME - HEAD.size


class Send(IntEnum):
    """Kinds of message from us to the agent."""

    INPUT = 0
    RESIZE = 1
    SIGNAL = 2
    ACK = 3
    END = 4
    CANCEL = 5
    SWITCH = 6


class Receive(IntEnum):
    """Kinds of message from the agent to us."""

    REPLY = 0
    STDOUT = 1
    STDERR = 2
    EXIT = 3
    END = 4
    SWITCHED = 5
    ERROR = 255


END = HEAD.pack(Send.END, 0)
CANCEL = HEAD.pack(Send.CANCEL, 0)
SWITCH = HEAD.pack(Send.SWITCH, 0)


def request_line(request: Mapping[str, Any]) -> bytes:
    """The first line of a stream. Names that are not UTF-8 travel as lone surrogates, in ASCII JSON.

    Raises:
        OperationError: The request is longer than the agent would take.
    """
    line = json.dumps({k: v for k, v in request.items() if v is not None}, separators=(",", ":")).encode()
    if len(line) > MAX_LENGTH:
        raise OperationError(
            Code.TOO_LARGE,
            f"the command or the paths are {len(line)} bytes long; the agent takes {MAX_LENGTH}",
        )
    return line + b"\n"


def message(kind: Send, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """One message, for payloads of at most ``CHUNK`` bytes."""
    return b"".join((HEAD.pack(kind, len(payload)), payload))


async def send(stream: Stream, kind: Send, payload: bytes | bytearray | memoryview) -> None:
    """Send a payload of any length, as several messages when it is longer than a chunk."""
    view = memoryview(payload)
    while view:
        piece, view = view[:CHUNK], view[CHUNK:]
        await stream.write(HEAD.pack(kind, len(piece)), piece)


async def receive(stream: Stream) -> tuple[int, bytes]:
    """The next message.

    Raises:
        OperationError: The message is the agent's ERROR.
        ConnectionLostError: The stream ended without a last message.
        ProtocolViolationError: The message is longer than a message may be.
    """
    head = await stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise ConnectionLostError(
            Code.CONNECTION_LOST, "the agent ended the stream before the operation had ended"
        )
    kind, length = HEAD.unpack(head)
    if length > MAX_LENGTH:
        raise ProtocolViolationError(f"a message of {length} bytes is longer than {MAX_LENGTH}")
    payload = await stream.read(length) if length else b""
    if len(payload) < length:
        raise ConnectionLostError(Code.CONNECTION_LOST, "the agent ended the stream within a message")
    if kind == Receive.ERROR:
        raise error_of(payload)
    return kind, payload


def error_of(payload: bytes) -> OperationError:
    """The exception for the payload of an ERROR."""
    return from_wire(parse_object(payload))


def parse(payload: bytes) -> Any:
    """JSON of the agent."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise ProtocolViolationError("the agent sent JSON that is none") from None


def parse_object(payload: bytes) -> dict[str, Any]:
    """JSON of the agent that must be an object."""
    value = parse(payload)
    if not isinstance(value, dict):
        raise ProtocolViolationError("the agent sent JSON of another shape than it should")
    return value


def number(value: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A whole number out of the agent's JSON."""
    found = value.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ProtocolViolationError(f"the agent sent a {key} that is not a number")
    return found


def text(value: Mapping[str, Any], key: str) -> str:
    """A string out of the agent's JSON; empty where there is none."""
    found = value.get(key, "")
    if not isinstance(found, str):
        raise ProtocolViolationError(f"the agent sent a {key} that is not text")
    return found
