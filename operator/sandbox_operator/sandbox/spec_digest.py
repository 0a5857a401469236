"""What of a spec a running pod cannot take, field by field, in a form that fits an annotation.

Made from the spec as the user wrote it, never from the rendered pod or from defaults: a new version of the
operator, or a new chart value, restarts nothing and reports nothing.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Fields that take effect in a running sandbox, as dotted paths. ``network.egress`` does because the
#: policies select pods by a label.
LIVE = frozenset({"ports", "desiredState", "lifecycle.ttl", "lifecycle.startTimeout", "network.egress"})
#: Objects whose members are told apart.
_SPLIT = frozenset({"manifest", "lifecycle", "security", "network", "workspace", "resources", "pod"})


def digest_of(spec: Mapping[str, Any]) -> str:
    """Such as ``image=9f86d081,manifest.entries=2c26b46b``."""
    return ",".join(f"{path}={_hash(value)}" for path, value in _fields(spec))


def changed_fields(recorded: str, spec: Mapping[str, Any]) -> list[str]:
    """Paths of the fields that differ between the spec a pod was made from and this one."""
    before = dict(part.split("=", 1) for part in recorded.split(",") if "=" in part)
    after = {path: _hash(value) for path, value in _fields(spec)}
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _fields(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in sorted(spec):
        value = spec[name]
        if name in _SPLIT and isinstance(value, Mapping):
            members = ((f"{name}.{member}", value[member]) for member in sorted(value))
        else:
            members = (pair for pair in [(name, value)])
        for path, member in members:
            # An empty list or object says the same as an absent one.
            if path not in LIVE and member not in (None, {}, []):
                yield path, member


def _hash(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
