"""What a block may call outside, and how its arguments are read (spec 2.4). Pure."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from activities.contracts import JsonObject, ToolSpec
from activities.contracts_code import CodeCall
from workflows.machines.code_context import Offered, Query

__all__ = [
    "ANSWER_CHARS",
    "BUILT_IN",
    "FINAL",
    "FINAL_VAR",
    "ONE_CALL_CHARS",
    "ROLES",
    "RUN_BYTES",
    "VISIT_BYTES",
    "Bad",
    "Batch",
    "answer_text",
    "arguments",
    "crowded",
    "offered",
    "only",
    "queries",
]

FINAL, FINAL_VAR, ONE, MANY = "FINAL", "FINAL_VAR", "llm_query", "llm_query_batched"
BUILT_IN = (ONE, MANY, FINAL, FINAL_VAR)
"""What every block may call; tools come behind."""
_OWN = "context context_len context_slice context_search DEPTH CORRELATION_ID"
_PYTHON = """\
abs all any ascii bin bool bytes chr complex dict divmod enumerate eval exec filter float format frozenset
getattr hasattr hash hex id int isinstance iter len list locals map max min next object oct open ord pow
print property range repr reversed round set setattr slice sorted str sum tuple type zip
Ellipsis NotImplemented __debug__ __doc__ __name__ __package__ __spec__
ArithmeticError AssertionError AttributeError BaseException Exception FileExistsError FileNotFoundError
ImportError IndexError IsADirectoryError KeyError KeyboardInterrupt LookupError MemoryError
ModuleNotFoundError NameError NotADirectoryError NotImplementedError OSError OverflowError PermissionError
RecursionError RuntimeError StopIteration SyntaxError SystemExit TimeoutError TypeError UnboundLocalError
UnicodeDecodeError UnicodeEncodeError ValueError ZeroDivisionError"""
RESERVED = (*BUILT_IN, *_OWN.split(), *_PYTHON.split())
"""Names that a block has already: a tool of that name could not be called."""
ONE_CALL_CHARS = 400_000
"""Of one prompt, or of the arguments of one tool call: all of it is kept in the run's log."""
VISIT_BYTES = 8_000_000
"""What the blocks of one reply may send outside and get back, in UTF-8."""
RUN_BYTES = 64_000_000
"""The same for a whole run: the log is written in one piece, and has to be so in time."""
ANSWER_CHARS = 1_000_000
"""The longest answer that a block or a variable may give; a longer one is an error, never cut."""
ROLES = ("default", "sub")
"""Model roles that `llm_query(model=...)` may name."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A call that cannot be made, and why, in words for the block."""

    problem: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The sub-queries of one call; `many`: their answers are a list."""

    prompts: tuple[str, ...]
    role: str
    many: bool

    def queries(self, block: int) -> tuple[Query, ...]:
        """As they are recorded on the block."""
        return tuple(Query(block=block, prompt=prompt, role=self.role) for prompt in self.prompts)


def offered(specs: Sequence[ToolSpec]) -> tuple[Offered, ...]:
    """The tools under names that a block can call; a name that is taken gets a `_` behind it."""
    found: list[Offered] = []
    taken = set(RESERVED)
    for spec in specs:
        name = re.sub(r"\W", "_", spec.name)
        name = f"_{name}" if name[:1].isdigit() else name
        while name in taken or keyword.iskeyword(name):
            name += "_"
        taken.add(name)
        properties: Any = spec.parameters.get("properties")
        parameters = tuple(properties) if isinstance(properties, dict) else ()
        found.append(Offered(name=name, tool=spec.name, parameters=parameters))
    return tuple(found)


def arguments(call: CodeCall, parameters: Sequence[str]) -> JsonObject | Bad:
    """The arguments by name; positional ones in the order of the parameters."""
    if len(call.args) > len(parameters):
        most = f"at most {len(parameters)}" if parameters else "no"
        return Bad(f"{call.name} takes {most} positional arguments, {len(call.args)} were given")
    given: dict[str, JsonValue] = dict(zip(parameters, call.args, strict=False))
    for name, value in call.named.items():
        if name in given:
            return Bad(f"{call.name} was given {name!r} twice")
        given[name] = value
    return given


def queries(call: CodeCall) -> Batch | Bad:
    """The sub-queries of `llm_query` or `llm_query_batched`."""
    many = call.name == MANY
    what = "prompts" if many else "prompt"
    given = arguments(call, (what, "model"))
    if isinstance(given, Bad):
        return given
    unknown = [name for name in given if name not in (what, "model")]
    if unknown:
        return Bad(f"{call.name} has no parameter {unknown[0]!r}; it has {what} and model")
    if what not in given:
        return Bad(f"{call.name} needs {what}")
    model = given.get("model")
    if model is not None and model not in ROLES:
        return Bad(f"{call.name}: unknown model {model!r}; there is {' and '.join(ROLES)}")
    role = "sub" if model is None else str(model)
    prompts = given[what] if many else [given[what]]
    if not isinstance(prompts, list):
        return Bad(f"{call.name} takes a list of texts, not {_kind(prompts)}")
    bad = (_bad_prompt(call.name, prompt, n if many else None) for n, prompt in enumerate(prompts))
    if (first := next((one for one in bad if one), None)) is not None:
        return first
    return Batch(tuple(str(prompt) for prompt in prompts), role, many)


def _bad_prompt(name: str, prompt: JsonValue, number: int | None) -> Bad | None:
    """What is wrong with a prompt; `number`: which of a list."""
    if not isinstance(prompt, str):
        where = "a text, not" if number is None else f"a list of texts; item {number} is"
        return Bad(f"{name} takes {where} {_kind(prompt)}")
    if (count := len(prompt)) > ONE_CALL_CHARS:
        which = "the prompt" if number is None else f"item {number}"
        most = f"at most {ONE_CALL_CHARS:,} are allowed"
        return Bad(f"{name}: {which} has {count:,} characters, {most}; ask about parts of it")
    return None


def crowded(visit: int, run: int, size: int) -> Bad | None:
    """Does a call of so many bytes go beyond what a reply's blocks, or a run, may send and get?"""
    if visit + size > VISIT_BYTES:
        return Bad(
            f"the calls of one reply may send and bring {VISIT_BYTES:,} bytes in all; {visit:,} are used, "
            f"this call needs {size:,}; go on in the next reply, with shorter texts"
        )
    if run + size > RUN_BYTES:
        return Bad(
            f"the calls of a run may send and bring {RUN_BYTES:,} bytes in all; {run:,} are used, "
            f"this call needs {size:,}; answer with what you have"
        )
    return None


def _kind(value: JsonValue) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def only(call: CodeCall) -> JsonValue | Bad:
    """The one value that is given to FINAL or FINAL_VAR, by whatever name; nothing is the empty text.

    A value that is too long for an answer is a bad one.
    """
    values = [*call.args, *call.named.values()]
    if len(values) > 1:
        return Bad(f"{call.name} takes one value, {len(values)} were given")
    value = values[0] if values else ""
    if (count := len(answer_text(value))) > ANSWER_CHARS:
        return Bad(
            f"{call.name}: the answer would have {count:,} characters, at most {ANSWER_CHARS:,} are allowed; "
            "give a shorter one"
        )
    return value


def answer_text(value: JsonValue) -> str:
    """A value as the answer: text as it is, anything else as JSON."""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
