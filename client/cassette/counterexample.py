"""A counterexample, played by the engine before anybody is shown it, and written as a cassette.

The kernel's way to a violation is a list of answers. Here the same answers come from calls, tools' results
and people, with the engine's own checks of arguments in between: a way that the engine does not let happen is
no counterexample.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

from activities.contracts import (
    Answers,
    EffectFailed,
    PersonDecided,
    ToolInput,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from client.cassette.file import Cassette, cassette_of
from client.cassette.recording import Recorder
from workflows.api import AgentTask
from workflows.engine.loop import Drive
from workflows.hosts import CallAnswer, CallSite, HostCall
from workflows.hosts.memory import Choice, LocalRuns
from workflows.kernel.machine import Extensions, Machine
from workflows.kernel.properties import Scenario
from workflows.people import Request
from workflows.verify.runs.explore import Violation
from workflows.verify.runs.moments import Turn
from workflows.verify.runs.watch import Watch

__all__ = ["NotConfirmed", "confirmed", "task_of"]

BEGAN = 1_767_225_600.0
"""When the run of a counterexample begins: 2026-01-01, in seconds since 1970."""
DEADLINE = 60
"""Seconds after which a request that nobody decides expires."""
ROUNDS = 3
"""How often the engine goes round where a run can do so for ever."""
BY_PEOPLE = {"rejected", "expired"}
"""Errors of a tool's result that come from people."""


class NotConfirmed(Exception):
    """The engine takes another way; the text says how far it came."""


class _Over(Exception):
    """The answers are used up."""


def task_of(machine: Machine, scenario: Scenario, violation: Violation, tools: Sequence[str]) -> AgentTask:
    """The run that the scenario describes. People are asked where the way has their decisions. One that goes
    round has a limit of transitions that it can only reach so."""
    turns = violation.turns
    asked = sorted({
        result.tool for turn in turns for result in _results(turn.answer) if result.error in BY_PEOPLE
    })  # fmt: skip
    waits = {"deadline_seconds": DEADLINE, "at_deadline": "reject"}
    rules = [{"tools": asked, "ask": "always"}] if asked else []
    return AgentTask.model_validate({
        "name": machine.name, "machine": machine.name, "machine_version": machine.version,
        "options": scenario.options, "goal": scenario.goal, "tools": list(tools),
        "models": {role: {"provider": "scripted", "name": "counterexample"} for role in machine.roles},
        "approvals": {"rules": rules, "effects": {"unsafe": "never"}},
        "people": {"requests": waits},
        "stuck": None,
        "limits": {"max_transitions": len(turns) + violation.rounds} if violation.rounds else {},
    })  # fmt: skip


async def confirmed(
    machine: Machine,
    scenario: Scenario,
    violation: Violation,
    tools: Sequence[ToolSpec],
    extensions: Extensions | None = None,
) -> Cassette:
    """The violation as a run of the engine, in a cassette that names it. Raises NotConfirmed."""
    specs = {spec.name: spec for spec in tools}
    again = violation.turns[len(violation.turns) - violation.rounds :] * ROUNDS
    script = _Script((*violation.turns, *again))
    watch, recorder, times = Watch(machine.properties), Recorder(), count()
    drives: list[Drive] = []

    def begun(drive: Drive) -> None:
        if not drives:
            watch.attach(drive, script.delivered)
        drives.append(drive)
        recorder.watch(drive)

    runs = LocalRuns(
        specs, script.decide, now=lambda: BEGAN + next(times), watch=begun, machine=machine,
        extensions=extensions,
    )  # fmt: skip
    task = task_of(machine, scenario, violation, [*specs])
    problem = ""
    try:
        await asyncio.wait_for(runs.run(task, script.perform, trace_id="counterexample"), 60)
    except _Over:
        pass
    except Exception as error:  # noqa: BLE001  # an author's exception is what was looked for
        problem = f"{type(error).__name__}: {error}"
    if violation.name not in watch.broken:
        came = f"the engine took another way after {watch.answers} of {len(violation.turns)} answers"
        raise NotConfirmed(f"{came}{f' ({problem})' if problem else ''}")
    return cassette_of(recorder).model_copy(update={"violates": violation.name})


def _results(answer: Any) -> tuple[ToolResult, ...]:
    return answer.results if isinstance(answer, ToolsReturned) else ()


class _Script:
    """Gives the engine what the way says, one answer to a machine's effect after the other."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns, self.number = tuple(turns), 0

    def delivered(self, answer: Any) -> None:
        """The machine was given an answer."""
        self.number += 1

    @property
    def answer(self) -> Any:
        """What comes next. Raises _Over behind the last answer."""
        if self.number >= len(self.turns):
            raise _Over
        return self.turns[self.number].answer

    def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        """The answer to one call of the pending effect."""
        answer = self.answer
        if isinstance(answer, Answers):
            answer = answer.answers[0]
        if not isinstance(call, ToolInput) or isinstance(answer, EffectFailed):
            return answer  # type: ignore[no-any-return]  # the effect's own answer
        result = next((one for one in _results(answer) if one.id == call.id), None)
        if result is None:
            raise _Over
        return result

    def decide(self, request: Request) -> Choice:
        """What a person says: of a call by how it ended, else by what the machine was told. Whatever the way
        does not say waits for its deadline."""
        answer = self.answer
        if request.kind == "approval":
            errors = {one.error for one in _results(answer) if one.tool == request.tool}
            return "reject" if "rejected" in errors else None if "expired" in errors else "approve"
        if isinstance(answer, PersonDecided) and request.kind in ("question", "escalation"):
            return None if answer.decision == "unavailable" else answer.decision
        return None
