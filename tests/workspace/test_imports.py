"""What the package costs before it does anything, and what it may not know."""

import subprocess
import sys
from pathlib import Path

import sandbox_workspace
from sandbox_api.v1alpha1 import Reason as ApiReason
from sandbox_workspace.reasons import Reason

PACKAGE = Path(sandbox_workspace.__file__).parents[1]
HEAVY = (
    "asyncio",
    "aiohttp",
    "pydantic",
    "ssl",
    "http",
    "email",
    "urllib.request",
    "unittest",
    "multiprocessing",
)
FOREIGN = ("sandbox_api", "sandbox_operator", "runner_client", "kopf", "kubernetes", "agents", "yaml")


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE
    )
    return set(done.stdout.split())


def test_nothing_heavy_and_nothing_foreign() -> None:
    loaded = modules_after("import sandbox_workspace.__main__, sandbox_workspace.git")
    assert not loaded & {*HEAVY, *FOREIGN}


def test_git_is_loaded_for_repositories_only() -> None:
    loaded = modules_after("import sandbox_workspace.__main__")
    assert "sandbox_workspace.git" not in loaded
    assert not loaded & {"subprocess", "socket"}


def test_the_reasons_are_the_api_s() -> None:
    assert {reason.value for reason in Reason} <= {reason.value for reason in ApiReason}
    assert {reason.name for reason in Reason} <= {reason.name for reason in ApiReason}
