"""Texts that can be shown to people and models, and always be written as UTF-8."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["KEY_ITSELF", "problem_of", "problems_text", "readable", "unicode_of"]

KEY_ITSELF = "[key]"
"""Pydantic's mark, behind a key of a mapping, for a problem of the key and not of its value."""
TRUTH, WHOLE, NUMBER = "expected true or false", "expected a whole number", "expected a number"
SAID = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "string_type": "expected a string",
    "bool_type": TRUTH,
    "bool_parsing": TRUTH,
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_from_float": WHOLE,
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected an object",
    "model_type": "expected an object",
    "model_attributes_type": "expected an object",
}
"""Pydantic's name of a problem -> what a person or a model reads, where its own words say less."""
GIVEN = {
    type(None): "null",
    bool: "true or false",
    str: "a string",
    int: "a number",
    float: "a number",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}
"""The type of a wrong value, in the words of JSON."""


def readable(text: str) -> str:
    """The text with lone surrogates spelt out: they cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def unicode_of(text: str) -> str:
    """The text with surrogate halves joined that JSON escapes left apart; a lone half becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def problems_text(error: ValidationError, most: int = 20, under: str = "") -> str:
    """Each wrong field with its problem: `price.input: is missing; ...`. No value is repeated: it may be
    a secret; of one with a wrong type this is named. `under`: a key that all fields stand under."""
    details = error.errors(include_url=False, include_context=False)
    lines = [
        f"{_path((under, *one['loc']) if under else one['loc'])}: {problem_of(one)[:300]}{_type_given(one)}"
        for one in details[:most]
    ]
    more = [f"and {len(details) - most} more"] if len(details) > most else []
    return readable("; ".join([*lines, *more]))


def problem_of(detail: ErrorDetails) -> str:
    """What one error says, in the words of all our messages: `is missing`, `expected a number`."""
    words = detail["msg"].removeprefix("Value error, ")
    if words.startswith("Input should be"):
        kind = "a number " if detail["type"].startswith(("less_than", "greater_than")) else ""
        words = words.replace("Input should be ", f"expected {kind}", 1)
    return SAID.get(detail["type"], words)


def _type_given(detail: ErrorDetails) -> str:
    if not detail["type"].endswith("_type"):
        return ""
    given = type(detail["input"])
    return f", got {GIVEN.get(given, given.__name__[:80])}"


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:80] for part in location if part != KEY_ITSELF) or "the whole"
