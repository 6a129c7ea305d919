"""What is wrong with data, in words: each value once, also where it may be one of several kinds."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from activities.contracts import JsonObject
from activities.text import problems_text


class Cat(BaseModel):
    lives: int


class Dog(BaseModel):
    tricks: list[str]


class Given(BaseModel):
    amount: int | str | None = None
    schemas: dict[str, JsonObject | bool] = {}
    numbers: int | list[int] = 0
    pet: Cat | Dog | None = None
    pets: list[Cat | Dog] = []
    whole: int = Field(default=0, alias="bool")
    text: int = Field(default=0, alias="str")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"amount": []}, "amount: expected a whole number or a string, got a list"),
        ({"schemas": {"a": 7}}, "schemas.a: expected an object or true or false, got a number"),
        ({"numbers": ["x"]}, "numbers.0: expected a whole number"),
        ({"pet": 3}, "pet: expected an object, got a number"),
        ({"pets": [{"lives": 9}, {}]}, "pets.1.Cat.lives: is missing; pets.1.Dog.tricks: is missing"),
        ({"pet": {"lives": "x", "tricks": 3}}, (
            "pet.Cat.lives: expected a whole number; pet.Dog.tricks: expected a list, got a number"
        )),
        ({"amount": [], "numbers": None}, (
            "amount: expected a whole number or a string, got a list; "
            "numbers: expected a whole number or a list, got null"
        )),
        ({"bool": "x", "str": "y"}, "bool: expected a whole number; str: expected a whole number"),
        ({"schemas": {"items[0]": 7, "cents": 7}}, (
            "schemas.items[0]: expected an object or true or false, got a number; "
            "schemas.cents: expected an object or true or false, got a number"
        )),
    ],
)  # fmt: skip
def test_each_wrong_value_is_told_once(given: Any, text: str) -> None:
    with pytest.raises(ValidationError) as error:
        Given.model_validate(given)
    assert problems_text(error.value) == text


def test_many_wrong_values_are_counted_without_comparing_each_with_all() -> None:
    with pytest.raises(ValidationError) as error:
        Given.model_validate({"numbers": ["x"] * 20_000})
    assert problems_text(error.value).startswith("numbers.0: expected a whole number; ")
