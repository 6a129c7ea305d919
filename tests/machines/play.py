"""Play a machine without a host: one list of answers is one run.

At each effect the run is also taken through JSON, and goes on in both ways: with the generator that
lives in the process, and with a visit that is run again. Both must give the same.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from activities.contracts import AskModel, Conversation, Message, ToolSpec
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Extensions, Machine, RunInput
from workflows.kernel.rollback import restored
from workflows.kernel.snapshot import Program, Suspension, dump
from workflows.kernel.transition import advance, load, refuse, start, steer

__all__ = ["Played", "Reaction", "TOOL", "play", "program_of", "rows_of", "rows_taken", "tool"]

Reaction = Any
"""An answer, a function (effect -> answer), or a `Message` from a person while an effect is pending."""


@dataclass(frozen=True)
class Played:
    """A run as far as its answers carried it."""

    step: Suspension
    """Where it is now."""
    records: tuple[Record, ...]
    """The whole log."""
    effects: tuple[Any, ...]
    """All that the machine asked for, in order."""
    prompts: tuple[tuple[Message, ...], ...]
    """What each model call sent, whole."""
    unused: int
    """Answers that nobody asked for."""

    @property
    def states(self) -> str:
        """The states in the order of their entries, in one line."""
        return " ".join(record.to for record in self.records if record.to)

    @property
    def path(self) -> str:
        """The states by their first letters; `.` is the end."""
        ends = {"END", "DONE"}
        return "".join("." if name.upper() in ends else name[0].upper() for name in self.states.split())

    @property
    def events(self) -> str:
        """The events that moved the table, in one line."""
        return " ".join(record.event for record in self.records[1:] if record.to)

    @property
    def exit(self) -> Exit:
        """How it ended."""
        assert self.step.exit is not None, f"the run has not ended; it asks for {self.step.effect}"
        return self.step.exit

    @property
    def context(self) -> Any:
        """What the machine remembers."""
        return self.step.snapshot.context

    @property
    def conversation(self) -> Conversation:
        """What was said."""
        return self.step.snapshot.conversation

    @property
    def asked(self) -> tuple[AskModel, ...]:
        """The model calls among the effects."""
        return tuple(effect for effect in self.effects if isinstance(effect, AskModel))

    @property
    def newest(self) -> str:
        """The newest message of the last model call."""
        return self.prompts[-1][-1].content


def tool(name: str, **more: Any) -> ToolSpec:
    """A tool that may be repeated; `more` are other fields of `ToolSpec`."""
    given = {"parameters": {"type": "object", "properties": {"q": {"type": "string"}}}, "effect": "read"}
    return ToolSpec(name=name, description=f"does {name}", **{**given, **more})


TOOL = tool("tool")


def program_of(
    machine: Machine,
    options: Mapping[str, Any] | None = None,
    *,
    tools: Iterable[ToolSpec] = (TOOL,),
    extensions: Extensions | None = None,
    **more: Any,
) -> Program:
    """A program with one tool; `more` are other fields of `RunInput`."""
    given = RunInput(**{"goal": "find out", "trace_id": "trace-1", "tools": tuple(tools), **more})
    return Program(machine, given, dict(options or {}), extensions or Extensions())


def play(
    program: Program, answers: Iterable[Reaction], *, ledger: Ledger | None = None, both_ways: bool = True
) -> Played:
    """Answer one effect after the other, a second apart, until the run or the list ends. A limit that is
    reached ends the run.

    `both_ways` checks what the module's text says; false for runs so long that it would take minutes.
    """
    clock, waiting = itertools.count(1000.0), iter(answers)
    step = start(program, now=next(clock), ledger=ledger)
    records, effects, prompts = list(step.records), [], []
    while step.effect is not None:
        if step.breach is not None:
            step = refuse(step, now=next(clock))
            records += step.records
            break
        reaction, now = next(waiting, None), next(clock)
        if isinstance(reaction, Message):
            step = steer(step, reaction, now=now, by="ann")
            records += step.records
            continue
        effects.append(step.effect)
        if isinstance(step.effect, AskModel):
            prompts.append(_prompt(step))
        if reaction is None:
            break
        answer = reaction(step.effect) if callable(reaction) else reaction
        twin = _through_json(step) if both_ways else None
        step = advance(step, answer, now=now)
        if twin is not None:
            _same(advance(twin, answer, now=now), step)
        records += step.records
    if both_ways:
        _rebuilt_from_log(step, records)
    return Played(step, tuple(records), tuple(effects), tuple(prompts), len(list(waiting)))


Row = tuple[str, str, str]
"""State, event, and the state that it leads to."""


def rows_of(machine: Machine) -> set[Row]:
    """The machine's table."""
    return {(one, event.__name__, to) for one, row in machine.rows.items() for event, to in row.items()}


def rows_taken(runs: Iterable[Played]) -> set[Row]:
    """The rows that these runs took."""
    return {(r.state, r.event, r.to) for run in runs for r in run.records[1:] if r.to}


def _prompt(step: Suspension) -> tuple[Message, ...]:
    effect: Any = step.effect
    return effect.say if effect.beside else (*step.snapshot.conversation, *effect.say)


def _through_json(step: Suspension) -> Suspension:
    """The step in another process: its visit has run again over its answers."""
    twin = load(step.program, json.loads(json.dumps(dump(step))))
    assert twin.effect == step.effect
    assert dump(twin) == dump(step)
    return twin


def _same(one: Suspension, other: Suspension) -> None:
    assert one.effect == other.effect
    assert one.exit == other.exit
    assert one.records == other.records
    assert dump(one) == dump(other)


def _rebuilt_from_log(step: Suspension, records: list[Record]) -> None:
    """Context and conversation come back from the log alone."""
    rebuilt = restored(step.program, [Record.model_validate_json(r.model_dump_json()) for r in records])
    snapshot = step.snapshot
    assert (rebuilt.state, rebuilt.visit, rebuilt.counts) == (snapshot.state, snapshot.visit, snapshot.counts)
    assert rebuilt.context == snapshot.context
    assert rebuilt.conversation == snapshot.conversation
    assert rebuilt.inbox == snapshot.inbox
