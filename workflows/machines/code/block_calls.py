"""What a block may call outside, and how its arguments are read (spec 2.4). Pure."""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from activities.contracts import CodeCall, JsonObject, ToolSpec

__all__ = [
    "ANSWER_CHARS",
    "BUILT_IN",
    "CALL_SIZE",
    "FINAL",
    "FINAL_VAR",
    "MANY",
    "QUERIES",
    "REPLY_BYTES",
    "ROLES",
    "RUN_BYTES",
    "BadCall",
    "OfferedTool",
    "answer_text",
    "arguments",
    "offered",
    "only_value",
    "questions",
]

FINAL, FINAL_VAR = "FINAL", "FINAL_VAR"
ONE, MANY = "llm_query", "llm_query_batched"
QUERIES = (ONE, MANY)
BUILT_IN = (*QUERIES, FINAL, FINAL_VAR)
"""What every block may call; tools come after them."""
VARIABLES = ("context", "context_len", "context_slice", "context_search", "DEPTH", "CORRELATION_ID")
RESERVED = frozenset({*BUILT_IN, *VARIABLES, *dir(builtins)})
"""Names that a block has already; a tool of that name could not be called."""
CALL_SIZE = 400_000
"""Characters of one prompt, and bytes of the arguments of one tool call: the run's log keeps them."""
REPLY_BYTES = 8_000_000
"""What the blocks of one reply may send outside and get back, in UTF-8: a snapshot carries it."""
RUN_BYTES = 64_000_000
"""The same for a whole run: its log is written in one piece, and that must not take too long."""
ANSWER_CHARS = 1_000_000
"""The longest answer that a block or a variable may give; a longer one is an error, never cut."""
ROLES = ("default", "sub")
"""Model roles that `llm_query(model=...)` may name."""


class BadCall(ValueError):
    """A call that cannot be made, and why, in words for the block."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as blocks call it."""

    name: str
    """In blocks: the tool's name, made an identifier."""
    tool: str
    parameters: tuple[str, ...] = ()
    """In the order of the schema's properties, for positional arguments."""


def offered(specs: Sequence[ToolSpec]) -> tuple[OfferedTool, ...]:
    """The tools under names that a block can call; a name that is taken gets a `_` at its end."""
    found: list[OfferedTool] = []
    taken = set(RESERVED)
    for spec in specs:
        name = re.sub(r"\W", "_", spec.name)
        name = f"_{name}" if name[:1].isdigit() else name
        while name in taken or keyword.iskeyword(name):
            name += "_"
        taken.add(name)
        properties = spec.parameters.get("properties")
        parameters = tuple(properties) if isinstance(properties, dict) else ()
        found.append(OfferedTool(name, spec.name, parameters))
    return tuple(found)


def arguments(call: CodeCall, parameters: Sequence[str]) -> JsonObject:
    """The arguments by name; positional ones in the order of the parameters. Raises BadCall."""
    if len(call.args) > len(parameters):
        most = f"at most {len(parameters)}" if parameters else "no"
        raise BadCall(f"{call.name} takes {most} positional arguments, {len(call.args)} were given")
    given: dict[str, JsonValue] = dict(zip(parameters, call.args, strict=False))
    for name, value in call.named.items():
        if name in given:
            raise BadCall(f"{call.name} was given {name!r} twice")
        given[name] = value
    return given


def questions(call: CodeCall) -> tuple[list[str], str]:
    """The prompts of `llm_query` or `llm_query_batched`, and the model role. Raises BadCall."""
    many = call.name == MANY
    field = "prompts" if many else "prompt"
    given = arguments(call, (field, "model"))
    if unknown := [name for name in given if name not in (field, "model")]:
        raise BadCall(f"{call.name} has no parameter {unknown[0]!r}; it has {field} and model")
    if field not in given:
        raise BadCall(f"{call.name} needs {field}")
    model = given.get("model")
    if model is not None and model not in ROLES:
        raise BadCall(f"{call.name}: unknown model {model!r}; there is {' and '.join(ROLES)}")
    prompts = given[field] if many else [given[field]]
    if not isinstance(prompts, list):
        raise BadCall(f"{call.name} takes a list of texts, not {_kind(prompts)}")
    checked = [_prompt(call.name, one, number if many else None) for number, one in enumerate(prompts)]
    return checked, "sub" if model is None else str(model)


def _prompt(name: str, prompt: JsonValue, number: int | None) -> str:
    """The prompt, checked; `number`: which one of a list."""
    if not isinstance(prompt, str):
        expected = "a text, not" if number is None else f"a list of texts; item {number} is"
        raise BadCall(f"{name} takes {expected} {_kind(prompt)}")
    if len(prompt) > CALL_SIZE:
        which = "the prompt" if number is None else f"item {number}"
        raise BadCall(
            f"{name}: {which} has {len(prompt):,} characters, at most {CALL_SIZE:,} are allowed; "
            "ask about parts of it"
        )
    return prompt


def only_value(call: CodeCall) -> JsonValue:
    """The one value given to FINAL or FINAL_VAR, by whatever name; nothing is the empty text.

    Raises BadCall for more than one, and for one that is too long for an answer.
    """
    values = [*call.args, *call.named.values()]
    if len(values) > 1:
        raise BadCall(f"{call.name} takes one value, {len(values)} were given")
    value = values[0] if values else ""
    if (count := len(answer_text(value))) > ANSWER_CHARS:
        raise BadCall(
            f"{call.name}: the answer would have {count:,} characters, at most {ANSWER_CHARS:,} are allowed; "
            "give a shorter one"
        )
    return value


def answer_text(value: JsonValue) -> str:
    """A value as the answer: text as it is, anything else as JSON."""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: JsonValue) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
