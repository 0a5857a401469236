"""A sandbox from kubectl: filled, ready, replaced when its pod is lost, and gone without a trace."""

import base64
import time

import pytest
import yaml

from .conftest import SANDBOX, Namespace


def test_apply_fills_the_workspace_and_becomes_ready(namespace: Namespace) -> None:
    binary = bytes(range(256))
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "docs"},
            "data": {"guide": "from a map\n"},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "keys"},
            "stringData": {"token": "s3cr3t", "file": "from a secret\n"},
        },
    )
    namespace.create(
        "full",
        entries={
            "a.txt": {"file": {"content": "text, ünïcode\n"}, "permissions": "rw-r-----"},
            "bin/data": {"file": {"contentBase64": base64.b64encode(binary).decode()}},
            "out": {"dir": {}, "permissions": "rwxrwx---"},
            "guide.md": {"file": {"contentFrom": {"configMapKeyRef": {"name": "docs", "key": "guide"}}}},
            "secret.md": {"file": {"contentFrom": {"secretKeyRef": {"name": "keys", "key": "file"}}}},
        },
        manifest={
            "environment": [
                {"name": "PLAIN", "value": "$(HOME) stays"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
            ]
        },
        resources={"limits": {"memory": "256Mi"}, "requests": {"cpu": "10m"}},
    )
    namespace.wait_ready("full")
    assert (
        namespace.sh("full", "cat a.txt guide.md secret.md") == "text, ünïcode\nfrom a map\nfrom a secret\n"
    )
    assert namespace.sh("full", "od -An -v -tu1 bin/data").split() == [str(byte) for byte in binary]
    assert namespace.sh("full", "stat -c '%a %n' a.txt out bin bin/data").split("\n")[:4] == [
        "640 a.txt",
        "770 out",
        "755 bin",
        "755 bin/data",
    ]
    assert namespace.sh("full", 'pwd; id -u; echo "$PLAIN $TOKEN"; touch "$HOME/x" && echo home').split("\n")[
        :4
    ] == [
        "/workspace",
        "1000",
        "$(HOME) stays s3cr3t",
        "home",
    ]
    status = namespace.status("full")
    assert status["materialized"]["entries"] == 5
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Ready": "True",
        "Available": "True",
        "WorkspaceReady": "True",
        "UpToDate": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }
    resource = namespace.kubectl("get", SANDBOX, "full", "-o", "yaml")
    assert "s3cr3t" not in resource
    namespace.delete("full")
    namespace.until(lambda: not namespace.children(), "the children to go")


@pytest.mark.parametrize(
    "path",
    [
        "with space",
        "quo'te\"s",
        "-dash",
        "new\nline",
        "日本語/ŵ",
        "$(id)",
        "a;b|c&d",
        "*?[x]",
        "dot.",
        " lead",
        "#hash",
    ],
)
def test_an_odd_name_is_the_name_of_the_file(namespace: Namespace, path: str) -> None:
    namespace.create("odd", entries={path: {"file": {"content": path}}})
    namespace.wait_ready("odd")
    assert namespace.kubectl("exec", namespace.pod_name("odd"), "--", "cat", f"./{path}") == path


def test_deleting_twice_and_while_creating_leaves_nothing(namespace: Namespace) -> None:
    for number in range(5):
        namespace.create("brief", entries={"a": {"file": {"content": "x"}}})
        time.sleep(0.15 * number)
        namespace.delete("brief")
        namespace.kubectl("delete", SANDBOX, "brief", "--ignore-not-found")
    namespace.until(lambda: not namespace.children(), "the children to go")


def test_the_same_name_again_while_the_old_pod_terminates_gets_a_pod_of_its_own(namespace: Namespace) -> None:
    # A process that ignores TERM keeps the old pod for its whole grace.
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    namespace.create("again", entries={"who": {"file": {"content": "first"}}}, command=stubborn,
                     lifecycle={"stopGrace": "8s"})  # fmt: skip
    namespace.wait_ready("again")
    first = namespace.status("again")
    namespace.kubectl("delete", SANDBOX, "again", "--wait=false")
    namespace.until(lambda: not namespace.get(SANDBOX, "again"), "the first sandbox to go")
    namespace.create("again", entries={"who": {"file": {"content": "second"}}})
    namespace.wait_ready("again")
    second = namespace.status("again")
    assert second["podName"] != first["podName"]
    assert namespace.sh("again", "cat who") == "second"


def test_a_deleted_pod_is_replaced_and_ready_drops_and_returns(namespace: Namespace) -> None:
    namespace.create("lost", entries={"a": {"file": {"content": "from the manifest"}}})
    namespace.wait_ready("lost")
    first = namespace.status("lost")
    namespace.kubectl("delete", "pod", first["podName"], "--wait=false")
    namespace.until(lambda: namespace.condition("lost", "Ready").get("status") != "True", "Ready to drop", 10)
    namespace.wait_ready("lost")
    second = namespace.status("lost")
    assert second["podUID"] != first["podUID"]
    assert second["incarnation"] == first["incarnation"] + 1
    assert namespace.sh("lost", "cat a") == "from the manifest"


def test_a_name_too_long_for_a_label_works(namespace: Namespace) -> None:
    name = "n" * 64
    namespace.create(name, entries={"a": {"file": {"content": "x"}}}, ports=[8080])
    namespace.wait_ready(name)
    assert len(namespace.status(name)["serviceName"]) <= 63
    namespace.delete(name)


def test_ttl_deletes_the_sandbox(namespace: Namespace) -> None:
    namespace.create("short", lifecycle={"ttl": "4s"})
    namespace.until(lambda: not namespace.get(SANDBOX, "short"), "the ttl to end it", 30)
    namespace.until(lambda: not namespace.children(), "the children to go")


def test_a_change_that_a_running_pod_cannot_take_is_shown_and_disturbs_nothing(namespace: Namespace) -> None:
    namespace.create("steady", entries={"a": {"file": {"content": "x"}}})
    namespace.wait_ready("steady")
    before = namespace.status("steady")
    namespace.kubectl(
        "patch",
        SANDBOX,
        "steady",
        "--type=merge",
        "-p",
        '{"spec":{"resources":{"limits":{"memory":"300Mi"}}}}',
    )
    changed = namespace.until(
        lambda: (c := namespace.condition("steady", "UpToDate")).get("status") == "False" and c,
        "UpToDate to drop",
    )
    assert changed["reason"] == "RestartRequired"
    assert "resources" in changed["message"]
    assert namespace.status("steady")["podUID"] == before["podUID"]
    assert namespace.condition("steady", "Ready")["status"] == "True"
    # The next pod takes it.
    namespace.kubectl("delete", "pod", before["podName"])
    namespace.until(
        lambda: namespace.condition("steady", "UpToDate").get("status") == "True", "UpToDate to return"
    )


def test_the_command_runs_in_the_filled_workspace(namespace: Namespace) -> None:
    namespace.create(
        "worker",
        entries={"in.txt": {"file": {"content": "ready"}}},
        command=["sh", "-c"],
        args=["cp in.txt out.txt; exec sleep 1000"],
    )
    namespace.wait_ready("worker")
    namespace.until(
        lambda: namespace.sh("worker", "cat out.txt", check=False) == "ready", "the command's file"
    )


def test_the_readme_examples_of_kubectl_columns_hold(namespace: Namespace) -> None:
    namespace.create("shown", entries={"a": {"dir": {}}})
    namespace.wait_ready("shown")
    head, row = namespace.kubectl("get", "sbx", "shown").splitlines()
    assert head.split()[:2] == ["NAME", "READY"]
    assert row.split()[:2] == ["shown", "True"]


def test_a_sandbox_from_yaml_with_everything_survives_a_round_trip(namespace: Namespace) -> None:
    wanted = namespace.sandbox(
        "whole",
        entries={"a": {"dir": {}, "description": "a place"}},
        pod={"labels": {"team": "a"}, "annotations": {"note": "b"}, "tolerations": [{"operator": "Exists"}]},
        security={"runAsUser": 1234, "runAsGroup": 1234, "fsGroup": 1234},
        network={"egress": "None"},
        ports=[8080],
    )
    namespace.apply(wanted)
    namespace.wait_ready("whole")
    got = yaml.safe_load(namespace.kubectl("get", SANDBOX, "whole", "-o", "yaml"))
    assert got["spec"] == wanted["spec"]
    pod = namespace.get("pod", namespace.pod_name("whole"))
    assert pod
    assert pod["metadata"]["labels"]["team"] == "a"
    assert namespace.sh("whole", "id -u").strip() == "1234"
