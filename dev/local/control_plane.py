"""A bare control plane, etcd and an API server on loopback ports, for tests that need no kubelet.

It needs no root, is up in about three seconds, and as many as one likes can run at once:

    with ControlPlane() as control_plane:
        client = connect(control_plane.kubeconfig)
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from dev.local import binaries, credentials, prerequisites
from dev.local.locations import cache, cluster, clusters
from dev.local.recorded_process import RecordedProcess, all_recorded, start_recorded
from dev.local.tool_error import ToolError

FLAVOUR = "control-plane"
START_TIMEOUT = 60.0


class ControlPlane:
    """An API server with its etcd. Without a name it is one of many and ends with its starter.

    There are no controllers: nothing collects garbage, ends a namespace, or makes service accounts (so that
    the admission of pods does not ask for one).
    """

    def __init__(self, name: str | None = None) -> None:
        self._bound = name is None
        if name is None:
            clusters().mkdir(parents=True, exist_ok=True)
            self.state = Path(tempfile.mkdtemp(prefix="control-plane-", dir=clusters()))
        else:
            self.state = cluster(name)
        self.kubeconfig = self.state / "kubeconfig"

    def __enter__(self) -> ControlPlane:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return (self.state / "server").read_text().strip()

    def running(self) -> bool:
        """Whether both processes run and have been ready."""
        parts = [RecordedProcess.read(self.state, part) for part in ("etcd", "kube-apiserver")]
        return all(part is not None and part.alive() for part in parts) and self.kubeconfig.exists()

    def up(self) -> None:
        """Starts the control plane, or does nothing if it runs; one that crashed starts afresh."""
        if self.running():
            return
        self.down()
        prerequisites.need_linux()
        prerequisites.need_packages(
            prerequisites.CERTIFICATE_PACKAGES, "A control plane", cache() / "cluster" / "packages.log"
        )
        kube = binaries.component("kube") / "kube"
        for attempt in (1, 2, 3):  # another process may take a port between our look and the server's
            try:
                self._start(kube)
                return
            except ToolError as failure:
                taken = "address already in use" in self._logs()
                self.down()
                if attempt == 3 or not taken:
                    raise failure from None

    def down(self) -> None:
        """Ends both processes and removes all state."""
        for process in all_recorded(self.state):
            if not process.end():
                raise ToolError(
                    f"Process {process.pid} of a control plane does not end: see `ps -p {process.pid}`."
                )
        if self.state.exists():
            shutil.rmtree(self.state)

    def _start(self, kube: Path) -> None:
        pki = self.state / "pki"
        pki.mkdir(parents=True, exist_ok=True)
        (self.state / "cluster.json").write_text(json.dumps({"flavour": FLAVOUR}) + "\n")
        credentials.make_certificates(pki, "none", ["127.0.0.1", "10.0.0.1"])
        client, peer, secure = _free_ports(3)
        etcd = f"http://127.0.0.1:{client}"
        self._run(
            kube,
            "etcd",
            f"--data-dir={self.state / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._run(
            kube,
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={secure}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--allow-privileged",
            # What 1.36 serves without being asked.
            "--feature-gates=MutatingAdmissionPolicy=true",
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        )
        server = f"https://127.0.0.1:{secure}"
        self._wait_until_ready(server)
        (self.state / "server").write_text(server + "\n")
        credentials.write_kubeconfig(self.kubeconfig, pki, "admin", server, self.state.name)

    def _run(self, kube: Path, component: str, *flags: str) -> None:
        command = [str(kube), component, *flags]
        if self._bound and shutil.which("setpriv") and _knows_pdeathsig():
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        start_recorded(
            self.state, component, command, self.state / "log" / f"{component}.log", environment=environment
        )

    def _wait_until_ready(self, server: str) -> None:
        pki = self.state / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        end = time.monotonic() + START_TIMEOUT
        while True:
            try:
                with opener.open(f"{server}/readyz", timeout=5) as answer:
                    if answer.read() == b"ok":
                        return
            except (urllib.error.URLError, OSError):
                pass
            if not all(process.alive() for process in all_recorded(self.state)):
                raise ToolError(f"The control plane ended while it was starting:\n{self._logs()[-2000:]}")
            if time.monotonic() > end:
                raise ToolError(
                    f"The control plane was not ready within {START_TIMEOUT:.0f} s:\n{self._logs()[-2000:]}"
                )
            time.sleep(0.05)

    def _logs(self) -> str:
        files = sorted((self.state / "log").glob("*.log"))
        return "\n".join("\n".join(file.read_text(errors="replace").splitlines()[-8:]) for file in files)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _knows_pdeathsig() -> bool:
    return (
        "--pdeathsig"
        in subprocess.run(["setpriv", "--help"], capture_output=True, text=True, check=False).stdout
    )
