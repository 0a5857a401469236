import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

# tests/ is no package (import-mode=importlib): what its files share is loaded by path, once.
_SPEC = importlib.util.spec_from_file_location("local_agent", Path(__file__).with_name("local_agent.py"))
local_agent = importlib.util.module_from_spec(_SPEC)
sys.modules["local_agent"] = local_agent
_SPEC.loader.exec_module(local_agent)

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
