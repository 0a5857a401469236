"""The admission policies for exec, attach and ephemeral containers, as a real API server applies them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.chart.release import Cluster, Object, of_kind, render

pytestmark = pytest.mark.apiserver

POD = "my-box-0123456789"
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def pod(name: str, labels: dict[str, str]) -> Object:
    image = {"image": "example.com/none"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "initContainers": [{"name": "materialize", **image}],
            "containers": [{"name": "keeper", **image}, {"name": "workspace", **image}],
            "volumes": [{"name": "credentials", "emptyDir": {}}],
        },
    }


@pytest.fixture(scope="module")
def fenced(api_server: Cluster) -> Iterator[Cluster]:
    """The policies in force in team-a, with a sandbox's pod there and in team-b."""
    documents = yaml.safe_dump_all(of_kind(render({"watchNamespaces": ["team-a"]}), *POLICIES))
    api_server.must("apply", "-f", "-", stdin=documents)
    for namespace in ("team-a", "team-b"):
        api_server.must("-n", namespace, "create", "-f", "-", stdin=json.dumps(pod(POD, {})))
    end = time.monotonic() + 30
    while refused(exec_into(api_server, "keeper")) is False:  # the API server reads policies by a watch
        assert time.monotonic() < end, "the policies are not in force"
        time.sleep(0.1)
    while not refused(debug(api_server, "--target=keeper", "--container=early")):
        assert time.monotonic() < end, "the policies are not in force"
        api_server.must("-n", "team-a", "delete", "pod", POD, "--force", "--grace-period=0")
        api_server.must("-n", "team-a", "create", "-f", "-", stdin=json.dumps(pod(POD, {})))
    yield api_server
    for namespace in ("team-a", "team-b"):
        api_server.must("-n", namespace, "delete", "pod", "--all", "--force", "--grace-period=0")
    api_server.must("delete", "-f", "-", stdin=documents)


def exec_into(
    server: Cluster,
    container: str | None,
    pod: str = POD,
    namespace: str = "team-a",
    subresource: str = "exec",
    verb: tuple[str, ...] = ("get",),
) -> str:
    """What the API server says to an exec. No node runs the pod, so even an admitted one fails, later."""
    query = "?command=true" + (f"&container={container}" if container else "")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/{subresource}{query}"
    arguments = ["create", "--raw", path, "-f", "-"] if verb == ("create",) else ["get", "--raw", path]
    return server.kubectl(*arguments, stdin="").stderr


def debug(server: Cluster, *arguments: str, namespace: str = "team-a", name: str = POD) -> str:
    command = ("debug", name, "--image=example.com/none", "--attach=false", "--profile=general")
    return server.kubectl("-n", namespace, *command, *arguments).stderr


def refused(said: str) -> bool:
    return "ValidatingAdmissionPolicy 'sandbox-operator-" in said


@pytest.mark.parametrize("container", ["materialize", "keeper", "mounter", "mount-server"])
@pytest.mark.parametrize("subresource", ["exec", "attach"])
@pytest.mark.parametrize("verb", ["get", "create"])
def test_our_own_containers_are_closed(fenced: Cluster, container: str, subresource: str, verb: str) -> None:
    said = exec_into(fenced, container, subresource=subresource, verb=(verb,))
    assert refused(said)
    assert (
        f"container {container} of a sandbox takes no exec and no attach: use the container workspace" in said
    )


@pytest.mark.parametrize(
    ("container", "pod", "namespace", "later"),
    [
        ("workspace", POD, "team-a", "does not have a host assigned"),
        (None, POD, "team-a", "a container name must be specified"),
        ("istio-proxy", POD, "team-a", "container istio-proxy is not valid"),
        ("keeper", "clickhouse-keeper-0", "team-a", "not found"),
        ("keeper", "keeper-5d8f9c7b64-x2x7k", "team-a", "not found"),
        ("keeper", "keeper-0123456789a", "team-a", "not found"),
        (
            "keeper",
            POD,
            "team-b",
            "does not have a host assigned",
        ),  # a namespace that the operator does not serve
    ],
)
def test_everything_else_stays_open(
    fenced: Cluster, container: str | None, pod: str, namespace: str, later: str
) -> None:
    """Admitted, and then refused for want of a node or a pod."""
    said = exec_into(fenced, container, pod, namespace)
    assert not refused(said)
    assert later in said


def test_a_debugger_sees_the_workspace_alone(fenced: Cluster) -> None:
    assert "must target the container workspace" in debug(fenced, "--target=keeper", "--container=one")
    assert refused(debug(fenced, "--container=two"))
    assert not refused(debug(fenced, "--target=workspace", "--container=three"))
    assert not refused(debug(fenced, "--target=workspace", "--container=four"))
    names = fenced.must(
        "-n", "team-a", "get", "pod", POD, "-o", "jsonpath={.spec.ephemeralContainers[*].name}"
    )
    assert names.split() == ["three", "four"]


def test_a_debugger_mounts_nothing(fenced: Cluster) -> None:
    current = json.loads(fenced.must("-n", "team-a", "get", "pod", POD, "-o", "json"))
    debugger = {
        "name": "five",
        "image": "example.com/none",
        "targetContainerName": "workspace",
        "volumeMounts": [{"name": "credentials", "mountPath": "/mnt"}],
    }
    current["spec"].setdefault("ephemeralContainers", []).append(debugger)
    path = f"/api/v1/namespaces/team-a/pods/{POD}/ephemeralcontainers"
    said = fenced.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(current)).stderr
    assert refused(said)
    assert "mount no volumes" in said


def test_a_label_says_enough_and_other_pods_are_free(fenced: Cluster) -> None:
    plain: Object = pod("plain", {})
    del plain["spec"]["initContainers"]
    labelled = {
        **plain,
        "metadata": {"name": "labelled", "labels": {"sandbox-operator.dev/sandbox-uid": "1"}},
    }
    for each in (plain, labelled):
        fenced.must("-n", "team-a", "create", "-f", "-", stdin=json.dumps(each))
    assert not refused(debug(fenced, "--target=keeper", name="plain"))
    assert refused(debug(fenced, "--target=keeper", name="labelled"))
    assert not refused(debug(fenced, "--target=keeper", namespace="team-b"))
