"""Hosts of repositories for the tests: git's own http-backend behind a small server, and hosts that misbehave.

The first segment of a path says how the server behaves: /public, /private (Basic authentication), /redirect, /broken
(500), /forbidden (403). What it was asked is kept in `requests`.
"""

import base64
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER = "x-access-token"
TOKEN = "tok-SECRET/+=&123"


@dataclass
class GitServer:
    root: Path
    host: str = "127.0.0.1"
    port: int = 0
    scheme: str = "http"
    newest_protocol: int = 2
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    before_answer: Callable[[], object] = lambda: None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.address}/{path}"

    def paths(self) -> list[str]:
        return [f"{method} {path}" for method, path, _ in self.requests]


@contextmanager
def serve(
    root: Path, *, certificate: Path | None = None, host: str = "127.0.0.1", newest_protocol: int = 2
) -> Iterator[GitServer]:
    server = GitServer(root, host, newest_protocol=newest_protocol)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization", "")
            server.requests.append((self.command, self.path, authorization))
            body = self.read_body()
            server.before_answer()
            match self.path.split("/")[1]:
                case "private" if authorization != _basic(USER, TOKEN):
                    self.answer(401, [("WWW-Authenticate", "Basic realm=git")])
                case "redirect":
                    self.answer(302, [("Location", server.url(f"public{self.path[9:]}"))])
                case "broken":
                    self.answer(500, [])
                case "busy":
                    self.answer(503, [])
                case "forbidden":
                    self.answer(403, [])
                case _:
                    self.backend(body)

        do_POST = do_GET  # noqa: N815 - the name that http.server looks for

        def read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def backend(self, body: bytes) -> None:
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", "") if server.newest_protocol == 2 else "",
                "REMOTE_ADDR": "127.0.0.1",
            }
            done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environment)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n") if ": " in line]
            status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
            self.answer(status, [(n, v) for n, v in headers if n != "Status"], content)

        def answer(self, status: int, headers: list[tuple[str, str]], content: bytes = b"") -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # clients that hang up or dislike the certificate are part of the tests

    listener = Quiet((host, 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        listener.socket = context.wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
        server.scheme = "https"
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


@contextmanager
def silent_host() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield listener.getsockname()[1]


@contextmanager
def black_hole() -> Iterator[int]:
    """A port whose queue is full: the kernel drops what knocks, as a network policy does."""
    clients = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        try:
            for _ in range(4):
                client = socket.socket()
                clients.append(client)
                client.setblocking(False)
                client.connect_ex(listener.getsockname())
            yield listener.getsockname()[1]
        finally:
            for client in clients:
                client.close()


@contextmanager
def git_daemon(root: Path) -> Iterator[int]:
    """Repositories by git://."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [f"--base-path={root}", "--export-all", "--listen=127.0.0.1", f"--port={port}", "--reuseaddr"]
    environment = os.environ | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    daemon = subprocess.Popen(
        ["git", "daemon", *arguments], stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    try:
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            threading.Event().wait(0.02)
        yield port
    finally:
        os.killpg(daemon.pid, 15)
        daemon.wait()


def make_certificate(directory: Path, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """A private authority and a host's certificate by it: (authority, host)."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        "req",
        "-x509",
        *curve,
        "-keyout",
        "ca.key",
        "-out",
        "ca.crt",
        "-subj",
        "/CN=Test authority",
        "-days",
        "2",
    )
    openssl("req", *curve, "-keyout", "host.key", "-out", "host.csr", "-subj", "/CN=host")
    kind = "IP" if address.replace(".", "").isdigit() else "DNS"
    (directory / "host.ext").write_text(f"subjectAltName={kind}:{address}\n")
    openssl(
        *("x509", "-req", "-in", "host.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "host.crt", "-days", "2", "-extfile", "host.ext"),
    )
    return directory / "ca.crt", directory / "host.crt"


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
