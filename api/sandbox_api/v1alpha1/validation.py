"""The CRD's rules in Python: what the API server would say of a spec.

For clients before they send one, and for the operator about objects that an older CRD let pass.
"""

import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from .base import ApiModel
from .rules import Rule
from .sandbox import SandboxSpec


def problems(spec: SandboxSpec) -> list[str]:
    """What is wrong with a spec, one line each: ``spec.manifest.root: the root is …``. Empty: nothing.

    Types, patterns and bounds were checked when the spec was parsed; rules about changes need the old object,
    and are the API server's.
    """
    return list(_of_model(spec, "spec"))


def parse_problems(error: ValidationError) -> list[str]:
    """The same lines for a spec that could not be parsed at all. Values are left out: they may be secrets."""
    return [
        f"spec{''.join(map(_step, item['loc']))}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def _step(location: str | int) -> str:
    if isinstance(location, int) or not location.isidentifier():
        return f"[{location}]"
    return f".{location}"


def _of_model(model: ApiModel, where: str) -> Iterator[str]:
    for rule in type(model).rules:
        if problem := rule.problem(model):
            yield f"{where}{rule.field_path}: {problem}"
    hints = _annotations(type(model))
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value is not None:
            yield from _of_value(value, hints[name], f"{where}.{field.alias or name}")


def _of_value(value: Any, annotation: Any, where: str) -> Iterator[str]:
    """Walks a value along its annotation, which says what rules it is under."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        for rule in metadata:
            if isinstance(rule, Rule) and (problem := rule.problem(value)):
                yield f"{where}: {problem}"
        yield from _of_value(value, inner, where)
    elif origin in (Union, types.UnionType):
        for option in get_args(annotation):
            if option is not type(None):
                yield from _of_value(value, option, where)
    elif isinstance(value, ApiModel):
        yield from _of_model(value, where)
    elif isinstance(value, Mapping) and origin is dict:
        for key, item in value.items():
            yield from _of_value(item, get_args(annotation)[1], f"{where}[{key}]")
    elif isinstance(value, list) and origin is list:
        for index, item in enumerate(value):
            yield from _of_value(item, get_args(annotation)[0], f"{where}[{index}]")


@cache
def _annotations(model: type[ApiModel]) -> dict[str, Any]:
    return get_type_hints(model, include_extras=True)
