"""What the operator writes, counted by the API server itself.

A FlowSchema for each kind of write names the operator's service account as its subject. So the API server's counter
of dispatched requests, which it keeps for each FlowSchema, counts what this one user wrote and nobody else. Requests
go on in the priority level that they had. (Of several API servers behind one address only one would be asked.)
"""

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

from sandbox_api.kube import PODS, SANDBOXES, NotFound, Object, Resource

from .cluster import FIELD_MANAGER, Bench, BenchError, sandbox_watcher
from .figures import Bound, Figure

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
FLOW_SCHEMAS = Resource("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema", namespaced=False)
SELECTOR = "app.kubernetes.io/name=sandbox-operator"
COUNTER = "apiserver_flowcontrol_dispatched_requests_total"

#: Kinds of writes: API groups and resources. Earlier ones match first; "apart" is what the bounds leave out.
KINDS: Mapping[str, tuple[list[str], list[str]]] = {
    "apart": (["", "events.k8s.io", "coordination.k8s.io"], ["events", "leases"]),
    "status": (["sandbox-operator.dev"], ["sandboxes/status"]),
    "sandbox": (["sandbox-operator.dev"], ["*"]),
    "pod": ([""], ["pods", "pods/*"]),
    "other": (["*"], ["*"]),
}
CREATE = Bound("value", 4)
DELETE = Bound("value", 2)
NONE = Bound("value", 0)
#: Nothing happens on a timer that is shorter than this, apart from the lease.
QUIET = 40.0


async def measure(bench: Bench) -> list[Figure]:
    """Create some sandboxes one by one, leave them alone, restart the operator, delete them one by one."""
    wanted = bench.samples(10, 3)
    names = [f"counted-{number}" for number in range(wanted)]
    operator = await _operator(bench)
    async with counting(bench, operator) as counter, sandbox_watcher().watching(bench.namespace) as sandboxes:
        # The namespace's shared network policies are written with its first sandbox: not with each.
        await bench.create(SANDBOXES, bench.sandbox("first"))
        await sandboxes.when("first", "ready")
        await counter.settled()
        created = await counter.since_last()
        if not created:
            raise BenchError("the API server counts none of the operator's writes: is it another user?")

        for name in names:
            await bench.create(SANDBOXES, bench.sandbox(name))
            await sandboxes.when(name, "ready")
        await counter.settled()
        created = await counter.since_last()

        await _touch(bench, names)  # each is looked at again, and there is nothing to do
        await asyncio.sleep(5 if bench.quick else QUIET)
        converged = await counter.since_last()

        await _restart(bench, operator)
        await _touch(bench, names)
        await asyncio.sleep(5)
        restarted = await counter.since_last()

        for name in names:
            await bench.delete(SANDBOXES, name)
        await counter.settled()
        deleted = await counter.since_last()
        await bench.delete(SANDBOXES, "first")
    return [
        _figure("writes.create", created, CREATE, wanted),
        _figure("writes.delete", deleted, DELETE, wanted),
        _figure("writes.converged", converged, NONE, wanted, each=False),
        _figure("writes.restart", restarted, NONE, wanted, each=False),
    ]


def _figure(name: str, counts: Mapping[str, int], bound: Bound, n: int, *, each: bool = True) -> Figure:
    total = sum(counts.values())
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
    value = total / n if each else float(total)
    return Figure(name, value, "writes", bound=bound, n=n, note=f"in all: {said}; Events and the lease apart")


async def _operator(bench: Bench) -> Object:
    """The operator's Deployment."""
    found = (await bench.api.list(DEPLOYMENTS, label_selector=SELECTOR)).items
    if len(found) != 1:
        raise BenchError(f"there are {len(found)} Deployments with the label {SELECTOR}, not 1")
    return found[0]


async def _touch(bench: Bench, names: list[str]) -> None:
    """A change that concerns nobody: the operator must look at each sandbox, and find nothing to do."""
    for name in names:
        body = {"metadata": {"annotations": {"bench.invalid/touched": secrets.token_hex(4)}}}
        await bench.api.patch(SANDBOXES, name, bench.namespace, body, field_manager=FIELD_MANAGER)


async def _restart(bench: Bench, operator: Object) -> None:
    """Delete the operator's pods, and wait until new ones are ready."""
    namespace, name = operator["metadata"]["namespace"], operator["metadata"]["name"]
    old = (await bench.api.list(PODS, namespace, label_selector=SELECTOR)).items
    uids = {pod["metadata"]["uid"] for pod in old}
    for pod in old:
        with suppress(NotFound):
            await bench.api.delete(PODS, pod["metadata"]["name"], namespace)
    try:
        async with asyncio.timeout(120):
            while True:
                now = (await bench.api.list(PODS, namespace, label_selector=SELECTOR)).items
                status = (await bench.api.get(DEPLOYMENTS, name, namespace)).get("status") or {}
                ready = status.get("readyReplicas", 0) == status.get("replicas", 0) > 0
                if ready and now and not uids & {pod["metadata"]["uid"] for pod in now}:
                    return
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise BenchError("the operator did not come back within 120 s of its restart") from None


class Counter:
    """Writes of one user by kind, as the API server counts them."""

    def __init__(self, bench: Bench, prefix: str) -> None:
        self._bench = bench
        self._prefix = prefix
        self._last: dict[str, int] = {}

    async def read(self) -> dict[str, int]:
        """All so far."""
        text = (await self._bench.api.raw("GET", "/metrics")).decode()
        return counted(text, self._prefix)

    async def since_last(self) -> dict[str, int]:
        """Those since this was last asked, without what the bounds leave out."""
        before, self._last = self._last, await self.read()
        grown = {kind: self._last[kind] - before.get(kind, 0) for kind in self._last}
        return {kind: count for kind, count in grown.items() if count and kind != "apart"}

    async def settled(self) -> None:
        """Wait until nothing has been written for two seconds."""
        before: dict[str, int] = {}
        for _ in range(30):
            now = {kind: count for kind, count in (await self.read()).items() if kind != "apart"}
            if now == before:
                return
            before = now
            await asyncio.sleep(2)
        raise BenchError("the operator goes on writing")


def counted(metrics: str, prefix: str) -> dict[str, int]:
    """The counters of our FlowSchemas by kind, from the text of /metrics."""
    found: dict[str, int] = {}
    for match in re.finditer(rf"^{COUNTER}\{{([^}}]*)\}} (\S+)$", metrics, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
        schema = labels.get("flow_schema", "")
        if schema.startswith(f"{prefix}-"):
            kind = schema.removeprefix(f"{prefix}-")
            found[kind] = found.get(kind, 0) + int(float(match[2]))
    return found


@asynccontextmanager
async def counting(bench: Bench, operator: Object) -> AsyncGenerator[Counter, None]:
    """Have the API server count the operator's writes while the context lasts."""
    account = operator["spec"]["template"]["spec"].get("serviceAccountName", "default")
    namespace = operator["metadata"]["namespace"]
    prefix = f"sandbox-bench-{secrets.token_hex(3)}"
    made: list[str] = []
    try:
        for number, kind in enumerate(KINDS):
            body = flow_schema(f"{prefix}-{kind}", kind, 100 + number, namespace, account)
            await bench.api.create(FLOW_SCHEMAS, body, field_manager=FIELD_MANAGER)
            made.append(f"{prefix}-{kind}")
        await asyncio.sleep(2)  # the API server takes them in by a watch of its own
        yield Counter(bench, prefix)
    finally:
        for name in made:
            with suppress(NotFound):
                await bench.api.delete(FLOW_SCHEMAS, name)


def flow_schema(name: str, kind: str, precedence: int, namespace: str, account: str) -> Object:
    """Matches one kind of write of one service account."""
    groups, resources = KINDS[kind]
    return {
        "metadata": {"name": name},
        "spec": {
            "matchingPrecedence": precedence,
            "priorityLevelConfiguration": {"name": "workload-low"},
            "rules": [
                {
                    "subjects": [
                        {
                            "kind": "ServiceAccount",
                            "serviceAccount": {"namespace": namespace, "name": account},
                        }
                    ],
                    "resourceRules": [
                        {
                            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
                            "apiGroups": groups,
                            "resources": resources,
                            "clusterScope": True,
                            "namespaces": ["*"],
                        }
                    ],
                }
            ],
        },
    }
