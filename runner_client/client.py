"""The client that ``SandboxRunConfig(client=...)`` takes: sandboxes of the SDK as resources of a cluster."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from agents.sandbox._mount_security import redact_mount_error_data
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from sandbox_api.kube import SANDBOXES, ApiError, CredentialsError, NotFound
from sandbox_api.v1alpha1 import Sandbox

from . import errors
from .lifecycle import Access, delete_sandbox
from .manifest_mapping import attached_manifest, plan_manifest
from .options import KubernetesSandboxClientOptions
from .sandboxes import FIELD_MANAGER, random_name
from .session import KubernetesSandboxSession, KubernetesSandboxSessionWrapper, sandbox_body
from .spec import sandbox_spec
from .state import KubernetesSandboxSessionState


class KubernetesSandboxClient(BaseSandboxClient[KubernetesSandboxClientOptions | None]):
    """Runs the SDK's sandboxes on Kubernetes.

    Connections are opened when they are needed and closed when no session is started any more: no closing needed.
    It may be kept for the life of a program, and used by one event loop at a time.

    Args:
        namespace: Where sandboxes are created; by default that of the kubeconfig's context, or the pod's.
        kubeconfig: Path; by default as kubectl finds it, or the pod's service account.
        context: Context of the kubeconfig.
        options: Defaults for runs that give no options of their own.
        max_output: Bytes of output that one command may return.
        dependencies: See the SDK.
        instrumentation: See the SDK.
        access: Instead of namespace, kubeconfig and context: another way to a cluster.
    """

    backend_id = "kubernetes"
    supports_default_options = True

    def __init__(
        self,
        namespace: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        options: KubernetesSandboxClientOptions | None = None,
        max_output: int | None = None,
        dependencies: Dependencies | None = None,
        instrumentation: Instrumentation | None = None,
        access: Access | None = None,
    ) -> None:
        self._namespace = namespace
        self._kubeconfig = kubeconfig
        self._context = context
        self._options = options or KubernetesSandboxClientOptions()
        self._max_output = max_output
        self._dependencies = dependencies
        self._instrumentation = instrumentation or Instrumentation()
        self._access = access
        self._live: set[KubernetesSandboxSession] = set()
        self._kept = False
        self._busy = 0

    async def __aenter__(self) -> Self:
        self._kept = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._kept = False
        await self.aclose()

    async def aclose(self) -> None:
        """End all connections, also those of sessions. Sandboxes stay."""
        for session in list(self._live):
            await session._disconnect()
        self._live.clear()
        if self._access is not None:
            await self._access.release()

    # -- the SDK's interface

    @redact_mount_error_data
    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: KubernetesSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Make a session. Everything is checked, and nothing is made in the cluster before its start.

        Raises:
            ConfigurationError: The manifest, the options, the cluster or our rights do not allow it.
        """
        options = options or self._options
        manifest = manifest if manifest is not None else Manifest()
        self._validate_manifest_for_create(manifest)
        session_id = uuid.uuid4()
        async with self._reached() as access:
            state = KubernetesSandboxSessionState(
                session_id=session_id,
                manifest=manifest,
                snapshot=resolve_snapshot(snapshot, str(session_id)),
                exposed_ports=options.exposed_ports,
                namespace=options.namespace or self._namespace or access.namespace,
                name=options.name or random_name(options.name_prefix),
                options=options,
            )
            await self._rehearse(access, state)
        return self._session(access, state)

    @redact_mount_error_data
    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Take a session up again: in its sandbox if that lives, else in a replacement at the next start."""
        if not isinstance(state, KubernetesSandboxSessionState):
            raise TypeError("KubernetesSandboxClient.resume expects a KubernetesSandboxSessionState")
        state.assert_path_grants_rebound()
        self._validate_manifest_for_create(state.manifest)
        try:
            async with self._reached() as access:
                inner = self._inner(access, state)
                alive = await inner._alive() if state.uid else None
                if alive is None:
                    inner._forget()
                    await self._rehearse(access, state)
                else:
                    inner._set_start_state_preserved(True)
        except (ApiError, CredentialsError) as error:
            raise errors.api_error(error, "start") from error
        return self._wrapped(inner)

    async def attach(
        self,
        name: str,
        *,
        namespace: str | None = None,
        options: KubernetesSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """A session in a sandbox that somebody else has made, by kubectl or GitOps: it stays theirs.

        Start the session (or use it with ``async with``); then pass it as ``SandboxRunConfig(session=...)``.
        Closing it ends the stream, and nothing else.

        Raises:
            ConfigurationError: There is no such sandbox, or we may not read it.
        """
        options = options or self._options
        async with self._reached() as access:
            namespace = namespace or options.namespace or self._namespace or access.namespace
            try:
                found = Sandbox.model_validate(await access.api.get(SANDBOXES, name, namespace))
            except (ApiError, CredentialsError) as error:
                # Without the kind's definition it is the path that is not found.
                if isinstance(error, NotFound) and error.details.get("name") == name:
                    raise errors.configuration_error(f"there is no sandbox {namespace}/{name}") from error
                raise errors.create_error(error, namespace, name) from error
        session_id = uuid.uuid4()
        state = KubernetesSandboxSessionState(
            session_id=session_id,
            manifest=attached_manifest(found.spec.manifest),
            snapshot=resolve_snapshot(None, str(session_id)),
            exposed_ports=options.exposed_ports or tuple(found.spec.ports or ()),
            namespace=namespace,
            name=name,
            uid=found.metadata.uid,
            options=options,
            owned=False,
        )
        return self._session(access, state)

    @redact_mount_error_data
    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Close a session's stream and delete its Sandbox; also twice, also for one that never started.

        A sandbox that the session was only attached to stays.

        It returns when the API server has accepted the deletion. From then on the operator's finalizer ends
        pod and workspace whatever becomes of this process; ``Sandboxes.delete(wait=...)`` waits for that.
        """
        inner = session._inner
        if not isinstance(inner, KubernetesSandboxSession):
            raise TypeError("KubernetesSandboxClient.delete expects a session of a KubernetesSandboxClient")
        self._live.add(inner)
        try:
            await inner._disconnect()
            state = inner.state
            if state.uid and state.owned:
                try:
                    await delete_sandbox(inner._access.api, state.namespace, state.name, state.uid)
                except (ApiError, CredentialsError) as error:
                    raise errors.api_error(error, "shutdown") from error
                state.workspace_root_ready = False
        finally:
            await self._closed(inner)
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """See the SDK."""
        return self._deserialize_session_state_payload(payload, KubernetesSandboxSessionState)

    def _wrap_session(
        self, inner: object, *, instrumentation: Instrumentation | None = None
    ) -> SandboxSession:
        return KubernetesSandboxSessionWrapper(
            inner,  # type: ignore[arg-type]
            instrumentation=instrumentation,
            dependencies=self._resolve_dependencies(),
        )

    # -- how

    def _session(self, access: Access, state: KubernetesSandboxSessionState) -> SandboxSession:
        return self._wrapped(self._inner(access, state))

    def _inner(self, access: Access, state: KubernetesSandboxSessionState) -> KubernetesSandboxSession:
        return KubernetesSandboxSession(
            access, state, max_output=self._max_output, opened=self._live.add, closed=self._closed
        )

    def _wrapped(self, inner: KubernetesSandboxSession) -> SandboxSession:
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def _reach(self) -> Access:
        if self._access is None:
            try:
                from .kube_access import ClusterAccess

                self._access = await ClusterAccess.load(self._kubeconfig, self._context)
            except CredentialsError as error:
                raise errors.configuration_error(str(error)) from error
        return self._access

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[Access]:
        """The cluster, for a while: afterwards connections are closed, unless a session is started or others ask."""
        self._busy += 1
        try:
            yield await self._reach()
        finally:
            self._busy -= 1
            await self._release_if_idle()

    async def _rehearse(self, access: Access, state: KubernetesSandboxSessionState) -> None:
        """Have the API server create the Sandbox without doing it: kind, rights, rules and admission in one.

        Values that may be secret are not looked up for this.
        """
        mapped = plan_manifest(state.manifest, secret_name=f"{state.name}-env")
        body = sandbox_body(state, sandbox_spec(state.options, mapped.manifest), {})
        try:
            async with asyncio.timeout(60):
                await access.api.create(
                    SANDBOXES,
                    body,
                    state.namespace,
                    field_manager=FIELD_MANAGER,
                    validation="Strict",
                    dry_run=True,
                )
        except (ApiError, CredentialsError) as error:
            raise errors.create_error(error, state.namespace, state.name) from error

    async def _closed(self, inner: KubernetesSandboxSession) -> None:
        self._live.discard(inner)
        await self._release_if_idle()

    async def _release_if_idle(self) -> None:
        self._live -= {session for session in self._live if session.abandoned}
        if not self._kept and not self._busy and not self._live and self._access is not None:
            await self._access.release()
