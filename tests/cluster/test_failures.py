"""What goes wrong is said in status: which entry, why, and whether trying again can help."""

from .conftest import SANDBOX, Namespace


def test_an_image_that_does_not_exist_is_named(namespace: Namespace) -> None:
    namespace.create("pull", image="sandbox-operator/no-such-image:1", imagePullPolicy="IfNotPresent")
    failure = namespace.wait_failure("pull", "ImagePullFailed")
    assert failure["retryable"] is True
    assert "no-such-image" in failure["message"]
    assert namespace.condition("pull", "Ready")["status"] == "False"
    namespace.delete("pull")


def test_an_image_name_that_cannot_be_parsed_is_named(namespace: Namespace) -> None:
    namespace.create("bad", image="no//such:::image")
    failure = namespace.wait_failure("bad", "InvalidImage")
    assert failure["retryable"] is False


def test_a_pod_that_no_node_can_take_says_unschedulable(namespace: Namespace) -> None:
    namespace.create("huge", resources={"requests": {"memory": "900Gi"}, "limits": {"memory": "900Gi"}})
    failure = namespace.wait_failure("huge", "Unschedulable")
    assert failure["retryable"] is True
    assert "memory" in failure["message"]
    namespace.delete("huge")


def test_a_quota_that_is_used_up_is_said_at_once_and_lifting_it_starts_the_sandbox(
    namespace: Namespace,
) -> None:
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    namespace.until(
        lambda: (namespace.get("resourcequota", "none") or {}).get("status"), "the quota to be counted"
    )
    namespace.create("poor")
    failure = namespace.wait_failure("poor", "QuotaExceeded")
    assert failure["retryable"] is True
    namespace.kubectl("delete", "resourcequota", "none")
    namespace.wait_ready("poor", 120)


def test_a_missing_source_names_the_entry_and_is_retryable(namespace: Namespace) -> None:
    namespace.create(
        "missing",
        entries={"a.md": {"file": {"contentFrom": {"configMapKeyRef": {"name": "nope", "key": "k"}}}}},
    )
    failure = namespace.wait_failure("missing", "SourceNotFound")
    assert failure["entry"] == "a.md"
    assert failure["retryable"] is True
    namespace.delete("missing")


def test_a_command_that_fails_is_said_with_its_exit_code(namespace: Namespace) -> None:
    namespace.create("exits", command=["sh", "-c", "exit 3"])
    failure = namespace.wait_failure("exits", "WorkspaceExited")
    assert "3" in failure["message"]


def test_a_start_that_takes_too_long_ends(namespace: Namespace) -> None:
    namespace.create("slow", image="sandbox-operator/no-such-image:1", lifecycle={"startTimeout": "5s"})
    failure = namespace.wait_failure("slow", "StartTimeout")
    assert "5" in failure["message"]
    stalled = namespace.condition("slow", "Stalled")
    assert stalled["status"] == "True"
    assert stalled["reason"] == "StartTimeout"
    namespace.until(lambda: not namespace.objects("pods"), "the pod to go")
    # A change of the spec is a new try.
    namespace.kubectl(
        "patch", SANDBOX, "slow", "--type=merge", "-p", f'{{"spec":{{"image":"{namespace.image}"}}}}'
    )
    namespace.wait_ready("slow")


def test_a_pod_that_holds_the_childs_name_is_refused_and_left_alone(namespace: Namespace) -> None:
    namespace.create("held")
    namespace.wait_ready("held")
    status = namespace.status("held")
    from sandbox_operator.sandbox.names import pod_name  # the rule is ours; the pod is not

    sandbox = namespace.get(SANDBOX, "held")
    assert sandbox
    coming = pod_name("held", sandbox["metadata"]["uid"], status["incarnation"] + 1)
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": coming,
                "labels": {"sandbox-operator.dev/sandbox-uid": sandbox["metadata"]["uid"]},
            },
            "spec": {
                "containers": [{"name": "main", "image": namespace.image, "command": ["sleep", "1000"]}],
                "terminationGracePeriodSeconds": 0,
            },
        }
    )
    foreign = namespace.get("pod", coming)
    namespace.kubectl("delete", "pod", status["podName"], "--wait=false")
    failure = namespace.wait_failure("held", "NameConflict")
    assert coming in failure["message"]
    namespace.delete("held")
    left = namespace.get("pod", coming)
    assert left
    assert foreign
    assert left["metadata"]["uid"] == foreign["metadata"]["uid"]
    assert "deletionTimestamp" not in left["metadata"]


def test_an_oom_in_the_workspace_is_told_apart(namespace: Namespace) -> None:
    hog = "import time; x = b'x' * (400 << 20); time.sleep(1000)"
    namespace.create(
        "hungry",
        resources={"limits": {"memory": "100Mi"}},
        command=["python3", "-c", hog],
    )
    failure = namespace.wait_failure("hungry", "OutOfMemory", 90)
    assert "100Mi" in failure["message"] or "memory" in failure["message"]
