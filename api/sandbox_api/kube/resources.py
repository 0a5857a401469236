"""The kinds of resource that this project uses, and the paths under which an API server serves them."""

from dataclasses import dataclass
from urllib.parse import quote

from sandbox_api.v1alpha1.sandbox import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of resource; ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects carry it: ``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection(self, namespace: str | None = None) -> str:
        """Path of all objects of the kind: in one namespace, or in all of them.

        Raises:
            ValueError: A namespace was given for a cluster-wide kind.
        """
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace is None:
            return f"{prefix}/{self.plural}"
        if not self.namespaced:
            raise ValueError(f"{self.kind} is cluster-wide: it has no namespace")
        return f"{prefix}/namespaces/{segment(namespace)}/{self.plural}"

    def path(self, name: str, namespace: str | None = None, subresource: str | None = None) -> str:
        """Path of one object, or of one of its subresources (``status``, ``proxy/healthz``).

        Raises:
            ValueError: The namespace is missing or superfluous, or a name cannot be part of a path.
        """
        if self.namespaced and namespace is None:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        path = f"{self.collection(namespace)}/{segment(name)}"
        if subresource is not None:
            path += "/" + "/".join(segment(part) for part in subresource.split("/"))
        return path


def segment(text: str) -> str:
    """Quote one path segment.

    Raises:
        ValueError: It is empty or would climb in the path: no object can have such a name.
    """
    if text in {"", ".", ".."}:
        raise ValueError(f"{text!r} is not a name")
    return quote(text, safe="")


SANDBOXES = Resource(GROUP, VERSION, "sandboxes", "Sandbox")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
