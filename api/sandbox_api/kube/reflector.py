"""Follows all objects of a kind: list, then watch, for ever, whatever happens to the path.

What a subscriber may rely on: it hears of every object that exists, of its latest state in the end (not of
every state in between), and of every one that vanished, also of those that vanished while nobody watched.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Literal

from .client import Api, Object, Trim
from .errors import ApiError, Gone, KubeError, TooManyRequests, Unreachable
from .jitter import jittered
from .resources import Resource

logger = logging.getLogger(__name__)

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
#: Called in the event loop with each change; it must not block. After an exception the change is told again
#: by the next list.
OnEvent = Callable[[EventType, Object], None]

#: What is remembered of an object, to tell of its end with.
_KEPT = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences")
_BACKOFF_FIRST, _BACKOFF_LAST = 0.2, 30.0


class Reflector:
    """Follows one kind of resource.

    Args:
        api: Where from.
        resource: The kind.
        on_event: Told of each change. A DELETED that was found out by a list carries the metadata last seen
            only.
        namespace: One namespace, or all.
        label_selector: Objects that stop matching count as deleted.
        page: Objects that are asked for at once.
        trim: Applied to the objects of lists before they are told: a list never stands in memory whole. What it
            keeps must hold the metadata that tells objects and their states apart.
        relist_interval: Seconds between full lists, which find whatever a watch lost.
        watch_seconds: How long one watch lasts at most.

    Attributes:
        synced: Set once the first list has been told.
        last_contact: ``time.monotonic()`` of the last sign of life, for probes and metrics.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        on_event: OnEvent,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page: int = 500,
        trim: Trim | None = None,
        relist_interval: float = 600.0,
        watch_seconds: float = 290.0,
    ) -> None:
        self.synced = asyncio.Event()
        self.last_contact = time.monotonic()
        self._api = api
        self._resource = resource
        self._on_event = on_event
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._page = page
        self._trim = trim
        self._relist_interval = relist_interval
        self._watch_seconds = watch_seconds
        self._known: dict[tuple[str, str], Object] = {}
        self._failures = 0

    async def run(self) -> None:
        """Follow until cancelled. No failure ends it: each is logged, and tried again after a pause."""
        version = ""
        relist_at = 0.0
        while True:
            try:
                if not version or time.monotonic() >= relist_at:
                    version = await self._list()
                    relist_at = time.monotonic() + jittered(self._relist_interval, 0.9, 1.1)
                version = await self._watch(version, relist_at)
            except Gone:
                logger.info("%s: the watch fell behind; listing again", self._resource.plural)
                version = ""
                await self._pause(None)
            except _Broken as broken:
                # A connection that broke goes on where it was; after any other error only a list can be
                # trusted.
                resumable = isinstance(broken.cause, Unreachable | TooManyRequests)
                version = broken.version if resumable else ""
                await self._pause(broken.cause)
            except Exception as exc:
                await self._pause(exc)

    async def _list(self) -> str:
        listed = await self._api.list(
            self._resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=self._page,
            trim=self._trim,
        )
        self.last_contact = time.monotonic()
        present = set()
        for item in listed.items:
            key = _key(item)
            present.add(key)
            known = self._known.get(key)
            metadata = item["metadata"]
            if known is not None and known["metadata"].get("uid") != metadata.get("uid"):
                self._tell("DELETED", known)
                known = None
            if known is None:
                self._tell("ADDED", item)
            elif known["metadata"].get("resourceVersion") != metadata.get("resourceVersion"):
                self._tell("MODIFIED", item)
        for key in self._known.keys() - present:
            self._tell("DELETED", self._known[key])
        self.synced.set()
        return listed.resource_version

    async def _watch(self, version: str, relist_at: float) -> str:
        """Follow from a version until the server ends the watch or a list is due; returns where to go on."""
        seconds = min(jittered(self._watch_seconds, 0.8), relist_at - time.monotonic())
        events = self._api.watch(
            self._resource,
            self._namespace,
            resource_version=version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=max(1.0, seconds),
        )
        started = time.monotonic()
        try:
            async with aclosing(events):
                async for kind, item in events:
                    self._alive()
                    version = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self._tell(kind, item)
        except Gone:
            raise
        except Exception as exc:
            raise _Broken(version, exc) from exc
        if time.monotonic() - started < 1.0:
            # Ended at once, without an error: a proxy, or a server that is going down.
            await self._pause(None)
        else:
            self._alive()
        return version

    def _alive(self) -> None:
        self.last_contact = time.monotonic()
        self._failures = 0

    def _tell(self, kind: EventType, item: Object) -> None:
        key = _key(item)
        try:
            self._on_event(kind, item)
        except Exception:
            logger.exception("%s %s/%s: the subscriber failed", self._resource.kind, *key)
            if kind != "DELETED":
                self._known.pop(key, None)
            return
        if kind == "DELETED":
            self._known.pop(key, None)
        else:
            self._known[key] = {
                "apiVersion": self._resource.api_version,
                "kind": self._resource.kind,
                "metadata": {k: item["metadata"][k] for k in _KEPT if k in item["metadata"]},
            }

    async def _pause(self, cause: Exception | None) -> None:
        delay = min(_BACKOFF_LAST, _BACKOFF_FIRST * 2 ** min(self._failures, 16))
        if isinstance(cause, ApiError) and cause.retry_after:
            delay = max(delay, min(cause.retry_after, _BACKOFF_LAST))
        delay = jittered(delay)
        # A connection that breaks now and then is daily life; what goes on is not.
        level = logging.WARNING if self._failures >= 2 or not isinstance(cause, ApiError) else logging.INFO
        if cause is not None:
            trace = None if isinstance(cause, KubeError) else cause
            logger.log(level, "%s: %s; again in %.1f s", self._resource.plural, cause, delay, exc_info=trace)
        self._failures += 1
        await asyncio.sleep(delay)


class _Broken(Exception):  # noqa: N818 - a signal within this module
    """A watch that ended by an exception, after it had got as far as a version."""

    def __init__(self, version: str, cause: Exception) -> None:
        super().__init__()
        self.version = version
        self.cause = cause


def _key(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
