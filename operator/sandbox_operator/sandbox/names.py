"""Names, labels and annotations that the parts of the system know each other by (docs/pod.md)."""

import hashlib

from sandbox_api.v1alpha1 import GROUP

FINALIZER = f"{GROUP}/cleanup"
FIELD_MANAGER = "sandbox-operator"

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "sandbox-operator"
LABEL_SANDBOX_UID = f"{GROUP}/sandbox-uid"
LABEL_EGRESS = f"{GROUP}/egress"

ANNOTATION_SANDBOX = f"{GROUP}/sandbox"
ANNOTATION_GENERATION = f"{GROUP}/generation"
ANNOTATION_INCARNATION = f"{GROUP}/incarnation"
ANNOTATION_SPEC_DIGEST = f"{GROUP}/spec-digest"
ANNOTATION_MANIFEST = f"{GROUP}/manifest"
ANNOTATION_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
#: Written by clients on a Sandbox.
ANNOTATION_AWAITING_SECRET = f"{GROUP}/awaiting-secret"
ANNOTATION_UPLOADED = f"{GROUP}/uploaded"

MATERIALIZE = "materialize"
KEEPER = "keeper"
WORKSPACE = "workspace"

_MAX_PREFIX = 50


def pod_name(sandbox: str, uid: str, incarnation: int) -> str:
    """Name of the pod of an incarnation, and of what lives and dies with that pod."""
    return _name(sandbox, f"{uid}/{incarnation}")


def lasting_name(sandbox: str, uid: str) -> str:
    """Name of what a sandbox has once: its Service, its own NetworkPolicy."""
    return _name(sandbox, uid)


def _name(sandbox: str, seed: str) -> str:
    # Service names are DNS labels: no dots, and a letter first. The hash tells "a.b" and "a-b" apart.
    prefix = sandbox.replace(".", "-")[:_MAX_PREFIX].strip("-")
    if not prefix[:1].isalpha():
        prefix = f"s-{prefix}"[:_MAX_PREFIX].strip("-")
    return f"{prefix}-{hashlib.blake2b(seed.encode(), digest_size=5).hexdigest()}"


def owner_reference(sandbox: str, uid: str, api_version: str, kind: str) -> dict[str, object]:
    """The reference that makes an object a child of a sandbox."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": sandbox,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
