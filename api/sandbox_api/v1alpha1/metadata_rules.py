"""Rules about labels and annotations of the pod: spelt as Kubernetes wants them, and none of ours."""

import re
from collections.abc import Mapping
from typing import Any

from .rules import KeyRule

_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_DOMAIN = "sandbox-operator.dev"
#: Of ours, though not of our domain: docs/pod.md.
_LABEL = "app.kubernetes.io/managed-by"
_ANNOTATION = "kubectl.kubernetes.io/default-container"


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


SELECTOR_RULES = (_spelling("nodeSelector"),)
LABEL_RULES = (_spelling("labels"), _foreign("labels", _LABEL))
ANNOTATION_RULES = (_spelling("annotations"), _foreign("annotations", _ANNOTATION))
