"""The examples of the README run as they are written."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dev.local import binaries
from dev.local.locations import REPOSITORY

from .conftest import SANDBOX, Namespace


def example(kind: str) -> str:
    """The code block behind `<!-- test: kind -->`."""
    found = re.search(
        rf"<!-- test: {kind} -->\n```\w+\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL
    )
    assert found, f"the README has no example for {kind}"
    return found[1]


@pytest.fixture
def environment(namespace: Namespace, cluster: Any, tmp_path: Path) -> dict[str, str]:
    """What a user's shell has: kubectl in PATH, and a kubeconfig whose context names the namespace."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig.read_text())
    path = f"{binaries.kubectl().parent}:{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}
    subprocess.run(
        ["kubectl", "config", "set-context", "--current", f"--namespace={namespace.name}"],
        env=env,
        check=True,
        capture_output=True,
    )
    return env


def test_the_kubectl_example_prints_its_greeting(namespace: Namespace, environment: dict[str, str]) -> None:
    script = example("kubectl")
    assert len(script.splitlines()) <= 12
    done = subprocess.run(
        ["bash", "-euc", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("hello from the sandbox\n")
    namespace.delete("hello")


class Model(BaseHTTPRequestHandler):
    """Speaks just enough of the Responses API: asks for one command, then answers with what it printed."""

    def do_POST(self) -> None:
        """One call of the model."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        outputs = [item["output"] for item in request["input"] if item.get("type") == "function_call_output"]
        if outputs:
            text = f"In all {str(outputs[-1]).split()[-1]} were sold."
            content = [{"type": "output_text", "text": text, "annotations": []}]
            item = {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        else:
            command = "awk -F, '{sum += $2} END {print sum}' sales.csv"
            item = {
                "type": "function_call",
                "id": "f",
                "call_id": "c",
                "name": "exec_command",
                "arguments": json.dumps({"cmd": command}),
                "status": "completed",
            }
        answer = {
            "id": "r",
            "object": "response",
            "created_at": 0,
            "model": request["model"],
            "status": "completed",
            "output": [item],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def model_url() -> Iterator[str]:
    """Where a model answers on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_sdk_example_answers_and_leaves_nothing(
    namespace: Namespace, environment: dict[str, str], model_url: str
) -> None:
    script = example("python")
    assert len(script.splitlines()) <= 12
    environment |= {
        "OPENAI_API_KEY": "unused",
        "OPENAI_BASE_URL": model_url,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "In all 7 were sold.\n"
    namespace.until(lambda: not namespace.objects(SANDBOX), "the sandbox to go")
    namespace.until(lambda: not namespace.children(), "the children to go")
