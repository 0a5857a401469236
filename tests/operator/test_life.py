"""The life of a sandbox, by the operator alone: created, ready, changed, deleted, and what it costs in writes."""

import asyncio
from typing import Any

import pytest
from sandbox_api.kube import NETWORK_POLICIES, PODS, SANDBOXES, SERVICES, NotFound
from sandbox_operator.sandbox.names import FINALIZER

from .toy import Cluster, WatchedApi, container, init_failed_status, running_status


async def test_a_sandbox_becomes_ready_and_goes_with_few_writes(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)
    async with cluster.operator(api), cluster.kubelet():
        await cluster.create("first")  # makes the shared policies
        await cluster.ready("first")
        api.writes.clear()
        await cluster.create()
        status = await cluster.ready()
        assert api.counted() == [
            ("PATCH", "sandboxes"),
            ("POST", "pods"),
            ("PATCH", "sandboxes/status"),
            ("PATCH", "sandboxes/status"),
        ]
        assert status["incarnation"] == 1
        assert status["materialized"] == {"entries": 1, "bytes": 2, "seconds": 0.1}
        [pod] = [p for p in await cluster.pods() if p["metadata"]["name"] == status["podName"]]
        assert status["podUID"] == pod["metadata"]["uid"]
        await asyncio.sleep(0.3)
        assert len(api.counted()) == 4, "nothing is written once converged"
        api.writes.clear()
        await cluster.delete()
        await cluster.until(cluster.gone, "the sandbox to go")
        assert api.counted() == [("DELETE", "pods"), ("PATCH", "sandboxes")]
        assert [p["metadata"]["name"] for p in await cluster.pods()] == [
            (await cluster.status("first"))["podName"]
        ]


async def test_a_sandbox_that_is_created_with_our_finalizer_costs_one_write_less(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)
    async with cluster.operator(api), cluster.kubelet():
        await cluster.create("first")  # makes the shared policies
        await cluster.ready("first")
        api.writes.clear()
        await cluster.create(finalizers=[FINALIZER])
        await cluster.ready()
        assert api.counted() == [
            ("POST", "pods"),
            ("PATCH", "sandboxes/status"),
            ("PATCH", "sandboxes/status"),
        ]
        await cluster.delete()
        await cluster.until(cluster.gone, "the sandbox to go")


async def test_a_burst_costs_no_more_writes_each(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)
    async with cluster.operator(api), cluster.kubelet():
        await asyncio.gather(*(cluster.create(f"box-{n}") for n in range(40)))
        for n in range(40):
            await cluster.ready(f"box-{n}", 30)
        by_kind = {kind: sum(write == kind for write in api.counted()) for kind in set(api.counted())}
        assert by_kind == {
            ("POST", "networkpolicies"): 2,
            ("PATCH", "sandboxes"): 40,
            ("POST", "pods"): 40,
            ("PATCH", "sandboxes/status"): 80,
        }


async def test_a_restart_with_converged_sandboxes_writes_nothing(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        for n in range(20):
            await cluster.create(f"box-{n}", ports=[8080] if n % 2 else [])
        for n in range(20):
            await cluster.ready(f"box-{n}", 30)
    api = WatchedApi(cluster.api)
    async with cluster.operator(api):
        await asyncio.sleep(0.7)
        assert api.counted() == []


async def test_a_deleted_pod_is_replaced_by_a_new_incarnation(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet(ends=False):
        await cluster.create()
        first = await cluster.ready()
        await cluster.api.delete(PODS, first["podName"], cluster.namespace)

        async def replaced() -> Any:
            status = await cluster.ready()
            return status if status["podUID"] != first["podUID"] else None

        second = await cluster.until(replaced, "the new pod")
        assert second["incarnation"] == 2
        assert second["podName"] != first["podName"]
        assert "failure" not in second
        # The old pod is still terminating, and nobody waits for it.
        assert len(await cluster.pods()) == 2


async def test_ready_drops_when_its_pod_is_deleted(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        first = await cluster.ready()
    async with cluster.operator():
        await cluster.api.delete(PODS, first["podName"], cluster.namespace, grace_period_seconds=0)
        failure = await cluster.failure("PodLost")
        assert failure["retryable"] is True
        assert (await cluster.condition("Available"))["status"] == "False"
        assert (await cluster.condition("Reconciling"))["status"] == "True"


async def test_pods_that_are_lost_again_and_again_come_ever_more_slowly(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)
    async with cluster.operator(api):
        await cluster.create()
        for _ in range(60):
            for pod in await cluster.pods():
                await cluster.vanish(pod["metadata"]["name"])
            await asyncio.sleep(0.05)
        assert 2 <= api.writes.count(("POST", "pods")) <= 5


async def test_deleting_while_creating_leaves_nothing(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        for n in range(12):
            await cluster.create()
            await asyncio.sleep(0.004 * n)
            await cluster.delete()
            await cluster.until(cluster.gone, "the sandbox to go")
        await cluster.until(lambda: _none(cluster), "all pods to go")


async def _none(cluster: Cluster) -> bool:
    return not await cluster.pods()


async def test_the_same_name_while_the_old_pod_terminates_gets_its_own_pod(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet(ends=False):
        await cluster.create()
        first = await cluster.ready()
        await cluster.delete()
        await cluster.until(lambda: _terminating(cluster, first["podName"]), "the pod to be told to end")
        # What a force or a dead node's bound does: the sandbox goes before its pod.
        await cluster.patch({"metadata": {"finalizers": None}})
        await cluster.until(cluster.gone, "the sandbox to go")
        await cluster.create()
        second = await cluster.ready()
        assert second["podName"] != first["podName"]
        assert {p["metadata"]["name"] for p in await cluster.pods()} == {first["podName"], second["podName"]}


async def _terminating(cluster: Cluster, pod: str) -> bool:
    item = await cluster.api.get(PODS, pod, cluster.namespace)
    return bool(item["metadata"].get("deletionTimestamp"))


async def test_the_sandbox_stays_until_its_pod_has_gone(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet(ends=False):
        await cluster.create()
        status = await cluster.ready()
        await cluster.delete()
        await asyncio.sleep(0.5)
        assert not await cluster.gone()
        await cluster.vanish(status["podName"])
        await cluster.until(cluster.gone, "the sandbox to go", 2)


async def test_a_spec_change_restarts_nothing_and_is_shown(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)
    async with cluster.operator(api), cluster.kubelet():
        await cluster.create()
        before = await cluster.ready()
        api.writes.clear()
        await cluster.patch({"spec": {"image": "other", "lifecycle": {"stopGrace": "9s"}}})

        async def shown() -> Any:
            condition = await cluster.condition("UpToDate")
            return condition if condition["status"] == "False" else None

        condition = await cluster.until(shown, "UpToDate to drop")
        assert condition["reason"] == "RestartRequired"
        assert "image" in condition["message"]
        assert "lifecycle.stopGrace" in condition["message"]
        after = await cluster.ready()
        assert after["podUID"] == before["podUID"]
        assert after["observedGeneration"] == 2
        assert api.counted() == [("PATCH", "sandboxes/status")]
        await cluster.patch({"spec": {"image": "i", "lifecycle": None}})

        async def back() -> bool:
            return (await cluster.condition("UpToDate"))["status"] == "True"

        await cluster.until(back, "UpToDate to return")


async def test_ports_take_effect_live_and_go_again(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        before = await cluster.ready()
        assert "serviceName" not in before
        await cluster.patch({"spec": {"ports": [8080, 9090]}})

        async def service() -> Any:
            name = (await cluster.status()).get("serviceName")
            try:
                return name and await cluster.api.get(SERVICES, name, cluster.namespace)
            except NotFound:
                return None

        made = await cluster.until(service, "the Service")
        assert [port["port"] for port in made["spec"]["ports"]] == [8080, 9090]
        policy = await cluster.api.get(NETWORK_POLICIES, made["metadata"]["name"], cluster.namespace)
        assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == [8080, 9090]
        await cluster.patch({"spec": {"ports": [9090]}})

        async def changed() -> bool:
            return [port["port"] for port in (await service())["spec"]["ports"]] == [9090]

        await cluster.until(changed, "the Service to change")
        await cluster.patch({"spec": {"ports": None}})

        async def removed() -> bool:
            items = (await cluster.api.list(SERVICES, cluster.namespace)).items
            return not items and "serviceName" not in await cluster.status()

        await cluster.until(removed, "the Service to go")
        assert (await cluster.ready())["podUID"] == before["podUID"]


async def test_egress_takes_effect_live(cluster: Cluster) -> None:
    async with cluster.operator(network_policies_enforced=True), cluster.kubelet():
        await cluster.create(network={"egress": "Internet"})
        status = await cluster.ready()
        assert status["network"] == {"egress": "Internet"}
        await cluster.patch({"spec": {"network": {"egress": "None"}}})

        async def fenced() -> bool:
            [pod] = await cluster.pods()
            return bool(pod["metadata"]["labels"]["sandbox-operator.dev/egress"] == "none")

        await cluster.until(fenced, "the pod's label to change")
        assert await cluster.api.get(NETWORK_POLICIES, "sandbox-egress-none", cluster.namespace)
        assert (await cluster.status())["network"] == {"egress": "None"}


async def test_a_removed_or_loosened_policy_comes_back(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        await cluster.ready()
        policy = await cluster.api.get(NETWORK_POLICIES, "sandbox-ingress-deny", cluster.namespace)
        await cluster.api.delete(NETWORK_POLICIES, "sandbox-ingress-deny", cluster.namespace)

        async def again() -> Any:
            try:
                return await cluster.api.get(NETWORK_POLICIES, "sandbox-ingress-deny", cluster.namespace)
            except NotFound:
                return None

        assert (await cluster.until(again, "the policy"))["spec"] == policy["spec"]
        await cluster.api.patch(
            NETWORK_POLICIES,
            "sandbox-ingress-deny",
            cluster.namespace,
            {"spec": {"ingress": [{}], "podSelector": {"matchLabels": {"x": "y"}}}},
            field_manager="test",
        )

        async def mended() -> bool:
            return bool((await again())["spec"] == policy["spec"])

        await cluster.until(mended, "the policy to be mended")


async def test_labels_that_policies_select_by_are_put_back(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        status = await cluster.ready()
        labels = {"sandbox-operator.dev/egress": None}
        await cluster.api.patch(
            PODS, status["podName"], cluster.namespace, {"metadata": {"labels": labels}}, field_manager="test"
        )

        async def mended() -> bool:
            [pod] = await cluster.pods()
            return "sandbox-operator.dev/egress" in pod["metadata"]["labels"]

        await cluster.until(mended, "the label")


async def test_a_pod_whose_label_was_taken_away_is_found_and_not_replaced(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        status = await cluster.ready()
        labels = {"sandbox-operator.dev/sandbox-uid": None}
        await cluster.api.patch(
            PODS, status["podName"], cluster.namespace, {"metadata": {"labels": labels}}, field_manager="test"
        )

        async def mended() -> bool:
            pod = await cluster.api.get(PODS, status["podName"], cluster.namespace)
            return "sandbox-operator.dev/sandbox-uid" in pod["metadata"]["labels"]

        await cluster.until(mended, "the label")
        await asyncio.sleep(0.3)
        after = await cluster.ready()
        assert after["podUID"] == status["podUID"]
        assert len(await cluster.pods()) == 1


async def test_ttl_deletes_the_sandbox(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create(lifecycle={"ttl": "2s"})
        await cluster.ready()
        await cluster.until(cluster.gone, "the ttl to end it", 5)
        assert not await cluster.pods()


async def test_a_ttl_that_ran_out_while_no_operator_ran_counts(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create(lifecycle={"ttl": "2s"})
        await cluster.ready()
    await asyncio.sleep(2.5)
    async with cluster.operator(), cluster.kubelet():
        await cluster.until(cluster.gone, "the ttl to end it", 3)
        assert not await cluster.pods()


async def test_a_secret_that_is_yet_to_come_is_waited_for(cluster: Cluster) -> None:
    key = "sandbox-operator.dev/awaiting-secret"
    async with cluster.operator(), cluster.kubelet():
        await cluster.create(annotations={key: "credentials"})

        async def waits() -> bool:
            return (await cluster.condition("WorkspaceReady")).get("reason") == "AwaitingSecret"

        await cluster.until(waits, "the sandbox to wait")
        assert not await cluster.pods()
        await cluster.patch({"metadata": {"annotations": {key: None}}})
        await cluster.ready()


async def test_an_upload_is_waited_for_and_belongs_to_one_pod(cluster: Cluster) -> None:
    key = "sandbox-operator.dev/uploaded"
    async with cluster.operator(), cluster.kubelet():
        await cluster.create(manifest={"entries": {"data": {"localDir": {}}}})

        async def waits() -> Any:
            status = await cluster.status()
            reasons = {c["type"]: c["reason"] for c in status.get("conditions") or ()}
            return status if reasons.get("Ready") == "AwaitingUpload" else None

        status = await cluster.until(waits, "the sandbox to wait")
        assert (await cluster.condition("Available"))["status"] == "False"
        await cluster.patch({"metadata": {"annotations": {key: "another-pod"}}})
        await asyncio.sleep(0.2)
        assert (await cluster.condition("Ready"))["status"] == "False"
        await cluster.patch({"metadata": {"annotations": {key: status["podUID"]}}})
        await cluster.ready()
        await cluster.api.delete(PODS, status["podName"], cluster.namespace)
        await cluster.until(waits, "the new pod to wait for its own upload")


async def test_a_start_that_takes_too_long_ends_until_the_spec_changes(cluster: Cluster) -> None:
    async with cluster.operator():
        await cluster.create(lifecycle={"startTimeout": "1s"})
        failure = await cluster.failure("StartTimeout")
        assert "1s" in failure["message"]
        assert (await cluster.condition("Stalled"))["status"] == "True"
        assert (await cluster.condition("Reconciling"))["status"] == "False"
        await cluster.until(lambda: _none(cluster), "the pod to go")
        await asyncio.sleep(0.3)
        assert not await cluster.pods()
        async with cluster.kubelet():
            await cluster.patch({"spec": {"lifecycle": {"startTimeout": "9s"}}})
            status = await cluster.ready()
            assert status["incarnation"] == 2
            assert "failure" not in status


async def test_a_failure_that_a_retry_cannot_help_ends_the_attempt(cluster: Cluster) -> None:
    api = WatchedApi(cluster.api)
    async with cluster.operator(api), cluster.kubelet(starts=False):
        await cluster.create()

        async def pod() -> Any:
            return await cluster.pods()

        [made] = await cluster.until(pod, "the pod")
        await cluster.bind(made["metadata"]["name"])
        await cluster.say(
            made["metadata"]["name"],
            init_failed_status(entry="repo", reason="GitRefNotFound", message="no ref", retryable=False),
        )
        failure = await cluster.failure("GitRefNotFound")
        assert failure == {
            "reason": "GitRefNotFound",
            "message": "no ref",
            "entry": "repo",
            "retryable": False,
        }
        await cluster.until(lambda: _none(cluster), "the pod to go")
        await asyncio.sleep(0.3)
        assert api.writes.count(("POST", "pods")) == 1
    async with cluster.operator(WatchedApi(cluster.api)) as again:
        await asyncio.sleep(0.3)
        assert again is not None
        assert not await cluster.pods(), "a restart is no reason to try again"


async def test_a_fixed_spec_replaces_a_pod_that_never_came_up(cluster: Cluster) -> None:
    async with cluster.operator():
        await cluster.create(image="typo")

        async def pod() -> Any:
            return await cluster.pods()

        [made] = await cluster.until(pod, "the pod")
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found: typo"}}
        status = {"phase": "Pending", "containerStatuses": [container("workspace", waiting)]}
        await cluster.say(made["metadata"]["name"], status)
        await cluster.bind(made["metadata"]["name"])
        failure = await cluster.failure("ImagePullFailed")
        assert "typo" in failure["message"]
        async with cluster.kubelet():
            await cluster.patch({"spec": {"image": "right"}})
            status = await cluster.ready()
        assert status["incarnation"] == 2
        [pod_now] = await cluster.pods()
        assert pod_now["spec"]["containers"][1]["image"] == "right"


@pytest.mark.parametrize("large", [False, True])
async def test_a_large_plan_travels_in_a_config_map(cluster: Cluster, large: bool) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create(
            manifest={"entries": {"a": {"file": {"content": "x" * (70_000 if large else 10)}}}}
        )
        await cluster.ready()
        [pod] = await cluster.pods()
        assert any(volume["name"] == "plan" for volume in pod["spec"]["volumes"]) is large
        assert ("sandbox-operator.dev/manifest" in pod["metadata"]["annotations"]) is not large


async def test_a_restart_of_the_workspace_is_counted_and_told(cluster: Cluster) -> None:
    async with cluster.operator(), cluster.kubelet():
        await cluster.create()
        status = await cluster.ready()
        after = running_status()
        after["containerStatuses"][1] |= {
            "restartCount": 1,
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }
        await cluster.say(status["podName"], after)

        async def counted() -> bool:
            return (await cluster.status())["restarts"] == 1

        await cluster.until(counted, "the restart to be counted")
        assert (await cluster.condition("Ready"))["status"] == "True"

        async def told() -> Any:
            events = await cluster.api.raw(
                "GET", f"/apis/events.k8s.io/v1/namespaces/{cluster.namespace}/events"
            )
            return b"OutOfMemory" in events

        await cluster.until(told, "the event")
        assert SANDBOXES.kind == "Sandbox"
