"""A command and small files in an open session, against one `kubectl exec` for each."""

import asyncio
import io
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agents.sandbox.session import SandboxSession

from runner_client import KubernetesSandboxClient

from .cluster import Bench, BenchError
from .figures import Bound, Figure, quicker
from .opened import CONTAINER, Opened, opened

COMMAND = Bound("ratio", 15, at_least=True)
SMALL_FILE = Bound("ratio", 25, at_least=True)
SIZE = 1024

Operation = Callable[[], Awaitable[None]]


async def measure(bench: Bench) -> list[Figure]:
    """The typed client, the SDK's session and kubectl in turn."""
    wanted = bench.samples(30)
    async with (
        opened(bench, "commands") as sandbox,
        KubernetesSandboxClient(namespace=bench.namespace) as client,
    ):
        session = await client.attach(sandbox.name)
        async with session:
            ways = _ways(bench, sandbox, session)
            taken: dict[tuple[str, str], list[float]] = {key: [] for key in ways}
            for number in range(wanted + 2):  # two to warm up
                for key, operation in ways.items():
                    began = time.perf_counter()
                    await operation()
                    if number >= 2:
                        taken[key].append((time.perf_counter() - began) * 1000)
    figures = []
    for what, bound in (("exec_true", COMMAND), ("read_1k", SMALL_FILE), ("write_1k", SMALL_FILE)):
        baseline = taken[what, "kubectl"]
        for way in ("typed", "sdk"):
            note = "baseline: one kubectl exec; the ratio says how many times quicker"
            figures.append(quicker(f"commands.{way}.{what}", taken[what, way], baseline, "ms", bound, note))
    return figures


def _ways(bench: Bench, sandbox: Opened, session: SandboxSession) -> dict[tuple[str, str], Operation]:
    content = os.urandom(SIZE)
    path, agent = "/workspace/small.bin", sandbox.agent
    relative = Path("small.bin")

    def kubectl(*command: str, stdin: bytes | None = None, answer: bytes = b"") -> Operation:
        words = [bench.kubectl, "exec", "--namespace", bench.namespace, sandbox.pod, "-c", CONTAINER]
        words += [*(["-i"] if stdin is not None else []), "--", *command]

        async def run() -> None:
            child = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            said, complaint = await child.communicate(stdin)
            if child.returncode or said != answer:
                raise BenchError(f"{' '.join(words)}: {complaint.decode(errors='replace')[:200]}")

        return run

    async def typed_true() -> None:
        _same((await agent.exec(["true"])).code, 0)

    async def typed_write() -> None:
        _same(await agent.write(path, content), SIZE)

    async def typed_read() -> None:
        _same(await agent.read(path), content)

    async def sdk_true() -> None:
        _same((await session.exec("true", shell=False)).exit_code, 0)

    async def sdk_write() -> None:
        await session.write(relative, io.BytesIO(content))

    async def sdk_read() -> None:
        stream = await session.read(relative)
        _same(stream.read(), content)
        stream.close()

    return {
        ("write_1k", "typed"): typed_write,
        ("write_1k", "sdk"): sdk_write,
        ("write_1k", "kubectl"): kubectl("sh", "-c", f"cat > {path}", stdin=content),
        ("exec_true", "typed"): typed_true,
        ("exec_true", "sdk"): sdk_true,
        ("exec_true", "kubectl"): kubectl("true"),
        ("read_1k", "typed"): typed_read,
        ("read_1k", "sdk"): sdk_read,
        ("read_1k", "kubectl"): kubectl("cat", path, answer=content),
    }


def _same(is_: object, should: object) -> None:
    """A quick wrong answer is worth nothing."""
    if is_ != should:
        raise BenchError(f"an operation answered {is_!r:.60} instead of {should!r:.60}")
