"""The fences: nobody reaches a sandbox unless it publishes a port, and it reaches what its class says."""

import json

import pytest

from .conftest import Namespace

SERVER = ["python3", "-m", "http.server", "8080"]
#: Prints "open", or how the connection failed.
DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
    print("open")
except socket.gaierror:
    print("no name")
except OSError as error:
    print("closed", type(error).__name__)
"""


def dial(namespace: Namespace, name: str, host: str, port: int) -> str:
    return namespace.kubectl(
        "exec", namespace.pod_name(name), "-c", "workspace", "--", "python3", "-c", DIAL, host, str(port)
    ).strip()


@pytest.fixture
def server(namespace: Namespace) -> str:
    """A service of the cluster that is no sandbox: its name."""
    labels = {"app": "server"}
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "server", "labels": labels},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "main",
                        "image": namespace.image,
                        "command": SERVER,
                        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                    }
                ],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "server"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    namespace.kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=60s")
    return f"server.{namespace.name}.svc"


def test_egress_is_what_its_class_says(namespace: Namespace, server: str) -> None:
    for egress in ("None", "Cluster", "Internet"):
        namespace.create(egress.lower(), network={"egress": egress})
    for name in ("none", "cluster", "internet"):
        namespace.wait_ready(name)
    namespace.until(
        lambda: dial(namespace, "cluster", server, 80) == "open", "the service to be reachable", 20
    )
    assert dial(namespace, "none", server, 80) != "open"
    assert dial(namespace, "internet", server, 80).startswith("closed")
    api = json.loads(namespace.kubectl("get", "endpoints", "kubernetes", "-n", "default", "-o", "json"))
    address = api["subsets"][0]["addresses"][0]["ip"]
    port = api["subsets"][0]["ports"][0]["port"]
    for name in ("none", "cluster", "internet"):
        assert dial(namespace, name, address, port).startswith("closed"), f"{name} reaches the API server"
        assert namespace.status(name)["network"]["egress"].lower() == name


def test_ingress_is_denied_unless_a_port_is_published(namespace: Namespace) -> None:
    namespace.create("closed", command=SERVER, network={"egress": "None"})
    namespace.create("open", command=SERVER, ports=[8080], network={"egress": "None"})
    namespace.create("asking", network={"egress": "Cluster"})
    for name in ("closed", "open", "asking"):
        namespace.wait_ready(name)
    address = {
        name: (namespace.get("pod", namespace.pod_name(name)) or {})["status"]["podIP"]
        for name in ("closed", "open")
    }
    service = f"{namespace.status('open')['serviceName']}.{namespace.name}.svc"
    namespace.until(
        lambda: dial(namespace, "asking", service, 8080) == "open", "the published port to answer", 20
    )
    assert dial(namespace, "asking", address["open"], 8080) == "open"
    assert dial(namespace, "asking", address["closed"], 8080).startswith("closed")


def test_a_git_entry_that_could_reach_nothing_is_refused_by_the_api_server(namespace: Namespace) -> None:
    sandbox = namespace.sandbox(
        "blind",
        entries={"r": {"gitRepo": {"host": "example.com", "repo": "a/b"}}},
        network={"egress": "None"},
    )
    said = namespace.kubectl("create", "-f", "-", stdin=json.dumps(sandbox), check=False)
    assert "egress" in said
    assert "gitRepo" in said
