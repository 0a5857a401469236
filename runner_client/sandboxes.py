"""The typed API: sandboxes from Python, without the SDK.

async with Sandboxes(namespace="agents") as sandboxes:
    sandbox = await sandboxes.create({"image": "python:3.13-slim"})
    async with await sandboxes.connect(sandbox) as agent:
        print((await agent.exec(["python3", "-V"])).stdout)
    await sandboxes.delete(sandbox)
"""

import asyncio
import os
import secrets
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Self

from sandbox_api.kube import SANDBOXES, Api, NotFound
from sandbox_api.v1alpha1 import API_VERSION, Sandbox, SandboxSpec

from .failures import SandboxFailedError, SandboxGoneError, SandboxTimeoutError, condition, final_failure
from .following import follow_sandbox
from .lifecycle import Access, delete_sandbox, open_agent, wait_gone
from .stream.agent import AgentClient

FIELD_MANAGER = "sandbox-operator-client"
#: On everything that this client creates, so that orphans can be found.
CREATED_BY = "app.kubernetes.io/created-by"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def random_name(prefix: str = "sbx") -> str:
    """A short name that nobody else has: 50 bits of chance, no vowels, so no words."""
    return f"{prefix}-{''.join(secrets.choice(_ALPHABET) for _ in range(10))}"


class Sandboxes:
    """Sandboxes of one cluster. Belongs to one event loop; use it as an asynchronous context manager.

    Args:
        namespace: Where they live; by default the namespace of the kubeconfig's context, or the pod's own.
        kubeconfig: Path; by default as kubectl finds it, or the pod's service account.
        context: Context of the kubeconfig.
        access: Instead of the three: a way to the cluster that somebody else closes.
    """

    def __init__(
        self,
        namespace: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        access: Access | None = None,
    ) -> None:
        self._namespace = namespace
        self._kubeconfig = kubeconfig
        self._context = context
        self._access = access
        self._owned = access is None

    async def __aenter__(self) -> Self:
        await self._reach()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all connections."""
        if self._owned and self._access is not None:
            access, self._access = self._access, None
            await access.release()

    async def _reach(self) -> Access:
        if self._access is None:
            from .kube_access import ClusterAccess

            self._access = await ClusterAccess.load(self._kubeconfig, self._context)
        return self._access

    async def _where(self) -> tuple[Api, str]:
        access = await self._reach()
        return access.api, self._namespace or access.namespace

    async def create(
        self,
        spec: SandboxSpec | Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """Create a sandbox; it starts by itself."""
        api, namespace = await self._where()
        if not isinstance(spec, SandboxSpec):
            spec = SandboxSpec.model_validate(spec or {})
        body = {
            "apiVersion": API_VERSION,
            "kind": "Sandbox",
            "metadata": {
                "name": name or random_name(),
                "namespace": namespace,
                "labels": {CREATED_BY: FIELD_MANAGER, **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": spec.to_wire(),
        }
        created = await api.create(
            SANDBOXES, body, namespace, field_manager=FIELD_MANAGER, validation="Strict"
        )
        return Sandbox.model_validate(created)

    async def get(self, name: str) -> Sandbox:
        """Read a sandbox.

        Raises:
            SandboxGoneError: There is none of that name.
        """
        api, namespace = await self._where()
        try:
            return Sandbox.model_validate(await api.get(SANDBOXES, name, namespace))
        except NotFound:
            raise SandboxGoneError(f"{namespace}/{name}") from None

    async def list(self, label_selector: str | None = None) -> list[Sandbox]:
        """All sandboxes of the namespace."""
        api, namespace = await self._where()
        listed = await api.list(SANDBOXES, namespace, label_selector=label_selector)
        return [Sandbox.model_validate(item) for item in listed.items]

    async def wait_ready(
        self,
        sandbox: Sandbox | str,
        *,
        timeout: float = 300.0,  # noqa: ASYNC109 - part of the error
    ) -> Sandbox:
        """Wait until a sandbox is ready.

        Raises:
            SandboxFailedError: The operator has given up, or no retry can help: raised at once.
            SandboxGoneError: It does not exist, or is being deleted.
            SandboxTimeoutError: It takes longer.
        """
        api, namespace = await self._where()
        name, uid = _identity(sandbox)
        where = f"{namespace}/{name}"
        latest: Sandbox | None = None
        try:
            async with (
                asyncio.timeout(timeout),
                aclosing(follow_sandbox(api, namespace, name, uid)) as states,
            ):
                async for latest in states:
                    if failure := final_failure(latest):
                        raise SandboxFailedError(where, failure)
                    observed = latest.status.observed_generation if latest.status else None
                    if condition(latest, "Ready") == "True" and observed == latest.metadata.generation:
                        return latest
        except TimeoutError:
            pass
        failure = latest.status.failure if latest is not None and latest.status else None
        raise SandboxTimeoutError(where, f"not ready after {timeout:g} s", failure)

    async def connect(
        self,
        sandbox: Sandbox | str,
        *,
        timeout: float = 300.0,  # noqa: ASYNC109 - part of the error
    ) -> AgentClient:
        """Wait until the sandbox runs and open a stream into it; the caller closes it."""
        access = await self._reach()
        name, uid = _identity(sandbox)
        opened = await open_agent(access, self._namespace or access.namespace, name, uid=uid, timeout=timeout)
        return opened.agent

    async def delete(
        self,
        sandbox: Sandbox | str,
        *,
        wait: float | None = None,
    ) -> bool:
        """Delete a sandbox; False where it was gone already.

        Args:
            sandbox: Its name, or itself: then another one that took its name is left alone.
            wait: Seconds to wait until it is really gone, pod and all.

        Raises:
            SandboxTimeoutError: It is still there after ``wait``; the deletion goes on.
        """
        api, namespace = await self._where()
        name, uid = _identity(sandbox)
        if uid is None and wait is not None:
            try:
                uid = (await self.get(name)).metadata.uid
            except SandboxGoneError:
                return False
        accepted = await delete_sandbox(api, namespace, name, uid)
        if wait is not None and uid is not None:
            try:
                async with asyncio.timeout(wait):
                    await wait_gone(api, namespace, name, uid)
            except TimeoutError:
                raise SandboxTimeoutError(
                    f"{namespace}/{name}", f"still being deleted after {wait:g} s"
                ) from None
        return accepted


def _identity(sandbox: Sandbox | str) -> tuple[str, str | None]:
    if isinstance(sandbox, str):
        return sandbox, None
    return sandbox.metadata.name, sandbox.metadata.uid
