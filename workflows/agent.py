"""`AgentWorkflow`: one run on Temporal. It begins the machine, lets the loop drive it, and hears people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ApplicationError

from activities.contracts import Message, ToolSpec
from workflows.api import (
    COUNTERS,
    NO_COUNTERS,
    WORKFLOW_TYPE,
    AgentResult,
    AgentStatus,
    AgentTask,
    Carry,
    EffectsQuery,
    LogPage,
    PageQuery,
    StepsPage,
    TranscriptPage,
)
from workflows.around import Around, cancelling, now
from workflows.attributes import publish
from workflows.equipment import described
from workflows.gate.desk import Desk
from workflows.intake import begin, build, carried, forked_from, nesting, packed, refused, task_of, unattended
from workflows.kernel.design import Design
from workflows.kernel.diagram import mermaid
from workflows.kernel.errors import MachineError, name_of
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.stack import Frame, Stack, began
from workflows.logbook import Logbook
from workflows.loop import Loop
from workflows.messages import Messages
from workflows.pages import details, effects_page, log_page, requests_page, steps_page, transcript_page
from workflows.people import CommandDone, Decided, EffectsPage, RequestsPage
from workflows.perform import Performer
from workflows.results import inside, result_of

__all__ = ["AgentWorkflow"]

_EXIT = SearchAttributeKey.for_keyword("AgentExit")
AT_THE_END = 10
"""Seconds that a run which is over waits for its notifications."""
MESSAGE = 2000
"""Characters of an error's message; the result has the whole."""
SHOWN = 2000
"""Characters of the answer, and of the error, in `status`; the result has the whole."""


@workflow.defn(name=WORKFLOW_TYPE)
class AgentWorkflow:
    """One run of one agent: any machine, the same loop."""

    def __init__(self) -> None:
        self.task: AgentTask | None = None
        self.design: Design | None = None
        self.machine: Machine[Any] | None = None
        self.stack: Stack | None = None
        self.book = Logbook(workflow.info().run_id)
        self.messages = Messages()
        self.published = ""
        self.exit: Exit | None = None

    @workflow.run
    async def run(self, *inputs: Any) -> AgentResult:
        """Run one AgentTask to the end. A broken rule or an unusable task fails the workflow readably.

        The signature takes anything: a typed one would be retried for ever when the input is missing
        or there are two, as happens with `temporal workflow start`.
        """
        # Runs that began before people could command them go on as they began.
        commanded = workflow.patched("people")
        older = not (commanded and workflow.patched("people-2"))
        around: Around | None = None
        try:
            self.task = task_of(inputs) if commanded else unattended(task_of(inputs))
            around = await self._live(self.task, commanded=commanded, older=older)
        except MachineError as error:
            await self._broken(error)
            raise self._raised(str(error), type(error).__name__) from error
        except ApplicationError as error:
            self.exit = Exit(reason="bug" if self.stack else "refused", error=error.message)
            workflow.upsert_search_attributes([_EXIT.value_set(self.exit.reason)])
            raise
        finally:
            self.messages.end()
        result = self._result(self.exit or Exit(reason="bug", error="the loop ended without an exit"))
        if around is not None:
            await around.settle(lambda: False, seconds=AT_THE_END)
        await self.book.archive(self._evidence(result))
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self.exit and self.exit.raises:
            # The machine's way to fail (spec 6, 7.5): the whole result goes with the error.
            raise self._raised(result.error or result.exit_reason, self.exit.raises)
        return result

    async def _live(self, task: AgentTask, *, commanded: bool, older: bool) -> Around | None:
        """From the task to the machine's end; None when the run is cancelled before it begins."""
        self.design, self.machine, options = build(task)
        publish(task, self.design, self.machine)
        specs = await described(task, older=older)
        if specs is None:
            self.exit = Exit(reason="cancelled", error="the run was cancelled before it began")
            if commanded:
                workflow.upsert_search_attributes([_EXIT.value_set(self.exit.reason)])
            return None
        origin = task.carry.origin_run_id if task.carry else workflow.info().run_id
        around = Around(self, Performer(task, specs, origin))
        loop = self._begin(task, specs, options, around)
        loop.older = older
        self.messages.begin(loop, commanded=commanded)
        try:
            await loop.run()
        finally:
            self.messages.end()
        return around

    def _raised(self, text: str, kind: str) -> ApplicationError:
        """The error with which the workflow fails: the whole result is in its details."""
        details = (self._result(self.exit).model_dump(mode="json"),) if self.exit and self.stack else ()
        # A message is no payload: a long one would pass no limit of the server.
        return ApplicationError(text[:MESSAGE], *details, type=kind, non_retryable=True)

    def _evidence(self, result: AgentResult) -> dict[str, Any]:
        """What the archive keeps of the end: the result, and the task for those who look at the run later."""
        task = self._task().model_dump(mode="json", exclude={"carry", "fork"})
        return {**result.model_dump(mode="json"), "task": task, "origin_run_id": self.book.origin}

    def _begin(self, task: AgentTask, specs: tuple[ToolSpec, ...], options: Any, around: Around) -> Loop:
        """Start the machine, take over what the run before has carried on, or go on from a fork's step."""
        design, machine = self._known()
        info = workflow.info()
        inner = nesting(task, specs, info.workflow_id)
        limits = task.limits.model_dump(exclude=NO_COUNTERS, exclude_none=True)
        ledger = Ledger(caps=limits, advice=COUNTERS if task.people.on_limit == "ask" else ())
        if carry := task.carry:
            stack, records = carried(machine, carry, inner, task.tools)
            self.book = Logbook(carry.origin_run_id, carry.log_head, records)
        elif task.fork:
            context = begin(design, options, task, specs, info.workflow_id)
            stack, records = forked_from(machine, task, inner, context, ledger, now())
            self.book = Logbook(info.run_id, "", records)
        else:
            context = begin(design, options, task, specs, info.workflow_id)
            stack = began(machine, context, inner, now=now(), ledger=ledger, tools=task.tools)
        kept: dict[str, Any] = dict(task.carry.people) if task.carry else {}
        try:
            desk = Desk.load(
                kept.get("desk") or {},
                task.people,
                task.approvals,
                workflow_id=info.workflow_id,
                origin=self.book.origin,
                specs={spec.name: spec for spec in specs},
            )
            desk.spent_before_usd = task.spent_before_usd
            loop = Loop(around, stack, inner, desk, task.people)
            loop.load(kept)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise refused("`carry.people` is not what a run has carried; leave `carry` out") from error
        self.messages.loop = loop
        self.messages.unusable = list(task.carry.unusable) if task.carry else []
        self.keep(stack)
        return loop

    async def continue_as_new(self, performer: Performer) -> None:
        """A run has no maximum length: between two effects it may go on with an empty history."""
        design, loop = self._known()[0], self.messages.loop
        if loop is None:
            return
        await self.book.archive()
        # A handler may wait for a command that is in the inbox: that comes first.
        messages = self.messages
        await workflow.wait_condition(
            lambda: bool(loop.inbox) or (workflow.all_handlers_finished() and not messages.busy)
        )
        if cancelling() or loop.inbox or messages.busy or self._stack().effect is None:
            return
        carry = Carry(
            origin_run_id=self.book.origin,
            **packed(self._stack()),
            log_head=self.book.archived_head,
            records=self.book.unarchived,
            people=loop.dump(),
            unusable=tuple(messages.unusable),
            specs=tuple(performer.specs.values()),
            **performer.carry(),
        )
        task = self._task()
        fork = task.fork.model_copy(update={"records": ()}) if task.fork else None
        pinned = {"machine_version": design.version, "carry": carry, "fork": fork}
        workflow.continue_as_new(task.model_copy(update=pinned))

    def keep(self, stack: Stack) -> None:
        """Take a move over: its records, what it wants done, what people see of it."""
        self.stack, self.exit = stack, stack.exit
        self.book.records.extend(stack.records)
        for r in stack.records:
            fields = {"step": r.step, "state": r.state, "event": r.event, "to": r.to, "error": r.error}
            workflow.logger.info("agent.transition", extra={"ratchet": fields})
        self._publish_state()
        self._show()

    def _show(self) -> None:
        loop = self.messages.loop
        asked = loop.desk.open if loop else ()
        told = details(self.status(), self._task().goal, self.book.records, asked)
        workflow.set_current_details(told)

    # -- messages --------------------

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, inputs: Sequence[RawValue]) -> None:
        """`decide` and `command`, for Temporal's own CLI and UI. What cannot be used is recorded and never
        harms the run: a typed handler would be poisoned by a missing input (facts/temporal.md, 2)."""
        self.messages.signal(name, inputs)

    @workflow.update(name="decide")
    async def decide(self, *inputs: Any) -> Decided:
        """Answer a request by one Decision; refused with the reason when it is not valid.

        The signature takes anything, as that of `run`: no input, or two, are refused in plain words.
        """
        return await self.messages.decide(inputs)

    @decide.validator
    def _check_decision(self, *inputs: Any) -> None:
        self.messages.check_decision(inputs)

    @workflow.update(name="command")
    async def command(self, *inputs: Any) -> CommandDone:
        """By one Command: pause, resume, abort, steer, rollback, limits; answered when it is done."""
        return await self.messages.command(inputs)

    @command.validator
    def _check_command(self, *inputs: Any) -> None:
        self.messages.check_command(inputs)

    # -- what Temporal knows of the run --------------------

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
        self._show()
        await self.book.archive(self._evidence(self._result(self.exit)))

    def _result(self, ended: Exit) -> AgentResult:
        loop = self.messages.loop
        decisions, calls = (loop.desk.decided(), loop.calls.since(0)) if loop else ((), ())
        head = self.book.head
        return result_of(ended, self.status(), log_head=head, decisions=decisions, calls=calls)

    # -- queries --------------------

    @workflow.query
    def status(self) -> AgentStatus:
        """Where the run is."""
        task, stack, ended, design = self._task(), self.stack, self.exit, self.design
        snapshot = stack.first.step.snapshot if stack else None
        doing = stack.effect if stack else None
        loop = self.messages.loop if not ended else None
        return AgentStatus(
            agent=task.agent,
            machine=task.machine,
            machine_version=design.version if design else "",
            state=name_of(snapshot.state) if snapshot else "starting",
            step=snapshot.step if snapshot else 0,
            visit=snapshot.visit if snapshot else 0,
            branch=snapshot.branch if snapshot else 0,
            inside=inside(stack, self.book.origin) if stack and not ended else (),
            doing=doing.title if doing and not ended else "",
            finished=ended is not None,
            exit_reason=ended.reason if ended else None,
            answer=(ended.answer or "")[:SHOWN] or None if ended else None,
            error=(ended.error or "")[:SHOWN] or None if ended else None,
            counters=dict(stack.ledger.spent) if stack else {},
            caps=dict(stack.ledger.caps) if stack else {},
            records=stack.top.step.snapshot.seq if stack else 0,
            waiting=(loop.desk.waiting or ("paused" if loop.paused else "")) if loop else "",
            paused=loop.paused if loop else False,
            child=loop.world.child() if loop else "",
            requests=len(loop.desk.open) if loop else 0,
            origin=task.fork.origin if task.fork else None,
            unusable_messages=tuple(self.messages.unusable),
        )

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
    def requests(self, query: PageQuery | None = None) -> RequestsPage:
        """What the run asks people, and what was decided last."""
        return requests_page(self.messages.loop, query or PageQuery())

    @workflow.query
    def effects(self, query: EffectsQuery | None = None) -> EffectsPage:
        """Calls with outside effects since a step: what a rollback would leave behind, or undo."""
        return effects_page(self.messages.loop, query or EffectsQuery())

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
            raise self._not_begun()
        return self.task

    def _known(self) -> tuple[Design, Machine[Any]]:
        if self.design is None or self.machine is None:
            raise self._not_begun()
        return self.design, self.machine

    def _stack(self) -> Stack:
        if self.stack is None:
            raise self._not_begun()
        return self.stack

    def _not_begun(self) -> ApplicationError:
        why = self.exit.error if self.exit else None
        return ApplicationError(f"the run has not begun{f': {why}' if why else ''}", type="NotBegun")
