"""The operator understands the environment that the chart writes, and every value reaches it."""

from __future__ import annotations

import pytest
from sandbox_operator.settings import PREFIX, Settings

from tests.chart.release import RELEASE, VALUE_SETS, Object, environment

NOT_FROM_VALUES = {"identity", "namespace"}  # fields of the pod, by the downward API


def read(values: Object | None = None) -> Settings:
    """As the operator reads it; it refuses names that it does not know."""
    return Settings.from_environment(
        {name: value or "from-the-pod" for name, value in environment(values).items()}
    )


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_the_operator_reads_every_value_set(values: Object) -> None:
    assert read(values).identity == "from-the-pod"


def test_the_chart_writes_every_setting() -> None:
    written = {name.removeprefix(PREFIX).lower() for name in environment()}
    assert written == Settings.model_fields.keys()


def test_defaults_of_chart_and_operator_agree() -> None:
    given_by_the_chart = {"lease", "workspace_image", *NOT_FROM_VALUES}
    assert read().model_dump(exclude=given_by_the_chart) == Settings().model_dump(exclude=given_by_the_chart)


def test_every_value_reaches_the_operator() -> None:
    settings = read(VALUE_SETS["everything"])
    defaults = read()
    same = {name for name in Settings.model_fields if getattr(settings, name) == getattr(defaults, name)}
    elsewhere = {"platform_assigns_ids", "workspace_image", "workspace_image_pull_policy", "probes_port"}
    assert same <= elsewhere | NOT_FROM_VALUES
    assert settings.lease == f"{RELEASE}-boxes"
    assert settings.watch_namespaces == ("team-a",)
    assert settings.default_start_timeout == 5400
    assert settings.default_workspace_size_limit == "53687091200"
    assert settings.default_resources.requests == {"cpu": "1", "memory": "1Gi"}
    assert settings.image_pull_secrets == ("registry",)
    assert settings.insecure_git_hosts == ("git.dev.svc:8080",)
    assert settings.dns_cidrs == ()
    assert read(VALUE_SETS["openshift"]).platform_assigns_ids
    image = "registry.example.com:5000/sbx/workspace:0.1.0@sha256:" + "a" * 64
    assert read(VALUE_SETS["images"]).workspace_image == image
