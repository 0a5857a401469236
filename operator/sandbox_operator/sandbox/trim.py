"""What is kept of an object in the store: what decisions need, and no more."""

from collections.abc import Mapping
from typing import Any

from sandbox_api.kube import CONFIG_MAPS, NETWORK_POLICIES, PODS, SANDBOXES, SERVICES, Object, Resource, Trim
from sandbox_api.v1alpha1 import MAX_AFFINITY_BYTES, json_size

from . import names
from .packed import PackedSpec, packed

#: Stands for an affinity that is not kept; :func:`.validate.parse_spec` says so.
OVERSIZE = "larger than admitted"

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
_SANDBOX_ANNOTATIONS = (names.ANNOTATION_AWAITING_SECRET, names.ANNOTATION_UPLOADED)
#: Longer than any name and any UID.
_MAX_ANNOTATION = 512
_POD_ANNOTATIONS = (names.ANNOTATION_SPEC_DIGEST, names.ANNOTATION_GENERATION, names.ANNOTATION_INCARNATION)
#: The longest of ours is a digest for each field of a spec.
_MAX_OF_POD = 4096
#: Lists of the administrator's networks included.
_MAX_CHILD = 256 * 1024
_FOREIGN = {"foreign": True}
_POD_STATUS = ("phase", "reason", "message")
_OUR_LABELS = (names.LABEL_MANAGED_BY, names.LABEL_SANDBOX_UID, names.LABEL_EGRESS)


def trim_sandbox(item: Object) -> Object:
    """Metadata, spec and status; of annotations only those that clients write for us, of affinity only what is sane."""
    annotations = item["metadata"].get("annotations") or {}
    ours = {key: annotations[key][:_MAX_ANNOTATION] for key in _SANDBOX_ANNOTATIONS if key in annotations}
    spec = item.get("spec") or {}
    return {
        "metadata": _metadata(item, annotations=ours, finalizers=True),
        "spec": spec if isinstance(spec, PackedSpec) else packed(_with_sane_affinity(spec)),
        "status": item.get("status") or {},
    }


def trim_pod(item: Object) -> Object:
    """What :func:`.diagnose.diagnose` reads, and what tells whose pod it is."""
    annotations = item["metadata"].get("annotations") or {}
    status = item.get("status") or {}
    node = (item.get("spec") or {}).get("nodeName")
    return {
        "metadata": _metadata(
            item,
            annotations={
                key: annotations[key][:_MAX_OF_POD] for key in _POD_ANNOTATIONS if key in annotations
            },
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
    """Metadata and spec; of one that is far larger than any of ours no more than that it is another."""
    spec = item.get("spec") or {}
    return {"metadata": _metadata(item), "spec": spec if json_size(spec) <= _MAX_CHILD else dict(_FOREIGN)}


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


def _with_sane_affinity(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without an affinity that is too large: no schema bounds it, and every Sandbox is kept in memory."""
    pod = spec.get("pod") or {}
    if json_size(pod.get("affinity")) <= MAX_AFFINITY_BYTES:
        return spec
    return {**spec, "pod": {**pod, "affinity": OVERSIZE}}


def _metadata(
    item: Object, annotations: dict[str, str] | None = None, *, finalizers: bool = False
) -> dict[str, Any]:
    metadata = item["metadata"]
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    if finalizers and "finalizers" in metadata:
        kept["finalizers"] = metadata["finalizers"]
    if owners := [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]:
        kept["ownerReferences"] = owners
    labels = metadata.get("labels") or {}
    kept["labels"] = {key: labels[key] for key in _OUR_LABELS if key in labels}
    if annotations:
        kept["annotations"] = annotations
    return kept


def _container(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: status[key] for key in ("name", "ready", "restartCount", "state", "lastState") if key in status
    }
