"""What the chart makes of its values, without any cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import helm_python
import pytest
import yaml
from helm_python import HelmError

from tests.chart.release import CHART, NAMESPACE, RELEASE, VALUE_SETS, Object, of_kind, render

each_value_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


@each_value_set
def test_lints_strictly(values: Object) -> None:
    report = helm_python.lint(CHART, values, strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@each_value_set
def test_every_object_is_complete_and_there_once(values: Object) -> None:
    objects = render(values)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))
    for each in objects:
        assert each["apiVersion"]
        assert ("namespace" in each["metadata"]) == (each["kind"] not in CLUSTER_SCOPED), each
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels.items() >= values.get("extraLabels", {}).items()


@each_value_set
def test_the_pod_is_restricted_and_selected_by_what_selects_it(values: Object) -> None:
    objects = render(values)
    (deployment,) = of_kind(objects, "Deployment")
    template = deployment["spec"]["template"]
    pod = template["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]
        assert container["startupProbe"]
        assert container["livenessProbe"]
    labels = template["metadata"]["labels"].items()
    assert labels >= deployment["spec"]["selector"]["matchLabels"].items()
    for policy in of_kind(objects, "NetworkPolicy"):
        assert labels >= policy["spec"]["podSelector"]["matchLabels"].items()
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert len(budgets) == (deployment["spec"]["replicas"] > 1)
    for budget in budgets:
        assert labels >= budget["spec"]["selector"]["matchLabels"].items()


def test_a_selector_never_changes_between_versions() -> None:
    (deployment,) = of_kind(render(), "Deployment")
    assert deployment["spec"]["selector"]["matchLabels"].keys() == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
    }


def test_images_by_tag_and_by_digest() -> None:
    (deployment,) = of_kind(render(VALUE_SETS["images"]), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com:5000/sbx/operator:dev-1"
    assert container["imagePullPolicy"] == "Never"
    digest = "sha256:" + "b" * 64
    (deployment,) = of_kind(render({"images": {"operator": {"digest": digest}}}), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert container["image"] == f"sandbox-operator/operator:{version}@{digest}"


def test_crds_are_kept_unless_told_otherwise() -> None:
    for crd in of_kind(render(), "CustomResourceDefinition"):
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for crd in of_kind(render({"crds": {"keep": False}}), "CustomResourceDefinition"):
        assert "helm.sh/resource-policy" not in crd["metadata"].get("annotations", {})
    assert of_kind(render({"crds": {"enabled": False}}), "CustomResourceDefinition") == []


def test_namespaces_bound_everything() -> None:
    """With watchNamespaces the operator has no cluster-wide right, and nothing else needs one."""
    objects = render(VALUE_SETS["namespaced"])
    assert not {each["kind"] for each in objects} & CLUSTER_SCOPED
    assert {each["metadata"]["namespace"] for each in of_kind(objects, "RoleBinding")} == {
        NAMESPACE,
        "team-a",
        "team-b",
    }
    for each in of_kind(render(VALUE_SETS["everything"]), "ValidatingAdmissionPolicyBinding"):
        (expression,) = each["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert expression["values"] == ["team-a"]


def test_service_account_names_agree() -> None:
    for values in VALUE_SETS.values():
        objects = render(values)
        (deployment,) = of_kind(objects, "Deployment")
        name = deployment["spec"]["template"]["spec"]["serviceAccountName"]
        for account in of_kind(objects, "ServiceAccount"):
            assert account["metadata"]["name"] == name
        for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
            assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]


def test_a_service_account_that_is_not_made_must_be_named() -> None:
    with pytest.raises(HelmError, match=r"serviceAccount\.name must be set"):
        render({"serviceAccount": {"create": False}})


@pytest.mark.parametrize("release", ["sandbox-operator", "x", "a" * 53])
def test_names_stay_within_63_characters(release: str) -> None:
    for each in render(release=release):
        name = each["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 63
        assert all(len(str(label)) <= 63 for label in each["metadata"]["labels"].values())


def test_every_value_is_described_in_the_schema_and_in_a_comment() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = (CHART / "values.yaml").read_text().splitlines()

    def leaves(node: Any, path: str = "") -> list[str]:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
        assert node.get("description") or node is schema, f"{path} has no description"
        if "properties" not in node:
            return [path]
        assert node["additionalProperties"] is False, f"{path} takes unknown names"
        return [leaf for name, each in node["properties"].items() for leaf in leaves(each, f"{path}.{name}")]

    values = yaml.safe_load("\n".join(text))
    for leaf in leaves(schema):
        node, names = values, leaf.strip(".").split(".")
        if names[0] == "global" or names[-1] in ("requests", "limits"):
            continue
        for name in names:
            assert name in node, f"{leaf} of the schema is not in values.yaml"
            node = node[name]
    keys = [i for i, line in enumerate(text) if re.match(r" *[a-zA-Z]+:( |$)", line)]
    for i in keys:
        opens_section = text[i].endswith(":") and "resources" not in text[i]
        inside = re.match(r" *(requests|limits):", text[i])
        assert text[i - 1].lstrip().startswith("#") or opens_section or inside, f"no comment: {text[i]}"
    with helm_python.Chart.load(CHART) as chart:
        assert chart.values.keys() == schema["properties"].keys() - {"global"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 2}, "replicas"),
        ({"operator": {"replica": 2}}, "replica"),
        ({"operator": {"replicas": "two"}}, "replicas"),
        ({"operator": {"logLevel": "loud"}}, "logLevel"),
        ({"images": {"operator": {"digest": "abc"}}}, "digest"),
        ({"images": {"workspace": {"repository": ""}}}, "repository"),
        ({"images": {"workspace": {"pullPolicy": "Sometimes"}}}, "pullPolicy"),
        ({"sandboxes": {"egress": "internet"}}, "egress"),
        ({"sandboxes": {"startTimeout": "5 minutes"}}, "startTimeout"),
        ({"sandboxes": {"workspaceSizeLimit": "plenty"}}, "workspaceSizeLimit"),
        ({"sandboxes": {"resources": {"request": {}}}}, "request"),
        ({"allowed": {"insecureGitHosts": ["http://git.dev"]}}, "insecureGitHosts"),
        ({"allowed": {"runtimeClasses": "gvisor"}}, "runtimeClasses"),
        ({"watchNamespaces": ["Team A"]}, "watchNamespaces"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets"),
        ({"execPolicy": {"containers": []}}, "containers"),
    ],
)
def test_wrong_values_are_refused_by_name(values: Object, said: str) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(HelmError, match=said):
        chart.validate_schema(values)
