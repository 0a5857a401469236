"""Writes the CustomResourceDefinitions from the models: ``python -m sandbox_api.crd [--check] [DIRECTORY]``.

pydantic speaks JSON schema; the API server wants the structural subset of it: no references, no nulls, no
defaults (a default would beat a template's value), nothing that restricts unknown fields (it drops or, under
strict validation, refuses them by itself).
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .v1alpha1 import GROUP, VERSION, ApiModel, Sandbox

Schema = dict[str, Any]

HEADER = "# Generated from the models by `python -m sandbox_api.crd`: change them, not this file.\n"

#: Keywords in the order in which a reader wants them; anything else that pydantic says is a mistake.
_ORDER = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "anyOf",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "required",
    "properties",
    "additionalProperties",
    "items",
)
_DROPPED = ("title", "default", "propertyNames", "$defs")
_FORMATS = {"integer": "int64", "number": "double"}

_META: Schema = {
    "apiVersion": {
        "description": "Version of the schema of this object, as GROUP/VERSION.",
        "type": "string",
    },
    "kind": {"description": "Name of the type of this object.", "type": "string"},
    "metadata": {"type": "object"},
}

_SANDBOX_COLUMNS = (
    # name, type, path, only with -o wide, description
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', False, "Whether it is as desired."),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', False, "Why, or why not."),
    ("Age", "date", ".metadata.creationTimestamp", False, "Time since its creation."),
    ("Pod", "string", ".status.podName", True, "Its present pod."),
    ("Image", "string", ".spec.image", True, "Image of the workspace; empty: the operator's default."),
    ("Egress", "string", ".status.network.egress", True, "What the pod can really reach."),
    ("Restarts", "integer", ".status.restarts", True, "Restarts of the workspace in this pod."),
    (
        "Message",
        "string",
        '.status.conditions[?(@.type=="Ready")].message',
        True,
        "The reason in a sentence.",
    ),
)


def structural(model: type[ApiModel]) -> Schema:
    """The structural schema of a model, references resolved.

    Raises:
        ValueError: The model says something that a structural schema cannot.
    """
    schema = model.model_json_schema(by_alias=True)
    return _clean(schema, schema.get("$defs", {}), model.__name__)


def custom_resource(model: type[ApiModel], *, plural: str, short_names: list[str], columns: Any) -> Schema:
    """The CustomResourceDefinition of a model with ``spec`` and ``status``."""
    kind = model.__name__
    schema = structural(model)
    schema["properties"] = {**_META, **{name: schema["properties"][name] for name in ("spec", "status")}}
    schema["required"] = ["spec"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short_names,
            },
            "scope": "Namespaced",
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {
                            "name": name,
                            "type": kind_of_value,
                            "jsonPath": path,
                            **({"priority": 1} if wide else {}),
                            "description": description,
                        }
                        for name, kind_of_value, path, wide, description in columns
                    ],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def custom_resources() -> dict[str, Schema]:
    """All definitions by file name."""
    return {
        "sandboxes.yaml": custom_resource(
            Sandbox, plural="sandboxes", short_names=["sbx"], columns=_SANDBOX_COLUMNS
        )
    }


def to_yaml(definition: Schema) -> str:
    """The text of a file in ``crds/``."""
    return HEADER + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def _clean(schema: Schema, definitions: Mapping[str, Schema], where: str) -> Schema:
    """One node: resolves it, drops what says nothing to the API server, refuses what it would not accept."""
    schema = _merged(schema, definitions, where)
    schema = {key: value for key, value in schema.items() if key not in _DROPPED}
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    for bound in ("exclusiveMinimum", "exclusiveMaximum"):  # numbers in JSON schema, booleans in OpenAPI 3.0
        if bound in schema:
            schema[bound.replace("exclusiveM", "m")] = schema.pop(bound)
            schema[bound] = True
    if schema.get("x-kubernetes-int-or-string"):
        del schema["type"]
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    elif schema.get("type") in _FORMATS:
        schema.setdefault("format", _FORMATS[schema["type"]])
    if schema.get("type") == "object" and not isinstance(schema.get("additionalProperties"), dict):
        schema.pop("additionalProperties", None)
    if "properties" in schema:
        schema["properties"] = {
            name: _clean(member, definitions, f"{where}.{name}")
            for name, member in schema["properties"].items()
        }
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            schema[inner] = _clean(schema[inner], definitions, f"{where}.{inner}")
    if rules := schema.get("x-kubernetes-validations"):
        schema["x-kubernetes-validations"] = [
            {key: rule[key] for key in ("rule", "message", "messageExpression", "fieldPath") if key in rule}
            for rule in rules
        ]
    if unknown := schema.keys() - set(_ORDER) - {"exclusiveMinimum", "exclusiveMaximum"}:
        raise ValueError(f"{where}: a structural schema has no {', '.join(sorted(unknown))}")
    return {key: schema[key] for key in sorted(schema, key=_position)}


def _merged(schema: Schema, definitions: Mapping[str, Schema], where: str) -> Schema:
    """A node without ``$ref`` and without the ``anyOf`` that only says that null is allowed."""
    schema = dict(schema)
    while "$ref" in schema or "anyOf" in schema:
        if "$ref" in schema:
            target = definitions[schema.pop("$ref").removeprefix("#/$defs/")]
        else:
            alternatives = [option for option in schema.pop("anyOf") if option != {"type": "null"}]
            if len(alternatives) != 1:
                raise ValueError(f"{where}: make a union of types a union of members")
            target = alternatives[0]
        schema = {**target, **schema}  # what is said about the field beats what is said about its type
    return schema


def _position(keyword: str) -> int:
    return _ORDER.index(keyword.replace("exclusiveM", "m"))


class _Dumper(yaml.SafeDumper):
    """Indents lists and repeats rather than refers: readers and kubectl see what they expect."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sandbox_api.crd", description=__doc__)
    parser.add_argument("directory", nargs="?", default="crds", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs")
    options = parser.parse_args(arguments)
    stale = []
    for name, definition in custom_resources().items():
        path, text = options.directory / name, to_yaml(definition)
        if options.check:
            if not path.is_file() or path.read_text() != text:
                stale.append(str(path))
        else:
            options.directory.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"not what the models say: {', '.join(stale)}; run `make crds`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
