"""Rules about names of labels, annotations and resources: spelt as Kubernetes wants them, and none that loosen a fence.

An annotation is how Kubernetes of old, container runtimes and network plugins take orders about one pod: a confinement
that is off, a device, a second network that no policy knows. What is refused here are the ones that are known; webhooks
of a cluster's own may listen to others (docs/security.md).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .rules import KeyRule, Rule
from .texts import size

_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_DOMAIN = "sandbox-operator.dev"
#: Of ours, though not of our domain: docs/pod.md.
_LABEL = "app.kubernetes.io/managed-by"
_ANNOTATION = "kubectl.kubernetes.io/default-container"
#: Of all annotations together.
MAX_ANNOTATION_BYTES = 16 * 1024
_KUBERNETES = r"^([a-z0-9.-]+\.)?(kubernetes|k8s)\.io/"
_HARMLESS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes",
    "controller.kubernetes.io/pod-deletion-cost",
    "kubectl.kubernetes.io/default-logs-container",
    "kubectl.kubernetes.io/restartedAt",
    "kubernetes.io/egress-bandwidth",
    "kubernetes.io/ingress-bandwidth",
)
#: Container runtimes, their sandboxes, and roles of clouds.
_ORDERS = (
    "io.kubernetes.",
    "io.containerd.",
    "io.katacontainers.",
    "dev.gvisor.",
    "run.oci.",
    "org.systemd.",
    "iam.amazonaws.com/",
)
#: The same, and network plugins, by the end of the domain.
_ORDERING_DOMAINS = (
    "cncf.io",
    "multus-cni.io",
    "projectcalico.org",
    "cilium.io",
    "ovn.org",
    "antrea.io",
    "crio.io",
)


def _is_name(key: str, _: Mapping[str, Any]) -> bool:
    return len(key) <= 317 and re.search(_NAME.replace("$", r"\Z"), key, re.ASCII) is not None


def _spelling(what: str) -> KeyRule:
    return KeyRule(
        f"k.size() <= 317 && k.matches(r'{_NAME}')",
        f"a key of {what} is a name of at most 63 letters, digits, - _ and ., after a domain and / if it "
        f"has one",
        holds_for=_is_name,
    )


def _foreign(what: str, reserved: str) -> KeyRule:
    return KeyRule(
        f"!k.startsWith('{_DOMAIN}/') && !k.contains('.{_DOMAIN}/') && k != '{reserved}'",
        f"{what} of {_DOMAIN} and {reserved} are set by the operator alone",
        holds_for=lambda key, _: (
            not key.startswith(f"{_DOMAIN}/") and f".{_DOMAIN}/" not in key and key != reserved
        ),
    )


def _no_order(key: str) -> bool:
    if key in _HARMLESS:
        return True
    domain = key.rpartition("/")[0]
    return not (
        re.search(_KUBERNETES, key, re.ASCII)
        or key.startswith(_ORDERS)
        or any(domain == end or domain.endswith(f".{end}") for end in _ORDERING_DOMAINS)
    )


def _listed(texts: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"


_NO_ORDERS = KeyRule(
    f"k in {_listed(_HARMLESS)} || (!k.matches(r'{_KUBERNETES}')"
    f" && !{_listed(_ORDERS)}.exists(o, k.startsWith(o))"
    f" && !{_listed(_ORDERING_DOMAINS)}.exists(d, k.startsWith(d + '/') || k.contains('.' + d + '/')))",
    "annotations that Kubernetes, the container runtime or the network plugin act on are refused, since they can "
    f"loosen what fences the pod in; of them, only these are taken: {', '.join(_HARMLESS)}",
    holds_for=lambda key, _: _no_order(key),
)
_FEW_BYTES = Rule(
    f"self.map(k, bytes(k).size() + bytes(self[k]).size()).sum() <= {MAX_ANNOTATION_BYTES}",
    f"annotations together can have at most {MAX_ANNOTATION_BYTES} bytes",
    lambda annotations: sum(size(k) + size(v) for k, v in annotations.items()) <= MAX_ANNOTATION_BYTES,
)

SELECTOR_RULES = (_spelling("nodeSelector"),)
RESOURCE_RULES = (_spelling("requests and limits"),)
LABEL_RULES = (_spelling("labels"), _foreign("labels", _LABEL))
ANNOTATION_RULES = (
    _spelling("annotations"),
    _foreign("annotations", _ANNOTATION),
    _NO_ORDERS,
    _FEW_BYTES,
)
