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
    namespace.until(
        lambda: namespace.kubectl("get", SANDBOX, "odd", "-o", "jsonpath={.status.conditions[*].type}"),
        "odd to be looked at",
    )
    namespace.delete("odd")
    assert operator_restarts() == before
