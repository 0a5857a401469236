"""The operator's own share: create to pod object, plus pod Ready to Sandbox Ready.

No node takes these pods: this program says what a kubelet would say of them. So nothing but the API server and the
operator is in the figure, the kubelet's rounds of a second are not, and many samples cost little.
``start.py`` measures the same on pods that really start.
"""

import asyncio
import json
import random
import time
from typing import Any

from sandbox_api.kube import PODS, SANDBOXES, Object

from .cluster import FIELD_MANAGER, Bench, pod_watcher, sandbox_watcher
from .figures import Bound, Figure, at_percentile

NOWHERE = {"sandbox-bench.invalid/node": "none"}
P50 = Bound("value", 12)
P99 = Bound("value", 40)


async def measure(bench: Bench) -> list[Figure]:
    """Create, tell that it runs, delete; a bare pod between each two."""
    wanted = bench.samples(200, 20)
    created: list[float] = []
    told: list[float] = []
    both: list[float] = []
    bare: list[float] = []
    async with (
        pod_watcher().watching(bench.namespace) as pods,
        sandbox_watcher().watching(bench.namespace) as sandboxes,
    ):
        # The first sandbox of a namespace pays for its network policies: it is no sample.
        for number in range(wanted + 1):
            name = f"bare-{number}"
            body = bench.bare_pod(name)
            body["spec"]["nodeSelector"] = NOWHERE
            began = time.perf_counter()
            await bench.create(PODS, body)
            there = await pods.when(name, "there") - began
            await bench.api.delete(PODS, name, bench.namespace, grace_period_seconds=0)

            name = f"share-{number}"
            began = time.perf_counter()
            await bench.create(SANDBOXES, bench.sandbox(name, pod={"nodeSelector": NOWHERE}))
            first = await pods.when(name, "there") - began
            # Long enough for the operator to have told that nobody takes the pod, which is no part of a start.
            await asyncio.sleep(random.uniform(0.15, 0.25))
            await _say_that_it_runs(bench, pods.latest(name)["metadata"]["name"])
            last = await sandboxes.when(name, "ready") - await pods.when(name, "ready")
            if number:
                bare.append(there * 1000)
                created.append(first * 1000)
                told.append(last * 1000)
                both.append((first + last) * 1000)
            await bench.api.delete(SANDBOXES, name, bench.namespace)
            await asyncio.sleep(random.uniform(0.02, 0.08))
    note = (
        "create to pod object + pod Ready to Sandbox Ready; baseline: a bare pod's create to its watch event"
    )
    return [
        at_percentile("operator.share.p50", 50, both, bare, "ms", P50, note),
        at_percentile("operator.share.p99", 99, both, bare, "ms", P99, note),
        at_percentile("operator.create_to_pod.p50", 50, created, bare, "ms"),
        at_percentile("operator.ready_to_ready.p50", 50, told, [], "ms"),
    ]


async def _say_that_it_runs(bench: Bench, pod: str) -> None:
    await bench.api.patch(
        PODS, pod, bench.namespace, {"status": running()}, subresource="status", field_manager=FIELD_MANAGER
    )


def running() -> dict[str, Any]:
    """What a kubelet says of a sandbox's pod that runs."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    receipt = json.dumps({"ok": True, "entries": 1, "bytes": 9, "seconds": 0.1})

    def container(name: str, state: Object) -> Object:
        return {
            "name": name,
            "image": "none",
            "imageID": "none",
            "ready": True,
            "restartCount": 0,
            "state": state,
        }

    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "initContainerStatuses": [
            container("materialize", {"terminated": {"exitCode": 0, "message": receipt}})
        ],
        "containerStatuses": [
            container(name, {"running": {"startedAt": now}}) for name in ("keeper", "workspace")
        ],
    }
