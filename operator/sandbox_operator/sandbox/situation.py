"""What the facts of one sandbox say together: readings that decisions are made of. Pure."""

from typing import Any

from sandbox_api.kube import Object
from sandbox_api.v1alpha1 import ConditionType, Egress, Reason

from sandbox_operator.settings import Settings

from . import names
from .diagnose import MATERIALIZE_REASONS, PodState, Problem
from .observe import Observation
from .status import find

#: Failures of a start that end it until the spec changes.
_FINAL = frozenset({*MATERIALIZE_REASONS, Reason.INVALID_IMAGE, Reason.START_TIMEOUT})
_LOSSES = frozenset({Reason.POD_LOST, Reason.EVICTED, Reason.NODE_LOST})


class Situation:
    """An observation at a moment.

    Args:
        obs: What is known.
        now: Seconds since the epoch.
        settings: The administrator's.
    """

    def __init__(self, obs: Observation, now: float, settings: Settings) -> None:
        self.obs = obs
        self.view = obs.view
        self.status = obs.view.status
        self.memory = obs.memory
        self.now = now
        self.settings = settings
        self.pod = self._current_pod()
        """The pod of the present incarnation, if it exists."""

    def _current_pod(self) -> Object | None:
        name = names.pod_name(self.view.name, self.view.uid, self.view.presumed)
        known = self.status.get("podUID")
        for pod in self.obs.pods:
            if pod["metadata"]["name"] == name:
                return pod if known in (None, pod["metadata"].get("uid")) else None
        return None

    def given_up(self) -> bool:
        """Whether this spec has been tried and found to fail for good."""
        stalled = find(self.status, ConditionType.STALLED)
        return self.ended() and stalled.get("observedGeneration") == self.view.generation

    def ended(self) -> bool:
        """Whether the present incarnation was given up, for this spec or an earlier one."""
        stalled = find(self.status, ConditionType.STALLED)
        return (
            stalled.get("status") == "True" and stalled.get("reason") in _FINAL and self.view.incarnation > 0
        )

    def loss(self) -> Problem | None:
        """The loss that the status speaks of."""
        failure = self.status.get("failure") or {}
        if failure.get("reason") not in _LOSSES:
            return None
        return Problem(Reason(failure["reason"]), str(failure.get("message") or ""), True)

    def pod_fields(self, pod: Object, state: PodState) -> dict[str, Any]:
        """Fields that follow from the pod."""
        fields: dict[str, Any] = {
            "podUID": pod["metadata"]["uid"],
            "podName": pod["metadata"]["name"],
        }
        if state.restarts or state.usable:
            fields["restarts"] = state.restarts
        if state.receipt is not None:
            fields["materialized"] = state.receipt
        return fields

    def told(self, problem: Problem) -> bool:
        """Whether the status speaks of a problem already."""
        return bool((self.status.get("failure") or {}).get("reason") == problem.reason)

    def spec_fields(self) -> dict[str, Any]:
        """Fields that follow from the spec alone."""
        said = (self.view.spec.get("network") or {}).get("egress")
        egress = next((known for known in Egress if known.value == said), None)
        if said is None:
            egress = self.settings.default_egress
        ports = self.view.spec.get("ports")
        return {
            **self.network_field(egress),
            "serviceName": names.lasting_name(self.view.name, self.view.uid) if ports else None,
        }

    def first_fields(self) -> dict[str, Any]:
        """Fields of the first incarnation, whose pod is made before the status speaks of it."""
        if self.pod is None or self.view.incarnation:
            return {}
        metadata = self.pod["metadata"]
        generation = (metadata.get("annotations") or {}).get(names.ANNOTATION_GENERATION) or ""
        return {
            "incarnation": self.view.presumed,
            "podName": metadata["name"],
            "podGeneration": int(generation) if generation.isdecimal() else self.view.generation,
        }

    def egress_of(self, pod: Object) -> Egress | None:
        """The class that a pod's label names."""
        label = (pod["metadata"].get("labels") or {}).get(names.LABEL_EGRESS)
        return next((known for known in Egress if known.value.lower() == label), None)

    def network_field(self, egress: Egress | None) -> dict[str, Any]:
        """What can be said of a class of egress; None: the fence does not stand."""
        known = egress.value if egress and self.settings.network_policies_enforced else "Unknown"
        return {"network": {"egress": known}}
