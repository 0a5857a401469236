"""Rules that a JSON schema cannot express: told to the API server in CEL, and checked here in Python as well.

A rule stands beside what it speaks of: in ``rules`` of a model, or in the ``Annotated`` of a field. The CEL
text goes into the CRD (:mod:`sandbox_api.crd`); the Python predicate serves :func:`.validation.problems`, so
that a client can give the same sentence before it sends anything. tests/crds holds the two to the same
verdicts.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

VALIDATIONS = "x-kubernetes-validations"
#: Characters of a key that a message shows.
_SHOWN = 600


class Keywords:
    """Adds keywords to the schema of an annotated type."""

    def __init__(self, **keywords: Any) -> None:
        # x_kubernetes_list_type -> x-kubernetes-list-type
        self.keywords = {k.replace("_", "-") if k.startswith("x_") else k: v for k, v in keywords.items()}

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(core), **self.keywords}


def list_map(*keys: str) -> Keywords:
    """A list whose items are told apart by keys: merged item by item, duplicates refused."""
    return Keywords(x_kubernetes_list_type="map", x_kubernetes_list_map_keys=list(keys))


def list_set() -> Keywords:
    """A list of scalars without order and duplicates."""
    return Keywords(x_kubernetes_list_type="set")


def list_atomic() -> Keywords:
    """A list that is written as a whole."""
    return Keywords(x_kubernetes_list_type="atomic")


@dataclass(frozen=True)
class Rule:
    """One rule about ``self``.

    Attributes:
        cel: True where the rule holds. Empty where CEL could not say it, or at too high a price.
        message: One sentence: what must hold, and what to do where that is not plain.
        holds: The same in Python, on the parsed value. None for rules about changes, which need the old
            object.
        field_path: Which member the message is about, where it is not all of ``self``.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    field_path: str = ""

    def to_schema(self) -> dict[str, str]:
        """As an item of ``x-kubernetes-validations``."""
        return {
            "rule": self.cel,
            "message": self.message,
            **({"fieldPath": self.field_path} if self.field_path else {}),
        }

    def problem(self, value: Any) -> str | None:
        """The message where the value breaks the rule."""
        return None if self.holds is None or self.holds(value) else self.message

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core)
        if not self.cel:
            return schema
        return {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, ()), self.to_schema()]}


@dataclass(frozen=True)
class KeyRule(Rule):
    """A rule about each key of a map: ``cel`` speaks of ``k``, ``holds_for`` is given the key and the map.

    Schemas of the API server know nothing of keys, so this is the only way. The message names the key.
    """

    holds_for: Callable[[str, Mapping[str, Any]], bool] = lambda key, of: True

    def to_schema(self) -> dict[str, str]:
        """As an item of ``x-kubernetes-validations``."""
        return {
            "rule": f"self.all(k, {self.cel})",
            "message": self.message,
            # Quoted by CEL, since a message must be one line and a key need not.
            "messageExpression": f"'{self.message}: ' + strings.quote(self.filter(k, !({self.cel}))[0])",
        }

    def problem(self, value: Mapping[str, Any]) -> str | None:
        """The message, with the first key that breaks the rule."""
        for key in value:
            if not self.holds_for(key, value):
                return f"{self.message}: {json.dumps(key[:_SHOWN], ensure_ascii=False)}"
        return None


def exactly_one(*fields: str) -> Rule:
    """Exactly one of these members is set (their names on the wire)."""
    members = ", ".join(f"has(self.{name})" for name in fields)

    def holds(model: Any) -> bool:
        wire = {info.alias or name: name for name, info in type(model).model_fields.items()}
        return sum(getattr(model, wire[name]) is not None for name in fields) == 1

    listed = f"{', '.join(fields[:-1])} and {fields[-1]}"
    return Rule(f"[{members}].exists_one(x, x)", f"set exactly one of {listed}", holds)


def unchanged(field: str, default: str | None = None) -> Rule:
    """A member of a member can never change: absent stays absent, or means the default where one is given.

    Args:
        field: Such as ``security.runAsUser``.
        default: CEL literal of what its absence stands for.
    """
    group = field.partition(".")[0]

    def value(of: str) -> str:
        # Not .orValue(): the API server would take the result for a text without bounds.
        return f"(has({of}.{group}) && has({of}.{field}) ? {of}.{field} : {default})"

    path = field.replace(".", ".?")
    return Rule(
        f"{value('self')} == {value('oldSelf')}" if default else f"self.?{path} == oldSelf.?{path}",
        f"{field} cannot change, since it is built into the workspace: create another sandbox instead",
        field_path=f".{field}",
    )
