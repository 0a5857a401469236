"""Requests to an API server: raw JSON, bounded in time and number, repeated only where that is safe.

aiohttp alone, because it costs a third of the CPU time of the official asyncio client per request, and a
sixth of httpx (docs/benchmarks.md).
"""

import asyncio
import io
import json
import logging
import socket
import ssl
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, cast
from urllib.parse import urlsplit

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from .credentials import Credentials, Endpoint
from .decoding import decode_json
from .errors import ApiError, Gone, ServerError, Unreachable, from_status
from .jitter import jittered
from .resources import Resource

logger = logging.getLogger(__name__)

#: A Kubernetes object as the API server speaks it.
Object = dict[str, Any]
#: Makes an object smaller.
Trim = Callable[[Object], Object]
WatchType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
Validation = Literal["Strict", "Warn", "Ignore"]

USER_AGENT = "sandbox-operator"
#: A watch is given up this long after the server should have ended it: then the path is dead.
WATCH_GRACE = 15.0
#: One event; etcd objects are far smaller.
MAX_EVENT_BYTES = 16 * 1024 * 1024
#: Longest single wait that a Retry-After header can impose, and how many of them.
MAX_RETRY_AFTER = 10.0
MAX_THROTTLED = 4
#: Repetitions after the connection was lost.
MAX_RECONNECTS = 2

_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}


@dataclass(frozen=True, slots=True)
class ListResult:
    """All objects of a list, in the state of one moment.

    Attributes:
        items: The objects, each with ``apiVersion`` and ``kind``.
        resource_version: Where a watch takes up.
    """

    items: list[Object] = field(default_factory=list)
    resource_version: str = ""


class Api(Protocol):
    """What controllers and clients need of an API server. Every method raises :class:`~.errors.ApiError`."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Read one object."""
        ...

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
        trim: Trim | None = None,
    ) -> ListResult:
        """Read all objects, ``limit`` a page; with ``trim``, no more than one page of them stands in memory whole."""
        ...

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        field_manager: str,
        dry_run: bool = False,
        validation: Validation | None = None,
    ) -> Object:
        """Create an object; the namespace is the object's own where none is given."""
        ...

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str | None = None,
        dry_run: bool = False,
        validation: Validation | None = None,
    ) -> Object:
        """Server-side apply: create the object or take over the fields that the body names."""
        ...

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: Literal["merge", "json"] = "merge",
        subresource: str | None = None,
        field_manager: str,
        dry_run: bool = False,
    ) -> Object:
        """Patch an object; ``metadata.resourceVersion`` and ``metadata.uid`` in it are preconditions."""
        ...

    async def replace(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str,
        dry_run: bool = False,
        validation: Validation | None = None,
    ) -> Object:
        """Write a whole object over the one it was read from."""
        ...

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete an object; another UID or resource version under that name is a :class:`~.errors.Conflict`.

        Returns the object, still there where finalizers or a grace period hold it, or the server's Status.
        """
        ...

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        bookmarks: bool = True,
        timeout_seconds: float = 290,
    ) -> AsyncGenerator[tuple[WatchType, Object], None]:
        """Events after a resource version, until the server ends the watch.

        Use it within :func:`contextlib.aclosing`. An ERROR event is raised: :class:`~.errors.Gone` asks for
        a new list.
        """
        ...

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Any other request: the answer's bytes. ``body`` is JSON-encoded unless it is bytes."""
        ...


class KubeClient:
    """An :class:`Api` over HTTP. Use it as an asynchronous context manager, or close it.

    Args:
        credentials: Asked before every request.
        connections: Requests under way at once; watches come on top, so that they can starve nothing.
        timeout: Seconds that one request may take, connecting included.
        user_agent: Shown in the API server's audit log.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        connections: int = 16,
        timeout: float = 30.0,
        user_agent: str = USER_AGENT,
    ) -> None:
        self._credentials = credentials
        self._connections = connections
        self._timeout = timeout
        self._user_agent = user_agent
        self._lanes = asyncio.Semaphore(connections)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._warned: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections. Requests under way fail; later ones are refused."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            connector = session.connector
            await session.close()
            if isinstance(connector, _Connector):
                await connector.abort()

    # -- objects

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """See :meth:`Api.get`."""
        return await self._object("GET", resource.path(name, namespace))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
        trim: Trim | None = None,
    ) -> ListResult:
        """See :meth:`Api.list`. A list that outlives its continue token is read again, in one page if all is kept."""
        params = _params(labelSelector=label_selector, fieldSelector=field_selector, limit=limit)
        try:
            return await self._pages(resource, namespace, params, trim)
        except Gone:
            if trim is None:
                params.pop("limit", None)
            return await self._pages(resource, namespace, params, trim)

    async def _pages(
        self, resource: Resource, namespace: str | None, params: Mapping[str, str], trim: Trim | None
    ) -> ListResult:
        items: list[Object] = []
        token = ""
        while True:
            page = await self._object(
                "GET", resource.collection(namespace), {**params, **_params(**{"continue": token})}
            )
            for item in page.get("items") or []:
                item.setdefault("apiVersion", resource.api_version)  # lists of built-in kinds leave them out
                item.setdefault("kind", resource.kind)
                items.append(trim(item) if trim is not None else item)
            metadata = page.get("metadata") or {}
            # Else this page would stay until the next one is here.
            del page
            token = metadata.get("continue") or ""
            if not token:
                return ListResult(items, metadata.get("resourceVersion") or "")

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        field_manager: str,
        dry_run: bool = False,
        validation: Validation | None = None,
    ) -> Object:
        """See :meth:`Api.create`."""
        path = resource.collection(_namespace_of(resource, body, namespace))
        return await self._object(
            "POST", path, _write(field_manager, dry_run, validation), _typed(resource, body)
        )

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str | None = None,
        dry_run: bool = False,
        validation: Validation | None = None,
    ) -> Object:
        """See :meth:`Api.apply`."""
        path = resource.path(_name_of(body), _namespace_of(resource, body, namespace), subresource)
        params = {**_write(field_manager, dry_run, validation), "force": "true" if force else "false"}
        return await self._object("PATCH", path, params, _typed(resource, body), _PATCH_TYPES["apply"])

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: Literal["merge", "json"] = "merge",
        subresource: str | None = None,
        field_manager: str,
        dry_run: bool = False,
    ) -> Object:
        """See :meth:`Api.patch`."""
        path = resource.path(name, namespace, subresource)
        return await self._object("PATCH", path, _write(field_manager, dry_run), body, _PATCH_TYPES[kind])

    async def replace(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str,
        dry_run: bool = False,
        validation: Validation | None = None,
    ) -> Object:
        """See :meth:`Api.replace`."""
        path = resource.path(_name_of(body), _namespace_of(resource, body, None), subresource)
        return await self._object(
            "PUT", path, _write(field_manager, dry_run, validation), _typed(resource, body)
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
        dry_run: bool = False,
    ) -> Object:
        """See :meth:`Api.delete`."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions := _params(uid=uid, resourceVersion=resource_version):
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if dry_run:
            options["dryRun"] = ["All"]
        return await self._object("DELETE", resource.path(name, namespace), None, options)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> bytes:
        """See :meth:`Api.raw`."""
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else _encoded(body)
        throttled = reconnects = 0
        refresh = refreshed = False
        while True:
            try:
                async with self._lanes:
                    return await self._once(method, path, params, data, content_type, refresh=refresh)
            except ApiError as exc:
                refresh = exc.status == 401 and not refreshed
                if refresh:
                    refreshed = True
                    continue
                # 429 is said before anything is done, whatever the method.
                if exc.status == 429 and exc.retry_after is not None and throttled < MAX_THROTTLED:
                    throttled += 1
                    await asyncio.sleep(jittered(min(exc.retry_after, MAX_RETRY_AFTER), 1.0, 1.2))
                    continue
                safe = exc.reason == _NOT_CONNECTED or (exc.reason == _CONNECTION_LOST and method == "GET")
                if isinstance(exc, Unreachable) and safe and reconnects < MAX_RECONNECTS:
                    reconnects += 1
                    await asyncio.sleep(jittered(0.2 * 2**reconnects))
                    continue
                raise

    # -- watching

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        bookmarks: bool = True,
        timeout_seconds: float = 290,
    ) -> AsyncGenerator[tuple[WatchType, Object], None]:
        """See :meth:`Api.watch`. A silent path is noticed by TCP keepalives, at the latest by the timeout."""
        params = _params(
            watch="true",
            resourceVersion=resource_version,
            labelSelector=label_selector,
            fieldSelector=field_selector,
            allowWatchBookmarks="true" if bookmarks else None,
            timeoutSeconds=max(1, int(timeout_seconds)),
        )
        path = resource.collection(namespace)
        total = timeout_seconds + WATCH_GRACE
        for refresh in (False, True):
            endpoint = await self._credentials.endpoint(refresh=refresh)
            with _translated(endpoint, "WATCH"):
                async with asyncio.timeout(self._timeout):
                    response = await self._open("GET", endpoint, path, params, total=total)
            try:
                with _translated(endpoint, "WATCH"):
                    if response.status == 401 and not refresh:
                        continue
                    if response.status != 200:
                        raise await _refusal(response)
                    _keep_alive(response)
                    async for line in _lines(response):
                        yield _event(line)
                return
            finally:
                response.close()

    # -- one request

    async def _object(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        answer = await self.raw(method, path, params=params, body=body, content_type=content_type)
        return _decoded(answer)

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        *,
        refresh: bool,
    ) -> bytes:
        endpoint = await self._credentials.endpoint(refresh=refresh)
        with _translated(endpoint, method):
            response = await self._open(
                method, endpoint, path, params, data=data, content_type=content_type, total=self._timeout
            )
            async with response:
                self._log_warnings(response)
                if response.status >= 300:
                    raise await _refusal(response)
                return await response.read()

    async def _open(
        self,
        method: str,
        endpoint: Endpoint,
        path: str,
        params: Mapping[str, str] | None,
        *,
        data: bytes | None = None,
        content_type: str = "application/json",
        total: float,
    ) -> aiohttp.ClientResponse:
        headers = dict(endpoint.headers)
        if data is not None:
            headers["Content-Type"] = content_type
        return await self._http().request(
            method,
            URL(endpoint.server + path, encoded=True),
            params=params,
            # aiohttp writes large bodies in pieces only if they come as a stream.
            data=data if data is None or len(data) < 1 << 20 else io.BytesIO(data),
            headers=headers,
            ssl=endpoint.ssl,
            proxy=endpoint.proxy,
            server_hostname=endpoint.server_hostname,
            # A redirect could carry our credentials elsewhere.
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=total, sock_connect=min(10.0, self._timeout)),
        )

    def _http(self) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_Connector(limit=0),  # the lanes limit
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept": "application/json", "User-Agent": self._user_agent},
            )
        return self._session

    def _log_warnings(self, response: aiohttp.ClientResponse) -> None:
        """Deprecations and the like, once each."""
        for warning in response.headers.getall("Warning", ()):
            if warning not in self._warned and len(self._warned) < 256:
                self._warned.add(warning)
                logger.warning("the API server warns: %s", warning)


# Reasons of Unreachable. A request that was not sent may be sent again, whatever its method; one that may
# have been received may not; nothing is gained by trying again what was refused or took its whole time.
_NOT_CONNECTED = "NotConnected"
_CONNECTION_LOST = "ConnectionLost"
_REFUSED = "ConnectionRefused"
_TIMED_OUT = "TimedOut"


@contextmanager
def _translated(endpoint: Endpoint, what: str) -> Iterator[None]:
    """Turns a failed connection into :class:`Unreachable`, without its URL: that may hold a password."""
    try:
        yield
        return
    except TimeoutError:  # aiohttp's timeouts are TimeoutErrors too
        reason, why = _TIMED_OUT, "no answer in time"
    except aiohttp.ClientConnectorCertificateError as exc:
        reason, why = _REFUSED, f"its certificate is not trusted: {exc.certificate_error}"
    except aiohttp.ClientHttpProxyError as exc:
        reason, why = _REFUSED, f"the proxy refused with status {exc.status}"
    except aiohttp.ClientConnectorError as exc:
        reason, why = _NOT_CONNECTED, f"no connection: {exc.os_error.strerror or type(exc.os_error).__name__}"
    except (aiohttp.ClientError, ssl.SSLError, OSError) as exc:
        reason, why = _CONNECTION_LOST, f"the connection was lost ({type(exc).__name__})"
    server = urlsplit(endpoint.server).netloc.rpartition("@")[2]
    raise Unreachable(0, reason, f"API server {server}: {why} ({what})")


class _Connector(aiohttp.TCPConnector):
    """Knows its connections also after a cancelled request has left them: TLS takes a while to say goodbye.

    Whoever closes the client may end the event loop next, and would be warned of each socket that is left.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # By protocol: uvloop's transports take no weak reference. A lost one lets go of its protocol.
        self._opened: weakref.WeakKeyDictionary[asyncio.BaseProtocol, asyncio.BaseTransport] = (
            weakref.WeakKeyDictionary()
        )

    async def connect(self, *arguments: Any, **settings: Any) -> Connection:
        connection = await super().connect(*arguments, **settings)
        if connection.protocol is not None and connection.transport is not None:
            self._opened[connection.protocol] = connection.transport
        return connection

    async def abort(self) -> None:
        for transport in list(self._opened.values()):
            # Of uvloop's transports none is an asyncio.WriteTransport, and each has its methods.
            cast("asyncio.WriteTransport", transport).abort()
        # One round for TLS, one for the socket beneath it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def _refusal(response: aiohttp.ClientResponse) -> ApiError:
    text = (await response.read())[: 1 << 20]
    try:
        retry_after = float(response.headers.get("Retry-After", ""))
    except ValueError:
        retry_after = None
    try:
        status = decode_json(text)
    except ValueError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":  # a proxy, or an aggregated server
        said = " ".join(text.decode("utf-8", "replace").split())[:200]
        status = {"reason": response.reason or "Unknown", "message": f"answered {response.status}: {said}"}
    return from_status(status, http_status=response.status, retry_after=retry_after)


def _encoded(body: Any) -> bytes:
    try:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can only hold in escaped form
        return json.dumps(body, separators=(",", ":")).encode()


def _decoded(answer: bytes) -> Object:
    try:
        decoded = decode_json(answer)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise ServerError(
            502, "NotJson", "the API server's answer is not a JSON object; is a proxy in between?"
        )
    return decoded


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Lines of a stream, of any length up to the bound (aiohttp's own reader of lines stops at 128 KiB)."""
    buffer = bytearray()
    async for chunk in response.content.iter_any():
        start = len(buffer)
        buffer += chunk
        if (end := buffer.rfind(b"\n", start)) >= 0:
            lines = bytes(buffer[:end])
            del buffer[: end + 1]
            for line in lines.split(b"\n"):
                if line:
                    yield line
        if len(buffer) > MAX_EVENT_BYTES:
            raise ServerError(502, "EventTooLarge", "a watch event is larger than any object can be")
    if buffer.strip():
        raise Unreachable(0, _CONNECTION_LOST, "the watch ended in the middle of an event")


def _event(line: bytes) -> tuple[WatchType, Object]:
    event = _decoded(line)
    kind, body = event.get("type"), event.get("object")
    if not isinstance(body, dict):
        raise ServerError(502, "BadEvent", "a watch event holds no object")
    if kind == "ERROR":
        raise from_status(body)
    if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
        raise ServerError(502, "BadEvent", f"a watch event of unknown type {str(kind)[:32]!r}")
    return kind, body


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Let the kernel notice within about a minute that nobody is there: we send nothing on a watch."""
    transport = response.connection.transport if response.connection else None
    sock = transport.get_extra_info("socket") if transport else None
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _params(**params: object) -> dict[str, str]:
    return {name: str(value) for name, value in params.items() if value is not None and value != ""}


def _write(field_manager: str, dry_run: bool = False, validation: Validation | None = None) -> dict[str, str]:
    return _params(fieldManager=field_manager, dryRun="All" if dry_run else None, fieldValidation=validation)


def _typed(resource: Resource, body: Mapping[str, Any]) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _name_of(body: Mapping[str, Any]) -> str:
    name = (body.get("metadata") or {}).get("name")
    if not name:
        raise ValueError("metadata.name is missing")
    return str(name)


def _namespace_of(resource: Resource, body: Mapping[str, Any], namespace: str | None) -> str | None:
    if not resource.namespaced:
        return None
    namespace = namespace or (body.get("metadata") or {}).get("namespace")
    if not namespace:
        raise ValueError(f"{resource.kind}: neither a namespace nor metadata.namespace is given")
    return str(namespace)
