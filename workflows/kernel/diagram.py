"""A machine's table as Mermaid and as Markdown; the docs' pictures are made here (spec 6, 7.1)."""

from __future__ import annotations

from typing import Any

from workflows.kernel.errors import name_of
from workflows.kernel.machine import Machine, Row

__all__ = ["mermaid", "stages", "table"]


def _id(state: object) -> str:
    """A name that Mermaid takes: it refuses a leading underscore pair and `end`."""
    name = name_of(state)
    return f"state_{name.strip('_')}" if name.startswith("_") or name == "end" else name


def _label(row: Row) -> str:
    return f"{row.event.__name__} [{row.guard.__name__}]" if row.guard else row.event.__name__


def mermaid(machine: Machine[Any], current: str | None = None) -> str:
    """A Mermaid state diagram; the state named `current` is marked."""
    lines = ["stateDiagram-v2"]
    for state in machine.states:
        if _id(state) != name_of(state):
            lines.append(f'    state "{name_of(state)}" as {_id(state)}')
    lines.append(f"    [*] --> {_id(machine.initial)}")
    lines += [f"    {_id(r.source)} --> {_id(r.target)}: {_label(r)}" for r in machine.rows]
    if machine.fail_state is not None:
        sources = [s for s in machine.states if s not in machine.final]
        lines += [f"    {_id(s)} --> {_id(machine.fail_state)}: broken rule" for s in sources]
    lines += [f"    {_id(s)} --> [*]" for s in machine.states if s in machine.final]
    if current is not None:
        lines += [
            "    classDef current fill:#fde68a,stroke:#b45309,stroke-width:3px",
            f"    class {_id(machine.state_named(current))} current",
        ]
    return "\n".join(lines) + "\n"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def table(machine: Machine[Any]) -> str:
    """The transition table in Markdown, in the order in which rows are tried."""
    rows = []
    for row in machine.rows:
        extras = [f"only if {row.guard.__name__}"] if row.guard else []
        extras += [f"resets {', '.join(row.reset)}"] if row.reset else []
        extras += [f"does {row.action.__name__}"] if row.action else []
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
