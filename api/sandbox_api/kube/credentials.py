"""How an API server is reached and how we prove who we are: what a client asks before every request.

Three sources live here, as much as the operator and tests need. Exec plugins and the like are the matter of
whoever already has a library for them: it adapts that library to :class:`Credentials`.
"""

import base64
import binascii
import ipaddress
import os
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import Any, Protocol
from urllib.parse import urlsplit

from .errors import CredentialsError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: A token file is read again this often even if its time stamp stands still.
TOKEN_MAX_AGE = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One way to reach an API server, good for the next request.

    Attributes:
        server: Base URL, without a slash at its end.
        ssl: TLS settings, client certificate included; True for the platform's own, False to verify nothing.
        headers: Headers that authenticate us. Not in ``repr``.
        proxy: URL of an HTTP proxy. Not in ``repr``: it may hold a password.
        server_hostname: Name that the server's certificate must carry, where it is not the URL's.
    """

    server: str
    ssl: SSLContext | bool = True
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy: str | None = field(default=None, repr=False)
    server_hostname: str | None = None


class Credentials(Protocol):
    """A source of endpoints. Asked before every request, so it keeps what is still good."""

    async def endpoint(self, *, refresh: bool = False) -> Endpoint:
        """The endpoint to use now.

        Args:
            refresh: The last one was answered with 401: get new credentials if there is a way to.

        Raises:
            CredentialsError: There is none.
        """
        ...


class StaticCredentials:
    """An endpoint that never changes."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def endpoint(self, *, refresh: bool = False) -> Endpoint:
        """See :class:`Credentials`."""
        return self._endpoint


class InClusterCredentials:
    """The service account of the pod that we run in. The kubelet replaces its token about once an hour."""

    def __init__(
        self, directory: Path = SERVICE_ACCOUNT_DIR, environ: Mapping[str, str] = os.environ
    ) -> None:
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise CredentialsError("not in a pod: KUBERNETES_SERVICE_HOST is not set")
        self._server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._proxy = proxy_for(self._server, environ)
        self._directory = directory
        self._token = FileToken(directory / "token")
        self._ca_stamp: tuple[int, int] | None = None
        self._ssl: ssl.SSLContext | None = None

    @property
    def namespace(self) -> str:
        """The pod's own namespace."""
        return _read(self._directory / "namespace").decode().strip()

    async def endpoint(self, *, refresh: bool = False) -> Endpoint:
        """See :class:`Credentials`."""
        headers = {"Authorization": f"Bearer {self._token.get(refresh=refresh)}"}
        return Endpoint(self._server, self._tls(), headers, self._proxy)

    def _tls(self) -> ssl.SSLContext:
        path = self._directory / "ca.crt"
        stamp = _stamp(path)
        if self._ssl is None or stamp != self._ca_stamp:
            self._ssl, self._ca_stamp = tls_context(ca=_read(path)), stamp
        return self._ssl


class KubeconfigCredentials:
    """A context of kubeconfig files: client certificates and tokens, given inline or as files.

    Args:
        path: One file; by default those of ``KUBECONFIG``, else ``~/.kube/config``.
        context: Name of the context; by default the current one.
        environ: Where ``KUBECONFIG`` and the proxy variables are looked up.

    Raises:
        CredentialsError: A file, the context, or what it names is missing, or needs an exec plugin.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        context: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if path is not None:
            self._paths = [Path(path)]
        elif environ.get("KUBECONFIG"):
            self._paths = [Path(p) for p in environ["KUBECONFIG"].split(os.pathsep) if p]
        else:
            self._paths = [Path.home() / ".kube" / "config"]
        self._context = context
        self._environ = environ
        self._load()

    async def endpoint(self, *, refresh: bool = False) -> Endpoint:
        """See :class:`Credentials`. A refresh reads the files again."""
        if refresh:
            self._load()
        if self._token_file is None:
            return self._endpoint
        e = self._endpoint
        headers = {"Authorization": f"Bearer {self._token_file.get(refresh=refresh)}"}
        return Endpoint(e.server, e.ssl, headers, e.proxy, e.server_hostname)

    def _load(self) -> None:
        config = _merged(self._paths)
        name = self._context or config["current-context"]
        where = ", ".join(map(str, self._paths))
        if not name:
            raise CredentialsError(f"{where}: no context is chosen and there is no current-context")
        context = _named(config["contexts"], name, "context", where)
        cluster = _named(config["clusters"], context.get("cluster") or "", "cluster", where)
        user = _named(config["users"], context["user"], "user", where) if context.get("user") else {}
        for plugin in ("exec", "auth-provider"):
            if user.get(plugin) and not user.get("token"):
                raise CredentialsError(
                    f"{where}: user {context['user']!r} authenticates by {plugin}, which is not "
                    "supported here; use a context with a token or a client certificate"
                )
        server = str(cluster.get("server") or "").rstrip("/")
        if not server:
            raise CredentialsError(f"{where}: cluster {context['cluster']!r} has no server")
        self.namespace: str | None = context.get("namespace") or None
        self._token_file = FileToken(_path(user, "tokenFile")) if user.get("tokenFile") else None
        headers = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
        self._endpoint = Endpoint(
            server,
            _tls_of(cluster, user),
            headers,
            cluster.get("proxy-url") or proxy_for(server, self._environ),
            cluster.get("tls-server-name") or None,
        )


class FileToken:
    """A bearer token in a file that somebody else replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._stamp: tuple[int, int] | None = None
        self._read_at = float("-inf")

    def get(self, *, refresh: bool = False) -> str:
        """The token of now: read again when the file has changed, and at least every minute.

        Raises:
            CredentialsError: The file cannot be read or is empty.
        """
        stamp, now = _stamp(self._path), time.monotonic()
        if refresh or stamp != self._stamp or now - self._read_at > TOKEN_MAX_AGE:
            token = _read(self._path).decode("ascii", "replace").strip()
            if not token:
                raise CredentialsError(f"{self._path} is empty")
            self._token, self._stamp, self._read_at = token, stamp, now
        return self._token


def tls_context(
    *,
    ca: bytes | None = None,
    certificate: bytes | None = None,
    key: bytes | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    """TLS settings from PEM material: an own authority or the platform's; a client certificate or none.

    Raises:
        CredentialsError: The material is not usable. The message does not show it.
    """
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii", "replace") if ca else None)
        if ca:
            # Python 3.13 is strict by default; authorities made by many installers lack a key identifier.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate and key:
            with _private_file(certificate + b"\n" + key) as path:
                context.load_cert_chain(path)
    except (ssl.SSLError, ValueError) as exc:
        raise CredentialsError(f"TLS material is not usable: {getattr(exc, 'reason', None) or exc}") from None
    return context


def proxy_for(server: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The proxy that the environment names for a server, by the rules that kubectl follows.

    ``NO_PROXY`` holds names (with all that ends in them), addresses, networks, or ``*``; loopback is never
    proxied.
    """
    url = urlsplit(server)
    host = url.hostname or ""
    proxy = _env(environ, "HTTPS_PROXY" if url.scheme == "https" else "HTTP_PROXY")
    if not proxy or host == "localhost":
        return None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None and address.is_loopback:
        return None
    for rule in filter(None, (part.strip().lower() for part in _env(environ, "NO_PROXY").split(","))):
        if rule == "*":
            return None
        if address is not None:
            try:
                if address in ipaddress.ip_network(rule, strict=False):
                    return None
            except ValueError:
                pass
        rule_name = rule.rpartition(":")[0] if rule.rpartition(":")[2].isdigit() else rule
        rule_name = rule_name.removeprefix("*")
        if host == rule_name.removeprefix(".") or host.endswith("." + rule_name.removeprefix(".")):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _env(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower()) or ""


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """A path at which content can be read for a moment: OpenSSL takes client keys from files only.

    In memory where the platform can, so that a crash leaves nothing behind.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        fd = os.memfd_create("tls")
        try:
            os.write(fd, content)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.TemporaryDirectory(prefix="tls-") as directory:  # made with mode 0700
        path = Path(directory) / "pem"
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield str(path)


def _tls_of(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    return tls_context(
        ca=_material(cluster, "certificate-authority"),
        certificate=_material(user, "client-certificate"),
        key=_material(user, "client-key"),
        verify=not cluster.get("insecure-skip-tls-verify"),
    )


def _material(section: Mapping[str, Any], name: str) -> bytes | None:
    """PEM bytes given inline (``name-data``, base64) or as a file (``name``)."""
    if section.get(f"{name}-data"):
        try:
            return base64.b64decode(section[f"{name}-data"], validate=False)
        except (binascii.Error, ValueError, TypeError):
            raise CredentialsError(f"kubeconfig: {name}-data is not base64") from None
    return _read(_path(section, name)) if section.get(name) else None


def _path(section: Mapping[str, Any], name: str) -> Path:
    """A file named in a kubeconfig: relative paths are relative to the kubeconfig that names them."""
    return Path(section["#directory"]) / str(section[name])


def _merged(paths: list[Path]) -> dict[str, Any]:
    """Kubeconfig files merged as kubectl does: the first to name a thing wins; missing ones are skipped."""
    import yaml  # not needed in a pod

    merged: dict[str, Any] = {"current-context": None, "contexts": {}, "clusters": {}, "users": {}}
    found = False
    for path in paths:
        try:
            data = yaml.safe_load(path.read_bytes()) or {}
        except FileNotFoundError:
            continue
        except (OSError, yaml.YAMLError) as exc:
            problem = exc.strerror if isinstance(exc, OSError) else "it is not YAML"
            raise CredentialsError(f"cannot read the kubeconfig {path}: {problem}") from None
        if not isinstance(data, dict):
            raise CredentialsError(f"{path} is not a kubeconfig")
        found = True
        merged["current-context"] = merged["current-context"] or data.get("current-context")
        for plural in ("contexts", "clusters", "users"):
            for item in data.get(plural) or []:
                body = dict(item.get(plural.removesuffix("s")) or {})
                body["#directory"] = str(path.absolute().parent)
                merged[plural].setdefault(item.get("name"), body)
    if not found:
        raise CredentialsError(f"there is no kubeconfig at {', '.join(map(str, paths))}")
    return merged


def _named(sections: Mapping[str, Any], name: str, what: str, where: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = sections[name]
    except KeyError:
        raise CredentialsError(f"{where}: there is no {what} {name!r}") from None
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise CredentialsError(f"cannot read {path}: {exc.strerror}") from None


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError as exc:
        raise CredentialsError(f"cannot read {path}: {exc.strerror}") from None
    return stat.st_mtime_ns, stat.st_ino
