"""When a sandbox ends by itself, and when a start has taken too long. Pure; seconds since the epoch."""

from sandbox_api.v1alpha1 import SandboxSpec

from sandbox_operator.durations import parse_duration
from sandbox_operator.settings import Settings


def expires_at(created: float, ttl: str | None) -> float | None:
    """When the sandbox is to be deleted; None: never."""
    return created + parse_duration(ttl) if ttl else None


def start_timeout(spec: SandboxSpec, settings: Settings) -> float:
    """Seconds that a start may take: from the pod's creation until its workspace runs.

    Waiting for a Secret counts from the sandbox's own creation; waiting for an upload does not count, since
    only the client knows how much it sends.
    """
    text = spec.lifecycle and spec.lifecycle.start_timeout
    return parse_duration(text) if text else settings.default_start_timeout
