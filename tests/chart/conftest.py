"""One bare API server for all tests of the chart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.local.control_plane import ControlPlane
from tests.chart.release import NAMESPACE, Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """An API server with the namespaces that the value sets name."""
    with ControlPlane() as control_plane:
        cluster = Cluster(control_plane.kubeconfig)
        for namespace in (NAMESPACE, "team-a", "team-b"):
            cluster.must("create", "namespace", namespace)
        yield cluster
