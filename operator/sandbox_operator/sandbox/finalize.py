"""The end of a sandbox: its pods are deleted, and it is let go when they are gone, or when they never will be. Pure.

Everything else that it owns is left to the garbage collector; pods are not, since that collects 20 a
second. A namespace that is being deleted ends its pods before it tells us, and takes the same way.
"""

from sandbox_api.kube import PODS, Object
from sandbox_api.v1alpha1 import Reason

from sandbox_operator.durations import parse_time

from .diagnose import Problem
from .observe import Observation
from .status import Verdict, render, worth_writing
from .steps import Decision, DeleteChild, RemoveFinalizer, Step, Tell

#: A pod that still exists this long after its grace is over will not go by itself: its node is dead.
SLACK = 30.0
#: After this much of it the status says so.
SAY_AFTER = 5.0


def plan_deletion(obs: Observation, now: float) -> Decision:
    """What a sandbox with a deletion timestamp needs."""
    view = obs.view
    if not view.guarded:
        return Decision()
    steps: list[Step] = [
        DeleteChild(PODS, pod["metadata"]["name"], pod["metadata"]["uid"])
        for pod in obs.pods
        if not pod["metadata"].get("deletionTimestamp")
    ]
    if steps:
        return Decision(steps=tuple(steps), again=SLACK)
    late = [now - parse_time(pod["metadata"]["deletionTimestamp"]) for pod in obs.pods]
    if not late:
        return Decision(steps=(RemoveFinalizer(),))
    if min(late) >= SLACK:
        note = f"Pod {_first(obs.pods)} did not end in time; it is left to the cluster."
        return Decision(
            steps=(Tell(Reason.TERMINATING, note, warning=True, action="Release"), RemoveFinalizer())
        )
    if max(late) < SAY_AFTER:
        return Decision(again=max(0.1, SAY_AFTER - max(late)))
    problem = Problem(Reason.TERMINATING, f"Pod {_first(obs.pods)} does not end; its node may be lost.", True)
    verdict = Verdict(False, Reason.TERMINATING, problem.message, Reason.TERMINATING, problem=problem)
    status = render(verdict, view.status, view.generation, now)
    return Decision(
        status=status if worth_writing(view.status, status) else None,
        again=max(0.1, SLACK - min(late)),
    )


def _first(pods: tuple[Object, ...]) -> str:
    return str(pods[0]["metadata"]["name"])
