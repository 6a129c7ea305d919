"""The JSON schema of a pydantic model, as a language model reads it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from activities.contracts.base import JsonObject

__all__ = ["model_schema"]


def model_schema(model: type[BaseModel]) -> JsonObject:
    """The schema of what the model takes, without titles that only repeat names: each token costs money. A
    class that does not say what it does with other names has none: what it would drop, somebody meant."""
    return model.model_json_schema(schema_generator=_Untitled)


class _Untitled(GenerateJsonSchema):
    def model_schema(self, schema: Any) -> Any:
        made = super().model_schema(schema)
        if "extra" not in schema["cls"].model_config and "properties" in made:
            made.setdefault("additionalProperties", False)
        return made

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
