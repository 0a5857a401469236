"""What others hold, refuse, or break off: the end is right, and it is said why."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from sandbox_api.kube import (
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    SANDBOXES,
    Forbidden,
    NotFound,
    Resource,
    ServerError,
    Unreachable,
)
from sandbox_operator.sandbox.names import FINALIZER, lasting_name, pod_name

from .toy import Cluster, Crash, WatchedApi

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


def foreign_pod(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 0},
    }


async def _no_pods(cluster: Cluster) -> bool:
    return not await cluster.pods()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_operator_that_dies_at_any_write_leaves_what_the_next_one_ends_well(
    cluster: Cluster, moment: str
) -> None:
    """The oracle: whatever the write, the same end, one pod, and nothing done twice."""
    for fatal in range(1, 9):
        name = f"box-{moment}-{fatal}"
        dead = asyncio.Event()
        api = WatchedApi(cluster.api)

        def die(number: int, write: tuple[str, str], fatal: int = fatal, dead: asyncio.Event = dead) -> None:
            if dead.is_set() or number == fatal:
                dead.set()
                raise Crash

        setattr(api, moment, die)
        # After its death every write of the first operator fails before it is sent.
        posts: list[tuple[str, str]] = []
        async with cluster.kubelet():
            try:
                async with cluster.operator(api):
                    await cluster.create(name, ports=[8080])
                    await asyncio.wait_for(dead.wait(), 1.0)
            except (TimeoutError, BaseExceptionGroup):
                pass
            second = WatchedApi(cluster.api)
            async with cluster.operator(second):
                status = await cluster.ready(name)
                mine = [p for p in await cluster.pods() if p["metadata"]["name"].startswith(name)]
                assert [p["metadata"]["uid"] for p in mine] == [status["podUID"]], f"died {moment} {fatal}"
                assert status["incarnation"] == 1
                posts = [
                    w
                    for w in (*api.counted()[: fatal - (moment == "before")], *second.counted())
                    if w == ("POST", "pods")
                ]
                assert len(posts) == 1, f"died {moment} {fatal}"
            # And the same for the end of it.
            for last in (1, 2):
                third = WatchedApi(cluster.api)
                dead = asyncio.Event()

                def die_at_last(
                    number: int, write: tuple[str, str], last: int = last, dead: asyncio.Event = dead
                ) -> None:
                    if dead.is_set() or number == last:
                        dead.set()
                        raise Crash

                setattr(third, moment, die_at_last)
                try:
                    async with cluster.operator(third):
                        with suppress(NotFound):
                            await cluster.delete(name)
                        await asyncio.wait_for(dead.wait(), 0.5)
                except (TimeoutError, BaseExceptionGroup):
                    pass
            async with cluster.operator():
                await cluster.until(lambda name=name: cluster.gone(name), f"{name} to go")
                await cluster.until(lambda: _no_pods(cluster), "its pod to go")


@pytest.mark.parametrize("error", [Unreachable(), ServerError(500, "InternalError", "oops")])
async def test_writes_that_fail_now_and_then_change_nothing_in_the_end(
    cluster: Cluster, error: Exception
) -> None:
    api = WatchedApi(cluster.api)

    def sometimes(number: int, write: tuple[str, str]) -> None:
        if number % 3 == 0:
            raise error

    api.after = sometimes
    async with cluster.operator(api), cluster.kubelet():
        for n in range(6):
            await cluster.create(f"box-{n}", ports=[80])
        for n in range(6):
            assert (await cluster.ready(f"box-{n}"))["incarnation"] == 1
        assert len(await cluster.pods()) == 6
        for n in range(6):
            await cluster.delete(f"box-{n}")
        for n in range(6):
            await cluster.until(lambda n=n: cluster.gone(f"box-{n}"), "it to go")
        await cluster.until(lambda: _no_pods(cluster), "the pods to go")


async def test_a_foreign_pod_that_holds_the_name_is_refused_and_never_touched(cluster: Cluster) -> None:
    sandbox = await cluster.create()
    uid = sandbox["metadata"]["uid"]
    name = pod_name("box", uid, 1)
    labels = {"sandbox-operator.dev/sandbox-uid": uid, "app.kubernetes.io/managed-by": "sandbox-operator"}
    annotations = {"sandbox-operator.dev/incarnation": "1", "sandbox-operator.dev/sandbox": "box"}
    foreign = await cluster.api.create(
        PODS,
        foreign_pod(name, labels=labels, annotations=annotations),
        cluster.namespace,
        field_manager="test",
    )
    async with cluster.operator(), cluster.kubelet():
        failure = await cluster.failure("NameConflict")
        assert name in failure["message"]
        assert (await cluster.condition("Ready"))["status"] == "False"
        await cluster.delete()
        await cluster.until(cluster.gone, "the sandbox to go")
        left = await cluster.api.get(PODS, name, cluster.namespace)
        assert left["metadata"]["uid"] == foreign["metadata"]["uid"]
        assert "deletionTimestamp" not in left["metadata"]


async def test_a_foreign_owner_is_no_owner(cluster: Cluster) -> None:
    """An object that names us as an owner, but not as its controller, is not ours either."""
    sandbox = await cluster.create()
    uid = sandbox["metadata"]["uid"]
    reference = {
        "apiVersion": "sandbox-operator.dev/v1alpha1",
        "kind": "Sandbox",
        "name": "box",
        "uid": uid,
        "controller": False,
    }
    name = pod_name("box", uid, 1)
    await cluster.api.create(
        PODS, foreign_pod(name, ownerReferences=[reference]), cluster.namespace, field_manager="test"
    )
    async with cluster.operator():
        await cluster.failure("NameConflict")


async def test_a_name_that_becomes_free_is_taken(cluster: Cluster) -> None:
    sandbox = await cluster.create()
    name = pod_name("box", sandbox["metadata"]["uid"], 1)
    await cluster.api.create(PODS, foreign_pod(name), cluster.namespace, field_manager="test")
    async with cluster.operator(), cluster.kubelet():
        await cluster.failure("NameConflict")
        await cluster.vanish(name)
        status = await cluster.ready(seconds=12)
        assert "failure" not in status


async def test_a_shared_policy_that_somebody_else_made_is_refused(cluster: Cluster) -> None:
    body = {"metadata": {"name": "sandbox-ingress-deny"}, "spec": {"podSelector": {}, "ingress": [{}]}}
    foreign = await cluster.api.create(NETWORK_POLICIES, body, cluster.namespace, field_manager="test")
    async with cluster.operator():
        await cluster.create()
        failure = await cluster.failure("NameConflict")
        assert "sandbox-ingress-deny" in failure["message"]
        assert not await cluster.pods(), "no pod without its fences"
        left = await cluster.api.get(NETWORK_POLICIES, "sandbox-ingress-deny", cluster.namespace)
        assert left["spec"] == foreign["spec"]


async def test_a_quota_that_is_used_up_is_said_at_once_and_retried(cluster: Cluster) -> None:
    await cluster.api.create(
        QUOTAS,
        {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}},
        cluster.namespace,
        field_manager="test",
    )
    counted = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    await cluster.api.patch(
        QUOTAS, "none", cluster.namespace, counted, subresource="status", field_manager="test"
    )
    api = WatchedApi(cluster.api)
    async with cluster.operator(api), cluster.kubelet():
        await cluster.create()
        failure = await cluster.failure("QuotaExceeded", seconds=2)
        assert failure["retryable"] is True
        assert (await cluster.condition("Stalled"))["status"] == "False"
        await asyncio.sleep(1)
        assert api.writes.count(("POST", "pods")) == 1, "no hot loop"
        await cluster.api.delete(QUOTAS, "none", cluster.namespace)
        status = await cluster.ready(seconds=15)
        assert "failure" not in status


async def test_a_pod_that_the_api_server_finds_invalid_is_said_and_not_tried_again(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)
    async with cluster.operator(api), cluster.kubelet():
        terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
        await cluster.create(pod={"affinity": {"nodeAffinity": terms}})
        failure = await cluster.failure("InvalidSpec")
        assert "nodeSelectorTerms" in failure["message"]
        assert failure["retryable"] is False
        assert (await cluster.condition("Stalled"))["status"] == "True"
        await asyncio.sleep(0.5)
        assert api.writes.count(("POST", "pods")) == 1
        await cluster.patch({"spec": {"pod": None}})
        await cluster.ready()


async def test_the_pod_passes_the_restricted_pod_security_standard(cluster: Cluster) -> None:
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    await cluster.api.patch(
        NAMESPACES, cluster.namespace, None, {"metadata": {"labels": labels}}, field_manager="test"
    )
    async with cluster.operator(), cluster.kubelet():
        await cluster.create(
            ports=[80],
            manifest={
                "entries": {"a": {"file": {"contentFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}}}
            },
        )
        await cluster.ready()


async def test_a_pod_that_admission_refuses_is_said(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)

    def deny(number: int, write: tuple[str, str]) -> None:
        if write == ("POST", "pods"):
            raise Forbidden(
                403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity "restricted:latest": y'
            )

    api.before = deny
    async with cluster.operator(api):
        await cluster.create()
        failure = await cluster.failure("AdmissionDenied")
        assert failure["retryable"] is True


async def test_rights_that_the_operator_lacks_are_no_fault_of_the_sandbox(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)

    def deny(number: int, write: tuple[str, str]) -> None:
        if write == ("POST", "pods") and number < 6:
            raise Forbidden(
                403, "Forbidden", 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'
            )

    api.before = deny
    async with cluster.operator(api), cluster.kubelet():
        await cluster.create()
        status = await cluster.ready()
        assert "failure" not in status


async def test_what_the_administrator_does_not_allow_is_said(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create(security={"runtimeClassName": "fast"})
        failure = await cluster.failure("NotAllowed")
        assert "fast" in failure["message"]
        assert not await cluster.pods()
        assert FINALIZER not in ((await cluster.sandbox())["metadata"].get("finalizers") or [])
        await cluster.delete()
        await cluster.until(cluster.gone, "the sandbox to go")


async def test_a_running_sandbox_survives_a_spec_that_is_not_allowed(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        before = await cluster.ready()
        await cluster.patch({"spec": {"security": {"runtimeClassName": "fast"}}})

        async def shown() -> bool:
            return (await cluster.condition("UpToDate")).get("reason") == "NotAllowed"

        await cluster.until(shown, "UpToDate to say so")
        after = await cluster.ready()
        assert after["podUID"] == before["podUID"]


async def test_a_finalizer_of_somebody_else_is_kept(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        await cluster.ready()
        finalizers = [FINALIZER, "example.com/mine"]
        await cluster.patch({"metadata": {"finalizers": finalizers}})
        await cluster.delete()

        async def released() -> bool:
            return (await cluster.sandbox())["metadata"].get("finalizers") == ["example.com/mine"]

        await cluster.until(released, "our finalizer to go")
        await cluster.until(lambda: _no_pods(cluster), "the pod to go")
        await cluster.patch({"metadata": {"finalizers": None}})
        await cluster.until(cluster.gone, "the sandbox to go")


async def test_an_orphaned_pod_of_an_earlier_sandbox_is_not_adopted(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        first = await cluster.ready()
        await cluster.api.patch(
            PODS,
            first["podName"],
            cluster.namespace,
            {"metadata": {"ownerReferences": None}},
            field_manager="test",
        )
        await cluster.delete()
        await cluster.until(cluster.gone, "the sandbox to go")
        await cluster.create()
        second = await cluster.ready()
        assert second["podName"] != first["podName"]
        assert (await cluster.api.get(PODS, first["podName"], cluster.namespace))["metadata"]["name"]


async def test_a_feed_that_has_died_is_noticed_by_our_own_writes_and_replaced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox_operator.engine.loop.FEED_PATIENCE", 0.5)
    await cluster.create("known")
    async with cluster.operator(fed=False) as operator, cluster.kubelet():
        await cluster.ready("known")
        await cluster.create("unheard")
        await cluster.ready("unheard")
        assert operator.loop.canary.silent_seconds() > 0.5
    async with cluster.operator() as operator, cluster.kubelet():
        await cluster.create("heard")
        await cluster.ready("heard")
        await asyncio.sleep(0.2)
        assert operator.loop.canary.silent_seconds() == 0


async def test_names_that_differ_in_a_dot_do_not_meet(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        long = "n" * 200
        for name in ("a.b", "a-b", "1st", long, f"{long}x"):
            await cluster.create(name, ports=[80])
        names = {(await cluster.ready(name))["podName"] for name in ("a.b", "a-b", "1st", long, f"{long}x")}
        assert len(names) == 5
        services = {
            lasting_name(n, (await cluster.sandbox(n))["metadata"]["uid"]) for n in ("a.b", "a-b", "1st")
        }
        assert len(services) == 3
        with pytest.raises(NotFound):
            await cluster.api.get(SANDBOXES, "none", cluster.namespace)
