"""A single-node Kubernetes from our own binaries, in a PID, a mount and a network namespace of its own.

Nothing of it is on the machine's interfaces but one loopback port, on which a forwarder hands connections
to the API server inside. Whatever dies, the rest can be found: by recorded processes, the control group's
name and the state folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dev.local import archive, binaries, credentials, prerequisites
from dev.local.locations import SOURCES, cache, cluster, cluster_lock
from dev.local.progress import say
from dev.local.recorded_process import RecordedProcess, all_recorded, start_recorded
from dev.local.tool_error import ToolError

FLAVOUR = "native"
NODE = "node-1"
NODE_IP = "10.252.0.1"
POD_CIDR = "10.250.0.0/16"
SERVICE_CIDR = "10.251.0.0/16"
SERVICE_IP = "10.251.0.1"
DNS_IP = "10.251.0.10"
BRIDGE = "pods0"
START_TIMEOUT = 240.0
_CNI = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")


class NativeCluster:
    """One native cluster by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = cluster(name)
        self.kubeconfig = self.state / "kubeconfig"

    @property
    def control_group(self) -> str:
        """The name of the control group that holds all pods."""
        return f"sandbox-operator-{self.name}"

    def running(self) -> bool:
        """Whether the cluster is up and can be reached from the machine."""
        node, forwarder = (RecordedProcess.read(self.state, part) for part in ("node", "forwarder"))
        return bool(
            node and node.alive() and forwarder and forwarder.alive() and (self.state / "ready").exists()
        )

    def up(self) -> None:
        """Brings the cluster up; a crashed one is cleaned up and started again with what it held."""
        prerequisites.need_linux()
        prerequisites.need_root("The native cluster")
        with binaries.locked(cluster_lock(self.name), f"its work on the cluster {self.name}"):
            self._up()

    def _up(self) -> None:
        if self.running():
            say(f"The cluster {self.name} is already up.")
            return
        self._stop()
        self._forget_after_reboot()
        prerequisites.need_packages(
            prerequisites.NODE_PACKAGES, "The native cluster", cache() / "cluster" / "packages.log"
        )
        folders = {name.upper(): binaries.component(name) for name in ("kube", "addons", "runtime")}
        kept = (self.state / "etcd").exists()
        say(f"Starting the cluster {self.name} (about 10 s) …")
        begun = time.monotonic()
        self._prepare(folders)
        try:
            self._start_node(folders)
            self._start_forwarder(folders["ADDONS"])
        except ToolError as failure:
            self._stop()
            if kept:
                raise ToolError(
                    f"{failure} Its state is from an earlier run: `make clean-cluster` starts afresh."
                ) from None
            raise
        say(
            f"The cluster {self.name} is up after {time.monotonic() - begun:.1f} s: "
            f"KUBECONFIG={self.kubeconfig}"
        )

    def down(self) -> None:
        """Removes everything the cluster made on the machine, whatever of it is left."""
        if not self.state.exists():
            return
        prerequisites.need_root("Taking the native cluster down")
        with binaries.locked(cluster_lock(self.name), f"its work on the cluster {self.name}"):
            self._stop()
            if self.state.exists():
                shutil.rmtree(self.state)

    def enter(self, command: Sequence[str]) -> None:
        """Turns this process into a command inside the cluster's namespaces, with its binaries in PATH."""
        arguments, environment = self._inside(command)
        os.execvpe(arguments[0], arguments, environment)

    def run_inside(self, command: Sequence[str], *, timeout: float) -> subprocess.CompletedProcess[str]:
        """Runs a command inside the cluster's namespaces."""
        arguments, environment = self._inside(command)
        return subprocess.run(
            arguments, env=environment, capture_output=True, text=True, check=False, timeout=timeout
        )

    def load_image(self, file: Path) -> None:
        """Imports an image archive into the node's containerd."""
        import_it = ["ctr", "-n", "k8s.io", "images", "import", "--local", str(file.resolve())]
        done = self.run_inside(import_it, timeout=300)
        if done.returncode != 0:
            raise ToolError(f"Loading the image archive {file} failed: {done.stderr.strip()[-500:]}")

    def images(self) -> set[str]:
        """The names of the images the node has."""
        return set(self.run_inside(["ctr", "-n", "k8s.io", "images", "ls", "-q"], timeout=60).stdout.split())

    def _inside(self, command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        node = RecordedProcess.read(self.state, "node")
        first = node.children() if node and node.alive() else []
        if not first:
            raise ToolError(f"The cluster {self.name} is not up: start it with `make cluster`.")
        folders: dict[str, str] = self._settings()["binaries"]
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.state / "pki" / "admin.conf"),
            "PATH": os.pathsep.join(
                [*folders.values(), os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")]
            ),
            "CONTAINERD_ADDRESS": "/run/containerd/containerd.sock",
        }
        prefix = ["nsenter", "--target", str(first[0]), "--mount", "--pid", "--net", f"--wdns={Path.cwd()}"]
        return [*prefix, "--", *command], environment

    def _settings(self) -> dict[str, Any]:
        try:
            settings: dict[str, Any] = json.loads((self.state / "cluster.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return settings

    def _prepare(self, folders: dict[str, Path]) -> None:
        """Writes all that the node reads: certificates, kubeconfigs, configuration, the pause image."""
        for folder in (
            "log/containers",
            "log/pods",
            "lib/kubelet",
            "lib/cni",
            "lib/containerd",
            "volumes",
            "conf/cni",
        ):
            (self.state / folder).mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o755)  # pods of any user mount folders beneath it
        for path in (
            "/var/lib/kubelet",
            "/var/lib/cni",
            "/var/lib/containerd",
            "/var/log/containers",
            "/var/log/pods",
        ):
            Path(path).mkdir(parents=True, exist_ok=True)  # what the node's own are mounted over
        settings = {
            "flavour": FLAVOUR,
            "binaries": {name: str(folder) for name, folder in folders.items()},
            "boot": RecordedProcess.of(os.getpid()).boot,
        }
        (self.state / "cluster.json").write_text(json.dumps(settings, indent=2) + "\n")
        pki = self.state / "pki"
        credentials.make_certificates(pki, NODE, [NODE_IP, SERVICE_IP, "127.0.0.1"])
        for user in ("admin", "addons", "controllers", "scheduler", "proxy", "kubelet"):
            credentials.write_kubeconfig(
                pki / f"{user}.conf", pki, user, f"https://{NODE_IP}:6443", self.name
            )
        values = {
            "STATE": str(self.state),
            "CGROUP": self.control_group,
            "BRIDGE": BRIDGE,
            "NODE": NODE,
            "NODE_IP": NODE_IP,
            "POD_CIDR": POD_CIDR,
            "DNS_IP": DNS_IP,
            "CNI": next((f for f in _CNI if Path(f, "bridge").exists()), _CNI[0]),
            **{name: str(folder) for name, folder in folders.items()},
        }
        conf = self.state / "conf"
        (conf / "resolv.conf").write_text("")
        for template in (SOURCES / "conf").iterdir():
            text = template.read_text()
            for key, value in values.items():
                text = text.replace(f"@{key}@", value)
            (conf / ("cni/" if template.suffix == ".conflist" else "") / template.name).write_text(text)
        # From here it runs: a shell reads its script bit by bit, and the one in the clone may be edited or removed.
        shutil.copy(SOURCES / "node.sh", conf / "node.sh")
        pause = {"pause": folders["RUNTIME"] / "pause"}
        archive.write_image(self.state / "pause.tar", "local/pause:1", pause, ["/pause"])

    def _start_node(self, folders: dict[str, Path]) -> None:
        (self.state / "ready").unlink(missing_ok=True)
        shutil.rmtree(
            self.state / "lib/cni/networks", ignore_errors=True
        )  # addresses of pods that are no more
        environment = {
            **os.environ,
            "STATE": str(self.state),
            "CGROUP": self.control_group,
            "BRIDGE": BRIDGE,
            "NODE": NODE,
            "NODE_IP": NODE_IP,
            "POD_CIDR": POD_CIDR,
            "SERVICE_CIDR": SERVICE_CIDR,
            **{name: str(folder) for name, folder in folders.items()},
        }
        for proxy in ("http_proxy", "https_proxy", "all_proxy"):  # no component speaks to anything outside
            environment.pop(proxy, None)
            environment.pop(proxy.upper(), None)
        namespaces = [
            "--net",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        command = ["unshare", *namespaces, "bash", str(self.state / "conf" / "node.sh")]
        log = self.state / "log" / "node.log"
        node = start_recorded(self.state, "node", command, log, environment=environment)
        end = time.monotonic() + START_TIMEOUT
        while not (self.state / "ready").exists():
            if not node.alive():
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
                raise ToolError(
                    f"{tail}\nThe cluster {self.name} did not start; its logs are in {self.state / 'log'}."
                )
            if time.monotonic() > end:
                raise ToolError(
                    f"The cluster {self.name} did not start in {START_TIMEOUT:.0f} s: see {self.state}/log."
                )
            time.sleep(0.05)

    def _start_forwarder(self, addons: Path) -> None:
        node = RecordedProcess.read(self.state, "node")
        inside = node.children() if node else []
        if not inside:
            raise ToolError(
                f"The cluster {self.name} ended while it was starting; see {self.state / 'log' / 'node.log'}."
            )
        file = self.state / "forwarder.address"
        wished = file.read_text().strip() if file.exists() else "127.0.0.1:0"
        for listen in dict.fromkeys([wished, "127.0.0.1:0"]):  # the same port as before, if it is still free
            file.unlink(missing_ok=True)
            command = [str(addons / "addons"), "forward", "-pid", str(inside[0]), "-listen", listen]
            command += ["-to", f"{NODE_IP}:6443", "-record", str(file)]
            forwarder = start_recorded(self.state, "forwarder", command, self.state / "log" / "forwarder.log")
            end = time.monotonic() + 10
            while forwarder.alive() and not file.exists() and time.monotonic() < end:
                time.sleep(0.02)
            if file.exists():
                server = f"https://{file.read_text().strip()}"
                credentials.write_kubeconfig(self.kubeconfig, self.state / "pki", "admin", server, self.name)
                return
            forwarder.end()
        log = self.state / "log" / "forwarder.log"
        raise ToolError(
            f"The API server could not be forwarded to a loopback address: {log.read_text().strip()[-300:]}"
        )

    def _stop(self) -> None:
        """Ends all processes and removes control groups; mounts and interfaces go with their namespaces."""
        node = RecordedProcess.read(self.state, "node")
        if node and node.alive():
            # When the first process inside ends, the kernel ends all others; unshare, outside, then ends too.
            for first in node.children():
                RecordedProcess.of(first).end()
            if not node.wait_for_end(30):
                node.end()
        for process in all_recorded(self.state):
            if not process.end():
                raise ToolError(
                    f"Process {process.pid} of the cluster {self.name} does not end: look at it with ps."
                )
        self._remove_control_groups()
        for leftover in self.state.glob("*.process.json"):
            leftover.unlink()
        (self.state / "ready").unlink(missing_ok=True)

    def _remove_control_groups(self) -> None:
        root = Path("/sys/fs/cgroup")
        end = time.monotonic() + 30
        while True:
            tops = [
                top
                for top in (root / self.control_group, *root.glob(f"*/{self.control_group}"))
                if top.is_dir()
            ]
            for top in tops:
                for folder, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):  # a process of it is still ending: tried again
                        Path(folder).rmdir()
            tops = [top for top in tops if top.is_dir()]
            if not tops:
                return
            if time.monotonic() > end:
                raise ToolError(
                    f"The control group {tops[0]} cannot be removed: a process of it is still there."
                )
            time.sleep(0.1)

    def _forget_after_reboot(self) -> None:
        """The store is not written with care for a power cut, so after a reboot the cluster starts empty."""
        settings = self._settings()
        if self.state.exists() and settings.get("boot") != RecordedProcess.of(os.getpid()).boot:
            shutil.rmtree(self.state)
