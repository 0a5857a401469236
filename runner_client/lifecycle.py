"""From a Sandbox that was just posted to an open stream into its workspace, and back to nothing."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from sandbox_api.kube import SANDBOXES, Api, Conflict, Forbidden, NotFound, Object
from sandbox_api.v1alpha1 import Sandbox

from .failures import SandboxFailedError, SandboxTimeoutError, final_failure
from .following import follow_object, follow_pods, follow_sandbox
from .stream.agent import AgentClient
from .stream.connector import Connector
from .stream.errors import Code, ConnectError, ConnectionLostError

#: Pauses between attempts at the stream: the first is short, since the container starts within moments.
_FIRST_PAUSE, _LAST_PAUSE = 0.03, 0.5
#: Without the right to watch pods, attempts are all there is.
_BLIND_PAUSE, _LAST_BLIND_PAUSE = 0.2, 1.0


class Access(Protocol):
    """A cluster, as far as sandboxes need it."""

    @property
    def api(self) -> Api:
        """For requests about resources."""
        ...

    @property
    def namespace(self) -> str:
        """Where things go that name no namespace."""
        ...

    def connector(self, namespace: str, pod: str) -> Connector:
        """How the agent of a pod is reached."""
        ...

    async def release(self) -> None:
        """End the connections; the next use opens new ones."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream into a sandbox."""

    agent: AgentClient
    sandbox: Sandbox
    pod_uid: str


async def open_agent(
    access: Access,
    namespace: str,
    name: str,
    *,
    uid: str | None = None,
    timeout: float,  # noqa: ASYNC109 - part of the error
    max_output: int | None = None,
) -> Opened:
    """Wait until the sandbox's workspace container runs, and connect to its agent.

    The stream is tried as soon as the pod can have it: the kubelet tells of a started container up to a second
    late, and the operator after that.

    Raises:
        SandboxFailedError: The operator has given up, or no retry can help.
        SandboxGoneError: It does not exist, or is being deleted.
        SandboxTimeoutError: It takes longer than ``timeout`` seconds.
        ConnectError: Streams into the pod are not allowed, or its agent does not answer as it should.
    """
    opening = _Opening(access, namespace, name, uid, max_output)
    try:
        async with asyncio.timeout(timeout):
            return await opening.run()
    except TimeoutError:
        latest = opening.sandbox
        failure = latest.status.failure if latest is not None and latest.status else None
        why = f"not available after {timeout:g} s"
        if latest is not None and latest.status is None:
            why += ": no operator has looked at it; is sandbox-operator running, and does it watch this namespace?"
        raise SandboxTimeoutError(f"{namespace}/{name}", why, failure) from None
    finally:
        await opening.close()


@dataclass(frozen=True, slots=True)
class _Pod:
    name: str
    uid: str
    initialized: bool


class _Opening:
    """Follows a sandbox and its pods at once, and tries the stream when there is a pod to try."""

    def __init__(
        self, access: Access, namespace: str, name: str, uid: str | None, max_output: int | None
    ) -> None:
        self.sandbox: Sandbox | None = None
        self._access = access
        self._namespace = namespace
        self._name = name
        self._uid = uid
        self._max_output = max_output
        self._events: asyncio.Queue[Sandbox | _Pod | AgentClient | BaseException | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._blind = False
        self._pod: _Pod | None = None
        self._attempt: asyncio.Task[AgentClient] | None = None

    async def run(self) -> Opened:
        self._start(self._follow_sandbox())
        if self._uid:
            self._start(self._follow_pods(self._uid))
        while True:
            event = await self._events.get()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, AgentClient):
                if self._attempt is not None and self._attempt.done() and self.sandbox and self._pod:
                    self._attempt = None
                    return Opened(event, self.sandbox, self._pod.uid)
                await event.aclose()
            elif isinstance(event, Sandbox):
                await self._sandbox_changed(event)
            else:
                await self._pod_changed(event)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._drop_attempt()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        async def watched() -> None:
            try:
                await work
            except Exception as error:
                self._events.put_nowait(error)

        self._tasks.append(asyncio.create_task(watched()))

    async def _follow_sandbox(self) -> None:
        async with aclosing(
            follow_sandbox(self._access.api, self._namespace, self._name, self._uid)
        ) as states:
            async for state in states:
                self._events.put_nowait(state)

    async def _follow_pods(self, uid: str) -> None:
        try:
            async with aclosing(follow_pods(self._access.api, self._namespace, uid)) as states:
                async for pods in states:
                    newest = max(
                        pods, key=lambda p: p["metadata"].get("creationTimestamp") or "", default=None
                    )
                    self._events.put_nowait(_pod(newest) if newest else None)
        except Forbidden:
            # Without the right to watch pods there is what the sandbox's status says, and trying.
            self._blind = True
            if self.sandbox is not None:
                self._events.put_nowait(self.sandbox)

    async def _sandbox_changed(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        if failure := final_failure(sandbox):
            raise SandboxFailedError(f"{self._namespace}/{self._name}", failure)
        if self._uid is None:
            self._uid = sandbox.metadata.uid
            self._start(self._follow_pods(self._uid))
        status = sandbox.status
        if self._blind and status is not None and status.pod_name and status.pod_uid:
            await self._pod_changed(_Pod(status.pod_name, status.pod_uid, initialized=True))

    async def _pod_changed(self, pod: _Pod | None) -> None:
        if self._attempt is not None and (pod is None or self._pod is None or pod.uid != self._pod.uid):
            await self._drop_attempt()
        self._pod = pod
        if pod is not None and pod.initialized and self._attempt is None:
            self._attempt = asyncio.create_task(self._reach(pod.name))
            self._attempt.add_done_callback(self._attempted)

    def _attempted(self, attempt: "asyncio.Task[AgentClient]") -> None:
        if attempt.cancelled():
            return
        error = attempt.exception()
        self._events.put_nowait(attempt.result() if error is None else error)

    async def _drop_attempt(self) -> None:
        """Give an attempt up; one that has succeeded meanwhile is closed."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        attempt.cancel()
        await asyncio.wait([attempt])
        if not attempt.cancelled() and attempt.exception() is None:
            await attempt.result().aclose()

    async def _reach(self, pod: str) -> AgentClient:
        """Connect to the agent of a pod whose containers start about now."""
        pause, last = (_BLIND_PAUSE, _LAST_BLIND_PAUSE) if self._blind else (_FIRST_PAUSE, _LAST_PAUSE)
        while True:
            connector = self._access.connector(self._namespace, pod)
            client = (
                AgentClient(connector)
                if self._max_output is None
                else AgentClient(connector, max_output=self._max_output)
            )
            try:
                await client.connect()
            except ConnectionLostError:
                await client.aclose()
            except ConnectError as error:
                await client.aclose()
                # A container that has not started yet is "not found" to some kubelets.
                if not error.retryable and error.code != Code.POD_NOT_FOUND:
                    raise
            except BaseException:
                await client.aclose()
                raise
            else:
                return client
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, last)


def _pod(item: Object) -> _Pod:
    metadata, status = item["metadata"], item.get("status") or {}
    initialized = any(
        c.get("type") == "Initialized" and c.get("status") == "True" for c in status.get("conditions") or ()
    )
    return _Pod(metadata["name"], metadata["uid"], initialized)


async def delete_sandbox(api: Api, namespace: str, name: str, uid: str | None) -> bool:
    """Ask for the deletion of a sandbox; False where it was gone. Another one of that name is not touched.

    True means that the API server has accepted it: the operator's finalizer does the rest without us.
    """
    try:
        await api.delete(SANDBOXES, name, namespace, uid=uid or None, propagation="Background")
    except NotFound:
        return False
    except Conflict:
        if uid:
            return False  # the name belongs to another sandbox now
        raise
    return True


async def wait_gone(api: Api, namespace: str, name: str, uid: str) -> None:
    """Wait until the sandbox does not exist any more. The caller bounds it."""
    async with aclosing(follow_object(api, SANDBOXES, namespace, name)) as states:
        async for state in states:
            if state is None or state["metadata"].get("uid") != uid:
                return
