"""The Sandbox resource: a workspace, the pod that runs it, and how long it lives."""

import json
import re
import sys
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .base import ApiModel
from .conditions import Condition
from .manifest import DEFAULT_ROOT, Manifest
from .metadata_rules import ANNOTATION_RULES, LABEL_RULES, RESOURCE_RULES, SELECTOR_RULES
from .paths import MAX_PATH_BYTES
from .quantity import Quantity, amount
from .rules import Keywords, Rule, list_atomic, list_map, list_set, unchanged
from .texts import ObjectName, no_zero_byte, total

GROUP = "sandbox-operator.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

#: Of command and args together; the pod holds them once more.
MAX_COMMAND_BYTES = 32 * 1024
#: The schema knows nothing of what is in it, so the operator looks: docs/reference.md.
MAX_AFFINITY_BYTES = 16 * 1024

#: Go's duration format restricted to what people write: 90s, 10m, 1h30m, 24h.
GracePeriod = Annotated[
    str, Field(pattern=r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$", min_length=2, max_length=24)
]
Duration = Annotated[
    GracePeriod,
    Rule(
        "self.matches('[1-9]')",
        "a duration is longer than zero",
        lambda text: any(digit in text for digit in "123456789"),
    ),
]
StopGrace = Annotated[
    GracePeriod,
    Rule(
        "duration(self) <= duration('1h')",
        "a stopGrace is at most 1h",
        lambda text: _seconds(text) <= 3600,
    ),
]
Argument = Annotated[str, Field(max_length=4096), no_zero_byte("an argument")]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
Timestamp = Annotated[str, Field(max_length=64), Keywords(format="date-time")]
_QUANTITIES = Annotated[dict[str, Quantity], Field(max_length=16), *RESOURCE_RULES]
_SMALLEST, _LARGEST = "1Mi", "64Ti"
VolumeSize = Annotated[
    Quantity,
    Rule(
        f"quantity(string(self)).compareTo(quantity('{_SMALLEST}')) >= 0"
        f" && quantity(string(self)).compareTo(quantity('{_LARGEST}')) <= 0",
        f"a sizeLimit is between {_SMALLEST} and {_LARGEST}",
        lambda quantity: amount(_SMALLEST) <= amount(quantity) <= amount(_LARGEST),
    ),
]


def _seconds(text: str) -> int:
    """Seconds of a duration that matches the pattern."""
    return sum(
        int(number) * {"h": 3600, "m": 60, "s": 1}[unit]
        for number, unit in re.findall(r"([0-9]+)([hms])", text)
    )


def json_size(value: object) -> int:
    """Characters of a value as compact JSON; more than any bound where it nests too deep."""
    try:
        return len(json.dumps(value, separators=(",", ":")))
    except RecursionError:
        return sys.maxsize


class Resources(ApiModel):
    """Resources of the workspace container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits)"
            " || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
            "a request cannot be larger than the limit of the same resource",
            lambda resources: all(
                amount(request) <= amount((resources.limits or {}).get(name, request))
                for name, request in (resources.requests or {}).items()
            ),
        ),
    )

    requests: _QUANTITIES | None = Field(
        None, description="What the scheduler reserves, such as cpu, memory or ephemeral-storage."
    )
    limits: _QUANTITIES | None = Field(None, description="What the container may use at most.")


class EmptyDir(ApiModel):
    """A volume that lives and dies with the pod."""

    size_limit: VolumeSize | None = Field(
        None, description="Largest size of the workspace, from 1Mi to 64Ti. Default: a chart value."
    )


class Workspace(ApiModel):
    """The volume that holds the workspace."""

    empty_dir: EmptyDir | None = Field(
        None, description="A volume that lives and dies with the pod (the default)."
    )


class Lifecycle(ApiModel):
    """How long a sandbox lives."""

    ttl: Duration | None = Field(
        None,
        description="The sandbox is deleted this long after its creation, such as 90m or 24h. Default: "
        "never.",
    )
    start_timeout: Duration | None = Field(
        None,
        description="A start that takes longer has failed (reason StartTimeout). Default: a chart value.",
    )
    stop_grace: StopGrace | None = Field(
        None,
        description="What processes get between TERM and KILL, such as 10s or 0s, at most 1h. Default: 5s.",
    )


class Security(ApiModel):
    """Identity of the pod's processes."""

    run_as_user: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="User id of every container. Cannot change. Default: 1000."
    )
    run_as_group: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="Group id of every container. Cannot change. Default: 1000."
    )
    fs_group: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="Group that owns the volumes. Cannot change. Default: 1000."
    )
    runtime_class_name: ObjectName | None = Field(
        None, description="RuntimeClass of the pod, such as gvisor; the administrator lists those allowed."
    )


class Egress(StrEnum):
    """What the pod may reach."""

    NONE = "None"
    CLUSTER = "Cluster"
    INTERNET = "Internet"


class Network(ApiModel):
    """What the pod may reach."""

    egress: Egress | None = Field(
        None,
        description="None: nothing. Cluster: the cluster's pods and services. Internet: public addresses, "
        "not the cluster. Default: a chart value.",
    )


class Toleration(ApiModel):
    """As in core/v1."""

    key: Annotated[str, Field(max_length=317, pattern=r"^[-A-Za-z0-9_./]*$")] | None = Field(
        None, description="Taint key; empty with operator Exists matches all."
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        None, description="How value is compared. Default: Equal."
    )
    value: LabelValue | None = Field(None, description="Taint value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Taint effect; empty matches all."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="How long a NoExecute taint is tolerated."
    )


class ImagePullSecret(ApiModel):
    """A Secret with registry credentials in the sandbox's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class Pod(ApiModel):
    """Placement and metadata of the pod."""

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32), *SELECTOR_RULES] | None = Field(
        None, description="Labels a node must have."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=32), list_atomic()] | None = Field(
        None, description="Taints that the pod tolerates."
    )
    affinity: (
        Annotated[
            dict[str, Any],
            Keywords(x_kubernetes_preserve_unknown_fields=True),
            Rule(
                "",
                f"affinity can have at most {MAX_AFFINITY_BYTES} bytes as JSON",
                lambda affinity: json_size(affinity) <= MAX_AFFINITY_BYTES,
            ),
        ]
        | None
    ) = Field(
        None,
        description="As in core/v1, at most 16 KiB; checked by the operator, and by the API server when the pod "
        "is created.",
    )
    labels: Annotated[dict[str, LabelValue], Field(max_length=32), *LABEL_RULES] | None = Field(
        None, description="Labels of the pod, none of sandbox-operator.dev."
    )
    annotations: (
        Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32), *ANNOTATION_RULES]
        | None
    ) = Field(
        None,
        description="Annotations of the pod: none of sandbox-operator.dev, and none that Kubernetes, the "
        "container runtime or the network plugin act on, but for a few that are harmless.",
    )
    image_pull_secrets: Annotated[list[ImagePullSecret], Field(max_length=8), list_map("name")] | None = (
        Field(None, description="Registry credentials.")
    )
    priority_class_name: ObjectName | None = Field(
        None, description="PriorityClass of the pod; the administrator lists those allowed."
    )


class DesiredState(StrEnum):
    """What the user wants of the sandbox; later versions add Suspended."""

    RUNNING = "Running"


class SandboxSpec(ApiModel):
    """What the user wants."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.args) || has(self.command)",
            "args need a command: the image's own entry point is not run, since the agent is the first "
            "process",
            lambda spec: spec.args is None or spec.command is not None,
            ".args",
        ),
        Rule(
            "self.?network.?egress.orValue('') != 'None' || !has(self.manifest) || "
            "!has(self.manifest.entries) || !self.manifest.entries.exists(k, "
            "has(self.manifest.entries[k].gitRepo))",
            "a gitRepo entry cannot be cloned with egress None: choose Cluster or Internet, or send the "
            "files with localDir or contentFrom",
            lambda spec: (
                not spec.network
                or spec.network.egress != "None"
                or not spec.manifest
                or not any(entry.git_repo for entry in (spec.manifest.entries or {}).values())
            ),
            ".network.egress",
        ),
        Rule(
            "(has(self.command) ? self.command.map(c, bytes(c).size()).sum() : 0)"
            " + (has(self.args) ? self.args.map(c, bytes(c).size()).sum() : 0)"
            f" <= {MAX_COMMAND_BYTES}",
            f"command and args together can have at most {MAX_COMMAND_BYTES} bytes: put a long script into an "
            "entry and start that",
            lambda spec: total((*(spec.command or ()), *(spec.args or ()))) <= MAX_COMMAND_BYTES,
            ".command",
        ),
        unchanged("manifest.root", f"'{DEFAULT_ROOT}'"),
        unchanged("security.runAsUser"),
        unchanged("security.runAsGroup"),
        unchanged("security.fsGroup"),
    )

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][!-~]*$")] | None = Field(
        None, description="Image of the workspace container. Default: a chart value."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When the image is pulled. Default: Kubernetes' own."
    )
    command: Annotated[list[Argument], Field(min_length=1, max_length=64), list_atomic()] | None = Field(
        None, description="A program that the agent starts once the workspace is filled."
    )
    args: Annotated[list[Argument], Field(max_length=64), list_atomic()] | None = Field(
        None, description="Its arguments; needs command."
    )
    manifest: Manifest | None = Field(None, description="Contents of a fresh workspace.")
    workspace: Workspace | None = Field(None, description="The volume that holds the workspace.")
    resources: Resources | None = Field(
        None, description="Resources of the workspace container. Default: a chart value."
    )
    ports: Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(max_length=16), list_set()] | None = (
        Field(None, description="TCP ports published by a Service of the sandbox's own.")
    )
    desired_state: DesiredState | None = Field(None, description="Written by users only. Default: Running.")
    lifecycle: Lifecycle | None = Field(None, description="How long the sandbox lives.")
    security: Security | None = Field(None, description="Identity of the pod's processes.")
    network: Network | None = Field(None, description="What the pod may reach.")
    pod: Pod | None = Field(None, description="Placement and metadata of the pod.")


class Failure(ApiModel):
    """Why the sandbox is not available, for people and for programs."""

    reason: Annotated[str, Field(max_length=128)] = Field(description="One of the documented reasons.")
    message: Annotated[str, Field(max_length=1024)] = Field(description="One sentence.")
    entry: Annotated[str, Field(max_length=MAX_PATH_BYTES)] | None = Field(
        None, description="Manifest entry that failed."
    )
    retryable: bool = Field(description="Whether trying again without a change may help.")


class Materialized(ApiModel):
    """What the init container put into the workspace."""

    entries: int = Field(description="Entries of the manifest.")
    bytes: int = Field(description="Bytes of content written.")
    seconds: float = Field(description="Time it took.")


class NetworkStatus(ApiModel):
    """What the pod can really reach."""

    egress: Literal["None", "Cluster", "Internet", "Unknown"] = Field(
        description="The class in force; Unknown where the administrator has not declared that "
        "NetworkPolicies are enforced."
    )


class SandboxStatus(ApiModel):
    """What the operator observed."""

    model_config = ApiModel.model_config | {"extra": "ignore"}

    observed_generation: int | None = Field(
        None, description="Generation of the spec that this status speaks of."
    )
    conditions: Annotated[list[Condition], Field(max_length=16), list_map("type")] | None = Field(
        None, description="Conditions by kstatus."
    )
    pod_name: Annotated[str, Field(max_length=253)] | None = Field(
        None, description="Pod of the present incarnation."
    )
    pod_uid: Annotated[str, Field(max_length=64)] | None = Field(None, alias="podUID", description="Its UID.")
    incarnation: int | None = Field(None, description="Counts the pods this sandbox has had.")
    pod_generation: int | None = Field(
        None, description="Generation of the spec that the present pod was made from."
    )
    service_name: Annotated[str, Field(max_length=63)] | None = Field(
        None, description="Service that publishes the ports."
    )
    started_at: Timestamp | None = Field(
        None, description="When the workspace first became available in this incarnation."
    )
    restarts: int | None = Field(None, description="Restarts of the workspace container in this incarnation.")
    materialized: Materialized | None = Field(None, description="Receipt of the init container.")
    network: NetworkStatus | None = Field(None, description="What the pod can really reach.")
    failure: Failure | None = Field(None, description="Present while something is wrong.")


class ObjectMeta(ApiModel):
    """The part of core/v1 ObjectMeta that is used here."""

    model_config = ApiModel.model_config | {"extra": "ignore"}

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: list[str] = Field(default_factory=list)
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Sandbox(ApiModel):
    """A workspace for an agent: files from a manifest, in a pod of its own, for as long as it is needed."""

    model_config = ApiModel.model_config | {"extra": "ignore"}

    api_version: str = API_VERSION
    kind: str = "Sandbox"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: SandboxSpec = Field(default_factory=SandboxSpec, description="What the user wants.")
    status: SandboxStatus | None = Field(None, description="What the operator observed.")
