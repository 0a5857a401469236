"""The chart installs the CRDs that the models generate, whatever Helm's templates do to them on the way."""

from __future__ import annotations

import importlib.util

import yaml

from tests.chart.release import CHART, of_kind, render

REPOSITORY = CHART.parents[1]


def test_the_copy_is_what_the_models_generate() -> None:
    spec = importlib.util.spec_from_file_location("copy_crds", REPOSITORY / "charts" / "copy_crds.py")
    assert spec is not None
    assert spec.loader is not None
    copy_crds = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy_crds)
    assert copy_crds.differences() == [], "run: python3 charts/copy_crds.py"


def test_what_is_rendered_differs_in_labels_and_annotations_alone() -> None:
    source = {
        crd["metadata"]["name"]: crd
        for crd in (yaml.safe_load(file.read_text()) for file in (REPOSITORY / "crds").glob("*.yaml"))
    }
    rendered = {crd["metadata"]["name"]: crd for crd in of_kind(render(), "CustomResourceDefinition")}
    assert rendered.keys() == source.keys()
    assert rendered, "crds/ is empty"
    for name, crd in rendered.items():
        assert crd["spec"] == source[name]["spec"]
        assert (
            crd["metadata"]["annotations"].items() >= source[name]["metadata"].get("annotations", {}).items()
        )
