"""The CRD at a real API server: what it takes, what it refuses and in which words, and what that costs."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sandbox_api.kube import (
    CRDS,
    NAMESPACES,
    SANDBOXES,
    BadRequest,
    Invalid,
    KubeClient,
    KubeconfigCredentials,
    NotFound,
)
from sandbox_api.v1alpha1 import MAX_ENTRY_BYTES, Sandbox, SandboxSpec, problems

from tests.crds.cases import GITHUB, RIGHT, WRONG, Spec, entries, entry, git
from tests.crds.worst import worst_specs

NAMESPACE = "crd-tests"
ME = "test"


@pytest.fixture
async def api(control_plane: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeconfigCredentials(control_plane)) as client:
        try:
            await client.get(NAMESPACES, NAMESPACE)
        except NotFound:
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}, field_manager=ME)
        yield client


async def create(api: KubeClient, spec: Spec, name: str = "a", **options: Any) -> dict[str, Any]:
    body = {"metadata": {"name": name}, "spec": spec}
    return await api.create(SANDBOXES, body, NAMESPACE, field_manager=ME, validation="Strict", **options)


async def dry_run(api: KubeClient, spec: Spec) -> dict[str, Any]:
    return await create(api, spec, dry_run=True)


async def test_the_definition_is_accepted_without_reserve(api: KubeClient) -> None:
    definition = await api.get(CRDS, "sandboxes.sandbox-operator.dev")
    conditions = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}  # and no NonStructuralSchema
    from sandbox_api.crd import custom_resources

    ours = custom_resources()["sandboxes.yaml"]
    # Under strict validation an unknown field of the definition itself would be refused.
    await api.apply(CRDS, ours, field_manager=ME, dry_run=True, validation="Strict")


@pytest.mark.parametrize("case", RIGHT)
async def test_what_is_right_is_taken_as_it_is(api: KubeClient, case: str) -> None:
    spec = RIGHT[case]
    taken = await dry_run(api, spec)
    assert taken["spec"] == spec  # nothing dropped, nothing filled in
    parsed = Sandbox.model_validate(taken)
    assert problems(parsed.spec) == []


@pytest.mark.parametrize("case", WRONG)
async def test_what_is_wrong_is_refused_in_words(api: KubeClient, case: str) -> None:
    spec, sentence = WRONG[case]
    with pytest.raises(Invalid) as caught:
        await dry_run(api, spec)
    message = " ".join(f"{cause['field']}: {cause['message']}" for cause in caught.value.causes)
    assert sentence in message, message
    # The server's remark that it checked no further has no field.
    assert all(cause["field"].startswith(("spec", "<nil>")) for cause in caught.value.causes)
    assert "spec" in str(caught.value)


@pytest.mark.parametrize("case", WRONG)
def test_python_refuses_the_same(case: str) -> None:
    spec, sentence = WRONG[case]
    try:
        parsed = SandboxSpec.model_validate(spec)
    except ValueError:
        return
    found = problems(parsed)
    listed_twice = "Duplicate value" in sentence  # the list types of the API server
    assert found or listed_twice
    assert all(line.startswith("spec") for line in found)
    assert all(len(line) < 2000 for line in found)
    if sentence[0].islower() and not sentence.startswith("spec"):
        assert any(sentence in line for line in found), found


@pytest.mark.parametrize(
    "spec",
    [
        {"imge": "x"},
        {"manifest": {"entries": {"a": {"dir": {"mode": 1}}}}},
        {"manifest": {"entries": {"a": {"link": {}}}}},
        {"security": {"privileged": True}},
        {"pod": {"hostNetwork": True}},
    ],
)
async def test_unknown_fields_are_refused(api: KubeClient, spec: Spec) -> None:
    with pytest.raises(BadRequest, match="unknown field"):
        await dry_run(api, spec)


async def test_a_spec_is_needed(api: KubeClient) -> None:
    with pytest.raises(Invalid, match="spec: Required value"):
        await api.create(SANDBOXES, {"metadata": {"name": "a"}}, NAMESPACE, field_manager=ME, dry_run=True)


# -- what can never change


@pytest.fixture
def changed(api: KubeClient) -> Callable[[Spec, Spec], Any]:
    """Creates one spec and tries to replace it by another (dry run)."""

    async def change(old: Spec, new: Spec) -> Any:
        name = f"change-{abs(hash(json.dumps([old, new], sort_keys=True)))}"
        standing = await create(api, old, name)
        try:
            body = {**standing, "spec": new}
            return await api.replace(SANDBOXES, body, field_manager=ME, dry_run=True)
        finally:
            await api.delete(SANDBOXES, name, NAMESPACE)

    return change


ROOT: Callable[[str], Spec] = lambda root: {"manifest": {"root": root}}  # noqa: E731


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (ROOT("/a"), ROOT("/b"), "spec.manifest.root: Invalid value"),
        ({}, ROOT("/b"), "manifest.root cannot change"),
        (ROOT("/a"), {}, "manifest.root cannot change"),
        (ROOT("/a"), {"manifest": {}}, "manifest.root cannot change"),
        ({"security": {"runAsUser": 5}}, {"security": {"runAsUser": 6}}, "security.runAsUser cannot change"),
        ({}, {"security": {"runAsGroup": 6}}, "security.runAsGroup cannot change"),
        ({"security": {"fsGroup": 5}}, {"security": {}}, "security.fsGroup cannot change"),
        (entry("a", dir={}), entry("a", file={"content": ""}), "spec.manifest.entries[a]: Invalid value"),
        (entry("a", dir={}), entry("a", localDir={}), "the kind of an entry cannot change"),
        (entry("a", file={"content": ""}), entry("a", gitRepo=GITHUB), "the kind of an entry cannot change"),
    ],
)
async def test_what_can_never_change(changed: Any, old: Spec, new: Spec, sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        await changed(old, new)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, ROOT("/workspace")),
        (ROOT("/workspace"), {}),
        (ROOT("/workspace"), {"manifest": {"entries": {"a": {"dir": {}}}}}),
        ({"security": {"runAsUser": 5}}, {"security": {"runAsUser": 5, "runtimeClassName": "gvisor"}}),
        ({"image": "a"}, {"image": "b", "resources": {"limits": {"cpu": 1}}, "pod": {"labels": {"a": "b"}}}),
        ({"image": "a", "command": ["a"], "ports": [1]}, {}),
        (entry("a", dir={}), entry("b", file={"content": ""})),
        (
            entry("a", file={"content": "x"}),
            entry("a", file={"contentFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}),
        ),
        (git(**GITHUB), git(url="https://github.com/owner/name", ref="main")),
        (entries(), entry("a", dir={})),
    ],
)
async def test_everything_else_can_change(changed: Any, old: Spec, new: Spec) -> None:
    assert (await changed(old, new))["spec"] == new


# -- cost


@pytest.mark.parametrize("kind", worst_specs(1))
async def test_the_worst_sandbox_can_be_created_and_updated(api: KubeClient, kind: str) -> None:
    """Static estimates of CEL costs say little: a rule can install and fail for what the schema admits."""
    spec = worst_specs()[kind]
    await create(api, spec, "worst")
    try:
        standing = await api.get(SANDBOXES, "worst", NAMESPACE)
        renewed = copy.deepcopy(standing)
        renewed["spec"]["lifecycle"] = {"ttl": "1h"}
        for member in renewed["spec"]["manifest"]["entries"].values():
            member["ephemeral"] = True
        renewed = await api.replace(SANDBOXES, renewed, field_manager=ME)
        assert renewed["metadata"]["generation"] == 2
        patch = {"status": {"podName": "a"}}
        await api.patch(SANDBOXES, "worst", NAMESPACE, patch, subresource="status", field_manager=ME)
    finally:
        await api.delete(SANDBOXES, "worst", NAMESPACE)


async def test_the_costs_leave_room(api: KubeClient) -> None:
    """With three quarters more entries than the schema admits everything still works: a rule can be added."""
    name = "sandboxes.sandbox-operator.dev"
    original = await api.get(CRDS, name)
    count = 880
    versions = copy.deepcopy(original["spec"]["versions"])
    manifest = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["manifest"]
    manifest["properties"]["entries"]["maxProperties"] = count
    for rule in manifest["properties"]["entries"]["x-kubernetes-validations"]:
        rule["rule"] = rule["rule"].replace(f"<= {MAX_ENTRY_BYTES}", f"<= {2 * MAX_ENTRY_BYTES}")
    await api.patch(CRDS, name, None, {"spec": {"versions": versions}}, field_manager=ME)
    try:
        wide = {"manifest": {"entries": {f"{i}": {"dir": {}} for i in range(count)}}}
        await _until(api, wide, accepted=True)
        for spec in worst_specs(count).values():
            await dry_run(api, spec)
    finally:
        versions = original["spec"]["versions"]
        await api.patch(CRDS, name, None, {"spec": {"versions": versions}}, field_manager=ME)
        await _until(api, wide, accepted=False)


async def _until(api: KubeClient, spec: Spec, *, accepted: bool) -> None:
    """A changed definition takes effect after a moment."""
    for _ in range(150):
        try:
            await dry_run(api, spec)
        except Invalid:
            if not accepted:
                return
        else:
            if accepted:
                return
        await asyncio.sleep(0.2)
    pytest.fail("the changed definition never took effect")


# -- what people see


async def test_columns(control_plane_kubectl: Any, api: KubeClient) -> None:
    await create(api, {"image": "demo:1"}, "columns")
    now = "2026-01-01T00:00:00Z"
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "ImagePullFailed",
        "message": "no such image",
        "lastTransitionTime": now,
    }
    status = {
        "conditions": [ready],
        "podName": "columns-0123456789",
        "restarts": 2,
        "network": {"egress": "Unknown"},
        "startedAt": now,
    }
    await api.patch(
        SANDBOXES, "columns", NAMESPACE, {"status": status}, subresource="status", field_manager=ME
    )
    try:
        narrow = control_plane_kubectl("get", "sbx", "-n", NAMESPACE).stdout
        wide = control_plane_kubectl("get", "sbx", "-n", NAMESPACE, "-o", "wide").stdout
    finally:
        await api.delete(SANDBOXES, "columns", NAMESPACE)
    assert narrow.splitlines()[0].split() == ["NAME", "READY", "REASON", "AGE"]
    assert narrow.splitlines()[1].split()[:3] == ["columns", "False", "ImagePullFailed"]
    assert wide.splitlines()[0].split()[4:] == ["POD", "IMAGE", "EGRESS", "RESTARTS", "MESSAGE"]
    assert "demo:1" in wide
    assert "no such image" in wide


async def test_a_status_that_is_not_one_is_refused(api: KubeClient) -> None:
    await create(api, {}, "status")
    try:
        for status in (
            {"startedAt": "yesterday"},
            {"conditions": [{"type": "Ready"}]},
            {"network": {"egress": "Some"}},
        ):
            with pytest.raises(Invalid):
                await api.patch(
                    SANDBOXES, "status", NAMESPACE, {"status": status}, subresource="status", field_manager=ME
                )
    finally:
        await api.delete(SANDBOXES, "status", NAMESPACE)


async def test_kubectl_explains(control_plane_kubectl: Any) -> None:
    for _ in range(60):  # the server publishes its document a moment after the definition
        shown = control_plane_kubectl("explain", "sbx.spec.manifest.entries.gitRepo", check=False)
        if shown.returncode == 0:
            break
        await asyncio.sleep(0.5)
    assert "A git repository." in shown.stdout
    assert "credentialsSecretRef" in shown.stdout


async def test_kubectl_apply_says_it_in_one_line(control_plane_kubectl: Any) -> None:
    manifest = {
        "apiVersion": "sandbox-operator.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "a", "namespace": NAMESPACE},
        "spec": entry("../../etc/passwd"),
    }
    shown = control_plane_kubectl(
        "apply", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest), check=False
    )
    assert shown.returncode != 0
    assert "spec.manifest.entries" in shown.stderr
    assert '"../../etc/passwd"' in shown.stderr
