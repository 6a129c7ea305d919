"""Writes docs/machines.md from the code: `make docs`. A test holds the file against the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from client.knobs import knobs
from client.machinefacts import unmatched
from workflows import registry
from workflows.kernel.design import COMMON_EXITS, Design
from workflows.kernel.diagram import mermaid, stages, table

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parent / "machines.md"
HEAD = """# Machines

Made by `make docs` from the declarations in `workflows/machines/`; do not edit. The table is what
runs: rows are tried in order, and no move is made that is not in it; what happens then is said below
each table. The same for a machine of yours: `ratchet machines NAME` and `ratchet diagram NAME`; how to
write one: [own-machine.md](own-machine.md).
`spec` names the part of the specification that a knob comes from; times are seconds.
"""
EXITS = """## Exit reasons of every machine

A result's `exit_reason` is one of the machine's own, or one of these; `ok` is false then.
"""


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]]) + "\n"


def _knobs(design: Design) -> str:
    rows = [
        [
            f"`{knob.name}`",
            "must be given" if knob.default is None else f"`{knob.default}`",
            knob.allowed,
            knob.meaning,
            knob.source,
        ]
        for knob in knobs(design.options)
    ]
    return _markdown(["knob", "default", "allowed", "meaning and unit", "spec"], rows)


def _exits(exits: Mapping[str, str]) -> str:
    return _markdown(["exit reason", "meaning"], ([f"`{reason}`", words] for reason, words in exits.items()))


def _contents(designs: Iterable[Design]) -> str:
    rows = [
        [f"[{d.name}](#{_anchor(_title(d))})", d.description, ", ".join(f"`{role}`" for role in d.roles)]
        for d in designs
    ]
    return _markdown(["machine", "what it does", "model roles"], rows)


def _title(design: Design) -> str:
    return f"{design.name} (version {design.version})"


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _section(design: Design) -> str:
    machine = design.build(design.options(), registry.parts())
    context = "It takes material to work on (`ratchet run --context FILE`).\n" if design.takes_context else ""
    return "\n".join(
        [
            f"## {_title(design)}\n",
            f"{design.description}\n",
            *([context] if context else []),
            f"```mermaid\n{mermaid(machine)}```\n",
            "### Transitions\n",
            table(machine),
            f"{unmatched(machine)}\n",
            "### States\n",
            stages(machine),
            "### Knobs\n",
            _knobs(design),
            *(["### Exit reasons\n", _exits(design.exits)] if design.exits else []),
        ]
    )


def page() -> str:
    """The whole page."""
    designs = registry.shipped()
    head = [HEAD, _contents(designs), EXITS, _exits(COMMON_EXITS)]
    return "\n".join([*head, *(_section(design) for design in designs)])


if __name__ == "__main__":
    PAGE.write_text(page())
