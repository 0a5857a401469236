"""The generated definitions without an API server: structure, descriptions, and that files are current."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field
from sandbox_api.crd import custom_resources, main, structural, to_yaml
from sandbox_api.v1alpha1 import ApiModel

REPOSITORY = Path(__file__).parents[2]
DEFINITIONS = custom_resources()
Node = tuple[str, dict[str, Any]]

ALLOWED = {
    *("description", "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "anyOf", "required", "properties"),
    *("additionalProperties", "items", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations"),
}


def nodes(schema: dict[str, Any], where: str = "") -> Iterator[Node]:
    yield where, schema
    for name, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{where}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from nodes(schema[inner], f"{where}[]")


def all_nodes() -> list[Node]:
    return [
        (f"{name}{where}", node)
        for name, definition in DEFINITIONS.items()
        for version in definition["spec"]["versions"]
        for where, node in nodes(version["schema"]["openAPIV3Schema"])
    ]


@pytest.mark.parametrize(("where", "node"), all_nodes(), ids=[where for where, _ in all_nodes()])
def test_every_node_is_structural_bounded_and_described(where: str, node: dict[str, Any]) -> None:
    assert node.keys() <= ALLOWED
    if node.get("x-kubernetes-int-or-string"):
        assert "type" not in node
        assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    else:
        assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}
        assert "anyOf" not in node
    meta = where.endswith((".metadata", ".apiVersion", ".kind"))
    if not where.endswith("[]") and not meta:
        assert node["description"].strip()
    if node.get("type") == "object":
        kinds = {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & node.keys()
        assert len(kinds) <= 1
        if not kinds:  # an empty structure: dir, localFile, localDir
            assert where.endswith((".dir", ".localFile", ".localDir", ".metadata"))
        if "additionalProperties" in node:
            assert node["maxProperties"]
    if node.get("type") == "array":
        assert node["maxItems"]
        assert node["x-kubernetes-list-type"] in {"atomic", "set", "map"}
        keys = node.get("x-kubernetes-list-map-keys", [])
        assert set(keys) <= set(node["items"].get("required", []))
        assert bool(keys) is (node["x-kubernetes-list-type"] == "map")
    if node.get("type") == "string" and not meta:
        assert "maxLength" in node or "enum" in node
    assert set(node.get("required", [])) <= node.get("properties", {}).keys()
    for rule in node.get("x-kubernetes-validations", []):
        assert rule["message"]
        assert "\n" not in rule["message"]
        assert len(rule["message"]) <= 2048
        assert rule["rule"]


def test_unknown_fields_are_kept_in_affinity_alone() -> None:
    kept = [where for where, node in all_nodes() if node.get("x-kubernetes-preserve-unknown-fields")]
    assert kept == ["sandboxes.yaml.spec.pod.affinity"]


def test_the_files_are_what_the_models_say() -> None:
    assert main([str(REPOSITORY / "crds"), "--check"]) == 0
    assert {path.name for path in (REPOSITORY / "crds").glob("*.yaml")} == set(DEFINITIONS)


def test_the_text_is_the_definition() -> None:
    for definition in DEFINITIONS.values():
        text = to_yaml(definition)
        assert yaml.safe_load(text) == definition
        assert text == to_yaml(custom_resources()["sandboxes.yaml"])
        assert text.isascii()
        assert "&id" not in text


def test_check_finds_what_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "new"), "--check"]) == 1
    assert main([str(tmp_path / "new")]) == 0
    assert main([str(tmp_path / "new"), "--check"]) == 0
    (tmp_path / "new" / "sandboxes.yaml").write_text("old")
    assert main([str(tmp_path / "new"), "--check"]) == 1
    assert "run `make crds`" in capsys.readouterr().err


def test_bounds_that_are_exclusive_are_written_the_old_way() -> None:
    class Model(ApiModel):
        above: int = Field(gt=0, lt=9)

    above = structural(Model)["properties"]["above"]
    assert {k: v for k, v in above.items() if "inimum" in k or "aximum" in k} == {
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 9,
        "exclusiveMaximum": True,
    }


def test_what_cannot_be_structural_is_refused() -> None:
    class Either(ApiModel):
        value: int | str

    with pytest.raises(ValueError, match=r"Either\.value: make a union of types a union of members"):
        structural(Either)

    class Unique(ApiModel):
        value: Annotated[str, Field(json_schema_extra={"uniqueItems": True})]

    with pytest.raises(ValueError, match=r"Unique\.value: a structural schema has no uniqueItems"):
        structural(Unique)
