"""A machine's table as Mermaid and as Markdown; the docs' pictures are made here (spec 7.1)."""

from __future__ import annotations

import re

from workflows.kernel.machine import Machine, state_name

__all__ = ["mermaid", "rights", "table"]

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = {
    "as", "choice", "class", "classdef", "click", "default", "direction", "end", "fork", "hide", "href",
    "join", "left", "note", "of", "right", "root", "scale", "state", "statediagram", "style",
}  # fmt: skip
"""Words that mean something else to Mermaid, in any case."""


def mermaid(machine: Machine, current: str | None = None) -> str:
    """A Mermaid state diagram; the state named `current` is marked."""
    ids = _mermaid_ids(machine)
    lines = ["stateDiagram-v2"]
    for name, found in ids.items():
        if found != name:
            text = " ".join(name.replace('"', "'").split())
            lines.append(f'    state "{text}" as {found}')
    lines.append(f"    [*] --> {ids[state_name(machine.initial)]}")
    for source, row in machine.rows.items():
        lines += [f"    {ids[source]} --> {ids[target]}: {event.__name__}" for event, target in row.items()]
    if machine.fail is not None:
        lines += [
            f"    {ids[source]} --> {ids[state_name(machine.fail)]}: broken rule" for source in machine.rows
        ]
    lines += [f"    {found} --> [*]" for name, found in ids.items() if name in machine.final]
    if current is not None:
        lines.append("    classDef current fill:#fde68a,stroke:#b45309,stroke-width:3px")
        lines.append(f"    class {ids[current]} current")
    return "\n".join(lines) + "\n"


def _mermaid_ids(machine: Machine) -> dict[str, str]:
    """State -> a name that Mermaid takes, each a different one."""
    names = [*machine.rows, *sorted(machine.final)]
    ids = {name: name for name in names if _PLAIN.fullmatch(name) and name.casefold() not in _RESERVED}
    taken = {found.casefold() for found in ids.values()}
    for name in names:
        if name in ids:
            continue
        stem = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
        found = stem = f"state_{stem}"
        number = 2
        while found.casefold() in taken:
            found, number = f"{stem}_{number}", number + 1
        ids[name] = found
        taken.add(found.casefold())
    return {name: ids[name] for name in names}


def table(machine: Machine) -> str:
    """The transition table in Markdown."""
    rows = [
        [source, f"`{event.__name__}`", target]
        for source, row in machine.rows.items()
        for event, target in row.items()
    ]
    return _markdown(["from", "event", "to"], rows)


def rights(machine: Machine) -> str:
    """What each state may read, write and ask for, in Markdown."""
    rows = []
    begins = state_name(machine.step) if machine.step else None
    for name in [*machine.rows, *sorted(machine.final)]:
        declared = machine.by_name[name]
        kinds = [kind.model_fields["kind"].default for kind in declared.asks]
        marks = [
            "final" if name in machine.final else "",
            "begins a step" if name == begins else "",
            f"counts {declared.counts}" if declared.counts else "",
            "" if declared.enforce else "not enforced",
        ]
        lists = [", ".join(sorted(found)) or "-" for found in (declared.reads, declared.writes, kinds)]
        rows.append([name, *lists, ", ".join(mark for mark in marks if mark)])
    return _markdown(["state", "reads", "writes", "may ask for", "also"], rows)


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)
