"""The cluster that is measured, and a namespace in it that is gone afterwards."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sandbox_api.kube import (
    NAMESPACES,
    PODS,
    SANDBOXES,
    KubeClient,
    KubeconfigCredentials,
    NotFound,
    Object,
    Resource,
)

FIELD_MANAGER = "sandbox-bench"
#: No single step of a measurement takes this long; one that does is an error, not a sample.
PATIENCE = 90.0


class BenchError(Exception):
    """The measurement cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every measurement needs.

    Attributes:
        api: For requests.
        namespace: Everything is made in it, and it is deleted at the end.
        image: Image of the sandboxes and of the bare pods alike.
        kubectl: The program.
        quick: Fewer samples, to see that the measurements work.
    """

    api: KubeClient
    namespace: str
    image: str
    kubectl: str
    quick: bool = False

    def samples(self, wanted: int, quick: int = 5) -> int:
        """How many samples are taken."""
        return quick if self.quick else wanted

    def bare_pod(self, name: str) -> Object:
        """What any pod of this image with a volume costs: one container, one emptyDir, nothing of ours."""
        return {
            "metadata": {"name": name, "labels": {"bench": "bare"}},
            "spec": {
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "workspace", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "main",
                        "image": self.image,
                        "command": ["sleep", "infinity"],
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                        "volumeMounts": [{"name": "workspace", "mountPath": "/workspace"}],
                    }
                ],
            },
        }

    def sandbox(self, name: str, **spec: Any) -> Object:
        """A sandbox as most are: an entry of the manifest, no Secret, no claim."""
        manifest = {"entries": {"task.md": {"file": {"content": "Measure.\n"}}}}
        return {"metadata": {"name": name}, "spec": {"image": self.image, "manifest": manifest, **spec}}

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """Create an object."""
        return await self.api.create(
            resource, body, self.namespace, field_manager=FIELD_MANAGER, validation="Strict"
        )

    async def delete(self, resource: Resource, name: str) -> None:
        """Delete an object and wait until it, and a sandbox's pod, are gone."""
        with suppress(NotFound):
            await self.api.delete(resource, name, self.namespace, propagation="Background")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                await self.api.get(resource, name, self.namespace)
            except NotFound:
                return
            await asyncio.sleep(0.1)
        raise BenchError(f"{resource.kind} {name} is not gone after {PATIENCE:g} s")

    async def pods_gone(self) -> None:
        """Wait until the namespace has no pods: what still ends disturbs the next sample."""
        end = time.monotonic() + PATIENCE
        while (await self.api.list(PODS, self.namespace)).items:
            if time.monotonic() > end:
                raise BenchError(f"pods are left in {self.namespace} after {PATIENCE:g} s")
            await asyncio.sleep(0.1)


class Watcher:
    """Notes when each state of each object of a kind was first seen, over a connection of its own."""

    def __init__(self, resource: Resource, states: Mapping[str, Callable[[Object], bool]]) -> None:
        self._resource = resource
        self._states = states
        self._seen: dict[tuple[str, str], float] = {}
        self._objects: dict[str, Object] = {}
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def watching(self, namespace: str) -> AsyncGenerator["Watcher", None]:
        """Watch while the context lasts."""
        async with KubeClient(KubeconfigCredentials(), user_agent="sandbox-bench") as api:
            version = (await api.list(self._resource, namespace)).resource_version
            task = asyncio.create_task(self._watch(api, namespace, version))
            try:
                yield self
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _watch(self, api: KubeClient, namespace: str, version: str) -> None:
        while True:
            events = api.watch(self._resource, namespace, resource_version=version, timeout_seconds=3000)
            async with aclosing(events):
                async for kind, item in events:
                    now = time.perf_counter()
                    version = item["metadata"]["resourceVersion"]
                    if kind == "BOOKMARK":
                        continue
                    for key in self._keys(item):
                        self._objects[key] = item
                        for state, holds in self._states.items():
                            if kind != "DELETED" and holds(item):
                                self._seen.setdefault((key, state), now)
                    self._changed.set()

    def _keys(self, item: Object) -> list[str]:
        """Its own name, and its owners' names: whose pod it is."""
        metadata = item["metadata"]
        return [metadata["name"], *(owner["name"] for owner in metadata.get("ownerReferences") or ())]

    async def when(self, name: str, state: str) -> float:
        """When the object, or the child of an owner of that name, was first seen in a state."""
        try:
            async with asyncio.timeout(PATIENCE):
                while (name, state) not in self._seen:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise BenchError(f"{self._resource.kind} of {name} is not {state!r} in {PATIENCE:g} s") from None
        return self._seen[name, state]

    def latest(self, name: str) -> Object:
        """The object as last seen."""
        return self._objects[name]


def is_ready(item: Object) -> bool:
    """Whether the condition Ready is True."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def pod_watcher() -> Watcher:
    """Pods: when they are there, and when they are ready."""
    return Watcher(PODS, {"there": lambda item: True, "ready": is_ready})


def sandbox_watcher() -> Watcher:
    """Sandboxes: when they are ready."""
    return Watcher(SANDBOXES, {"ready": is_ready})


@asynccontextmanager
async def bench(*, quick: bool = False) -> AsyncGenerator[Bench, None]:
    """A namespace for this run.

    Raises:
        BenchError: What the run needs is not there.
    """
    image = os.environ.get("DEMO_IMAGE")
    if not image:
        raise BenchError("DEMO_IMAGE is not set: use `make bench`, or name an image with sh, cat and sleep.")
    async with KubeClient(KubeconfigCredentials(), user_agent="sandbox-bench") as api:
        namespace = f"sandbox-bench-{secrets.token_hex(3)}"
        await api.create(NAMESPACES, {"metadata": {"name": namespace}}, field_manager=FIELD_MANAGER)
        bed = Bench(api, namespace, image, os.environ.get("KUBECTL", "kubectl"), quick)
        try:
            yield bed
        finally:
            # Sandboxes first: their pods go at once by the operator, and the finalizer is not in the way.
            with suppress(Exception):
                async with asyncio.timeout(60):
                    for item in (await api.list(SANDBOXES, namespace)).items:
                        with suppress(NotFound):
                            await api.delete(SANDBOXES, item["metadata"]["name"], namespace)
                    await bed.pods_gone()
            await api.delete(NAMESPACES, namespace)
