"""Every example is taken by the API server as it stands."""

from pathlib import Path
from string import Template

import pytest

from dev.local.locations import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_an_example_is_admitted(control_plane_kubectl, example: Path) -> None:
    text = Template(example.read_text()).substitute(IMAGE="python:3.13-slim", NAMESPACE="default")
    said = control_plane_kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text
    ).stdout
    assert "server dry run" in said
