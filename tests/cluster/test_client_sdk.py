"""The SDK's client on a real cluster: Runner.run from nothing to nothing, and the bad days of a session."""

import asyncio
import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner, set_tracing_disabled
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File, LocalDir
from agents.sandbox.errors import ExecTimeoutError, ExecTransportError, WorkspaceStartError
from agents.sandbox.manifest import EnvEntry, Environment, Manifest, StrEnvValue
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from runner_client import KubernetesSandboxClient, KubernetesSandboxClientOptions, Sandboxes
from runner_client.stream.errors import ConnectionLostError, OperationError


@pytest.fixture
async def client(cluster: Any, namespace: Any) -> AsyncIterator[KubernetesSandboxClient]:
    options = KubernetesSandboxClientOptions(image=cluster.images["demo"], start_timeout=90)
    async with KubernetesSandboxClient(namespace.name, cluster.kubeconfig, options=options) as client:
        yield client


@pytest.fixture
async def session(client: KubernetesSandboxClient) -> AsyncIterator[Any]:
    session = await client.create(manifest=Manifest())
    await session.start()
    yield session
    await client.delete(session)


async def pieces(size: int) -> AsyncIterator[bytes]:
    piece = os.urandom(1 << 20)
    for _ in range(size >> 20):
        yield piece


def lanes_of(agent: Any) -> list[str]:
    """Grows by each lane that the agent has taken."""
    opened: list[str] = []
    connector = agent._connector
    original = type(connector).lane

    async def lane(protocol: Any) -> Any:
        joining = protocol.join

        async def join(name: str) -> None:
            await joining(name)
            opened.append("join")

        protocol.join = join
        return await original(connector, protocol)

    connector.lane = lane
    return opened


def gone(namespace: Any) -> bool:
    kinds = "sandboxes.sandbox-operator.dev,pods,secrets,services"
    return not namespace.kubectl("get", kinds, "-o", "name").split()


async def test_runner_run_from_nothing_to_nothing(client, namespace, tmp_path, monkeypatch) -> None:
    set_tracing_disabled(True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/style.md").write_text("be brief")
    (tmp_path / "docs/tool.sh").write_text("#!/bin/sh\necho $GREETING $TOKEN\n")
    (tmp_path / "docs/tool.sh").chmod(0o755)
    manifest = Manifest(
        entries={
            "check.py": File(content=b"value = 1\nassert value == 2, 'no'\nprint('passed')\n"),
            "docs": LocalDir(src=Path("docs")),
            "big.txt": File(content=b"x" * 300_000),
        },
        environment=Environment(
            value={"GREETING": "hello", "TOKEN": EnvEntry(value=StrEnvValue(value="t0k3n"))}
        ),
    )
    patch = "*** Begin Patch\n*** Update File: check.py\n@@\n-value = 1\n+value = 2\n*** End Patch\n"
    model = ScriptedModel(
        [
            [
                function_call(
                    "exec_command", {"cmd": "cat docs/style.md; docs/tool.sh; python3 check.py"}, call_id="1"
                )
            ],
            [
                ResponseCustomToolCall(
                    type="custom_tool_call", name="apply_patch", call_id="2", id="i", input=patch
                )
            ],
            [function_call("exec_command", {"cmd": "python3 check.py; wc -c < big.txt"}, call_id="3")],
            [assistant_message("done")],
        ]
    )
    agent = SandboxAgent(
        name="Worker",
        model=model,
        instructions="Work.",
        capabilities=[Shell(), Filesystem()],
        default_manifest=manifest,
    )
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(client=client)))
    assert result.final_output == "done"
    said = [str(i["output"]) for i in model.last_call.input if "output" in str(i.get("type"))]
    assert "be brief" in said[0]
    assert "hello t0k3n" in said[0]
    assert "AssertionError: no" in said[0]
    assert "passed" in said[2]
    assert "300000" in said[2]
    namespace.until(lambda: gone(namespace), "everything to go")


async def test_files_of_a_gigabyte_go_up_and_down(session) -> None:
    piece = os.urandom(1 << 20)
    digest, count = hashlib.sha256(), 1024

    class Source(io.RawIOBase):
        left = count

        def read(self, size: int = -1) -> bytes:
            if not self.left:
                return b""
            self.left -= 1
            return piece

    for _ in range(count):
        digest.update(piece)
    await session.write(Path("big"), Source())
    seen = await session.exec("sha256sum big")
    assert seen.stdout.split()[0].decode() == digest.hexdigest()
    back = hashlib.sha256()
    with await session.read(Path("big")) as stream:
        while block := stream.read(1 << 20):
            back.update(block)
    assert back.hexdigest() == digest.hexdigest()


async def test_large_content_goes_by_an_exec_of_its_own(session) -> None:
    agent = session._inner.agent
    opened = lanes_of(agent)
    size = 96 << 20
    await agent.write("/workspace/big", pieces(size))
    assert opened == ["join"]
    assert len(await agent.read("/workspace/big")) == size
    assert opened == ["join", "join"]
    with await session.persist_workspace() as saved:
        await session.rm("big")
        await session.hydrate_workspace(saved)
    assert (await session.exec("stat -c %s big")).stdout == b"%d\n" % size
    assert len(opened) == 4
    left = await session.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'agent lan[e]'; ls -A")
    assert left.stdout == b"0\nbig\n"


@pytest.mark.parametrize("who", ["lane", "client"])
async def test_a_stream_that_is_killed_in_the_middle_leaves_nothing(session, who) -> None:
    agent = session._inner.agent
    opened = lanes_of(agent)

    async def content() -> AsyncIterator[bytes]:
        async for piece in pieces(64 << 20):
            yield piece
        while not opened:
            yield bytes(1 << 16)
            await asyncio.sleep(0.01)
        yield bytes(4 << 20)
        if who == "lane":
            await session.exec("kill -9 $(grep -la 'agent.lan[e]' /proc/[0-9]*/cmdline | cut -d/ -f3)")
            await asyncio.sleep(1)
            yield bytes(4 << 20)
        else:
            middle.set()
            await asyncio.sleep(60)

    middle = asyncio.Event()
    await session.exec("echo old > f")
    writing = asyncio.create_task(agent.write("/workspace/f", content()))
    if who == "lane":
        with pytest.raises(ConnectionLostError):
            await writing
    else:
        await middle.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert (await session.exec("cat f; ls -A")).stdout == b"old\nf\n"
    ended = "for i in $(seq 100); do cat /proc/[0-9]*/cmdline | grep -qa 'agent.lan[e]' || exit 0; sleep 0.1; done"
    assert (await session.exec(f"{ended}; exit 1")).exit_code == 0
    deleted = await session.exec("ls -l /proc/1/fd | grep -c deleted")
    assert deleted.stdout == b"0\n"


async def test_large_content_obeys_the_rules_of_small(session) -> None:
    await session.exec("ln -s /tmp out; mkdir closed && chmod 555 closed; echo x > file")
    agent = session._inner.agent
    for path in ("/workspace/out/f", "/etc/f", "/workspace/closed/f", "/workspace/file/f", "/workspace/no/f"):
        said = []
        for content in (b"small", pieces(96 << 20), bytes(40 << 20)):
            with pytest.raises(OperationError) as caught:
                await agent.write(path, content)
            said.append((type(caught.value), caught.value.code, caught.value.errno, caught.value.message))
        assert said[0] == said[1] == said[2]
    assert (await session.exec("ls -A /tmp closed")).stdout.split() == [b"/tmp:", b"closed:"]


async def test_a_hundred_megabytes_of_output(session) -> None:
    result = await session.exec("head -c 100000000 /dev/zero")
    assert len(result.stdout) == 100_000_000


async def test_many_commands_at_once(session) -> None:
    results = await asyncio.gather(*(session.exec("echo", str(i), shell=False) for i in range(50)))
    assert [int(r.stdout) for r in results] == list(range(50))


async def test_a_timeout_ends_the_processes(session) -> None:
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 300 & sleep 300", timeout=0.5)
    left = await session.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 30[0]'")
    assert left.stdout.strip() == b"0"


async def test_a_persisted_workspace_comes_back_in_another_pod(client, tmp_path) -> None:
    snapshot = LocalSnapshotSpec(base_path=tmp_path)
    session = await client.create(manifest=Manifest(entries={"a": File(content=b"1")}), snapshot=snapshot)
    await session.start()
    await session.exec("echo 2 > a; mkdir -p d && ln -s ../a d/link && chmod 640 a")
    await session.exec("echo 3 > closed; mkdir -p c && echo 4 > c/f && chmod 000 closed c")
    await session.stop()
    await client.delete(session)
    resumed = await client.resume(
        client.deserialize_session_state(client.serialize_session_state(session.state))
    )
    await resumed.start()
    assert (
        await resumed.exec("cat d/link; stat -c %a a closed; ls c || echo shut")
    ).stdout == b"2\n640\n0\nshut\n"
    assert (await resumed.exec("chmod 700 closed c; cat closed c/f")).stdout == b"3\n4\n"
    await client.delete(resumed)


async def test_a_pod_that_is_deleted_is_a_typed_error_and_the_sandbox_can_be_resumed(
    client, namespace
) -> None:
    session = await client.create(manifest=Manifest(entries={"a": File(content=b"1")}))
    await session.start()
    running = asyncio.create_task(session.exec("sleep 60"))
    await asyncio.sleep(0.5)
    pod = await asyncio.to_thread(namespace.pod_name, session.state.name)
    await asyncio.to_thread(namespace.kubectl, "delete", "pod", pod, "--wait=false")
    with pytest.raises(ExecTransportError):
        await running
    assert not await session.running()
    with pytest.raises(ExecTransportError):
        await session.exec("true")
    saved = client.deserialize_session_state(client.serialize_session_state(session.state))
    await session.start()
    assert (await session.exec("cat a")).stdout == b"1"
    resumed = await client.resume(saved)
    await resumed.start()
    assert (await resumed.exec("cat a")).stdout == b"1"
    await client.delete(resumed)
    await client.delete(session)


async def test_a_client_that_is_killed_leaves_a_sandbox_that_can_be_resumed(
    client, cluster, namespace
) -> None:
    program = (
        "import asyncio, json, sys\n"
        "from runner_client import KubernetesSandboxClient, KubernetesSandboxClientOptions\n"
        "async def main():\n"
        "    options = KubernetesSandboxClientOptions(image=sys.argv[3], ttl='10m')\n"
        "    client = KubernetesSandboxClient(sys.argv[1], sys.argv[2], options=options)\n"
        "    session = await client.create()\n"
        "    await session.start()\n"
        "    await session.exec('echo work > unsaved')\n"
        "    print(json.dumps(client.serialize_session_state(session.state)), flush=True)\n"
        "    await session.exec('sleep 600')\n"
        "asyncio.run(main())\n"
    )
    arguments = [namespace.name, str(cluster.kubeconfig), cluster.images["demo"]]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=subprocess.PIPE
    )
    async with asyncio.timeout(90):
        saved = await process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    import json

    resumed = await client.resume(client.deserialize_session_state(json.loads(saved)))
    await resumed.start()
    assert (await resumed.exec("cat unsaved")).stdout == b"work\n"
    for _ in range(50):
        left = await resumed.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 60[0]'")
        if left.stdout.strip() == b"0":
            break
        await asyncio.sleep(0.1)
    assert left.stdout.strip() == b"0"
    await client.delete(resumed)


async def test_an_image_that_does_not_exist(client, namespace) -> None:
    options = KubernetesSandboxClientOptions(image="registry.invalid/none:1", start_timeout=20)
    session = await client.create(options=options)
    with pytest.raises(WorkspaceStartError, match=r"Image|image"):
        await session.start()
    namespace.until(lambda: gone(namespace), "everything to go")


async def test_a_cancelled_start_leaves_nothing(client, namespace) -> None:
    session = await client.create(manifest=Manifest())
    start = asyncio.create_task(session.start())
    await asyncio.sleep(0.5)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    namespace.until(lambda: gone(namespace), "everything to go")


async def test_the_typed_api(cluster, namespace) -> None:
    async with Sandboxes(namespace.name, cluster.kubeconfig) as sandboxes:
        made = await sandboxes.create({"image": cluster.images["demo"]}, name="typed")
        ready = await sandboxes.wait_ready(made, timeout=60)
        async with await sandboxes.connect(ready) as agent:
            assert (await agent.exec(["echo", "hi"])).stdout == b"hi\n"
        assert await sandboxes.delete(ready, wait=60)
    assert gone(namespace)
