"""What stands around a pod: fences, published ports, labels, and what earlier incarnations left. Pure."""

from sandbox_api.kube import CONFIG_MAPS, NETWORK_POLICIES, PODS, SERVICES, Object
from sandbox_api.v1alpha1 import Egress, SandboxSpec

from sandbox_operator.settings import Settings

from . import names
from .network import covers, ports_policy, shared_policies, stands
from .observe import Observation
from .pod import pod_labels
from .service import render_service
from .steps import DeleteChild, Ensure, LabelPod, Step


def strays(obs: Observation, current: Object | None) -> list[Step]:
    """Pods of earlier incarnations are deleted, and what they needed."""
    view = obs.view
    present = names.pod_name(view.name, view.uid, view.presumed)
    found = [(PODS, pod) for pod in obs.pods if pod is not current]
    found += [(CONFIG_MAPS, item) for item in obs.config_maps if item["metadata"]["name"] != present]
    return [
        DeleteChild(resource, item["metadata"]["name"], item["metadata"]["uid"])
        for resource, item in found
        if not item["metadata"].get("deletionTimestamp")
    ]


def fences(obs: Observation, egress: Egress, settings: Settings) -> list[Step]:
    """The shared policies that a class of egress relies on, where they are missing or differ."""
    return [
        Ensure(NETWORK_POLICIES, policy, owned=False)
        for policy in shared_policies(obs.view.namespace, egress, settings)
        if not stands(NETWORK_POLICIES, policy, obs.shared_policies.get(policy["metadata"]["name"]))
    ]


def publication(obs: Observation, spec: SandboxSpec) -> list[Step]:
    """Service and policy of the published ports, or their removal."""
    steps: list[Step] = []
    for resource, present, make in (
        (SERVICES, obs.services, render_service),
        (NETWORK_POLICIES, obs.own_policies, ports_policy),
    ):
        body = make(obs.view, spec.ports) if spec.ports else None
        name = body["metadata"]["name"] if body else None
        standing = next((item for item in present if item["metadata"]["name"] == name), None)
        if body is not None and not stands(resource, body, standing):
            steps.append(Ensure(resource, body, owned=True))
        steps += [
            DeleteChild(resource, item["metadata"]["name"], item["metadata"]["uid"])
            for item in present
            if item is not standing and not item["metadata"].get("deletionTimestamp")
        ]
    return steps


def labels(obs: Observation, spec: SandboxSpec, settings: Settings, pod: Object) -> list[Step]:
    """Labels of the pod that are not what policies select by: egress changed, or somebody else wrote them."""
    wanted = pod_labels(obs.view, spec, settings)
    if covers(wanted, pod["metadata"].get("labels") or {}):
        return []
    return [LabelPod(pod["metadata"]["name"], pod["metadata"]["uid"], wanted)]
