"""What a plan can ask to be done. Each step can be done twice without harm."""

from dataclasses import dataclass
from typing import Any

from sandbox_api.kube import Resource
from sandbox_api.v1alpha1 import Reason


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Put our finalizer on the sandbox."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the sandbox go."""


@dataclass(frozen=True, slots=True)
class DeleteSandbox:
    """Delete the sandbox itself: its time is over."""


@dataclass(frozen=True, slots=True)
class Ensure:
    """Make an object, or bring it to what it should be.

    Attributes:
        resource: Its kind.
        body: What it should be.
        owned: It must belong to the sandbox, else the name is somebody else's. Shared objects are told by
            our label.
    """

    resource: Resource
    body: dict[str, Any]
    owned: bool


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create the pod of an incarnation, with the ConfigMap that it needs, if any."""

    body: dict[str, Any]
    config_map: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class FindPod:
    """Look whether a pod that the feed calls gone has only lost the label that the feed follows."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class LabelPod:
    """Give a pod of ours the labels that policies and Services select by."""

    name: str
    uid: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Delete a child; one of another UID under that name stays."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Post an Event about the sandbox."""

    reason: Reason
    note: str
    warning: bool
    action: str


Step = (
    AddFinalizer
    | RemoveFinalizer
    | DeleteSandbox
    | Ensure
    | CreatePod
    | FindPod
    | LabelPod
    | DeleteChild
    | Tell
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now: first the finalizer, then the status, then the steps in their order.

    Attributes:
        guard: Put our finalizer on first.
        status: The whole new status, if it is worth a write.
        steps: What follows.
        look_again: What the steps have made is to be planned for at once.
        again: Seconds after which time alone changes the decision.
    """

    guard: bool = False
    status: dict[str, Any] | None = None
    steps: tuple[Step, ...] = ()
    look_again: bool = False
    again: float | None = None
