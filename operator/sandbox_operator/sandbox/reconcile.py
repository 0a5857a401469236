"""One reconcile of one sandbox: observe, plan, act, and once more where acting changed what is known."""

import logging
import time
from collections.abc import Callable

from sandbox_api.kube import NETWORK_POLICIES, SANDBOXES, Object, Resource

from sandbox_operator.engine.queue import KeyedQueue
from sandbox_operator.engine.store import Change, Key, Store, controller_uid, key_of
from sandbox_operator.settings import Settings

from .act import Actor, Stale
from .memory import Memory
from .network import SHARED_NAMES
from .observe import Observation, observe
from .plan import plan
from .refusals import Refused
from .steps import AddFinalizer, Decision
from .view import SandboxView

logger = logging.getLogger(__name__)

#: Plans made in a row before the key goes back into the queue.
_MAX_PASSES = 6


class SandboxController:
    """Brings sandboxes to what they should be.

    Args:
        store: What is known.
        actor: Writes.
        settings: The administrator's.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, store: Store, actor: Actor, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._actor = actor
        self._settings = settings
        self._clock = clock
        self._memories: dict[str, Memory] = {}
        self._key_of_uid: dict[str, Key] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Work on one sandbox; returns the seconds after which time alone will have changed something."""
        for _ in range(_MAX_PASSES):
            raw = self._store.get(SANDBOXES, key)
            if raw is None:
                return None
            memory = self._memories.setdefault(SandboxView(raw).uid, Memory())
            obs = observe(self._store, key, memory)
            if obs is None:
                return None
            decision = plan(obs, self._clock(), self._settings)
            try:
                await self._act(obs, decision)
            except Stale:
                continue
            except Refused as refused:
                memory.refused(refused.problem, obs.view.generation, self._clock())
                continue
            if not decision.look_again:
                return decision.again
        return 1.0

    async def _act(self, obs: Observation, decision: Decision) -> None:
        view = obs.view
        # One after the other: side by side they meet in the API server, which then tries one of them again.
        if decision.guard:
            await self._actor.do(view, AddFinalizer(), obs.memory)
            view = self._current(view)
        if decision.status is not None:
            await self._actor.write_status(view, decision.status)
            view = self._current(view)
        for step in decision.steps:
            await self._actor.do(view, step, obs.memory)

    def _current(self, view: SandboxView) -> SandboxView:
        """The sandbox as a write of ours has left it.

        Raises:
            Stale: It is another one by now, or is to be deleted.
        """
        raw = self._store.get(SANDBOXES, (view.namespace, view.name))
        current = SandboxView(raw) if raw is not None else None
        if current is None or current.uid != view.uid or current.deleting != view.deleting:
            raise Stale
        return current

    def subscribe(self, queue: KeyedQueue[Key]) -> None:
        """Let changes of the store wake the sandboxes that they concern."""

        def on_change(resource: Resource, change: Change, item: Object) -> None:
            if resource is SANDBOXES:
                self._sandbox_changed(queue, change, item)
                return
            uid = controller_uid(item)
            if uid is not None:
                # A child's owner may not be listed yet; then its own event wakes it.
                if (key := self._key_of_uid.get(uid)) is not None:
                    queue.add(key)
            elif (
                resource is NETWORK_POLICIES and change != "new" and item["metadata"]["name"] in SHARED_NAMES
            ):
                namespace = item["metadata"].get("namespace") or ""
                for key in self._store.keys(SANDBOXES):
                    if key[0] == namespace:
                        queue.add(key)

        self._store.on_change = on_change

    def _sandbox_changed(self, queue: KeyedQueue[Key], change: Change, item: Object) -> None:
        key, uid = key_of(item), item["metadata"].get("uid") or ""
        if change == "gone":
            self._key_of_uid.pop(uid, None)
            self._memories.pop(uid, None)
            return
        self._key_of_uid[uid] = key
        queue.add(key)
