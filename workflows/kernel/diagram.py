"""A machine's table as Mermaid and as Markdown; the docs' pictures are made here (spec 6, 7.1)."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from workflows.kernel.errors import name_of
from workflows.kernel.machine import Machine, Row

__all__ = ["mermaid", "stages", "table"]


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WORDS = {"as", "class", "classdef", "click", "default", "direction", "end", "fork", "hide", "href", "join"}
_WORDS |= {"choice", "left", "note", "of", "right", "root", "scale", "state", "statediagram", "style"}
"""What means something else to Mermaid, in any case."""


def _ids(machine: Machine[Any]) -> dict[Enum, str]:
    """State -> a name that Mermaid takes, each another one."""
    names = {state: name_of(state) for state in machine.states}
    ids = {s: n for s, n in names.items() if _PLAIN.fullmatch(n) and n.casefold() not in _WORDS}
    taken = {found.casefold() for found in ids.values()}
    for state in machine.states:
        if state not in ids:
            stem = re.sub(r"[^A-Za-z0-9_]+", "_", names[state]).strip("_")
            found = stem = f"state_{stem}" if stem else "state_"
            number = 2
            while found.casefold() in taken:
                found, number = f"{stem}_{number}", number + 1
            ids[state] = found
            taken.add(found.casefold())
    return ids


def _called(function: object) -> str:
    """The name of a guard or an action; a lambda and a partial have none."""
    name = getattr(function, "__name__", type(function).__name__)
    return "condition" if name == "<lambda>" else name


def _label(row: Row) -> str:
    return f"{row.event.__name__} [{_called(row.guard)}]" if row.guard else row.event.__name__


def mermaid(machine: Machine[Any], current: str | None = None) -> str:
    """A Mermaid state diagram; the state named `current` is marked."""
    ids = _ids(machine)
    lines = ["stateDiagram-v2"]
    for state, found in ids.items():
        if found != name_of(state):
            text = " ".join(name_of(state).replace('"', "'").split())
            lines.append(f'    state "{text}" as {found}')
    lines.append(f"    [*] --> {ids[machine.initial]}")
    lines += [f"    {ids[r.source]} --> {ids[r.target]}: {_label(r)}" for r in machine.rows]
    if machine.fail_state is not None:
        sources = [s for s in machine.states if s not in machine.final]
        lines += [f"    {ids[s]} --> {ids[machine.fail_state]}: broken rule" for s in sources]
    lines += [f"    {ids[s]} --> [*]" for s in machine.states if s in machine.final]
    if current is not None:
        lines += [
            "    classDef current fill:#fde68a,stroke:#b45309,stroke-width:3px",
            f"    class {ids[machine.state_named(current)]} current",
        ]
    return "\n".join(lines) + "\n"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells]) + "\n"


def table(machine: Machine[Any]) -> str:
    """The transition table in Markdown, in the order in which rows are tried."""
    rows = []
    for row in machine.rows:
        extras = [f"only if {_called(row.guard)}"] if row.guard else []
        extras += [f"resets {', '.join(row.reset)}"] if row.reset else []
        extras += [f"does {_called(row.action)}"] if row.action else []
        event = f"`{row.event.__name__}`"
        rows.append([name_of(row.source), event, name_of(row.target), "; ".join(extras)])
    return _markdown(["from", "event", "to", "also"], rows)


def stages(machine: Machine[Any]) -> str:
    """What each state may read, write and ask for, in Markdown."""
    rows = []
    for state, stage in machine.states.items():
        reads, writes, grants = (
            ", ".join(sorted(n)) or "-" for n in (stage.reads, stage.writes, stage.grants)
        )
        marks = ["final"] if state in machine.final else []
        marks += ["begins a step"] if state == machine.step_state else []
        marks += [f"spends {stage.spends}"] if stage.spends else []
        marks += [] if stage.enforce else ["not enforced"]
        rows.append([name_of(state), reads, writes, grants, ", ".join(marks)])
    return _markdown(["state", "reads", "writes", "may ask for", ""], rows)
