"""A kubelet that only says things, an API that counts and fails on demand, and an operator without its host."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from sandbox_api.kube import PODS, SANDBOXES, Api, KubeClient, NotFound, Object, Reflector, Resource
from sandbox_operator.process import Operator
from sandbox_operator.settings import Settings

RECEIPT = {"ok": True, "entries": 1, "bytes": 2, "seconds": 0.1}


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def container(
    name: str,
    state: dict[str, Any],
    *,
    ready: bool = False,
    restarts: int = 0,
    last: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "image": "i",
        "imageID": "i",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
    }


def running_status() -> dict[str, Any]:
    run = {"running": {"startedAt": now()}}
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now()}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "initContainerStatuses": [
            container(
                "materialize", {"terminated": {"exitCode": 0, "message": json.dumps(RECEIPT)}}, ready=True
            )
        ],
        "containerStatuses": [container("keeper", run, ready=True), container("workspace", run, ready=True)],
    }


def init_failed_status(**said: Any) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": 1, "message": json.dumps({"ok": False, **said})}}
    return {"phase": "Pending", "initContainerStatuses": [container("materialize", ended)]}


class Write(tuple[str, str]):
    """A verb and what it went to, such as ("PATCH", "sandboxes/status")."""

    __slots__ = ()


class Crash(BaseException):
    """The process died."""


class WatchedApi:
    """An Api that remembers writes, and whose ``before`` and ``after`` hooks may raise."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.writes: list[tuple[str, str]] = []
        self.before: Callable[[int, tuple[str, str]], None] = lambda number, write: None
        self.after: Callable[[int, tuple[str, str]], None] = lambda number, write: None

    def counted(self) -> list[tuple[str, str]]:
        """Writes, Events apart."""
        return [write for write in self.writes if write[1] != "events"]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)
        verbs = {"create": "POST", "patch": "PATCH", "replace": "PUT", "delete": "DELETE", "apply": "APPLY"}
        if name not in verbs:
            return method

        async def call(resource: Resource, *args: Any, **kwargs: Any) -> Any:
            where = "/".join(filter(None, (resource.plural, kwargs.get("subresource"))))
            write = (verbs[name], where)
            self.writes.append(write)
            number = len(self.counted())
            if where != "events":
                self.before(number, write)
            result = await method(resource, *args, **kwargs)
            if where != "events":
                self.after(number, write)
            return result

        return call


class Cluster:
    """One namespace of the API server, and the verbs that tests speak in."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    async def create(
        self,
        name: str = "box",
        annotations: dict[str, str] | None = None,
        finalizers: Sequence[str] = (),
        **spec: Any,
    ) -> Object:
        metadata = {"name": name, "annotations": annotations or {}, "finalizers": list(finalizers)}
        body = {"metadata": metadata, "spec": {"image": "i", **spec}}
        return await self.api.create(SANDBOXES, body, self.namespace, field_manager="test")

    async def sandbox(self, name: str = "box") -> Object:
        return await self.api.get(SANDBOXES, name, self.namespace)

    async def status(self, name: str = "box") -> dict[str, Any]:
        return (await self.sandbox(name)).get("status") or {}

    async def condition(self, kind: str, name: str = "box") -> dict[str, Any]:
        conditions = (await self.status(name)).get("conditions") or ()
        return next((c for c in conditions if c["type"] == kind), {})

    async def patch(self, patch: dict[str, Any], name: str = "box") -> Object:
        return await self.api.patch(SANDBOXES, name, self.namespace, patch, field_manager="test")

    async def delete(self, name: str = "box") -> None:
        await self.api.delete(SANDBOXES, name, self.namespace)

    async def pods(self) -> list[Object]:
        return (await self.api.list(PODS, self.namespace)).items

    async def gone(self, name: str = "box") -> bool:
        try:
            await self.sandbox(name)
        except NotFound:
            return True
        return False

    async def ready(self, name: str = "box", seconds: float = 10) -> dict[str, Any]:
        """Wait until it is Ready, and return its status."""

        async def check() -> Any:
            status = await self.status(name)
            conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
            return status if conditions.get("Ready") == "True" else None

        status: dict[str, Any] = await self.until(check, f"{name} to be ready", seconds)
        return status

    async def failure(self, reason: str, name: str = "box", seconds: float = 10) -> dict[str, Any]:
        """Wait until it fails for a reason, and return the failure."""

        async def check() -> Any:
            failure = (await self.status(name)).get("failure") or {}
            return failure if failure.get("reason") == reason else None

        failure: dict[str, Any] = await self.until(check, f"{name} to fail with {reason}", seconds)
        return failure

    async def until(self, check: Callable[[], Any], what: str, seconds: float = 10) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            result = check()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.02)
        said = [
            await self.status(o["metadata"]["name"])
            for o in (await self.api.list(SANDBOXES, self.namespace)).items
        ]
        raise AssertionError(f"waited {seconds} s in vain for {what}: {json.dumps(said, indent=1)}")

    async def say(self, pod: str, status: dict[str, Any]) -> None:
        """Write a pod's status as a kubelet would."""
        await self.api.patch(
            PODS, pod, self.namespace, {"status": status}, subresource="status", field_manager="kubelet"
        )

    async def bind(self, pod: str) -> None:
        """Give a pod a node: from then on it is deleted with grace."""
        with suppress(Exception):
            await self.api.raw(
                "POST",
                f"{PODS.path(pod, self.namespace)}/binding",
                body={
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": pod},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
                },
            )

    async def vanish(self, pod: str) -> None:
        """End a pod as a kubelet does when its containers have ended."""
        with suppress(NotFound):
            await self.api.delete(PODS, pod, self.namespace, grace_period_seconds=0)

    @asynccontextmanager
    async def operator(
        self, api: Any = None, *, fed: bool = True, **settings: Any
    ) -> AsyncIterator[Operator]:
        """An operator for this namespace, ended as abruptly as a task can be."""
        api = api or self.api
        operator = Operator(api, Settings(watch_namespaces=(self.namespace,), **settings))
        feed = Reflector(api, SANDBOXES, operator.feed, namespace=self.namespace)
        tasks = [asyncio.create_task(operator.run())]
        if fed:
            tasks.append(asyncio.create_task(feed.run()))
        try:
            await asyncio.wait_for(operator.loop.synced.wait(), 10)
            yield operator
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def kubelet(self, *, starts: bool = True, ends: bool = True) -> AsyncIterator[None]:
        """Starts every pod at once and well, and ends those that are to end."""
        seen: set[str] = set()
        jobs: set[asyncio.Task[None]] = set()

        async def work(pod: Object) -> None:
            name, metadata = pod["metadata"]["name"], pod["metadata"]
            with suppress(NotFound):
                if metadata.get("deletionTimestamp"):
                    if ends:
                        await self.vanish(name)
                elif metadata["uid"] not in seen and any(
                    c["name"] == "workspace" for c in pod["spec"]["containers"]
                ):
                    seen.add(metadata["uid"])
                    await self.bind(name)
                    if starts:
                        await self.say(name, running_status())

        def on_event(kind: str, pod: Object) -> None:
            if kind != "DELETED":
                job = asyncio.create_task(work(pod))
                jobs.add(job)
                job.add_done_callback(jobs.discard)

        task = asyncio.create_task(Reflector(self.api, PODS, on_event, namespace=self.namespace).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, *jobs, return_exceptions=True)
