"""Runs without Temporal: the loop of production with asyncio as its host (spec 1.8).

    outcome = await LocalRuns().run(task, perform)

`perform` makes one call. `client/sdk/local.py` has the form for users, `Local`: with a scripted or a real
model, real tools and the code sandbox. Inner runs are runs of their own here, too, one inside the other.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from pydantic import BaseModel

from activities.contracts import (
    AskModel,
    Compensated,
    CompensateInput,
    Conversation,
    Digests,
    EffectFailed,
    JsonObject,
    Message,
    NoticeMoment,
    Reconciled,
    ReconcileInput,
    ToolInput,
    ToolResult,
    ToolSpec,
)
from workflows.api import AgentTask, RunResult
from workflows.engine.loop import Drive
from workflows.engine.run_state import QueuedCommand
from workflows.gate.decisions import Refused
from workflows.hosts import CallAnswer, CallSite, ChildRun, HostCall, Identity
from workflows.kernel.context import Context
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Extensions, Machine, RunInput, state_name
from workflows.kernel.rollback import restored, rolled_back
from workflows.kernel.snapshot import Observer, Program, Snapshot, Suspension
from workflows.people import Command, Decision, Request, Verb
from workflows.steps import StepLine, steps_of
from workflows.task import InvalidTask, first_step, program_for

__all__ = [
    "Choice", "LocalOutcome", "LocalRuns", "PerformedCall", "Position", "Unanswered", "every",
]  # fmt: skip

M = TypeVar("M", bound=BaseModel)
Perform = Callable[[HostCall, CallSite], CallAnswer | Awaitable[CallAnswer]]
Choice = Verb | Decision | Command | None
"""What a person says to a request: a verb, a whole decision, a command such as `rollback`, or nothing. A
request that is still open after a command was obeyed or refused is asked about again."""
Decide = Callable[[Request], Choice | Awaitable[Choice]]
Store = MutableMapping[str, list[str]]
"""Trace id -> the run's log as lines of JSON. The newest run of an id replaces the one before."""
POLL_SECONDS = 0.01
"""The longest pause between two looks at a condition."""
MAX_ASKS_PER_REQUEST = 20
"""How often `decide` is asked about one request."""


class Unanswered(RuntimeError):
    """A run waits for a person for ever: nobody is left who could answer."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run is: what an interrupt function sees."""

    machine: str
    state: str
    """About to be entered."""
    context: Any
    step: int
    """How many steps have begun, with the one that begins here."""
    begins_step: bool


def every(steps: int) -> Callable[[Position], bool]:
    """Interrupts before every `steps`-th step, once for each number of steps of a run (R-000-13)."""
    if steps < 1:
        raise ValueError(f"expected 1 step or more, got {steps}")
    return _Every(steps)


@dataclass(frozen=True, slots=True)
class _Every:
    steps: int

    def __call__(self, position: Position) -> bool:
        done = position.step - 1
        return position.begins_step and done > 0 and done % self.steps == 0


@dataclass(frozen=True, slots=True)
class PerformedCall:
    """A call that was made, and its answer."""

    site: CallSite
    call: HostCall
    answer: CallAnswer


@dataclass(frozen=True, slots=True)
class LocalOutcome:
    """What a run came to, and how."""

    result: RunResult
    state: str
    context: Any
    conversation: Conversation
    records: tuple[Record, ...]
    calls: tuple[PerformedCall, ...]
    """In the order in which they ended, those of inner runs included."""
    store_errors: tuple[str, ...] = ()
    """What the store raised; it never ends a run."""

    @property
    def ok(self) -> bool:
        """The goal was achieved."""
        return self.result.ok

    @property
    def answer(self) -> str | None:
        """The answer."""
        return self.result.answer

    @property
    def output(self) -> JsonObject | None:
        """The answer as data that fits the agent's `output`."""
        return self.result.output

    def output_as(self, model: type[M]) -> M:
        """The answer as an instance of this model; see `RunResult`."""
        return self.result.output_as(model)

    @property
    def steps(self) -> tuple[StepLine, ...]:
        """One line for each step that still holds."""
        return steps_of(self.records)

    @property
    def states(self) -> tuple[str, ...]:
        """The states in the order of their entries."""
        return tuple(record.to for record in self.records if record.to)

    @property
    def tool_calls(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Tool and arguments of each call that was made."""
        made = (one.call for one in self.calls if type(one.call) is ToolInput)
        return tuple((call.tool, call.arguments) for call in made)

    def raise_if_failed(self) -> None:
        """Raise what the machine ended with, if it does so, or the rule that it broke."""
        self.result.raise_if_failed()


@dataclass(slots=True)
class LocalRuns:
    """How runs without Temporal are watched and kept."""

    specs: Mapping[str, ToolSpec] = field(default_factory=dict)
    """The tools that there are."""
    decide: Decide | None = None
    """Asked about each request; without it runs are unattended. A request that it leaves open waits for its
    deadline. Without a deadline `Unanswered` is raised, unless `watch` knows who else may answer."""
    interrupt: Callable[[Position], bool] | None = None
    """Asked before each state is entered; true: `decide` gets a request of the kind `interrupt`."""
    store: Store | None = None
    """A run with a trace id is kept there whenever a step begins, and at its end."""
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    machine: Machine | None = None
    """The machine of outer runs, in place of the one that their task names."""
    watch: Callable[[Drive], None] | None = None
    """Told of each run before it begins, inner runs included."""
    on_record: Callable[[Record], None] | None = None
    """Told of each record of an outer run when it is written."""
    extensions: Extensions | None = None
    """Rules, policies and hooks that runs may name; None: those that were loaded."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Workflow id -> run id of its first execution; a run that is not named has its own id."""
    observe: Callable[[AgentTask, Program], Observer | None] | None = None
    """Gives each run, inner runs included, an observer of its visits."""
    digests: Callable[[AgentTask], Digests | None] | None = None
    """What is compared with the certificate of a run that has one."""
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        if self.interrupt is not None and self.decide is None:
            raise ValueError("`interrupt` says when a person is asked; give `decide` too, which answers")

    async def run(  # where a run begins
        self,
        task: AgentTask,
        perform: Perform,
        *,
        trace_id: str = "",
        workflow_id: str = "",
        context: Context | None = None,
        spent: Mapping[str, float] | None = None,
    ) -> LocalOutcome:
        """Run a task to its end; its id is the trace id, if no other is given.

        It begins with `context` in place of the machine's own first one, and as if it had `spent` so much of
        its limits, by counter. Raises InvalidTask, Unanswered, and what `perform` and `decide` raise.
        """
        task, program = self._prepared(task, trace_id)
        if context is not None:
            program = replace(program, machine=_beginning_with(context, program.machine))
        digests = self.digests(task) if self.digests and task.certificate else None
        step = first_step(task, program, now=self.now(), spent=spent, digests=digests)
        return await self._ended(task, perform, step, trace_id, (), workflow_id)

    async def replay(self, task: AgentTask, perform: Perform, trace_id: str, from_step: int) -> LocalOutcome:
        """Load a run that the store has, begin step `from_step` again (0: the start), and run on.

        Raises ValueError for a run that is not stored and for a step that it does not have.
        """
        task, program = self._prepared(task, trace_id)
        records = _stored_records(self.store or {}, trace_id)
        if not records:
            known = ", ".join(sorted(self.store or ())) or "none"
            raise ValueError(f"no run {trace_id!r} is stored; stored runs: {known}")
        ledger = Ledger(caps=task.limits.caps, spent=records[-1].counters)
        # The time since it was stored is no time of the run.
        now = self.now()
        snapshot = replace(restored(program, records), began=now - ledger.used("seconds"))
        end = Suspension(program, snapshot, ledger)
        step = rolled_back(end, records, from_step, now=now, by="person")
        return await self._ended(task, perform, step, trace_id, records)

    def _prepared(self, task: AgentTask, trace_id: str) -> tuple[AgentTask, Program]:
        if self.decide is None:
            task = task.model_copy(update={"people": task.people.model_copy(update={"unattended": True})})
        specs = self._specs_of(task)
        program = program_for(task, specs, trace_id, self.machine, self.extensions)
        return task, self._observed(task, replace(program, interrupts=self._interrupts(program)))

    def _observed(self, task: AgentTask, program: Program) -> Program:
        return replace(program, observer=self.observe(task, program)) if self.observe else program

    def _specs_of(self, task: AgentTask) -> dict[str, ToolSpec]:
        if missing := [name for name in task.tools if name not in self.specs]:
            known = ", ".join(self.specs) or "none"
            raise InvalidTask(f"unknown tools: {', '.join(missing)}; there are: {known}")
        return {name: task.labels.labelled(self.specs[name]) for name in task.tools}

    def _interrupts(self, program: Program) -> Callable[[Snapshot, Program], bool] | None:
        """Where people's settings or the interrupt function pause the run."""
        interrupt, of_people = self.interrupt, program.interrupts
        if interrupt is None:
            return of_people
        machine = program.machine
        step_state = state_name(machine.step) if machine.step else None
        asked: set[int] = set()

        def is_paused_before(s: Snapshot, program: Program) -> bool:
            position = Position(machine.name, s.state, s.context, s.step, s.state == step_state)
            is_due = interrupt(position)
            if is_due and isinstance(interrupt, _Every):
                is_due = s.step not in asked
                asked.add(s.step)
            return is_due or (of_people is not None and of_people(s, program))

        return is_paused_before

    async def _ended(
        self,
        task: AgentTask,
        perform: Perform,
        suspension: Suspension,
        trace_id: str,
        records: Sequence[Record],
        workflow_id: str = "",
    ) -> LocalOutcome:
        name = workflow_id or trace_id or f"local-{next(self._numbers)}"
        run = _Run(self, perform, task, suspension, Identity(name, self.origins.get(name, name)), [])
        run.trace_id, run.records = trace_id, list(records)
        run.drive.run.bounds.recall(records)
        await run.drive.move()
        if run.cancelled():
            raise asyncio.CancelledError
        snapshot = run.drive.run.suspension.snapshot
        return LocalOutcome(
            run.drive.result(),
            snapshot.state,
            snapshot.context,
            snapshot.conversation,
            tuple(run.records),
            tuple(run.calls),
            tuple(run.store_errors),
        )


class _Run:
    """The `Host` of one run."""

    def __init__(
        self,
        runs: LocalRuns,
        perform: Perform,
        task: AgentTask,
        suspension: Suspension,
        identity: Identity,
        calls: list[PerformedCall],
    ) -> None:
        self.runs, self._perform, self.calls = runs, perform, calls
        self.trace_id, self.is_outer = "", True
        self.roles: Mapping[str, str] = {}
        """Its model roles -> those that the outermost run's model knows them by."""
        self._task = asyncio.current_task()
        """In which the run moves: a call's own task is cancelled for other reasons, too."""
        self.records: list[Record] = []
        self.store_errors: list[str] = []
        self._saved_step = -1
        self._lines: list[str] = []
        self._asked: dict[str, tuple[int, int]] = {}
        """Digest of a request -> how often it was asked about, and what had changed when it was last."""
        self._changes = 0
        """How many decisions and commands were given."""
        self._command: QueuedCommand | None = None
        """The newest."""
        self._children: dict[str, Drive] = {}
        self.drive = Drive(self, task, runs._specs_of(task), identity, suspension)
        if runs.watch is not None:
            runs.watch(self.drive)

    def now(self) -> float:
        return self.runs.now()

    def cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    async def wait(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        end, pause = None if seconds is None else self.now() + seconds, 0.0
        for turn in count():
            if not condition():
                await self._ask_people()
            if condition() or (end is not None and self.now() >= end):
                return
            if why and end is None and self.runs.watch is None and not self._may_be_asked():
                raise Unanswered(self._unanswered())
            pause = 0 if turn < 50 else min(pause + POLL_SECONDS / 20, POLL_SECONDS)
            await asyncio.sleep(pause)

    async def _ask_people(self) -> None:
        """Put each open request to `decide`: once, and again when something was decided or ordered since."""
        if self.runs.decide is None:
            return
        for request in self.drive.run.requests.open_requests:
            times, changes = self._asked.get(request.digest, (0, -1))
            if changes == self._changes or times == MAX_ASKS_PER_REQUEST:
                continue
            self._asked[request.digest] = (times + 1, self._changes)
            choice = self.runs.decide(request)
            choice = await choice if inspect.isawaitable(choice) else choice
            self._changes += choice is not None
            if isinstance(choice, Command):
                self._command = self.drive.commands.put(choice)
                return  # it is obeyed first
            if choice is not None:
                self.drive.run.decide(_decision(request, choice))

    def _may_be_asked(self) -> bool:
        """Whether `decide` will be asked about an open request once more."""
        asked = (self._asked.get(one.digest, (0, -1)) for one in self.drive.run.requests.open_requests)
        return any(changes != self._changes and times < MAX_ASKS_PER_REQUEST for times, changes in asked)

    def _unanswered(self) -> str:
        times = {digest: number for digest, (number, _) in self._asked.items()}
        waiting = [
            f"{one.id} ({one.kind}: {one.text}), `decide` was asked {times.get(one.digest, 0)} times"
            for one in self.drive.run.requests.open_requests
        ]
        what = (
            f"waits for {'; '.join(waiting)}"
            if waiting
            else "is paused, and `decide` is not asked about that"
        )
        refused = self._command.refused if self._command else ""
        hint = f". The newest command was refused: {refused}" if refused else ""
        return f"the run {what}; nobody will answer{hint}. Let `decide` give a verb, or set a deadline"

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        if isinstance(call, AskModel) and call.role in self.roles:
            call = call.model_copy(update={"role": self.roles[call.role]})
        unsafe = type(call) is ToolInput and not self.runs.specs[call.tool].repeatable
        limit = asyncio.timeout(None if unsafe else min(site.seconds, 10**9))
        try:
            async with limit:
                found = self._perform(call, site)
                answer = await found if inspect.isawaitable(found) else found
        except TimeoutError:
            if not limit.expired():
                raise
            answer = _too_late(call, site)
        self.calls.append(PerformedCall(site, call, answer))
        return answer

    def stop_early_questions(self) -> None:
        """There are none: a call is a function's, and so is the question after it."""

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        task = child.task
        try:
            specs = self.runs._specs_of(task)
            program = program_for(task, specs, child.workflow_id, extensions=self.runs.extensions)
            program = self.runs._observed(task, program)
            step = first_step(task, program, now=self.now())
        except InvalidTask as error:
            return EffectFailed(error="fatal", type="inner_machine", message=str(error))
        origin = self.runs.origins.get(child.workflow_id, child.workflow_id)
        identity = Identity(child.workflow_id, origin, child.parents, child.old_command_ids)
        inner = _Run(self.runs, self._perform, task, step, identity, self.calls)
        inner.is_outer = False
        inner.roles = {**self.roles, **{name: self.roles.get(of, of) for name, of in child.roles.items()}}
        self._children[child.workflow_id] = inner.drive
        try:
            await inner.drive.move()
        finally:
            del self._children[child.workflow_id]
        return inner.drive.result()

    async def tell_child(self, workflow_id: str, command: Command) -> bool:
        child = self._children.get(workflow_id)
        if child is None or child.run.suspension.exit is not None:
            return False
        try:
            child.commands.put(command)
        except Refused as refused:
            raise ValueError(str(refused)) from refused
        return True

    def publish(self, records: Sequence[Record]) -> None:
        self.records += records
        if self.runs.on_record is not None and self.is_outer:
            for record in records:
                self.runs.on_record(record)
        if self.trace_id and self.runs.store is not None and records:
            self._save(self.runs.store, self.drive.run.suspension)

    def _save(self, store: Store, suspension: Suspension) -> None:
        """Keep the log when a step has begun, and at the end."""
        if suspension.snapshot.step == self._saved_step and suspension.exit is None:
            return
        self._saved_step = suspension.snapshot.step
        new = self.records[len(self._lines) :]
        self._lines += [json.dumps(record.model_dump(mode="json"), allow_nan=False) for record in new]
        try:
            store[self.trace_id] = list(self._lines)
        except Exception as error:  # noqa: BLE001  # a sink that fails has no effect on the run (spec 7.3)
            self.store_errors.append(f"{type(error).__name__}: {error}")

    def notify(self, moment: NoticeMoment, request: Request) -> None:
        """Nobody is notified: `decide` is asked."""

    async def log(self) -> Sequence[Record]:
        return tuple(self.records)

    async def between(self) -> None:
        """A run in memory has no length to keep short."""


def _beginning_with(context: Context, machine: Machine) -> Machine:
    """The machine with another first context; the opening messages are its own. Raises InvalidTask."""
    if type(context) is not machine.context:
        name, wanted = type(context).__name__, machine.context.__name__
        raise InvalidTask(f"context: {machine.name} begins with a {wanted}, not with a {name}")

    def begin(given: RunInput, options: Any) -> tuple[Context, Sequence[Message]]:
        begun = machine.begin(given, options)
        return context, begun[1] if isinstance(begun, tuple) else ()

    return replace(machine, begin=begin)


def _decision(request: Request, choice: Decision | Verb) -> Decision:
    if isinstance(choice, Decision):
        return choice
    return Decision(request=request.id, digest=request.digest, decision=choice, by="local")


def _too_late(call: HostCall, site: CallSite) -> CallAnswer:
    """The limit of seconds has ended the call; the drive reports the limit."""
    text = f"the run's limit left {site.seconds:.1f} s for this call, and it took longer"
    if isinstance(call, ReconcileInput):
        return Reconciled(outcome="unknown", text=text)
    if isinstance(call, ToolInput):
        return ToolResult(id=call.id, tool=call.tool, output=text, error="timeout")
    if isinstance(call, CompensateInput):
        return Compensated(ok=False, text=text)
    return EffectFailed(error="transient", type="timeout", message=text)


def _stored_records(store: Mapping[str, list[str]], trace_id: str) -> list[Record]:
    return [Record.model_validate_json(line) for line in store.get(trace_id, ())]
