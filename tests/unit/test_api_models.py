"""The models: there and back, what they refuse, and that what they take breaks no rule of theirs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sandbox_api.v1alpha1 import Pod, Sandbox, SandboxSpec, parse_problems, problems
from sandbox_api.v1alpha1.paths import ancestors
from sandbox_api.v1alpha1.quantity import amount

from tests.crds.cases import RIGHT


@pytest.mark.parametrize("case", RIGHT)
def test_there_and_back(case: str) -> None:
    spec = SandboxSpec.model_validate(RIGHT[case])
    again = SandboxSpec.model_validate(spec.to_wire())
    assert again == spec
    if case not in {"quantities", "the smallest volume"}:  # numbers come back as text
        assert spec.to_wire() == RIGHT[case]
    assert problems(spec) == []


def test_objects_of_a_newer_api_server_are_read() -> None:
    sandbox = Sandbox.model_validate(
        {
            "apiVersion": "sandbox-operator.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": {
                "name": "a",
                "namespace": "b",
                "uid": "c",
                "managedFields": [],
                "ownerReferences": [],
            },
            "spec": {"resources": {"limits": {"cpu": 1}}},
            "status": {"podUID": "x", "laterField": 1},
        }
    )
    assert sandbox.spec.resources is not None
    assert sandbox.spec.resources.limits == {"cpu": "1"}
    assert sandbox.status is not None
    assert sandbox.status.pod_uid == "x"


def test_specs_are_immutable_and_closed() -> None:
    spec = SandboxSpec(image="a")
    with pytest.raises(ValidationError):
        spec.image = "b"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        SandboxSpec.model_validate({"imge": "a"})
    with pytest.raises(ValidationError):
        SandboxSpec.model_validate({"resources": {"limits": {"cpu": True}}})


def test_affinity_is_bounded_where_no_schema_can() -> None:
    """Neither in length nor in depth, which is no length at all."""
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    for affinity in ({"a": "x" * 16_384}, deep):
        spec = SandboxSpec.model_construct(pod=Pod.model_construct(affinity=affinity))
        assert problems(spec) == ["spec.pod.affinity: affinity can have at most 16384 bytes as JSON"]
    assert problems(SandboxSpec.model_validate({"pod": {"affinity": {"a": "x" * 16_000}}})) == []


def test_what_cannot_be_parsed_is_told_without_values() -> None:
    spec = {
        "manifest": {"entries": {"a/b": {"file": {"content": 5, "s3cret": "s3cret"}}}},
        "ports": ["s3cret!"],
    }
    with pytest.raises(ValidationError) as caught:
        SandboxSpec.model_validate(spec)
    found = parse_problems(caught.value)
    assert "spec.manifest.entries[a/b].file.content: Input should be a valid string" in found
    assert any(line.startswith("spec.ports[0]: ") for line in found)
    assert not any("s3cret!" in line for line in found)


def test_problems_name_their_fields() -> None:
    spec = SandboxSpec.model_validate(
        {
            "args": ["x"],
            "manifest": {
                "root": "/proc",
                "entries": {"../a": {}, "b c": {"gitRepo": {"url": "file:///x"}}},
                "environment": [{"name": "SANDBOX_X", "value": ""}],
            },
            "lifecycle": {"ttl": "0h"},
        }
    )
    assert sorted({line.partition(": ")[0] for line in problems(spec)}) == [
        "spec.args",
        "spec.lifecycle.ttl",
        "spec.manifest.entries",
        "spec.manifest.entries[../a]",
        "spec.manifest.entries[b c].gitRepo.url",
        "spec.manifest.environment[0].name",
        "spec.manifest.root",
    ]


@pytest.mark.parametrize(
    ("less", "more"),
    [("1", "1001m"), ("1M", "1Mi"), ("999k", "1M"), ("1.5Gi", "1537Mi"), ("0", "1m"), ("1Pi", "1.2P")],
)
def test_quantities_are_compared(less: str, more: str) -> None:
    assert amount(less) < amount(more)


# -- any spec of these parts is one that the rules take

NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=20
).filter(lambda name: name not in {".", ".."} and len(name.encode()) <= 40)
PATHS = st.lists(NAMES, min_size=1, max_size=12).map("/".join)
REFERENCES = st.fixed_dictionaries(
    {"name": st.just("name"), "key": st.from_regex(r"[-_a-zA-Z0-9][-._a-zA-Z0-9]{0,20}", fullmatch=True)}
)
SOURCES = st.one_of(
    st.fixed_dictionaries({"configMapKeyRef": REFERENCES}),
    st.fixed_dictionaries({"secretKeyRef": REFERENCES}),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
ARGUMENTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
LEAVES = st.one_of(
    st.fixed_dictionaries({"file": st.fixed_dictionaries({"content": TEXTS})}),
    st.fixed_dictionaries({"file": st.fixed_dictionaries({"contentFrom": SOURCES})}),
    st.just({"localFile": {}}),
)
BRANCHES = st.one_of(
    st.just({"dir": {}}),
    st.just({"localDir": {}}),
    st.just({"gitRepo": {"host": "github.com", "repo": "owner/name"}}),
)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Entries of which only directories have anything beneath them."""
    paths = draw(st.lists(PATHS, max_size=12, unique=True))
    inner = {above for path in paths for above in ancestors(path)}
    return {path: draw(BRANCHES if path in inner else st.one_of(LEAVES, BRANCHES)) for path in paths}


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "image": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9./:@-]{0,40}", fullmatch=True),
        "command": st.lists(ARGUMENTS, min_size=1, max_size=4),
        "ports": st.lists(st.integers(1, 65535), max_size=4, unique=True),
        "lifecycle": st.fixed_dictionaries({"ttl": st.from_regex(r"[1-9][0-9]{0,4}[hms]", fullmatch=True)}),
        "network": st.fixed_dictionaries({"egress": st.sampled_from(["Cluster", "Internet"])}),
        "manifest": st.fixed_dictionaries(
            {},
            optional={
                "root": st.lists(NAMES.filter(lambda name: ":" not in name), min_size=2, max_size=3).map(
                    lambda names: "/w" + "/".join(names)
                ),
                "entries": trees(),
                "environment": st.lists(
                    st.fixed_dictionaries(
                        {
                            "name": st.from_regex(r"[A-RT-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
                            "value": ARGUMENTS,
                        }
                    ),
                    max_size=4,
                ),
            },
        ),
    },
)


@given(SPECS)
def test_what_is_built_right_has_no_problems(wire: dict[str, Any]) -> None:
    spec = SandboxSpec.model_validate(wire)
    assert problems(spec) == []
    assert spec.to_wire() == wire
