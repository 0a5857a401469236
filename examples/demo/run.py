"""The main job, end to end: an agent repairs a git repository inside a pod.

Needs a cluster with the operator (``make demo`` sees to that). Uses a scripted model, or with
``OPENAI_API_KEY`` set the model named by ``OPENAI_MODEL``. Everything it makes lies in one namespace, which
it deletes at the end.
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from string import Template

from agents import RunConfig, RunHooks, Runner, set_tracing_disabled
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell

from runner_client import KubernetesSandboxClient

sys.path.insert(0, str(Path(__file__).parent))
from scripted import MAX_TURNS, scripted_model

HERE = Path(__file__).parent
NAMESPACE = os.environ.get("DEMO_NAMESPACE", "sandbox-demo")
IMAGE = os.environ.get("DEMO_IMAGE", "")
NAME = "shop-repair"
TESTS = "cd repo && python3 -m pytest -q"


def kubectl(*args: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
    """Run kubectl in the demo's namespace and return what it printed."""
    command = [os.environ.get("KUBECTL", "kubectl"), "--namespace", NAMESPACE, *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode:
        raise SystemExit(f"`kubectl {' '.join(args)}` failed:\n{done.stderr or done.stdout}")
    return done.stdout


def title(text: str) -> None:
    """Print the heading of a step."""
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


class Timings(RunHooks):
    """Times each tool call, as the SDK's runner sees it."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float]] = []
        self._started = 0.0

    async def on_tool_start(self, context, agent, tool) -> None:
        self._started = time.perf_counter()

    async def on_tool_end(self, context, agent, tool, result) -> None:
        elapsed = time.perf_counter() - self._started
        asked = getattr(context, "tool_input", None) or getattr(context, "tool_arguments", None) or ""
        self.rows.append((f"{tool.name} {' '.join(str(asked).split())[:60]}".strip(), elapsed))
        print(f"  {tool.name:12} {elapsed * 1000:8.1f} ms   {' '.join(str(result).split())[:90]}", flush=True)


async def repair(timings: Timings) -> str:
    """Let the agent work in the sandbox that kubectl made; the sandbox stays the caller's."""
    model = (
        os.environ.get("OPENAI_MODEL", "gpt-5.6-sol")
        if os.environ.get("OPENAI_API_KEY")
        else scripted_model()
    )
    agent = SandboxAgent(
        name="Repairer",
        model=model,
        instructions="Do what `task.md` in the workspace asks.",
        capabilities=[Shell(), Filesystem()],
    )
    async with KubernetesSandboxClient(namespace=NAMESPACE) as client:
        started = time.perf_counter()
        session = await client.attach(NAME)
        async with session:
            timings.rows.append(("attach to the sandbox", time.perf_counter() - started))
            result = await Runner.run(
                agent,
                "Please see to the task.",
                run_config=RunConfig(sandbox=SandboxRunConfig(session=session)),
                hooks=timings,
                max_turns=MAX_TURNS,
            )
    return str(result.final_output)


def main() -> None:
    """Tell the whole story, and fail loudly where it goes wrong."""
    if not IMAGE:
        raise SystemExit("DEMO_IMAGE is not set: use `make demo`, or name an image with pytest and git.")
    set_tracing_disabled(True)
    values = {"IMAGE": IMAGE, "NAMESPACE": NAMESPACE}
    timings = Timings()

    title("A git repository with a failing test, served inside the cluster")
    # What an interrupted run may have left behind goes first, so that each run starts alike.
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s")
    kubectl("create", "namespace", NAMESPACE)
    kubectl("create", "configmap", "repository", f"--from-file={HERE / 'repository'}")
    kubectl("apply", "-f", "-", stdin=Template((HERE / "git-server.yaml").read_text()).substitute(values))
    kubectl("rollout", "status", "deployment/git", "--timeout=90s")

    title("kubectl apply of a Sandbox that clones it and adds a task")
    sandbox = Template((HERE / "sandbox.yaml").read_text()).substitute(values)
    print(sandbox)
    started = time.perf_counter()
    kubectl("apply", "-f", "-", stdin=sandbox)
    try:
        kubectl("wait", "--for=condition=Ready", f"sandbox.sandbox-operator.dev/{NAME}", "--timeout=90s")
    except SystemExit:
        print(kubectl("get", "sandbox.sandbox-operator.dev", NAME, "-o", "yaml", check=False))
        raise
    timings.rows.append(("kubectl apply to Ready", time.perf_counter() - started))
    print(kubectl("get", "sbx", NAME))

    title("An agent does the task through the OpenAI Agents SDK")
    answer = asyncio.run(asyncio.wait_for(repair(timings), 300))
    print(f"\nThe agent says: {answer}")

    title("What it left in the workspace (by kubectl exec, independent of the client)")
    pod = kubectl("get", "sbx", NAME, "-o", "jsonpath={.status.podName}")
    print(kubectl("exec", pod, "-c", "workspace", "--", "cat", "report.md"))
    print(kubectl("exec", pod, "-c", "workspace", "--", "git", "-C", "repo", "diff"))
    checked = kubectl("exec", pod, "-c", "workspace", "--", "sh", "-c", TESTS)
    print(checked)
    if " passed" not in checked or "failed" in checked:
        raise SystemExit("The tests do not pass: the agent did not do its job.")

    title("Timings")
    for what, seconds in timings.rows:
        print(f"  {seconds * 1000:9.1f} ms   {what}")

    title("Deleting the sandbox, and looking for what is left")
    started = time.perf_counter()
    kubectl("delete", "sbx", NAME, "--timeout=60s")
    print(f"  deleted in {time.perf_counter() - started:.1f} s")
    left = kubectl("get", "pods,services,configmaps,secrets,persistentvolumeclaims", "-l",
                   "app.kubernetes.io/managed-by=sandbox-operator", "-o", "name")  # fmt: skip
    if left.strip():
        raise SystemExit(f"The sandbox left something behind:\n{left}")
    print("  nothing is left")
    kubectl("delete", "namespace", NAMESPACE, "--timeout=90s")
    title("Done")


if __name__ == "__main__":
    main()
