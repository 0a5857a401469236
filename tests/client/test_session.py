"""The SDK's session on a real agent; the API server alone is in memory."""

import asyncio
import bz2
import contextlib
import gzip
import io
import lzma
import os
import signal
import socket
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from agents.sandbox.entries import Dir, File, LocalDir, LocalFile
from agents.sandbox.errors import (
    ConfigurationError,
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    LocalDirReadError,
    LocalFileReadError,
    SandboxError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.files import EntryKind
from agents.sandbox.manifest import EnvEntry, Environment, Manifest, StrEnvValue
from agents.sandbox.snapshot import LocalSnapshot, LocalSnapshotSpec
from agents.sandbox.types import FileMode, Permissions
from agents.sandbox.workspace_paths import SandboxPathGrant
from local_agent import eventually
from sandbox_api.kube import (
    SECRETS,
    ApiError,
    CredentialsError,
    Forbidden,
    Gone,
    NotFound,
    Unauthorized,
    Unreachable,
)

from runner_client import KubernetesSandboxClient, KubernetesSandboxClientOptions
from runner_client.stream.errors import Code, ConnectError, OperationError


@pytest.fixture
def sdk(cluster_in_memory):
    return KubernetesSandboxClient(access=cluster_in_memory)


@pytest.fixture
def manifest(workspace):
    return Manifest(root=str(workspace))


@pytest.fixture
async def session(sdk, manifest):
    session = await sdk.create(manifest=manifest)
    await session.start()
    yield session
    await sdk.delete(session)


# -- commands


async def test_exec(session):
    result = await session.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert not result.ok()
    assert (await session.exec("printf", "%s", "a b", shell=False)).stdout == b"a b"
    assert (await session.exec("pwd")).stdout.decode().strip() == session.state.manifest.root


async def test_exec_timeout(session):
    with pytest.raises(ExecTimeoutError) as caught:
        await session.exec("sleep 30", timeout=0.2)
    assert caught.value.retryable is False
    assert caught.value.timeout_s == 0.2


async def test_a_command_that_is_not_there_is_a_result(session):
    result = await session.exec("no-such-command", shell=False)
    assert result.exit_code == 127
    assert result.stderr


async def test_another_user_is_refused_with_a_typed_error_and_never_sudo(session):
    actions = [lambda: session.read(Path("x"), user="nobody"), lambda: session.ls(".", user="nobody")]
    if os.getuid() == 0:  # then the agent may run commands as others
        assert b"sudo" not in (await session.exec("id", user="nobody")).stderr
    else:
        actions.append(lambda: session.exec("id", user="nobody"))
    for action in actions:
        with pytest.raises(ConfigurationError) as caught:
            await action()
        assert "run_as" in caught.value.message


async def test_the_pods_own_user_is_accepted(session):
    own = str(os.getuid())
    assert (await session.exec("id -u", user=own)).stdout.strip() == own.encode()
    await session.write(Path("f"), io.BytesIO(b"x"), user=own)
    assert (await session.read(Path("f"), user=own)).read() == b"x"


async def test_a_break_during_a_command_is_a_transport_error_and_the_next_command_works(session, backend):
    task = asyncio.create_task(session.exec("sleep 30"))
    await asyncio.sleep(0.1)
    backend.cut()
    with pytest.raises(ExecTransportError) as caught:
        await task
    assert caught.value.retryable is False
    assert (await session.exec("echo ok")).stdout == b"ok\n"


async def test_a_command_that_ends_with_its_container_is_an_error_and_no_result(
    session, backend, workspace, cluster_in_memory
):
    running = asyncio.create_task(session.exec("touch began; sleep 60"))
    await eventually(lambda: (workspace / "began").exists())
    backend.process.send_signal(signal.SIGTERM)
    with pytest.raises(ExecTransportError, match=r"killed because .* start\(\) the session") as caught:
        await running
    assert caught.value.retryable is False
    assert not await session.running()
    await backend.stop()
    assert not await session.running()
    await backend.start()
    assert await session.running()
    assert (await session.exec("ls")).stdout == b"began\n"


async def test_start_leaves_an_agent_that_is_stopping(session, backend, workspace):
    await session.exec("touch work")
    await backend.stop()
    restarting = asyncio.create_task(backend.start())
    await session.start()
    await restarting
    assert (await session.exec("ls")).stdout == b"work\n"


async def test_a_command_that_kills_itself_is_a_result(session):
    assert (await session.exec("kill -TERM $$")).exit_code == 143
    assert (await session.exec("exit 200")).exit_code == 200
    assert await session.running()


async def test_an_agent_that_is_stopping_takes_no_more_commands(session, backend, workspace):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); open('began', 'w'); time.sleep(60)"
    running = asyncio.create_task(session.exec("python3", "-c", deaf, shell=False))
    await eventually(lambda: (workspace / "began").exists())
    backend.process.send_signal(signal.SIGTERM)

    async def refused() -> None:
        while True:
            await session.exec("true")

    with pytest.raises(ExecTransportError, match=r"start\(\) the session again"):
        await refused()
    assert not await session.running()
    with pytest.raises(ExecTransportError):
        await running


async def test_a_pod_that_is_gone_says_what_to_do(session, backend):
    backend.refuse = ConnectError(Code.POD_NOT_FOUND, "pod p is not there")
    backend.cut()
    await eventually(lambda: not session._inner.agent.connected)
    for asked in (
        lambda: session.exec("true"),
        lambda: session.read(Path("a")),
        lambda: session.write(Path("a"), io.BytesIO(b"")),
        lambda: session.ls("."),
        session.persist_workspace,
    ):
        with pytest.raises(SandboxError, match=r"start\(\) the session again"):
            await asked()
    backend.refuse = None


async def test_a_break_during_a_change_says_that_it_may_have_happened(session, backend, workspace):
    running = asyncio.create_task(session.exec("touch began; sleep 60"))
    await eventually(lambda: (workspace / "began").exists())
    backend.cut()
    with pytest.raises(ExecTransportError, match="may or may not"):
        await running


@pytest.mark.parametrize("whole", [True, False])
async def test_a_break_during_a_read_is_not_noticed(session, backend, workspace, whole):
    (workspace / "big").write_bytes(bytes(60 << 20))
    asked = session.persist_workspace() if whole else session.read(Path("big"))
    task = asyncio.create_task(asked)
    await asyncio.sleep(0.003)
    backend.cut()
    with await task as content:
        assert len(content.read()) >= 60 << 20


# -- files


@pytest.mark.parametrize("size", [0, 10, 100_000, 20_000_000])
async def test_write_and_read(session, workspace, size):
    blob = os.urandom(size)
    await session.write(Path("d/e/blob"), io.BytesIO(blob))
    assert (workspace / "d/e/blob").read_bytes() == blob
    stream = await session.read(Path("d/e/blob"))
    assert stream.read() == blob
    stream.close()
    stream = await session.read(workspace / "d/e/blob")
    assert stream.read(5) == blob[:5]
    stream.close()


async def test_write_starts_where_the_stream_stands(session, workspace):
    stream = io.BytesIO(b"0123456789")
    stream.seek(5)
    await session.write(Path("f"), stream)
    assert (workspace / "f").read_bytes() == b"56789"


async def test_text_streams_are_refused(session):
    with pytest.raises(Exception, match="binary"):
        await session.write(Path("f"), io.StringIO("text"))


async def test_read_bounded(session, workspace):
    (workspace / "f").write_bytes(b"0123456789")
    assert await session.read_bounded(Path("f"), max_bytes=4) == b"0123"
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read_bounded(Path("none"), max_bytes=4)


async def test_read_errors(session, workspace):
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("none"))
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path())
    (workspace / "out").symlink_to("/etc")
    for path in (Path("out/passwd"), Path("../x"), Path("/etc/passwd")):
        with pytest.raises(InvalidManifestPathError):
            await session.read(path)
        with pytest.raises(InvalidManifestPathError):
            await session.write(path, io.BytesIO(b"x"))


async def test_ls(session, workspace):
    for name in ("a b", "line\nbreak", "x -> y", " lead"):
        (workspace / name).write_bytes(b"12")
    (workspace / "d").mkdir()
    (workspace / "l").symlink_to("d")
    entries = {entry.path: entry for entry in await session.ls(".")}
    assert set(entries) == {str(p) for p in workspace.iterdir()}
    assert entries[str(workspace / "d")].kind == EntryKind.DIRECTORY
    assert entries[str(workspace / "d")].permissions.directory
    assert entries[str(workspace / "l")].kind == EntryKind.SYMLINK
    assert entries[str(workspace / "a b")].size == 2
    with pytest.raises(ExecNonZeroError):
        await session.ls("none")


async def test_mkdir_rm_mv_same_file(session, workspace):
    await session.mkdir("d/e", parents=True)
    await session.mkdir("d/e", parents=True)
    with pytest.raises(ExecNonZeroError):
        await session.mkdir("d")
    await session.write(Path("d/f"), io.BytesIO(b"1"))
    (workspace / "link").symlink_to("d/f")
    os.link(workspace / "d/f", workspace / "hard")
    assert await session.same_file("link", "d/f")
    assert not await session.same_file("link", "d/f", follow_symlinks=False)
    assert await session.same_file("hard", "d/f", follow_symlinks=False)
    assert not await session.same_file("d", "d/f")
    assert not await session.same_file("none", "d/f")
    await session.mv("d/f", "g")
    assert (workspace / "g").read_bytes() == b"1"
    with pytest.raises(ExecNonZeroError):
        await session.mv("d", "h")
    with pytest.raises(ExecNonZeroError):
        await session.mv("g", "d")
    await session.rm("link")
    assert (workspace / "hard").exists()
    with pytest.raises(ExecNonZeroError):
        await session.rm("none")
    with pytest.raises(ExecNonZeroError):
        await session.rm("d")
    await session.rm("d", recursive=True)
    await session.rm("d", recursive=True)
    assert not (workspace / "d").exists()


async def test_a_file_moves_to_another_file_system_as_a_copy(session, workspace, monkeypatch):
    async def move(*_, **__):
        raise OperationError("io", "on different file systems", errno="EXDEV")

    monkeypatch.setattr(session._inner.agent, "move", move)
    (workspace / "a").write_bytes(b"content")
    (workspace / "a").chmod(0o711)
    (workspace / "target").write_bytes(b"kept")
    (workspace / "b").symlink_to("target")
    await session.mv("a", "b")
    assert not (workspace / "a").exists()
    assert not (workspace / "b").is_symlink()
    assert (workspace / "b").read_bytes() == b"content"
    assert (workspace / "b").stat().st_mode & 0o7777 == 0o711
    assert (workspace / "target").read_bytes() == b"kept"
    (workspace / "link").symlink_to("target")
    with pytest.raises(ExecNonZeroError, match="different file systems"):
        await session.mv("link", "elsewhere")
    assert (workspace / "link").is_symlink()


async def test_bytes_instead_of_a_stream_are_a_typed_error(session):
    with pytest.raises(WorkspaceWriteTypeError):
        await session.write(Path("a"), b"bytes")


async def test_hydrate_takes_archives_of_several_streams(session, workspace):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("f")
        member.size = 100_000
        tar.addfile(member, io.BytesIO(b"f" * 100_000))
    whole = archive.getvalue()
    for compress in (bz2.compress, lzma.compress, gzip.compress):
        (workspace / "f").unlink(missing_ok=True)
        parallel = compress(whole[:50_000]) + compress(whole[50_000:])
        await session.hydrate_workspace(io.BytesIO(parallel))
        assert (workspace / "f").stat().st_size == 100_000


async def test_an_archive_of_nothing_is_not_taken_for_an_empty_workspace(session):
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.hydrate_workspace(io.BytesIO())


async def test_grants(sdk, workspace, tmp_path):
    grants = (
        SandboxPathGrant(path=str(tmp_path / "granted")),
        SandboxPathGrant(path=str(tmp_path / "read-only"), read_only=True),
    )
    session = await sdk.create(manifest=Manifest(root=str(workspace), extra_path_grants=grants))
    await session.start()
    await session.write(tmp_path / "granted/f", io.BytesIO(b"1"))
    (tmp_path / "read-only/f").write_bytes(b"2")
    assert (await session.read(tmp_path / "read-only/f")).read() == b"2"
    (workspace / "to-ro").symlink_to(tmp_path / "read-only")
    for path in (tmp_path / "read-only/g",):
        with pytest.raises(WorkspaceArchiveWriteError) as caught:
            await session.write(path, io.BytesIO(b"x"))
        assert caught.value.context["reason"] == "read_only_extra_path_grant"
    await sdk.delete(session)


# -- the whole workspace


async def test_persist_and_hydrate(session, workspace):
    (workspace / "d").mkdir()
    (workspace / "d/f").write_bytes(b"1")
    (workspace / "d/run").write_bytes(b"2")
    (workspace / "d/run").chmod(0o755)
    os.link(workspace / "d/f", workspace / "hard")
    (workspace / "abs").symlink_to(workspace / "d/f")
    (workspace / "python").symlink_to("/usr/bin/python3")  # as a venv has it
    (workspace / "d/round").symlink_to("../tmp/../d/f")
    os.mkfifo(workspace / "fifo")
    (workspace / "tmp").mkdir()
    (workspace / "tmp/x").write_bytes(b"3")
    session.register_persist_workspace_skip_path("tmp")
    archive = await session.persist_workspace()
    blob = archive.read()
    with tarfile.open(fileobj=io.BytesIO(blob)) as tar:
        assert not any("tmp" in name or "fifo" in name for name in tar.getnames())
    await session.exec("rm -rf ./*")
    await session.hydrate_workspace(io.BytesIO(blob))
    assert (workspace / "d/f").read_bytes() == b"1"
    assert (workspace / "hard").read_bytes() == b"1"
    assert (workspace / "abs").read_bytes() == b"1"
    assert (workspace / "python").readlink() == Path("/usr/bin/python3")
    assert (workspace / "d/round").readlink() == Path("../tmp/../d/f")
    assert (workspace / "d/run").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
async def test_hydrate_takes_any_compression(session, workspace, mode):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        member = tarfile.TarInfo("./f")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    buffer.seek(0)
    await session.hydrate_workspace(buffer)
    assert (workspace / "f").read_bytes() == b"abc"


@pytest.mark.parametrize("blob", [b"this is no archive" * 100, b"BZh91AY", b"\xfd7zXZ\x00garbage"])
async def test_hydrate_refuses_what_is_no_archive(session, blob):
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.hydrate_workspace(io.BytesIO(blob))


async def test_hydrate_refuses_members_that_escape(session, workspace, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("../evil")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    buffer.seek(0)
    with pytest.raises((WorkspaceArchiveWriteError, InvalidManifestPathError)):
        await session.hydrate_workspace(buffer)
    assert not (tmp_path / "evil").exists()


async def test_a_planted_link_is_not_followed_by_hydrate(session, workspace, tmp_path):
    (tmp_path / "outside").mkdir()
    (workspace / "d").symlink_to(tmp_path / "outside")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("d/f")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    buffer.seek(0)
    with contextlib.suppress(WorkspaceArchiveWriteError, InvalidManifestPathError):
        await session.hydrate_workspace(buffer)
    assert list((tmp_path / "outside").iterdir()) == []


# -- manifest


async def test_the_manifest_arrives_inline_and_uploaded(
    sdk, workspace, tmp_path, monkeypatch, cluster_in_memory
):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/run.sh").write_bytes(b"#!/bin/sh\n")
    (source / "sub/run.sh").chmod(0o755)
    (source / "data").write_bytes(b"\x00\x01")
    (source / "data").chmod(0o640)
    big = os.urandom(300_000)
    manifest = Manifest(
        root=str(workspace),
        entries={
            "task.md": File(content="Grüße".encode()),
            "src": Dir(children={"a.bin": File(content=b"\xff\x00"), "deep": Dir()}),
            "big": File(content=big, permissions=Permissions(owner=FileMode.READ | FileMode.WRITE)),
            "tree": LocalDir(src=Path("source")),
            "one": LocalFile(src=Path("source/data")),
            "empty": LocalDir(),
        },
    )
    session = await sdk.create(manifest=manifest)
    assert cluster_in_memory.sandboxes() == []
    await session.start()
    posted = cluster_in_memory.sandboxes()[0]
    entries = posted["spec"]["manifest"]["entries"]
    assert entries["task.md"] == {"file": {"content": "Grüße"}}
    assert entries["src/a.bin"] == {"file": {"contentBase64": "/wA="}}
    assert entries["big"] == {"localFile": {}, "permissions": "rw-------"}
    assert entries["tree"] == {"localDir": {}}
    assert entries["empty"] == {"dir": {}}
    annotations = posted["metadata"]["annotations"]
    assert annotations["sandbox-operator.dev/uploaded"] == posted["status"]["podUID"]
    assert (workspace / "big").read_bytes() == big
    assert (workspace / "big").stat().st_mode & 0o777 == 0o600
    assert (workspace / "tree/sub/run.sh").stat().st_mode & 0o777 == 0o755
    assert (workspace / "tree/data").stat().st_mode & 0o777 == 0o640
    assert (workspace / "one").read_bytes() == b"\x00\x01"
    assert (workspace / "one").stat().st_mode & 0o777 == 0o755
    await sdk.delete(session)
    assert cluster_in_memory.sandboxes() == []


# The SDK does not close its scandir iterator when it raises.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_link_in_a_local_directory_fails_the_start_and_leaves_nothing(
    sdk, workspace, tmp_path, monkeypatch, cluster_in_memory
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/link").symlink_to("/etc/passwd")
    session = await sdk.create(
        manifest=Manifest(root=str(workspace), entries={"t": LocalDir(src=Path("source"))})
    )
    with pytest.raises(LocalDirReadError):
        await session.start()
    assert cluster_in_memory.sandboxes() == []
    assert not await session.running()


async def test_secret_values_go_to_an_owned_secret_and_nowhere_else(sdk, workspace, cluster_in_memory):
    environment = Environment(
        value={"PLAIN": "visible", "TOKEN": EnvEntry(value=StrEnvValue(value="s3cr3t"), description="x")}
    )
    session = await sdk.create(manifest=Manifest(root=str(workspace), environment=environment))
    await session.start()
    posted = cluster_in_memory.sandboxes()[0]
    secret = cluster_in_memory.api.of(SECRETS)[0]
    assert posted["spec"]["manifest"]["environment"] == [
        {"name": "PLAIN", "value": "visible"},
        {
            "name": "TOKEN",
            "valueFrom": {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "TOKEN"}},
        },
    ]
    assert secret["stringData"] == {"TOKEN": "s3cr3t"}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == posted["metadata"]["uid"]
    assert "sandbox-operator.dev/awaiting-secret" not in posted["metadata"]["annotations"]
    assert "s3cr3t" not in str(posted)
    order = [
        (verb, plural) for verb, plural, _ in cluster_in_memory.api.requests if verb in ("create", "patch")
    ]
    assert order[:3] == [("create", "sandboxes"), ("create", "secrets"), ("patch", "sandboxes")]
    await sdk.delete(session)


async def test_options_reach_the_resource(cluster_in_memory, manifest):
    options = KubernetesSandboxClientOptions(
        image="python:3.13-slim",
        namespace="team",
        name="mine",
        resources={"limits": {"memory": "1Gi"}},
        egress="Internet",
        node_selector={"disk": "ssd"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        runtime_class="gvisor",
        ttl="2h",
        start_timeout=60,
        labels={"team": "a"},
        image_pull_secrets=["registry"],
        exposed_ports=8080,
    )
    assert KubernetesSandboxClientOptions.model_validate_json(options.model_dump_json()) == options
    sdk = KubernetesSandboxClient(access=cluster_in_memory)
    session = await sdk.create(manifest=manifest, options=options)
    await session.start()
    posted = cluster_in_memory.sandboxes()[0]
    assert posted["metadata"]["namespace"] == "team"
    assert posted["metadata"]["name"] == "mine"
    assert posted["metadata"]["labels"]["team"] == "a"
    spec = posted["spec"]
    assert spec["image"] == "python:3.13-slim"
    assert spec["resources"] == {"limits": {"memory": "1Gi"}}
    assert spec["network"] == {"egress": "Internet"}
    assert spec["lifecycle"] == {"startTimeout": "60s", "ttl": "2h"}
    assert spec["pod"] == {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    assert session.state.exposed_ports == (8080,)
    await sdk.delete(session)


# -- ports


async def test_exposed_ports(cluster_in_memory, manifest):
    async def echo(reader, writer):
        writer.write(b"<" + await reader.read(100) + b">")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sdk = KubernetesSandboxClient(access=cluster_in_memory)
    options = KubernetesSandboxClientOptions(exposed_ports=(port,))
    session = await sdk.create(manifest=manifest, options=options)
    await session.start()
    async with server:
        endpoint = await session.resolve_exposed_port(port)
        assert endpoint.host == "127.0.0.1"
        assert await session.resolve_exposed_port(port) == endpoint
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(b"hi")
        assert await reader.read(100) == b"<hi>"
        writer.close()
        with pytest.raises(ExposedPortUnavailableError) as caught:
            await session.resolve_exposed_port(1)
        assert caught.value.retryable is False
    await sdk.delete(session)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(endpoint.host, endpoint.port)


# -- the life of a session


async def test_create_makes_nothing_and_running_waits_for_start(sdk, manifest, cluster_in_memory):
    session = await sdk.create(manifest=manifest)
    assert cluster_in_memory.sandboxes() == []
    assert ("dry-run", "sandboxes") in [r[:2] for r in cluster_in_memory.api.requests]
    assert not await session.running()
    with pytest.raises(WorkspaceStartError):
        await session.exec("true")
    await session.start()
    assert await session.running()
    assert len(cluster_in_memory.sandboxes()) == 1
    await session.stop()
    assert await session.running()
    await session.shutdown()
    assert not await session.running()
    assert cluster_in_memory.sandboxes() == []
    assert not cluster_in_memory.connected
    await sdk.delete(session)
    await sdk.delete(session)


async def test_delete_of_a_session_that_never_started(sdk, manifest, cluster_in_memory):
    session = await sdk.create(manifest=manifest)
    await sdk.delete(session)
    assert not cluster_in_memory.connected


async def test_a_session_can_be_started_twice_and_again_after_shutdown(
    sdk, manifest, workspace, cluster_in_memory
):
    session = await sdk.create(manifest=manifest)
    await session.start()
    await session.write(Path("f"), io.BytesIO(b"mine"))
    await session.start()
    assert (workspace / "f").read_bytes() == b"mine"
    first = session.state.name
    await session.shutdown()
    await session.start()
    assert session.state.name != first
    assert await session.running()
    await sdk.delete(session)


async def test_async_with_leaves_nothing(sdk, manifest, cluster_in_memory):
    async with await sdk.create(manifest=manifest) as session:
        assert (await session.exec("echo hi")).stdout == b"hi\n"
    assert cluster_in_memory.sandboxes() == []


async def test_closing_gives_up_the_pod_even_if_saving_fails(sdk, manifest, tmp_path, cluster_in_memory):
    (tmp_path / "file").touch()
    spec = LocalSnapshotSpec(base_path=tmp_path / "file")
    with pytest.raises(Exception):  # noqa: B017, PT011 - whichever the SDK makes of it
        async with await sdk.create(manifest=manifest, snapshot=spec):
            pass
    assert cluster_in_memory.sandboxes() == []


async def test_deletion_that_waits_for_a_finalizer_counts(sdk, manifest, cluster_in_memory):
    cluster_in_memory.api.finalizer = True
    session = await sdk.create(manifest=manifest)
    await session.start()
    await sdk.delete(session)
    assert cluster_in_memory.sandboxes()[0]["metadata"]["deletionTimestamp"]
    await sdk.delete(session)


async def test_another_sandbox_of_the_same_name_is_left_alone(sdk, manifest, cluster_in_memory):
    session = await sdk.create(manifest=manifest)
    await session.start()
    cluster_in_memory.sandboxes()[0]["metadata"]["uid"] = "another"
    await sdk.delete(session)
    assert len(cluster_in_memory.sandboxes()) == 1


async def test_a_failed_deletion_is_said(sdk, manifest, cluster_in_memory):
    session = await sdk.create(manifest=manifest)
    await session.start()
    cluster_in_memory.api.refuse["delete", "sandboxes"] = [Forbidden(403, "Forbidden", "no")]
    with pytest.raises(Exception, match="no"):
        await sdk.delete(session)
    await sdk.delete(session)
    assert cluster_in_memory.sandboxes() == []


async def test_resume_of_a_living_sandbox_keeps_its_work(
    sdk, manifest, workspace, cluster_in_memory, tmp_path
):
    session = await sdk.create(manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path / "snaps"))
    await session.start()
    await session.write(Path("f"), io.BytesIO(b"saved"))
    await session.stop()
    await session.write(Path("f"), io.BytesIO(b"not saved"))
    payload = sdk.serialize_session_state(session.state)
    assert "token" not in str(payload).lower()
    await session._inner._disconnect()  # the runner crashes

    other = KubernetesSandboxClient(access=cluster_in_memory)
    resumed = await other.resume(other.deserialize_session_state(payload))
    assert not await resumed.running()
    await resumed.start()
    assert (await resumed.read(Path("f"))).read() == b"not saved"
    assert len(cluster_in_memory.sandboxes()) == 1
    await other.delete(resumed)
    assert cluster_in_memory.sandboxes() == []


async def test_resume_of_a_sandbox_that_is_gone_comes_from_the_snapshot(
    sdk, workspace, cluster_in_memory, tmp_path
):
    manifest = Manifest(
        root=str(workspace),
        entries={
            "durable": File(content=b"from the manifest"),
            "fresh": File(content=b"ephemeral", ephemeral=True),
        },
    )
    session = await sdk.create(manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path / "snaps"))
    await session.start()
    await session.write(Path("durable"), io.BytesIO(b"edited"))
    await session.rm("fresh")
    await session.stop()
    await sdk.delete(session)
    payload = sdk.serialize_session_state(session.state)

    resumed = await sdk.resume(sdk.deserialize_session_state(payload))
    assert cluster_in_memory.sandboxes() == []
    await resumed.start()
    posted = cluster_in_memory.sandboxes()[0]
    assert list(posted["spec"]["manifest"]["entries"]) == ["fresh"]
    assert posted["metadata"]["name"] != payload["name"]
    assert (workspace / "durable").read_bytes() == b"edited"
    assert (workspace / "fresh").read_bytes() == b"ephemeral"
    await sdk.delete(resumed)


async def test_resume_without_a_snapshot_fills_a_new_workspace(sdk, workspace, cluster_in_memory):
    manifest = Manifest(root=str(workspace), entries={"f": File(content=b"1")})
    session = await sdk.create(manifest=manifest)
    await session.start()
    await sdk.delete(session)
    resumed = await sdk.resume(session.state)
    await resumed.start()
    assert (workspace / "f").read_bytes() == b"1"
    await sdk.delete(resumed)


async def test_resume_finds_another_pod_and_uploads_again(
    sdk, workspace, cluster_in_memory, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").write_bytes(b"local")
    manifest = Manifest(root=str(workspace), entries={"d": LocalFile(src=Path("data"))})
    session = await sdk.create(manifest=manifest)
    await session.start()
    await session._inner._disconnect()
    sandbox = cluster_in_memory.sandboxes()[0]
    cluster_in_memory.run(sandbox, incarnation=2)
    assert not (workspace / "d").exists()
    resumed = await sdk.resume(session.state)
    await resumed.start()
    assert (workspace / "d").read_bytes() == b"local"
    sandbox = cluster_in_memory.sandboxes()[0]
    assert sandbox["metadata"]["annotations"]["sandbox-operator.dev/uploaded"] == sandbox["status"]["podUID"]
    await sdk.delete(resumed)


async def test_a_snapshot_object_seeds_a_new_session(sdk, manifest, workspace, tmp_path, cluster_in_memory):
    (tmp_path / "snaps").mkdir()
    with tarfile.open(tmp_path / "snaps/seed.tar", "w") as tar:
        member = tarfile.TarInfo("seeded")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"s"))
    session = await sdk.create(
        manifest=manifest, snapshot=LocalSnapshot(id="seed", base_path=tmp_path / "snaps")
    )
    await session.start()
    assert (workspace / "seeded").read_bytes() == b"s"
    await sdk.delete(session)


# -- faults


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NotFound(404, "Unknown", "the server could not find the requested resource"), "install the chart"),
        (Forbidden(403, "Forbidden", "user x cannot create resource"), "cannot create"),
        (ApiError(422, "Invalid", "spec.image: too long"), "too long"),
        (Unreachable(), "does not answer"),
        (Unreachable(0, "ConnectionRefused", "its certificate is not trusted"), "not trusted"),
        (Unauthorized(401, "Unauthorized", "Unauthorized"), "does not accept these credentials"),
        (CredentialsError("the token file is gone"), "token file is gone"),
    ],
)
async def test_create_says_what_is_wrong_with_the_cluster(sdk, manifest, cluster_in_memory, error, says):
    cluster_in_memory.api.refuse["dry-run", "sandboxes"] = [error]
    with pytest.raises(Exception, match=says) as caught:
        await sdk.create(manifest=manifest)
    assert caught.value.retryable is (isinstance(error, Unreachable) and error.reason == "Unreachable")
    assert not cluster_in_memory.connected


async def test_a_name_that_is_taken(cluster_in_memory, manifest):
    sdk = KubernetesSandboxClient(
        access=cluster_in_memory, options=KubernetesSandboxClientOptions(name="same")
    )
    session = await sdk.create(manifest=manifest)
    await session.start()
    with pytest.raises(ConfigurationError, match="already a sandbox"):
        await sdk.create(manifest=manifest)
    await sdk.delete(session)


@pytest.mark.parametrize("final", [True, False])
async def test_a_failure_that_the_operator_reports(cluster_in_memory, manifest, final):
    cluster_in_memory.failure = {
        "reason": "ImagePullFailed",
        "message": "no such image",
        "retryable": not final,
    }
    sdk = KubernetesSandboxClient(
        access=cluster_in_memory, options=KubernetesSandboxClientOptions(start_timeout=30 if final else 0.5)
    )
    session = await sdk.create(manifest=manifest)
    with pytest.raises(WorkspaceStartError, match="no such image") as caught:
        await session.start()
    assert caught.value.retryable is not final
    assert caught.value.context["reason"] == "ImagePullFailed"
    assert cluster_in_memory.sandboxes() == []


async def test_a_git_failure_keeps_its_class(sdk, manifest, cluster_in_memory):
    from agents.sandbox.errors import GitCloneError

    cluster_in_memory.failure = {
        "reason": "GitRefNotFound",
        "message": "no ref x",
        "entry": "repo",
        "retryable": False,
    }
    session = await sdk.create(manifest=manifest)
    with pytest.raises(GitCloneError) as caught:
        await session.start()
    assert caught.value.context["entry"] == "repo"
    assert caught.value.retryable is False


async def test_the_stream_is_tried_until_the_container_runs(sdk, manifest, cluster_in_memory):
    cluster_in_memory.not_running = 5
    session = await sdk.create(manifest=manifest)
    await session.start()
    assert cluster_in_memory.connects == 6
    await sdk.delete(session)


async def test_without_the_right_to_watch_pods_it_works_as_well(sdk, manifest, cluster_in_memory):
    cluster_in_memory.api.refuse["list", "pods"] = [Forbidden(403, "Forbidden", "no pods for you")]
    cluster_in_memory.not_running = 1
    session = await sdk.create(manifest=manifest)
    await session.start()
    await sdk.delete(session)


async def test_a_watch_that_breaks_is_taken_up_again(sdk, manifest, cluster_in_memory):
    cluster_in_memory.hold_pod = True
    session = await sdk.create(manifest=manifest)
    start = asyncio.create_task(session.start())
    await asyncio.sleep(0.05)
    cluster_in_memory.api.break_watches(Gone(410, "Expired", "too old"))
    await asyncio.sleep(0.05)
    cluster_in_memory.run(cluster_in_memory.sandboxes()[0])
    async with asyncio.timeout(5):
        await start
    await sdk.delete(session)


async def test_a_sandbox_that_is_deleted_while_it_starts(sdk, manifest, cluster_in_memory):
    cluster_in_memory.hold_pod = True
    session = await sdk.create(manifest=manifest)
    start = asyncio.create_task(session.start())
    await asyncio.sleep(0.05)
    name = cluster_in_memory.sandboxes()[0]["metadata"]["name"]
    from sandbox_api.kube import SANDBOXES

    await cluster_in_memory.api.delete(SANDBOXES, name, "default")
    with pytest.raises(WorkspaceStartError, match="does not exist"):
        await start


async def test_a_pod_that_is_replaced_while_we_wait(sdk, manifest, cluster_in_memory):
    cluster_in_memory.not_running = 3
    session = await sdk.create(manifest=manifest)
    start = asyncio.create_task(session.start())
    await asyncio.sleep(0.02)
    cluster_in_memory.run(cluster_in_memory.sandboxes()[0], incarnation=2)
    async with asyncio.timeout(5):
        await start
    assert (await session.exec("true")).ok()
    await sdk.delete(session)


@pytest.mark.parametrize("after", [0.0, 0.02, 0.06, 0.12])
async def test_a_cancelled_start_leaves_nothing(sdk, workspace, cluster_in_memory, after):
    environment = Environment(value={"TOKEN": EnvEntry(value=StrEnvValue(value="x"))})
    api = cluster_in_memory.api
    api.delay = {("create", "sandboxes"): 0.04, ("create", "secrets"): 0.04}
    cluster_in_memory.not_running = 1000
    session = await sdk.create(manifest=Manifest(root=str(workspace), environment=environment))
    start = asyncio.create_task(session.start())
    await asyncio.sleep(after)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert cluster_in_memory.sandboxes() == []
    assert not await session.running()


async def test_a_cluster_without_an_operator_is_suspected(cluster_in_memory, manifest):
    sdk = KubernetesSandboxClient(
        access=cluster_in_memory, options=KubernetesSandboxClientOptions(start_timeout=0.3)
    )
    session = await sdk.create(manifest=manifest)
    cluster_in_memory.hold_pod = True
    with pytest.raises(WorkspaceStartError, match="is sandbox-operator running") as caught:
        await session.start()
    assert caught.value.retryable
    assert cluster_in_memory.sandboxes() == []


async def test_a_start_that_failed_keeps_no_connection(sdk, manifest, cluster_in_memory):
    session = await sdk.create(manifest=manifest)
    cluster_in_memory.hold_pod = True
    start = asyncio.create_task(session.start())
    await eventually(cluster_in_memory.sandboxes)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not cluster_in_memory.connected
    cluster_in_memory.hold_pod = False
    await session.start()
    assert (await session.exec("true")).exit_code == 0
    await sdk.delete(session)
    assert not cluster_in_memory.connected


async def test_a_session_goes_on_in_another_event_loop(sdk, manifest, cluster_in_memory, backend):
    session = await sdk.create(manifest=manifest)
    await session.start()
    connections, backend.connections = backend.connections, []

    async def elsewhere() -> bytes:
        assert await session.running()
        said = (await session.exec("echo hi")).stdout
        await sdk.delete(session)
        return said

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == b"hi\n"
    assert cluster_in_memory.sandboxes() == []
    backend.connections = connections


async def test_sessions_of_an_event_loop_that_ended_hold_no_connections(
    sdk, manifest, cluster_in_memory, backend
):
    async def crash() -> None:
        await (await sdk.create(manifest=manifest)).start()
        backend.cut()  # as it would be when its process had ended
        await asyncio.sleep(0)

    await asyncio.to_thread(asyncio.run, crash())
    assert cluster_in_memory.connected
    session = await sdk.create(manifest=manifest)
    await sdk.delete(session)
    assert not cluster_in_memory.connected


async def test_sessions_that_are_not_started_hold_no_connections(sdk, manifest, cluster_in_memory):
    cluster_in_memory.api.delay["dry-run", "sandboxes"] = 0.05
    first, second = await asyncio.gather(sdk.create(manifest=manifest), sdk.create(manifest=manifest))
    assert not cluster_in_memory.connected
    await first.start()
    assert cluster_in_memory.connected
    await sdk.create(manifest=manifest)
    await sdk.delete(second)
    assert cluster_in_memory.connected
    saved = sdk.deserialize_session_state(sdk.serialize_session_state(first.state))
    await first._inner._disconnect()
    await first._inner._after_shutdown()
    resumed = await sdk.resume(saved)
    assert not cluster_in_memory.connected
    await resumed.shutdown()
    assert not cluster_in_memory.connected
    assert not cluster_in_memory.sandboxes()


async def test_a_connection_is_not_closed_under_another_request(sdk, manifest, cluster_in_memory):
    cluster_in_memory.api.delay["dry-run", "sandboxes"] = 0.2
    slow = asyncio.create_task(sdk.create(manifest=manifest))
    await asyncio.sleep(0.05)
    with pytest.raises(ConfigurationError):
        await sdk.attach("no-such")
    assert cluster_in_memory.connected
    await slow
    assert not cluster_in_memory.connected


@pytest.mark.parametrize("source", [LocalFile(src=Path("gone")), LocalDir(src=Path("gone"))])
async def test_local_sources_that_are_missing_make_nothing(
    sdk, workspace, cluster_in_memory, tmp_path, monkeypatch, source
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("x")
    entries = {"a": LocalFile(src=Path("there")), "b": source}
    session = await sdk.create(manifest=Manifest(root=str(workspace), entries=entries))
    with pytest.raises((LocalFileReadError, LocalDirReadError)):
        await session.start()
    assert ("create", "sandboxes") not in {request[:2] for request in cluster_in_memory.api.requests}


async def test_a_local_source_outside_of_what_is_trusted_makes_nothing(
    sdk, workspace, cluster_in_memory, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    (tmp_path / "secret").write_text("x")
    monkeypatch.chdir(tmp_path / "here")
    entries = {"a": LocalFile(src=tmp_path / "secret")}
    session = await sdk.create(manifest=Manifest(root=str(workspace), entries=entries))
    with pytest.raises(LocalFileReadError):
        await session.start()
    assert ("create", "sandboxes") not in {request[:2] for request in cluster_in_memory.api.requests}


async def test_a_path_that_no_file_can_have_is_refused_at_once(session):
    endless = Path("a/../" * 280_000 + "f")
    for asked in (
        lambda: session.read(endless),
        lambda: session.write(endless, io.BytesIO(b"x")),
        lambda: session.ls(endless),
        lambda: session.mkdir(endless),
        lambda: session.rm(endless),
        lambda: session.mv("a", endless),
    ):
        with pytest.raises(SandboxError, match="at most 4096") as caught:
            await asked()
        assert len(str(caught.value)) < 1000
        assert caught.value.retryable is False
    with pytest.raises(OperationError, match="at most 4096"):
        await session._inner.agent.read(session.state.manifest.root + "/ü" * 1500)


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
async def test_an_archive_that_grows_a_thousandfold_takes_little_memory(session, workspace, compress):
    size = 200 << 20
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = size
        archive.addfile(member, io.BytesIO(bytes(size)))
    bomb = compress(packed.getvalue())
    assert len(bomb) < size // 500
    del packed
    tracemalloc.start()
    try:
        await session.hydrate_workspace(io.BytesIO(bomb))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert (workspace / "zeros").stat().st_size == size


async def test_an_exposed_port_leads_there_from_a_second_event_loop(cluster_in_memory, manifest):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = KubernetesSandboxClientOptions(exposed_ports=(port,))
        sdk = KubernetesSandboxClient(access=cluster_in_memory, options=options)
        session = await sdk.create(manifest=manifest)
        await session.start()

        async def reached() -> bool:
            endpoint = await session.resolve_exposed_port(port)
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            accepted, _ = await asyncio.to_thread(server.accept)
            accepted.sendall(b"x")
            accepted.close()
            writer.close()
            return True

        server.settimeout(10)
        assert await reached()
        first = dict(session._inner._ports._servers)

        async def elsewhere() -> None:
            assert await reached()
            await sdk.delete(session)

        await asyncio.to_thread(asyncio.run, elsewhere())
        for one in first.values():
            one.close()


async def test_a_create_whose_answer_is_lost_is_found_again(sdk, manifest, cluster_in_memory):
    cluster_in_memory.api.lose["create", "sandboxes"] = [Unreachable()]
    session = await sdk.create(manifest=manifest)
    await session.start()
    assert len(cluster_in_memory.sandboxes()) == 1
    await sdk.delete(session)
    assert cluster_in_memory.sandboxes() == []


async def test_a_secret_that_cannot_be_made_takes_the_sandbox_with_it(sdk, workspace, cluster_in_memory):
    environment = Environment(value={"TOKEN": EnvEntry(value=StrEnvValue(value="s3cr3t"))})
    cluster_in_memory.api.refuse["create", "secrets"] = [Forbidden(403, "Forbidden", "no secrets for you")]
    session = await sdk.create(manifest=Manifest(root=str(workspace), environment=environment))
    with pytest.raises(WorkspaceStartError, match="no secrets") as caught:
        await session.start()
    assert "s3cr3t" not in repr(caught.value) + str(caught.value.context)
    assert cluster_in_memory.sandboxes() == []
    session.state.manifest = Manifest(root=str(workspace))
    await session.start()
    await sdk.delete(session)


async def test_what_is_not_supported_is_refused_before_anything_is_asked(sdk, workspace, cluster_in_memory):
    from agents.sandbox.types import User

    with pytest.raises(ConfigurationError, match="run_as"):
        await sdk.create(manifest=Manifest(root=str(workspace), users=[User(name="bob")]))
    assert not any(verb == "create" for verb, _, _ in cluster_in_memory.api.requests)


async def test_a_foreign_session_or_state_is_a_type_error(sdk):
    from agents.sandbox.sandboxes import UnixLocalSandboxClient

    other = UnixLocalSandboxClient()
    foreign = await other.create(manifest=Manifest(), options=None)
    with pytest.raises(TypeError):
        await sdk.delete(foreign)
    with pytest.raises(TypeError):
        await sdk.resume(foreign.state)
    await other.delete(foreign)


# -- sandboxes of others


async def test_attach_works_in_a_sandbox_of_others_and_leaves_it(sdk, workspace, cluster_in_memory):
    from sandbox_api.kube import SANDBOXES

    body = {
        "apiVersion": "sandbox-operator.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {
            "manifest": {"root": str(workspace), "entries": {"task.md": {"file": {"content": "do it"}}}},
            "ports": [8080],
        },
    }
    await cluster_in_memory.api.create(SANDBOXES, body, "default", field_manager="kubectl")
    session = await sdk.attach("theirs")
    assert not await session.running()
    async with session:
        assert await session.running()
        assert (await session.read(Path("task.md"))).read() == b"do it"
        await session.write(Path("report.md"), io.BytesIO(b"done"))
        assert session.state.exposed_ports == (8080,)
    assert not await session.running()
    assert len(cluster_in_memory.sandboxes()) == 1
    await sdk.delete(session)
    assert len(cluster_in_memory.sandboxes()) == 1
    assert (workspace / "report.md").read_bytes() == b"done"
    with pytest.raises(ConfigurationError, match="no sandbox default/none"):
        await sdk.attach("none")


async def test_attaching_where_the_kind_is_not_known_is_told_from_a_missing_sandbox(sdk, cluster_in_memory):
    with pytest.raises(ConfigurationError, match="no sandbox default/none"):
        await sdk.attach("none")
    cluster_in_memory.api.refuse["get", "sandboxes"] = [NotFound(404, "Not Found", "404 page not found")]
    with pytest.raises(ConfigurationError, match="install the chart"):
        await sdk.attach("none")


async def test_an_attached_sandbox_that_goes_is_not_replaced(sdk, workspace, cluster_in_memory):
    from sandbox_api.kube import SANDBOXES

    body = {
        "apiVersion": "sandbox-operator.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"manifest": {"root": str(workspace)}},
    }
    await cluster_in_memory.api.create(SANDBOXES, body, "default", field_manager="kubectl")
    session = await sdk.attach("theirs")
    await cluster_in_memory.api.delete(SANDBOXES, "theirs", "default")
    with pytest.raises(WorkspaceStartError, match="does not exist"):
        await session.start()
    assert cluster_in_memory.sandboxes() == []
    await sdk.delete(session)
