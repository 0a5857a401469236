"""NetworkPolicies: a shared set in each namespace, and one of a sandbox's own where it publishes ports. Pure."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sandbox_api.kube import NETWORK_POLICIES, Resource
from sandbox_api.v1alpha1 import Egress

from sandbox_operator.settings import Settings

from . import names
from .pod import child_labels, owner
from .view import SandboxView

INGRESS_DENY = "sandbox-ingress-deny"
#: What is not the Internet: private, shared, link-local (metadata services), loopback, multicast, reserved, and
#: Azure's WireServer, which gives a node's credentials away from a public address.
_NOT_INTERNET_V4 = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
#: The like, and what carries addresses of version 4 within it (translated, Teredo, 6to4).
_NOT_INTERNET_V6 = (
    "::/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2001::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
)
#: Ports of DNS, behind Services too: OpenShift's pods listen on 5353.
_DNS_PORTS = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
_DNS_NAMESPACES = ["kube-system", "openshift-dns"]


def egress_policy_name(egress: Egress) -> str:
    """Name of the shared policy of a class."""
    return f"sandbox-egress-{egress.value.lower()}"


#: All policies that a namespace may have of us.
SHARED_NAMES = (INGRESS_DENY, *(egress_policy_name(egress) for egress in Egress))


def shared_policies(namespace: str, egress: Egress, settings: Settings) -> list[dict[str, Any]]:
    """The policies of a namespace that a sandbox of a class relies on."""
    return [
        {"metadata": {**_shared_metadata(name), "namespace": namespace}, "spec": spec}
        for name, spec in _shared_specs(egress, settings.cluster_cidrs, settings.dns_cidrs)
    ]


def ports_policy(view: SandboxView, ports: Sequence[int]) -> dict[str, Any]:
    """The policy that lets connections to a sandbox's published ports in."""
    return {
        "metadata": {
            "name": names.lasting_name(view.name, view.uid),
            "namespace": view.namespace,
            "labels": child_labels(view),
            "ownerReferences": [owner(view)],
        },
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_SANDBOX_UID: view.uid}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in sorted(set(ports))]}],
        },
    }


def same_policy(desired: Any, actual: Any) -> bool:
    """Whether two specs of policies say the same: anything more, as anything less, would open something.

    The API server adds nothing to what is written here, and leaves empty lists out.
    """
    return bool(_without_empty(desired) == _without_empty(actual))


def _without_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_empty(v) for k, v in value.items() if v is not None and v != []}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def stands(resource: Resource, body: Mapping[str, Any], standing: Mapping[str, Any] | None) -> bool:
    """Whether an object is there and is what it should be."""
    if standing is None:
        return False
    compare = same_policy if resource is NETWORK_POLICIES else covers
    return compare(body["spec"], standing.get("spec"))


def covers(desired: Any, actual: Any) -> bool:
    """Whether an object has all that is desired of it; what the API server adds to objects does not matter.

    Lists are compared as wholes, and an empty list or object counts as an absent one.
    """
    if isinstance(desired, Mapping):
        if not isinstance(actual, Mapping):
            return not desired and actual is None
        return all(covers(value, actual.get(key)) for key, value in desired.items())
    if isinstance(desired, list):
        actual = actual if actual is not None else []
        return (
            isinstance(actual, list)
            and len(desired) == len(actual)
            and all(covers(one, other) for one, other in zip(desired, actual, strict=True))
        )
    return bool(desired == actual)


def _shared_metadata(name: str) -> dict[str, Any]:
    return {"name": name, "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY}}


@lru_cache(maxsize=16)
def _shared_specs(
    egress: Egress, cluster_cidrs: tuple[str, ...], dns_cidrs: tuple[str, ...]
) -> tuple[tuple[str, dict[str, Any]], ...]:
    ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    deny_ingress = {
        "podSelector": {
            "matchLabels": ours,
            "matchExpressions": [{"key": names.LABEL_SANDBOX_UID, "operator": "Exists"}],
        },
        "policyTypes": ["Ingress"],
    }
    policy: dict[str, Any] = {
        "podSelector": {"matchLabels": {**ours, names.LABEL_EGRESS: egress.value.lower()}},
        "policyTypes": ["Egress"],
    }
    if rules := _egress_rules(egress, cluster_cidrs, dns_cidrs):
        policy["egress"] = rules
    return ((INGRESS_DENY, deny_ingress), (egress_policy_name(egress), policy))


def _egress_rules(
    egress: Egress, cluster_cidrs: tuple[str, ...], dns_cidrs: tuple[str, ...]
) -> list[dict[str, Any]]:
    if egress is Egress.NONE:
        return []
    dns: list[dict[str, Any]] = [
        {
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": _DNS_NAMESPACES}
                ]
            }
        },
        *({"ipBlock": {"cidr": cidr}} for cidr in dns_cidrs),
    ]
    rules: list[dict[str, Any]] = [{"to": dns, "ports": _DNS_PORTS}]
    if egress is Egress.CLUSTER:
        # Pods only: the API server and nodes are none.
        rules.append({"to": [{"namespaceSelector": {}}]})
        return rules
    extra_v4 = [cidr for cidr in cluster_cidrs if ":" not in cidr]
    extra_v6 = [cidr for cidr in cluster_cidrs if ":" in cidr]
    rules.append(
        {
            "to": [
                {"ipBlock": {"cidr": "0.0.0.0/0", "except": [*_NOT_INTERNET_V4, *extra_v4]}},
                {"ipBlock": {"cidr": "::/0", "except": [*_NOT_INTERNET_V6, *extra_v6]}},
            ]
        }
    )
    return rules
