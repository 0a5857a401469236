"""A namespace of the bare control plane for each test: no kubelet, no controllers but ours."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sandbox_api.kube import NAMESPACES, KubeClient, KubeconfigCredentials

from .toy import Cluster


@pytest.fixture
async def cluster(control_plane: Path) -> AsyncIterator[Cluster]:
    async with KubeClient(KubeconfigCredentials(control_plane), connections=32) as api:
        name = f"test-{uuid.uuid4().hex[:8]}"
        await api.create(NAMESPACES, {"metadata": {"name": name}}, field_manager="test")
        yield Cluster(api, name)
