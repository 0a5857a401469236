"""A table of situations, and what is decided in each."""

from dataclasses import replace
from typing import Any

import pytest
from sandbox_api.v1alpha1 import Egress, Reason
from sandbox_operator.durations import format_time
from sandbox_operator.sandbox.diagnose import Problem
from sandbox_operator.sandbox.memory import Memory
from sandbox_operator.sandbox.names import ANNOTATION_GENERATION, FINALIZER, pod_name
from sandbox_operator.sandbox.network import shared_policies
from sandbox_operator.sandbox.plan import plan
from sandbox_operator.sandbox.steps import (
    CreatePod,
    Decision,
    DeleteChild,
    DeleteSandbox,
    Ensure,
    FindPod,
    LabelPod,
    RemoveFinalizer,
    Step,
    Tell,
)

from .operator_objects import (
    NOW,
    POD_UID,
    SETTINGS,
    UID,
    conditions,
    container,
    ended,
    observation,
    pod,
    pod_status,
    running,
    sandbox,
    started,
)

GUARDED = {"finalizers": [FINALIZER]}
UPLOAD = {"manifest": {"entries": {"d": {"localDir": {}}}}}


def kinds(decision: Decision) -> list[type[Step]]:
    return [type(step) for step in decision.steps if not isinstance(step, Tell)]


def decide(box: dict[str, Any], *pods: dict[str, Any], now: float = NOW + 1, **more: Any) -> Decision:
    return plan(observation(box, *pods, **more), now, SETTINGS)


def settled(box: dict[str, Any], *pods: dict[str, Any], now: float = NOW + 1) -> dict[str, Any]:
    """The sandbox once the decision's status is written, which for a new one speaks of the pod that was made."""
    decision = decide(box, *pods, now=now)
    if decision.look_again:
        decision = decide(box, pod(spec=box["spec"]), now=now)
    assert decision.status is not None
    return {**box, "status": decision.status}


def failed_init(reason: str, *, retryable: bool) -> dict[str, Any]:
    message = f'{{"reason": "{reason}", "message": "m", "entry": "e", "retryable": {str(retryable).lower()}}}'
    return pod_status(container("materialize", terminated=ended(1, message)))


# -- the start


def test_a_new_sandbox_gets_finalizer_fences_and_pod_in_this_order_and_then_the_status_of_that_pod() -> None:
    decision = decide(sandbox(), fenced=False)
    assert decision.guard
    assert decision.status is None
    assert kinds(decision) == [Ensure, Ensure, CreatePod]
    assert decision.look_again
    decision = decide(sandbox(**GUARDED), pod())
    assert not decision.look_again
    assert decision.status is not None
    first = {"incarnation": 1, "podName": pod_name("box", UID, 1), "podUID": POD_UID, "podGeneration": 1}
    assert decision.status | first == decision.status
    assert conditions(decision.status)["Ready"] == ("False", "Starting")


def test_a_later_incarnation_is_in_the_status_before_its_pod_is_posted() -> None:
    box = settled(sandbox(**GUARDED))
    decision = decide(box, pod(pod_status(phase="Failed", reason="Evicted")))
    assert decision.status is not None
    assert decision.status["incarnation"] == 2
    assert "podUID" not in decision.status
    assert kinds(decision)[-1] is CreatePod
    assert not decision.look_again


def test_the_first_pod_is_told_from_its_generation_though_the_spec_has_changed_before_the_status() -> None:
    decision = decide(sandbox({"image": "b"}, generation=2, **GUARDED), pod(running(), spec={"image": "a"}))
    assert decision.status is not None
    assert decision.status["podGeneration"] == 1
    assert decision.status["observedGeneration"] == 2
    assert conditions(decision.status)["UpToDate"] == ("False", "RestartRequired")


@pytest.mark.parametrize("generation", ["", "one", "-1", "²"])
def test_a_generation_on_the_pod_that_is_none_is_not_believed(generation: str) -> None:
    first = pod(running())
    first["metadata"]["annotations"] |= {ANNOTATION_GENERATION: generation}
    decision = decide(sandbox(generation=3, **GUARDED), first)
    assert decision.status is not None
    assert decision.status["podGeneration"] == 3


def test_the_first_pod_that_was_lost_before_the_status_spoke_of_it_is_made_again() -> None:
    decision = decide(sandbox(**GUARDED), memory=Memory())
    [step] = decision.steps
    assert isinstance(step, CreatePod)
    assert step.body["metadata"]["name"] == pod_name("box", UID, 1)


def test_the_first_pod_that_ends_before_the_status_spoke_of_it_is_followed_by_the_second() -> None:
    decision = decide(sandbox(**GUARDED), pod(running(), deletionTimestamp=format_time(NOW)))
    assert decision.status is not None
    assert decision.status["incarnation"] == 2
    [step] = [step for step in decision.steps if not isinstance(step, Tell)]
    assert isinstance(step, CreatePod)
    assert step.body["metadata"]["name"] == pod_name("box", UID, 2)


def test_a_first_pod_that_fails_before_the_status_spoke_of_it_is_not_tried_again() -> None:
    decision = decide(sandbox(**GUARDED), pod(failed_init("GitRefNotFound", retryable=False)))
    assert decision.status is not None
    assert conditions(decision.status)["Stalled"] == ("True", "GitRefNotFound")
    box = sandbox(status=decision.status, **GUARDED)
    assert decide(box) == Decision(again=None)


def test_ports_are_published_before_the_pod_exists() -> None:
    box = sandbox({"ports": [80]}, **GUARDED)
    assert kinds(decide(box)) == [Ensure, Ensure, CreatePod]
    assert settled(box)["status"]["serviceName"]


def test_an_incarnation_in_status_whose_pod_was_never_posted_is_posted_and_not_counted_again() -> None:
    box = settled(sandbox(status={"incarnation": 2}, **GUARDED))
    decision = decide(box)
    assert decision.status is None
    assert not decision.guard
    [step] = decision.steps
    assert isinstance(step, CreatePod)
    assert step.body["metadata"]["name"] == pod_name("box", UID, 2)


@pytest.mark.parametrize(
    "status",
    [
        None,
        pod_status(container("materialize", running={})),
        pod_status(container("materialize", terminated=ended(0, "{}")), container("workspace", waiting={})),
    ],
)
def test_the_steps_of_a_start_are_worth_no_write(status: dict[str, Any] | None) -> None:
    box = settled(sandbox(**GUARDED))
    assert decide(box, pod(status)).status is None


def test_a_slow_start_says_what_it_is_busy_with() -> None:
    box = settled(sandbox(**GUARDED))
    decision = decide(box, pod(pod_status(container("materialize", running={}))), now=NOW + 11)
    assert decision.status is not None
    assert conditions(decision.status)["Ready"] == ("False", "Materializing")


def test_a_running_pod_makes_it_ready_and_at_rest() -> None:
    decision = decide(settled(sandbox(**GUARDED)), pod(running()))
    assert decision.status is not None
    assert conditions(decision.status) == {
        "Ready": ("True", "Available"),
        "Available": ("True", "Available"),
        "WorkspaceReady": ("True", "Materialized"),
        "UpToDate": ("True", "UpToDate"),
        "Reconciling": ("False", "AtRest"),
        "Stalled": ("False", "AtRest"),
    }
    assert decision.status["podUID"] == POD_UID
    assert decision.status["network"] == {"egress": "Internet"}
    assert decision.steps == ()


def test_a_converged_sandbox_needs_nothing_and_no_waking() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    assert decide(box, pod(running()), now=NOW + 1000) == Decision()


def test_a_missing_finalizer_is_put_back() -> None:
    box = settled(settled(sandbox()), pod(running()))
    assert decide(box, pod(running())).guard


# -- waiting


def test_an_awaited_secret_holds_the_start_back() -> None:
    box = sandbox(annotations={"sandbox-operator.dev/awaiting-secret": "s"})
    decision = decide(box)
    assert kinds(decision) == []
    assert decision.status is not None
    assert conditions(decision.status)["WorkspaceReady"] == ("False", "AwaitingSecret")
    late = decide(box, now=NOW + 301)
    assert late.status is not None
    assert late.status["failure"]["reason"] == "StartTimeout"
    # The client comes at last: its removal of the annotation is no change of the spec.
    assert kinds(decide({**sandbox(), "status": late.status}, now=NOW + 302)) == [CreatePod]


def test_an_awaited_upload_holds_available_back_until_it_names_this_pod() -> None:
    box = settled(sandbox(UPLOAD, **GUARDED))
    made = pod(running(), spec=UPLOAD)
    decision = decide(box, made)
    assert decision.status is not None
    for kind in ("Ready", "Available", "WorkspaceReady"):
        assert conditions(decision.status)[kind] == ("False", "AwaitingUpload")
    other = {
        **box,
        "metadata": {**box["metadata"], "annotations": {"sandbox-operator.dev/uploaded": "other"}},
    }
    assert conditions(settled(other, made)["status"])["Ready"][0] == "False"
    mine = {**box, "metadata": {**box["metadata"], "annotations": {"sandbox-operator.dev/uploaded": POD_UID}}}
    assert conditions(settled(mine, made)["status"])["Ready"] == ("True", "Available")


def test_an_upload_may_take_longer_than_a_start() -> None:
    box = settled(settled(sandbox(UPLOAD, **GUARDED)), pod(running(), spec=UPLOAD))
    assert decide(box, pod(running(), spec=UPLOAD), now=NOW + 4000).steps == ()


# -- failures


def test_a_retryable_failure_is_left_to_the_kubelet_and_shown() -> None:
    box = settled(sandbox(**GUARDED))
    decision = decide(box, pod(failed_init("GitHostUnreachable", retryable=True)))
    assert kinds(decision) == []
    assert decision.status is not None
    assert decision.status["failure"] == {
        "reason": "GitHostUnreachable",
        "message": "m",
        "entry": "e",
        "retryable": True,
    }
    assert conditions(decision.status)["Reconciling"] == ("True", "GitHostUnreachable")
    assert [step.reason for step in decision.steps if isinstance(step, Tell)] == [Reason.GIT_HOST_UNREACHABLE]


def test_a_failure_that_was_shown_is_not_written_again() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(failed_init("GitHostUnreachable", retryable=True)))
    decision = decide(box, pod(failed_init("GitHostUnreachable", retryable=True)))
    assert decision.status is None
    assert decision.steps == ()


def test_a_final_failure_ends_the_attempt_until_the_spec_changes() -> None:
    box = settled(sandbox(**GUARDED))
    broken = pod(failed_init("GitRefNotFound", retryable=False))
    decision = decide(box, broken)
    assert kinds(decision) == [DeleteChild]
    assert decision.status is not None
    assert conditions(decision.status)["Stalled"] == ("True", "GitRefNotFound")
    assert conditions(decision.status)["Reconciling"] == ("False", "AtRest")
    given_up = {**box, "status": decision.status}
    assert decide(given_up, now=NOW + 9999) == Decision(), (
        "neither time nor a restart is a reason to try again"
    )
    changed = {**given_up, "metadata": {**given_up["metadata"], "generation": 2}}
    again = decide(changed)
    assert kinds(again) == [CreatePod]
    assert again.status is not None
    assert again.status["incarnation"] == 2
    assert "failure" not in again.status


def test_a_start_that_takes_too_long_names_what_it_hung_on() -> None:
    box = settled(sandbox({"lifecycle": {"startTimeout": "30s"}}, **GUARDED))
    waiting = pod_status(
        workspace=container("workspace", waiting={"reason": "ErrImagePull", "message": "no such image"})
    )
    decision = decide(box, pod(waiting, spec=box["spec"]), now=NOW + 30)
    assert kinds(decision) == [DeleteChild]
    assert decision.status is not None
    assert decision.status["failure"]["reason"] == "StartTimeout"
    assert "30s" in decision.status["failure"]["message"]
    assert "no such image" in decision.status["failure"]["message"]


def test_a_running_workspace_is_not_subject_to_the_start_timeout() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    crashed = pod_status(
        workspace=container("workspace", restarts=1, last=ended(3), waiting={"reason": "CrashLoopBackOff"})
    )
    decision = decide(box, pod(crashed), now=NOW + 9999)
    assert kinds(decision) == []
    assert decision.status is not None
    assert decision.status["failure"]["reason"] == "WorkspaceExited"
    assert decision.status["restarts"] == 1


@pytest.mark.parametrize(
    ("retryable", "stalled"),
    [pytest.param(True, "False", id="quota"), pytest.param(False, "True", id="invalid")],
)
def test_a_refused_pod_is_said_and_tried_again_only_where_that_may_help(
    retryable: bool, stalled: str
) -> None:
    memory = Memory()
    memory.refused(Problem(Reason.QUOTA_EXCEEDED, "full", retryable), 1, NOW)
    box = sandbox(**GUARDED)
    decision = decide(box, memory=memory)
    assert kinds(decision) == []
    assert decision.status is not None
    assert conditions(decision.status)["Stalled"][0] == stalled
    assert kinds(decide(box, memory=memory, now=NOW + 100)) == ([CreatePod] if retryable else [])
    changed = {**box, "metadata": {**box["metadata"], "generation": 2}}
    assert kinds(decide(changed, memory=memory)) == [CreatePod]


@pytest.mark.parametrize("state", [pod(running()), pod({})], ids=["running", "starting"])
def test_a_refused_fence_is_said_of_a_living_pod_and_tried_again_in_time(state: dict[str, Any]) -> None:
    box = settled(sandbox(**GUARDED))
    if state["status"]["containerStatuses"]:
        box = settled(box, state)
    memory = Memory()
    assert kinds(decide(box, state, memory=memory, fenced=False)) == [Ensure, Ensure]
    memory.refused(Problem(Reason.NAME_CONFLICT, "taken", True), 1, NOW)
    decision = decide(box, state, memory=memory, fenced=False)
    assert kinds(decision) == []
    assert decision.again is not None
    assert decision.again <= 60
    assert decision.status is not None
    assert decision.status["failure"]["reason"] == "NameConflict"
    assert decision.status["network"] == {"egress": "Unknown"}
    told = {**box, "status": decision.status}
    assert kinds(decide(told, state, memory=memory, fenced=False, now=NOW + 100)) == [Ensure, Ensure]
    over = decide(told, state, memory=memory)
    assert over.status is not None
    assert "failure" not in over.status
    assert over.status["network"] == {"egress": "Internet"}


def test_refusals_come_ever_more_slowly() -> None:
    memory = Memory()
    pauses = []
    for _ in range(8):
        memory.refused(Problem(Reason.QUOTA_EXCEEDED, "full", True), 1, NOW)
        assert memory.refusal is not None
        assert memory.refusal.retry_at is not None
        pauses.append(memory.refusal.retry_at - NOW)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60


# -- losses


def test_a_pod_that_vanished_is_looked_for_before_it_is_replaced() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    assert decide(box).steps == (FindPod(pod_name("box", UID, 1), POD_UID),)
    decision = decide(box, memory=Memory(gone_pod=POD_UID))
    assert kinds(decision) == [CreatePod]
    assert decision.status is not None
    assert decision.status["incarnation"] == 2
    assert decision.status["failure"]["reason"] == "PodLost"
    for field in ("podUID", "startedAt", "restarts", "materialized"):
        assert field not in decision.status


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (running() | {"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({"phase": "Failed", "reason": "NodeLost"}, "NodeLost"),
        ({"phase": "Succeeded"}, "PodLost"),
    ],
)
def test_a_pod_that_is_over_is_replaced_at_once(status: dict[str, Any], reason: str) -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    decision = decide(box, pod(status))
    assert kinds(decision) == [CreatePod]
    assert decision.status is not None
    assert decision.status["failure"]["reason"] == reason
    assert conditions(decision.status)["Available"][0] == "False"
    after = {**box, "status": decision.status}
    assert kinds(decide(after, pod(status))) == [DeleteChild, CreatePod], "what is left of the old one goes"


def test_why_the_last_pod_was_lost_stays_until_the_new_one_is_up() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    lost = decide(box, memory=Memory(gone_pod=POD_UID))
    assert lost.status is not None
    box = {**box, "status": lost.status}
    fresh = pod(uid="new", incarnation=2)
    assert decide(box, fresh).status is None
    up = decide(box, pod(running(), uid="new", incarnation=2))
    assert up.status is not None
    assert "failure" not in up.status


def test_losses_that_repeat_are_answered_ever_more_slowly() -> None:
    memory = Memory()
    pauses = []
    for _ in range(10):
        memory.started(NOW)
        pauses.append(max(0.0, memory.may_start_at() - NOW))
    assert pauses[:4] == [0.0, 1.0, 2.0, 4.0]
    assert pauses[-1] == 60.0
    memory.started(NOW + 1000)
    assert memory.may_start_at() == 0.0


def test_a_pod_of_another_uid_under_the_name_is_not_the_one_that_was_ready() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    imposter = pod(running(), uid="imposter")
    decision = decide(box, imposter, memory=Memory(gone_pod=POD_UID))
    assert decision.status is not None
    assert decision.status["incarnation"] == 2
    assert kinds(decision)[0] is DeleteChild


# -- changes


def test_a_change_restarts_nothing_and_is_listed() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    box["metadata"]["generation"] = 2
    box["spec"] = {"image": "new", "resources": {"limits": {"memory": "1Gi"}}, "lifecycle": {"ttl": "9h"}}
    decision = decide(box, pod(running()))
    assert kinds(decision) == []
    assert decision.status is not None
    assert conditions(decision.status)["Ready"] == ("True", "Available")
    assert conditions(decision.status)["UpToDate"] == ("False", "RestartRequired")
    [message] = [c["message"] for c in decision.status["conditions"] if c["type"] == "UpToDate"]
    assert "image, resources.limits" in message
    assert "ttl" not in message


def test_new_defaults_and_a_new_version_of_the_operator_restart_and_report_nothing() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    newer = SETTINGS.model_copy(
        update={"workspace_image": "other", "default_image": "other", "git_timeout": 9.0}
    )
    assert plan(observation(box, pod(running())), NOW + 5, newer) == Decision()


def test_a_pod_that_never_came_up_is_replaced_when_the_spec_changes() -> None:
    box = settled(sandbox({"image": "typo"}, **GUARDED))
    box["spec"] = {"image": "right"}
    box["metadata"]["generation"] = 2
    pulling = pod_status(workspace=container("workspace", waiting={"reason": "ErrImagePull"}))
    assert kinds(decide(box, pod(pulling, spec={"image": "typo"}))) == [DeleteChild, CreatePod]


def test_a_change_of_egress_changes_the_pods_label_after_the_new_fence_stands() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    box["spec"] = {"network": {"egress": "None"}}
    decision = decide(box, pod(running()), fenced=False)
    assert kinds(decision) == [Ensure, Ensure, LabelPod]


def test_an_unacceptable_change_leaves_a_running_pod_alone() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    box["spec"] = {"security": {"runtimeClassName": "x"}}
    box["metadata"]["generation"] = 2
    decision = decide(box, pod(running()))
    assert kinds(decision) == []
    assert decision.status is not None
    assert conditions(decision.status)["Ready"] == ("True", "Available")
    assert conditions(decision.status)["UpToDate"] == ("False", "NotAllowed")


def test_the_status_of_an_unacceptable_change_speaks_of_the_egress_that_is_in_force() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    box["spec"] = {"security": {"runtimeClassName": "x"}, "network": {"egress": "None"}}
    box["metadata"]["generation"] = 2
    decision = decide(box, pod(running()))
    assert kinds(decision) == []
    assert decision.status is not None
    assert decision.status["network"] == {"egress": "Internet"}


def test_the_fences_of_a_running_pod_are_put_back_though_the_spec_is_unacceptable() -> None:
    box = settled(settled(sandbox(**GUARDED)), pod(running()))
    box["spec"] = {"security": {"runtimeClassName": "x"}, "network": {"egress": "None"}}
    box["metadata"]["generation"] = 2
    decision = decide(box, pod(running()), fenced=False)
    ensured = [step for step in decision.steps if isinstance(step, Ensure)]
    wanted = shared_policies("ns", Egress.INTERNET, SETTINGS)
    assert [step.body for step in ensured] == wanted, "those of the pod, not those of the spec"
    memory = Memory()
    memory.refused(Problem(Reason.QUOTA_EXCEEDED, "full", True), 2, NOW)
    decision = decide(box, pod(running()), memory=memory, fenced=False)
    assert kinds(decision) == [], "not before it is time again"
    assert decision.status is not None
    assert decision.status["failure"]["reason"] == "QuotaExceeded"
    assert decision.status["network"] == {"egress": "Unknown"}
    assert decision.again is not None


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"security": {"runtimeClassName": "x"}}, "NotAllowed"),
        ({"pod": {"priorityClassName": "x"}}, "NotAllowed"),
        ({"fieldOfTheFuture": 1}, "InvalidSpec"),
        (
            {
                "network": {"egress": "None"},
                "manifest": {"entries": {"r": {"gitRepo": {"host": "h", "repo": "r"}}}},
            },
            "NotAllowed",
        ),
        ({"manifest": {"entries": {"r": {"gitRepo": {"url": "http://h/r"}}}}}, "NotAllowed"),
    ],
)
def test_an_unacceptable_spec_starts_nothing(spec: dict[str, Any], reason: str) -> None:
    decision = decide(sandbox(spec))
    assert not decision.guard
    assert kinds(decision) == []
    assert decision.status is not None
    assert decision.status["failure"]["reason"] == reason
    assert conditions(decision.status)["Stalled"] == ("True", reason)


def test_a_rule_that_is_lifted_lets_a_stalled_sandbox_go_on() -> None:
    box = settled(sandbox({"security": {"runtimeClassName": "x"}}))
    allowing = SETTINGS.model_copy(update={"allowed_runtime_classes": ("x",)})
    assert kinds(plan(observation(box), NOW + 1, allowing)) == [CreatePod]


# -- the end


def test_ttl_deletes_the_sandbox_and_says_so_and_wakes_in_time() -> None:
    box = sandbox({"lifecycle": {"ttl": "10s"}})
    assert (decide(box, now=NOW + 4).again or 99) <= 6
    late = decide(box, now=NOW + 10)
    assert kinds(late) == [DeleteSandbox]
    assert late.status is None


def deleting(**metadata: Any) -> dict[str, Any]:
    return sandbox(status=started(), deletionTimestamp=format_time(NOW), **{**GUARDED, **metadata})


def test_deletion_takes_pods_first_then_the_finalizer_and_writes_no_status() -> None:
    first = decide(deleting(), pod(running()))
    assert kinds(first) == [DeleteChild]
    going = pod(running(), deletionTimestamp=format_time(NOW + 7))
    waiting = decide(deleting(), going)
    assert (kinds(waiting), waiting.status) == ([], None)
    assert decide(deleting()).steps == (RemoveFinalizer(),)


def test_a_pod_that_does_not_end_is_said_and_then_left_to_the_cluster() -> None:
    stuck = pod(running(), deletionTimestamp=format_time(NOW + 7))
    said = decide(deleting(), stuck, now=NOW + 13)
    assert kinds(said) == []
    assert said.status is not None
    assert said.status["failure"]["reason"] == "Terminating"
    released = decide(deleting(), stuck, now=NOW + 38)
    assert kinds(released) == [RemoveFinalizer]
    assert any(isinstance(step, Tell) for step in released.steps)


def test_a_sandbox_that_others_hold_needs_nothing_of_us() -> None:
    assert decide(deleting(finalizers=["example.com/mine"]), pod(running())) == Decision()


def test_decisions_are_pure() -> None:
    box = settled(sandbox(**GUARDED))
    obs = observation(box, pod(running()))
    assert plan(obs, NOW + 1, SETTINGS) == plan(replace(obs), NOW + 1, SETTINGS)
