"""What the agent in a sandbox can do, as coroutines.

One connection carries all operations at once. It is opened when first needed and again after a break. What
cannot have changed anything (read, list, stat, hello) is then asked once more; of everything else the caller
learns that it may or may not have happened. Cancelling the task of an operation cancels the operation: the
stream is reset, and the agent kills the process group or drops the unfinished upload.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, cast

from . import transfer
from .connector import Connector
from .content import Content, pieces
from .errors import (
    AgentError,
    Code,
    ConnectError,
    ConnectionLostError,
    OperationError,
    ProtocolViolationError,
    StreamError,
)
from .lane import Crossing, LaneLostError, Lanes
from .messages import (
    CANCEL,
    CHUNK,
    END,
    Receive,
    Send,
    message,
    number,
    parse,
    parse_object,
    receive,
    request_line,
    send,
    text,
)
from .mux import ClosedByPeerError, Mux, Stream
from .transfer import bounded, crossing_for, download, reply, unexpected, upload, upload_size

PROTOCOL = 1
#: Output of one command that is kept in memory for the caller.
MAX_OUTPUT = 512 << 20
#: A listing: so many entries at most, each with a name of at most 255 bytes and perhaps a target.
MAX_ENTRIES = 100_000
MAX_LISTING = 256 << 20
#: Commas and brackets in a listing: every value that parsing makes costs one, and a hundred bytes of memory.
MAX_LISTING_VALUES = 4_000_000
#: What the agent gets beyond a command's own timeout before we no longer wait for its word.
TIMEOUT_GRACE = 15.0
CONNECT_TIMEOUT = 30.0
#: Commands and other operations under way at once; more wait. What is left of the streams that a connection
#: takes is for those that last as long as the caller likes: processes, forwards, contents read as streams.
MAX_COMMANDS = 128
MAX_OPERATIONS = 64
#: A longer timeout is none.
MAX_TIMEOUT = 30 * 86_400.0

FileKind = Literal["file", "directory", "link", "other"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What an agent says of itself."""

    version: str
    boot_id: str
    uid: int
    gid: int
    root: str
    lanes: bool = False


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    Attributes:
        code: Exit status, or 128 + signal.
        signal: Signal that ended it, else 0.
        oom: The kernel killed it for want of memory.
        timed_out: It was killed because its time was over.
    """

    stdout: bytes
    stderr: bytes
    code: int
    signal: int = 0
    oom: bool = False
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class FileInfo:
    """An entry of a directory."""

    name: str
    kind: FileKind
    size: int
    mode: int
    mtime_ns: int
    uid: int
    gid: int
    link: str = ""
    path: str = ""


@dataclass(slots=True)
class Process:
    """A command that runs. Its output must be read, or it will block once the buffers are full.

    Attributes:
        result: How it ended, without the output; set when the output has been read to its end.
    """

    _stream: Stream
    result: ExecResult | None = field(default=None)

    async def output(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Pieces of output as they arrive, in order within each of the two."""
        while True:
            kind, payload = await receive(self._stream)
            if kind == Receive.STDOUT:
                yield "stdout", payload
            elif kind == Receive.STDERR:
                yield "stderr", payload
            elif kind == Receive.EXIT:
                self.result = _exit(payload)
                return
            else:
                raise unexpected(kind)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send to its stdin. A process that no longer reads is no error here: its exit status tells."""
        try:
            await send(self._stream, Send.INPUT, data)
        except ClosedByPeerError:
            return

    async def write_eof(self) -> None:
        """End its stdin."""
        try:
            await self._stream.write(END)
        except ClosedByPeerError:
            return

    async def signal(self, signal: int) -> None:
        """Send a signal to its process group."""
        await self._stream.write(message(Send.SIGNAL, bytes((signal,))))

    async def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal of a new size."""
        await self._stream.write(message(Send.RESIZE, rows.to_bytes(2, "big") + columns.to_bytes(2, "big")))

    async def cancel(self) -> None:
        """Kill its process group; the output ends with its exit."""
        await self._stream.write(CANCEL)


class AgentClient:
    """The agent of one sandbox. In another event loop than before it connects anew.

    Args:
        connector: How it is reached.
        max_output: Bytes of output that :meth:`exec` keeps; a command that prints more is killed: an error.
    """

    def __init__(self, connector: Connector, *, max_output: int = MAX_OUTPUT) -> None:
        self._connector = connector
        self._max_output = max_output
        self._mux: Mux | None = None
        self._lock = asyncio.Lock()
        self._commands = asyncio.Semaphore(MAX_COMMANDS)
        self._operations = asyncio.Semaphore(MAX_OPERATIONS)
        self._lanes = Lanes(connector)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.info: AgentInfo | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as anybody knows."""
        self._enter()
        return self._mux is not None and self._mux.usable

    def _enter(self) -> None:
        """Leave behind what belongs to another event loop: it has ended, so nothing of it can be closed."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._mux = loop, None
            self._lock = asyncio.Lock()
            self._commands = asyncio.Semaphore(MAX_COMMANDS)
            self._operations = asyncio.Semaphore(MAX_OPERATIONS)
            self._lanes = Lanes(self._connector)

    async def connect(self) -> AgentInfo:
        """Open the connection, unless it stands already.

        Raises:
            ConnectError: There is no way to the agent.
        """
        self._enter()
        mux = self._mux
        if mux is not None and mux.usable and self.info is not None:
            return self.info
        async with self._lock:
            if self._closed:
                raise ConnectError(Code.CONNECT_FAILED, "this client has been closed")
            if self._mux is not None and self._mux.usable and self.info is not None:
                return self.info
            old, self._mux = self._mux, None
            if old is not None and old.lost is None:
                old.close()
            mux = Mux()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._connector.connect(mux)
                    self.info = await _hello(mux)
            except TimeoutError:
                mux.close()
                raise ConnectError(
                    Code.CONNECT_FAILED,
                    f"the agent did not answer within {CONNECT_TIMEOUT:.0f} s",
                    retryable=True,
                ) from None
            except ConnectionLostError as error:
                mux.close()
                raise ConnectError(Code.CONNECT_FAILED, error.message, retryable=True) from error
            except BaseException:
                mux.close()
                raise
            self._mux = mux
            return self.info

    async def aclose(self) -> None:
        """End the connection and what runs over it. May be called again."""
        self._enter()
        self._closed = True
        if self._mux is not None:
            self._mux.close()
            self._mux = None

    # -- commands

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: Content | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the agent's to enforce
    ) -> ExecResult:
        """Run a command to its end. A status other than 0 is a result, not an error.

        Args:
            argv: The command; a name without a slash is looked up in PATH.
            env: Added to the sandbox's own environment.
            cwd: Working directory; by default the workspace.
            user: Only the pod's own user where the sandbox cannot act as others.
            stdin: Sent to it; without, its stdin is ``/dev/null``.
            timeout: Seconds after which its process group is killed; the result then says ``timed_out``.

        Raises:
            OperationError: It could not be started, or printed more than ``max_output``.
            StreamError: The path to the agent failed; it may or may not have run.
        """
        request = _exec_request(argv, env, cwd, user, timeout, stdin=stdin is not None)
        limit = request["timeout_ms"]
        guard = None if limit is None else limit / 1000 + TIMEOUT_GRACE
        self._enter()
        try:
            async with self._commands, asyncio.timeout(guard), self._stream(request) as stream:
                return await self._run(stream, stdin)
        except TimeoutError:
            raise ConnectionLostError(
                Code.CONNECTION_LOST,
                f"the agent did not report the end of a command {guard:.0f} s after its start",
            ) from None

    async def _run(self, stream: Stream, stdin: Content | None) -> ExecResult:
        feeder = None
        if stdin is not None:
            feeder = asyncio.create_task(_feed(stream, stdin))
        try:
            # Not lists of pieces: an agent may send them empty, or of a byte each.
            stdout, stderr = bytearray(), bytearray()
            while True:
                kind, payload = await receive(stream)
                if kind == Receive.STDOUT:
                    stdout += payload
                elif kind == Receive.STDERR:
                    stderr += payload
                elif kind == Receive.EXIT:
                    return _exit(payload, bytes(stdout), bytes(stderr))
                else:
                    raise unexpected(kind)
                if len(stdout) + len(stderr) > self._max_output:
                    raise OperationError(
                        Code.TOO_LARGE,
                        f"the command printed more than {self._max_output} bytes and was killed: use a file",
                    )
        finally:
            if feeder is not None:
                await _reap(feeder)

    @asynccontextmanager
    async def process(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int | None = None,
        columns: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the agent's to enforce
    ) -> AsyncIterator[Process]:
        """Run a command with its output as a stream, in bounded memory. Leaving the context kills it."""
        request = _exec_request(argv, env, cwd, user, timeout, stdin=stdin)
        if tty:
            request |= {"tty": True, "rows": rows or 24, "cols": columns or 80}
        async with self._stream(request) as stream:
            yield Process(stream)

    # -- files

    async def hello(self) -> AgentInfo:
        """Ask the agent who it is; also a sign of life."""
        return await self.again(lambda: self._with_mux(_hello))

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, user: str | None = None
    ) -> bytes:
        """Content of a file, at most ``limit`` bytes of it."""

        async def whole() -> bytes:
            return await _joined(self.read_stream(path, offset=offset, limit=limit, user=user))

        return await self.again(whole)

    async def read_stream(
        self, path: str, *, offset: int = 0, limit: int | None = None, user: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Content of a file in pieces. Ends only when it is complete; a break in the middle raises."""
        request = {"op": "read", "path": path, "offset": offset or None, "limit": limit, "user": user}
        async with self._crossing(request, limit) as (stream, crossing):
            async for piece in download(stream, limit, crossing):
                yield piece

    async def write(
        self,
        path: str,
        content: Content,
        *,
        mode: int | None = None,
        parents: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> int:
        """Put a file in place, whole or not at all; returns its size.

        Args:
            path: Where.
            content: What.
            mode: Permissions; by default those of the file that is there, else 0644.
            parents: Make missing directories.
            exclusive: Fail with :class:`ExistsError` if the name is taken.
            user: On whose behalf.
        """
        request = {
            "op": "write",
            "path": path,
            "mode": mode,
            "parents": parents or None,
            "exclusive": exclusive or None,
            "user": user,
        }
        return number(await self._upload(request, content), "bytes")

    async def list(self, path: str, *, user: str | None = None) -> list[FileInfo]:
        """Entries of a directory, sorted by name."""

        async def whole() -> Any:
            async with self._stream({"op": "list", "path": path, "user": user}) as stream:
                listing = await _joined(download(stream, MAX_LISTING))
            if sum(map(listing.count, (b",", b"[", b"{"))) > MAX_LISTING_VALUES:
                raise ProtocolViolationError("the agent sent a listing with more than can be in it")
            return parse(listing)

        answer = await self.again(whole)
        if not isinstance(answer, list) or len(answer) > MAX_ENTRIES:
            raise ProtocolViolationError("the agent sent a listing that is none")
        entries = [_file_info(entry) for entry in answer]
        if any("/" in entry.name or entry.name in ("", ".", "..") for entry in entries):
            raise ProtocolViolationError("the agent sent a name that no entry of a directory can have")
        return entries

    async def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What is at a path."""
        request = {"op": "stat", "path": path, "follow": follow or None, "user": user}
        return _file_info(await self.again(lambda: self._answer(request)))

    async def mkdir(
        self, path: str, *, parents: bool = False, mode: int | None = None, user: str | None = None
    ) -> None:
        """Make a directory; with ``parents`` it may exist."""
        await self._ask({"op": "mkdir", "path": path, "parents": parents or None, "mode": mode, "user": user})

    async def remove(
        self, path: str, *, recursive: bool = False, missing_ok: bool = False, user: str | None = None
    ) -> int:
        """Remove a file, link or directory; returns how many entries went."""
        answer = await self._ask(
            {
                "op": "remove",
                "path": path,
                "recursive": recursive or None,
                "missing_ok": missing_ok or None,
                "user": user,
            }
        )
        return number(_object(answer), "removed")

    async def move(
        self, source: str, destination: str, *, replace: bool = False, user: str | None = None
    ) -> None:
        """Give an entry another name."""
        await self._ask(
            {
                "op": "move",
                "source": source,
                "destination": destination,
                "replace": replace or None,
                "user": user,
            }
        )

    async def archive(self, path: str, *, skip: Sequence[str] = ()) -> AsyncGenerator[bytes, None]:
        """A directory as a tar stream, in pieces. Ends only when complete; a break in the middle raises."""
        request = {"op": "archive", "path": path, "skip": list(skip) or None}
        async with self._crossing(request, None) as (stream, crossing):
            async for piece in download(stream, None, crossing):
                yield piece

    async def extract(
        self,
        path: str,
        content: Content,
        *,
        max_members: int | None = None,
        max_bytes: int | None = None,
        strip_root: str | None = None,
        links_as_is: bool = False,
    ) -> tuple[int, int]:
        """Unpack a tar stream (gzip or not) beneath a directory; returns members and bytes.

        Args:
            path: The directory.
            content: The stream.
            max_members: More are refused.
            max_bytes: More content of files is refused.
            strip_root: Leading directory of the members' names to be left out.
            links_as_is: Take links wherever they lead, for an archive that gives a workspace back what was in it.
                Else a link that leaves the directory is refused. Nothing is written through a link either way.
        """
        request = {
            "op": "extract",
            "path": path,
            "max_members": max_members,
            "max_bytes": max_bytes,
            "strip_root": strip_root,
            "links_as_is": links_as_is,
        }
        answer = await self._upload(request, content)
        return number(answer, "members"), number(answer, "bytes")

    async def forward(self, port: int) -> Stream:
        """A TCP connection to a port of the sandbox's own loopback; the caller closes it.

        Raises:
            OperationError: Nothing listens there (``connection_refused``).
        """
        mux = await self._live()
        stream = mux.open(request_line({"op": "forward", "port": port}))
        try:
            async with bounded(transfer.STALL):
                kind, _ = await receive(stream)
            if kind != Receive.REPLY:
                raise unexpected(kind)
        except BaseException:
            stream.close()
            raise
        return stream

    # -- plumbing

    async def _live(self) -> Mux:
        self._enter()
        mux = self._mux
        if mux is None or not mux.usable:
            await self.connect()
            mux = self._mux
            if mux is None:
                raise ConnectError(Code.CONNECT_FAILED, "this client has been closed")
        return mux

    @asynccontextmanager
    async def _stream(self, request: Mapping[str, Any], body: bytes = b"") -> AsyncIterator[Stream]:
        line = request_line(request)
        mux = await self._live()
        first = line + body
        stream = mux.open(first if len(first) <= CHUNK else b"")
        try:
            if len(first) > CHUNK:
                await stream.write(first)
            yield stream
        finally:
            stream.close()

    @asynccontextmanager
    async def _crossing(
        self, request: Mapping[str, Any], size: int | None
    ) -> AsyncIterator[tuple[Stream, Crossing | None]]:
        """A stream of which the content may change to a lane."""
        await self._live()
        known = self.info is not None and self.info.lanes
        crossing = crossing_for(self._lanes if known else None, size)
        if crossing is not None:
            request = {**request, "lane": crossing.name}
        try:
            async with self._stream(request) as stream:
                yield stream, crossing
        finally:
            if crossing is not None:
                await crossing.aclose()

    async def _with_mux(self, use: Callable[[Mux], Awaitable[_T]]) -> _T:
        return await use(await self._live())

    async def _ask(self, request: Mapping[str, Any]) -> Any:
        async with self._turn():
            return await self._answer(request)

    async def _answer(self, request: Mapping[str, Any]) -> Any:
        async with self._stream(request) as stream, bounded(_patience(request)):
            return await reply(stream)

    def _turn(self) -> asyncio.Semaphore:
        self._enter()
        return self._operations

    async def _upload(self, request: Mapping[str, Any], content: Content) -> dict[str, Any]:
        async with self._turn():
            return await self._uploaded(request, content)

    async def _uploaded(self, request: Mapping[str, Any], content: Content) -> dict[str, Any]:
        if isinstance(content, bytes | bytearray | memoryview) and len(content) < CHUNK - 4096:
            body = (message(Send.INPUT, content) if content else b"") + END
            async with self._stream(request, body) as stream, bounded(transfer.STALL):
                return _object(await reply(stream))
        async with self._crossing(request, upload_size(content)) as (stream, crossing):
            return _object(await upload(stream, content, crossing))

    async def again(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Do what changes nothing when it is its turn, and once more if the path broke meanwhile."""
        async with self._turn():
            mux = self._mux
            try:
                return await attempt()
            except ConnectionLostError as error:
                alone = self.connected and self._mux is mux and not isinstance(error, LaneLostError)
                if self._closed or alone:
                    # Ours, or the stream alone was reset: no new path would help.
                    raise
                del error
            return await attempt()


async def _hello(mux: Mux) -> AgentInfo:
    stream = mux.open(request_line({"op": "hello"}))
    try:
        async with bounded(CONNECT_TIMEOUT):
            said = _object(await reply(stream))
    finally:
        stream.close()
    protocol = number(said, "protocol")
    if protocol != PROTOCOL:
        raise ConnectError(
            Code.CONNECT_FAILED,
            f"the sandbox's agent speaks protocol {protocol}, this client {PROTOCOL}: update the older one",
        )
    return AgentInfo(
        text(said, "agent"),
        text(said, "boot_id"),
        number(said, "uid"),
        number(said, "gid"),
        text(said, "root"),
        said.get("lanes") is True,
    )


def _patience(request: Mapping[str, Any]) -> float:
    """Seconds that an operation with one answer may take."""
    return transfer.ANSWER if request.get("recursive") else transfer.STALL


async def _joined(pieces: AsyncIterator[bytes]) -> bytes:
    joined = bytearray()
    async for piece in pieces:
        joined += piece
    return bytes(joined)


async def _feed(stream: Stream, content: Content) -> None:
    source = pieces(content)
    try:
        async for piece in source:
            await send(stream, Send.INPUT, piece)
        await stream.write(END)
    except StreamError:
        return  # the process has ended or the path is gone: the reading side tells
    finally:
        await source.aclose()  # type: ignore[attr-defined]


async def _reap(task: "asyncio.Task[None]") -> None:
    if not task.done():
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise


def _exec_request(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    *,
    stdin: bool,
) -> dict[str, Any]:
    return {
        "op": "exec",
        "argv": list(argv),
        "env": dict(env) if env else None,
        "cwd": cwd,
        "user": user,
        "stdin": stdin or None,
        "timeout_ms": _milliseconds(timeout),
    }


def _milliseconds(timeout: float | None) -> int | None:
    if timeout is None or timeout > MAX_TIMEOUT:
        return None
    if math.isnan(timeout):
        raise OperationError(Code.INVALID_REQUEST, "a timeout is a number of seconds")
    return max(1, round(max(0.0, timeout) * 1000))


def _exit(payload: bytes, stdout: bytes = b"", stderr: bytes = b"") -> ExecResult:
    said = parse_object(payload)
    return ExecResult(
        stdout,
        stderr,
        number(said, "code"),
        number(said, "signal"),
        bool(said.get("oom")),
        bool(said.get("timed_out")),
    )


def _file_info(entry: Any) -> FileInfo:
    said = _object(entry)
    said_kind = text(said, "kind")
    kind: FileKind = "other"
    if said_kind in ("file", "directory", "link"):
        kind = cast("FileKind", said_kind)
    return FileInfo(
        name=text(said, "name"),
        kind=kind,
        size=number(said, "size"),
        mode=number(said, "mode"),
        mtime_ns=number(said, "mtime_ns"),
        uid=number(said, "uid"),
        gid=number(said, "gid"),
        link=text(said, "link"),
        path=text(said, "path"),
    )


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolViolationError("the agent sent JSON of another shape than it should")
    return value


__all__ = ["AgentClient", "AgentError", "AgentInfo", "ExecResult", "FileInfo", "Process"]
