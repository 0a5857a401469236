"""Code in a workspace that does what it can against the agent, the client, and for secrets that are not its own."""

import base64
import json
from typing import Any

import pytest

from runner_client.failures import SandboxTimeoutError
from runner_client.sandboxes import Sandboxes
from runner_client.stream.errors import AgentError

from .conftest import SANDBOX, Namespace

OPERATOR = "app.kubernetes.io/name=sandbox-operator"
#: Takes the agent's place and says what the argument says, for ever: nothing, garbage, or half a frame of yamux.
IMPOSTOR = """
import os, socket, sys, threading
path = "/.sandbox/run/agent.sock"
os.path.exists(path) and os.remove(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(64)
if os.fork():
    os._exit(0)
os.setsid()
for number in (0, 1, 2):
    os.dup2(os.open("/dev/null", os.O_RDWR), number)
says = {"silence": b"", "garbage": b"HTTP/1.1 200 OK\\r\\n\\r\\n" * 1000, "half": b"\\0\\0\\0\\0\\0\\0"}[sys.argv[1]]
def serve(connection):
    try:
        connection.sendall(says)
        while connection.recv(65536):
            if sys.argv[1] == "garbage":
                connection.sendall(says)
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def sandboxes(cluster: Any, namespace: Namespace) -> Sandboxes:
    """The typed client in the test's namespace; it belongs to the loop of the test."""
    return Sandboxes(namespace.name, cluster.kubeconfig)


async def test_the_agent_outlives_signals_of_the_workspace(
    namespace: Namespace, sandboxes: Sandboxes
) -> None:
    namespace.create("box")
    namespace.wait_ready("box")
    namespace.sh("box", "kill -KILL 1; kill -STOP 1; kill -SEGV 1; kill -ABRT 1; true")
    async with sandboxes, await sandboxes.connect("box", timeout=60) as agent:
        assert (await agent.exec(["echo", "alive"])).stdout == b"alive\n"


@pytest.mark.parametrize("says", ["silence", "garbage", "half"])
async def test_an_impostor_in_the_agents_place_is_an_error_and_no_endless_wait(
    namespace: Namespace, sandboxes: Sandboxes, says: str
) -> None:
    namespace.create("box")
    namespace.wait_ready("box")
    namespace.kubectl(
        "exec", namespace.pod_name("box"), "-c", "workspace", "--", "python3", "-c", IMPOSTOR, says
    )
    async with sandboxes:
        with pytest.raises((SandboxTimeoutError, AgentError)):
            await sandboxes.connect("box", timeout=8)
        # The sandbox can still be got rid of.
        assert await sandboxes.delete("box", wait=60)


def test_what_the_init_container_left_cannot_be_changed(namespace: Namespace) -> None:
    namespace.create("box", entries={"a.md": {"file": {"content": "a"}}})
    namespace.wait_ready("box")
    said = namespace.sh(
        "box",
        "cd /.sandbox/bin; ls -A; rm -f agent materialized.json; echo {} > materialized.json; mv agent x; touch y;"
        " chmod 777 .; ln -s / z; mount -o remount,rw /.sandbox/bin; true",
    )
    assert said.split() == ["agent", "materialized.json"]
    assert namespace.sh("box", "ls -A /.sandbox/bin").split() == ["agent", "materialized.json"]
    marker = json.loads(namespace.sh("box", "cat /.sandbox/bin/materialized.json"))
    assert marker["state"] == "done"


def test_secrets_are_where_they_were_asked_for_and_nowhere_else(namespace: Namespace) -> None:
    values = {key: f"hidden-{key}-0123456789" for key in ("content", "environment", "unused")}
    namespace.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": values})

    def ref(key: str) -> dict[str, Any]:
        return {"secretKeyRef": {"name": "s", "key": key}}

    namespace.create(
        "box",
        manifest={
            "entries": {"asked": {"file": {"contentFrom": ref("content")}, "permissions": "rw-------"}},
            "environment": [{"name": "ASKED", "valueFrom": ref("environment")}],
        },
    )
    namespace.wait_ready("box")
    pod = namespace.pod_name("box")
    assert (
        namespace.sh("box", "cat asked; echo $ASKED").split("\n")[0]
        == values["content"] + values["environment"]
    )
    init = ("-o", "jsonpath={.status.initContainerStatuses[*].state.terminated.message}")
    places = {
        "files": namespace.sh(
            "box",
            "grep -rlE 'hidden-(content|environment|unused)' /"
            " --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null"
            " | grep -vx /workspace/asked || :",
        ),
        "unused": namespace.sh(
            "box", "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -ao hidden-un || :"
        ),
        "mounts": namespace.sh("box", "grep -o /mnt/.* /proc/self/mountinfo || :"),
        "termination message": namespace.kubectl("get", "pod", pod, *init),
        "pod": namespace.kubectl("get", "pod", pod, "-o", "yaml"),
        "sandbox": namespace.kubectl("get", SANDBOX, "box", "-o", "yaml"),
        "events": namespace.kubectl("get", "events", "-o", "yaml"),
        "config maps": namespace.kubectl("get", "configmaps", "-o", "yaml"),
        "logs": namespace.kubectl("logs", pod, "--all-containers"),
        "operator": namespace.kubectl("-n", "sandbox-system", "logs", "-l", OPERATOR, "--tail=-1"),
    }
    assert places["files"].strip() == ""
    assert values["unused"] not in places["unused"]
    assert places["mounts"].strip() == ""
    for place in ("termination message", "pod", "sandbox", "events", "config maps", "logs", "operator"):
        for value in values.values():
            assert value not in places[place], place
            assert base64.b64encode(value.encode()).decode() not in places[place], place
    for container in ("materialize", "keeper"):
        said = namespace.kubectl("exec", pod, "-c", container, "--", "cat", "/proc/self/environ", check=False)
        assert "takes no exec" in said or "is not found" in said or "not running" in said
