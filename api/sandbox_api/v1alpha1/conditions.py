"""Condition types and the closed enumeration of reasons; docs/reasons.md explains each."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel
from .rules import Keywords


class ConditionType(StrEnum):
    """Types of condition on a Sandbox."""

    READY = "Ready"
    AVAILABLE = "Available"
    WORKSPACE_READY = "WorkspaceReady"
    UP_TO_DATE = "UpToDate"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(StrEnum):
    """Every reason that a condition, a failure or an event of ours can carry."""

    # good or under way
    AVAILABLE = "Available"
    STARTING = "Starting"
    SCHEDULING = "Scheduling"
    MATERIALIZING = "Materializing"
    MATERIALIZED = "Materialized"
    AWAITING_SECRET = "AwaitingSecret"  # noqa: S105 - a reason, not a password
    AWAITING_UPLOAD = "AwaitingUpload"
    UP_TO_DATE = "UpToDate"
    RESTART_REQUIRED = "RestartRequired"
    AT_REST = "AtRest"
    TERMINATING = "Terminating"
    EXPIRED = "Expired"
    # failures: the spec or the cluster's rules
    INVALID_SPEC = "InvalidSpec"
    NOT_ALLOWED = "NotAllowed"
    NAME_CONFLICT = "NameConflict"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_DENIED = "AdmissionDenied"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    INVALID_IMAGE = "InvalidImage"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    START_TIMEOUT = "StartTimeout"
    # failures: materialization (the init container says which)
    MATERIALIZATION_FAILED = "MaterializationFailed"
    SOURCE_NOT_FOUND = "SourceNotFound"
    PATH_CONFLICT = "PathConflict"
    WORKSPACE_FULL = "WorkspaceFull"
    GIT_HOST_UNREACHABLE = "GitHostUnreachable"
    GIT_AUTHENTICATION_FAILED = "GitAuthenticationFailed"
    GIT_REPOSITORY_NOT_FOUND = "GitRepositoryNotFound"
    GIT_REF_NOT_FOUND = "GitRefNotFound"
    GIT_SUBPATH_NOT_FOUND = "GitSubpathNotFound"
    GIT_REFUSED = "GitRefused"
    GIT_TIMEOUT = "GitTimeout"
    GIT_FAILED = "GitFailed"
    # failures: a running pod
    WORKSPACE_EXITED = "WorkspaceExited"
    OUT_OF_MEMORY = "OutOfMemory"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    POD_LOST = "PodLost"


class Condition(ApiModel):
    """As metav1.Condition."""

    type: Annotated[str, Field(max_length=64)] = Field(description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Its state.")
    reason: Annotated[str, Field(max_length=128)] = Field(description="One of the documented reasons.")
    message: Annotated[str, Field(max_length=1024)] = Field("", description="One sentence for people.")
    last_transition_time: Annotated[str, Field(max_length=64), Keywords(format="date-time")] = Field(
        description="When status last changed."
    )
    observed_generation: int | None = Field(
        None, description="Generation of the spec that this condition speaks of."
    )
