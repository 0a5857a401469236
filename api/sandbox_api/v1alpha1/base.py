"""What all models of the API have in common: camelCase on the wire, frozen, unknown fields refused."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .rules import VALIDATIONS, Rule


class ApiModel(BaseModel):
    """A part of a custom resource.

    Objects are parsed with :meth:`pydantic.BaseModel.model_validate` from the API server's JSON and written
    back with :meth:`to_wire`.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
    )

    #: Rules about the model as a whole.
    rules: ClassVar[tuple[Rule, ...]] = ()

    def to_wire(self) -> dict[str, object]:
        """The JSON form: camelCase, fields that were never set left out (the API server drops nulls)."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        if cls.rules:
            handler.resolve_ref_schema(schema)[VALIDATIONS] = [rule.to_schema() for rule in cls.rules]
        return schema
