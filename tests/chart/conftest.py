"""One bare API server for all tests of the chart.

Not the one that other tests share: Helm refuses CRDs that it did not make, and the policies would reach them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.local.control_plane import ControlPlane
from tests.chart.release import NAMESPACE, Cluster


@pytest.fixture(scope="session")
def api_server() -> Iterator[Cluster]:
    """The namespaces of the value sets are there; pods that are not restricted are warned of."""
    with ControlPlane() as control_plane:
        server = Cluster(control_plane.kubeconfig)
        for namespace in (NAMESPACE, "team-a", "team-b"):
            server.must("create", "namespace", namespace)
        server.must("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/warn=restricted")
        yield server
