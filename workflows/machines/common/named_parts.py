"""Parts that an agent file names: rules and stopping policies, shipped or loaded by the worker. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, Field, model_validator

from activities.contracts import Strict, bare_name_too, read_only
from workflows.kernel.errors import NotLoaded, error_text
from workflows.machines.authoring import FatalError, JsonObject, KernelError

__all__ = [
    "NamedSpec",
    "call_user_function",
    "check_config",
    "find_named",
    "make_part",
    "number",
    "whole_number",
]

T = TypeVar("T")


class NamedSpec(Strict):
    """A part as an agent file declares it; a bare name is the part with its default."""

    model_config = ConfigDict(json_schema_extra=bare_name_too)

    type: str = Field(description="name of a shipped one, or of one that the worker has loaded")
    value: float | None = Field(default=None, allow_inf_nan=False, description="its number, if it has one")
    config: JsonObject = Field(default_factory=dict, description="its other settings, if it has any")

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, given: Any) -> Any:
        return {"type": given} if isinstance(given, str) else given


def find_named(unknown: str, name: str, known: Mapping[str, T]) -> T:
    """What the worker has under this name. Raises NotLoaded, which begins with `unknown`."""
    if name not in known:
        hint = suggestion(name, known)
        there = ", ".join(sorted(known)) or "none; a module of the worker defines them"
        raise NotLoaded(f"{unknown} {name!r}; {hint}{' ' if hint else ''}there are {there}")
    return known[name]


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or nothing when no known name is like it."""
    close = difflib.get_close_matches(name, sorted(known), 1)
    return f"did you mean {close[0]}?" if close else ""


def make_part(
    kind: str, spec: NamedSpec, makers: Mapping[str, Callable[[Any], object]], expected: type[T]
) -> T:
    """The part that a declaration names. `kind` is the word for it: `rule`, `policy`.

    Raises ValueError for an unknown name, a bad declaration, and a maker that fails.
    """
    maker = find_named(f"unknown {kind}", spec.type, makers)
    try:
        part = maker(spec)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{kind} {spec.type} cannot be made: {error_text(error)}") from error
    if not isinstance(part, expected):
        raise ValueError(
            f"{kind} {spec.type}: its maker returned a {type(part).__name__}; expected a {expected.__name__}"
        )
    return part


def call_user_function(what: str, function: Callable[..., object], *given: Any) -> object:
    """What a user's function returns; what it is given is read-only. Raises its KernelErrors as they are; any
    other is a FatalError."""
    try:
        return function(*(read_only(one, f"what the {what} is given") for one in given))
    except KernelError:
        raise
    except Exception as error:
        raise FatalError(f"the {what} failed: {error_text(error)}") from error


def check_config(kind: str, spec: NamedSpec, *known: str) -> None:
    """Raises ValueError for a key that the part does not have: a misspelt one would weaken it silently."""
    for key in spec.config:
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{kind} {spec.type}: unknown key {key!r} in `config`; {has}")


def number(kind: str, spec: NamedSpec, unit: str, default: float | None = None) -> float:
    """The part's number. Raises ValueError when it is missing or not greater than 0."""
    check_config(kind, spec)
    value = default if spec.value is None else spec.value
    if value is None:
        raise ValueError(f"{kind} {spec.type}: `value` is missing; give {unit}")
    if value <= 0:
        raise ValueError(f"{kind} {spec.type}: `value` must be greater than 0 {unit}, not {value:g}")
    return value


def whole_number(kind: str, spec: NamedSpec, unit: str, default: float | None = None) -> int:
    """The part's number, as `number`. Raises ValueError also for a fraction."""
    value = number(kind, spec, unit, default)
    if value != int(value):
        raise ValueError(f"{kind} {spec.type}: `value` must be a whole number of {unit}, not {value:g}")
    return int(value)
