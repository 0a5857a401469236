"""Which of several replicas works: the holder of a Lease, as in client-go's leader election.

A lease is judged by how long its record has stood still on our own clock, never by comparing clocks of two
machines.
"""

import asyncio
import logging
import time
from typing import Any

from sandbox_api.kube import LEASES, AlreadyExists, Api, Conflict, KubeError, NotFound, Object
from sandbox_api.kube.jitter import jittered

from sandbox_operator.durations import format_micro_time

logger = logging.getLogger(__name__)

FIELD_MANAGER = "sandbox-operator"


class LeaseLost(Exception):  # noqa: N818 - what happened, not an error
    """Somebody else may hold the lease by now: nothing may be written any more."""


class Lease:
    """One replica's view of the lease.

    Args:
        api: The API server.
        namespace: Where the lease is.
        name: Its name.
        identity: Who we are; a container that restarts in its pod keeps its identity and goes on at once.
        duration: Seconds after which a silent holder counts as dead.
        renew_within: Seconds within which a holder must have renewed, else it gives up by itself. Shorter
            than the duration, so that two never hold the lease.
        period: Seconds between tries.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration: float = 15.0,
        renew_within: float = 10.0,
        period: float = 2.0,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._renew_within = renew_within
        self._period = period
        self._seen: tuple[str, float] = ("", 0.0)
        self.held = asyncio.Event()

    async def run(self) -> None:
        """Get the lease, then keep it.

        Raises:
            LeaseLost: It could not be renewed in time.
        """
        while not await self._try():  # noqa: ASYNC110 - what is waited for is in the API server
            await asyncio.sleep(jittered(self._period, 0.8, 1.2))
        logger.info("this replica is the active one", extra={"identity": self._identity})
        self.held.set()
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._period)
            started = time.monotonic()
            try:
                async with asyncio.timeout(max(0.1, renewed + self._renew_within - started)):
                    if await self._try():
                        renewed = started
            except TimeoutError:
                pass
            if time.monotonic() - renewed >= self._renew_within:
                self.held.clear()
                raise LeaseLost(f"lease {self._namespace}/{self._name} could not be renewed")

    async def release(self) -> None:
        """Let a standby take over at once. Failures do not matter: the lease runs out by itself."""
        if not self.held.is_set():
            return
        self.held.clear()
        try:
            lease = await self._api.get(LEASES, self._name, self._namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                await self._api.replace(LEASES, lease, field_manager=FIELD_MANAGER)
        except KubeError as error:
            logger.info("the lease was not released: %s", error)

    async def _try(self) -> bool:
        """Whether we hold the lease after this try."""
        try:
            lease = await self._api.get(LEASES, self._name, self._namespace)
        except NotFound:
            return await self._create()
        except KubeError as error:
            logger.warning("the lease cannot be read: %s", error)
            return False
        spec: dict[str, Any] = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in {"", self._identity} and not self._expired(lease):
            return False
        now = format_micro_time(time.time())
        if holder != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._duration),
            "renewTime": now,
        }
        lease["spec"] = spec
        try:
            await self._api.replace(LEASES, lease, field_manager=FIELD_MANAGER)
        except Conflict:
            return False
        except KubeError as error:
            logger.warning("the lease cannot be renewed: %s", error)
            return False
        return True

    async def _create(self) -> bool:
        now = format_micro_time(time.time())
        body: Object = {
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(self._duration),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
        try:
            await self._api.create(LEASES, body, self._namespace, field_manager=FIELD_MANAGER)
        except AlreadyExists:
            return False
        except KubeError as error:
            logger.warning("the lease cannot be made: %s", error)
            return False
        return True

    def _expired(self, lease: Object) -> bool:
        version = lease["metadata"].get("resourceVersion", "")
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
            return False
        return time.monotonic() - self._seen[1] > self._duration
