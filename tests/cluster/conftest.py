"""A namespace for each test on the shared cluster, and the few verbs that the tests speak in."""

import gc
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

SANDBOX = "sandboxes.sandbox-operator.dev"


class Namespace:
    """One namespace of the cluster, driven by kubectl as a user would."""

    def __init__(
        self, name: str, kubectl: Callable[..., subprocess.CompletedProcess[str]], image: str
    ) -> None:
        self.name = name
        self.image = image
        self._kubectl = kubectl

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run kubectl here and return its output; with ``check=False`` what it said on failure as well."""
        done = self._kubectl("--namespace", self.name, *args, stdin=stdin, check=False, timeout=timeout)
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}{done.stdout}"
            return done.stdout
        return done.stdout + done.stderr

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects."""
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def sandbox(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        """A Sandbox of the test image; ``entries`` is short for ``manifest.entries``."""
        entries = spec.pop("entries", None)
        if entries is not None:
            spec["manifest"] = {**spec.get("manifest", {}), "entries": entries}
        return {
            "apiVersion": "sandbox-operator.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"image": self.image, **spec},
        }

    def create(self, name: str, **spec: Any) -> None:
        """Apply a Sandbox."""
        self.apply(self.sandbox(name, **spec))

    def get(self, resource: str, name: str) -> dict[str, Any] | None:
        """An object, None if there is none."""
        text = self.kubectl("get", resource, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def objects(self, resource: str, *selector: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return json.loads(self.kubectl("get", resource, "-o", "json", *selector))["items"]

    def status(self, name: str) -> dict[str, Any]:
        """The status of a sandbox, empty while there is none."""
        return (self.get(SANDBOX, name) or {}).get("status", {})

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """One condition of a sandbox, empty while there is none."""
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def wait_ready(self, name: str, timeout: int = 60) -> None:
        """Wait as a user does; what the sandbox says of itself is in the failure."""
        said = self.kubectl(
            "wait", "--for=condition=Ready", f"{SANDBOX}/{name}", f"--timeout={timeout}s", check=False
        )
        if "condition met" not in said:
            pods = self.kubectl("get", "pods", "-o", "wide", check=False)
            pytest.fail(f"{said}\n{json.dumps(self.status(name), indent=1)}\n{pods}", pytrace=False)

    def wait_failure(self, name: str, reason: str, timeout: float = 60) -> dict[str, Any]:
        """Wait until ``status.failure`` carries the reason, and return the failure."""
        return self.until(
            lambda: (
                failure if (failure := self.status(name).get("failure", {})).get("reason") == reason else None
            ),
            f"{name} to fail with {reason}",
            timeout,
            lambda: json.dumps(self.status(name), indent=1),
        )

    def until(
        self,
        check: Callable[[], Any],
        what: str,
        timeout: float = 60,
        otherwise: Callable[[], str] = lambda: "",
    ) -> Any:
        """Ask until the answer is true, and return it."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if answer := check():
                return answer
            time.sleep(0.2)
        pytest.fail(f"waited {timeout:.0f} s in vain for {what}: {otherwise()}", pytrace=False)

    def pod_name(self, name: str) -> str:
        """The pod of the present incarnation."""
        return str(self.status(name)["podName"])

    def sh(self, name: str, script: str, *, check: bool = True) -> str:
        """What a shell in the sandbox prints, by plain kubectl exec."""
        return self.kubectl(
            "exec", self.pod_name(name), "-c", "workspace", "--", "sh", "-c", script, check=check
        )

    def delete(self, name: str, timeout: int = 60) -> None:
        """Delete a sandbox and wait until it is gone."""
        self.kubectl("delete", SANDBOX, name, f"--timeout={timeout}s")

    def children(self) -> list[str]:
        """Everything in the namespace that carries our label, but the shared network policies."""
        text = self.kubectl(
            "get", "pods,services,configmaps,secrets,persistentvolumeclaims", "-o", "name",
            "-l", "app.kubernetes.io/managed-by=sandbox-operator",
        )  # fmt: skip
        return text.split()


@pytest.fixture(autouse=True)
def leaks_show_in_the_test_that_made_them() -> Iterator[None]:
    """What a test leaves unclosed is collected, and so reported, before the next one."""
    yield
    gc.collect()


@pytest.fixture
def namespace(cluster: Any, kubectl: Callable[..., Any]) -> Iterator[Namespace]:
    """A namespace of the test's own, deleted afterwards without waiting."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    here = Namespace(name, kubectl, cluster.images["demo"])
    kubectl("create", "namespace", name)
    yield here
    kubectl("delete", "namespace", name, "--wait=false")
