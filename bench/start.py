"""Pods that really start: create to Ready, and create to the first command's answer, against a bare pod.

The kubelet looks at its containers once a second, so each start begins at a random moment of that second.
"""

import asyncio
import random
import time

from sandbox_api.kube import PODS, SANDBOXES

from runner_client.sandboxes import Sandboxes

from .cluster import Bench, BenchError, Watcher, pod_watcher, sandbox_watcher
from .figures import Bound, Figure, at_percentile, times, trimmed_mean
from .operator_latency import P50, P99

READY = Bound("ratio", 2.3)
FIRST_ANSWER = Bound("ratio", 1.5)
#: Bare pods for each sandbox: both ratios stand on them, and they are quick.
_BARE = 2


async def measure(bench: Bench) -> list[Figure]:
    """One of each in turn, each alone on the node."""
    wanted = bench.samples(30)
    bare: list[float] = []
    bare_seen: list[float] = []
    ready: list[float] = []
    share: list[float] = []
    answer: list[float] = []
    async with (
        pod_watcher().watching(bench.namespace) as pods,
        sandbox_watcher().watching(bench.namespace) as sandboxes,
        Sandboxes(bench.namespace) as client,
    ):
        for number in range(wanted + 1):  # the first of each is no sample: caches fill, policies are made
            ones = [await _bare(bench, pods, f"bare-{number}-{again}") for again in range(_BARE)]
            two = await _sandbox(bench, pods, sandboxes, f"ready-{number}")
            three = await _first_answer(bench, client, f"answer-{number}")
            if number:
                bare_seen += [seen for seen, _ in ones]
                bare += [ready for _, ready in ones]
                share.append(two[0])
                ready.append(two[1])
                answer.append(three)
    note = "as operator.share, on pods that a kubelet starts"
    means = "means without the outer tenths"
    return [
        at_percentile("start.operator_share.p50", 50, share, bare_seen, "ms", P50, note),
        at_percentile("start.operator_share.p99", 99, share, bare_seen, "ms", P99, note),
        times(
            "start.sandbox_ready",
            ready,
            bare,
            "ms",
            READY,
            f"{means}; baseline: a bare pod with an emptyDir",
            trimmed_mean,
        ),
        times(
            "start.first_answer",
            answer,
            bare,
            "ms",
            FIRST_ANSWER,
            f"{means}; create to the answer of a command",
            trimmed_mean,
        ),
    ]


async def _pause() -> None:
    await asyncio.sleep(random.uniform(0, 1))


async def _bare(bench: Bench, pods: Watcher, name: str) -> tuple[float, float]:
    """Milliseconds from create to the object's watch event, and to Ready."""
    await _pause()
    began = time.perf_counter()
    await bench.create(PODS, bench.bare_pod(name))
    there = await pods.when(name, "there") - began
    ready = await pods.when(name, "ready") - began
    await bench.delete(PODS, name)
    return there * 1000, ready * 1000


async def _sandbox(bench: Bench, pods: Watcher, sandboxes: Watcher, name: str) -> tuple[float, float]:
    """Milliseconds of the operator's share, and from create to Ready."""
    await _pause()
    began = time.perf_counter()
    await bench.create(SANDBOXES, bench.sandbox(name))
    ready = await sandboxes.when(name, "ready")
    share = await pods.when(name, "there") - began + ready - await pods.when(name, "ready")
    await bench.delete(SANDBOXES, name)
    await bench.pods_gone()
    return share * 1000, (ready - began) * 1000


async def _first_answer(bench: Bench, client: Sandboxes, name: str) -> float:
    """Milliseconds from create to the answer of a first command, as a program gets it."""
    await _pause()
    began = time.perf_counter()
    created = await client.create(bench.sandbox(name)["spec"], name=name)
    async with await client.connect(created) as agent:
        result = await agent.exec(["true"])
        took = time.perf_counter() - began
    if result.code != 0:
        raise BenchError(f"`true` ended with {result.code} in {name}")
    await bench.delete(SANDBOXES, name)
    await bench.pods_gone()
    return took * 1000
