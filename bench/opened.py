"""One sandbox that runs, for what is measured in an open session."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandbox_api.kube import SANDBOXES

from runner_client.sandboxes import Sandboxes
from runner_client.stream.agent import AgentClient

from .cluster import Bench, BenchError

CONTAINER = "workspace"


@dataclass(frozen=True, slots=True)
class Opened:
    """A sandbox's name, its pod, and the agent in it."""

    name: str
    pod: str
    agent: AgentClient


@asynccontextmanager
async def opened(bench: Bench, name: str) -> AsyncGenerator[Opened, None]:
    """A sandbox that is ready, and is gone afterwards."""
    async with Sandboxes(bench.namespace) as client:
        await bench.create(SANDBOXES, bench.sandbox(name))
        try:
            ready = await client.wait_ready(name)
            if ready.status is None or ready.status.pod_name is None:
                raise BenchError(f"the status of {name} names no pod")
            async with await client.connect(ready) as agent:
                yield Opened(name, ready.status.pod_name, agent)
        finally:
            await bench.delete(SANDBOXES, name)
