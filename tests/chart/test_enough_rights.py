"""The chart's rights and settings are enough: the operator does its work with them and is refused nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.chart.release import CHART, NAMESPACE, RELEASE, Cluster, Object, environment

pytestmark = pytest.mark.apiserver

KIND = "sandboxes.sandbox-operator.dev"
CHILDREN = "pods,services,configmaps,networkpolicies"
SANDBOX: Object = {
    "apiVersion": "sandbox-operator.dev/v1alpha1",
    "kind": "Sandbox",
    "metadata": {"name": "busy"},
    "spec": {
        "ports": [8080],
        "manifest": {"entries": {"large.txt": {"file": {"content": "x" * 100_000}}}},  # needs a ConfigMap
    },
}


@pytest.fixture(params=["all namespaces", "team-a"])
def operator(api_server: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The operator as the Deployment runs it, as the chart's ServiceAccount; yields its log."""
    values: Object = {"watchNamespaces": ["team-a"]} if request.param == "team-a" else {}
    values |= {"execPolicy": {"enabled": False}, "operator": {"logLevel": "debug"}}
    with api_server.helm() as helm:
        helm.install(CHART, RELEASE, values)
        api_server.must("wait", "--for=condition=Established", f"crd/{KIND}")
        token = api_server.must("-n", NAMESPACE, "create", "token", RELEASE).strip()
        config = yaml.safe_load(api_server.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        log = tmp_path / "log"
        variables = {name: value or NAMESPACE for name, value in environment(values).items()}
        variables |= {"SANDBOX_OPERATOR_PROBES_PORT": str(free_port()), "KUBECONFIG": str(kubeconfig)}
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "sandbox_operator"],
                env=inherited | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()
                released = ("--type=merge", '-p={"metadata":{"finalizers":null}}')
                api_server.kubectl("-n", "team-a", "patch", KIND, "busy", *released)
                helm.uninstall(RELEASE)
                api_server.must("delete", "crd", KIND)
                for kinds in (CHILDREN, "events.events.k8s.io"):
                    api_server.must("-n", "team-a", "delete", kinds, "--all", "--force", "--grace-period=0")
    assert process.returncode == 0, log.read_text()[-3000:]


def test_a_sandbox_lives_and_dies(api_server: Cluster, operator: Path) -> None:
    api_server.must("-n", "team-a", "create", "-f", "-", stdin=json.dumps(SANDBOX))
    eventually(lambda: kinds(api_server) >= {"pod", "service", "configmap"}, operator)
    assert len(policies(api_server)) == 3
    lease = api_server.must("-n", NAMESPACE, "get", "lease", RELEASE, "-o", "jsonpath={.spec.holderIdentity}")
    assert lease
    # Each of these makes the operator patch or delete: what others changed, what the spec no longer says.
    api_server.must(
        "-n", "team-a", "patch", "networkpolicy", *policies(api_server)[:1], "--type=merge", *broken()
    )
    api_server.must(
        "-n", "team-a", "patch", KIND, "busy", "--type=merge", '-p={"spec":{"ports":[8080,9090]}}'
    )
    eventually(lambda: "9090" in api_server.must("-n", "team-a", "get", "services", "-o", "yaml"), operator)
    api_server.must("-n", "team-a", "patch", KIND, "busy", "--type=merge", '-p={"spec":{"ports":null}}')
    eventually(lambda: "service" not in kinds(api_server), operator)
    pods = ("-n", "team-a", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
    first = api_server.must(*pods)
    api_server.must("-n", "team-a", "delete", "pods", "--all", "--force", "--grace-period=0")
    eventually(lambda: api_server.must(*pods) not in ("", first), operator)
    api_server.must("-n", "team-a", "delete", KIND, "busy", "--wait=false")
    eventually(lambda: api_server.must("-n", "team-a", "get", KIND, "-o", "name") == "", operator)
    assert "pod" not in kinds(api_server)
    said = operator.read_text()
    assert "forbidden" not in said.lower(), said[-3000:]
    assert "Traceback" not in said, said[-3000:]


def broken() -> list[str]:
    return ['-p={"spec":{"podSelector":{"matchLabels":{"nobody":"selected"}}}}']


def policies(server: Cluster) -> list[str]:
    return sorted(
        server.must(
            "-n", "team-a", "get", "networkpolicies", "-o", "jsonpath={.items[*].metadata.name}"
        ).split()
    )


def kinds(server: Cluster) -> set[str]:
    """Kinds of the children that exist."""
    lines = server.must("-n", "team-a", "get", CHILDREN, "-o", "name").split()
    return {line.partition("/")[0] for line in lines}


def eventually(holds: Callable[[], bool], log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
