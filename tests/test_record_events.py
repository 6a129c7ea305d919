"""Names of records that Ratchet writes by itself: one list has them all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args

import workflows
from activities.contracts import Answers, SingleAnswer
from activities.contracts.record_events import RESERVED_EVENTS
from workflows.gate.requests import EventName
from workflows.kernel import errors
from workflows.kernel.errors import MachineError
from workflows.workflow import IMPURE

ROOT = Path(workflows.__file__).parent
WRITERS = {"log_event", "record", "go_back"}
"""Functions that write a record, whose first argument is its name."""


def written(tree: ast.Module, module: ModuleType) -> Iterator[str]:
    """The names that a module gives such a function, or a `Record`, as text or as a constant."""
    given: list[ast.expr] = []
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            given += call.args[:1] if name in WRITERS else ()
            given += [one.value for one in call.keywords if one.arg == "event"]
    names = {one.id for one in given if isinstance(one, ast.Name)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Assign) and names & {n.id for n in ast.walk(one) if isinstance(n, ast.Name)}:
            given.append(one.value)
    for one in [part for value in given for part in ast.walk(value)]:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
        if isinstance(one, ast.Name) and isinstance(value := getattr(module, one.id, None), str):
            yield value


def logged() -> set[str]:
    """What the code writes: texts and constants, what people's requests tell, broken rules, and answers."""
    found = set[str](get_args(EventName))
    for path in sorted(ROOT.rglob("*.py")):
        if "machines" in path.parts or "verify" in path.parts:
            continue
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        found |= {*written(ast.parse(path.read_text()), import_module(name.removesuffix(".__init__")))}
    broken = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, MachineError)]
    given = [*get_args(get_args(SingleAnswer)[0]), Answers]
    return found | {IMPURE} | {one.__name__ for one in (*broken, *given)}


def test_list_has_every_name_that_ratchet_logs() -> None:
    assert {name for name in logged() if re.fullmatch(r"([A-Z][a-z]+)+", name)} == RESERVED_EVENTS
