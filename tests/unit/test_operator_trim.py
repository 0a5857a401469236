"""What the store keeps: little, the same after a second time, and everything that a decision reads."""

import copy
import json
import random
import string
from typing import Any

import pytest
from sandbox_api.kube import CONFIG_MAPS, NETWORK_POLICIES, PODS, SANDBOXES, SERVICES
from sandbox_api.v1alpha1 import Reason
from sandbox_operator.sandbox.network import stands
from sandbox_operator.sandbox.packed import LARGE, PackedSpec
from sandbox_operator.sandbox.trim import TRIMS, trim_sandbox
from sandbox_operator.sandbox.validate import parse_spec
from sandbox_operator.sandbox.view import SandboxView

from tests.crds.worst import worst_specs


def sandbox(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "x/v1",
        "kind": "Sandbox",
        "metadata": {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1", **metadata},
        "spec": spec,
    }


@pytest.mark.parametrize("kind", worst_specs(1))
def test_a_large_spec_is_packed_and_reads_as_it_was(kind: str) -> None:
    spec = worst_specs()[kind]
    trimmed = trim_sandbox(sandbox(spec))
    assert isinstance(trimmed["spec"], PackedSpec)
    assert SandboxView(trimmed).spec == spec
    assert parse_spec(SandboxView(trimmed).spec)[1] is None


def test_a_packed_spec_is_smaller_than_its_text_also_where_that_is_noise() -> None:
    noise = "".join(random.Random(1).choices(string.printable, k=100_000))
    trimmed = trim_sandbox(sandbox({"manifest": {"entries": {"a": {"file": {"content": noise}}}}}))
    assert len(trimmed["spec"].data) < 100_000


def test_half_a_surrogate_pair_survives() -> None:
    spec = {"manifest": {"entries": {"a": {"file": {"content": "\ud800" * LARGE}}}}}
    assert SandboxView(trim_sandbox(sandbox(spec))).spec == spec


def test_a_small_spec_stays_as_it_is() -> None:
    spec = {"image": "a"}
    assert trim_sandbox(sandbox(spec))["spec"] is spec


def test_twice_is_as_good_as_once() -> None:
    items = {
        SANDBOXES: sandbox(worst_specs()["files"], finalizers=["a"]),
        PODS: {
            "metadata": {"name": "a", "annotations": {"sandbox-operator.dev/generation": "1", "b": "c"}},
            "spec": {"nodeName": "n"},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "workspace", "ready": True, "x": 1}],
            },
        },
        SERVICES: {"metadata": {"name": "a"}, "spec": {"ports": []}},
        CONFIG_MAPS: {"metadata": {"name": "a"}, "data": {"a": "b"}},
    }
    for resource, item in items.items():
        once = TRIMS[resource](copy.deepcopy(item))
        assert TRIMS[resource](once) == once


def test_of_metadata_only_what_decisions_read() -> None:
    ours = {"controller": True, "uid": "u"}
    junk = {"uid": "x" * 100_000}
    trimmed = trim_sandbox(
        sandbox(
            {},
            annotations={
                "sandbox-operator.dev/uploaded": "x" * 100_000,
                "sandbox-operator.dev/junk": "x",
                "kubectl.kubernetes.io/last-applied-configuration": "x" * 100_000,
            },
            labels={f"l{i}": "x" for i in range(1000)},
            managedFields=[{"fieldsV1": {}}],
            ownerReferences=[junk, ours],
        )
    )
    assert trimmed["metadata"]["annotations"] == {"sandbox-operator.dev/uploaded": "x" * 512}
    assert trimmed["metadata"]["labels"] == {}
    assert trimmed["metadata"]["ownerReferences"] == [ours]
    assert "managedFields" not in trimmed["metadata"]


def test_an_affinity_that_is_too_large_is_not_kept_but_said() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"f": deep}
    for affinity in ({"nodeAffinity": "x" * 20_000}, deep):
        trimmed = trim_sandbox(sandbox({"pod": {"affinity": affinity, "priorityClassName": "low"}}))
        spec, problem = parse_spec(SandboxView(trimmed).spec)
        assert spec is None
        assert problem is not None
        assert problem.reason is Reason.INVALID_SPEC
        assert "spec.pod.affinity" in problem.message
        assert not problem.retryable
        assert trim_sandbox(trimmed) == trimmed


def test_a_policy_of_megabytes_is_kept_as_another_than_ours() -> None:
    body = {"spec": {"podSelector": {}}}
    peers = [{"ipBlock": {"cidr": "10.0.0.0/8"}}] * 20_000
    trimmed = TRIMS[NETWORK_POLICIES](
        {"metadata": {"name": "a"}, "spec": {"podSelector": {}, "egress": peers}}
    )
    assert len(json.dumps(trimmed)) < 1000
    assert not stands(NETWORK_POLICIES, body, trimmed)
    assert stands(NETWORK_POLICIES, body, TRIMS[NETWORK_POLICIES]({"metadata": {"name": "a"}, **body}))


def test_an_annotation_of_a_pod_is_kept_to_a_bound() -> None:
    annotations = {"sandbox-operator.dev/spec-digest": "x" * 100_000}
    trimmed = TRIMS[PODS]({"metadata": {"name": "a", "annotations": annotations}})
    assert len(trimmed["metadata"]["annotations"]["sandbox-operator.dev/spec-digest"]) == 4096
