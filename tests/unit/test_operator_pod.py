"""The pod that a spec becomes, and the plan that its init container reads."""

import json
from typing import Any

import pytest
from sandbox_operator.sandbox.materialize_plan import MAX_ANNOTATION_BYTES, materialize_plan, octal
from sandbox_operator.sandbox.names import lasting_name, pod_name
from sandbox_operator.sandbox.network import covers, ports_policy, same_policy, shared_policies
from sandbox_operator.sandbox.pod import render_pod
from sandbox_operator.sandbox.service import render_service
from sandbox_operator.sandbox.spec_digest import changed_fields, digest_of
from sandbox_operator.sandbox.validate import parse_spec
from sandbox_operator.sandbox.view import SandboxView
from sandbox_operator.settings import Settings
from sandbox_workspace.plan import parse_plan

from .operator_objects import SETTINGS, UID, sandbox


def render(
    spec: dict[str, Any], settings: Settings = SETTINGS
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    view = SandboxView(sandbox(spec))
    parsed, problem = parse_spec(view.spec)
    assert parsed is not None, problem
    return render_pod(view, parsed, settings, 1)


def workspace(spec: dict[str, Any], settings: Settings = SETTINGS) -> dict[str, Any]:
    pod, _ = render(spec, settings)
    container: dict[str, Any] = pod["spec"]["containers"][1]
    return container


def plan_of(entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    parsed, problem = parse_spec({"manifest": {"entries": entries}})
    assert parsed is not None, problem
    plan = materialize_plan(parsed.manifest, **more)
    parse_plan(plan.text)  # the init container takes it
    document: dict[str, Any] = json.loads(plan.text)
    return document


# -- the pod


def test_containers_have_the_documented_names_and_order() -> None:
    pod, _ = render({})
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["materialize"]
    assert [c["name"] for c in pod["spec"]["containers"]] == ["keeper", "workspace"]
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "workspace"
    assert pod["spec"]["restartPolicy"] == "Always"


def test_no_container_can_do_more_than_the_restricted_standard_lets_it() -> None:
    pod, _ = render({})
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is (container["name"] != "workspace")
    for volume in spec["volumes"]:
        assert "sizeLimit" in volume["emptyDir"]
    assert not any(key.startswith("host") for key in spec)


def test_the_workspace_sees_the_agent_read_only_and_never_the_sources() -> None:
    entries = {"a": {"file": {"contentFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}}}
    pod, _ = render({"manifest": {"entries": entries}})
    mounts = {m["name"]: m for m in pod["spec"]["containers"][1]["volumeMounts"]}
    assert mounts["agent"] == {"name": "agent", "mountPath": "/.sandbox/bin", "readOnly": True}
    assert set(mounts) == {"workspace", "agent", "run", "home"}
    assert "volumeMounts" not in pod["spec"]["containers"][0]
    init = {m["name"]: m["mountPath"] for m in pod["spec"]["initContainers"][0]["volumeMounts"]}
    assert init == {"workspace": "/mnt/workspace", "agent": "/mnt/agent", "sources": "/mnt/sources"}
    [sources] = [v["projected"]["sources"] for v in pod["spec"]["volumes"] if v["name"] == "sources"]
    assert sources == [{"secret": {"name": "s", "items": [{"key": "k", "path": "0/k"}], "optional": True}}]


def test_ids_default_to_1000_are_the_users_where_set_and_the_platforms_where_it_assigns_them() -> None:
    ids = ("runAsUser", "runAsGroup", "fsGroup")

    def of(spec: dict[str, Any], settings: Settings = SETTINGS) -> list[Any]:
        context = render(spec, settings)[0]["spec"]["securityContext"]
        return [context.get(key) for key in ids]

    assigning = SETTINGS.model_copy(update={"platform_assigns_ids": True})
    assert of({}) == [1000, 1000, 1000]
    assert of({"security": {"runAsUser": 5, "fsGroup": 7}}) == [5, 1000, 7]
    assert of({}, assigning) == [None, None, None]
    assert of({"security": {"runAsUser": 5}}, assigning) == [5, None, None]


def test_the_command_comes_after_two_dashes_and_no_dollar_is_expanded() -> None:
    command = workspace(
        {
            "command": ["sh", "-c", "echo $(HOME) $X"],
            "args": ["$$"],
            "lifecycle": {"stopGrace": "1m"},
            "manifest": {
                "root": "/w",
                "pathGrants": [{"path": "/opt/a"}, {"path": "/opt/b", "readOnly": True}],
            },
        }
    )["command"]
    assert command == [
        "/.sandbox/bin/agent", "init", "--root", "/w", "--grace", "60", "--grant", "/opt/a",
        "--grant-read-only", "/opt/b", "--", "sh", "-c", "echo $$(HOME) $$X", "$$$$",
    ]  # fmt: skip


def test_the_grace_of_the_pod_is_the_users_and_the_agents_last_words() -> None:
    assert render({})[0]["spec"]["terminationGracePeriodSeconds"] == 7
    assert render({"lifecycle": {"stopGrace": "0s"}})[0]["spec"]["terminationGracePeriodSeconds"] == 2


def test_home_is_ours_unless_the_manifest_sets_it() -> None:
    assert workspace({})["env"] == [{"name": "HOME", "value": "/home/sandbox"}]
    mine = {"manifest": {"environment": [{"name": "HOME", "value": "/w"}]}}
    assert workspace(mine)["env"] == [{"name": "HOME", "value": "/w"}]


def test_a_variable_from_a_missing_secret_is_an_error_not_a_silence() -> None:
    variable = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    [_, env] = workspace({"manifest": {"environment": [variable]}})["env"]
    assert env == {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def test_placement_and_metadata_are_the_users_but_never_over_ours() -> None:
    pod, _ = render(
        {
            "pod": {
                "nodeSelector": {"a": "b"},
                "tolerations": [{"operator": "Exists"}],
                "labels": {
                    "team": "x",
                    "app.kubernetes.io/managed-by": "me",
                    "sandbox-operator.dev/egress": "internet",
                },
                "annotations": {"note": "y", "sandbox-operator.dev/sandbox": "other"},
                "imagePullSecrets": [{"name": "mine"}, {"name": "ours"}],
            },
            "network": {"egress": "None"},
        },
        SETTINGS.model_copy(update={"image_pull_secrets": ("ours",)}),
    )
    assert pod["metadata"]["labels"] == {
        "team": "x",
        "app.kubernetes.io/managed-by": "sandbox-operator",
        "sandbox-operator.dev/sandbox-uid": UID,
        "sandbox-operator.dev/egress": "none",
    }
    assert pod["metadata"]["annotations"]["sandbox-operator.dev/sandbox"] == "box"
    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "ours"}, {"name": "mine"}]


def test_resources_are_the_users_as_a_whole() -> None:
    assert workspace({"resources": {"limits": {"memory": "1Mi"}}})["resources"] == {
        "limits": {"memory": "1Mi"}
    }
    assert workspace({})["resources"] == SETTINGS.default_resources.to_wire()


def test_a_large_plan_goes_into_an_owned_config_map() -> None:
    text = "x" * MAX_ANNOTATION_BYTES
    pod, config_map = render({"manifest": {"entries": {"a": {"file": {"content": text}}}}})
    assert config_map is not None
    assert config_map["metadata"]["name"] == pod["metadata"]["name"]
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == UID
    assert json.loads(config_map["data"]["plan.json"])["entries"][0]["content"] == text
    env = {e["name"]: e for e in pod["spec"]["initContainers"][0]["env"]}
    assert env["SANDBOX_PLAN_FILE"]["value"] == "/mnt/plan/plan.json"
    assert "SANDBOX_PLAN" not in env


# -- the plan


def test_parents_come_before_what_lies_beneath_them() -> None:
    entries = {p: {"dir": {}} for p in ("a-b", "a/b/c", "a", "a/b", "a.x")}
    assert [e["path"] for e in plan_of(entries)["entries"]].index("a") == 0
    paths = [e["path"] for e in plan_of(entries)["entries"]]
    assert paths.index("a") < paths.index("a/b") < paths.index("a/b/c")


def test_each_kind_of_entry_has_its_form() -> None:
    plan = plan_of(
        {
            "b64": {"file": {"contentBase64": "aGk"}},
            "dir": {"dir": {}, "permissions": "rwx------"},
            "src": {"file": {"contentFrom": {"configMapKeyRef": {"name": "m", "key": "k.txt"}}}},
            "text": {"file": {"content": ""}},
            "up": {"localDir": {}},
            "upf": {"localFile": {}},
        }
    )
    assert plan["entries"] == [
        {"path": "b64", "kind": "file", "contentBase64": "aGk=", "mode": "0755"},
        {"path": "dir", "kind": "dir", "mode": "0700"},
        {
            "path": "src",
            "kind": "file",
            "source": "0/k.txt",
            "sourceName": "ConfigMap m, key k.txt",
            "mode": "0755",
        },
        {"path": "text", "kind": "file", "content": "", "mode": "0755"},
        {"path": "up", "kind": "upload-dir", "mode": "0755"},
        {"path": "upf", "kind": "upload-file", "mode": "0755"},
    ]
    assert "git" not in plan


def test_a_private_repository_gets_its_own_credentials_and_authority() -> None:
    repo = {
        "host": "h:8443", "repo": "o/n", "ref": "main", "subpath": "docs",
        "credentialsSecretRef": {"name": "s"}, "caConfigMapRef": {"name": "ca", "key": "x.pem"},
    }  # fmt: skip
    plan = plan_of({"r": {"gitRepo": repo}}, insecure_hosts=("x:80",), git_timeout=9.0)
    assert plan["entries"] == [
        {
            "path": "r", "kind": "git", "url": "https://h:8443/o/n.git", "ref": "main", "subpath": "docs",
            "credentials": "git-0", "ca": "git-0-ca/ca.crt", "mode": "0755",
        }
    ]  # fmt: skip
    assert plan["git"] == {"insecureHosts": ["x:80"], "timeoutSeconds": 9}


def test_repositories_never_share_a_directory_of_credentials() -> None:
    repos = {
        name: {"gitRepo": {"url": f"https://{name}/r", **({"credentialsSecretRef": {"name": name}} if cred else {}),
                           **({"caConfigMapRef": {"name": name}} if ca else {})}}
        for name, cred, ca in (("a", True, True), ("b", False, True), ("c", True, False), ("d", True, True))
    }  # fmt: skip
    seen = [
        e[key].split("/")[0] for e in plan_of(repos)["entries"] for key in ("credentials", "ca") if key in e
    ]
    assert len(seen) == len(set(seen)) == 6


def test_the_digest_is_of_the_entries_alone() -> None:
    one = plan_of({"a": {"gitRepo": {"url": "https://h/r"}}}, git_timeout=1.0)
    other = plan_of({"a": {"gitRepo": {"url": "https://h/r"}}}, git_timeout=2.0)
    assert one["digest"] == other["digest"] != plan_of({"a": {"dir": {}}})["digest"]


@pytest.mark.parametrize(
    ("text", "mode"), [(None, "0755"), ("rwxr-x---", "0750"), ("---------", "0000"), ("rw-r--r--", "0644")]
)
def test_permissions_become_octal(text: str | None, mode: str) -> None:
    assert octal(text) == mode


# -- names


def test_names_are_labels_and_carry_the_incarnation() -> None:
    for name in ("a", "a.b", "n" * 253, "9lives", "a" * 49 + "-b", "a" * 49 + ".b"):
        for made in (pod_name(name, UID, 1), lasting_name(name, UID)):
            assert len(made) <= 63
            assert made[0].isalpha()
            assert made.replace("-", "").isalnum()
            assert "--" not in made[-13:]
    assert pod_name("a", UID, 1) != pod_name("a", UID, 2) != lasting_name("a", UID)


# -- policies and Services


def test_egress_classes_open_what_they_say() -> None:
    def egress(kind: str) -> Any:
        parsed, _ = parse_spec({"network": {"egress": kind}})
        assert parsed is not None
        assert parsed.network is not None
        assert parsed.network.egress is not None
        deny, policy = shared_policies("ns", parsed.network.egress, SETTINGS)
        assert deny["spec"]["policyTypes"] == ["Ingress"]
        assert "ingress" not in deny["spec"]
        return policy["spec"].get("egress", [])

    assert egress("None") == []
    assert {"to": [{"namespaceSelector": {}}]} in egress("Cluster")
    blocks = [peer["ipBlock"] for peer in egress("Internet")[1]["to"]]
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= set(blocks[0]["except"])
    assert not any("namespaceSelector" in peer for peer in egress("Internet")[1]["to"])


def test_the_clusters_own_addresses_are_not_the_internet() -> None:
    parsed, _ = parse_spec({"network": {"egress": "Internet"}})
    assert parsed is not None
    assert parsed.network is not None
    assert parsed.network.egress is not None
    settings = SETTINGS.model_copy(update={"cluster_cidrs": ("34.1.0.0/16", "2600::/32")})
    _, policy = shared_policies("ns", parsed.network.egress, settings)
    v4, v6 = (peer["ipBlock"]["except"] for peer in policy["spec"]["egress"][1]["to"])
    assert "34.1.0.0/16" in v4
    assert "2600::/32" in v6


def test_ports_let_in_what_they_name_and_the_service_selects_by_uid() -> None:
    view = SandboxView(sandbox())
    policy, service = ports_policy(view, [90, 80, 80]), render_service(view, [90, 80, 80])
    assert [p["port"] for p in policy["spec"]["ingress"][0]["ports"]] == [80, 90]
    assert [p["port"] for p in service["spec"]["ports"]] == [80, 90]
    assert service["spec"]["selector"] == {"sandbox-operator.dev/sandbox-uid": UID}


def test_comparisons_see_what_opens_and_overlook_what_the_api_server_adds() -> None:
    wanted = {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]}
    assert same_policy(wanted, {**wanted, "ingress": []})
    assert not same_policy(wanted, {**wanted, "ingress": [{}]})
    assert not same_policy(wanted, {**wanted, "podSelector": {"matchLabels": {"a": "b", "c": "d"}}})
    assert covers({"ports": [{"port": 1}]}, {"clusterIP": "x", "ports": [{"port": 1, "nodePort": 2}]})
    assert not covers({"ports": [{"port": 1}]}, {"ports": [{"port": 1}, {"port": 2}]})


# -- what needs a restart


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"image": "b"}, ["image"]),
        ({"command": ["x"]}, ["command"]),
        (
            {"manifest": {"environment": [{"name": "A", "value": "b"}]}},
            ["manifest.entries", "manifest.environment"],
        ),
        ({"ports": [80]}, []),
        ({"lifecycle": {"ttl": "1h", "startTimeout": "1m"}}, []),
        ({"lifecycle": {"stopGrace": "1s"}}, ["lifecycle.stopGrace"]),
        ({"network": {"egress": "None"}}, []),
        ({"desiredState": "Running"}, []),
        ({"args": []}, []),
        ({"pod": {"labels": {}}}, []),
    ],
)
def test_only_what_a_running_pod_cannot_take_counts_as_changed(
    change: dict[str, Any], fields: list[str]
) -> None:
    before = {"image": "a", "manifest": {"entries": {"x": {"dir": {}}}}}
    assert changed_fields(digest_of(before), {**before, **change}) == fields


def test_the_order_of_keys_changes_nothing() -> None:
    one = {"resources": {"limits": {"a": "1", "b": "2"}}}
    other = {"resources": {"limits": {"b": "2", "a": "1"}}}
    assert changed_fields(digest_of(one), other) == []


@pytest.mark.parametrize(
    ("spec", "size"),
    [({}, 10 * 2**30), ({"workspace": {"emptyDir": {"sizeLimit": "1.5Mi"}}}, 1536 * 1024)],
)
def test_the_plan_knows_how_large_the_volume_may_become(spec: dict[str, Any], size: int) -> None:
    pod, _ = render(spec)
    plan = json.loads(pod["metadata"]["annotations"]["sandbox-operator.dev/manifest"])
    assert plan["workspaceBytes"] == size
    assert parse_plan(json.dumps(plan)).workspace_bytes == size
