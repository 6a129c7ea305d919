"""Texts that can be shown to people and models, and always be written as UTF-8."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["KEY_ITSELF", "problem_of", "problems_of", "problems_text", "readable", "unicode_of"]

Path = tuple[int | str, ...]
MAX_MERGED = 200
"""The most problems whose unions are merged: each problem is compared with all others."""
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
NO_KEY = re.compile(
    r"(list|dict|tuple|set|frozenset|function-\w+|json-or-python|lax-or-strict|chain|nullable|tagged-union)\[.*\]",
    re.DOTALL,
)
"""How pydantic names a member of a union that is made of others: `dict[str,int]`."""
PLAIN = {"str": "string_", "int": "int_", "float": "float_", "bool": "bool_", "none": "none_"}
"""Its name of a plain member -> how the names of that one's problems begin."""
UNION = "union_type"
"""Our name of a problem that all members of a union have."""


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
    details = problems_of(error)
    lines = [
        f"{_path((under, *one['loc']) if under else one['loc'])}: {problem_of(one)[:300]}{_type_given(one)}"
        for one in details[:most]
    ]
    more = [f"and {len(details) - most} more"] if len(details) > most else []
    return readable("; ".join([*lines, *more]))


def problems_of(error: ValidationError) -> list[ErrorDetails]:
    """Each problem of a validation once. Pydantic has one for each member of a union, and puts the member's
    name into the path: `cents.dict[str,int]`, `cents.bool`. Here `cents` has one that says what all members
    expect, or those of the members that could be read further."""
    found, done = error.errors(include_url=False), set[Path]()
    found, more = found[:MAX_MERGED], found[MAX_MERGED:]
    while (union := next(_unions(found, done), None)) is not None:
        done.add(union)
        at = len(union)
        inside = [one for one in found if one["loc"][:at] == union and len(one["loc"]) > at]
        deeper = [one for one in inside if len(one["loc"]) > at + 1]
        is_one = len({one["loc"][at] for one in deeper}) == 1
        for one in deeper:
            if is_one or _is_long(one["loc"][at]):
                one["loc"] = (*union, *one["loc"][at + 1 :])
        first = found.index(inside[0])
        rest = [one for one in found[first:] if one not in inside]
        found = [*found[:first], *(deeper or [_of_all(inside, union)]), *rest]
    return found + more


def _unions(found: Collection[ErrorDetails], done: set[Path]) -> Iterator[Path]:
    """Paths of values that are a union's, the outermost first."""
    for one in found:
        path = one["loc"]
        for at in range(len(path)):
            if path[:at] not in done and _names_member(one, at):
                beside = {
                    two["loc"][at] for two in found if two["loc"][:at] == path[:at] and len(two["loc"]) > at
                }
                if len(beside) > 1:
                    yield path[:at]


def _names_member(detail: ErrorDetails, at: int) -> bool:
    """This part of the path is the name of a member of a union, and no key."""
    path = detail["loc"]
    return _is_long(path[at]) or (at == len(path) - 1 and _is_member(path[at], detail))


def _is_long(part: int | str) -> bool:
    return isinstance(part, str) and NO_KEY.fullmatch(part) is not None


def _is_member(part: int | str, detail: ErrorDetails) -> bool:
    """The last part of a path names the member that has this problem, and no key."""
    if detail.get("ctx", {}).get("class_name") == part:
        return True
    return part in PLAIN and detail["type"].startswith(PLAIN[str(part)])


def _of_all(inside: Sequence[ErrorDetails], union: Path) -> ErrorDetails:
    words = list(dict.fromkeys(problem_of(one).removeprefix("expected ") for one in inside))
    return ErrorDetails(type=UNION, loc=union, msg=f"expected {' or '.join(words)}", input=inside[0]["input"])


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
