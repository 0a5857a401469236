"""What is saved of a session: enough to find its sandbox again, or to make another like it. No secrets."""

from typing import Literal

from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from pydantic import Field

from .options import KubernetesSandboxClientOptions


class KubernetesSandboxSessionState(SandboxSessionState):
    """State of a session on Kubernetes.

    Attributes:
        namespace: Namespace of the Sandbox.
        name: Its name; chosen when the session is created, before the Sandbox is.
        uid: Its UID; empty as long as it has not been created.
        pod_uid: UID of the pod whose workspace the session filled. Another pod has another workspace.
        options: How to make a replacement.
        owned: Whether the Sandbox is the session's. One that it was attached to is never deleted by it.
    """

    type: Literal["kubernetes"] = "kubernetes"
    namespace: str
    name: str
    uid: str = ""
    pod_uid: str = ""
    options: KubernetesSandboxClientOptions = Field(default_factory=KubernetesSandboxClientOptions)
    owned: bool = True
