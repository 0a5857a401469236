"""Where credentials come from, and that they stay where they belong; TLS against a real server."""

import asyncio
import base64
import datetime
import gc
import os
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sandbox_api.kube import (
    PODS,
    CredentialsError,
    Endpoint,
    InClusterCredentials,
    KubeClient,
    KubeconfigCredentials,
    StaticCredentials,
    Unreachable,
)
from sandbox_api.kube.credentials import proxy_for


class Pki:
    """An authority, made for one test run, without the extensions that a strict verifier wants."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.ca = self._sign(self.name, self.key.public_key(), ca=True)

    def _sign(self, name: x509.Name, key: Any, *, ca: bool = False, names: list[str] | None = None) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(n) for n in names])
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str, *names: str) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        return self._sign(subject, key.public_key(), names=list(names)), pem


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def kubeconfig(path: Path, *, cluster: dict[str, Any], user: dict[str, Any], name: str = "c") -> Path:
    context = {"cluster": name, "user": name, "namespace": "work"}
    config = {
        "current-context": name,
        "contexts": [{"name": name, "context": context}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def tls_files(tmp_path: Path, pki: Pki) -> Path:
    certificate, key = pki.issue("server", "api.test")
    (tmp_path / "server.pem").write_bytes(certificate + key)
    (tmp_path / "ca.pem").write_bytes(pki.ca)
    return tmp_path


@pytest.fixture
async def tls_server(tls_files: Path) -> Any:
    """Answers with the common name of the client's certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls_files / "ca.pem"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(tls_files / "server.pem")

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'{"type": "BOOKMARK", "object": {}}\n')
            await asyncio.sleep(10)
            return response
        peer = request.transport.get_extra_info("peercert") or {}
        names = [value for rdn in peer.get("subject", ()) for _, value in rdn]
        return web.json_response({"names": names, "token": request.headers.get("Authorization")})

    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def ask(credentials: Any) -> Any:
    async with KubeClient(credentials) as api:
        return await api.get(PODS, "a", "x")


@pytest.mark.parametrize("inline", [True, False])
async def test_a_client_certificate_is_shown(tmp_path: Path, tls_server: str, pki: Pki, inline: bool) -> None:
    certificate, key = pki.issue("jane")
    if inline:
        user = {"client-certificate-data": b64(certificate), "client-key-data": b64(key)}
        cluster = {"certificate-authority-data": b64(pki.ca)}
    else:
        (tmp_path / "jane.crt").write_bytes(certificate)
        (tmp_path / "jane.key").write_bytes(key)
        user = {"client-certificate": "jane.crt", "client-key": str(tmp_path / "jane.key")}
        cluster = {"certificate-authority": "ca.pem"}
    cluster |= {"server": tls_server + "/", "tls-server-name": "api.test"}
    credentials = KubeconfigCredentials(kubeconfig(tmp_path / "config", cluster=cluster, user=user))
    assert credentials.namespace == "work"
    assert await ask(credentials) == {"names": ["jane"], "token": None}


@pytest.mark.parametrize("memory", [True, False])
async def test_inline_keys_leave_no_file(
    tmp_path: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    if not memory:
        monkeypatch.delattr(os, "memfd_create")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    certificate, key = pki.issue("jane")
    user = {"client-certificate-data": b64(certificate), "client-key-data": b64(key)}
    path = kubeconfig(tmp_path / "config", cluster={"server": "https://x"}, user=user)
    before = open_files()
    KubeconfigCredentials(path)
    assert list(scratch.iterdir()) == []
    assert open_files() == before
    user["client-key-data"] = b64(b"-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----")
    with pytest.raises(CredentialsError, match="not usable") as caught:
        KubeconfigCredentials(kubeconfig(path, cluster={"server": "https://x"}, user=user))
    assert "s3cret" not in str(caught.value)
    assert list(scratch.iterdir()) == []


async def test_a_loop_may_end_right_after_the_client(tmp_path: Path, tls_server: str) -> None:
    cluster = {"server": tls_server, "insecure-skip-tls-verify": True}
    credentials = KubeconfigCredentials(kubeconfig(tmp_path / "config", cluster=cluster, user={}))

    async def watch_and_leave() -> None:
        async with KubeClient(credentials) as api:
            watch = api.watch(PODS, resource_version="1")
            await anext(watch)
            listing = asyncio.create_task(api.list(PODS))
            await asyncio.sleep(0)
            listing.cancel()
            await watch.aclose()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            await asyncio.to_thread(asyncio.run, watch_and_leave())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, tls_server: str) -> None:
    cluster = {
        "server": tls_server,
        "certificate-authority-data": b64(Pki().ca),
        "tls-server-name": "api.test",
    }
    with pytest.raises(Unreachable, match="its certificate is not trusted"):
        await ask(KubeconfigCredentials(kubeconfig(tmp_path / "config", cluster=cluster, user={})))


async def test_a_certificate_of_another_name_is_refused(tmp_path: Path, tls_server: str, pki: Pki) -> None:
    cluster = {"server": tls_server, "certificate-authority-data": b64(pki.ca)}
    with pytest.raises(Unreachable, match="its certificate is not trusted"):
        await ask(KubeconfigCredentials(kubeconfig(tmp_path / "config", cluster=cluster, user={})))


async def test_verification_can_be_switched_off(tmp_path: Path, tls_server: str) -> None:
    cluster = {"server": tls_server, "insecure-skip-tls-verify": True}
    assert await ask(
        KubeconfigCredentials(kubeconfig(tmp_path / "config", cluster=cluster, user={"token": "t"}))
    ) == {"names": [], "token": "Bearer t"}


async def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    path = kubeconfig(tmp_path / "config", cluster={"server": "https://x"}, user={"tokenFile": "token"})
    credentials = KubeconfigCredentials(path)
    assert (await credentials.endpoint()).headers == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two")
    os.utime(tmp_path / "token", (1, 1))
    assert (await credentials.endpoint()).headers == {"Authorization": "Bearer two"}


async def test_a_refresh_reads_the_kubeconfig_again(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", cluster={"server": "https://x"}, user={"token": "one"})
    credentials = KubeconfigCredentials(path)
    kubeconfig(path, cluster={"server": "https://x"}, user={"token": "two"})
    assert (await credentials.endpoint()).headers == {"Authorization": "Bearer one"}
    assert (await credentials.endpoint(refresh=True)).headers == {"Authorization": "Bearer two"}


async def test_several_kubeconfigs_are_merged(tmp_path: Path) -> None:
    one = kubeconfig(tmp_path / "1", cluster={"server": "https://one"}, user={"token": "t1"}, name="one")
    two = kubeconfig(tmp_path / "2", cluster={"server": "https://two"}, user={"token": "t2"}, name="two")
    environ = {"KUBECONFIG": os.pathsep.join([str(tmp_path / "none"), str(one), str(two)])}
    assert (await KubeconfigCredentials(environ=environ).endpoint()).server == "https://one"
    assert (await KubeconfigCredentials(context="two", environ=environ).endpoint()).server == "https://two"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no kubeconfig at"),
        ("{", "it is not YAML"),
        ("[]", "is not a kubeconfig|no context is chosen"),
        ("current-context: gone", "there is no context 'gone'"),
        ("{}", "no context is chosen"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: b}}]}", "there is no cluster 'b'"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],"
            " clusters: [{name: a, cluster: {server: 'https://x'}}], "
            "users: [{name: a, user: {exec: {command: x}}}]}",
            "authenticates by exec",
        ),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CredentialsError, match=message):
        KubeconfigCredentials(path)


@pytest.fixture
def account(tmp_path: Path, pki: Pki) -> Iterator[Path]:
    (tmp_path / "token").write_text("one")
    (tmp_path / "ca.crt").write_bytes(pki.ca)
    (tmp_path / "namespace").write_text("work\n")
    return tmp_path


async def test_a_service_account_follows_its_files(account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    credentials = InClusterCredentials(account, environ)
    first = await credentials.endpoint()
    assert first.server == "https://[fd00::1]:6443"
    assert first.headers == {"Authorization": "Bearer one"}
    assert credentials.namespace == "work"
    assert (await credentials.endpoint()).ssl is first.ssl
    (account / "token").write_text("two")
    (account / "ca.crt").write_bytes(Pki().ca)
    os.utime(account / "token", (1, 1))
    os.utime(account / "ca.crt", (1, 1))
    second = await credentials.endpoint()
    assert second.headers == {"Authorization": "Bearer two"}
    assert second.ssl is not first.ssl


async def test_a_token_is_read_again_after_a_minute_though_its_time_stands_still(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = InClusterCredentials(account, {"KUBERNETES_SERVICE_HOST": "x"})
    await credentials.endpoint()
    stat = (account / "token").stat()
    (account / "token").write_text("two")
    os.utime(account / "token", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (await credentials.endpoint()).headers["Authorization"] == "Bearer one"
    monkeypatch.setattr("sandbox_api.kube.credentials.TOKEN_MAX_AGE", -1.0)
    assert (await credentials.endpoint()).headers["Authorization"] == "Bearer two"


async def test_without_a_service_account_it_says_so(account: Path) -> None:
    with pytest.raises(CredentialsError, match="not in a pod"):
        InClusterCredentials(account, {})
    (account / "token").write_text("")
    with pytest.raises(CredentialsError, match="is empty"):
        await InClusterCredentials(account, {"KUBERNETES_SERVICE_HOST": "x"}).endpoint()
    (account / "token").unlink()
    with pytest.raises(CredentialsError, match="cannot read"):
        await InClusterCredentials(account, {"KUBERNETES_SERVICE_HOST": "x"}).endpoint()


@pytest.mark.parametrize(
    ("server", "no_proxy", "proxied"),
    [
        ("https://api.example.com:6443", "", True),
        ("https://api.example.com:6443", "example.com", False),
        ("https://api.example.com:6443", ".example.com", False),
        ("https://api.example.com:6443", "*.example.com", False),
        ("https://api.example.com:6443", "ample.com", True),
        ("https://api.example.com:6443", "other, api.example.com:6443", False),
        ("https://api.example.com:6443", "*", False),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.1.2.3", False),
        ("https://10.1.2.3", "11.0.0.0/8", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("https://localhost:6443", "", False),
        ("http://api.example.com", "", False),  # no HTTP_PROXY
    ],
)
def test_proxies_follow_the_environment(server: str, no_proxy: str, proxied: bool) -> None:
    environ = {"HTTPS_PROXY": "proxy.example.net:3128", "no_proxy": no_proxy}
    assert proxy_for(server, environ) == ("http://proxy.example.net:3128" if proxied else None)


def test_secrets_are_not_shown() -> None:
    endpoint = Endpoint("https://x", headers={"Authorization": "s3cret"}, proxy="http://u:s3cret@p")
    assert "s3cret" not in repr(endpoint)
    StaticCredentials(endpoint)
