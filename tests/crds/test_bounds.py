"""The bounds that docs/install.md gives for a namespace are ones that the API server takes, and counts Sandboxes by."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from dev.local import binaries
from dev.local.locations import REPOSITORY


def test_the_bounds_of_the_documentation(control_plane: Path, control_plane_kubectl, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "install.md").read_text()
    (commands,) = re.findall(r"<!-- test: bounds -->\n```sh\n(.*?)```", text, re.DOTALL)
    control_plane_kubectl("create", "namespace", "agents")
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {binaries.kubectl()} "$@"\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(control_plane),
    }
    subprocess.run(["sh", "-euc", commands], env=environment, check=True, timeout=60)
    kind = "count/sandboxes.sandbox-operator.dev"
    quota = json.loads(
        control_plane_kubectl("-n", "agents", "get", "quota", "sandboxes", "-o", "json").stdout
    )
    assert quota["spec"]["hard"][kind] == "100"
    # What a controller counts where there is one.
    full = json.dumps({"status": {"hard": quota["spec"]["hard"], "used": {**quota["spec"]["hard"]}}})
    control_plane_kubectl(
        "-n", "agents", "patch", "quota", "sandboxes", "--subresource=status", "--type=merge", "-p", full
    )
    sandbox = {
        "apiVersion": "sandbox-operator.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "one-more", "namespace": "agents"},
        "spec": {},
    }
    said = control_plane_kubectl("create", "-f", "-", stdin=json.dumps(sandbox), check=False)
    if "exceeded quota" not in said.stderr:
        pytest.fail(said.stderr + said.stdout)
    assert kind in said.stderr
