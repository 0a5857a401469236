"""Every operation of the agent client against a real agent."""

import asyncio
import io
import os
import socket
import tarfile
import time

import pytest
from local_agent import eventually

from runner_client.stream.agent import AgentClient
from runner_client.stream.errors import (
    Code,
    ConnectionLostError,
    ExistsError,
    NotFoundError,
    OperationError,
    PathRefusedError,
    StoppingError,
    from_wire,
)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int) -> None:
    await eventually(lambda: not (alive(pid)))


async def test_hello(client, workspace):
    info = await client.hello()
    assert info.root == str(workspace)
    assert info.uid == os.getuid()
    assert info.boot_id


# -- exec


async def test_exec_keeps_the_streams_apart_and_gives_the_code(client):
    result = await client.exec(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (result.stdout, result.stderr, result.code) == (b"out\n", b"err\n", 7)
    assert not result.timed_out


async def test_exec_runs_in_the_workspace_with_the_images_environment(client, workspace):
    result = await client.exec(["sh", "-c", 'pwd; echo "$FROM_IMAGE $EXTRA"'], env={"EXTRA": "ünï"})
    assert result.stdout.decode() == f"{workspace}\nyes ünï\n"


async def test_exec_arguments_and_output_are_exact(client):
    odd = ["a b", "'", '"', "\n", "ü", "\udcff", ""]
    result = await client.exec(["printf", r"%s\0", *odd])
    assert result.stdout == b"".join(os.fsencode(part) + b"\0" for part in odd)


async def test_exec_without_stdin_sees_its_end(client):
    assert (await client.exec(["cat"])).stdout == b""


async def test_exec_with_stdin(client):
    blob = os.urandom(3 << 20)
    assert (await client.exec(["cat"], stdin=blob)).stdout == blob
    assert (await client.exec(["cat"], stdin=io.BytesIO(b"stream"))).stdout == b"stream"


async def test_stdin_that_nobody_reads_is_no_error(client):
    result = await client.exec(["sh", "-c", "exec <&-; sleep 0.05; echo done"], stdin=bytes(20 << 20))
    assert result.stdout == b"done\n"


async def test_a_signal_is_told(client):
    result = await client.exec(["sh", "-c", "kill -9 $$"])
    assert (result.code, result.signal) == (137, 9)


async def test_what_is_not_there_or_not_executable(client, workspace):
    with pytest.raises(OperationError) as caught:
        await client.exec(["no-such-command"])
    assert caught.value.code == Code.COMMAND_NOT_FOUND
    (workspace / "text").write_text("x")
    with pytest.raises(OperationError) as caught:
        await client.exec(["./text"])
    assert caught.value.code == Code.NOT_EXECUTABLE


async def test_timeout_kills_the_whole_group(client, workspace):
    started = time.monotonic()
    result = await client.exec(["sh", "-c", "sleep 60 & echo $! > child; echo partial; wait"], timeout=0.3)
    assert result.timed_out
    assert result.stdout == b"partial\n"
    assert time.monotonic() - started < 10
    await gone(int((workspace / "child").read_text()))


async def test_cancelling_the_task_kills_the_group(client, workspace):
    task = asyncio.create_task(client.exec(["sh", "-c", "sleep 60 & echo $! > child; wait"]))
    await eventually(
        lambda: not (not (workspace / "child").exists() or not (workspace / "child").read_text())
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(int((workspace / "child").read_text()))
    assert (await client.exec(["true"])).code == 0


async def test_cancelling_while_feeding_stdin(client):
    task = asyncio.create_task(client.exec(["sleep", "60"], stdin=bytes(20 << 20)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await client.exec(["true"])).code == 0


async def test_a_background_child_that_keeps_the_pipe_does_not_hold_the_answer(client):
    started = time.monotonic()
    result = await client.exec(["sh", "-c", "sleep 30 & echo done"])
    assert result.stdout == b"done\n"
    assert time.monotonic() - started < 10


async def test_output_of_100_mb_comes_whole(client):
    result = await client.exec(["sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x"])
    assert len(result.stdout) == 100_000_000
    assert result.stdout.count(b"x") == 100_000_000


async def test_output_is_bounded(backend):
    async with AgentClient(backend, max_output=1 << 20) as client:
        with pytest.raises(OperationError) as caught:
            await client.exec(["yes"])
        assert caught.value.code == Code.TOO_LARGE
        assert (await client.exec(["true"])).code == 0


async def test_a_stalled_reader_does_not_stop_the_others(client):
    async with client.process(["yes"]) as process:
        output = process.output()
        await anext(output)
        for _ in range(20):
            assert (await client.exec(["echo", "hi"])).stdout == b"hi\n"
        await output.aclose()


async def test_a_process_can_be_talked_to(client):
    async with client.process(["cat"], stdin=True) as process:
        output = process.output()
        await process.write(b"one\n")
        assert await anext(output) == ("stdout", b"one\n")
        await process.write(b"two\n")
        assert await anext(output) == ("stdout", b"two\n")
        await process.write_eof()
        with pytest.raises(StopAsyncIteration):
            await anext(output)
        assert process.result.code == 0


async def test_a_process_can_be_signalled_and_cancelled(client):
    async with client.process(["sleep", "60"]) as process:
        await process.signal(15)
        assert [piece async for piece in process.output()] == []
        assert process.result.signal == 15
    async with client.process(["sleep", "60"]) as process:
        await process.cancel()
        assert [piece async for piece in process.output()] == []
        assert process.result.code > 128


async def test_a_terminal(client):
    async with client.process(["sh", "-c", "stty size; tty"], tty=True, rows=30, columns=100) as process:
        text = b"".join([data async for _, data in process.output()])
    assert b"30 100" in text
    assert b"/dev/pts/" in text


async def test_fifty_at_once(client):
    results = await asyncio.gather(*(client.exec(["echo", str(i)]) for i in range(50)))
    assert [int(r.stdout) for r in results] == list(range(50))


# -- files


@pytest.mark.parametrize("size", [0, 1, 1024, (64 << 10) - 5, 64 << 10, 1 << 20, 5_000_001])
async def test_write_and_read_are_exact(client, workspace, size):
    blob = os.urandom(size)
    path = str(workspace / "blob")
    assert await client.write(path, blob) == size
    assert (workspace / "blob").read_bytes() == blob
    assert await client.read(path) == blob
    assert await client.write(path, io.BytesIO(blob[::-1])) == size
    assert await client.read(path) == blob[::-1]


async def test_reading_a_part(client, workspace):
    (workspace / "f").write_bytes(b"0123456789")
    assert await client.read(str(workspace / "f"), offset=3, limit=4) == b"3456"
    assert await client.read(str(workspace / "f"), limit=0) == b""
    assert await client.read(str(workspace / "f"), limit=100) == b"0123456789"


async def test_writing_from_a_file_and_from_a_generator(client, workspace, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5 << 20))
    with source.open("rb") as stream:
        await client.write(str(workspace / "copy"), stream)
    assert (workspace / "copy").read_bytes() == source.read_bytes()

    async def generate():
        for i in range(100):
            yield bytes([i]) * 1000

    await client.write(str(workspace / "gen"), generate())
    assert (workspace / "gen").read_bytes() == b"".join(bytes([i]) * 1000 for i in range(100))


async def test_modes_parents_and_exclusive(client, workspace):
    path = str(workspace / "a" / "b" / "c")
    with pytest.raises(NotFoundError):
        await client.write(path, b"x")
    await client.write(path, b"x", parents=True, mode=0o755)
    assert (workspace / "a/b/c").stat().st_mode & 0o7777 == 0o755
    await client.write(path, b"y")
    assert (workspace / "a/b/c").stat().st_mode & 0o7777 == 0o755
    with pytest.raises(ExistsError):
        await client.write(path, b"z", exclusive=True)
    (workspace / "dangling").symlink_to("nowhere")
    with pytest.raises(ExistsError):
        await client.write(str(workspace / "dangling"), b"z", exclusive=True)
    assert await client.read(path) == b"y"


async def test_a_refused_large_upload_says_why(client, workspace):
    (workspace / "dir").mkdir()
    with pytest.raises(OperationError) as caught:
        await client.write(str(workspace / "dir"), bytes(30 << 20))
    assert caught.value.code == Code.IS_A_DIRECTORY
    assert list(workspace.iterdir()) == [workspace / "dir"]


async def test_an_upload_whose_source_fails_leaves_nothing(client, workspace):
    async def broken():
        yield bytes(1 << 20)
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        await client.write(str(workspace / "f"), broken())
    await client.hello()
    await eventually(lambda: not (list(workspace.iterdir())))


async def test_list_and_stat(client, workspace):
    names = ["a b", "-rf", "line\nbreak", " lead", "ü", os.fsdecode(b"\xff\xfe"), "x -> y"]
    for name in names:
        (workspace / name).write_bytes(b"12")
    (workspace / "dir").mkdir(mode=0o750)
    (workspace / "link").symlink_to("a b")
    os.mkfifo(workspace / "fifo")
    entries = {entry.name: entry for entry in await client.list(str(workspace))}
    assert set(entries) == {*names, "dir", "link", "fifo"}
    assert (entries["ü"].kind, entries["ü"].size) == ("file", 2)
    assert (entries["dir"].kind, entries["dir"].mode & 0o777) == ("directory", 0o750)
    assert (entries["link"].kind, entries["link"].link) == ("link", "a b")
    assert entries["fifo"].kind == "other"
    for name in names:
        assert (await client.stat(str(workspace / name))).size == 2
    assert (await client.stat(str(workspace / "link"))).kind == "file"
    assert (await client.stat(str(workspace / "link"), follow=False)).kind == "link"
    with pytest.raises(NotFoundError):
        await client.stat(str(workspace / "none"))


async def test_a_large_directory(client, workspace):
    for i in range(12_000):
        (workspace / f"file-with-a-rather-long-name-{i:06}").touch()
    assert len(await client.list(str(workspace))) == 12_000


async def test_mkdir_remove_move(client, workspace):
    root = str(workspace)
    await client.mkdir(f"{root}/d/e", parents=True)
    await client.mkdir(f"{root}/d/e", parents=True)
    with pytest.raises(ExistsError):
        await client.mkdir(f"{root}/d")
    with pytest.raises(OperationError) as caught:
        await client.remove(f"{root}/d")
    assert caught.value.code == Code.NOT_EMPTY
    await client.write(f"{root}/d/f", b"1")
    await client.move(f"{root}/d/f", f"{root}/g")
    await client.write(f"{root}/h", b"2")
    with pytest.raises(ExistsError):
        await client.move(f"{root}/g", f"{root}/h")
    await client.move(f"{root}/g", f"{root}/h", replace=True)
    assert (workspace / "h").read_bytes() == b"1"
    assert await client.remove(f"{root}/d", recursive=True) >= 2
    with pytest.raises(NotFoundError):
        await client.remove(f"{root}/d")
    await client.remove(f"{root}/d", missing_ok=True)


async def test_paths_are_confined(client, workspace, tmp_path):
    (tmp_path / "secret").write_text("s")
    (workspace / "out").symlink_to(tmp_path)
    for path in (f"{workspace}/out/secret", f"{workspace}/../secret", str(tmp_path / "secret")):
        with pytest.raises(PathRefusedError):
            await client.read(path)
        with pytest.raises(PathRefusedError):
            await client.write(path, b"x")
    await client.write(str(tmp_path / "granted" / "f"), b"ok")
    (tmp_path / "read-only" / "f").write_bytes(b"ro")
    assert await client.read(str(tmp_path / "read-only" / "f")) == b"ro"
    with pytest.raises(PathRefusedError) as caught:
        await client.write(str(tmp_path / "read-only" / "g"), b"x")
    assert caught.value.code == Code.READ_ONLY


async def test_archive_and_extract(client, workspace):
    (workspace / "d").mkdir()
    (workspace / "d/f").write_bytes(b"1")
    (workspace / "d/run").write_bytes(b"#!/bin/sh\n")
    (workspace / "d/run").chmod(0o755)
    (workspace / "d/link").symlink_to("f")
    (workspace / "skipped").mkdir()
    (workspace / "skipped/x").write_bytes(b"2")
    tar = b"".join([piece async for piece in client.archive(str(workspace), skip=["skipped"])])
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        names = opened.getnames()
    assert {name.removeprefix("./") for name in names} >= {"d", "d/f", "d/run", "d/link"}
    assert not any("skipped" in name for name in names)
    await client.mkdir(f"{workspace}/copy")
    members, size = await client.extract(f"{workspace}/copy", tar)
    assert members >= 4
    assert size == 11
    assert (workspace / "copy/d/run").stat().st_mode & 0o777 == 0o755
    assert (workspace / "copy/d/link").readlink().name == "f"


async def test_extract_refuses_what_escapes(client, workspace):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("../evil")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(OperationError) as caught:
        await client.extract(str(workspace), buffer.getvalue())
    assert caught.value.code in (Code.INVALID_ARCHIVE, Code.PATH_ESCAPES)


async def test_extract_obeys_limits(client, workspace):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for i in range(10):
            member = tarfile.TarInfo(f"f{i}")
            member.size = 1000
            tar.addfile(member, io.BytesIO(bytes(1000)))
    for limit in ({"max_members": 3}, {"max_bytes": 2500}):
        with pytest.raises(OperationError) as caught:
            await client.extract(str(workspace), buffer.getvalue(), **limit)
        assert caught.value.code == Code.TOO_LARGE


async def test_forward(client):
    async def echo(reader, writer):
        writer.write(b"<" + await reader.read(100) + b">")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        stream = await client.forward(server.sockets[0].getsockname()[1])
        await stream.write(b"hi")
        assert await stream.read(100) == b"<hi>"
        stream.close()


async def test_forward_to_nobody(client):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(OperationError) as caught:
            await client.forward(port)
    assert caught.value.code == Code.CONNECTION_REFUSED
    assert caught.value.retryable


async def test_more_at_once_than_a_connection_takes_waits(client, workspace):
    await asyncio.gather(*[client.write(str(workspace / f"f{i}"), b"x") for i in range(400)])
    assert len(await client.list(str(workspace))) == 400
    reads = [client.read(str(workspace / f"f{i}")) for i in range(300)]
    ran = [client.exec(["true"], timeout=60) for _ in range(300)]
    results = await asyncio.gather(*reads, *ran)
    assert results[:300] == [b"x"] * 300
    assert {result.code for result in results[300:]} == {0}


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e9])
async def test_a_timeout_that_never_comes_is_none(client, seconds):
    assert (await client.exec(["true"], timeout=seconds)).code == 0


async def test_a_timeout_that_is_over_and_one_that_is_no_number(client):
    assert (await client.exec(["sleep", "60"], timeout=-1)).timed_out
    with pytest.raises(OperationError, match="a number of seconds"):
        await client.exec(["true"], timeout=float("nan"))


async def test_requests_longer_than_the_agent_takes(client):
    for asked in (client.exec(["echo", "x" * (2 << 20)]), client.read("/" + "x" * (2 << 20))):
        with pytest.raises(OperationError, match="the agent takes") as caught:
            await asked
        assert caught.value.code == Code.TOO_LARGE


# -- breaks


async def test_after_a_break_the_next_use_connects_again(client, backend, workspace):
    await client.write(str(workspace / "f"), b"1")
    backend.cut()
    assert await client.read(str(workspace / "f")) == b"1"


async def test_what_may_have_happened_is_not_repeated(client, backend, workspace):
    task = asyncio.create_task(client.exec(["sh", "-c", "echo x >> ran; sleep 60"]))
    await eventually(lambda: (workspace / "ran").exists())
    backend.cut()
    with pytest.raises(ConnectionLostError) as caught:
        await task
    assert not caught.value.retryable
    assert (await client.exec(["cat", "ran"])).stdout == b"x\n"


async def test_what_changes_nothing_is_asked_again(client, backend, workspace):
    (workspace / "big").write_bytes(bytes(40 << 20))
    await client.connect()
    task = asyncio.create_task(client.read(str(workspace / "big")))
    await asyncio.sleep(0.003)
    backend.cut()
    assert len(await task) == 40 << 20


async def test_all_that_changes_nothing_is_asked_again_after_one_break(client, backend, workspace):
    (workspace / "big").write_bytes(bytes(20 << 20))
    await client.connect()
    tasks = [asyncio.create_task(client.read(str(workspace / "big"))) for _ in range(4)]
    await asyncio.sleep(0.003)
    backend.cut()
    assert [len(content) for content in await asyncio.gather(*tasks)] == [20 << 20] * 4


async def test_another_event_loop_connects_anew(client, backend):
    assert (await client.exec(["echo", "1"])).stdout == b"1\n"
    connections = backend.connections

    async def elsewhere() -> bytes:
        backend.connections = []
        assert not client.connected
        said = (await client.exec(["echo", "2"])).stdout
        backend.cut()
        await asyncio.sleep(0)
        return said

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == b"2\n"
    backend.connections = connections
    assert not client.connected
    assert (await client.exec(["echo", "3"])).stdout == b"3\n"


async def test_a_restarted_agent_is_noticed(client, backend):
    before = (await client.connect()).boot_id
    await backend.stop()
    await backend.start()
    await client.hello()
    assert client.info.boot_id != before


async def test_an_unfinished_upload_leaves_nothing_after_a_break(client, backend, workspace):
    async def endless():
        while True:
            yield bytes(1 << 20)
            await asyncio.sleep(0)

    task = asyncio.create_task(client.write(str(workspace / "f"), endless()))
    await asyncio.sleep(0.1)
    backend.cut()
    with pytest.raises(ConnectionLostError):
        await task
    await eventually(lambda: not (list(workspace.iterdir())))


async def test_cancelling_at_any_moment_leaves_no_stream_and_no_process(client, workspace):
    import random

    chance = random.Random(7)
    blob = bytes(300_000)

    async def one(i: int) -> None:
        path = str(workspace / f"f{i}")
        work = chance.choice(
            [
                lambda: client.exec(["sleep", "31.4159"]),
                lambda: client.exec(["cat"], stdin=blob),
                lambda: client.write(path, blob),
                lambda: client.read(path),
                lambda: client.list(str(workspace)),
            ]
        )
        task = asyncio.create_task(work())
        await asyncio.sleep(chance.random() * 0.03)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for start in range(0, 200, 50):
        await asyncio.gather(*(one(i) for i in range(start, start + 50)))
    assert client._mux._streams == {}
    assert (await client.exec(["true"])).code == 0

    async def left() -> bytes:
        found = await client.exec(
            ["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 31.415[9]'"]
        )
        return found.stdout.strip()

    async with asyncio.timeout(10):
        while await left() != b"0":  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)
    await eventually(lambda: not [p for p in workspace.iterdir() if not p.name.startswith("f")])


@pytest.mark.parametrize("code", ["stopping", "io"])
def test_agents_of_all_ages_say_that_they_are_stopping(code):
    error = from_wire({"code": code, "message": "the agent is stopping"})
    assert type(error) is StoppingError
    assert error.retryable
