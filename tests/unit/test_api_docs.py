"""The pages that follow from the models follow them."""

import re
from pathlib import Path

from sandbox_api.crd import custom_resources
from sandbox_api.reference import reference
from sandbox_api.v1alpha1 import ConditionType, Reason

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_is_what_the_models_say() -> None:
    assert (DOCS / "reference.md").read_text() == reference(), "run `make docs`"


def test_the_reference_names_every_section_once() -> None:
    headings = re.findall(r"^#+ .*$", reference(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    for section in (
        "spec.manifest.entries[key].gitRepo",
        "spec.manifest.environment[]",
        "status.conditions[]",
    ):
        assert f"### {section}" in headings


def test_every_rule_is_in_the_reference() -> None:
    def messages(schema: object) -> set[str]:
        if isinstance(schema, list):
            return {message for item in schema for message in messages(item)}
        if not isinstance(schema, dict):
            return set()
        own = {rule["message"] for rule in schema.get("x-kubernetes-validations", ())}
        return own | {message for item in schema.values() for message in messages(item)}

    page = reference()
    for definition in custom_resources().values():
        for message in messages(definition["spec"]["versions"][0]["schema"]):
            assert f": {message}\n" in page or f"- {message}\n" in page


def test_every_reason_is_explained_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", (DOCS / "reasons.md").read_text(), re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(Reason)
    for name, meaning, remedy in rows:
        assert meaning.endswith("."), name
        assert remedy.endswith("."), name


def test_every_condition_is_explained() -> None:
    page = (DOCS / "reasons.md").read_text()
    assert all(f"`{condition}`" in page for condition in ConditionType)
