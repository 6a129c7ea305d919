"""Drive a machine without Temporal: the loop is the workflow's, the world is a list of answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from activities.contracts import Answer, CallModel, Effect, ToolSpec
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.snapshot import Step
from workflows.kernel.step import advance, start
from workflows.registry import design as design_named

__all__ = ["Play", "Reaction", "play", "run_script", "tool"]

Reaction = Answer | Callable[[Any], Answer]
"""An answer, or a function of the effect that gives one."""


@dataclass(frozen=True)
class Play:
    """A run as far as its answers carried it."""

    machine: Machine[Any]
    steps: tuple[Step[Any], ...]
    unused: int = 0
    """Answers that were not asked for."""

    @property
    def records(self) -> tuple[Record, ...]:
        """The whole log."""
        return tuple(itertools.chain.from_iterable(step.records for step in self.steps))

    @property
    def visited(self) -> str:
        """The states in the order in which they were entered, in one line."""
        return " ".join(record.to for record in self.records if record.to)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """All that the machine asked for, in order."""
        return tuple(step.effect for step in self.steps if step.effect)

    @property
    def prompts(self) -> tuple[CallModel, ...]:
        """The model calls among them."""
        return tuple(effect for effect in self.effects if isinstance(effect, CallModel))

    @property
    def last(self) -> Step[Any]:
        """Where it is now."""
        return self.steps[-1]

    @property
    def context(self) -> Any:
        """What the machine remembers now."""
        return self.last.snapshot.context

    @property
    def exit(self) -> Exit:
        """How it ended."""
        ended = self.last.exit
        assert ended is not None, f"it has not ended, it asks for {self.last.effect}"
        return ended

    @property
    def told(self) -> str:
        """The newest message of the last model call."""
        return self.prompts[-1].transcript.messages[-1].content


def tool(name: str, **properties: Any) -> ToolSpec:
    """A tool with these properties in its schema."""
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=f"does {name}", parameters=schema, effect="read")


def play(
    machine: Machine[Any], context: Any, reactions: Iterable[Reaction], ledger: Ledger | None = None
) -> Play:
    """The workflow's loop over a list of answers, a second apart; it stops when the list is at its end."""
    clock = itertools.count(1000.0)
    waiting = iter(reactions)
    steps = [start(machine, context, now=next(clock), ledger=ledger)]
    while (effect := steps[-1].effect) is not None:
        reaction = next(waiting, None)
        if reaction is None:
            break
        answer = reaction(effect) if callable(reaction) else reaction
        steps.append(advance(machine, steps[-1], answer, now=next(clock)))
    return Play(machine, tuple(steps), unused=len(list(waiting)))


def run_script(
    design: str | Design,
    answers: Iterable[Reaction],
    *,
    options: Mapping[str, Any] | None = None,
    tools: Iterable[ToolSpec] = (),
    changed: Mapping[str, Any] | None = None,
    **more: Any,
) -> Play:
    """Run a machine by its name or design.

    `changed` overrides fields of the first context. `parts`, `goal`, `instructions` and `ledger`
    may be given, too.
    """
    made = design_named(design) if isinstance(design, str) else design
    knobs = made.options.model_validate(dict(options or {}))
    brief = Brief(more.get("goal", "find out"), "trace-1", more.get("instructions", ""), tuple(tools))
    machine = made.build(knobs, more.get("parts", Parts()))
    context = made.begin(brief, knobs).model_copy(update=dict(changed or {}))
    return play(machine, context, answers, more.get("ledger"))
