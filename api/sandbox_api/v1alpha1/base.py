"""What all models of the API have in common: camelCase on the wire, frozen, unknown fields refused."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


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

    def to_wire(self) -> dict[str, object]:
        """The JSON form: camelCase, fields that were never set left out (the API server drops nulls)."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
