"""The process: kopf hosts it (login, probes, signals, the feed of Sandboxes), and this module alone knows kopf.

What kopf is not asked to do, and why: its handlers keep progress in annotations (two patches an event),
events of a handler that fails are not repeated, its index goes stale after a long break. So the one handler
wakes our own loop, and nothing of ours is ever stored on an object by kopf.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import kopf
from sandbox_api.kube import (
    SANDBOXES,
    Credentials,
    CredentialsError,
    InClusterCredentials,
    KubeClient,
    KubeconfigCredentials,
    KubeError,
)
from sandbox_api.kube.decoding import TolerantDecoder
from sandbox_api.v1alpha1 import GROUP, VERSION

from sandbox_operator import logs
from sandbox_operator.engine.loop import PAGE
from sandbox_operator.process import Operator
from sandbox_operator.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

#: Requests under way at once: a few more than workers, so that events and lists find a way.
_SPARE_CONNECTIONS = 8


class Backoffs:
    """Pauses between tries that never end, since an operator that gives up helps nobody."""

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret hangs on it
            pause = min(pause * 2, 30.0)


class NoDiffBase(kopf.DiffBaseStorage):
    """No memory of what was handled. kopf's own copies every object at every event, although nothing compares."""

    def build(self, **_: Any) -> Any:
        """Nothing is worth a comparison."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Nothing was kept."""

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


class NoProgress(kopf.ProgressStorage):
    """No memory of how far handlers came: the one that there is ends at once."""

    def fetch(self, **_: Any) -> None:
        """Nothing was kept."""

    def store(self, **_: Any) -> None:
        """Nothing is kept."""

    def purge(self, **_: Any) -> None:
        """Nothing was kept."""

    def touch(self, **_: Any) -> None:
        """Nothing is kept."""

    def clear(self, *, essence: Any) -> Any:
        """Nothing of ours is in it."""
        return essence


class Host:
    """kopf's side of one process.

    Attributes:
        exit_code: What the process is to end with.
    """

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self.exit_code = 0
        self._settings = settings
        self._credentials = credentials
        self._client: KubeClient | None = None
        self._operator: Operator | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Run until a signal, or until the operator cannot go on."""
        namespaces = self._settings.watch_namespaces
        port = self._settings.probes_port
        # Without an identity kopf asks for the user's name, which a numeric user of a container does not
        # have.
        identity: Any = socket.gethostname()
        kopf.run(
            registry=self._registry(),
            settings=_kopf_settings(),
            identity=identity,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            liveness_endpoint=f"http://0.0.0.0:{port}/healthz" if port else None,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        kopf.on.startup(registry=registry)(self._start)
        kopf.on.cleanup(registry=registry)(self._stop)
        kopf.on.probe(registry=registry, id="operator")(self._probe)
        kopf.on.event(GROUP, VERSION, "sandboxes", registry=registry, id="feed")(self._feed)
        return registry

    async def _login(self, settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        """Let kopf reach the API server where our own client reaches it."""
        if isinstance(self._credentials, KubeconfigCredentials):
            return kopf.login_with_kubeconfig(settings=settings)
        info = kopf.login_with_service_account(settings=settings)
        if info is None:
            return None
        # By address: the name needs a DNS that may not be up yet.
        endpoint = await self._credentials.endpoint(refresh=True)
        return kopf.ConnectionInfo(server=endpoint.server, ca_path=info.ca_path, token=info.token)

    async def _start(self, **_: Any) -> None:
        connections = self._settings.workers + _SPARE_CONNECTIONS
        self._client = KubeClient(self._credentials, connections=connections)
        await self._await_resource(self._client)
        self._operator = Operator(self._client, self._settings)
        self._task = asyncio.create_task(self._operator.run(), name="operator")
        self._task.add_done_callback(self._ended)

    async def _await_resource(self, client: KubeClient) -> None:
        """Wait until the API server serves Sandboxes: kopf looks for them once, and never again."""
        pause = 0.5
        for namespace in self._settings.watch_namespaces or (None,):
            while True:
                try:
                    await client.raw("GET", SANDBOXES.collection(namespace), params={"limit": "1"})
                    break
                except KubeError as error:
                    logger.warning("Sandboxes cannot be listed yet: %s", error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 10.0)

    async def _stop(self, **_: Any) -> None:
        # Own tasks are ended here: kopf's stop_flag would delay the end by five seconds.
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task
        if self._client is not None:
            await self._client.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        logger.critical("the operator cannot go on: %s", error, exc_info=error)
        self.exit_code = 1
        os.kill(os.getpid(), signal.SIGTERM)

    async def _probe(self, **_: Any) -> str:
        if self._operator is None or self._task is None or self._task.done():
            raise kopf.PermanentError("the operator does not run")
        if (why := self._operator.unhealthy()) is not None:
            raise kopf.PermanentError(why)
        return "ok"

    async def _feed(self, event: Any, **_: Any) -> None:
        try:
            if self._operator is not None:
                self._operator.feed(event["type"], dict(event["object"]))
        except Exception:
            # kopf would log it and forget the event; our own list repairs what is lost here.
            logger.exception("an event could not be taken in")
        finally:
            _forget(event["object"])


def _forget(item: Any) -> None:
    """Take out of an object what is large: kopf keeps the last event of each for seconds after it was handled."""
    for part in ("spec", "status"):
        item.pop(part, None)
    for part in ("managedFields", "annotations"):
        item.get("metadata", {}).pop(part, None)


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.persistence.finalizer = f"kopf.{GROUP}/unused"
    settings.persistence.progress_storage = NoProgress()
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.networking.error_backoffs = Backoffs()
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.watching.server_timeout = 300  # an integer: it is put into the request as it is
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = PAGE
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = 10.0
    return settings


def credentials_of_environment() -> Credentials:
    """The pod's service account in a cluster, else the kubeconfig.

    Raises:
        CredentialsError: There is neither.
    """
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        return InClusterCredentials()
    return KubeconfigCredentials()


def main() -> int:
    """Run the operator; returns the exit code."""
    try:
        settings = Settings.from_environment()
        credentials = credentials_of_environment()
    except (SettingsError, CredentialsError) as error:
        print(f"sandbox-operator: {error}", file=sys.stderr)
        return 2
    logs.configure(settings.log_level, settings.log_format)
    # kopf parses by json.loads what it lists and watches, and one object that nests too deep would end it.
    json._default_decoder = TolerantDecoder()  # type: ignore[attr-defined]
    host = Host(settings, credentials)
    try:
        host.run()
    except Exception as error:
        # kopf ends where a watch is refused for good; whoever restarts us tries again.
        logger.critical("the operator ends: %s", error, exc_info=error)
        return 1
    return host.exit_code
