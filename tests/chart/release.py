"""The chart as the tests use it: rendered or installed by the Helm that comes as a Python package."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import helm_python
import yaml

from dev.local import binaries

CHART = Path(__file__).resolve().parents[2] / "charts" / "sandbox-operator"
RELEASE = "sandbox-operator"
NAMESPACE = "sandbox-system"
VALUE_SETS = {
    file.stem: yaml.safe_load(file.read_text())
    for file in sorted((Path(__file__).parent / "values").glob("*.yaml"))
}

Object = dict[str, Any]


def render(values: Object | None = None, release: str = RELEASE) -> list[Object]:
    """All objects of the chart with some values."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values or {})
        files = chart.render(values or {}, name=release, namespace=NAMESPACE)
    documents = [yaml.safe_load_all(text) for name, text in files.items() if name.endswith(".yaml")]
    return [document for each in documents for document in each if document is not None]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Those of some kinds."""
    return [each for each in objects if each["kind"] in kinds]


def environment(values: Object | None = None) -> dict[str, str | None]:
    """The operator's environment; None where a value comes from a field of the pod."""
    (deployment,) = of_kind(render(values), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


class Cluster:
    """kubectl and Helm on one API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.kubectl_program = binaries.kubectl()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """What kubectl did and said, whether it succeeded or not."""
        command = [str(self.kubectl_program), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl printed; it must succeed."""
        done = self.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def helm(self) -> helm_python.Config:
        """Helm's connection to it; close it."""
        return helm_python.Config(kubeconfig_path=self.kubeconfig, namespace=NAMESPACE)
