"""The decision: what is known of a sandbox in, what is to be done out. Pure, so that tables can test it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sandbox_api.kube import PODS, Object
from sandbox_api.v1alpha1 import Reason, SandboxSpec

from sandbox_operator.durations import format_time, in_words, parse_time
from sandbox_operator.settings import Settings

from . import names
from .children import fences, labels, publication, strays
from .diagnose import PodState, Problem, diagnose
from .expiry import expires_at, start_timeout
from .finalize import plan_deletion
from .observe import Observation
from .pod import render_pod
from .situation import Situation
from .spec_digest import changed_fields
from .status import Verdict, render, worth_writing
from .steps import CreatePod, Decision, DeleteChild, DeleteSandbox, Ensure, FindPod, Step, Tell
from .validate import check_spec, parse_spec

#: A start that takes longer says in its status what it is busy with.
SLOW_START = 10.0
#: Fields of the status that speak of one incarnation.
_OF_INCARNATION = ("podUID", "startedAt", "restarts", "materialized")


def plan(obs: Observation, now: float, settings: Settings) -> Decision:
    """Decide.

    Args:
        obs: What is known.
        now: Seconds since the epoch.
        settings: The administrator's.
    """
    if obs.view.deleting:
        return plan_deletion(obs, now)
    return _Plan(obs, now, settings).decide()


class _Plan(Situation):
    """One decision about a sandbox that is to live."""

    def __init__(self, obs: Observation, now: float, settings: Settings) -> None:
        super().__init__(obs, now, settings)
        self.steps: list[Step] = []
        self.again: list[float] = []

    def decide(self) -> Decision:
        view = self.view
        lifecycle = view.spec.get("lifecycle") or {}
        ends = expires_at(view.created, lifecycle.get("ttl"))
        if ends is not None:
            if self.now >= ends:
                note = f"Its ttl of {lifecycle['ttl']} is over."
                return Decision(
                    steps=(Tell(Reason.EXPIRED, note, warning=False, action="Delete"), DeleteSandbox())
                )
            self.again.append(ends)
        spec, problem = parse_spec(view.spec)
        if spec is not None:
            problem = check_spec(spec, self.settings)
        pod = self.pod
        self.steps += strays(self.obs, pod)
        if spec is None or problem is not None:
            return self._unacceptable(spec, problem, pod)
        if pod is None:
            return self._without_pod(spec)
        return self._with_pod(spec, pod)

    # -- the pod

    def _without_pod(self, spec: SandboxSpec) -> Decision:
        """No pod of the present incarnation: the first start, a pod that vanished, or one that is not to be."""
        if self.given_up():
            return self._decision(None)
        if waiting := self._awaiting_secret(spec):
            return waiting
        known = self.status.get("podUID")
        if known is not None and known != self.memory.gone_pod:
            return Decision(steps=(FindPod(str(self.status.get("podName")), str(known)),))
        vanished = known is not None
        problem = Problem(Reason.POD_LOST, "The pod is gone.", True) if vanished else None
        # Without a pod's UID in the status this incarnation's pod has never been seen to live: it is posted
        # (again).
        same = not vanished and not self.ended()
        return self._start(spec, self.view.presumed if same else self.view.presumed + 1, problem)

    def _with_pod(self, spec: SandboxSpec, pod: Object) -> Decision:
        state = diagnose(pod)
        recorded = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_SPEC_DIGEST, "")
        outdated = changed_fields(recorded, self.view.spec)
        started = self.status.get("startedAt") is not None
        if state.over:
            if self.given_up():
                return self._decision(None)
            return self._start(spec, self.view.presumed + 1, state.problem)
        if outdated and not started and not state.usable:
            # Nothing is lost with a pod that never came up, and the change may be the remedy.
            self._delete(pod)
            return self._start(spec, self.view.presumed + 1, None)
        if state.usable or started:
            return self._running(spec, pod, state, outdated)
        return self._starting(spec, pod, state)

    # -- starting

    def _start(self, spec: SandboxSpec, incarnation: int, why: Problem | None) -> Decision:
        """Start an incarnation, now or when it is time."""
        refusal = self.memory.refusal
        if refusal is not None and refusal.generation == self.view.generation:
            if refusal.retry_at is None or self.now < refusal.retry_at:
                return self._refused(incarnation, refusal.problem, refusal.retry_at)
            why = refusal.problem
        at = self.memory.may_start_at()
        if at > self.now:
            problem = why or Problem(Reason.POD_LOST, "The pod was lost.", True)
            self.again.append(at)
            message = f"{problem.message} A new one starts in {in_words(max(1, at - self.now))}."
            return self._decision(
                Verdict(False, problem.reason, message, problem.reason, problem=problem), steps=self.steps
            )
        body, config_map = render_pod(self.view, spec, self.settings, incarnation)
        steps = [*self.steps, *self._surroundings(spec), CreatePod(body, config_map)]
        if incarnation == 1 and self.view.incarnation == 0:
            # The number of the first needs no note to be found again, so that its pod need not wait for one.
            return self._decision(None, steps=steps, guard=True, look_again=True)
        reason = why.reason if why is not None else Reason.STARTING
        message = why.message if why is not None else "The pod is being started."
        fields: dict[str, Any] = dict.fromkeys(_OF_INCARNATION)
        fields |= {
            "incarnation": incarnation,
            "podName": body["metadata"]["name"],
            "podGeneration": self.view.generation,
        }
        self.again.append(self.now + SLOW_START)
        verdict = Verdict(False, reason, message, reason, problem=why, fields=fields)
        return self._decision(verdict, steps=steps, guard=True)

    def _refused(self, incarnation: int, problem: Problem, retry_at: float | None) -> Decision:
        if retry_at is not None:
            self.again.append(retry_at)
        fields = dict.fromkeys(_OF_INCARNATION) if incarnation != self.view.incarnation else {}
        verdict = Verdict(
            False,
            problem.reason,
            problem.message,
            problem.reason,
            stalled=not problem.retryable,
            problem=problem,
            fields=fields,
        )
        return self._decision(verdict, steps=self.steps)

    def _starting(self, spec: SandboxSpec, pod: Object, state: PodState) -> Decision:
        """A pod that has not come up yet."""
        if state.fatal and state.problem is not None:
            self._delete(pod)
            return self._give_up(state.problem)
        limit = start_timeout(spec, self.settings)
        created = parse_time(pod["metadata"]["creationTimestamp"])
        if self.now >= created + limit:
            self._delete(pod)
            cause = f": {state.problem.message}" if state.problem else "."
            message = f"The start took longer than {in_words(limit)}{cause}"
            entry = state.problem.entry if state.problem else None
            return self._give_up(Problem(Reason.START_TIMEOUT, message, True, entry))
        self.again.append(created + limit)
        slow = self.now - created >= SLOW_START
        if not slow:
            self.again.append(created + SLOW_START)
        fields = self.pod_fields(pod, state)
        around, refused = self._around(spec, pod, fields)
        # Why the last pod was lost stays until this one is up.
        problem = state.problem or refused or self.loss()
        reason = problem.reason if problem else state.progress
        message = problem.message if problem else _PROGRESS.get(state.progress, "The pod is being started.")
        verdict = Verdict(False, reason, message, reason, problem=problem, fields=fields)
        steps = [*self.steps, *around]
        return self._decision(verdict, steps=steps, guard=True, progress=slow)

    def _awaiting_secret(self, spec: SandboxSpec) -> Decision | None:
        secret = self.view.annotation(names.ANNOTATION_AWAITING_SECRET)
        if not secret or self.view.incarnation > 0:
            return None
        limit = start_timeout(spec, self.settings)
        message = f"The client has yet to create the Secret {secret!r} that the spec names."
        reason = Reason.AWAITING_SECRET
        if self.now < self.view.created + limit:
            self.again.append(self.view.created + limit)
            return self._decision(Verdict(False, reason, message, reason), steps=self.steps)
        message = f"The start took longer than {in_words(limit)}: {message}"
        problem = Problem(Reason.START_TIMEOUT, message, True)
        verdict = Verdict(False, problem.reason, message, reason, stalled=True, problem=problem)
        return self._decision(verdict, steps=self.steps)

    # -- running

    def _running(self, spec: SandboxSpec, pod: Object, state: PodState, outdated: list[str]) -> Decision:
        """A pod that is up, or was and is coming back."""
        fields = self.pod_fields(pod, state)
        uid = pod["metadata"]["uid"]
        uploaded = self.view.annotation(names.ANNOTATION_UPLOADED) == uid
        waits = _awaits_upload(self.view.spec) and not uploaded
        around, refused = self._around(spec, pod, fields)
        steps = [*self.steps, *around]
        if state.usable:
            fields["startedAt"] = self.status.get("startedAt") or format_time(self.now)
        if state.usable and not waits:
            verdict = Verdict(
                True,
                Reason.AVAILABLE,
                "The workspace can be used.",
                Reason.MATERIALIZED,
                tuple(outdated),
                problem=refused,
                fields=fields,
            )
            if state.restarted_by is not None and state.restarts > int(self.status.get("restarts") or 0):
                note = f"{state.restarted_by.message} It was started again."
                steps.append(Tell(state.restarted_by.reason, note, warning=True, action="Restart"))
        elif state.usable:
            message = f"The client has yet to send files to pod {pod['metadata']['name']}."
            reason = Reason.AWAITING_UPLOAD
            verdict = Verdict(False, reason, message, reason, tuple(outdated), problem=refused, fields=fields)
        else:
            problem = state.problem or refused
            reason = problem.reason if problem else state.progress
            message = problem.message if problem else "The workspace container is being started again."
            whole = Reason.MATERIALIZED if state.filled and not waits else reason
            verdict = Verdict(False, reason, message, whole, tuple(outdated), problem=problem, fields=fields)
        return self._decision(verdict, steps=steps, guard=True)

    # -- giving up

    def _unacceptable(
        self, spec: SandboxSpec | None, problem: Problem | None, pod: Object | None
    ) -> Decision:
        """A spec that cannot be taken: a running pod goes on, and nothing new is started."""
        problem = problem or Problem(Reason.INVALID_SPEC, "The spec cannot be read.", False)
        if pod is not None:
            state = diagnose(pod)
            if state.usable:
                # Nothing of the new spec is in force, its egress neither.
                egress = self.egress_of(pod)
                fields = {
                    "podUID": pod["metadata"]["uid"],
                    "restarts": state.restarts,
                    **self.network_field(egress),
                }
                around, refused = self._unless_refused(
                    fences(self.obs, egress, self.settings) if egress else [], fields
                )
                verdict = Verdict(
                    True,
                    Reason.AVAILABLE,
                    "The workspace can be used.",
                    Reason.MATERIALIZED,
                    outdated_problem=problem,
                    problem=refused,
                    fields=fields,
                )
                return self._decision(verdict, steps=[*self.steps, *around])
            if not state.over and self.status.get("startedAt") is None:
                self._delete(pod)
        verdict = Verdict(
            False, problem.reason, problem.message, problem.reason, stalled=True, problem=problem
        )
        return self._decision(verdict, steps=self.steps)

    def _give_up(self, problem: Problem) -> Decision:
        verdict = Verdict(
            False,
            problem.reason,
            problem.message,
            problem.reason,
            stalled=True,
            problem=problem,
            fields=dict.fromkeys(_OF_INCARNATION),
        )
        return self._decision(verdict, steps=self.steps)

    # -- parts

    def _surroundings(self, spec: SandboxSpec) -> list[Step]:
        egress = (spec.network and spec.network.egress) or self.settings.default_egress
        return [*fences(self.obs, egress, self.settings), *publication(self.obs, spec)]

    def _around(
        self, spec: SandboxSpec, pod: Object, fields: dict[str, Any]
    ) -> tuple[list[Step], Problem | None]:
        """What a pod is to have around it and its labels, and why that cannot be, where it cannot be."""
        return self._unless_refused(
            self._surroundings(spec), fields, then=labels(self.obs, spec, self.settings, pod)
        )

    def _unless_refused(
        self, around: list[Step], fields: dict[str, Any], then: Sequence[Step] = ()
    ) -> tuple[list[Step], Problem | None]:
        """Steps around a pod, when it is time for them, and why the last try was refused."""
        refusal = self.memory.refusal
        if not around or refusal is None or refusal.generation != self.view.generation:
            return [*around, *then], None
        if any(isinstance(step, Ensure) and not step.owned for step in around):
            fields |= self.network_field(None)
        if refusal.retry_at is not None and self.now >= refusal.retry_at:
            self.again.append(self.now + 1.0)  # to take the problem back
            return [*around, *then], refusal.problem
        if refusal.retry_at is not None:
            self.again.append(refusal.retry_at)
        return [], refusal.problem

    def _delete(self, pod: Object) -> None:
        self.steps.append(DeleteChild(PODS, pod["metadata"]["name"], pod["metadata"]["uid"]))

    def _decision(
        self,
        verdict: Verdict | None,
        *,
        steps: list[Step] | None = None,
        guard: bool = False,
        progress: bool = False,
        look_again: bool = False,
    ) -> Decision:
        status = None
        steps = list(self.steps if steps is None else steps)
        if verdict is not None:
            verdict = replace(verdict, fields={**self.spec_fields(), **self.first_fields(), **verdict.fields})
            status = render(verdict, self.status, self.view.generation, self.now)
            if not worth_writing(self.status, status, progress=progress):
                status = None
            elif verdict.problem is not None and not self.told(verdict.problem):
                steps.append(
                    Tell(verdict.problem.reason, verdict.problem.message, warning=True, action="Reconcile")
                )
        return Decision(
            guard=guard and not self.view.guarded,
            status=status,
            steps=tuple(steps),
            look_again=look_again,
            again=max(0.05, min(self.again) - self.now) if self.again else None,
        )


_PROGRESS = {
    Reason.SCHEDULING: "The pod waits for a node.",
    Reason.MATERIALIZING: "The workspace is being filled.",
    Reason.STARTING: "The pod is being started.",
}


def _awaits_upload(spec: dict[str, Any]) -> bool:
    entries = (spec.get("manifest") or {}).get("entries") or {}
    return any("localFile" in entry or "localDir" in entry for entry in entries.values())
