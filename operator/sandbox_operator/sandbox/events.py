"""Events about sandboxes: one for each cause and moment, posted aside so that they delay and break nothing."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from sandbox_api.kube import EVENTS, Api, ApiError, KubeError
from sandbox_api.v1alpha1 import API_VERSION

from sandbox_operator.durations import format_micro_time

from .memory import Memory
from .names import FIELD_MANAGER
from .steps import Tell
from .text import one_line
from .view import SandboxView

logger = logging.getLogger(__name__)

#: The same thing about the same sandbox is told again only after this many seconds.
QUIET = 600.0
_MAX_PENDING = 500
#: What events.k8s.io admits.
_MAX_NOTE = 1000
_MAX_TOLD = 32


@dataclass(frozen=True, slots=True)
class _Pending:
    namespace: str
    body: dict[str, Any]


class Recorder:
    """Posts events, a bounded number of them at a time; those beyond are dropped."""

    def __init__(self, api: Api, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._pending: asyncio.Queue[_Pending] = asyncio.Queue(_MAX_PENDING)
        self._count = 0

    def tell(self, view: SandboxView, step: Tell, memory: Memory) -> None:
        """Post an event soon, unless it was told a short while ago."""
        now = time.time()
        told = memory.told
        if now - told.get((step.reason, step.note), 0.0) < QUIET:
            return
        if len(told) >= _MAX_TOLD:
            told.clear()
        told[step.reason, step.note] = now
        self._count += 1
        body = {
            "metadata": {
                "name": f"{view.name[:200].rstrip('-.')}.{time.time_ns():x}",
                "namespace": view.namespace,
            },
            "eventTime": format_micro_time(now),
            "reportingController": "sandbox-operator.dev/sandbox-operator",
            "reportingInstance": self._instance[:128],
            "action": step.action,
            "reason": step.reason.value,
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": "Sandbox",
                "name": view.name,
                "namespace": view.namespace,
                "uid": view.uid,
            },
            "note": one_line(step.note, _MAX_NOTE),
            "type": "Warning" if step.warning else "Normal",
        }
        try:
            self._pending.put_nowait(_Pending(view.namespace, body))
        except asyncio.QueueFull:
            logger.warning("too many events wait; one is dropped", extra={"reason": step.reason.value})

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            event = await self._pending.get()
            try:
                await self._api.create(EVENTS, event.body, event.namespace, field_manager=FIELD_MANAGER)
            except ApiError as error:
                if error.namespace_terminating:
                    continue  # nobody will read it
                logger.info("an event could not be posted: %s", error, extra={"namespace": event.namespace})
            except KubeError as error:
                logger.info("an event could not be posted: %s", error, extra={"namespace": event.namespace})
            except Exception:
                logger.exception("an event could not be posted", extra={"namespace": event.namespace})
