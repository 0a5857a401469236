"""Certificates of a cluster and the kubeconfigs made from them."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dev.local.locations import SOURCES
from dev.local.tool_error import ToolError


def make_certificates(folder: Path, node: str, addresses: Sequence[str]) -> None:
    """Makes the keys and certificates of a cluster, unless they are there."""
    command = ["bash", str(SOURCES / "certificates.sh"), str(folder), node, ",".join(addresses)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise ToolError(f"Making the cluster's certificates failed: {done.stderr.strip()}")


def write_kubeconfig(path: Path, certificates: Path, user: str, server: str, name: str) -> None:
    """Writes a kubeconfig that holds its certificates itself: for its owner alone, never half-written."""

    def encoded(file: str) -> str:
        return base64.b64encode((certificates / file).read_bytes()).decode()

    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_text(
        f"""apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: {server}
    certificate-authority-data: {encoded("ca.crt")}
users:
- name: {user}@{name}
  user:
    client-certificate-data: {encoded(user + ".crt")}
    client-key-data: {encoded(user + ".key")}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {user}@{name}
current-context: {name}
"""
    )
    partial.replace(path)
