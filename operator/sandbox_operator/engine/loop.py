"""The loop: feeds fill the store, changes wake keys, workers reconcile them.

Workers begin only after every kind has been listed once: a decision made on half a picture creates what
exists already. The kind that somebody else feeds (kopf) is listed here as well, at the start and every ten
minutes, since that feed says neither when its first list is done nor, after a long break, what vanished
meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sandbox_api.kube import Api, ApiError, KubeError, Object, Reflector, Resource
from sandbox_api.kube.jitter import jittered

from .canary import Canary
from .queue import KeyedQueue
from .store import Key, Store, key_of

logger = logging.getLogger(__name__)

#: Works on one key; returns the seconds after which it wants to be asked again, or None.
Reconcile = Callable[[Key], Awaitable[float | None]]
#: One reconcile that takes longer has lost an answer somewhere.
RECONCILE_TIMEOUT = 120.0
#: Objects of a list that stand in memory whole at once: any of them may have the 1.5 MB that etcd takes.
PAGE = 25
#: Seconds within which the feed of the primary kind tells what we wrote.
FEED_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Feed:
    """A kind that is followed by our own reflector."""

    resource: Resource
    label_selector: str | None = None


@dataclass
class Loop:
    """Everything between feeds and reconciles.

    Attributes:
        api: The API server.
        store: Knows all kinds.
        primary: The kind whose keys are reconciled; fed by :meth:`feed`.
        feeds: The other kinds.
        reconcile: See :data:`Reconcile`.
        namespaces: Namespaces served; empty: all.
        workers: Keys worked on at once.
        relist_interval: Seconds between lists of the primary kind.
    """

    api: Api
    store: Store
    primary: Resource
    feeds: Sequence[Feed]
    reconcile: Reconcile
    namespaces: Sequence[str] = ()
    workers: int = 16
    relist_interval: float = 600.0
    queue: KeyedQueue[Key] = field(default_factory=KeyedQueue)
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    reflectors: list[Reflector] = field(default_factory=list)
    canary: Canary = field(default_factory=Canary)
    _busy_since: dict[Key, float] = field(default_factory=dict)

    def feed(self, kind: str | None, item: Object) -> None:
        """Take in an event of the primary kind: ADDED, MODIFIED, DELETED, or None for one of a first list."""
        self.canary.heard(self._scope(item), item["metadata"].get("resourceVersion") or "")
        if kind == "DELETED":
            self._gone(self.primary, item)
        else:
            self.store.put(self.primary, item)

    def wrote(self, item: Object) -> None:
        """Take in what a write to the primary kind returned; the feed must tell of it too."""
        self.canary.wrote(self._scope(item), item["metadata"].get("resourceVersion") or "")
        self.store.put(self.primary, item)

    def _scope(self, item: Object) -> str:
        """The watch that tells of an object: there is one for each namespace served, or one for all."""
        return key_of(item)[0] if self.namespaces else ""

    async def run(self, go: Awaitable[None] | None = None) -> None:
        """Run until cancelled.

        Args:
            go: Waited for before the first reconcile, for example leadership; feeds run meanwhile.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for feed in self.feeds:
                    for namespace in self.namespaces or (None,):
                        reflector = Reflector(
                            self.api,
                            feed.resource,
                            self._subscriber(feed.resource),
                            namespace=namespace,
                            label_selector=feed.label_selector,
                            page=PAGE,
                            trim=self.store.trims[feed.resource],
                        )
                        self.reflectors.append(reflector)
                        group.create_task(reflector.run(), name=f"feed {feed.resource.plural}")
                await self._list_primary_until_done()
                for reflector in self.reflectors:
                    await reflector.synced.wait()
                self.synced.set()
                logger.info(
                    "everything is listed: %d %s", len(self.store.keys(self.primary)), self.primary.plural
                )
                if go is not None:
                    await go
                for number in range(self.workers):
                    group.create_task(self._work(), name=f"worker {number}")
                group.create_task(self._prune(), name="prune")
                group.create_task(self._replace_dead_feed(), name="replace a dead feed")
        finally:
            self.queue.close()

    def stuck_seconds(self) -> float:
        """How long the oldest reconcile under way has taken."""
        return max((time.monotonic() - since for since in self._busy_since.values()), default=0.0)

    def silent_seconds(self) -> float:
        """How long the most silent feed has heard nothing."""
        now = time.monotonic()
        return max((now - reflector.last_contact for reflector in self.reflectors), default=0.0)

    def _subscriber(self, resource: Resource) -> Callable[[str, Object], None]:
        def on_event(kind: str, item: Object) -> None:
            if kind == "DELETED":
                self._gone(resource, item)
            else:
                self.store.put(resource, item)

        return on_event

    def _gone(self, resource: Resource, item: Object) -> None:
        metadata = item["metadata"]
        self.store.remove(resource, key_of(item), metadata.get("uid"), metadata.get("resourceVersion") or "")

    async def _list_primary_until_done(self) -> None:
        pause = 0.2
        while True:
            try:
                await self._list_primary()
                return
            except KubeError as error:
                logger.warning("%s cannot be listed: %s; again in %.1f s", self.primary.plural, error, pause)
                await asyncio.sleep(jittered(pause))
                pause = min(pause * 2, 30.0)

    async def _list_primary(self) -> None:
        before = set(self.store.keys(self.primary))
        items: list[Object] = []
        for namespace in self.namespaces or (None,):
            listed = await self.api.list(
                self.primary, namespace, limit=PAGE, trim=self.store.trims[self.primary]
            )
            items += listed.items
        self.store.replace(self.primary, items, before)

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(jittered(self.relist_interval, 0.9, 1.1))
            await self._list_primary_once()

    async def _replace_dead_feed(self) -> None:
        """While the feed does not tell what we wrote, lists do its work; the probe ends this in the end."""
        while True:
            await asyncio.sleep(jittered(FEED_PATIENCE / 2, 0.9, 1.1))
            if (silent := self.canary.silent_seconds()) > FEED_PATIENCE:
                logger.warning(
                    "the feed of %s has not told our write for %.0f s", self.primary.plural, silent
                )
                await self._list_primary_once()

    async def _list_primary_once(self) -> None:
        try:
            await self._list_primary()
        except KubeError as error:
            logger.warning("%s cannot be listed: %s", self.primary.plural, error)
        except Exception:
            logger.exception("%s cannot be listed", self.primary.plural)

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            self._busy_since[key] = time.monotonic()
            try:
                async with asyncio.timeout(RECONCILE_TIMEOUT):
                    again = await self.reconcile(key)
            except asyncio.CancelledError:
                self.queue.done(key)
                raise
            except Exception as error:
                self._log_failure(key, error)
            else:
                self.queue.done(key)
                if again is not None:
                    self.queue.add_after(key, again)
            finally:
                del self._busy_since[key]

    def _log_failure(self, key: Key, error: Exception) -> None:
        known = isinstance(error, KubeError | TimeoutError)
        wait = error.retry_after or 0.0 if isinstance(error, ApiError) else 0.0
        pause = self.queue.failed(key, wait)
        logger.log(
            logging.WARNING if known else logging.ERROR,
            "reconcile failed: %s; again in %.2f s",
            str(error) or type(error).__name__,
            pause,
            exc_info=None if known else error,
            extra={"namespace": key[0], "sandbox": key[1]},
        )


def wake_all(queue: KeyedQueue[Key], keys: Iterable[Key]) -> None:
    """Ask for many keys."""
    for key in keys:
        queue.add(key)
