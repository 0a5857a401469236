"""Names of images say their content."""

import re
import shutil
from pathlib import Path

import pytest

from dev.local import image_context, images
from dev.local.locations import REPOSITORY


def test_names_are_stable_and_differ_by_base() -> None:
    first = images.reference("operator", "base-1")
    assert re.fullmatch(r"sandbox-operator/operator:dev-[0-9a-f]{12}", first)
    assert first == images.reference("operator", "base-1")
    assert first != images.reference("operator", "base-2")
    assert images.reference("demo", "base-1", "registry.example/team").startswith(
        "registry.example/team/demo:dev-"
    )


def test_a_change_of_the_workspace_leaves_the_operator_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("api", "operator", "agent"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    monkeypatch.setattr(image_context, "REPOSITORY", tmp_path)
    before = {image: images.reference(image, "base") for image in images.IMAGES}
    (tmp_path / "operator/sandbox_workspace/added.py").write_text("x = 1\n")
    after = {image: images.reference(image, "base") for image in images.IMAGES}
    assert {image for image in images.IMAGES if before[image] != after[image]} == {"workspace"}


def test_what_a_build_leaves_behind_changes_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(REPOSITORY / "operator", tmp_path / "operator")
    monkeypatch.setattr(image_context, "REPOSITORY", tmp_path)
    before = image_context.digest([], image_context.sources_of("sandbox_workspace"))
    cached = tmp_path / "operator/sandbox_workspace/__pycache__"
    cached.mkdir(exist_ok=True)
    (cached / "added.cpython-311.pyc").write_bytes(b"x")
    assert before == image_context.digest([], image_context.sources_of("sandbox_workspace"))


def test_the_operator_image_gets_neither_the_client_nor_another_kubernetes_client() -> None:
    names = {re.split(r"[<>=~!\[ ]", requirement)[0] for requirement in image_context.requirements()}
    assert names == {"aiohttp", "kopf", "pydantic", "pyyaml"}


def test_both_images_run_as_a_numbered_user_without_a_compiler() -> None:
    dockerfile = (REPOSITORY / "operator" / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)[2:]
    assert [stage.split()[2] for stage in stages] == ["operator", "workspace"]
    for stage in stages:
        assert re.search(r"^USER \d+:\d+$", stage, re.MULTILINE)
        assert "gcc" not in stage
        assert "golang" not in stage
