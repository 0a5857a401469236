"""A session of the SDK in a sandbox on Kubernetes.

Every file operation is one message to the agent, which confines the path in the kernel at the moment of use;
so the SDK's scripts that resolve paths beforehand are not needed, and neither is a shell in the image.
"""

import asyncio
import bz2
import contextlib
import io
import logging
import lzma
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExposedPortUnavailableError,
    SandboxError,
    WorkspaceArchiveWriteError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.manifest import Manifest as SdkManifest
from agents.sandbox.materialization import MaterializationResult
from agents.sandbox.session import SandboxSession
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, Permissions, User
from agents.sandbox.workspace_paths import sandbox_path_str
from sandbox_api.kube import (
    SANDBOXES,
    SECRETS,
    AlreadyExists,
    ApiError,
    CredentialsError,
    NotFound,
    Object,
    ServerError,
    Unreachable,
)
from sandbox_api.v1alpha1 import API_VERSION, Sandbox, SandboxSpec

from . import errors
from .failures import SandboxGoneError
from .lifecycle import Access, delete_sandbox, open_agent
from .manifest_mapping import Mapped, map_manifest, plan_manifest
from .ports import PortForwards
from .sandboxes import CREATED_BY, FIELD_MANAGER, random_name
from .spec import sandbox_spec
from .state import KubernetesSandboxSessionState
from .stream.agent import AgentClient, FileInfo
from .stream.errors import AgentError, ExistsError, NotFoundError, OperationError, StoppingError, StreamError
from .uploads import UploadStream, check_sources

logger = logging.getLogger(__name__)

AWAITING_SECRET = "sandbox-operator.dev/awaiting-secret"  # noqa: S105 - an annotation
UPLOADED = "sandbox-operator.dev/uploaded"
#: On the Secret of a session, so that an orphan can be told.
SESSION_LABEL = "sandbox-operator.dev/session"
#: Bytes of a path, as the kernel's PATH_MAX.
MAX_PATH = 4096
#: Larger downloads go through a temporary file.
SPOOL = 16 << 20
BATCH = 4 << 20
#: Deleting what a failed start has made must not hold its error for long.
CLEANUP_TIMEOUT = 15.0

_KINDS = {"file": EntryKind.FILE, "directory": EntryKind.DIRECTORY, "link": EntryKind.SYMLINK}


class KubernetesSandboxSession(BaseSandboxSession):
    """The inner session: what the SDK's wrapper forwards to."""

    state: KubernetesSandboxSessionState

    def __init__(
        self,
        access: Access,
        state: KubernetesSandboxSessionState,
        *,
        max_output: int | None = None,
        opened: "Callable[[KubernetesSandboxSession], None] | None" = None,
        closed: "Callable[[KubernetesSandboxSession], Awaitable[None]] | None" = None,
    ) -> None:
        self.state = state
        self._opened = opened
        self._closed = closed
        self._access = access
        self._max_output = max_output
        self._agent: AgentClient | None = None
        self._started = False
        self._stopping = False  # the pod's agent has said that it is being stopped
        self._loop = asyncio.get_running_loop()
        self._mapped: Mapped | None = None
        self._fresh = False
        self._announce_upload = False
        self._from_snapshot = False
        self._ports = PortForwards()

    @property
    def agent(self) -> AgentClient:
        """The agent of the sandbox, while the session is started.

        Raises:
            WorkspaceStartError: It is not.
        """
        if self._agent is None:
            raise WorkspaceStartError(
                path=self._workspace_root_path(),
                message="the session is not started: call start(), or use it with `async with`",
                retryable=False,
            )
        return self._agent

    @property
    def abandoned(self) -> bool:
        """Whether the event loop in which it was used last has ended: nothing of it is open any more."""
        return self._loop.is_closed()

    # -- start

    async def _ensure_backend_started(self) -> None:
        if self._agent is not None and self._agent.connected and not await self._is_stopping():
            return
        await self._disconnect()
        self._from_snapshot = await self.state.snapshot.restorable(dependencies=self.dependencies)
        if self.state.uid and await self._alive() is None:
            if not self.state.owned:
                raise SandboxGoneError(f"{self.state.namespace}/{self.state.name}")
            self._forget()
        self._fresh = not self.state.uid
        if self._fresh:
            await self._create()
        await self._connect()

    async def _alive(self) -> Sandbox | None:
        """The Sandbox that the state speaks of, if it is still there."""
        try:
            found = Sandbox.model_validate(
                await self._access.api.get(SANDBOXES, self.state.name, self.state.namespace)
            )
        except NotFound:
            return None
        gone = found.metadata.uid != self.state.uid or found.metadata.deletion_timestamp is not None
        return None if gone else found

    def _forget(self) -> None:
        """Make ready for a replacement: another name, so that it never meets what is left of the old one."""
        options = self.state.options
        self.state.name = random_name(options.name or options.name_prefix)
        self.state.uid = self.state.pod_uid = ""
        self.state.workspace_root_ready = False
        self._set_start_state_preserved(False)

    async def _create(self) -> None:
        state, api = self.state, self._access.api
        secret = f"{state.name}-env"
        mapped = await map_manifest(state.manifest, secret_name=secret, only_ephemeral=self._from_snapshot)
        # Before there is a Sandbox: what is missing here need not start a pod first.
        await asyncio.to_thread(
            check_sources,
            mapped.uploads,
            base_dir=self._manifest_base_dir(),
            grants=state.manifest.extra_path_grants,
        )
        spec = sandbox_spec(state.options, mapped.manifest)
        annotations = {AWAITING_SECRET: secret} if mapped.secret_values else {}
        body = sandbox_body(state, spec, annotations)
        self._mapped = mapped
        self._announce_upload = mapped.awaits_upload
        posting = asyncio.ensure_future(self._post(body))
        try:
            created = await asyncio.shield(posting)
        except asyncio.CancelledError:
            # Whether it was made is known in a moment; then it can be deleted by its UID.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLEANUP_TIMEOUT):
                    state.uid = (await posting)["metadata"]["uid"]
            raise
        state.uid = created["metadata"]["uid"]
        if mapped.secret_values:
            await api.create(
                SECRETS, secret_body(state, secret, mapped), state.namespace, field_manager=FIELD_MANAGER
            )
            await self._annotate(AWAITING_SECRET, None)

    async def _post(self, body: Object) -> Object:
        """Create the Sandbox. Where the answer got lost it may be there, with our session's label."""
        state, api = self.state, self._access.api
        try:
            return await api.create(
                SANDBOXES, body, state.namespace, field_manager=FIELD_MANAGER, validation="Strict"
            )
        except (AlreadyExists, Unreachable, ServerError) as error:
            try:
                found = await api.get(SANDBOXES, state.name, state.namespace)
            except ApiError:
                raise error from None
            metadata = found["metadata"]
            ours = (metadata.get("labels") or {}).get(SESSION_LABEL) == str(state.session_id)
            if not ours or metadata.get("deletionTimestamp"):
                raise
            return found

    async def _connect(self) -> None:
        state = self.state
        opened = await open_agent(
            self._access,
            state.namespace,
            state.name,
            uid=state.uid,
            timeout=state.options.start_timeout,
            max_output=self._max_output,
        )
        self._agent, pod_uid = opened.agent, opened.pod_uid
        self._stopping = False
        refilled = pod_uid != state.pod_uid or not state.workspace_root_ready
        if refilled and state.owned and not self._fresh:
            # Another pod than the one that this session filled: its workspace is as the manifest makes it.
            self._set_start_state_preserved(False)
            state.workspace_root_ready = False
            mapped = plan_manifest(state.manifest, secret_name=f"{state.name}-env")
            self._announce_upload = mapped.awaits_upload
            self._mapped = None if self._from_snapshot else mapped
        state.pod_uid = pod_uid

    async def _annotate(self, annotation: str, value: str | None) -> None:
        await self._access.api.patch(
            SANDBOXES,
            self.state.name,
            self.state.namespace,
            {"metadata": {"uid": self.state.uid, "annotations": {annotation: value}}},
            field_manager=FIELD_MANAGER,
        )

    async def start(self) -> None:
        """Make the sandbox, or find it again, and fill its workspace. A failed start leaves nothing."""
        self._loop = asyncio.get_running_loop()
        if self._opened is not None:
            self._opened(self)
        try:
            await super().start()
        except BaseException as error:
            if not self._started:
                await self._undo(error)
            raise

    async def _undo(self, error: BaseException) -> None:
        """Take back what this start has made, also when cancelled. Bounded; a failure goes to the log."""
        uid, name = self.state.uid, self.state.name
        made = self._fresh

        async def undo() -> None:
            await self._disconnect()
            if uid and made:
                await delete_sandbox(self._access.api, self.state.namespace, name, uid)
                self._forget()
            if self._closed is not None:
                await self._closed(self)

        task = asyncio.ensure_future(asyncio.wait_for(undo(), CLEANUP_TIMEOUT))
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if task.cancelled() or task.exception() is not None:
            logger.warning(
                "sandbox %s/%s was made by a start that failed (%s) and could not be deleted; its ttl or "
                "`kubectl delete sandbox` will",
                self.state.namespace,
                name,
                type(error).__name__,
            )

    def _wrap_start_error(self, error: Exception) -> Exception:
        return errors.start_error(error, self._workspace_root_path())

    async def _after_start(self) -> None:
        self._started = True
        self._mapped = None
        self._announce_upload = False
        # Another start() of this session finds its workspace as it is.
        self._set_start_state_preserved(True)

    async def running(self) -> bool:
        """Whether the session has been started and its sandbox answers."""
        if not self._started or self._agent is None:
            return False
        if self._stopping:
            # It may have been the container alone: then another agent has its workspace by now.
            self._stopping = False
            return not await self._is_stopping()
        if self._agent.connected:
            return True
        try:
            await self._agent.connect()
        except AgentError:
            return False
        return True

    # -- filling the workspace: what is not in the resource is carried here

    async def _start_workspace(self) -> None:
        if not self.state.owned:
            return  # whoever made the sandbox said what is in it
        await super()._start_workspace()
        if self._announce_upload:
            await self._annotate(UPLOADED, self.state.pod_uid)

    async def _apply_manifest(
        self, *, only_ephemeral: bool = False, provision_accounts: bool = True
    ) -> MaterializationResult:
        mapped = self._mapped
        if mapped is not None and not (only_ephemeral and not self._from_snapshot):
            files = []
            if mapped.uploads:
                stream = UploadStream(
                    mapped.uploads,
                    root=self._workspace_root_path(),
                    base_dir=self._manifest_base_dir(),
                    grants=self.state.manifest.extra_path_grants,
                )
                try:
                    await self.agent.extract(self._root(), stream)
                except AgentError as error:
                    raise errors.write_error(error, self._workspace_root_path()) from error
                files = stream.files
            return MaterializationResult(files=files)
        return await super()._apply_manifest(only_ephemeral=only_ephemeral, provision_accounts=False)

    async def _validate_manifest_application(
        self,
        *,
        only_ephemeral: bool = False,
        manifest: SdkManifest | None = None,
        session_running: bool | None = None,
    ) -> None:
        await super()._validate_manifest_application(
            only_ephemeral=only_ephemeral, manifest=manifest, session_running=session_running
        )
        # What a running session is to be given must be what create() would have taken.
        plan_manifest(manifest or self.state.manifest, secret_name=f"{self.state.name}-env")

    async def provision_manifest_accounts(self) -> None:
        """Users and groups are refused when the session is created."""

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        if not self._fresh:
            await super()._restore_snapshot_into_workspace_on_resume()
            return
        # A fresh workspace holds only what is ephemeral: there is nothing to clear.
        archive = await self.state.snapshot.restore(dependencies=self.dependencies)
        try:
            await self.hydrate_workspace(archive)
        finally:
            archive.close()

    async def _can_reuse_restorable_snapshot_workspace(self) -> bool:
        # The workspace of a pod that still runs is never older than the snapshot: it may hold unsaved work.
        return self._can_reuse_preserved_workspace_on_resume()

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        return False

    # -- stop, shutdown, delete

    async def _shutdown_backend(self) -> None:
        """Close the stream and delete the Sandbox. Accepted is enough: the finalizer does the rest."""
        if self._opened is not None:
            self._opened(self)  # connections stay until this is done
        await self._disconnect()
        if not self.state.uid or not self.state.owned:
            return
        try:
            await delete_sandbox(self._access.api, self.state.namespace, self.state.name, self.state.uid)
        except (ApiError, CredentialsError) as error:
            raise errors.api_error(error, "shutdown") from error
        self.state.workspace_root_ready = False

    async def _after_shutdown(self) -> None:
        if self._closed is not None:
            await self._closed(self)

    async def _disconnect(self) -> None:
        self._started = False
        await self._ports.close()
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.aclose()

    # -- commands

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's signature
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Run a command in the workspace. A timeout ends its whole process group."""
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        return await self._run(argv, timeout_s=timeout, user=user)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:  # noqa: ASYNC109
        return await self._run([str(part) for part in command], timeout_s=timeout, user=None)

    async def _run(
        self, argv: Sequence[str], *, timeout_s: float | None, user: str | User | None
    ) -> ExecResult:
        try:
            result = await self.agent.exec(argv, timeout=timeout_s, user=_user(user))
        except OperationError as error:
            self._stopping = self._stopping or isinstance(error, StoppingError)
            return _not_started(error, argv)
        except AgentError as error:
            raise errors.exec_error(error, argv) from error
        if result.timed_out:
            raise ExecTimeoutError(command=argv, timeout_s=timeout_s)
        if result.code > 128 and not result.oom and await self._is_stopping():
            raise errors.killed_error(argv)
        stderr = result.stderr
        if result.oom:
            stderr += b"\n[the kernel killed the command: out of memory]\n"
        return ExecResult(stdout=result.stdout, stderr=stderr, exit_code=result.code)

    async def _is_stopping(self) -> bool:
        """Whether the agent has been told to stop, and ends all commands: it still answers, but starts none."""
        try:
            await self.agent.exec(["/proc/self/exe", "version"], timeout=10)
        except OperationError as error:
            self._stopping = self._stopping or isinstance(error, StoppingError)
        except StreamError:
            self._stopping = True
        return self._stopping

    # -- files

    def normalize_path(self, path: Path | str, *, for_write: bool = False) -> Path:
        """See the SDK. Bounded: its work on a path of a megabyte would hold up the event loop for seconds."""
        given = str(path)
        size = len(given) if len(given) > MAX_PATH else len(given.encode(errors="surrogateescape"))
        if size > MAX_PATH:
            raise errors.path_too_long(given, size, MAX_PATH, for_write=for_write)
        return super().normalize_path(path, for_write=for_write)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        # Lexically, for the SDK's error classes; the agent checks links when the path is used.
        return self.normalize_path(path, for_write=for_write)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Content of a file; a large one lies in a temporary file."""
        target = sandbox_path_str(await self._validate_path_access(path))
        agent = self.agent
        try:
            return await agent.again(lambda: _gathered(agent.read_stream(target, user=_user(user))))
        except AgentError as error:
            raise errors.read_error(error, Path(path)) from error

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        target = await self._validate_path_access(path)
        try:
            return await self.agent.read(sandbox_path_str(target), limit=max_bytes)
        except AgentError as error:
            raise errors.read_error(error, path) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Put a file in place, whole or not at all, with its parent directories."""
        await self._write(path, data, user=user, exclusive=False)

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        await self._write(path, data, user=user, exclusive=True)

    async def _write(self, path: Path, data: io.IOBase, *, user: str | User | None, exclusive: bool) -> None:
        target = await self._validate_path_access(path, for_write=True)
        if not hasattr(data, "read"):
            raise WorkspaceWriteTypeError(path=Path(path), actual_type=type(data).__name__)
        content = (
            data if type(data) is io.BytesIO else coerce_write_payload(path=Path(path), data=data).stream
        )
        try:
            await self.agent.write(
                sandbox_path_str(target), content, parents=True, exclusive=exclusive, user=_user(user)
            )
        except ExistsError as error:
            if exclusive:
                raise FileExistsError(f"{path} exists already") from error
            raise errors.write_error(error, Path(path)) from error
        except AgentError as error:
            raise errors.write_error(error, Path(path)) from error

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """Entries of a directory, names exact whatever is in them."""
        target = sandbox_path_str(await self._validate_path_access(path))
        try:
            entries = await self.agent.list(target, user=_user(user))
        except AgentError as error:
            raise errors.command_error(error, Path(path), ("ls", "-la", "--", target)) from error
        return [_file_entry(target, entry) for entry in entries]

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Make a directory."""
        target = sandbox_path_str(await self._validate_path_access(path, for_write=True))
        try:
            await self.agent.mkdir(target, parents=parents, user=_user(user))
        except AgentError as error:
            raise errors.command_error(error, Path(path), ("mkdir", target)) from error

    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        """Remove a file or link; with ``recursive`` also a directory, and then it need not exist."""
        normalized = await self._validate_path_access(path, for_write=True)
        if recursive:
            self._workspace_path_policy().validate_recursive_remove(normalized)
        target = sandbox_path_str(normalized)
        try:
            await self.agent.remove(target, recursive=recursive, missing_ok=recursive, user=_user(user))
        except AgentError as error:
            raise errors.command_error(error, Path(path), ("rm", "--", target)) from error

    async def mv(
        self, source: Path | str, destination: Path | str, *, user: str | User | None = None
    ) -> None:
        """Rename a file or link, over what has the name, unless that is a directory."""
        old = sandbox_path_str(await self._validate_path_access(source, for_write=True))
        new = sandbox_path_str(await self._validate_path_access(destination, for_write=True))
        command = ("mv", "-fT", "--", old, new)
        try:
            info = await self.agent.stat(old, follow=False, user=_user(user))
            if info.kind not in ("file", "link"):
                raise OperationError(
                    "invalid_request", "Move source must be a regular file or symlink", path=old
                )
            try:
                await self.agent.move(old, new, replace=True, user=_user(user))
            except OperationError as error:
                if error.errno != "EXDEV" or info.kind != "file":
                    raise
                await self._carry(old, new, info.mode, _user(user))
        except AgentError as error:
            raise errors.command_error(error, Path(source), command) from error

    async def _carry(self, old: str, new: str, mode: int, user: str | None) -> None:
        """Move a file to another file system, as ``mv`` does: its copy takes the name when it is whole."""
        with contextlib.suppress(NotFoundError):
            if (await self.agent.stat(new, follow=False, user=user)).kind == "link":
                await self.agent.remove(new, user=user)
        async with contextlib.aclosing(self.agent.read_stream(old, user=user)) as content:
            await self.agent.write(new, content, mode=mode, user=user)
        await self.agent.remove(old, user=user)

    async def same_file(
        self,
        left: Path | str,
        right: Path | str,
        *,
        follow_symlinks: bool = True,
        user: str | User | None = None,
    ) -> bool:
        """Whether two paths name the same file: by place, and by ``test -ef`` where that leaves doubt."""
        paths = [sandbox_path_str(await self._validate_path_access(path)) for path in (left, right)]
        try:
            first, second = [
                await self.agent.stat(path, follow=follow_symlinks, user=_user(user)) for path in paths
            ]
        except NotFoundError:
            return False
        except AgentError as error:
            raise errors.command_error(error, Path(left), ("test", paths[0], "-ef", paths[1])) from error
        if not follow_symlinks and "link" in (first.kind, second.kind):
            return False
        if first.path and first.path == second.path:
            return True
        if _looks(first) != _looks(second):
            return False
        return await super().same_file(left, right, follow_symlinks=follow_symlinks, user=user)

    # -- the whole workspace

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar stream, without what is ephemeral."""
        root = self._root()
        skip = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        agent = self.agent
        try:
            return await agent.again(lambda: _gathered(agent.archive(root, skip=skip)))
        except AgentError as error:
            at = Path(error.path) if error.path else self._workspace_root_path()
            raise errors.read_error(error, at) from error

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar stream, compressed or not, into the workspace; the agent checks every member.

        Links come back as they were, also those that leave the workspace (a venv's to the image's interpreter):
        whoever works in the workspace may make such links anyway, and no file operation follows them out.
        """
        root = self._workspace_root_path()
        try:
            async with contextlib.aclosing(_decompressed(data)) as content:
                await self.agent.extract(self._root(), content, links_as_is=True)
        except AgentError as error:
            raise errors.write_error(error, root) from error
        except (EOFError, ValueError, OSError, lzma.LZMAError) as error:
            raise WorkspaceArchiveWriteError(
                path=root, context={"reason": "unreadable_archive"}, cause=error, retryable=False
            ) from error

    def _root(self) -> str:
        return sandbox_path_str(self._workspace_root_path())

    # -- ports

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            return ExposedPortEndpoint(host="127.0.0.1", port=await self._ports.open(self.agent, port))
        except (SandboxError, OSError) as error:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": errors.BACKEND},
                cause=error,
            ) from error


class KubernetesSandboxSessionWrapper(SandboxSession):
    """The session that applications hold. Closing it gives up the pod even if saving failed."""

    async def _aclose_impl(self) -> None:
        try:
            await super()._aclose_impl()
        except BaseException:
            with contextlib.suppress(Exception):
                await self.shutdown()
            raise


def sandbox_body(
    state: KubernetesSandboxSessionState, spec: SandboxSpec, annotations: dict[str, str]
) -> Object:
    """The Sandbox of a session."""
    labels = {**state.options.labels, CREATED_BY: FIELD_MANAGER, SESSION_LABEL: str(state.session_id)}
    return {
        "apiVersion": API_VERSION,
        "kind": "Sandbox",
        "metadata": {
            "name": state.name,
            "namespace": state.namespace,
            "labels": labels,
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": spec.to_wire(),
    }


def secret_body(state: KubernetesSandboxSessionState, name: str, mapped: Mapped) -> Object:
    """The Secret with the values of a session's environment: it goes when the Sandbox goes."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": state.namespace,
            "labels": {CREATED_BY: FIELD_MANAGER, SESSION_LABEL: str(state.session_id)},
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": "Sandbox", "name": state.name, "uid": state.uid}
            ],
        },
        "stringData": dict(mapped.secret_values),
    }


def _user(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user or None


def _not_started(error: OperationError, argv: Sequence[str]) -> ExecResult:
    """A command that is not there is what a shell would say of it; anything else is an error."""
    codes = {"command_not_found": 127, "not_executable": 126}
    if error.code not in codes:
        raise errors.exec_error(error, argv) from error
    return ExecResult(
        stdout=b"", stderr=f"{error.message}\n".encode(errors="replace"), exit_code=codes[error.code]
    )


def _file_entry(directory: str, info: FileInfo) -> FileEntry:
    return FileEntry(
        path=f"{directory.rstrip('/')}/{info.name}",
        permissions=Permissions.from_mode(info.mode | (0o040000 if info.kind == "directory" else 0)),
        owner=str(info.uid),
        group=str(info.gid),
        size=info.size,
        kind=_KINDS.get(info.kind, EntryKind.OTHER),
    )


def _looks(info: FileInfo) -> tuple[object, ...]:
    return info.kind, info.size, info.mode, info.mtime_ns, info.uid, info.gid


async def _gathered(pieces: AsyncGenerator[bytes, None]) -> io.IOBase:
    """The pieces as a stream: in memory while they are few, then in a temporary file that a thread writes."""
    memory = io.BytesIO()
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            memory.write(piece)
            if memory.tell() > SPOOL:
                break
        else:
            memory.seek(0)
            return memory
        spool = cast("io.IOBase", tempfile.TemporaryFile())  # noqa: SIM115 - given to the caller
        try:
            await asyncio.to_thread(spool.write, memory.getbuffer())
            batch: list[bytes] = []
            size = 0
            async for piece in pieces:
                batch.append(piece)
                size += len(piece)
                if size >= BATCH:
                    await asyncio.to_thread(spool.write, b"".join(batch))
                    batch, size = [], 0
            await asyncio.to_thread(spool.write, b"".join(batch))
            spool.seek(0)
        except BaseException:
            spool.close()
            raise
        return spool


class _Source(io.RawIOBase):
    """A stream of bytes of which the beginning has been read already."""

    def __init__(self, begin: bytes, rest: Any) -> None:
        super().__init__()
        self._begin, self._rest = begin, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._begin:
            size = len(self._begin) if size < 0 else size
            piece, self._begin = self._begin[:size], self._begin[size:]
            return piece
        return _bytes(self._rest.read(size))


def _bytes(piece: Any) -> bytes:
    if isinstance(piece, str):
        raise ValueError("the archive is a text stream")
    return bytes(piece or b"")


async def _decompressed(data: io.IOBase) -> AsyncGenerator[bytes, None]:
    """The tar stream in an archive; the agent takes plain tar and gzip, others are unpacked here, a bit at a time."""
    first = _bytes(await asyncio.to_thread(cast("Any", data).read, 1 << 20))
    if not first:
        raise EOFError("the archive is empty")
    source: Any = _Source(first, data)
    if first.startswith(b"BZh"):
        source = bz2.BZ2File(source)
    elif first.startswith(b"\xfd7zXZ\x00"):
        source = lzma.LZMAFile(source)  # noqa: SIM115 - closing it closes nothing
    while piece := await asyncio.to_thread(source.read, 1 << 20):
        yield piece
