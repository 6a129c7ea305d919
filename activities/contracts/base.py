"""What the vocabulary is made of: data that code or people write, JSON objects, amounts by counter."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, JsonValue

__all__ = ["Frozen", "JsonObject", "Strict", "added"]

JsonObject = dict[str, JsonValue]


class Frozen(BaseModel):
    """Data that our own code writes. Unknown fields are ignored, so that versions can be mixed."""

    model_config = ConfigDict(frozen=True)


class Strict(BaseModel):
    """Data that a person writes. An unknown field is an error, so that a misspelling is found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def added(*amounts: dict[str, float]) -> dict[str, float]:
    """The sum by counter."""
    total: dict[str, float] = {}
    for one in amounts:
        for counter, amount in one.items():
            total[counter] = total.get(counter, 0) + amount
    return total
