"""Carries out steps: every write of the controller is here, and what each returned goes into the store at once."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from sandbox_api.kube import (
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    SANDBOXES,
    AlreadyExists,
    Api,
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    Object,
    Resource,
)

from sandbox_operator.engine.store import Store, controller_uid, key_of

from . import names
from .events import Recorder
from .memory import Memory
from .network import stands
from .refusals import Refused, name_conflict, problem_of
from .status import merge_patch
from .steps import (
    AddFinalizer,
    CreatePod,
    DeleteChild,
    DeleteSandbox,
    Ensure,
    FindPod,
    LabelPod,
    RemoveFinalizer,
    Step,
    Tell,
)
from .view import SandboxView

logger = logging.getLogger(__name__)


class Stale(Exception):  # noqa: N818 - what happened
    """The sandbox is not what we thought; the store knows better now, and the plan is to be made again."""


class Actor:
    """Writes to the API server for one controller.

    Args:
        api: The API server.
        store: Told what every write returned.
        recorder: Posts events.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, api: Api, store: Store, recorder: Recorder, clock: Callable[[], float] = time.time
    ) -> None:
        self._api = api
        self._store = store
        self._recorder = recorder
        self._clock = clock
        #: Takes in what a write to a sandbox returned.
        self.wrote: Callable[[Object], object] = lambda item: store.put(SANDBOXES, item)
        # Many sandboxes of a fresh namespace want the same policies in the same moment.
        self._shared = asyncio.Lock()

    async def do(self, view: SandboxView, step: Step, memory: Memory) -> None:
        """Do one step.

        Raises:
            Refused: A child cannot be made, for a reason that belongs into the status.
            Stale: The sandbox has changed or is gone.
            ApiError: Anything else; trying again later is right.
        """
        match step:
            case AddFinalizer():
                await self._finalizers(view, [*view.finalizers, names.FINALIZER])
            case RemoveFinalizer():
                await self._finalizers(view, [f for f in view.finalizers if f != names.FINALIZER])
            case DeleteSandbox():
                await self._delete(SANDBOXES, view.namespace, view.name, view.uid)
            case Ensure():
                await self._ensure(view, step, memory)
            case CreatePod():
                await self._create_pod(view, step, memory)
            case FindPod():
                await self._find(view, step, memory)
            case LabelPod():
                await self._label(view, step)
            case DeleteChild():
                await self._delete(step.resource, view.namespace, step.name, step.uid)
            case Tell():
                self._recorder.tell(view, step, memory)

    async def write_status(self, view: SandboxView, status: dict[str, Any]) -> None:
        """Write what has changed of a status. The UID is a precondition; whoever wrote last before us is not."""
        patch = {"metadata": {"uid": view.uid}, "status": merge_patch(view.status, status)}
        try:
            item = await self._api.patch(
                SANDBOXES,
                view.name,
                view.namespace,
                patch,
                subresource="status",
                field_manager=names.FIELD_MANAGER,
            )
        except (NotFound, Conflict):
            await self._refresh(view)
            raise Stale from None
        self.wrote(item)

    async def _finalizers(self, view: SandboxView, finalizers: list[str]) -> None:
        # Only over the list that we have read, and whatever else has changed since.
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": view.uid},
            {"op": "test", "path": "/metadata/finalizers", "value": view.finalizers or None},
            {"op": "add", "path": "/metadata/finalizers", "value": finalizers},
        ]
        try:
            item = await self._api.patch(
                SANDBOXES,
                view.name,
                view.namespace,
                patch,
                kind="json",
                field_manager=names.FIELD_MANAGER,
            )
        except (NotFound, Conflict, Invalid):
            # Invalid: a test did not hold, or it is being deleted and takes no finalizer any more.
            await self._refresh(view)
            raise Stale from None
        self.wrote(item)

    async def _refresh(self, view: SandboxView) -> None:
        try:
            item = await self._api.get(SANDBOXES, view.name, view.namespace)
        except NotFound:
            self._store.remove(SANDBOXES, (view.namespace, view.name))
            return
        self._store.put(SANDBOXES, item)

    async def _create_pod(self, view: SandboxView, step: CreatePod, memory: Memory) -> None:
        if step.config_map is not None:
            await self._create(view, CONFIG_MAPS, step.config_map, memory)
        await self._create(view, PODS, step.body, memory)
        memory.started(self._clock())

    async def _create(
        self, view: SandboxView, resource: Resource, body: dict[str, Any], memory: Memory
    ) -> None:
        """Create a child, or find that it exists already and is ours."""
        name = body["metadata"]["name"]
        try:
            # Strict: what affinity has that Kubernetes does not know would otherwise be dropped in silence.
            item = await self._api.create(
                resource, body, view.namespace, field_manager=names.FIELD_MANAGER, validation="Strict"
            )
        except AlreadyExists:
            self._store.put(resource, await self._existing(view, resource, name), read=True)
            return
        except ApiError as error:
            raise self._refusal(error) from None
        self._store.put(resource, item)

    async def _existing(self, view: SandboxView, resource: Resource, name: str) -> Object:
        """The object that has a child's name already, if it is ours.

        The name carries UID and incarnation, so an object of ours under it is the very child. Labels and
        annotations prove nothing: anybody can write them.
        """
        try:
            item = await self._api.get(resource, name, view.namespace)
        except NotFound:
            raise Stale from None
        if controller_uid(item) != view.uid:
            raise Refused(name_conflict(resource.kind, name))
        return item

    async def _ensure(self, view: SandboxView, step: Ensure, memory: Memory) -> None:
        if step.owned:
            await self._ensure_one(view, step, memory)
            return
        async with self._shared:
            standing = self._store.get(step.resource, (view.namespace, step.body["metadata"]["name"]))
            if not stands(step.resource, step.body, standing):
                await self._ensure_one(view, step, memory)

    async def _ensure_one(self, view: SandboxView, step: Ensure, memory: Memory) -> None:
        name = step.body["metadata"]["name"]
        item = self._store.get(step.resource, (view.namespace, name))
        if item is None:
            try:
                item = await self._api.create(
                    step.resource, step.body, view.namespace, field_manager=names.FIELD_MANAGER
                )
                self._store.put(step.resource, item)
                return
            except AlreadyExists:
                item = await self._standing(view, step, name)
            except ApiError as error:
                raise self._refusal(error) from None
        if stands(step.resource, step.body, item):
            self._store.put(step.resource, item)
            return
        try:
            item = await self._api.patch(
                step.resource,
                name,
                view.namespace,
                _replacing(step),
                kind="json",
                field_manager=names.FIELD_MANAGER,
            )
        except (NotFound, Conflict):
            self._store.remove(step.resource, (view.namespace, name))
            raise Stale from None
        except ApiError as error:
            raise self._refusal(error) from None
        self._store.put(step.resource, item)

    async def _standing(self, view: SandboxView, step: Ensure, name: str) -> Object:
        if step.owned:
            return await self._existing(view, step.resource, name)
        try:
            item = await self._api.get(step.resource, name, view.namespace)
        except NotFound:
            raise Stale from None
        labels = item["metadata"].get("labels") or {}
        if labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
            raise Refused(name_conflict(step.resource.kind, name))
        return item

    async def _find(self, view: SandboxView, step: FindPod, memory: Memory) -> None:
        try:
            item = await self._api.get(PODS, step.name, view.namespace)
        except NotFound:
            item = None
        if item is None or item["metadata"].get("uid") != step.uid or controller_uid(item) != view.uid:
            memory.gone_pod = step.uid
        else:
            self._store.put(PODS, item, read=True)
        raise Stale

    async def _label(self, view: SandboxView, step: LabelPod) -> None:
        patch = {"metadata": {"uid": step.uid, "labels": step.labels}}
        try:
            item = await self._api.patch(
                PODS, step.name, view.namespace, patch, field_manager=names.FIELD_MANAGER
            )
        except (NotFound, Conflict):
            self._store.remove(PODS, (view.namespace, step.name), step.uid)
            raise Stale from None
        self._store.put(PODS, item)

    async def _delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        try:
            item = await self._api.delete(resource, name, namespace, uid=uid)
        except (NotFound, Conflict):
            # Gone, or another one by now.
            if resource is not SANDBOXES:
                self._store.remove(resource, (namespace, name), uid)
            return
        if item.get("kind") == resource.kind and key_of(item) == (namespace, name):
            self._store.put(resource, item)

    @staticmethod
    def _refusal(error: ApiError) -> Exception:
        problem = problem_of(error)
        return Refused(problem) if problem is not None else error


def _replacing(step: Ensure) -> list[dict[str, Any]]:
    """A JSON patch that leaves nothing of what we write as it was, and all that the API server adds to a Service."""
    spec = step.body["spec"]
    if step.resource is NETWORK_POLICIES:
        return [{"op": "replace", "path": "/spec", "value": spec}]
    return [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]
