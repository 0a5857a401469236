"""What the administrator decides: read once, from environment variables that the chart writes.

Every field is read from ``SANDBOX_OPERATOR_<NAME>``. Lists are comma-separated or JSON; resources are JSON,
as in core/v1. Unknown variables with the prefix are refused, so that a typo in the chart is not a silent
default.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sandbox_api.v1alpha1 import Egress, Resources
from sandbox_api.v1alpha1.quantity import Quantity

from .durations import parse_duration

PREFIX = "SANDBOX_OPERATOR_"
#: What the kubelet adds for a Service that happens to be named like us.
_SERVICE_LINK = re.compile(r"([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_\w+)?)")


class SettingsError(Exception):
    """The environment makes no sense: the message names the variable."""


def _is_service_link(name: str) -> bool:
    rest = name.removeprefix(PREFIX)
    return rest.lower() not in Settings.model_fields and _SERVICE_LINK.fullmatch(rest) is not None


def _listed(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _json(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    return parse_duration(value)


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
JsonResources = Annotated[Resources, BeforeValidator(_json)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]


class Settings(BaseModel):
    """Settings of one operator process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # -- the process
    namespace: str = Field("default", description="The operator's own namespace; the lease lives there.")
    watch_namespaces: Names = Field((), description="Namespaces served; empty: all.")
    workers: int = Field(16, ge=1, le=256, description="Sandboxes worked on at once.")
    lease: str = Field("", description="Name of the Lease that makes one replica active; empty: no election.")
    identity: str = Field("", description="Who holds the lease; empty: the host's name.")
    probes_port: int = Field(8080, ge=0, le=65535, description="Port of /healthz; 0: none.")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"

    # -- what sandboxes get where they say nothing
    workspace_image: str = Field(
        "sandbox-operator/workspace:latest", description="Image of materialize and keeper."
    )
    workspace_image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    default_image: str = Field("python:3.13-slim", description="Image of the workspace container.")
    default_egress: Egress = Egress.INTERNET
    default_start_timeout: Seconds = 300.0
    default_workspace_size_limit: Quantity = "10Gi"
    default_resources: JsonResources = Resources(
        requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "2Gi"}
    )
    materialize_resources: JsonResources = Resources(
        requests={"cpu": "100m", "memory": "64Mi"}, limits={"memory": "512Mi"}
    )
    keeper_resources: JsonResources = Resources(
        requests={"cpu": "5m", "memory": "16Mi"}, limits={"memory": "256Mi"}
    )
    image_pull_secrets: Names = Field((), description="Names of Secrets, for the workspace image.")
    platform_assigns_ids: bool = Field(
        False, description="Leave user and groups out of pods (OpenShift assigns them)."
    )
    git_timeout: Seconds = 300.0

    # -- what sandboxes may ask for
    allowed_runtime_classes: Names = ()
    allowed_priority_classes: Names = ()
    insecure_git_hosts: Names = Field((), description="host or host:port, reachable over http:// and git://.")

    # -- the network
    network_policies_enforced: bool = Field(
        False, description="The administrator says that the network plugin enforces NetworkPolicies."
    )
    cluster_cidrs: Names = Field(
        (), description="Addresses of the cluster beyond the private ranges; not part of the Internet."
    )
    dns_cidrs: Names = Field(
        ("169.254.20.10/32",), description="DNS servers that are not pods, such as a node's own cache."
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the settings.

        Raises:
            SettingsError: A variable is unknown or its value makes no sense.
        """
        values: dict[str, Any] = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in environ.items()
            if name.startswith(PREFIX) and value != "" and not _is_service_link(name)
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = "; ".join(
                f"{PREFIX}{str(item['loc'][0]).upper() if item['loc'] else ''}: {item['msg']}"
                for item in error.errors(include_url=False, include_input=False)
            )
            raise SettingsError(problems) from None
