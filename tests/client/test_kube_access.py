"""The way to a cluster: real kubeconfigs and WebSockets, against a server here that speaks pods/exec."""

import asyncio
import contextlib
import json
import os
import stat
import sys
from pathlib import Path

import pytest
from agents.sandbox.errors import ConfigurationError
from aiohttp import WSMsgType, web
from local_agent import LocalAgent
from sandbox_api.kube import PODS, SANDBOXES, CredentialsError, NotFound

from runner_client import KubernetesSandboxClient
from runner_client.kube_access import ClusterAccess
from runner_client.stream.agent import AgentClient
from runner_client.stream.errors import Code, ConnectError, ConnectionLostError, StreamError

TOKEN = "the-token"


class ExecServer:
    """As much of an API server as a client needs: pods/exec, protocol v4, joined to a real bridge."""

    def __init__(self, binary: Path, agent: LocalAgent) -> None:
        self.binary = binary
        self.agent = agent
        self.tokens = {TOKEN}
        self.seen: list[web.Request] = []
        self.refuse: int | None = None
        self.say: str | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.sockets: list[web.WebSocketResponse] = []

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/exec", self.exec)
        app.router.add_get("/{rest:.*}", self.other)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    def trusted(self, request: web.Request) -> bool:
        return request.headers.get("Authorization", "").removeprefix("Bearer ") in self.tokens

    async def other(self, request: web.Request) -> web.Response:
        self.seen.append(request)
        if not self.trusted(request):
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)

    async def exec(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if not self.trusted(request):
            return web.Response(status=401)
        if self.refuse:
            return web.Response(status=self.refuse)
        websocket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), max_msg_size=8 << 20)
        await websocket.prepare(request)
        self.sockets.append(websocket)
        for channel in range(1, 4):
            await websocket.send_bytes(bytes((channel,)))
        if self.say is not None:
            status = {"kind": "Status", "status": "Failure", "message": self.say}
            await websocket.send_bytes(b"\x03" + json.dumps(status).encode())
            await websocket.close()
            return websocket
        process = await asyncio.create_subprocess_exec(
            str(self.binary),
            *request.query.getall("command")[1:],
            env={"SANDBOX_RUN_DIR": str(self.agent.socket.parent)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

        async def out(stream, channel: int) -> None:
            while piece := await stream.read(32 << 10):
                await self.hold.wait()
                await websocket.send_bytes(bytes((channel,)) + piece)

        async def both() -> None:
            await asyncio.gather(out(process.stdout, 1), out(process.stderr, 2))
            code = await process.wait()
            status = {"status": "Success"} if code == 0 else {"status": "Failure", "message": f"exit {code}"}
            await websocket.send_bytes(b"\x03" + json.dumps(status).encode())
            await websocket.close()

        task = asyncio.create_task(both())
        try:
            async for message in websocket:
                if message.type is not WSMsgType.BINARY:
                    break
                if message.data[0] == 0:
                    with contextlib.suppress(ConnectionError):  # it has ended: its status follows
                        process.stdin.write(message.data[1:])
                        await process.stdin.drain()
        finally:
            process.stdin.close()
            if process.returncode is None:
                process.kill()
            task.cancel()
            await asyncio.wait([task])
            await process.wait()
            process._transport.close()
        return websocket


@pytest.fixture
async def server(agent_binary, backend):
    server = ExecServer(agent_binary, backend)
    server.url = await server.start()
    yield server
    for websocket in server.sockets:
        await websocket.close()
    await server.runner.cleanup()


def kubeconfig(path: Path, url: str, user: dict, **context) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", **context}},
            {"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "elsewhere"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
async def access(server, tmp_path):
    async with await ClusterAccess.load(
        kubeconfig(tmp_path / "config", server.url, {"token": TOKEN})
    ) as access:
        yield access


async def test_the_agent_through_pods_exec(access, server, workspace):
    async with AgentClient(access.connector("default", "pod-1")) as agent:
        assert (await agent.exec(["echo", "hi"])).stdout == b"hi\n"
        blob = os.urandom(20 << 20)
        await agent.write(str(workspace / "f"), blob)
        assert (workspace / "f").read_bytes() == blob
        assert await agent.read(str(workspace / "f")) == blob
        await agent.write(str(workspace / "f"), blob + blob)
        assert (workspace / "f").read_bytes() == blob + blob
        assert len((await agent.exec(["head", "-c", "30000000", "/dev/zero"])).stdout) == 30_000_000
    for request in server.seen:
        assert request.match_info["pod"] == "pod-1"
        assert request.query["container"] == "workspace"
    commands = [request.query.getall("command") for request in server.seen]
    assert commands[0] == ["/.sandbox/bin/agent", "bridge"]
    # The content of what is large; of the name and the path nothing is in the command.
    assert commands[1:] == [["/.sandbox/bin/agent", "lane"]] * 2


async def test_writing_stops_while_nothing_is_taken(access, server, workspace):
    async with AgentClient(access.connector("default", "pod-1")) as agent:
        await agent.connect()
        sent = 0

        async def source():
            nonlocal sent
            while sent < 200 << 20:
                sent += 1 << 20
                yield bytes(1 << 20)

        server.hold.clear()
        task = asyncio.create_task(agent.write(str(workspace / "f"), source()))
        for _ in range(100):
            before = sent
            await asyncio.sleep(0.05)
            if sent == before:
                break
        assert sent < 40 << 20
        server.hold.set()
        async with asyncio.timeout(20):
            assert await task == 200 << 20


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (403, Code.FORBIDDEN, False),
        (404, Code.POD_NOT_FOUND, False),
        (400, Code.CONTAINER_NOT_RUNNING, True),
        (500, Code.CONTAINER_NOT_RUNNING, True),
    ],
)
async def test_refusals_are_typed(access, server, status, code, retryable):
    server.refuse = status
    with pytest.raises(ConnectError) as caught:
        await AgentClient(access.connector("default", "pod-1")).connect()
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "message",
    [
        "container not found (workspace)",
        "failed to exec in container: failed to load task: no running task found: not found",
    ],
)
async def test_a_container_that_does_not_run_is_told_from_a_broken_path(access, server, message):
    server.say = message
    with pytest.raises(ConnectError) as caught:
        await AgentClient(access.connector("default", "pod-1")).connect()
    assert caught.value.code == Code.CONTAINER_NOT_RUNNING
    assert caught.value.retryable


async def test_what_the_error_channel_says_is_kept(access, server):
    server.say = 'container not found ("workspace")'
    with pytest.raises(ConnectError) as caught:
        await AgentClient(access.connector("default", "pod-1")).connect()
    assert caught.value.code == Code.CONTAINER_NOT_RUNNING
    server.say = "exec failed: stat /.sandbox/bin/agent: no such file or directory"
    with pytest.raises(StreamError, match="no such file"):
        await AgentClient(access.connector("default", "pod-1")).connect()


async def test_the_complaint_of_a_bridge_without_an_agent_is_kept(access, server, backend):
    await backend.stop()
    with pytest.raises(StreamError) as caught:
        await AgentClient(access.connector("default", "pod-1")).connect()
    assert "agent" in caught.value.message
    assert "exit" in caught.value.message


async def test_a_websocket_that_ends_is_a_lost_connection_and_the_next_use_opens_another(access, server):
    async with AgentClient(access.connector("default", "pod-1")) as agent:
        task = asyncio.create_task(agent.exec(["sleep", "30"]))
        await asyncio.sleep(0.2)
        await server.sockets[-1].close()
        with pytest.raises(ConnectionLostError):
            await task
        assert (await agent.exec(["echo", "hi"])).stdout == b"hi\n"


async def test_garbage_instead_of_an_agent(access, server, tmp_path):
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\nhead -c 100000 /dev/urandom\nsleep 5\n")
    fake.chmod(0o755)
    server.binary = fake
    with pytest.raises(StreamError):
        await AgentClient(access.connector("default", "pod-1")).connect()


async def test_a_server_that_is_not_there(tmp_path):
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:9", {"token": TOKEN})
    async with await ClusterAccess.load(path) as access:
        with pytest.raises(ConnectError) as caught:
            await AgentClient(access.connector("default", "pod-1")).connect()
        assert caught.value.retryable


# -- credentials


def plugin(tmp_path: Path) -> tuple[Path, dict]:
    """A credential plugin that gives the token in a file, and counts its runs."""
    script = tmp_path / "plugin"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "with (here / 'runs').open('a') as runs: runs.write('x')\n"
        "token = (here / 'token').read_text()\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': token}}))\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "token").write_text(TOKEN)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}
    return script, user


async def test_exec_plugins_give_tokens_and_renew_them_when_refused(server, tmp_path):
    _, user = plugin(tmp_path)
    async with await ClusterAccess.load(kubeconfig(tmp_path / "config", server.url, user)) as access:
        with pytest.raises(NotFound):
            await access.api.get(PODS, "x", "default")
        async with AgentClient(access.connector("default", "pod-1")) as agent:
            assert (await agent.exec(["true"])).code == 0
        assert (tmp_path / "runs").read_text() == "x"
        server.tokens = {"renewed"}
        (tmp_path / "token").write_text("renewed")
        async with AgentClient(access.connector("default", "pod-1")) as agent:
            assert (await agent.exec(["true"])).code == 0
        server.tokens = {"again"}
        (tmp_path / "token").write_text("again")
        with pytest.raises(NotFound):
            await access.api.get(PODS, "x", "default")
        assert (tmp_path / "runs").read_text() == "xxx"


async def test_a_plugin_that_fails_is_named(tmp_path):
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(tmp_path / "missing")}}
    with pytest.raises(CredentialsError, match="missing"):
        await ClusterAccess.load(kubeconfig(tmp_path / "config", "http://127.0.0.1:9", user))


async def test_token_files_are_read_again_when_refused(server, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    user = {"tokenFile": str(tmp_path / "token")}
    async with await ClusterAccess.load(kubeconfig(tmp_path / "config", server.url, user)) as access:
        with pytest.raises(NotFound):
            await access.api.get(PODS, "x", "default")
        server.tokens = {"renewed"}
        (tmp_path / "token").write_text("renewed")
        with pytest.raises(NotFound):
            await access.api.get(PODS, "x", "default")


async def test_line_breaks_around_a_token_do_no_harm(server, tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for user in ({"tokenFile": str(tmp_path / "token")}, {"token": f"{TOKEN}\n"}):
        async with await ClusterAccess.load(kubeconfig(tmp_path / "config", server.url, user)) as access:
            with pytest.raises(NotFound):
                await access.api.get(PODS, "x", "default")
            async with AgentClient(access.connector("default", "pod-1")) as agent:
                assert (await agent.exec(["true"])).code == 0
    server.tokens = {"renewed"}
    (tmp_path / "token").write_text("renewed\r\n")
    user = {"tokenFile": str(tmp_path / "token")}
    async with await ClusterAccess.load(kubeconfig(tmp_path / "config", server.url, user)) as access:
        with pytest.raises(NotFound):
            await access.api.get(PODS, "x", "default")


async def test_credentials_that_cannot_be_renewed_are_an_error_of_ours(server, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    user = {"tokenFile": str(tmp_path / "token")}
    async with await ClusterAccess.load(kubeconfig(tmp_path / "config", server.url, user)) as access:
        server.tokens = {"renewed"}
        (tmp_path / "token").unlink()
        with pytest.raises(CredentialsError, match="cannot be renewed"):
            await access.api.get(PODS, "x", "default")
        with pytest.raises(ConnectError, match="cannot be renewed"):
            await AgentClient(access.connector("default", "pod-1")).connect()


async def test_certificates_that_are_none(tmp_path):
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", {"token": TOKEN})
    config = json.loads(path.read_text())
    config["clusters"][0]["cluster"]["certificate-authority-data"] = "AAAA"
    path.write_text(json.dumps(config))
    async with await ClusterAccess.load(path) as access:
        with pytest.raises(CredentialsError, match="certificates"):
            await access.api.get(PODS, "x", "default")
    with pytest.raises(ConfigurationError, match="certificates"):
        await KubernetesSandboxClient(kubeconfig=path).create()


@pytest.mark.parametrize("text", ["", "[]", "text", "{}", "null"])
async def test_files_that_are_no_kubeconfig(tmp_path, text):
    (tmp_path / "config").write_text(text)
    with pytest.raises(CredentialsError, match="kubeconfig") as caught:
        await ClusterAccess.load(tmp_path / "config")
    assert "object" not in str(caught.value).replace("Expected object", "")
    assert "indices" not in str(caught.value)


async def test_another_event_loop_connects_anew(access, server):
    async def use() -> int:
        with pytest.raises(NotFound):
            await access.api.get(PODS, "x", "default")
        async with AgentClient(access.connector("default", "pod-1")) as agent:
            return (await agent.exec(["true"])).code

    async def elsewhere() -> int:
        try:
            return await use()
        finally:
            await access.release()

    assert await use() == 0
    await access.release()
    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 0
    assert await use() == 0


async def test_namespace_and_context(tmp_path):
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:9", {"token": TOKEN}, namespace="mine")
    assert (await ClusterAccess.load(path)).namespace == "mine"
    assert (await ClusterAccess.load(path, "other")).namespace == "elsewhere"
    with pytest.raises(CredentialsError, match="nowhere"):
        await ClusterAccess.load(path, "nowhere")


async def test_where_the_kubeconfig_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CredentialsError, match="no kubeconfig"):
        await ClusterAccess.load()
    with pytest.raises(CredentialsError, match="no kubeconfig at"):
        await ClusterAccess.load(tmp_path / "none")
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube/config", "http://127.0.0.1:9", {"token": TOKEN}, namespace="home")
    assert (await ClusterAccess.load()).namespace == "home"
    env = kubeconfig(tmp_path / "env", "http://127.0.0.1:9", {"token": TOKEN}, namespace="env")
    monkeypatch.setenv("KUBECONFIG", str(env))
    assert (await ClusterAccess.load()).namespace == "env"
    (tmp_path / "broken").write_text("a: [")
    with pytest.raises(CredentialsError, match="cannot be used"):
        await ClusterAccess.load(tmp_path / "broken")


async def test_after_release_the_next_use_opens_new_connections(access, server):
    for _ in range(2):
        with pytest.raises(NotFound):
            await access.api.get(SANDBOXES, "x", "default")
        async with AgentClient(access.connector("default", "pod-1")) as agent:
            assert (await agent.exec(["true"])).code == 0
        await access.release()
