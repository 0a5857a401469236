"""The way to a cluster for a client: kubeconfig, with credential plugins, or the pod's service account.

``kubernetes.aio`` reads the configuration and carries the WebSocket of pods/exec; plain requests go through
:class:`sandbox_api.kube.KubeClient`, adapted to the same configuration here. One object holds both and closes
both.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast
from weakref import WeakSet

import aiohttp
from sandbox_api.kube import Api, CredentialsError, Endpoint, KubeClient
from sandbox_api.kube.credentials import SERVICE_ACCOUNT_DIR, proxy_for

from .stream.errors import Code, ConnectError
from .stream.exec_transport import ExecTransport

try:
    from kubernetes.aio import config as kube_config
    from kubernetes.aio.client import ApiClient, Configuration, CoreV1Api
    from kubernetes.aio.client.exceptions import ApiException
    from kubernetes.aio.config.config_exception import ConfigException
    from kubernetes.aio.stream import WsApiClient
except ImportError as error:
    raise ImportError(
        "reaching a cluster needs the client's extra: pip install 'sandbox-operator[agents]'"
    ) from error

USER_AGENT = "sandbox-operator-client"
#: A dead TCP path is noticed by the WebSocket within about one and a half of these; the mux looks more often.
HEARTBEAT = 30.0
#: A token of a file, or of a plugin that names no end, is fetched again this often.
TOKEN_MAX_AGE = 300.0
EXEC_CONNECT_TIMEOUT = 20.0


class ClusterAccess:
    """A cluster and who we are there. Made by :meth:`load`. In another event loop than before it connects anew.

    Attributes:
        namespace: The namespace of the context or of the pod, else ``default``.
    """

    def __init__(self, configuration: "Configuration", loader: Any, namespace: str) -> None:
        self.namespace = namespace
        self._configuration = configuration
        self._loader = loader
        self._loaded_at = time.monotonic()
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets: WsApiClient | None = None
        self._retired: list[WsApiClient] = []
        self._client: KubeClient | None = None
        self._streams: WeakSet[ExecTransport] = WeakSet()

    @property
    def api(self) -> Api:
        """For requests about resources."""
        self._enter()
        if self._client is None:
            self._client = KubeClient(_ConfigurationCredentials(self), user_agent=USER_AGENT)
        return self._client

    def _enter(self) -> None:
        """Leave behind what belongs to another event loop: it has ended, so nothing of it can be closed."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._client = self._sockets = None
            self._retired = []
            self._streams = WeakSet()
            self._lock = asyncio.Lock()

    def connector(self, namespace: str, pod: str) -> "PodConnector":
        """How the agent of a pod is reached."""
        return PodConnector(self, namespace, pod)

    @classmethod
    async def load(cls, kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> Self:
        """Read the configuration: the file given, ``KUBECONFIG``, ``~/.kube/config``, or the pod's own.

        Raises:
            CredentialsError: There is none, or it does not work; the message says which.
        """
        paths = _paths(kubeconfig)
        configuration = cast("Configuration", type.__call__(Configuration))
        if paths is None:
            if context is not None:
                raise CredentialsError(f"context {context!r} was asked for, but there is no kubeconfig")
            return await cls._in_cluster(configuration)
        try:
            loader = await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=paths, context=context, client_configuration=configuration, persist_config=False
            )
        except (ConfigException, OSError, ValueError) as error:
            raise CredentialsError(f"kubeconfig {paths}: {error}") from None
        except (TypeError, KeyError, AttributeError):
            raise CredentialsError(f"kubeconfig {paths} is empty or no kubeconfig") from None
        except Exception as error:
            raise CredentialsError(f"kubeconfig {paths} cannot be used ({type(error).__name__})") from None
        user = loader._user
        if user is not None and "exec" in user and not _authenticated(configuration):
            command = user["exec"].safe_get("command")
            raise CredentialsError(
                f"kubeconfig {paths}: the credential plugin {command!r} gave no credentials: run it by hand"
            )
        _trim(configuration)
        namespace = loader.current_context.get("context", {}).get("namespace") or "default"
        return cls(configuration, loader, namespace)

    @classmethod
    async def _in_cluster(cls, configuration: "Configuration") -> Self:
        try:
            kube_config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )
        except (ConfigException, OSError) as error:
            raise CredentialsError(
                f"there is no kubeconfig (KUBECONFIG, ~/.kube/config), and this is not a pod: {error}"
            ) from None
        try:
            namespace = (SERVICE_ACCOUNT_DIR / "namespace").read_text().strip()
        except OSError:
            namespace = ""
        return cls(configuration, None, namespace or "default")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.release()

    async def release(self) -> None:
        """End all connections, streams into sandboxes included. The next use opens new ones."""
        self._enter()
        streams, self._streams = list(self._streams), WeakSet()
        for stream in streams:
            stream.close()
        await asyncio.gather(*(stream.wait_closed() for stream in streams))
        if self._client is not None:
            api, self._client = self._client, None
            await api.close()
        clients, self._retired = [*self._retired, *filter(None, [self._sockets])], []
        self._sockets = None
        for client in clients:
            await client.close()  # type: ignore[no-untyped-call]
        # aiohttp closes TLS transports one turn of the loop later.
        await asyncio.sleep(0)

    # -- requests

    async def endpoint(self, *, refresh: bool = False) -> Endpoint:
        """How the next request is to be made.

        Raises:
            CredentialsError: There are no credentials any more, or they cannot be used.
        """
        self._enter()
        await self._renew(force=refresh)
        client = await self._websocket_client()
        configuration = self._configuration
        headers = {}
        token = await configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        return Endpoint(
            configuration.host.rstrip("/"),
            client.rest_client.ssl_context,
            headers,
            self._proxy(),
            configuration.tls_server_name or None,
        )

    def _proxy(self) -> str | None:
        return self._configuration.proxy or proxy_for(self._configuration.host)

    async def _renew(self, *, force: bool) -> None:
        """Get new credentials where they may have run out: tokens of files and of plugins."""
        if self._loader is None:
            return  # the pod's token is read again by a hook of the configuration
        user = self._loader._user or {}
        renewable = any(kind in user for kind in ("exec", "tokenFile", "auth-provider"))
        if not renewable:
            return
        async with self._lock:
            expiry_known = hasattr(self._loader, "exec_plugin_expiry")
            old = time.monotonic() - self._loaded_at > TOKEN_MAX_AGE
            if not force and not (expiry_known and "exec" in user) and not old:
                return
            if force and expiry_known:
                del self._loader.exec_plugin_expiry
            before = (self._configuration.cert_file, self._configuration.key_file)
            self._loader.__dict__.pop("cert_file", None)
            try:
                await self._loader.load_and_set(self._configuration)
            except (ConfigException, OSError, ValueError) as error:
                raise CredentialsError(f"the kubeconfig's credentials cannot be renewed: {error}") from None
            _trim(self._configuration)
            self._loaded_at = time.monotonic()
            if before != (self._configuration.cert_file, self._configuration.key_file) or (
                force and self._configuration.cert_file
            ):
                # A new certificate: new TLS settings. Streams that are open keep the old ones.
                if self._sockets is not None:
                    self._retired.append(self._sockets)
                self._sockets = None

    # -- streams

    async def connect(
        self,
        namespace: str,
        pod: str,
        container: str,
        argv: Sequence[str],
        protocol: asyncio.BaseProtocol,
    ) -> ExecTransport:
        """Run a command in a container with its stdin and stdout joined to a protocol.

        Raises:
            ConnectError: The API server or the kubelet refused, or could not be reached.
        """
        websocket = await self._exec(namespace, pod, container, argv)
        transport = ExecTransport(websocket, protocol)
        self._streams.add(transport)
        return transport

    async def _exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> "aiohttp.ClientWebSocketResponse[bool]":
        self._enter()
        for attempt in (0, 1):
            try:
                await self._renew(force=attempt > 0)
                client = await self._websocket_client()
                opening = await CoreV1Api(client).connect_get_namespaced_pod_exec_without_preload_content(
                    name=pod,
                    namespace=namespace,
                    container=container,
                    command=list(argv),
                    stdin=True,
                    stdout=True,
                    stderr=True,
                    tty=False,
                )
                async with asyncio.timeout(EXEC_CONNECT_TIMEOUT):
                    return cast("aiohttp.ClientWebSocketResponse[bool]", await cast("Any", opening))
            except aiohttp.WSServerHandshakeError as error:
                if error.status == 401 and attempt == 0:
                    continue
                raise refusal(error.status, namespace, pod, container) from None
            except ApiException as error:
                raise refusal(int(error.status or 0), namespace, pod, container) from None
            except CredentialsError as error:
                raise ConnectError(Code.FORBIDDEN, str(error)) from None
            except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
                raise ConnectError(
                    Code.CONNECT_FAILED,
                    f"no connection to the API server for a stream into pod {pod} ({type(error).__name__})",
                    retryable=True,
                ) from None
        raise AssertionError("unreachable")

    async def _websocket_client(self) -> "WsApiClient":
        if self._sockets is None:
            try:
                client = await asyncio.to_thread(WsApiClient, self._configuration, heartbeat=HEARTBEAT)
            except (ssl.SSLError, OSError) as error:
                raise CredentialsError(
                    f"the kubeconfig's certificates or key cannot be used: {error.strerror or error}"
                ) from None
            if self._sockets is not None:  # made by another task meanwhile
                await client.close()
                return self._sockets
            pool = _Pool(
                client.rest_client.ssl_context, self._proxy(), self._configuration.tls_server_name or None
            )
            client.rest_client.pool_manager = cast("Any", pool)
            self._sockets = client
        return self._sockets


class PodConnector:
    """Connects to the agent of one pod, by its bridge."""

    CONTAINER = "workspace"
    BRIDGE = ("/.sandbox/bin/agent", "bridge")
    LANE = ("/.sandbox/bin/agent", "lane")

    def __init__(self, access: ClusterAccess, namespace: str, pod: str) -> None:
        self._access = access
        self._namespace = namespace
        self._pod = pod

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """See :class:`~.stream.connector.Connector`."""
        return await self._access.connect(self._namespace, self._pod, self.CONTAINER, self.BRIDGE, protocol)

    async def lane(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """See :class:`~.stream.connector.Connector`."""
        return await self._access.connect(self._namespace, self._pod, self.CONTAINER, self.LANE, protocol)


def refusal(status: int, namespace: str, pod: str, container: str) -> ConnectError:
    """The error for an answer other than "switching protocols"; its text does not come with it."""
    if status == 401:
        return ConnectError(Code.FORBIDDEN, "the API server does not accept these credentials")
    if status == 403:
        return ConnectError(
            Code.FORBIDDEN,
            f"not allowed to open a stream into pods of namespace {namespace}: "
            "get and create on pods/exec are needed",
        )
    if status == 404:
        return ConnectError(Code.POD_NOT_FOUND, f"pod {pod} is not there, or its {container} has not started")
    return ConnectError(
        Code.CONTAINER_NOT_RUNNING,
        f"container {container} of pod {pod} takes no stream now (status {status})",
        retryable=True,
    )


class _ConfigurationCredentials:
    """The configuration of ``kubernetes.aio`` as :class:`sandbox_api.kube.Credentials`."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def endpoint(self, *, refresh: bool = False) -> Endpoint:
        return await self._access.endpoint(refresh=refresh)


class _Pool:
    """What ``WsApiClient`` opens WebSockets with: no limit on connections, proxy and TLS name honoured."""

    def __init__(self, context: ssl.SSLContext, proxy: str | None, server_hostname: str | None) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context), cookie_jar=aiohttp.DummyCookieJar()
        )
        self._proxy = proxy
        self._server_hostname = server_hostname

    def ws_connect(self, url: str, *, headers: Mapping[str, str], heartbeat: float | None) -> Any:
        return self._session.ws_connect(
            url,
            headers=headers,
            heartbeat=heartbeat,
            proxy=self._proxy,
            server_hostname=self._server_hostname,
            timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
            max_msg_size=4 << 20,
        )

    async def close(self) -> None:
        await self._session.close()


def _paths(kubeconfig: str | os.PathLike[str] | None) -> str | None:
    """Kubeconfig files, joined as in KUBECONFIG; None where there is none."""
    if kubeconfig is not None:
        path = Path(kubeconfig).expanduser()
        if not path.is_file():
            raise CredentialsError(f"there is no kubeconfig at {path}")
        return str(path)
    if os.environ.get("KUBECONFIG"):
        found = [p for p in os.environ["KUBECONFIG"].split(os.pathsep) if p and Path(p).is_file()]
        if not found:
            raise CredentialsError(f"KUBECONFIG names no file that exists: {os.environ['KUBECONFIG']}")
        return os.pathsep.join(found)
    default = Path("~/.kube/config").expanduser()
    return str(default) if default.is_file() else None


def _trim(configuration: "Configuration") -> None:
    """Token files end with a line break as often as not; in a header it is an attack."""
    token = configuration.api_key.get("BearerToken")
    if token:
        configuration.api_key["BearerToken"] = token.strip()


def _authenticated(configuration: "Configuration") -> bool:
    return bool(configuration.api_key.get("BearerToken") or configuration.cert_file)


__all__ = ["ApiClient", "ClusterAccess", "PodConnector"]
