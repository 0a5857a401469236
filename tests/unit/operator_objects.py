"""Small Sandboxes and pods for table tests of the operator's pure parts."""

from typing import Any

from sandbox_api.v1alpha1 import Egress
from sandbox_operator.durations import format_time
from sandbox_operator.sandbox.memory import Memory
from sandbox_operator.sandbox.names import LABEL_EGRESS, pod_name
from sandbox_operator.sandbox.network import shared_policies
from sandbox_operator.sandbox.observe import Observation
from sandbox_operator.sandbox.pod import render_pod
from sandbox_operator.sandbox.trim import trim_pod
from sandbox_operator.sandbox.validate import parse_spec
from sandbox_operator.sandbox.view import SandboxView
from sandbox_operator.settings import Settings

UID = "11111111-2222-3333-4444-555555555555"
POD_UID = "aaaaaaaa-0000-0000-0000-000000000001"
NOW = 1_800_000_000.0
SETTINGS = Settings(network_policies_enforced=True)


def sandbox(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "box",
            "namespace": "ns",
            "uid": UID,
            "generation": 1,
            "resourceVersion": "10",
            "creationTimestamp": format_time(NOW),
            **metadata,
        },
        "spec": spec or {},
        "status": status or {},
    }


def container(
    name: str, *, restarts: int = 0, last: dict[str, Any] | None = None, **state: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "ready": "running" in state,
        "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": last} if last else {},
    }


def ended(code: int = 0, message: str = "", reason: str = "") -> dict[str, Any]:
    return {"exitCode": code, "message": message, "reason": reason}


def pod_status(
    init: dict[str, Any] | None = None,
    workspace: dict[str, Any] | None = None,
    keeper: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    return {
        "initContainerStatuses": [init] if init else [],
        "containerStatuses": [c for c in (keeper, workspace) if c],
        **status,
    }


def running() -> dict[str, Any]:
    receipt = '{"ok": true, "entries": 2, "bytes": 3, "seconds": 0.5}'
    return pod_status(
        container("materialize", terminated=ended(0, receipt)),
        container("workspace", running={}),
        container("keeper", running={}),
        phase="Running",
    )


def pod(
    status: dict[str, Any] | None = None,
    *,
    incarnation: int = 1,
    spec: dict[str, Any] | None = None,
    node: str = "node",
    uid: str = POD_UID,
    **metadata: Any,
) -> dict[str, Any]:
    """A pod as the operator would have made it from a spec, trimmed as in the store."""
    view = SandboxView(sandbox(spec))
    parsed, _ = parse_spec(view.spec)
    assert parsed is not None
    body, _ = render_pod(view, parsed, SETTINGS, incarnation)
    body["metadata"] |= {
        "uid": uid,
        "creationTimestamp": format_time(NOW),
        "resourceVersion": "11",
        **metadata,
    }
    return trim_pod({**body, "spec": {**body["spec"], "nodeName": node}, "status": status or {}})


def observation(
    box: dict[str, Any],
    *pods: dict[str, Any],
    memory: Memory | None = None,
    fenced: bool = True,
    **others: Any,
) -> Observation:
    """What is known; with the fences of its spec and of its pods standing, unless told otherwise."""
    view = SandboxView(box)
    parsed, _ = parse_spec(view.spec)
    egress = (parsed and parsed.network and parsed.network.egress) or SETTINGS.default_egress
    labels = [each["metadata"]["labels"][LABEL_EGRESS] for each in pods]
    classes = [known for known in Egress if known is egress or known.value.lower() in labels]
    policies = [policy for known in classes for policy in shared_policies("ns", known, SETTINGS) if fenced]
    return Observation(
        view,
        pods,
        shared_policies={policy["metadata"]["name"]: policy for policy in policies},
        memory=memory or Memory(),
        **others,
    )


def started(incarnation: int = 1, **more: Any) -> dict[str, Any]:
    """The status of an incarnation whose pod is known."""
    return {
        "incarnation": incarnation,
        "podName": pod_name("box", UID, incarnation),
        "podUID": POD_UID,
        "podGeneration": 1,
        "observedGeneration": 1,
        **more,
    }


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
