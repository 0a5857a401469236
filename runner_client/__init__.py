"""Kubernetes sandboxes for the OpenAI Agents SDK, and for Python programs without it.

With the SDK::

    from runner_client import KubernetesSandboxClient
    sandbox = SandboxRunConfig(client=KubernetesSandboxClient())
    await Runner.run(agent, "…", run_config=RunConfig(sandbox=sandbox))

Without it: :class:`Sandboxes`. Everything is imported when it is first used, so that each needs only its own
dependencies.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import KubernetesSandboxClient
    from .failures import SandboxFailedError, SandboxGoneError, SandboxProblem, SandboxTimeoutError
    from .options import KubernetesSandboxClientOptions
    from .sandboxes import Sandboxes
    from .session import KubernetesSandboxSession
    from .state import KubernetesSandboxSessionState
    from .stream.agent import AgentClient, ExecResult, FileInfo
    from .stream.errors import AgentError

__all__ = [
    "AgentClient",
    "AgentError",
    "ExecResult",
    "FileInfo",
    "KubernetesSandboxClient",
    "KubernetesSandboxClientOptions",
    "KubernetesSandboxSession",
    "KubernetesSandboxSessionState",
    "SandboxFailedError",
    "SandboxGoneError",
    "SandboxProblem",
    "SandboxTimeoutError",
    "Sandboxes",
]

_HOME = {
    "AgentClient": "stream.agent",
    "AgentError": "stream.errors",
    "ExecResult": "stream.agent",
    "FileInfo": "stream.agent",
    "KubernetesSandboxClient": "client",
    "KubernetesSandboxClientOptions": "options",
    "KubernetesSandboxSession": "session",
    "KubernetesSandboxSessionState": "state",
    "SandboxFailedError": "failures",
    "SandboxGoneError": "failures",
    "SandboxProblem": "failures",
    "SandboxTimeoutError": "failures",
    "Sandboxes": "sandboxes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f".{_HOME[name]}", __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("agents", "kubernetes"):
            raise ImportError(
                f"{name} needs the OpenAI Agents SDK: pip install 'sandbox-operator[agents]'"
            ) from error
        raise
    return getattr(module, name)
