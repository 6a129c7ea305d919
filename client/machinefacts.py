"""All that can be said of one machine, for people (`ratchet machines NAME`) and as data (`--json`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from client.knobs import knobs
from workflows.kernel.design import COMMON_EXITS, Design
from workflows.kernel.errors import name_of
from workflows.kernel.machine import Machine, Row, State

__all__ = ["facts", "sections", "summary", "unmatched"]


def summary(design: Design) -> dict[str, Any]:
    """What a list of machines says of each."""
    return {
        "machine": design.name,
        "version": design.version,
        "description": design.description,
        "roles": list(design.roles),
        "options": design.options.model_json_schema(),
    }


def facts(design: Design, machine: Machine[Any] | None) -> dict[str, Any]:
    """Everything; `machine` is None when it cannot be built without options of a task."""
    return {
        **summary(design),
        "takes_context": design.takes_context,
        "knobs": [asdict(knob) for knob in knobs(design.options)],
        "states": [_state(machine, *each) for each in machine.states.items()] if machine else [],
        "transitions": [_row(row) for row in machine.rows] if machine else [],
        "unmatched": unmatched(machine) if machine else "",
        "exits": dict(design.exits),
        "common_exits": dict(COMMON_EXITS),
    }


def unmatched(machine: Machine[Any]) -> str:
    """What an event does for which the state has no row, in a sentence."""
    fail = machine.fail_state
    broken = "a rule: the run fails" if fail is None else f"a rule, which leads to `{name_of(fail)}`"
    words = {
        "end": "ends the run (`dead_end`)",
        "stay": f"is recorded, and the state is entered again; more than {machine.max_unmatched} in a row "
        f"break {broken}",
    }
    return f"An event for which a state has no row {words.get(machine.on_unmatched, f'breaks {broken}')}."


def _state(machine: Machine[Any], state: Any, stage: State) -> dict[str, Any]:
    return {
        "state": name_of(state),
        "initial": state == machine.initial,
        "final": state in machine.final,
        "begins_step": state == machine.step_state,
        "spends": stage.spends,
        "reads": sorted(stage.reads),
        "writes": sorted(stage.writes),
        "grants": sorted(stage.grants),
        "tools": None if stage.tools is None else sorted(stage.tools),
        "enforced": stage.enforce,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "from": name_of(row.source),
        "event": row.event.__name__,
        "to": name_of(row.target),
        "guard": _called(row.guard),
        "action": _called(row.action),
        "resets": list(row.reset),
    }


def _called(function: object | None) -> str | None:
    return None if function is None else getattr(function, "__name__", type(function).__name__)


def sections(found: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The facts for people: title of a section -> names with what is said of each."""
    roles = ", ".join(found["roles"])
    own = [*found["exits"].items()]
    return {
        "": [
            ("model roles", roles),
            ("takes --context", "yes" if found["takes_context"] else "no"),
            *([("not in the table", found["unmatched"])] if found["unmatched"] else []),
        ],
        "knobs": [(knob["name"], _knob(knob)) for knob in found["knobs"]],
        "states": [(state["state"], _words(state)) for state in found["states"]],
        "exit reasons": [*own, ("of every machine", ", ".join(found["common_exits"]))],
    }


def _knob(knob: dict[str, Any]) -> str:
    must = "must be given" if knob["default"] is None else f"default {knob['default']}"
    source = f" [{knob['source']}]" if knob["source"] else ""
    meaning = f"{knob['meaning']}{source}".strip()
    return f"{must}; {knob['allowed']}" + (f"\n{meaning}" if meaning else "")


def _words(state: dict[str, Any]) -> str:
    """`begins a step, spends steps` and what it may do."""
    marks = [word for key, word in _MARKS.items() if state[key]]
    marks += [f"spends {state['spends']}"] if state["spends"] else []
    marks += [] if state["enforced"] else ["not enforced"]
    asks = ", ".join(state["grants"])
    tools = "" if state["tools"] is None else f" of {', '.join(state['tools']) or 'no tool'}"
    lines = [", ".join(marks)]
    lines += [f"asks for: {asks}{tools}"] if asks else []
    lines += [f"{key}: {', '.join(state[key])}" for key in ("reads", "writes") if state[key]]
    return "\n".join(line for line in lines if line)


_MARKS = {"initial": "initial", "final": "final", "begins_step": "begins a step"}
