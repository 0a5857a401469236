"""The operator without its host: feeds, loop, controller and lease, put together."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from sandbox_api.kube import SANDBOXES, Api, Object

from sandbox_operator.engine.lease import Lease
from sandbox_operator.engine.loop import Feed, Loop
from sandbox_operator.engine.store import Store
from sandbox_operator.sandbox.act import Actor
from sandbox_operator.sandbox.events import Recorder
from sandbox_operator.sandbox.observe import CHILDREN
from sandbox_operator.sandbox.reconcile import SandboxController
from sandbox_operator.sandbox.trim import TRIMS
from sandbox_operator.settings import Settings

logger = logging.getLogger(__name__)

#: A worker that has been at one sandbox for so long, or a feed that has been silent for so long, is stuck.
STUCK = 300.0
SILENT = 900.0
#: The feed of sandboxes is dead if it has not told what we wrote for so long.
DEAD = 120.0


class Operator:
    """All of it but the feed of sandboxes, which the host brings by calling :meth:`feed`."""

    def __init__(self, api: Api, settings: Settings) -> None:
        identity = settings.identity or socket.gethostname()
        self.store = Store(dict(TRIMS))
        self.recorder = Recorder(api, identity)
        actor = Actor(api, self.store, self.recorder)
        self.controller = SandboxController(self.store, actor, settings)
        self.loop = Loop(
            api,
            self.store,
            SANDBOXES,
            [Feed(resource, selector) for resource, selector in CHILDREN.items()],
            self.controller.reconcile,
            namespaces=settings.watch_namespaces,
            workers=settings.workers,
        )
        actor.wrote = self.loop.wrote
        self.controller.subscribe(self.loop.queue)
        self._lease = Lease(api, settings.namespace, settings.lease, identity) if settings.lease else None

    def feed(self, kind: str | None, item: Object) -> None:
        """Take in an event about a Sandbox; see :meth:`Loop.feed`."""
        self.loop.feed(kind, item)

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            ExceptionGroup: Something ended that must not, for example the lease was lost.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.recorder.run(), name="events")
                go: Callable[[], object] | None = None
                if self._lease is not None:
                    group.create_task(self._lease.run(), name="lease")
                    go = self._lease.held.wait
                await self.loop.run(_until(go) if go is not None else None)
        finally:
            if self._lease is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._lease.release()

    def unhealthy(self) -> str | None:
        """Why this process should be restarted, if it should."""
        if (stuck := self.loop.stuck_seconds()) > STUCK:
            return f"a worker has been at one sandbox for {stuck:.0f} s"
        if (silent := self.loop.silent_seconds()) > SILENT:
            return f"a feed has been silent for {silent:.0f} s"
        if (silent := self.loop.canary.silent_seconds()) > DEAD:
            return f"the feed of sandboxes has not told our write for {silent:.0f} s"
        return None


async def _until(wait: Callable[[], object]) -> None:
    result = wait()
    if asyncio.iscoroutine(result):
        await result
