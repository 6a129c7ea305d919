"""`AgentWorkflow`: the loop. It starts a machine, performs what it asks for, and advances it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ApplicationError, is_cancelled_exception

from activities.contracts import (
    MachineEnded,
    Message,
    RunMachine,
    ToolSpec,
)
from workflows.api import (
    NO_COUNTERS,
    WORKFLOW_TYPE,
    AgentResult,
    AgentStatus,
    AgentTask,
    Carry,
    LogPage,
    PageQuery,
    StepsPage,
    TranscriptPage,
)
from workflows.child import child_id
from workflows.equipment import described
from workflows.intake import begin, build, carried, nesting, packed, task_of
from workflows.kernel.design import Design
from workflows.kernel.diagram import mermaid
from workflows.kernel.errors import MachineError, name_of
from workflows.kernel.ledger import Ledger, spent_by
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.stack import Frame, Nesting, Stack, answered, began, charged, closed, noted
from workflows.kernel.step import Cause
from workflows.kernel.verify import definition_hash
from workflows.logbook import Logbook
from workflows.pages import details, log_page, steps_page, transcript_page
from workflows.perform import Performer
from workflows.where import Where, bounded

__all__ = ["AgentWorkflow"]

_EXIT = SearchAttributeKey.for_keyword("AgentExit")
MESSAGE = 2000
"""Characters of an error's message; the result has the whole."""
SHOWN = 2000
"""Characters of the answer in `status`; the result has the whole."""


@workflow.defn(name=WORKFLOW_TYPE)
class AgentWorkflow:
    """One run of one agent: any machine, the same loop."""

    def __init__(self) -> None:
        self.task: AgentTask | None = None
        self.design: Design | None = None
        self.machine: Machine[Any] | None = None
        self.stack: Stack | None = None
        self.nesting: Nesting | None = None
        self.book = Logbook(workflow.info().run_id)
        self.unusable: list[str] = []
        self.early: list[Cause] = []
        self.published = ""
        self.exit: Exit | None = None

    @workflow.run
    async def run(self, *inputs: Any) -> AgentResult:
        """Run one AgentTask to the end. A broken rule or an unusable task fails the workflow readably.

        The signature takes anything: a typed one would be retried for ever when the input is missing
        or there are two, as happens with `temporal workflow start`.
        """
        try:
            self.task = task = task_of(inputs)
            self.design, self.machine, options = build(task)
            self._publish()
            specs = await described(task.tools)
            if specs is None:
                self.exit = Exit(reason="cancelled", error="the run was cancelled before it began")
            else:
                self._begin(task, specs, options)
                await self._loop(Performer(task, specs, self.book.origin))
        except MachineError as error:
            await self._broken(error)
            raise self._raised(str(error), type(error).__name__) from error
        except ApplicationError:
            self.exit = Exit(reason="bug" if self.stack else "refused")
            workflow.upsert_search_attributes([_EXIT.value_set(self.exit.reason)])
            raise
        result = self._result(self.exit or Exit(reason="bug", error="the loop ended without an exit"))
        await self.book.archive(result.model_dump(mode="json"))
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self.exit and self.exit.raises:
            # The machine's way to fail (spec 6, 7.5): the whole result goes with the error.
            raise self._raised(result.error or result.exit_reason, self.exit.raises)
        return result

    def _raised(self, text: str, kind: str) -> ApplicationError:
        """The error with which the workflow fails: the whole result is in its details."""
        details = (self._result(self.exit).model_dump(mode="json"),) if self.exit and self.stack else ()
        # A message is no payload: a long one would pass no limit of the server.
        return ApplicationError(text[:MESSAGE], *details, type=kind, non_retryable=True)

    def _begin(self, task: AgentTask, specs: tuple[ToolSpec, ...], options: Any) -> None:
        """Start the machine, or take over what the run before this one has carried on."""
        design, machine = self._known()
        workflow_id = workflow.info().workflow_id
        self.nesting = nesting(task, specs, workflow_id)
        if carry := task.carry:
            stack, records = carried(machine, carry, self.nesting, task.tools)
            self.book = Logbook(carry.origin_run_id, carry.log_head, records)
            self._keep(stack)
        else:
            context = begin(design, options, task, specs, workflow_id)
            limits = task.limits.model_dump(exclude=NO_COUNTERS, exclude_none=True)
            ledger = Ledger(caps=limits)
            self._keep(began(machine, context, self.nesting, now=_now(), ledger=ledger, tools=task.tools))
        for cause in self.early:
            self._note(cause)

    async def _loop(self, performer: Performer) -> None:
        inner = self._nesting()
        while (effect := self._stack().effect) is not None:
            await self._continue_as_new(performer)
            if cancelling():
                self._cancelled("")
                return
            try:
                top, depth = self._stack().top, inner.depth + len(self._stack().frames)
                branch, ledger = top.step.snapshot.branch, top.step.ledger
                where = Where(bounded(top.place), branch, depth, ledger, top.tools)
                answer = await performer.perform(effect, where)
                if cancelling() and isinstance(answer, MachineEnded) and answer.exit_reason == "cancelled":
                    self.stack = charged(self._stack(), spent_by(answer))
                    self._cancelled("", answer.error)
                    return
                self._keep(answered(self._stack(), answer, inner, now=_now()))
                if cancelling() and not self.exit:
                    self._cancelled("")
            except BaseException as error:
                if not is_cancelled_exception(error):
                    raise
                self._cancelled(performer.unsafe(effect))

    def _cancelled(self, unsafe: str, inside: str | None = None) -> None:
        """End in the state it is in; a call that was interrupted is named, also one of a child run."""
        text = inside or "the run was cancelled by a request to Temporal"
        text += f"; nobody knows whether {unsafe} took effect" if unsafe else ""
        self._keep(closed(self._stack(), "cancelled", now=_now(), error=text, by="person"))

    async def _continue_as_new(self, performer: Performer) -> None:
        """A run has no maximum length: between two effects it may go on with an empty history."""
        if not workflow.info().is_continue_as_new_suggested():
            return
        await self.book.archive()
        await workflow.wait_condition(workflow.all_handlers_finished)
        design, _ = self._known()
        if cancelling() or self._stack().effect is None:
            return
        carry = Carry(
            origin_run_id=self.book.origin,
            **packed(self._stack()),
            log_head=self.book.archived_head,
            records=self.book.unarchived,
            **performer.carry(),
        )
        pinned = {"machine_version": design.version, "carry": carry}
        workflow.continue_as_new(self._task().model_copy(update=pinned))

    def _keep(self, stack: Stack) -> None:
        """Take a move over: its records, what it wants done, what people see of it."""
        self.stack, self.exit = stack, stack.exit
        self.book.records.extend(stack.records)
        for r in stack.records:
            fields = {"step": r.step, "state": r.state, "event": r.event, "to": r.to, "error": r.error}
            workflow.logger.info("agent.transition", extra={"ratchet": fields})
        self._publish_state()
        workflow.set_current_details(details(self.status(), self._task().goal, self.book.records))

    # -- messages --------------------

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, inputs: Sequence[RawValue]) -> None:
        """Anything that comes as a signal; what cannot be used is recorded and never harms the run."""
        self.unusable = [*self.unusable, name[:100]][-20:]
        cause = Cause("UnusableSignal", by="signal", reason=f"{name[:100]!r} with {len(inputs)} values")
        if self.stack is None:
            self.early.append(cause)
        else:
            self._note(cause)

    def _note(self, cause: Cause) -> None:
        if self.exit is None:
            error = "no such signal is known to this run; it was ignored"
            self._keep(noted(self._stack(), cause, now=_now(), error=error))

    # -- what Temporal knows of the run --------------------

    def _publish(self) -> None:
        """Name and machine as search attributes, the definition's hash in the memo."""
        task, (design, machine) = self._task(), self._known()
        there = workflow.info().typed_search_attributes
        wanted = {"AgentName": task.agent, "AgentMachine": design.name}
        keys = {SearchAttributeKey.for_keyword(name): value for name, value in wanted.items()}
        missing = [key.value_set(value) for key, value in keys.items() if there.get(key) != value]
        if missing:
            workflow.upsert_search_attributes(missing)
        facts = {"machine": f"{design.name} {design.version}", "definition": definition_hash(machine)}
        if "goal" not in workflow.memo():
            facts["goal"] = " ".join(task.goal.split())[:200]
        workflow.upsert_memo(facts)

    def _publish_state(self) -> None:
        """One upsert before an effect, and only for agents that ask for it; one at the end for all."""
        updates: list[SearchAttributeUpdate[Any]] = []
        state = name_of(self._stack().first.step.snapshot.state)
        if self._task().visibility == "state" and state != self.published:
            updates.append(SearchAttributeKey.for_keyword("AgentState").value_set(state))
            self.published = state
        if self.exit:
            updates.append(_EXIT.value_set(self.exit.reason))
        if updates:
            workflow.upsert_search_attributes(updates)

    # -- the end --------------------

    async def _broken(self, error: MachineError) -> None:
        if error.step is not None:
            _, machine = self._known()
            self.stack = Stack((Frame(machine, error.step),), error.step.records)
            self.book.records.extend(error.step.records)
        self.exit = Exit(reason="broken_rule", error=str(error))
        if self.stack is None:
            workflow.upsert_search_attributes([_EXIT.value_set("broken_rule")])
            return
        self._publish_state()
        workflow.set_current_details(details(self.status(), self._task().goal, self.book.records))
        await self.book.archive(self._result(self.exit).model_dump(mode="json"))

    def _result(self, ended: Exit) -> AgentResult:
        info, status = workflow.info(), self.status()
        return AgentResult(
            ok=ended.ok,
            exit_reason=ended.reason,
            answer=ended.answer,
            error=f"{ended.error} (see `limits` of the agent)" if ended.reason == "limit" else ended.error,
            agent=status.agent,
            machine=status.machine,
            machine_version=status.machine_version,
            state=status.state,
            steps=status.step,
            counters=status.counters,
            outcome=ended.outcome,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            records=status.records,
            log_head=self.book.head,
            raises=ended.raises,
        )

    # -- queries --------------------

    @workflow.query
    def status(self) -> AgentStatus:
        """Where the run is."""
        task, stack, ended, design = self._task(), self.stack, self.exit, self.design
        snapshot = stack.first.step.snapshot if stack else None
        doing = stack.effect if stack else None
        return AgentStatus(
            agent=task.agent,
            machine=task.machine,
            machine_version=design.version if design else "",
            state=name_of(snapshot.state) if snapshot else "starting",
            step=snapshot.step if snapshot else 0,
            visit=snapshot.visit if snapshot else 0,
            branch=snapshot.branch if snapshot else 0,
            inside=self._inside(),
            doing=doing.title if doing and not ended else "",
            finished=ended is not None,
            exit_reason=ended.reason if ended else None,
            answer=(ended.answer or "")[:SHOWN] or None if ended else None,
            counters=dict(stack.ledger.spent) if stack else {},
            caps=dict(stack.ledger.caps) if stack else {},
            records=stack.top.step.snapshot.seq if stack else 0,
            unusable_messages=tuple(self.unusable),
        )

    def _inside(self) -> tuple[str, ...]:
        """The machines at work inside; of a child run, where it is to be found."""
        if self.stack is None or self.exit is not None:
            return ()
        frames = self.stack.frames[1:]
        inner = [f"{frame.machine.name}: {name_of(frame.step.snapshot.state)}" for frame in frames]
        if isinstance(self.stack.effect, RunMachine):
            place = bounded(self.stack.top.place)
            inner.append(f"{self.stack.effect.machine}: run {child_id(self.book.origin, place)}")
        return tuple(inner)

    @workflow.query
    def log(self, query: PageQuery | None = None) -> LogPage:
        """The transition log by pages; what an earlier run of the chain wrote is in the archive."""
        first = (self.stack.top.step.snapshot.seq if self.stack else 0) - len(self.book.records)
        return log_page(self.book.records, query or PageQuery(), self.exit is not None, first)

    @workflow.query
    def steps(self, query: PageQuery | None = None) -> StepsPage:
        """The steps in one line each, by pages."""
        return steps_page(self.book.records, query or PageQuery())

    @workflow.query
    def transcript(self, query: PageQuery | None = None) -> TranscriptPage:
        """The conversation with the model, by pages; of a machine at work inside, if it has one."""
        contexts = [frame.step.snapshot.context for frame in self.stack.frames] if self.stack else []
        talks = [tuple(getattr(context, "transcript", ())) for context in reversed(contexts)]
        messages: tuple[Message, ...] = next((talk for talk in talks if talk), ())
        return transcript_page(messages, query or PageQuery())

    @workflow.query
    def diagram(self) -> str:
        """The machine in Mermaid, the current state marked."""
        _, machine = self._known()
        return mermaid(machine, name_of(self.stack.first.step.snapshot.state) if self.stack else None)

    # -- what is there once the run has begun --------------------

    def _task(self) -> AgentTask:
        if self.task is None:
            raise ApplicationError("the run has not begun: its input was refused", type="NotBegun")
        return self.task

    def _known(self) -> tuple[Design, Machine[Any]]:
        if self.design is None or self.machine is None:
            raise ApplicationError("the run has not begun: its input was refused", type="NotBegun")
        return self.design, self.machine

    def _nesting(self) -> Nesting:
        if self.nesting is None:
            raise ApplicationError("the run has not begun", type="NotBegun")
        return self.nesting

    def _stack(self) -> Stack:
        if self.stack is None:
            raise ApplicationError("the run has not begun", type="NotBegun")
        return self.stack


def cancelling() -> bool:
    """The run was asked to stop, also when a call ended before it noticed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _now() -> float:
    return workflow.now().timestamp()
