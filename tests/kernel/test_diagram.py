"""The machine as a picture and as tables."""

from __future__ import annotations

import re
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any

from tests.kernel.puppet import Ended, S, Went, puppet
from workflows.kernel.diagram import mermaid, stages, table
from workflows.kernel.errors import name_of
from workflows.kernel.machine import Exit, Machine, Row, State

ID = r"[A-Za-z][A-Za-z0-9_]*"
LABEL = r"\w+( \[\w+\])?|broken rule"
GRAMMAR = re.compile(
    rf'stateDiagram-v2|    state "[^"\n]+" as {ID}|    \[\*\] --> {ID}|    {ID} --> \[\*\]'
    rf"|    {ID} --> {ID}: ({LABEL})|    classDef current \S+|    class {ID} current"
)
RESERVED = {"end", "state", "note", "class", "classdef", "direction", "default", "style", "as"}


def many(event: Any, c: Any) -> bool:
    """A guard."""
    return bool(c.total > 2)


def test_the_picture_shows_every_row_and_marks_the_current_state() -> None:
    machine = puppet([Row(S.A, Ended, S.END, guard=many), Row(S.A, Went, S.B), Row(S.B, Ended, S.END)])
    assert mermaid(machine, "b") == (
        "stateDiagram-v2\n"
        '    state "end" as state_end\n'
        "    [*] --> a\n"
        "    a --> state_end: Ended [many]\n"
        "    a --> b: Went\n"
        "    b --> state_end: Ended\n"
        "    state_end --> [*]\n"
        "    classDef current fill:#fde68a,stroke:#b45309,stroke-width:3px\n"
        "    class b current\n"
    )


def test_the_way_to_the_fail_state_is_drawn() -> None:
    text = mermaid(puppet(fail_state=S.FAILED))
    assert "    a --> failed: broken rule\n    b --> failed: broken rule\n" in text


class Odd(Enum):
    """Names that mean something to Mermaid, or nothing at all."""

    A = "__end__"
    B = "end"
    C = "End"
    D = "state_end"
    E = "two words"
    F = "two-words"
    G = 'with "quotes" | and\nlines'
    H = "état"
    I = "note"  # noqa: E741  # a name like any other
    J = "_"
    K = 7
    L = "class"
    M = "classDef"


def _odd() -> Machine[Any]:
    states = list(Odd)
    return Machine(
        name="odd", context=puppet().context, initial=Odd.A, final={Odd.M},
        states={s: State() if s is Odd.M else State(enter=lambda c, at: Went()) for s in states},
        table=[
            Row(a, Went, b, partial(many) if a is Odd.A else (lambda e, c: True), lambda e, c: None)
            for a, b in pairwise(states)
        ],
        result=lambda c, s: Exit(reason="end"),
    )  # fmt: skip


def test_every_name_of_a_state_becomes_valid_mermaid() -> None:
    machine = _odd()
    for state in Odd:
        lines = mermaid(machine, name_of(state)).splitlines()
        assert [line for line in lines if not GRAMMAR.fullmatch(line)] == []
    ids = re.findall(rf"^    class ({ID}) current$", "\n".join(lines), re.MULTILINE)
    used = {word for line in lines[1:] for word in re.findall(rf"({ID}) -->|--> ({ID})", line)}
    names = {a or b for a, b in used}
    assert len(names) == len(Odd)
    assert len({name.casefold() for name in names}) == len(Odd)
    assert {name.casefold() for name in names} & RESERVED == set()
    assert ids[0] in names


def test_the_table_lists_the_rows_in_order_with_what_else_they_do() -> None:
    rows = [
        Row(S.A, Ended, S.END, guard=many),
        Row(S.A, Went, S.B, reset=("goal", "total")),
        Row(S.B, Ended, S.END),
    ]
    assert table(puppet(rows)) == (
        "| from | event | to | also |\n"
        "| --- | --- | --- | --- |\n"
        "| a | `Ended` | end | only if many |\n"
        "| a | `Went` | b | resets goal, total |\n"
        "| b | `Ended` | end |  |\n"
    )
    odd = table(_odd()).splitlines()
    assert odd[2] == "| __end__ | `Went` | end | only if partial; does condition |"
    assert odd[8] == '| with "quotes" \\| and lines | `Went` | état | only if condition; does condition |'
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in odd} == {5}


def test_the_stages_are_listed_with_their_rights() -> None:
    slots = {"reads": {"goal"}, "writes": {"total", "goal"}, "enforce": False}
    text = stages(puppet(states={S.A: slots}, step_state=S.A))
    assert "| a | goal | goal, total | ask | begins a step, spends rounds, not enforced |\n" in text
    assert "| end | - | - | - | final |\n" in text
