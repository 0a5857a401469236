"""Objects that somebody wrote to do harm: they harm their own sandbox at most, never the operator or its neighbours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import SANDBOX, Namespace

OPERATOR = "app.kubernetes.io/name=sandbox-operator"
API = "/apis/sandbox-operator.dev/v1alpha1/namespaces"
#: Far beyond what Python's JSON parser follows, below what the API server refuses.
DEEP = b'{"f:a":' * 3000 + b"{}" + b"}" * 3000


@pytest.fixture
def operator_restarts(kubectl: Callable[..., Any]) -> Callable[[], int]:
    """How often the operator's containers have been started again so far."""

    def count() -> int:
        said = kubectl(
            "get", "pods", "--all-namespaces", "-l", OPERATOR,
            "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}",
        )  # fmt: skip
        return sum(map(int, said.stdout.split()))

    return count


def replace_fields(
    namespace: Namespace, tmp_path: Path, resource: str, name: str, base: str, fields: bytes
) -> None:
    """Replace an object by itself with other managed fields: raw bytes, which kubectl's own types would not let by."""
    item = namespace.get(resource, name)
    assert item
    item["metadata"]["managedFields"] = [
        {
            "manager": "somebody",
            "operation": "Update",
            "apiVersion": item["apiVersion"],
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": "@",
        }
    ]
    body = tmp_path / "body.json"
    body.write_bytes(json.dumps(item).encode().replace(b'"@"', fields))
    namespace.kubectl(
        "replace", "--raw", f"{base}/{namespace.name}/{resource.split('.')[0]}/{name}", "-f", str(body)
    )


@pytest.mark.parametrize("fields", [DEEP, b'{"f:\xff":{}}'], ids=["deep", "not utf-8"])
def test_fields_of_a_child_that_python_cannot_parse_stop_nothing(
    namespace: Namespace, tmp_path: Path, operator_restarts: Callable[[], int], fields: bytes
) -> None:
    before = operator_restarts()
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "junk", "labels": {"sandbox-operator.dev/sandbox-uid": "x"}},
        }
    )
    replace_fields(namespace, tmp_path, "configmaps", "junk", "/api/v1/namespaces", fields)
    # Large enough for a ConfigMap of its own, so that this feed is what counts.
    namespace.create("fine", entries={"large.txt": {"file": {"content": "x" * 70_000}}})
    namespace.wait_ready("fine")
    assert operator_restarts() == before


def test_a_sandbox_that_python_cannot_parse_stops_nothing_and_can_be_deleted(
    namespace: Namespace, tmp_path: Path, operator_restarts: Callable[[], int]
) -> None:
    before = operator_restarts()
    namespace.create("odd")
    namespace.wait_ready("odd")
    replace_fields(namespace, tmp_path, SANDBOX, "odd", API, DEEP)
    namespace.create("fine")
    namespace.wait_ready("fine")
    namespace.delete("odd")
    assert operator_restarts() == before


def test_affinity_without_end_stops_nothing(
    namespace: Namespace, tmp_path: Path, operator_restarts: Callable[[], int]
) -> None:
    before = operator_restarts()
    body = json.dumps(namespace.sandbox("odd", pod={"affinity": {"nodeAffinity": "@"}})).encode()
    path = tmp_path / "odd.json"
    path.write_bytes(body.replace(b'"@"', DEEP))
    namespace.kubectl("create", "--raw", f"{API}/{namespace.name}/sandboxes", "-f", str(path))
    namespace.create("fine")
    namespace.wait_ready("fine")
    # One field alone: the whole is more than this test could parse.
    said = ("get", SANDBOX, "odd", "-o", "jsonpath={.status.failure}")
    failure = json.loads(namespace.until(lambda: namespace.kubectl(*said), "odd to be looked at"))
    assert failure["reason"] == "InvalidSpec"
    assert "affinity" in failure["message"]
    assert failure["retryable"] is False
    namespace.delete("odd")
    assert operator_restarts() == before


def test_what_the_api_server_does_not_take_of_affinity_is_said(namespace: Namespace) -> None:
    namespace.create("typo", pod={"affinity": {"nodeAfinity": {}}})
    failure = namespace.wait_failure("typo", "InvalidSpec")
    assert "nodeAfinity" in failure["message"]
    assert failure["retryable"] is False


def test_a_pod_that_would_be_too_large_is_said(namespace: Namespace) -> None:
    # Control characters have six bytes each in JSON, in content and in paths: more than a ConfigMap holds.
    paths = {f"{number:03}{chr(2) * 250}": {"dir": {}} for number in range(250)}
    entries = {"a": {"file": {"content": "\1" * 131_072}}, **paths}
    sandbox = namespace.sandbox("large", manifest={"entries": entries})
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(sandbox))  # too large for `kubectl apply`
    failure = namespace.wait_failure("large", "InvalidSpec")
    assert "may not be more than 1048576 bytes" in failure["message"]
    assert failure["retryable"] is False


def test_an_environment_of_megabytes_is_refused(namespace: Namespace) -> None:
    variables = [{"name": f"V{number}", "value": "x" * 32_768} for number in range(40)]
    sandbox = namespace.sandbox("large", manifest={"environment": variables})
    said = namespace.kubectl("create", "-f", "-", stdin=json.dumps(sandbox), check=False)
    assert "spec.manifest.environment" in said
    assert "at most 131072 bytes" in said


def test_a_quota_bounds_how_many_sandboxes_there_are(namespace: Namespace) -> None:
    namespace.kubectl("create", "quota", "sandboxes", "--hard=count/sandboxes.sandbox-operator.dev=1")
    namespace.until(
        lambda: (namespace.get("resourcequota", "sandboxes") or {}).get("status", {}).get("used"),
        "the quota to be counted",
    )
    namespace.create("one")
    said = namespace.kubectl("create", "-f", "-", stdin=json.dumps(namespace.sandbox("two")), check=False)
    assert "exceeded quota: sandboxes" in said


def test_a_fence_that_somebody_else_took_is_said_and_not_hammered_at(
    namespace: Namespace, kubectl: Callable[..., Any]
) -> None:
    namespace.create("fenced", network={"egress": "None"})
    namespace.wait_ready("fenced")
    # Without the label it is a foreign object that holds the name, and it is open.
    taken = {"metadata": {"labels": None}, "spec": {"egress": [{}]}}
    namespace.kubectl(
        "patch", "networkpolicy", "sandbox-egress-none", "--type=merge", "-p", json.dumps(taken)
    )
    failure = namespace.wait_failure("fenced", "NameConflict")
    assert "sandbox-egress-none" in failure["message"]
    status = namespace.status("fenced")
    assert status["network"]["egress"] == "Unknown"
    assert status["podName"]

    def refused() -> int:
        lines = kubectl("get", "--raw", "/metrics").stdout.splitlines()
        return sum(
            int(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("apiserver_request_total")
            and 'networkpolicies"' in line
            and 'code="409"' in line
        )

    before = refused()
    namespace.kubectl("annotate", SANDBOX, "fenced", "look=again")
    namespace.kubectl("delete", "networkpolicy", "sandbox-egress-none")
    namespace.until(lambda: namespace.status("fenced").get("failure") is None, "the fence to stand again", 90)
    assert namespace.status("fenced")["network"]["egress"] == "None"
    policy = namespace.get("networkpolicy", "sandbox-egress-none")
    assert policy
    assert "egress" not in policy["spec"]
    assert refused() - before <= 5


def test_egress_in_the_status_is_what_the_pod_has_also_where_the_new_spec_is_refused(
    namespace: Namespace,
) -> None:
    namespace.create("open", network={"egress": "Internet"})
    namespace.wait_ready("open")
    change = {"spec": {"network": {"egress": "None"}, "pod": {"priorityClassName": "no-such-class"}}}
    namespace.kubectl("patch", SANDBOX, "open", "--type=merge", "-p", json.dumps(change))
    namespace.until(
        lambda: namespace.condition("open", "UpToDate").get("reason") == "NotAllowed",
        "the change to be refused",
    )
    assert namespace.status("open")["network"]["egress"] == "Internet"
    change["spec"]["pod"] = None  # type: ignore[assignment]
    namespace.kubectl("patch", SANDBOX, "open", "--type=merge", "-p", json.dumps(change))
    namespace.until(lambda: namespace.status("open")["network"]["egress"] == "None", "the new egress")
    pod = namespace.get("pod", namespace.pod_name("open"))
    assert pod
    assert pod["metadata"]["labels"]["sandbox-operator.dev/egress"] == "none"


def test_a_pod_that_says_it_belongs_to_a_sandbox_elsewhere_concerns_nobody(
    namespace: Namespace, kubectl: Callable[..., Any]
) -> None:
    namespace.create("victim")
    namespace.wait_ready("victim")
    uid = (namespace.get(SANDBOX, "victim") or {})["metadata"]["uid"]
    elsewhere = f"{namespace.name}-b"
    kubectl("create", "namespace", elsewhere)
    try:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": namespace.pod_name("victim"),
                "labels": {
                    "app.kubernetes.io/managed-by": "sandbox-operator",
                    "sandbox-operator.dev/sandbox-uid": uid,
                },
                "ownerReferences": [
                    {
                        "apiVersion": "sandbox-operator.dev/v1alpha1",
                        "kind": "Sandbox",
                        "name": "victim",
                        "uid": uid,
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "workspace", "image": namespace.image, "command": ["sleep", "1000"]}],
            },
        }
        before = namespace.status("victim")
        kubectl("--namespace", elsewhere, "create", "-f", "-", stdin=json.dumps(pod))
        namespace.kubectl("annotate", SANDBOX, "victim", "sandbox-operator.dev/uploaded=junk")
        namespace.kubectl("annotate", SANDBOX, "victim", "sandbox-operator.dev/awaiting-secret=../junk")
        namespace.create("after")
        namespace.wait_ready("after")
        assert namespace.status("victim") == before
    finally:
        kubectl("delete", "namespace", elsewhere, "--wait=false")


def test_those_who_may_edit_sandboxes_cannot_write_their_status(
    namespace: Namespace, kubectl: Callable[..., Any]
) -> None:
    kubectl("--namespace", namespace.name, "create", "serviceaccount", "editor")
    user = f"system:serviceaccount:{namespace.name}:editor"
    kubectl(
        "--namespace", namespace.name, "create", "rolebinding", "editor", "--clusterrole=edit",
        f"--serviceaccount={namespace.name}:editor",
    )  # fmt: skip
    namespace.create("mine")
    namespace.wait_ready("mine")
    patch = ("patch", SANDBOX, "mine", "--type=merge", "-p")
    said = namespace.kubectl(
        *patch, '{"status":{"podName":"x"}}', "--subresource=status", f"--as={user}", check=False
    )
    assert "forbidden" in said
    namespace.kubectl(*patch, '{"status":{"podName":"x"},"metadata":{"finalizers":null}}', f"--as={user}")
    namespace.until(
        lambda: (namespace.get(SANDBOX, "mine") or {})["metadata"].get("finalizers"),
        "the finalizer to be put back",
    )
    assert namespace.pod_name("mine") != "x"
    namespace.delete("mine")
    assert namespace.children() == []


def test_an_event_about_a_long_name_is_posted_wherever_the_name_is_cut(namespace: Namespace) -> None:
    name = "a" * 199 + "-b"
    namespace.create(name, pod={"priorityClassName": "no-such-class"})
    namespace.wait_failure(name, "NotAllowed")
    said = (
        "get",
        "events",
        "--field-selector",
        f"involvedObject.name={name}",
        "-o",
        "jsonpath={.items[*].reason}",
    )
    namespace.until(lambda: "NotAllowed" in namespace.kubectl(*said), "the event")
