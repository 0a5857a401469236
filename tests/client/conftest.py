import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest


def _shared(name: str):
    """tests/ is no package (import-mode=importlib): what its files share is loaded by path, once."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


local_agent = _shared("local_agent")
fake_cluster = _shared("fake_cluster")

from runner_client.stream.agent import AgentClient  # noqa: E402


@pytest.fixture(scope="session")
def agent_binary(tmp_path_factory) -> Path:
    return local_agent.build_agent(tmp_path_factory.mktemp("agent") / "agent")


@pytest.fixture
def workspace(tmp_path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
async def backend(agent_binary, workspace, tmp_path) -> AsyncIterator["local_agent.LocalAgent"]:
    granted, read_only = tmp_path / "granted", tmp_path / "read-only"
    granted.mkdir()
    read_only.mkdir()
    agent = local_agent.LocalAgent(agent_binary, workspace, grants=(granted,), read_only=(read_only,))
    await agent.start()
    yield agent
    await agent.close()


@pytest.fixture
async def client(backend) -> AsyncIterator[AgentClient]:
    async with AgentClient(backend) as client:
        yield client


@pytest.fixture
def cluster_in_memory(backend) -> "fake_cluster.FakeCluster":
    return fake_cluster.FakeCluster(backend)
