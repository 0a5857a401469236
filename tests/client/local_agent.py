"""A real agent on this machine, reached over its unix socket: everything but the cluster."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from runner_client.stream.errors import Code, ConnectError

REPOSITORY = Path(__file__).parents[2]


def build_agent(target: Path) -> Path:
    subprocess.run(
        ["go", "build", "-o", str(target), "./cmd/agent"],
        cwd=REPOSITORY / "agent",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return target


async def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait for what another process will have done soon."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.005)


class LaneProcess(asyncio.Transport):
    """`agent lane` as a process, with its stdin and stdout joined to a protocol."""

    def __init__(self, protocol: asyncio.Protocol):
        super().__init__()
        self.protocol = protocol
        self.process: subprocess.Popen | None = None
        self.sent = self.received = 0
        self._stdin: asyncio.WriteTransport | None = None
        self._stdout: asyncio.ReadTransport | None = None

    async def start(self, binary: str, env: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        self.process = subprocess.Popen(  # noqa: ASYNC220 - it takes no time
            [binary, "lane"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        lane = self

        class In(asyncio.BaseProtocol):
            def pause_writing(self):
                lane.protocol.pause_writing()

            def resume_writing(self):
                lane.protocol.resume_writing()

        class Out(asyncio.Protocol):
            def data_received(self, data):
                lane.received += len(data)
                lane.protocol.data_received(data)

            def connection_lost(self, exc):
                lane.abort()
                lane.protocol.connection_lost(exc)

        self._stdin, _ = await loop.connect_write_pipe(In, self.process.stdin)
        self.protocol.connection_made(self)
        self._stdout, _ = await loop.connect_read_pipe(Out, self.process.stdout)

    def write(self, data):
        self.sent += len(data)
        self._stdin.write(data)

    def pause_reading(self):
        self._stdout.pause_reading()

    def resume_reading(self):
        self._stdout.resume_reading()

    def is_closing(self):
        return self._stdin.is_closing()

    def abort(self):
        if not self._stdin.is_closing():
            self._stdin.abort()
        self._stdout.close()

    close = abort


class LocalAgent:
    """One agent process with a workspace of its own; also the Connector to it."""

    def __init__(
        self,
        binary: Path,
        workspace: Path,
        *,
        grants: tuple[Path, ...] = (),
        read_only: tuple[Path, ...] = (),
    ):
        self.workspace = workspace
        self.connections: list[asyncio.Transport] = []
        self.refuse: ConnectError | None = None
        self.lanes: list[LaneProcess] = []
        self.no_lane: ConnectError | None = None
        # A unix socket's path has at most 107 bytes, which pytest's directories may exceed.
        self._run = Path(tempfile.mkdtemp(prefix="agent-"))
        self._argv = [str(binary), "init", "--root", str(workspace), "--grace", "1"]
        for grant in grants:
            self._argv += ["--grant", str(grant)]
        for grant in read_only:
            self._argv += ["--grant-read-only", str(grant)]
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(workspace.parent),
            "SANDBOX_RUN_DIR": str(self._run),
            "FROM_IMAGE": "yes",
        }
        self.process: subprocess.Popen | None = None

    @property
    def socket(self) -> Path:
        return self._run / "agent.sock"

    async def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(  # noqa: ASYNC220 - it takes no time
            self._argv, env=self._env, cwd=self.workspace, stdin=subprocess.DEVNULL
        )
        await eventually(lambda: self._answers() or self.process.poll() is not None)
        assert self.process.poll() is None, "the agent has ended"

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    async def stop(self) -> None:
        self.cut()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self.process.wait, 10)
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self.stop()
        for lane in self.lanes:
            if lane.process is not None:
                await asyncio.to_thread(lane.process.wait, 10)
        shutil.rmtree(self._run, ignore_errors=True)

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        if self.refuse is not None:
            raise self.refuse
        try:
            transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: protocol, str(self.socket)
            )
        except OSError as error:
            raise ConnectError(Code.CONNECT_FAILED, str(error), retryable=True) from error
        self.connections.append(transport)
        return transport

    async def lane(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Stdio of the subcommand, as a pods/exec would join it."""
        if self.no_lane is not None:
            raise self.no_lane
        self.lanes.append(lane := LaneProcess(protocol))
        await lane.start(self._argv[0], self._env)
        return lane

    def cut(self) -> None:
        """Break the path, as a load balancer does that forgets a connection."""
        for transport in self.connections:
            if not transport.is_closing():
                transport.abort()
        self.connections.clear()
