"""All that can be said of a machine, as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from client.agents.options import options_of, schema_of
from workflows.kernel.machine import COMMON_EXITS, Machine, state_name

__all__ = ["machine_facts"]


def machine_facts(machine: Machine) -> dict[str, Any]:
    """What `ratchet machines NAME` shows."""
    return {
        "machine": machine.name,
        "version": machine.version,
        "description": machine.description,
        "roles": list(machine.roles),
        "takes_material": machine.takes_material,
        "options": [asdict(option) for option in options_of(machine.options)],
        "schema": schema_of(machine.options),
        "states": [_state_facts(machine, name) for name in machine.by_name],
        "transitions": [
            {"from": source, "event": event.__name__, "to": target}
            for source, row in machine.rows.items()
            for event, target in row.items()
        ],
        "exits": dict(machine.exits),
        "common_exits": dict(COMMON_EXITS),
    }


def _state_facts(machine: Machine, name: str) -> dict[str, Any]:
    one = machine.by_name[name]
    return {
        "state": name,
        "initial": name == state_name(machine.initial),
        "final": name in machine.final,
        "begins_step": machine.step is not None and name == state_name(machine.step),
        "counts": one.counts,
        "reads": sorted(one.reads),
        "writes": sorted(one.writes),
        "asks": sorted(effect.__name__ for effect in one.asks),
        "tools": None if one.tools is None else sorted(one.tools),
        "enforced": one.enforce,
    }
