"""The Service that publishes the ports of a sandbox. Pure."""

from collections.abc import Sequence
from typing import Any

from . import names
from .pod import child_labels, owner
from .view import SandboxView


def render_service(view: SandboxView, ports: Sequence[int]) -> dict[str, Any]:
    """The Service; it selects by a label that users cannot set."""
    return {
        "metadata": {
            "name": names.lasting_name(view.name, view.uid),
            "namespace": view.namespace,
            "labels": child_labels(view),
            "ownerReferences": [owner(view)],
        },
        "spec": {
            "selector": {names.LABEL_SANDBOX_UID: view.uid},
            "ports": [
                {"name": f"p-{port}", "protocol": "TCP", "port": port, "targetPort": port}
                for port in sorted(set(ports))
            ],
        },
    }
