"""From a Sandbox that was just posted to an open stream into its workspace, and back to nothing."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from sandbox_api.kube import PODS, SANDBOXES, Api, ApiError, Conflict, Forbidden, NotFound, Object
from sandbox_api.v1alpha1 import Sandbox

from .failures import SandboxFailedError, SandboxTimeoutError, final_failure
from .following import follow_object, follow_sandbox
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


async def open_agent(
    access: Access,
    namespace: str,
    name: str,
    *,
    uid: str | None = None,
    timeout: float,  # noqa: ASYNC109 - part of the error
    max_output: int | None = None,
) -> tuple[AgentClient, Sandbox]:
    """Wait until the sandbox's workspace container runs, and connect to its agent.

    The stream is tried as soon as the pod can have it, without waiting for Ready to travel.

    Raises:
        SandboxFailedError: The operator has given up, or no retry can help.
        SandboxGoneError: It does not exist, or is being deleted.
        SandboxTimeoutError: It takes longer than ``timeout`` seconds.
        ConnectError: Streams into the pod are not allowed, or its agent does not answer as it should.
    """
    where = f"{namespace}/{name}"
    latest: Sandbox | None = None
    pod: str | None = None
    attempt: asyncio.Task[AgentClient] | None = None
    following: asyncio.Task[Sandbox] | None = None
    try:
        async with (
            asyncio.timeout(timeout),
            aclosing(follow_sandbox(access.api, namespace, name, uid)) as states,
        ):
            try:
                while True:
                    if following is None:
                        following = asyncio.create_task(_next(states))
                    await asyncio.wait(
                        [task for task in (following, attempt) if task is not None],
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if attempt is not None and attempt.done() and latest is not None:
                        client, attempt = attempt.result(), None
                        return client, latest
                    if not following.done():
                        continue
                    latest, following = following.result(), None
                    if failure := final_failure(latest):
                        raise SandboxFailedError(where, failure)
                    present = latest.status.pod_name if latest.status and latest.status.pod_uid else None
                    if present != pod:
                        pod = present
                        await _drop(attempt)
                        attempt = (
                            asyncio.create_task(_reach(access, namespace, present, max_output))
                            if present
                            else None
                        )
            finally:
                if following is not None:
                    following.cancel()
                    with contextlib.suppress(BaseException):
                        await following
                await _drop(attempt)
    except TimeoutError:
        failure = latest.status.failure if latest is not None and latest.status else None
        raise SandboxTimeoutError(where, f"not available after {timeout:g} s", failure) from None


async def _next(states: AsyncGenerator[Sandbox, None]) -> Sandbox:
    return await anext(states)


async def _drop(attempt: "asyncio.Task[AgentClient] | None") -> None:
    """Give an attempt up; one that has succeeded meanwhile is closed."""
    if attempt is None:
        return
    attempt.cancel()
    await asyncio.wait([attempt])
    if not attempt.cancelled() and attempt.exception() is None:
        await attempt.result().aclose()


async def _reach(access: Access, namespace: str, pod: str, max_output: int | None) -> AgentClient:
    """Connect to the agent of a pod, however long it takes to start."""
    seen = await _wait_for_start(access.api, namespace, pod)
    pause, last = (_FIRST_PAUSE, _LAST_PAUSE) if seen else (_BLIND_PAUSE, _LAST_BLIND_PAUSE)
    options = {} if max_output is None else {"max_output": max_output}
    while True:
        client = AgentClient(access.connector(namespace, pod), **options)
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


async def _wait_for_start(api: Api, namespace: str, pod: str) -> bool:
    """Wait until the init container has ended, so that the workspace's container starts now.

    Returns False at once where we may not look at pods.
    """
    try:
        async with aclosing(follow_object(api, PODS, namespace, pod)) as states:
            async for state in states:
                if state is not None and _initialized(state):
                    return True
    except Forbidden:
        pass
    return False


def _initialized(pod: Object) -> bool:
    status = pod.get("status") or {}
    return any(
        c.get("type") == "Initialized" and c.get("status") == "True" for c in status.get("conditions") or ()
    )


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


__all__ = ["Access", "ApiError", "delete_sandbox", "open_agent", "wait_gone"]
