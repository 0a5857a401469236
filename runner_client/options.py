"""Options of a sandbox, as ``SandboxRunConfig(options=...)`` takes them: small and JSON-able."""

from typing import Literal

from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from pydantic import ConfigDict, Field, field_validator
from sandbox_api.v1alpha1 import Egress, Resources, Toleration

Label = dict[str, str]


class KubernetesSandboxClientOptions(BaseSandboxClientOptions):
    """How a sandbox is made. Everything has a default; the image's is a value of the chart.

    Attributes:
        image: Image of the workspace container; an unmodified one, nothing of ours in it.
        image_pull_secrets: Names of Secrets with registry credentials.
        namespace: Where it is created; by default the client's.
        name: Name of the Sandbox; by default a random one.
        name_prefix: Beginning of random names.
        resources: Requests and limits of the workspace container.
        egress: What it may reach.
        exposed_ports: Ports that ``resolve_exposed_port`` makes reachable, through the session's stream.
        node_selector: Labels that the node must have.
        tolerations: Taints that it tolerates.
        runtime_class: RuntimeClass of the pod, such as gvisor.
        ttl: It is deleted so long after its creation (``90s``, ``2h``), whatever becomes of the client.
        start_timeout: Seconds that a start may take.
        labels: Labels of the Sandbox.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["kubernetes"] = "kubernetes"
    image: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    namespace: str | None = None
    name: str | None = None
    name_prefix: str = Field("sbx", pattern=r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")
    resources: Resources | None = None
    egress: Egress | None = None
    exposed_ports: tuple[int, ...] = ()
    node_selector: Label = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: str | None = None
    ttl: str | None = None
    start_timeout: float = Field(300.0, gt=0, le=86_400)
    labels: Label = Field(default_factory=dict)

    @field_validator("exposed_ports", mode="before")
    @classmethod
    def _one_port_is_a_tuple(cls, value: object) -> object:
        return (value,) if isinstance(value, int) and not isinstance(value, bool) else value
