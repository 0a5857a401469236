"""What each part of the client needs to be imported."""

import subprocess
import sys

import pytest

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def python(code: str, *blocked: str) -> subprocess.CompletedProcess:
    code = BLOCK.format(blocked=set(blocked)) + code
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_typed_api_needs_neither_the_sdk_nor_kubernetes():
    code = (
        "import runner_client; runner_client.Sandboxes; runner_client.AgentClient; runner_client.AgentError"
    )
    done = python(code, "agents", "kubernetes", "kopf")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("blocked", ["agents", "kubernetes"])
def test_what_is_missing_is_said_with_its_remedy(blocked):
    use = "KubernetesSandboxClient" if blocked == "agents" else "Sandboxes"
    code = (
        "import asyncio, runner_client\n"
        f"async def main():\n    await runner_client.{use}().__aenter__()\n"
        "asyncio.run(main())"
    )
    done = python(code, blocked)
    assert "pip install 'sandbox-operator[agents]'" in done.stderr


def test_the_client_imports_neither_operator_nor_kopf():
    code = (
        "import runner_client\n"
        "for name in runner_client.__all__: getattr(runner_client, name)\n"
        "import runner_client.kube_access\n"
        "print([m for m in sys.modules if m.partition('.')[0] in"
        " ('kopf', 'sandbox_operator', 'sandbox_workspace')])"
    )
    done = python(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_unknown_names_are_attribute_errors():
    import runner_client

    with pytest.raises(AttributeError):
        _ = runner_client.Nothing


def test_options_and_state_are_registered_with_the_sdk():
    from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState

    import runner_client

    assert runner_client.KubernetesSandboxClient.backend_id == "kubernetes"
    options = BaseSandboxClientOptions.parse({"type": "kubernetes", "image": "x"})
    assert isinstance(options, runner_client.KubernetesSandboxClientOptions)
    state = SandboxSessionState.parse(
        {
            "type": "kubernetes",
            "namespace": "n",
            "name": "s",
            "snapshot": {"type": "noop", "id": "1"},
            "manifest": {},
        }
    )
    assert isinstance(state, runner_client.KubernetesSandboxSessionState)
    assert options.type == state.type == "kubernetes"
