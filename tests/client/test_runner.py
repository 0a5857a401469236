"""Runner.run with a scripted model whose tools act on a real agent: what users of the SDK do."""

import pytest
from agents import RunConfig, Runner, set_tracing_disabled
from agents.run_state import RunState
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from local_agent import eventually
from openai.types.responses import ResponseCustomToolCall

from runner_client import KubernetesSandboxClient, KubernetesSandboxClientOptions


@pytest.fixture(autouse=True)
def _no_tracing():
    set_tracing_disabled(True)


def run(command: str, number: int) -> list:
    return [function_call("exec_command", {"cmd": command}, call_id=f"call-{number}")]


def patch(text: str, number: int) -> list:
    return [
        ResponseCustomToolCall(
            type="custom_tool_call",
            name="apply_patch",
            call_id=f"call-{number}",
            id=f"item-{number}",
            input=f"*** Begin Patch\n{text}*** End Patch\n",
        )
    ]


def repairing_model() -> ScriptedModel:
    return ScriptedModel(
        [
            run("cat task.md && python3 check.py", 1),
            patch("*** Update File: check.py\n@@\n-value = 1\n+value = 2\n", 2),
            run("python3 check.py", 3),
            patch("*** Add File: report.md\n+mended\n", 4),
            patch("*** Add File: report.md\n+again\n", 5),
            [assistant_message("done")],
        ]
    )


def repairing_agent(model, workspace) -> SandboxAgent:
    entries = {
        "task.md": File(content=b"make the check pass"),
        "check.py": File(content=b"value = 1\nassert value == 2, 'no'\nprint('passed')\n"),
    }
    return SandboxAgent(
        name="Repairer",
        model=model,
        instructions="Do the task.",
        capabilities=[Shell(), Filesystem()],
        default_manifest=Manifest(root=str(workspace), entries=entries),
    )


def outputs(model: ScriptedModel) -> list[str]:
    items = model.last_call.input
    return [str(i["output"]) for i in items if isinstance(i, dict) and "output" in str(i.get("type"))]


async def test_the_runner_makes_works_in_and_deletes_a_sandbox(cluster_in_memory, workspace):
    model = repairing_model()
    config = SandboxRunConfig(client=KubernetesSandboxClient(access=cluster_in_memory))
    result = await Runner.run(repairing_agent(model, workspace), "go", run_config=RunConfig(sandbox=config))
    assert result.final_output == "done"
    said = outputs(model)
    assert "make the check pass" in said[0]
    assert "AssertionError: no" in said[0]
    assert "Process exited with code 1" in said[0]
    assert "passed" in said[2]
    assert "exists" in said[4]
    assert (workspace / "report.md").read_text().strip() == "mended"
    assert cluster_in_memory.sandboxes() == []
    assert not cluster_in_memory.connected


async def test_options_as_a_dictionary(cluster_in_memory, workspace):
    model = ScriptedModel([[assistant_message("done")]])
    config = SandboxRunConfig(
        client=KubernetesSandboxClient(access=cluster_in_memory),
        options={"type": "kubernetes", "image": "debian:13", "ttl": "1h"},
    )
    assert isinstance(config.options, dict | KubernetesSandboxClientOptions)
    await Runner.run(repairing_agent(model, workspace), "go", run_config=RunConfig(sandbox=config))
    created = [r for r in cluster_in_memory.api.requests if r[:2] == ("create", "sandboxes")]
    assert len(created) == 1


async def test_an_injected_session_stays(cluster_in_memory, workspace):
    model = repairing_model()
    client = KubernetesSandboxClient(access=cluster_in_memory)
    session = await client.create(manifest=Manifest(root=str(workspace)))
    agent = repairing_agent(model, workspace)
    await session.start()
    for name, content in agent.default_manifest.entries.items():
        (workspace / str(name)).write_bytes(content.content)
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(session=session)))
    assert result.final_output == "done"
    assert await session.running()
    assert len(cluster_in_memory.sandboxes()) == 1
    await client.delete(session)


async def test_an_injected_session_that_was_not_started_gets_its_manifest(cluster_in_memory, workspace):
    model = repairing_model()
    client = KubernetesSandboxClient(access=cluster_in_memory)
    agent = repairing_agent(model, workspace)
    session = await client.create(manifest=agent.default_manifest)
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(session=session)))
    assert result.final_output == "done"
    assert "make the check pass" in outputs(model)[0]
    await client.delete(session)


async def test_a_paused_run_goes_on_in_a_replacement(cluster_in_memory, workspace, tmp_path):
    snapshot = LocalSnapshotSpec(base_path=tmp_path / "snapshots")

    def agent(model):
        shell = Shell(configure_tools=_ask_first)
        return SandboxAgent(
            name="Careful",
            model=model,
            instructions="Ask first.",
            capabilities=[shell],
            default_manifest=Manifest(root=str(workspace), entries={"a": File(content=b"1")}),
        )

    def config():
        client = KubernetesSandboxClient(access=cluster_in_memory)
        return RunConfig(sandbox=SandboxRunConfig(client=client, snapshot=snapshot))

    first = agent(ScriptedModel([run("echo 2 > a", 1)]))
    result = await Runner.run(first, "go", run_config=config())
    assert result.interruptions
    assert cluster_in_memory.sandboxes() == []
    saved = result.to_state().to_json()
    model = ScriptedModel([run("cat a", 2), [assistant_message("done")]])
    second = agent(model)
    state = await RunState.from_json(second, saved)
    for interruption in state.get_interruptions():
        state.approve(interruption)
    result = await Runner.run(second, state, run_config=config())
    while result.interruptions:
        state = result.to_state()
        for interruption in state.get_interruptions():
            state.approve(interruption)
        result = await Runner.run(second, state, run_config=config())
    assert result.final_output == "done"
    assert "2" in outputs(model)[-1].splitlines()[-1]
    assert cluster_in_memory.sandboxes() == []


def _ask_first(toolset) -> None:
    toolset.exec_command.needs_approval = True


async def test_streamed_runs(cluster_in_memory, workspace):
    model = ScriptedModel([run("cat task.md > copy.md", 1), [assistant_message("done")]])
    config = SandboxRunConfig(client=KubernetesSandboxClient(access=cluster_in_memory))
    result = Runner.run_streamed(
        repairing_agent(model, workspace), "go", run_config=RunConfig(sandbox=config)
    )
    async for _ in result.stream_events():
        pass
    assert result.final_output == "done"
    assert (workspace / "copy.md").read_text() == "make the check pass"
    await eventually(lambda: not cluster_in_memory.sandboxes())


async def test_a_failing_model_leaves_no_sandbox(cluster_in_memory, workspace):
    model = ScriptedModel([run("true", 1), ModelStep(error=RuntimeError("model down"))])
    config = SandboxRunConfig(client=KubernetesSandboxClient(access=cluster_in_memory))
    with pytest.raises(RuntimeError, match="model down"):
        await Runner.run(repairing_agent(model, workspace), "go", run_config=RunConfig(sandbox=config))
    assert cluster_in_memory.sandboxes() == []
