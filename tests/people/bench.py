"""A run in memory, driven by the product's own loop: the world is a script, the clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from pydantic import BaseModel

from activities.contracts import (
    CallTools,
    Effect,
    MachineEnded,
    ModelsReplied,
    RunMachine,
    ToolResult,
    ToolRun,
    ToolSpec,
    ToolsReturned,
)
from activities.contracts_people import Compensated, Reconciled
from tests.machines.driver import Reaction
from tests.machines.script import PARTS, TOOL
from workflows.api import COUNTERS, AgentStatus
from workflows.gate.desk import Desk
from workflows.gate.orders import Order
from workflows.gate.standing import standing_still
from workflows.kernel.design import Brief, Design
from workflows.kernel.errors import name_of
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.moves import forked
from workflows.kernel.stack import Nesting, Stack, began
from workflows.kernel.step import Cause
from workflows.loop import Loop
from workflows.people import (
    Approvals,
    Command,
    Decided,
    Decision,
    DoneCall,
    Moment,
    People,
    Request,
    Verb,
)
from workflows.registry import design as design_named
from workflows.where import Where

__all__ = ["RUN", "Bench", "unsafe"]

RUN = "run-1"
STARTED = 1000.0
CANCELLED = MachineEnded(
    machine="code", ok=False, exit_reason="cancelled", error="it was stopped", spent={"cost_usd": 0.25}
)
"""How a child run ends that is stopped."""


def unsafe(spec: ToolSpec = TOOL, **changed: Any) -> ToolSpec:
    """The scripts' tool as one that must not be run twice."""
    return spec.model_copy(update={"effect": "unsafe", **changed})


class Bench:
    """One run; it is also the loop's `World`. Use it as `async with Bench(...) as bench`."""

    stopped = CANCELLED
    """What the child run answers when it is stopped."""
    child_did: tuple[DoneCall, ...] = ()
    """What the child run that ends next has done outside."""

    def __init__(
        self,
        design: str | Design,
        answers: Iterable[Reaction],
        *,
        people: People | None = None,
        approvals: Approvals | None = None,
        tool: ToolSpec = TOOL,
        **more: Any,
    ) -> None:
        """`more`: options, changed (of the first context), limits."""
        self.people, self.approvals, self.tool = people or People(), approvals or Approvals(), tool
        self.answers = iter(answers)
        self.clock = STARTED
        self.records: list[Record] = []
        self.performed: list[tuple[str, Effect]] = []
        """Every effect that was begun, with its activity id."""
        self.called: list[tuple[str, ToolRun]] = []
        """Every tool call that was begun."""
        self.noticed: list[tuple[Moment, str]] = []
        self.compensated: list[str] = []
        self.undoes = True
        self.found: Reconciled | None = None
        self.asked_after: list[str] = []
        """Calls whose tool was asked what became of them."""
        self.told: list[Command] = []
        """What the child run was told."""
        self.shown = ""
        """What others are shown that the run waits for."""
        self.child_at_work = ""
        self.blocked = False
        """Effects do not end until this is False."""
        self.slow = ""
        """What of `log` and `compensate` does not end as long as this names it."""
        self._under_way: dict[str, ToolRun] = {}
        self._stop = False
        self._again: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self.loop = self._begun(design_named(design) if isinstance(design, str) else design, more)
        self.keep(self.loop.stack)

    def _begun(self, design: Design, more: Mapping[str, Any]) -> Loop:
        knobs = design.options.model_validate(dict(more.get("options") or {}))
        self.machine: Machine[Any] = standing_still(design.build(knobs, PARTS), self.people)
        brief = Brief("find out", "trace-1", tools=(self.tool,))
        context = design.begin(brief, knobs).model_copy(update=dict(more.get("changed") or {}))
        caps = dict(more.get("limits") or {})
        ledger = Ledger(caps=caps, advice=COUNTERS if self.people.on_limit == "ask" else ())
        nesting, tools = Nesting(_no_machines), (self.tool.name,)
        stack = began(self.machine, context, nesting, now=self.clock, ledger=ledger, tools=tools)
        specs = {self.tool.name: self.tool}
        desk = Desk(self.people, self.approvals, workflow_id=RUN, origin="origin", specs=specs)
        return Loop(self, stack, nesting, desk, self.people)

    def forked(self, records: Sequence[Record], step: int) -> Stack:
        """Go on from another run's step instead of from the start."""
        self.records = list(records)
        cause = Cause("Forked", by="person", reason=f"from step {step}")
        stack = forked(
            self.machine, records, step, self.loop.nesting, cause=cause, now=self.clock, ledger=Ledger(),
            tools=(self.tool.name,), retell=None,
        )  # fmt: skip
        self.loop.keep(stack)
        return stack

    async def __aenter__(self) -> Bench:
        self._task = asyncio.create_task(self.loop.run())
        await self.settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self.blocked = False
            await asyncio.wait([self._task], timeout=5)

    # -- what a test does --------------------

    async def settled(self) -> None:
        """Until nothing moves any more."""
        for _ in range(200):
            await asyncio.sleep(0)
        if self._task is not None and self._task.done():
            self._task.result()

    async def cancel(self) -> None:
        """The run is cancelled from outside."""
        assert self._task is not None
        self._task.cancel()
        await self.settled()

    async def wait(self, seconds: float) -> None:
        """So much time goes by."""
        self.clock += seconds
        await self.settled()

    async def decide(self, verb: Verb, request: Request | None = None, **more: Any) -> Decided:
        """Decide upon the first open request, or that one."""
        asked = request or self.open[0]
        given = {"request": asked.id, "digest": asked.digest, "by": "ann", **more}
        decided = self.loop.hear(Decision(decision=verb, **given))
        await self.settled()
        return decided

    async def command(self, name: Any, **more: Any) -> Order:
        """Give a command; its order, obeyed or refused by now if nothing blocks it."""
        order = self.order(name, **more)
        await self.settled()
        return order

    def order(self, name: Any, **more: Any) -> Order:
        """Put a command into the inbox."""
        order = Order(Command(command=name, **more), "ann (claimed)")
        self.loop.inbox.append(order)
        return order

    @property
    def open(self) -> tuple[Request, ...]:
        """Open requests."""
        return self.loop.desk.open

    @property
    def status(self) -> AgentStatus:
        """What a run tells of itself."""
        snapshot = self.loop.stack.first.step.snapshot
        state = name_of(snapshot.state)
        return AgentStatus(
            agent="bench", machine=self.machine.name, machine_version="1", state=state, step=0, visit=0
        )

    @property
    def exit(self) -> Exit:
        """How the run ended."""
        ended = self.loop.stack.exit
        assert ended is not None, f"it has not ended, it asks for {self.loop.stack.effect}"
        return ended

    @property
    def events(self) -> list[str]:
        """The log's events by name."""
        return [record.event for record in self.records]

    def record(self, event: str) -> Record:
        """The newest record of this event."""
        return [record for record in self.records if record.event == event][-1]

    # -- the world --------------------

    def now(self) -> float:
        return self.clock

    def cancelling(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def until(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        end = None if seconds is None else self.clock + seconds
        while not condition() and (end is None or self.clock < end):  # noqa: ASYNC110  # the clock is the test's
            await asyncio.sleep(0)  # the clock is the test's

    async def ended(self, task: asyncio.Future[Any]) -> None:
        await asyncio.wait([task])

    async def perform(self, effect: Effect, where: Where, settled: MutableMapping[str, Any]) -> BaseModel:
        self.performed.append((where.activity_id, effect))
        self._under_way.clear()
        self._stop = False
        if isinstance(effect, CallTools):
            return await self._tools(effect, where, settled)
        self.child_at_work = f"{RUN}/{where.activity_id}" if isinstance(effect, RunMachine) else ""
        try:
            await self._blocked()
            answer: BaseModel = await self._next(effect)
        except asyncio.CancelledError:
            if not self.child_at_work:
                raise
            answer = self.stopped  # a child run that is stopped answers
        finally:
            self.child_at_work = ""
        if isinstance(answer, ModelsReplied):
            settled.update({f"{where.activity_id}.{n}": reply for n, reply in enumerate(answer.replies)})
        return answer

    async def _tools(
        self, effect: CallTools, where: Where, settled: MutableMapping[str, ToolResult]
    ) -> ToolsReturned:
        """One answer for the whole effect, taken when its first call is made."""
        results: list[ToolResult] = []
        names = where.calls(effect)
        for number, (run, name) in enumerate(zip(effect.runs, names, strict=True)):
            if name not in settled:
                if self._stop:
                    raise asyncio.CancelledError
                self.called.append((name, run))
                self._under_way[name] = run
                await self._blocked()
                settled[name] = await self._result(effect, number, where)
                del self._under_way[name]
            results.append(settled[name])
            if results[-1].error in {"unknown_outcome", "unknown_tool"}:
                break
        return ToolsReturned(results=tuple(results))

    async def _result(self, effect: CallTools, number: int, where: Where) -> ToolResult:
        key = where.activity_id
        if key not in self._again or number >= len(self._again[key].results):
            self._again[key] = await self._next(effect)
        results: tuple[ToolResult, ...] = self._again[key].results
        result = results[min(number, len(results) - 1)]
        if result.error == "unknown_outcome":
            del self._again[key]
        return result.model_copy(update={"id": effect.runs[number].id})

    async def _next(self, effect: Effect) -> Any:
        """The next answer of the script; behind its end nothing answers any more."""
        reaction = next(self.answers, None)
        if reaction is None:
            await asyncio.Event().wait()
        return reaction(effect) if callable(reaction) else reaction

    async def _blocked(self) -> None:
        while self.blocked:  # noqa: ASYNC110  # a test lets go by setting a field
            await asyncio.sleep(0)  # a test lets go by setting a field

    async def _lasts(self, what: str) -> None:
        while self.slow == what:  # noqa: ASYNC110  # a test lets go by setting a field
            await asyncio.sleep(0)  # a test lets go by setting a field

    def stop_soon(self) -> bool:
        self._stop = True
        return bool(self.in_doubt())

    def under_way(self) -> tuple[str, ...]:
        return tuple(self._under_way)

    def in_doubt(self) -> str:
        return ", ".join(run.title for run in self._under_way.values() if not self.tool.repeatable)

    def above(self) -> tuple[tuple[str, str], ...]:
        return ()

    def heard_above(self) -> tuple[str, ...]:
        return ()

    def child_calls(self) -> tuple[DoneCall, ...]:
        calls, self.child_did = self.child_did, ()
        return calls

    def child(self) -> str:
        return self.child_at_work

    async def tell_child(self, command: Command) -> str:
        if self.child_at_work:
            self.told.append(command)
        return self.child_at_work

    def key(self, where: Where, activity_id: str) -> str:
        return f"{RUN}/origin/{where.branch}/{activity_id}"

    def effect_of(self, tool: str) -> str:
        return self.tool.effect

    def undoable(self, tool: str) -> bool:
        return self.tool.compensates

    async def reconcile(self, run: ToolRun, where: Where, activity_id: str) -> Reconciled | None:
        self.asked_after.append(activity_id)
        return self.found

    async def compensate(self, call: DoneCall) -> Compensated:
        self.compensated.append(call.place)
        await self._lasts("compensate")
        return Compensated(ok=self.undoes, text="as asked")

    def full(self) -> bool:
        return False

    async def log(self) -> Sequence[Record]:
        await self._lasts("log")
        return tuple(self.records)

    def notify(self, moment: Moment, request: Request) -> None:
        self.noticed.append((moment, request.id))

    def waits(self, loop: Loop) -> None:
        self.shown = loop.desk.waiting or ("paused" if loop.paused else "")

    async def between(self) -> None:
        pass

    def keep(self, stack: Stack) -> None:
        self.records.extend(stack.records)


def _no_machines(call: Any, depth: int) -> Any:
    raise ValueError(f"{call.machine} is not there")
