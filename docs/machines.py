"""The page docs/machines.md, made from the declarations of the machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from client.agents.options import options_of
from docs.markdown import anchor_of, table_of
from workflows import registry
from workflows.kernel.diagram import mermaid, rights, table
from workflows.kernel.machine import COMMON_EXITS, Machine

__all__ = ["page"]

HEAD = """# Machines

<!-- Made by `make docs` from the declarations in `workflows/machines/`; do not edit. -->

The machines that come with Ratchet: what they do, their options, states, tables and exit reasons.

A machine cannot make a transition that is not in its table, and a state cannot read, write or ask for
anything that it did not declare. `ratchet machines NAME` and `ratchet diagram NAME` show the same for a
machine of your own ([how to write one](own-machine.md)). Times are in seconds.
"""
EXITS = """## Exit reasons of every machine

A result's `exit_reason` is one of the machine's own, or one of these. With one of these, `ok` is false.
"""
MATERIAL = "It takes material: `ratchet run --material FILE`.\n"


def page() -> str:
    """The whole page."""
    machines = registry.shipped()
    head = [HEAD, _contents(machines), EXITS, _exits(COMMON_EXITS)]
    return "\n".join([*head, *map(_section, machines)])


def _section(machine: Machine) -> str:
    return "\n".join(
        [
            f"## {_title(machine)}\n",
            f"{machine.description}\n",
            *([MATERIAL] if machine.takes_material else []),
            f"```mermaid\n{mermaid(machine)}```\n",
            "### Transitions\n",
            table(machine),
            "### States\n",
            rights(machine),
            "### Options\n",
            _options(machine),
            *(["### Exit reasons\n", _exits(machine.exits)] if machine.exits else []),
        ]
    )


def _contents(machines: Iterable[Machine]) -> str:
    rows = [
        [f"[{m.name}](#{anchor_of(_title(m))})", m.description, ", ".join(f"`{role}`" for role in m.roles)]
        for m in machines
    ]
    return table_of(["machine", "what it does", "model roles"], rows)


def _options(machine: Machine) -> str:
    rows = [
        [
            f"`{option.name}`",
            "must be given" if option.default is None else f"`{option.default}`",
            option.allowed,
            option.meaning,
        ]
        for option in options_of(machine.options)
    ]
    return table_of(["option", "default", "allowed", "meaning and unit"], rows)


def _exits(exits: Mapping[str, str]) -> str:
    rows = ([f"`{reason}`", meaning] for reason, meaning in exits.items())
    return table_of(["exit reason", "meaning"], rows)


def _title(machine: Machine) -> str:
    return f"{machine.name} (version {machine.version})"
