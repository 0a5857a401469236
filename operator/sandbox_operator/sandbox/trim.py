"""What is kept of an object in the store: what decisions need, and no more."""

from collections.abc import Mapping
from typing import Any

from sandbox_api.kube import CONFIG_MAPS, NETWORK_POLICIES, PODS, SANDBOXES, SERVICES, Object, Resource
from sandbox_api.v1alpha1 import GROUP

from sandbox_operator.engine.store import Trim

from . import names

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "ownerReferences",
)
_POD_ANNOTATIONS = (names.ANNOTATION_SPEC_DIGEST, names.ANNOTATION_GENERATION, names.ANNOTATION_INCARNATION)
_POD_STATUS = ("phase", "reason", "message")
_OUR_LABELS = (names.LABEL_MANAGED_BY, names.LABEL_SANDBOX_UID, names.LABEL_EGRESS)


def trim_sandbox(item: Object) -> Object:
    """Metadata, spec and status; of annotations only ours."""
    annotations = item["metadata"].get("annotations") or {}
    ours = {key: value for key, value in annotations.items() if key.startswith(f"{GROUP}/")}
    return {
        "metadata": _metadata(item, annotations=ours),
        "spec": item.get("spec") or {},
        "status": item.get("status") or {},
    }


def trim_pod(item: Object) -> Object:
    """What :func:`.diagnose.diagnose` reads, and what tells whose pod it is."""
    annotations = item["metadata"].get("annotations") or {}
    status = item.get("status") or {}
    node = (item.get("spec") or {}).get("nodeName")
    return {
        "metadata": _metadata(
            item, annotations={key: annotations[key] for key in _POD_ANNOTATIONS if key in annotations}
        ),
        "spec": {"nodeName": node} if node else {},
        "status": {
            **{key: status[key] for key in _POD_STATUS if key in status},
            "conditions": [
                {key: c[key] for key in ("type", "status", "reason", "message") if key in c}
                for c in status.get("conditions") or ()
            ],
            "initContainerStatuses": [_container(c) for c in status.get("initContainerStatuses") or ()],
            "containerStatuses": [_container(c) for c in status.get("containerStatuses") or ()],
        },
    }


def trim_child(item: Object) -> Object:
    """Metadata and spec."""
    return {"metadata": _metadata(item), "spec": item.get("spec") or {}}


def trim_config_map(item: Object) -> Object:
    """Metadata alone."""
    return {"metadata": _metadata(item)}


TRIMS: Mapping[Resource, Trim] = {
    SANDBOXES: trim_sandbox,
    PODS: trim_pod,
    SERVICES: trim_child,
    NETWORK_POLICIES: trim_child,
    CONFIG_MAPS: trim_config_map,
}


def _metadata(item: Object, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = item["metadata"]
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    labels = metadata.get("labels") or {}
    kept["labels"] = {key: labels[key] for key in _OUR_LABELS if key in labels}
    if annotations:
        kept["annotations"] = annotations
    return kept


def _container(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: status[key] for key in ("name", "ready", "restartCount", "state", "lastState") if key in status
    }
