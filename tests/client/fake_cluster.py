"""An API server in memory with a stand-in for operator and kubelet, for faults that a real one does not give.

What is real here: the agent, its workspace, and everything of the client. The stand-in fills the workspace of
a local agent as the init container would, and says in `status` what the operator would.
"""

import asyncio
import base64
import copy
import shutil
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from local_agent import LocalAgent
from sandbox_api.kube import (
    PODS,
    SANDBOXES,
    AlreadyExists,
    ApiError,
    Conflict,
    ListResult,
    NotFound,
    Object,
    Resource,
)

from runner_client.stream.connector import Connector


class FakeApi:
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.requests: list[tuple[str, str, str]] = []
        #: (verb, plural) -> errors to raise instead of doing it
        self.refuse: dict[tuple[str, str], list[Exception]] = defaultdict(list)
        #: (verb, plural) -> errors to raise after having done it: the answer got lost
        self.lose: dict[tuple[str, str], list[Exception]] = defaultdict(list)
        self.delay: dict[tuple[str, str], float] = {}
        self.on_change: Callable[[str, Object], None] | None = None
        self.finalizer = False
        self._version = 100
        self._watchers: list[tuple[str, asyncio.Queue]] = []

    def of(self, resource: Resource) -> list[Object]:
        return [o for (plural, _, _), o in self.objects.items() if plural == resource.plural]

    async def _begin(self, verb: str, resource: Resource, name: str) -> None:
        self.requests.append((verb, resource.plural, name))
        if pause := self.delay.get((verb, resource.plural)):
            await asyncio.sleep(pause)
        else:
            await asyncio.sleep(0)
        if errors := self.refuse[verb, resource.plural]:
            raise errors.pop(0)

    def _done(self, verb: str, resource: Resource) -> None:
        if errors := self.lose[verb, resource.plural]:
            raise errors.pop(0)

    def put(self, kind: str, resource: Resource, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        key = (resource.plural, item["metadata"].get("namespace", ""), item["metadata"]["name"])
        if kind == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = item
        for plural, queue in self._watchers:
            if plural == resource.plural:
                queue.put_nowait((kind, copy.deepcopy(item)))
        if self.on_change is not None:
            self.on_change(kind, item)

    def _find(self, resource: Resource, name: str, namespace: str | None) -> Object:
        try:
            return self.objects[resource.plural, namespace or "", name]
        except KeyError:
            details = {"name": name, "kind": resource.plural}
            raise NotFound(404, "NotFound", f"{resource.plural} {name!r} not found", details) from None

    async def get(self, resource, name, namespace=None):
        await self._begin("get", resource, name)
        return copy.deepcopy(self._find(resource, name, namespace))

    async def list(self, resource, namespace=None, *, label_selector=None, field_selector=None, limit=500):
        await self._begin("list", resource, field_selector or "")
        items = [copy.deepcopy(o) for o in self.of(resource) if o["metadata"].get("namespace") == namespace]
        if field_selector:
            items = [
                o for o in items if o["metadata"]["name"] == field_selector.removeprefix("metadata.name=")
            ]
        if label_selector:
            items = [o for o in items if _matches(o, label_selector)]
        return ListResult(items, str(self._version))

    async def create(self, resource, body, namespace=None, *, field_manager, dry_run=False, validation=None):
        await self._begin("dry-run" if dry_run else "create", resource, body["metadata"]["name"])
        key = (resource.plural, namespace or "", body["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{body['metadata']['name']} already exists")
        item = copy.deepcopy(dict(body))
        item["metadata"] |= {"uid": f"uid-{self._version}", "generation": 1}
        if self.finalizer and resource is SANDBOXES:
            item["metadata"]["finalizers"] = ["sandbox-operator.dev/cleanup"]
        if not dry_run:
            self.put("ADDED", resource, item)
            self._done("create", resource)
        return copy.deepcopy(item)

    async def patch(
        self, resource, name, namespace, body, *, kind="merge", subresource=None, field_manager, dry_run=False
    ):
        await self._begin("patch", resource, name)
        item = self._find(resource, name, namespace)
        if (uid := body.get("metadata", {}).get("uid")) and uid != item["metadata"]["uid"]:
            raise Conflict(409, "Conflict", "the UID is another")
        _merge(item, body)
        self.put("MODIFIED", resource, item)
        return copy.deepcopy(item)

    async def delete(self, resource, name, namespace=None, *, uid=None, **_):
        await self._begin("delete", resource, name)
        item = self._find(resource, name, namespace)
        if uid and item["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", "the UID is another")
        if item["metadata"].get("finalizers"):
            item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.put("MODIFIED", resource, item)
        else:
            self.put("DELETED", resource, item)
        self._done("delete", resource)
        return copy.deepcopy(item)

    async def watch(
        self,
        resource,
        namespace=None,
        *,
        resource_version,
        label_selector=None,
        field_selector=None,
        bookmarks=True,
        timeout_seconds=290,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        await self._begin("watch", resource, field_selector or "")
        queue: asyncio.Queue = asyncio.Queue()
        entry = (resource.plural, queue)
        for item in self.of(resource):
            if int(item["metadata"]["resourceVersion"]) > int(resource_version):
                queue.put_nowait(("MODIFIED", copy.deepcopy(item)))
        self._watchers.append(entry)
        name = (field_selector or "").removeprefix("metadata.name=")
        try:
            while True:
                kind, item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if name and item["metadata"]["name"] != name:
                    continue
                if not label_selector or _matches(item, label_selector):
                    yield kind, item
        finally:
            self._watchers.remove(entry)

    def break_watches(self, error: ApiError) -> None:
        for _, queue in self._watchers:
            queue.put_nowait(("ERROR", error))

    async def apply(self, *args, **kwargs):
        raise NotImplementedError

    replace = raw = apply


def _matches(item: Object, label_selector: str) -> bool:
    key, _, value = label_selector.partition("=")
    return (item["metadata"].get("labels") or {}).get(key) == value


def _merge(item: Object, patch: Any) -> None:
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            _merge(item.setdefault(key, {}), value)
        else:
            item[key] = value


class FakeCluster:
    """An Access whose pods are one local agent."""

    namespace = "default"

    def __init__(self, agent: LocalAgent) -> None:
        self.agent = agent
        self.api = FakeApi()
        self.api.on_change = self._changed
        self.failure: dict[str, Any] | None = None
        self.hold_pod = False
        self._released_after = 0
        self.connects = 0
        self.not_running = 0
        self._tasks: set[asyncio.Task] = set()

    def connector(self, namespace: str, pod: str) -> Connector:
        cluster = self

        class Pod:
            async def connect(self, protocol):
                cluster.connects += 1
                if cluster.not_running > 0:
                    cluster.not_running -= 1
                    from runner_client.stream.errors import Code, ConnectError

                    raise ConnectError(Code.CONTAINER_NOT_RUNNING, "container not found", retryable=True)
                if not any(p["metadata"]["name"] == pod for p in cluster.api.of(PODS)):
                    from runner_client.stream.errors import Code, ConnectError

                    raise ConnectError(Code.POD_NOT_FOUND, f"pod {pod} is not there")
                return await cluster.agent.connect(protocol)

            async def lane(self, protocol):
                return await cluster.agent.lane(protocol)

        return Pod()

    async def release(self) -> None:
        self._released_after = len(self.api.requests)

    @property
    def connected(self) -> bool:
        """Whether there were requests since connections were closed."""
        return len(self.api.requests) > self._released_after

    def sandboxes(self) -> list[Object]:
        return self.api.of(SANDBOXES)

    # -- operator and kubelet

    def _changed(self, kind: str, item: Object) -> None:
        if item["kind"] != "Sandbox":
            return
        if kind == "DELETED":
            pod = (item.get("status") or {}).get("podName")
            if found := self.api.objects.get(("pods", item["metadata"]["namespace"], pod)):
                self.api.put("DELETED", PODS, found)
            return
        if item["metadata"].get("deletionTimestamp") or item.get("status"):
            return
        if "sandbox-operator.dev/awaiting-secret" in item["metadata"].get("annotations", {}):
            return
        if self.failure is not None:
            item["status"] = {
                "observedGeneration": 1,
                "failure": self.failure,
                "conditions": [
                    {
                        "type": "Stalled",
                        "status": "False" if self.failure["retryable"] else "True",
                        "reason": self.failure["reason"],
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ],
            }
            self.api.put("MODIFIED", SANDBOXES, item)
            return
        if not self.hold_pod:
            self.run(item)

    def run(self, item: Object, incarnation: int = 1) -> None:
        """What operator, init container and kubelet do."""
        for child in self.agent.workspace.iterdir():
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
        for path, entry in sorted((item["spec"].get("manifest") or {}).get("entries", {}).items()):
            _materialize(self.agent.workspace / path, entry)
        name = f"{item['metadata']['name']}-pod{incarnation}"
        pod = {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": item["metadata"]["namespace"],
                "uid": f"{item['metadata']['uid']}/{incarnation}",
                "creationTimestamp": f"2026-01-01T00:00:0{incarnation}Z",
                "labels": {"sandbox-operator.dev/sandbox-uid": item["metadata"]["uid"]},
                "ownerReferences": [{"kind": "Sandbox", "uid": item["metadata"]["uid"]}],
            },
            "status": {"conditions": [{"type": "Initialized", "status": "True"}]},
        }
        self.api.put("ADDED", PODS, pod)
        item["status"] = {
            "observedGeneration": 1,
            "podName": name,
            "podUID": f"{item['metadata']['uid']}/{incarnation}",
        }
        self.api.put("MODIFIED", SANDBOXES, item)


def _materialize(path: Path, entry: Object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if "dir" in entry or "localDir" in entry:
        path.mkdir(exist_ok=True)
    elif "file" in entry:
        file = entry["file"]
        content = file["content"].encode() if "content" in file else base64.b64decode(file["contentBase64"])
        path.write_bytes(content)
        path.chmod(0o755)
