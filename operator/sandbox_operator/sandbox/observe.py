"""Everything that is known about one sandbox, taken together before anything is decided."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox_api.kube import CONFIG_MAPS, NETWORK_POLICIES, PODS, SANDBOXES, SERVICES, Object, Resource

from sandbox_operator.engine.store import Key, Store

from . import names
from .memory import Memory
from .network import SHARED_NAMES
from .view import SandboxView

#: The kinds of children, followed by our label; pods of others are none of our business.
CHILDREN: Mapping[Resource, str] = {
    PODS: names.LABEL_SANDBOX_UID,
    SERVICES: names.LABEL_SANDBOX_UID,
    CONFIG_MAPS: names.LABEL_SANDBOX_UID,
    NETWORK_POLICIES: f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}",
}


@dataclass(frozen=True, slots=True)
class Observation:
    """One sandbox and its children, as of now.

    Attributes:
        view: The sandbox.
        pods: Pods that it owns by UID, all incarnations.
        services: Services that it owns.
        own_policies: NetworkPolicies that it owns.
        config_maps: ConfigMaps that it owns.
        shared_policies: Policies of the namespace that nobody owns, by name.
        memory: What this process remembers of it.
    """

    view: SandboxView
    pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    own_policies: tuple[Object, ...] = ()
    config_maps: tuple[Object, ...] = ()
    shared_policies: Mapping[str, Object] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)


def observe(store: Store, key: Key, memory: Memory) -> Observation | None:
    """Gather what the store knows; None where the sandbox is gone."""
    raw = store.get(SANDBOXES, key)
    if raw is None:
        return None
    view = SandboxView(raw)
    return Observation(
        view=view,
        pods=_own(store, PODS, view),
        services=_own(store, SERVICES, view),
        own_policies=_own(store, NETWORK_POLICIES, view),
        config_maps=_own(store, CONFIG_MAPS, view),
        shared_policies={
            name: item
            for name in SHARED_NAMES
            if (item := store.get(NETWORK_POLICIES, (view.namespace, name))) is not None
        },
        memory=memory,
    )


def _own(store: Store, resource: Resource, view: SandboxView) -> tuple[Object, ...]:
    return tuple(
        item
        for item in store.owned(resource, view.uid)
        if (item["metadata"].get("namespace") or "") == view.namespace
    )
