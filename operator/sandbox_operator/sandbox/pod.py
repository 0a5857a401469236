"""The pod of a sandbox. Pure: spec and settings in, the pod as the API server takes it out (docs/pod.md)."""

import math
from typing import Any

from sandbox_api.v1alpha1 import API_VERSION, DEFAULT_ROOT, EnvVar, Resources, SandboxSpec

from sandbox_operator.durations import parse_duration
from sandbox_operator.settings import Settings

from . import names
from .materialize_plan import MaterializePlan, materialize_plan
from .spec_digest import digest_of
from .view import SandboxView

HOME = "/home/sandbox"
BIN = "/.sandbox/bin"
RUN = "/.sandbox/run"
DEFAULT_ID = 1000
DEFAULT_STOP_GRACE = 5.0
#: What the agent needs beyond the user's grace to reap and to say its last words, in seconds.
STOP_MARGIN = 2
PLAN_KEY = "plan.json"

_AGENT_SIZE = "128Mi"
_RUN_SIZE = "16Mi"


def render_pod(
    view: SandboxView, spec: SandboxSpec, settings: Settings, incarnation: int
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The pod of an incarnation, and the ConfigMap that it needs if its plan is large."""
    name = names.pod_name(view.name, view.uid, incarnation)
    plan = materialize_plan(
        spec.manifest,
        insecure_hosts=settings.insecure_git_hosts,
        git_timeout=settings.git_timeout,
        workspace_size=_workspace_size(spec, settings),
    )
    metadata = _metadata(view, spec, settings, name, incarnation)
    config_map = None
    if plan.fits_annotation:
        metadata["annotations"][names.ANNOTATION_MANIFEST] = plan.text
    else:
        config_map = {
            "metadata": {
                "name": name,
                "namespace": view.namespace,
                "labels": child_labels(view),
                "ownerReferences": [owner(view)],
            },
            "immutable": True,
            "data": {PLAN_KEY: plan.text},
        }
    return {"metadata": metadata, "spec": _pod_spec(spec, settings, plan, name)}, config_map


def child_labels(view: SandboxView) -> dict[str, str]:
    """Labels of every child."""
    return {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SANDBOX_UID: view.uid}


def pod_labels(view: SandboxView, spec: SandboxSpec, settings: Settings) -> dict[str, str]:
    """Labels of ours on the pod: what policies and Services select by."""
    egress = (spec.network and spec.network.egress) or settings.default_egress
    return child_labels(view) | {names.LABEL_EGRESS: egress.value.lower()}


def owner(view: SandboxView) -> dict[str, Any]:
    """The owner reference of every child."""
    return names.owner_reference(view.name, view.uid, API_VERSION, "Sandbox")


def stop_grace(spec: SandboxSpec) -> float:
    """Seconds between TERM and KILL for the user's processes."""
    text = spec.lifecycle and spec.lifecycle.stop_grace
    return parse_duration(text) if text else DEFAULT_STOP_GRACE


def _metadata(
    view: SandboxView, spec: SandboxSpec, settings: Settings, name: str, incarnation: int
) -> dict[str, Any]:
    pod = spec.pod
    return {
        "name": name,
        "namespace": view.namespace,
        # Ours come last: whatever a user managed to write, policies select by these.
        "labels": {**((pod and pod.labels) or {}), **pod_labels(view, spec, settings)},
        "annotations": {
            **((pod and pod.annotations) or {}),
            names.ANNOTATION_SANDBOX: view.name,
            names.ANNOTATION_GENERATION: str(view.generation),
            names.ANNOTATION_INCARNATION: str(incarnation),
            names.ANNOTATION_SPEC_DIGEST: digest_of(view.spec),
            names.ANNOTATION_DEFAULT_CONTAINER: names.WORKSPACE,
        },
        "ownerReferences": [owner(view)],
    }


def _pod_spec(spec: SandboxSpec, settings: Settings, plan: MaterializePlan, name: str) -> dict[str, Any]:
    root = (spec.manifest and spec.manifest.root) or DEFAULT_ROOT
    result: dict[str, Any] = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(stop_grace(spec)) + STOP_MARGIN,
        "securityContext": _identity(spec, settings),
        "initContainers": [_materialize(settings, plan)],
        # The keeper is first: the kubelet starts ordinary containers in order, and ends them all at once.
        "containers": [_keeper(settings), _workspace(spec, settings, root)],
        "volumes": _volumes(spec, settings, plan, root, name),
    }
    if spec.security is not None and spec.security.runtime_class_name is not None:
        result["runtimeClassName"] = spec.security.runtime_class_name
    secrets = list(dict.fromkeys(settings.image_pull_secrets))
    if spec.pod is not None:
        pod = spec.pod
        secrets += [s.name for s in pod.image_pull_secrets or () if s.name not in secrets]
        placement = {
            "nodeSelector": pod.node_selector,
            "tolerations": [t.to_wire() for t in pod.tolerations or ()],
            "affinity": pod.affinity,
            "priorityClassName": pod.priority_class_name,
        }
        result |= {key: value for key, value in placement.items() if value}
    if secrets:
        result["imagePullSecrets"] = [{"name": secret} for secret in secrets]
    return result


def _identity(spec: SandboxSpec, settings: Settings) -> dict[str, Any]:
    security = spec.security
    default = None if settings.platform_assigns_ids else DEFAULT_ID
    ids = {
        "runAsUser": (security and security.run_as_user) or default,
        "runAsGroup": (security and security.run_as_group) or default,
        "fsGroup": (security and security.fs_group) or default,
    }
    return {
        "runAsNonRoot": True,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
        **{key: value for key, value in ids.items() if value is not None},
    }


def _fence(*, read_only_root: bool) -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }


def _materialize(settings: Settings, plan: MaterializePlan) -> dict[str, Any]:
    env: list[dict[str, Any]] = [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    ]
    mounts = [
        {"name": "workspace", "mountPath": "/mnt/workspace"},
        {"name": "agent", "mountPath": "/mnt/agent"},
    ]
    if plan.fits_annotation:
        path = f"metadata.annotations['{names.ANNOTATION_MANIFEST}']"
        env.append({"name": "SANDBOX_PLAN", "valueFrom": {"fieldRef": {"fieldPath": path}}})
    else:
        env.append({"name": "SANDBOX_PLAN_FILE", "value": f"/mnt/plan/{PLAN_KEY}"})
        mounts.append({"name": "plan", "mountPath": "/mnt/plan", "readOnly": True})  # type: ignore[dict-item]
    if plan.sources:
        mounts.append({"name": "sources", "mountPath": "/mnt/sources", "readOnly": True})  # type: ignore[dict-item]
    return {
        "name": names.MATERIALIZE,
        "image": settings.workspace_image,
        "imagePullPolicy": settings.workspace_image_pull_policy,
        "command": ["python3", "-m", "sandbox_workspace", "materialize"],
        "env": env,
        "resources": settings.materialize_resources.to_wire(),
        "securityContext": _fence(read_only_root=True),
        "volumeMounts": mounts,
    }


def _keeper(settings: Settings) -> dict[str, Any]:
    return {
        "name": names.KEEPER,
        "image": settings.workspace_image,
        "imagePullPolicy": settings.workspace_image_pull_policy,
        "command": ["agent", "keeper"],
        "resources": settings.keeper_resources.to_wire(),
        "securityContext": _fence(read_only_root=True),
    }


def _workspace(spec: SandboxSpec, settings: Settings, root: str) -> dict[str, Any]:
    manifest = spec.manifest
    command = [f"{BIN}/agent", "init", "--root", root, "--grace", f"{stop_grace(spec):g}"]
    for grant in (manifest and manifest.path_grants) or ():
        command += ["--grant-read-only" if grant.read_only else "--grant", grant.path]
    if spec.command:
        command += ["--", *spec.command, *(spec.args or ())]
    environment = (manifest and manifest.environment) or []
    env = [_env(variable) for variable in environment]
    if all(variable.name != "HOME" for variable in environment):
        env.insert(0, {"name": "HOME", "value": HOME})
    mounts: list[dict[str, Any]] = [
        {"name": "workspace", "mountPath": root},
        {"name": "agent", "mountPath": BIN, "readOnly": True},
        {"name": "run", "mountPath": RUN},
    ]
    if root != HOME:
        mounts.append({"name": "home", "mountPath": HOME})
    container: dict[str, Any] = {
        "name": names.WORKSPACE,
        "image": spec.image or settings.default_image,
        "command": [_literal(part) for part in command],
        "workingDir": root,
        "env": env,
        "resources": _resources(spec.resources or settings.default_resources),
        "securityContext": _fence(read_only_root=False),
        "volumeMounts": mounts,
    }
    if spec.image_pull_policy is not None:
        container["imagePullPolicy"] = spec.image_pull_policy
    if spec.ports:
        container["ports"] = [{"name": f"p-{port}", "containerPort": port} for port in spec.ports]
    return container


def _resources(resources: Resources) -> dict[str, object]:
    return resources.to_wire()


def _env(variable: EnvVar) -> dict[str, Any]:
    source = variable.value_from
    if source is None:
        return {"name": variable.name, "value": _literal(variable.value or "")}
    for key, ref in (("configMapKeyRef", source.config_map_key_ref), ("secretKeyRef", source.secret_key_ref)):
        if ref is not None:
            return {"name": variable.name, "valueFrom": {key: {"name": ref.name, "key": ref.key}}}
    raise ValueError(f"variable {variable.name}: valueFrom names neither a ConfigMap nor a Secret")


def _literal(text: str) -> str:
    """Kubernetes expands $(NAME) in commands and values; $$ keeps a dollar what it is."""
    return text.replace("$", "$$")


def _volumes(
    spec: SandboxSpec, settings: Settings, plan: MaterializePlan, root: str, name: str
) -> list[dict[str, Any]]:
    size = _workspace_size(spec, settings)
    volumes: list[dict[str, Any]] = [
        {"name": "workspace", "emptyDir": {"sizeLimit": size}},
        {"name": "agent", "emptyDir": {"sizeLimit": _AGENT_SIZE}},
        {"name": "run", "emptyDir": {"sizeLimit": _RUN_SIZE}},
    ]
    if root != HOME:
        # Caches of package managers land here: as much as the workspace may hold.
        volumes.append({"name": "home", "emptyDir": {"sizeLimit": size}})
    if plan.sources:
        volumes.append({"name": "sources", "projected": _projected(plan)})
    if not plan.fits_annotation:
        volumes.append({"name": "plan", "configMap": {"name": name, "defaultMode": 0o444}})
    return volumes


def _workspace_size(spec: SandboxSpec, settings: Settings) -> str:
    empty_dir = spec.workspace and spec.workspace.empty_dir
    return (empty_dir and empty_dir.size_limit) or settings.default_workspace_size_limit


def _projected(plan: MaterializePlan) -> dict[str, Any]:
    # Optional, so that what is missing fails with the entry's name instead of a pod that never starts.
    return {
        "defaultMode": 0o440,
        "sources": [
            {
                source.kind: {
                    "name": source.name,
                    "items": [{"key": key, "path": path} for key, path in source.items],
                    "optional": True,
                }
            }
            for source in plan.sources
        ],
    }
