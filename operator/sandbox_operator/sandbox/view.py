"""A raw Sandbox with names for the parts that every decision asks for."""

from dataclasses import dataclass
from typing import Any

from sandbox_api.kube import Object

from sandbox_operator.durations import parse_time

from . import names
from .packed import PackedSpec


@dataclass(frozen=True, slots=True)
class SandboxView:
    """A Sandbox as the API server speaks it; ``raw`` is not to be changed."""

    raw: Object

    @property
    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self.raw["metadata"]
        return metadata

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self._metadata.get("namespace") or "")

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._metadata["name"])

    @property
    def uid(self) -> str:
        """Its UID."""
        return str(self._metadata.get("uid") or "")

    @property
    def generation(self) -> int:
        """Generation of the spec."""
        return int(self._metadata.get("generation") or 0)

    @property
    def created(self) -> float:
        """When it was created, in seconds since the epoch."""
        return parse_time(self._metadata["creationTimestamp"])

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return bool(self._metadata.get("deletionTimestamp"))

    @property
    def finalizers(self) -> list[str]:
        """Its finalizers."""
        return list(self._metadata.get("finalizers") or ())

    @property
    def guarded(self) -> bool:
        """Whether our finalizer is on it."""
        return names.FINALIZER in (self._metadata.get("finalizers") or ())

    @property
    def resource_version(self) -> str:
        """Its resource version."""
        return str(self._metadata.get("resourceVersion") or "")

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as the user wrote it."""
        spec = self.raw.get("spec") or {}
        return spec.read() if isinstance(spec, PackedSpec) else spec

    @property
    def status(self) -> dict[str, Any]:
        """The last known status."""
        return self.raw.get("status") or {}

    @property
    def incarnation(self) -> int:
        """Number of the present incarnation as the status has it; 0 before it speaks of the first."""
        return int(self.status.get("incarnation") or 0)

    @property
    def presumed(self) -> int:
        """Number of the present incarnation: the first is one before the status says so."""
        return self.incarnation or 1

    def annotation(self, name: str) -> str:
        """An annotation, empty where it is absent."""
        return str((self._metadata.get("annotations") or {}).get(name) or "")
