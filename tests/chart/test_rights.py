"""What the chart's roles allow: exactly what is needed, as the API server judges it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.chart.release import NAMESPACE, VALUE_SETS, Cluster, Object, of_kind, render

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:sandbox-operator"


def operator_roles(objects: list[Object]) -> list[Object]:
    bound = {
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for each in of_kind(objects, "RoleBinding", "ClusterRoleBinding")
    }
    return [
        each
        for each in of_kind(objects, "Role", "ClusterRole")
        if (each["kind"], each["metadata"]["name"]) in bound
    ]


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_no_role_names_secrets_exec_or_everything(values: Object) -> None:
    objects = render(values)
    for role in of_kind(objects, "Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"escalate", "bind", "impersonate", "approve"} & set(rule["verbs"])
    for role in operator_roles(objects):
        named = {resource for rule in role["rules"] for resource in rule["resources"]}
        assert not named & {
            *("secrets", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers"),
            *("serviceaccounts", "serviceaccounts/token", "nodes", "nodes/proxy"),
            *("roles", "rolebindings", "clusterroles", "clusterrolebindings"),
        }


def test_roles_are_for_the_parts_of_the_cluster_that_they_say() -> None:
    roles = {each["metadata"]["name"]: each for each in of_kind(render(), "ClusterRole")}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    joined = {
        name: {label.removeprefix(prefix) for label in role["metadata"]["labels"] if label.startswith(prefix)}
        for name, role in roles.items()
    }
    assert joined == {
        "sandbox-operator": set(),
        "sandbox-operator-edit": {"edit", "admin"},
        "sandbox-operator-view": {"view"},
        "sandbox-operator-client": set(),
    }


@pytest.fixture(scope="module")
def installed(api_server: Cluster) -> Iterator[Cluster]:
    """Roles of a cluster-wide release and, in team-b, an agent that may use sandboxes."""
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    documents = yaml.safe_dump_all(of_kind(render(), *kinds))
    api_server.must("apply", "-f", "-", stdin=documents)
    agent = ("--clusterrole=sandbox-operator-client", "--serviceaccount=team-b:agent")
    api_server.must("-n", "team-b", "create", "rolebinding", "agent", *agent)
    yield api_server
    api_server.must("-n", "team-b", "delete", "rolebinding", "agent")
    api_server.must("delete", "-f", "-", stdin=documents)


def may(server: Cluster, account: str, verb: str, resource: str, namespace: str) -> bool:
    """As the API server judges it, which need not know the resource (`kubectl auth can-i` does)."""
    path, _, subresource = resource.partition("/")
    name, _, group = path.partition(".")
    attributes = {"verb": verb, "group": group, "resource": name, "namespace": namespace}
    attributes |= {"subresource": subresource} if subresource else {}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": attributes},
    }
    answer = server.must("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


@pytest.mark.apiserver
@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "expected"),
    [
        ("watch", "pods", "team-a", True),
        ("delete", "pods", "team-a", True),
        ("create", "networkpolicies.networking.k8s.io", "team-a", True),
        ("patch", "sandboxes.sandbox-operator.dev/status", "team-a", True),
        ("update", "sandboxes.sandbox-operator.dev", "team-a", False),
        ("create", "sandboxes.sandbox-operator.dev", "team-a", False),
        ("patch", "configmaps", "team-a", False),
        ("create", "leases.coordination.k8s.io", NAMESPACE, True),
        ("create", "leases.coordination.k8s.io", "team-a", False),
        ("get", "secrets", "team-a", False),
        ("list", "secrets", NAMESPACE, False),
        ("create", "pods/exec", "team-a", False),
        ("get", "pods/exec", "team-a", False),
        ("update", "pods/ephemeralcontainers", "team-a", False),
        ("create", "serviceaccounts/token", "team-a", False),
        ("list", "namespaces", "team-a", False),
        ("create", "clusterroles", "team-a", False),
    ],
)
def test_what_the_operator_may(
    installed: Cluster, verb: str, resource: str, namespace: str, expected: bool
) -> None:
    assert may(installed, ACCOUNT, verb, resource, namespace) is expected


@pytest.mark.apiserver
@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "expected"),
    [
        ("create", "pods/exec", "team-b", True),
        ("get", "pods/exec", "team-b", True),
        ("create", "secrets", "team-b", True),
        ("get", "secrets", "team-b", False),
        ("create", "pods", "team-b", False),
        ("create", "pods/exec", "team-a", False),
    ],
)
def test_what_a_client_may(
    installed: Cluster, verb: str, resource: str, namespace: str, expected: bool
) -> None:
    assert may(installed, "system:serviceaccount:team-b:agent", verb, resource, namespace) is expected
