"""The typed API on a cluster in memory with a real agent."""

import asyncio

import pytest
from sandbox_api.kube import SANDBOXES, Gone, Unreachable

from runner_client import Sandboxes
from runner_client.failures import SandboxFailedError, SandboxGoneError, SandboxTimeoutError


@pytest.fixture
def sandboxes(cluster_in_memory):
    return Sandboxes(access=cluster_in_memory)


def ready(cluster, status="True", **more):
    item = cluster.sandboxes()[0]
    item["status"] = {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "Ready",
                "status": status,
                "reason": "Available",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        **more,
    }
    cluster.api.put("MODIFIED", SANDBOXES, item)


async def test_the_whole_way(sandboxes, cluster_in_memory, workspace):
    async with sandboxes:
        made = await sandboxes.create(
            {"image": "debian:13", "manifest": {"root": str(workspace), "entries": {"d": {"dir": {}}}}},
            labels={"team": "a"},
        )
        assert made.metadata.name.startswith("sbx-")
        assert (await sandboxes.get(made.metadata.name)).metadata.uid == made.metadata.uid
        assert [s.metadata.name for s in await sandboxes.list()] == [made.metadata.name]
        async with await sandboxes.connect(made) as agent:
            assert (await agent.exec(["ls"])).stdout == b"d\n"
        assert await sandboxes.delete(made, wait=5)
        assert not await sandboxes.delete(made, wait=5)
        with pytest.raises(SandboxGoneError):
            await sandboxes.get(made.metadata.name)


async def test_wait_ready_watches(sandboxes, cluster_in_memory):
    made = await sandboxes.create({}, name="s")
    waiting = asyncio.create_task(sandboxes.wait_ready(made, timeout=5))
    await asyncio.sleep(0.05)
    before = len(cluster_in_memory.api.requests)
    ready(cluster_in_memory, "False")
    await asyncio.sleep(0.05)
    assert not waiting.done()
    ready(cluster_in_memory)
    assert (await waiting).metadata.name == "s"
    assert len(cluster_in_memory.api.requests) == before


async def test_a_stale_ready_is_not_believed(sandboxes, cluster_in_memory):
    made = await sandboxes.create({}, name="s")
    cluster_in_memory.sandboxes()[0]["metadata"]["generation"] = 2
    ready(cluster_in_memory)
    with pytest.raises(SandboxTimeoutError):
        await sandboxes.wait_ready(made, timeout=0.1)


@pytest.mark.parametrize("error", [Gone(410, "Expired", "old"), Unreachable()])
async def test_a_watch_that_breaks_is_taken_up_again(sandboxes, cluster_in_memory, error):
    made = await sandboxes.create({}, name="s")
    waiting = asyncio.create_task(sandboxes.wait_ready(made, timeout=5))
    await asyncio.sleep(0.05)
    cluster_in_memory.api.break_watches(error)
    ready(cluster_in_memory)
    await waiting


async def test_failures_are_raised_at_once_and_retryable_ones_when_time_is_over(sandboxes, cluster_in_memory):
    cluster_in_memory.failure = {
        "reason": "GitRefNotFound",
        "message": "no ref x",
        "entry": "repo",
        "retryable": False,
    }
    made = await sandboxes.create({}, name="s")
    with pytest.raises(SandboxFailedError) as caught:
        await sandboxes.wait_ready(made, timeout=30)
    assert (caught.value.reason, caught.value.entry, caught.value.retryable) == (
        "GitRefNotFound",
        "repo",
        False,
    )
    assert "no ref x" in str(caught.value)
    with pytest.raises(SandboxFailedError):
        await sandboxes.connect(made, timeout=30)
    cluster_in_memory.failure |= {"retryable": True, "reason": "GitHostUnreachable"}
    other = await sandboxes.create({}, name="t")
    with pytest.raises(SandboxTimeoutError) as caught:
        await sandboxes.wait_ready(other, timeout=0.1)
    assert caught.value.failure.reason == "GitHostUnreachable"


async def test_a_sandbox_that_goes_while_we_wait(sandboxes, cluster_in_memory):
    cluster_in_memory.hold_pod = True
    made = await sandboxes.create({}, name="s")
    for wait in (sandboxes.wait_ready(made, timeout=5), sandboxes.connect(made, timeout=5)):
        task = asyncio.create_task(wait)
        await asyncio.sleep(0.05)
        if cluster_in_memory.sandboxes():
            await sandboxes.delete("s")
        with pytest.raises(SandboxGoneError):
            await task


async def test_deleting_by_object_spares_a_successor(sandboxes, cluster_in_memory):
    made = await sandboxes.create({}, name="s")
    await sandboxes.delete(made)
    again = await sandboxes.create({}, name="s")
    assert not await sandboxes.delete(made)
    assert (await sandboxes.get("s")).metadata.uid == again.metadata.uid


async def test_waiting_for_a_deletion_that_hangs(sandboxes, cluster_in_memory):
    cluster_in_memory.api.finalizer = True
    made = await sandboxes.create({}, name="s")
    with pytest.raises(SandboxTimeoutError, match="still being deleted"):
        await sandboxes.delete(made, wait=0.1)
