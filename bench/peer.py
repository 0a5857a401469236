"""The operator's own share beside that of the controller of kubernetes-sigs/agent-sandbox, in turn on one cluster.

Measured where a cluster has both (docs/benchmarks.md says how to get there); elsewhere there is nothing to say.
As in ``operator_latency.py`` no node takes the pods, and this program says what a kubelet would.
"""

import asyncio
import random
import sys
import time

from sandbox_api.kube import PODS, SANDBOXES, NotFound, Object, Resource

from .cluster import FIELD_MANAGER, Bench, Watcher, is_ready, pod_watcher, sandbox_watcher
from .figures import Bound, Figure, times
from .operator_latency import NOWHERE, running

PEER = Resource("agents.x-k8s.io", "v1beta1", "sandboxes", "Sandbox")
RATIO = Bound("ratio", 1.1)


async def measure(bench: Bench) -> list[Figure]:
    """One of ours and one of the peer's in turn; nothing where the cluster does not serve the peer's kind."""
    try:
        await bench.api.list(PEER, bench.namespace, limit=1)
    except NotFound:
        print(f"  (peer: this cluster has no {PEER.plural}.{PEER.group})", file=sys.stderr)
        return []
    wanted = bench.samples(100)
    ours: list[float] = []
    theirs: list[float] = []
    async with (
        pod_watcher().watching(bench.namespace) as pods,
        sandbox_watcher().watching(bench.namespace) as sandboxes,
        Watcher(PEER, {"ready": is_ready}).watching(bench.namespace) as peers,
    ):
        for number in range(wanted + 1):  # the first of each is no sample
            share = await _share(
                bench,
                pods,
                sandboxes,
                SANDBOXES,
                bench.sandbox(f"ours-{number}", pod={"nodeSelector": NOWHERE}),
            )
            peer_share = await _share(bench, pods, peers, PEER, _peer(bench, f"peer-{number}"))
            if number:
                ours.append(share)
                theirs.append(peer_share)
    note = "operator.share; baseline: the same of kubernetes-sigs/agent-sandbox"
    return [times("peer.share.p50", ours, theirs, "ms", RATIO, note)]


def _peer(bench: Bench, name: str) -> Object:
    spec = bench.bare_pod(name)["spec"] | {"nodeSelector": NOWHERE}
    return {"metadata": {"name": name}, "spec": {"podTemplate": {"spec": spec}}}


async def _share(bench: Bench, pods: Watcher, owners: Watcher, kind: Resource, body: Object) -> float:
    """Milliseconds from create to the pod object, and from pod Ready to the owner's Ready, together."""
    name = body["metadata"]["name"]
    await asyncio.sleep(random.uniform(0.05, 0.15))
    began = time.perf_counter()
    await bench.create(kind, body)
    there = await pods.when(name, "there") - began
    await asyncio.sleep(random.uniform(0.15, 0.25))
    pod = pods.latest(name)
    status = running()
    if kind is PEER:
        del status["initContainerStatuses"]
        [container] = pod["spec"]["containers"]
        status["containerStatuses"] = [{**status["containerStatuses"][0], "name": container["name"]}]
        status |= {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}  # it waits for an address
    await bench.api.patch(
        PODS,
        pod["metadata"]["name"],
        bench.namespace,
        {"status": status},
        subresource="status",
        field_manager=FIELD_MANAGER,
    )
    told = await owners.when(name, "ready") - await pods.when(name, "ready")
    await bench.api.delete(kind, name, bench.namespace, propagation="Background")
    return (there + told) * 1000
