"""The chart on a real API server: objects are accepted; install, upgrade and uninstall do what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest
import yaml

from tests.chart.release import CHART, NAMESPACE, RELEASE, VALUE_SETS, Cluster, Object, of_kind, render

pytestmark = pytest.mark.apiserver

KIND = "sandboxes.sandbox-operator.dev"
SANDBOX = {
    "apiVersion": "sandbox-operator.dev/v1alpha1",
    "kind": "Sandbox",
    "metadata": {"name": "left-behind", "finalizers": ["sandbox-operator.dev/cleanup"]},
    "spec": {"manifest": {"entries": {"a.md": {"file": {"content": "a"}}}}},
}


CLUSTER_WIDE = (
    "clusterroles",
    "clusterrolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
)


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_the_api_server_accepts_every_object(api_server: Cluster, values: Object) -> None:
    """Strictly, and without a warning: none about unknown fields, none about pods that are not restricted."""
    documents = yaml.safe_dump_all(render(values))
    done = api_server.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"), stdin=documents
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


@pytest.fixture
def helm(api_server: Cluster) -> Iterator[helm_python.Config]:
    """Helm, with nothing of ours in the cluster before and after."""
    with api_server.helm() as helm:
        yield helm
        for namespace in ("team-a", "team-b"):  # else one failing test would hold the CRDs of the next
            released = ("--type=merge", '-p={"metadata":{"finalizers":null}}')
            api_server.kubectl("-n", namespace, "patch", KIND, "left-behind", *released)
        helm.uninstall(RELEASE, ignore_not_found=True)
    crds = [each["metadata"]["name"] for each in of_kind(render(), "CustomResourceDefinition")]
    api_server.kubectl("delete", "crd", "--ignore-not-found", "--wait=false", *crds)


def crds(server: Cluster) -> set[str]:
    lines = server.must("get", "crd", "-o", "name").split()
    return {line.split("/", 1)[1] for line in lines}


def test_install_upgrade_uninstall(api_server: Cluster, helm: helm_python.Config) -> None:
    helm.install(CHART, RELEASE, {"operator": {"replicas": 0}})
    ours = {each["metadata"]["name"] for each in of_kind(render(), "CustomResourceDefinition")}
    assert KIND in ours <= crds(api_server)
    helm.upgrade(CHART, RELEASE, {"operator": {"replicas": 2}, "watchNamespaces": ["team-a"]})
    assert api_server.must("-n", NAMESPACE, "get", "pdb", "-o", "name")
    assert "sandbox-operator" not in api_server.must("get", "clusterrolebinding", "-o", "name")
    helm.upgrade(CHART, RELEASE, {}, reset_values=True)
    assert not api_server.must("-n", NAMESPACE, "get", "pdb", "-o", "name")
    helm.uninstall(RELEASE)
    left = api_server.must(
        *("get", "deployments,serviceaccounts,networkpolicies,roles,rolebindings", "-n", NAMESPACE),
        *("-o", "name", "-l", "app.kubernetes.io/part-of=sandbox-operator"),
    )
    left += api_server.must(
        "get",
        ",".join(CLUSTER_WIDE),
        *("-o", "name", "-l", "app.kubernetes.io/part-of=sandbox-operator"),
    )
    assert left == ""
    assert ours <= crds(api_server), "crds.keep is the default"


def finalizers(server: Cluster, namespace: str, *given: str) -> list[str]:
    """Those of a Sandbox that was created with some, as the API server stored it."""
    body = yaml.safe_dump({**SANDBOX, "metadata": {"name": "left-behind", "finalizers": list(given)}})
    end = time.monotonic() + 30
    while "There can be a delay" in server.kubectl("-n", namespace, "create", "-f", "-", stdin=body).stderr:
        assert time.monotonic() < end, "the API server does not serve its new kind"
    stored = json.loads(server.must("-n", namespace, "get", KIND, "left-behind", "-o", "json"))
    release = ("--type=merge", '-p={"metadata":{"finalizers":null}}')
    server.must("-n", namespace, "patch", KIND, "left-behind", *release)
    server.must("-n", namespace, "delete", KIND, "left-behind")
    found: list[str] = stored["metadata"].get("finalizers") or []
    return found


def test_a_sandbox_is_created_with_the_finalizer_where_the_operator_serves_and_only_while_it_is_installed(
    api_server: Cluster, helm: helm_python.Config
) -> None:
    ours = "sandbox-operator.dev/cleanup"
    helm.install(CHART, RELEASE, {"watchNamespaces": ["team-a"]})
    api_server.must("wait", "--for=condition=Established", f"crd/{KIND}")
    end = time.monotonic() + 30
    while finalizers(api_server, "team-a") != [ours]:  # the API server reads policies by a watch
        assert time.monotonic() < end, "the policy is not in force"
    assert finalizers(api_server, "team-a", "example.com/theirs") == ["example.com/theirs", ours]
    assert finalizers(api_server, "team-a", ours) == [ours]
    assert finalizers(api_server, "team-b") == []
    helm.upgrade(CHART, RELEASE, {"finalizerPolicy": {"enabled": False}})
    while finalizers(api_server, "team-a") == [ours]:
        assert time.monotonic() < end, "the policy is still in force"
    helm.uninstall(RELEASE)


def test_sandboxes_outlive_the_release_and_can_be_released(
    api_server: Cluster, helm: helm_python.Config, tmp_path: Path
) -> None:
    """The command that docs/install.md gives for sandboxes that are deleted while no operator runs."""
    helm.install(CHART, RELEASE)
    api_server.must("wait", "--for=condition=Established", f"crd/{KIND}")
    for namespace in ("team-a", "team-b"):
        api_server.must("-n", namespace, "create", "-f", "-", stdin=yaml.safe_dump(SANDBOX))
    helm.uninstall(RELEASE)
    helm.install(CHART, RELEASE)  # under the same name it takes the CRDs up again
    helm.uninstall(RELEASE)
    everywhere = (KIND, "--all-namespaces")
    api_server.must("delete", *everywhere, "--all", "--wait=false")
    assert api_server.must("get", *everywhere, "-o", "name").count("left-behind") == 2
    text = (CHART.parents[1] / "docs" / "install.md").read_text()
    (command,) = re.findall(r"<!-- test: release -->\n```sh\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {api_server.kubectl_program} "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(api_server.kubeconfig)}
    subprocess.run(["sh", "-euc", command], env=environment, check=True, timeout=60)
    assert api_server.must("get", *everywhere, "-o", "name") == ""


def test_crds_go_with_the_release_when_told_so(api_server: Cluster, helm: helm_python.Config) -> None:
    helm.install(CHART, RELEASE, {"crds": {"keep": False}})
    helm.uninstall(RELEASE, wait="watcher")
    assert not any(name.endswith("sandbox-operator.dev") for name in crds(api_server))
