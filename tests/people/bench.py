"""A run in memory: the product's own loop, a world that is a script, and a clock that the test moves.

Use it as `async with Bench(script) as bench`. Tools answer by themselves: `<tool> <argument>`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from activities.contracts import (
    AskModel,
    Compensated,
    CompensateInput,
    Conversation,
    EffectFailed,
    JsonObject,
    ModelReplied,
    NotBegun,
    NoticeMoment,
    Reconciled,
    ReconcileInput,
    ToolInput,
    ToolResult,
    ToolSpec,
)
from client.cassette.file import cassette_of
from client.cassette.playing import play
from client.cassette.recording import Recorder
from tests.people import any_effect
from workflows import registry
from workflows.api import AgentTask, Carry, Limits, RunResult
from workflows.engine.loop import Drive
from workflows.engine.run_state import QueuedCommand
from workflows.gate.requests import Requests
from workflows.hosts import CallAnswer, CallSite, ChildRun, HostCall, Identity
from workflows.kernel.log import Record
from workflows.kernel.snapshot import Program, Suspension
from workflows.people import Approvals, Command, Decided, Decision, People, Request, Verb
from workflows.task import carried_step, first_step, program_for

RUN, STARTED = "run-1", 1000.0
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
LOOK = ToolSpec(name="look", description="looks", parameters=SCHEMA, effect="read")
PAY = ToolSpec(name="pay", description="pays", parameters=SCHEMA, effect="unsafe")
PUT = ToolSpec(name="put", description="puts", parameters=SCHEMA, effect="idempotent", compensates=True)
NOBODY_ASKED = Approvals(effects={"unsafe": "never"})

if "any_effect" not in {machine.name for machine in registry.machines()}:
    registry.add_module(any_effect)


def failed(kind: str = "HTTP401") -> EffectFailed:
    """A model that refuses permanently."""
    return EffectFailed(error="fatal", type=kind, message="no key")


def replied(text: str) -> ModelReplied:
    """A reply that costs a cent."""
    return ModelReplied(text=text, cost_usd=0.01, cost_known=True)


def brain(plan: str, first: Any = None) -> Callable[[AskModel], Any]:
    """A model that wants `plan` done for the goal `begin`, and answers with what came of it. `first` is what
    its first reply is."""
    before = [first] if first else []

    def reply(call: AskModel) -> Any:
        newest = call.say[-1].content
        if before:
            return before.pop()
        if newest.startswith("q "):
            return "part"
        return {"begin": plan, "inner": "tools look i"}.get(newest, f"answer {newest}")

    return reply


QUIET = 50
"""Turns of the event loop without news after which nothing comes any more."""


class Bench:
    """One run, and its host."""

    says: Mapping[str, str] = {}
    """Tool -> what stands before each of its outputs."""
    deployed = ("", "")
    """Words of the model, and how other code of the machine reads them: the next execution runs it."""

    def __init__(
        self,
        script: Iterable[Any] | Callable[[Any], Any],
        *,
        hops: bool = False,
        people: People | None = None,
        approvals: Approvals = NOBODY_ASKED,
        tools: Sequence[ToolSpec] = (LOOK, PAY, PUT),
        **more: Any,
    ) -> None:
        """`script`: what models reply, as texts, answers, or functions (call -> one of these); or one
        function for all. `hops`: the run goes on in a new execution whenever it may. `more` are fields of
        the task."""
        self.script: Any = script if callable(script) else list(script)
        self.clock, self.hops, self.recorder = STARTED, hops, Recorder()
        self.specs = {spec.name: spec for spec in tools}
        self.task = AgentTask.model_validate({
            "goal": "begin", "machine": "any_effect", "tools": [spec.name for spec in tools],
            "people": people or People(), "approvals": approvals, "limits": Limits(model_calls=None), **more,
        })  # fmt: skip
        self.records: list[Record] = []
        self.performed: list[tuple[str, HostCall]] = []
        """Every call that was begun, with its activity id."""
        self.sent: list[Conversation] = []
        """What each of them was sent: the messages of a question to a model."""
        self.allowed: dict[str, float] = {}
        """Activity id of a question -> how many requests it may send."""
        self.ended: list[str] = []
        """Keys of calls that have ended with a known outcome."""
        self.made_twice: list[str] = []
        """Activity ids of calls that were begun although they had ended."""
        self.blocked: set[str] = set()
        """Kinds of call (`ask_model`, `summary`, tool names, `log`, `compensate`) that do not end while they
        are here."""
        self.results: dict[str, ToolResult] = {}
        """Tool -> what its next call returns instead of `<tool> <x>`; used once."""
        self.found: Reconciled | None = None
        self.undone: list[str] = []
        self.noticed: list[tuple[NoticeMoment, str]] = []
        self.children: dict[str, Bench] = {}
        self.executions, self.away = 1, ""  # `away`: why no worker can begin a tool's call, if they cannot
        self.plays = True
        """It plays from its cassette: all that came from outside was alone in its turn of the event loop."""
        self._last_dump: JsonObject = {}
        self.identity = Identity(RUN, "origin")
        self._task: asyncio.Task[None] | None = None

    def begin(self, program: Program, suspension: Suspension, carried: JsonObject | None = None) -> None:
        """Make the drive."""
        self.program = program
        self.drive = Drive(self, self.task, self.specs, self.identity, suspension, carried)
        self.recorder.watch(self.drive)

    async def run(self) -> None:
        """Run to the end, through as many executions as `between` begins."""
        self._task = asyncio.current_task()
        while True:
            try:
                await self.drive.move()
            except _NewExecution:
                dump = json.loads(json.dumps(self.drive.dump()).replace(*self.deployed))
                step = carried_step(self.program, Carry(origin_run_id="origin", drive=dump), now=0)
                self.begin(self.program, step, dump)
                self.executions += 1
            else:
                return

    async def __aenter__(self) -> Bench:
        program = program_for(self.task, self.specs, self.identity.workflow_id)
        self.begin(program, first_step(self.task, program, now=self.clock))
        self._task = asyncio.create_task(self.run())
        await self.settle()
        return self

    async def __aexit__(self, problem: object, *_: object) -> None:
        """Every run of these tests plays from its cassette."""
        self.recorder.end()
        if self._task is not None and not self._task.done():
            self.blocked.clear()
            self._task.cancel()
            await asyncio.wait([self._task], timeout=5)
        if problem is None and self.plays:
            async with asyncio.timeout(60):
                verdict = await play(cassette_of(self.recorder))
            assert verdict.ok, verdict.difference

    # -- what a test does --------------------

    async def settle(self) -> None:
        """Until nothing moves any more."""
        quiet, moves = 0, self._moves()
        while quiet < QUIET:
            await asyncio.sleep(0)
            quiet, moves = (quiet + 1, moves) if moves == self._moves() else (0, self._moves())
        if self._task is not None and self._task.done():
            self._task.result()

    def _moves(self) -> int:
        """How much has happened in it and its inner runs."""
        own = len(self.performed) + len(self.ended) + len(self.noticed) + self.executions
        return own + sum(child._moves() for child in self.children.values())

    async def cancel(self) -> None:
        """The run is cancelled from outside."""
        assert self._task is not None
        self._task.cancel()
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        """Move the clock."""
        self.clock += seconds
        await self.settle()

    async def release(self, *kinds: str) -> None:
        """Let calls of these kinds end; all without names."""
        self.blocked.difference_update(kinds or tuple(self.blocked))
        await self.settle()

    async def decide(self, verb: Verb, request: Request | None = None, **more: Any) -> Decided:
        """Decide on the first open request, or on that one."""
        asked = request or self.open[0]
        given = {"request": asked.id, "digest": asked.digest, "by": "ann", **more}
        decided = self.drive.run.decide(Decision(decision=verb, **given))
        await self.settle()
        return decided

    async def command(self, name: Any, **more: Any) -> QueuedCommand:
        """Give a command; obeyed or refused by now if nothing blocks it."""
        queued = self.drive.commands.put(Command(command=name, by="ann", **more))
        await self.settle()
        return queued

    # -- what a test looks at --------------------

    @property
    def open(self) -> tuple[Request, ...]:
        """Open requests."""
        return self.drive.run.requests.open_requests

    @property
    def requests(self) -> Requests:
        """All requests."""
        return self.drive.run.requests

    @property
    def result(self) -> RunResult:
        """How the run ended."""
        return self.drive.result()

    @property
    def over(self) -> bool:
        """The run has ended."""
        return self._task is not None and self._task.done()

    @property
    def events(self) -> list[str]:
        """The log's events by name."""
        return [record.event for record in self.records]

    def record(self, event: str) -> Record:
        """The newest record of this event."""
        return [record for record in self.records if record.event == event][-1]

    @property
    def begun(self) -> tuple[int, int]:
        """How many questions to models and tool calls were begun, inner runs included."""
        asked = sum(isinstance(call, AskModel) for _, call in self.performed)
        return asked, sum(type(call) is ToolInput for _, call in self.performed)

    @property
    def counted(self) -> tuple[float, float]:
        """How many the result counts."""
        counters = self.result.counters
        return counters.get("model_calls", 0), counters.get("tool_calls", 0)

    @property
    def calls(self) -> list[str]:
        """What was begun: `ask_model`, or tool and argument."""
        return [_name(call) for _, call in self.performed]

    def question(self, number: int = -1) -> str:
        """The newest message of a question to the model."""
        asked = [call for _, call in self.performed if isinstance(call, AskModel)]
        return asked[number].say[-1].content

    # -- the host --------------------

    def now(self) -> float:
        return self.clock

    def cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    async def wait(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        end = None if seconds is None else self.clock + seconds
        while not condition() and (end is None or self.clock < end):  # noqa: ASYNC110  # the test's clock
            await asyncio.sleep(0)

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        self.performed.append((site.activity_id, call))
        self.sent.append(site.conversation)
        if isinstance(call, AskModel):
            self.allowed[site.activity_id] = site.requests
        if site.key in self.ended:
            self.made_twice.append(site.activity_id)
        await self._unblocked(_kind(call))
        if self.away and isinstance(call, ToolInput | CompensateInput):
            return NotBegun(reason=self.away, at=self.clock)
        answer: CallAnswer = self._answer(call)
        if getattr(answer, "error", None) != "unknown_outcome":
            self.ended.append(site.key)
        return answer

    def _answer(self, call: HostCall) -> Any:
        if isinstance(call, ReconcileInput):
            return self.found
        if isinstance(call, CompensateInput):
            self.undone.append(call.key)
            return Compensated(ok=True, text="as asked", cost_usd=0.5)
        if isinstance(call, ToolInput):
            given = self.results.pop(call.tool, None)
            said = f"{self.says.get(call.tool, '')}{call.tool} {call.arguments['x']}"
            plain = ToolResult(id=call.id, tool=call.tool, output=said)
            return given.model_copy(update={"id": call.id}) if given else plain
        item = self.script if callable(self.script) else self.script.pop(0)
        item = item(call) if callable(item) else item
        return replied(item) if isinstance(item, str) else item

    async def _unblocked(self, kind: str) -> None:
        while kind in self.blocked:  # noqa: ASYNC110  # the test lets it go on
            await asyncio.sleep(0)

    def stop_early_questions(self) -> None:
        """There are none."""

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        tools = [self.specs[name] for name in child.task.tools]
        inner = type(self)(self.script, tools=tools)
        inner.recorder = self.recorder
        inner.task, inner.clock, inner.hops = child.task, self.clock, self.hops
        inner.script, inner.blocked, inner.performed = self.script, self.blocked, self.performed
        inner.ended, inner.made_twice, inner.results = self.ended, self.made_twice, self.results
        inner.says = self.says
        inner.identity = Identity(child.workflow_id, "inner", child.parents, child.old_command_ids)
        self.children[child.workflow_id] = inner
        program = program_for(child.task, inner.specs, child.workflow_id)
        inner.begin(program, first_step(child.task, program, now=self.clock))
        await inner.run()
        return inner.drive.result()

    async def tell_child(self, workflow_id: str, command: Command) -> bool:
        if self.children[workflow_id].drive.run.suspension.exit is not None:
            return False
        self.children[workflow_id].drive.commands.put(command)
        return True

    def publish(self, records: Sequence[Record]) -> None:
        self.records += records

    def notify(self, moment: NoticeMoment, request: Request) -> None:
        self.noticed.append((moment, request.id))

    async def log(self) -> Sequence[Record]:
        await self._unblocked("log")
        return tuple(self.records)

    async def between(self) -> None:
        if self.hops and not self.drive.run.queue and (dump := self.drive.dump()) != self._last_dump:
            self._last_dump = dump
            raise _NewExecution


class _NewExecution(BaseException):
    """The run goes on in another execution, as with Temporal's continue-as-new."""


def _name(call: HostCall) -> str:
    match call:
        case ReconcileInput():
            return f"reconcile {call.tool}"
        case ToolInput():
            return f"{call.tool} {call.arguments['x']}"
        case CompensateInput():
            return f"undo {call.tool}"
    return call.kind


def _kind(call: HostCall) -> str:
    match call:
        case CompensateInput():
            return "compensate"
        case AskModel() if call.label.startswith("summarise"):
            return "summary"
        case ToolInput():
            return call.tool
    return call.kind
