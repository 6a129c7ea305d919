"""`AgentWorkflow`: the loop. It starts a machine, performs what it asks for, and advances it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from activities.contracts import ArchiveRequest, Message, ToolsDescribed, ToolSpec, ToolsWanted
from workflows import registry
from workflows.api import (
    WORKFLOW_TYPE,
    AgentResult,
    AgentStatus,
    AgentTask,
    LogPage,
    PageQuery,
    StepsPage,
    TranscriptPage,
)
from workflows.kernel.design import Brief, Design
from workflows.kernel.diagram import mermaid
from workflows.kernel.errors import DefinitionError, MachineError, name_of
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record, chain
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.snapshot import Step
from workflows.kernel.step import advance, close, start
from workflows.kernel.verify import definition_hash
from workflows.pages import details, log_page, steps_page, transcript_page
from workflows.perform import Performer, Where

__all__ = ["AgentWorkflow"]


@workflow.defn(name=WORKFLOW_TYPE)
class AgentWorkflow:
    """One run of one agent: any machine, the same loop."""

    def __init__(self) -> None:
        self.task: AgentTask | None = None
        self.design: Design | None = None
        self.machine: Machine[Any] | None = None
        self.step: Step[Any] | None = None
        self.records: list[Record] = []
        self.doing = ""
        self.exit: Exit | None = None
        self.published = ""

    @workflow.run
    async def run(self, *inputs: Any) -> AgentResult:
        """Run one AgentTask to the end. A broken rule or an unusable task fails the workflow readably.

        The signature takes anything: a typed one would be retried for ever when the input is missing
        or there are two, as happens with `temporal workflow start`.
        """
        self.task = task = _task_of(inputs)
        self.design, self.machine = _build(task)
        specs = await self._tools(task)
        performer = Performer(task, specs, workflow.info().run_id)
        self._publish()
        try:
            await self._loop(task, performer, specs)
        except MachineError as error:
            await self._broken(error)
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
        return await self._end()

    async def _loop(self, task: AgentTask, performer: Performer, specs: tuple[ToolSpec, ...]) -> None:
        design, machine = self._known()
        info = workflow.info()
        brief = Brief(task.goal, info.workflow_id, task.instructions, specs)
        options = design.options.model_validate(task.options)
        caps = {k: v for k, v in task.limits.model_dump().items() if v and k != "max_transitions"}
        self._keep(start(machine, design.begin(brief, options), now=_now(), ledger=Ledger(caps=caps)))
        try:
            while (step := self.step) and step.effect is not None:
                s = step.snapshot
                where = Where(name_of(s.state), s.visit, s.call, s.branch)
                answer = await performer.perform(step.effect, where)
                self._keep(advance(machine, step, answer, now=_now()))
        except BaseException as error:
            if not is_cancelled_exception(error) or self.step is None:
                raise
            text = "the run was cancelled by a request to Temporal"
            self._keep(close(machine, self.step, "cancelled", now=_now(), error=text, by="person"))

    def _keep(self, step: Step[Any]) -> None:
        """Take a step over: its records, what it wants done, what people see of it."""
        self.step, self.exit = step, step.exit
        self.doing = step.effect.title if step.effect else ""
        self.records.extend(step.records)
        for r in step.records:
            fields = {"step": r.step, "state": r.state, "event": r.event, "to": r.to, "error": r.error}
            workflow.logger.info("agent.transition", extra={"ratchet": fields})
        self._publish_state()
        workflow.set_current_details(details(self.status(), self._task().goal, self.records))

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
        workflow.upsert_memo(
            {"machine": f"{design.name} {design.version}", "definition": definition_hash(machine)}
        )

    def _publish_state(self) -> None:
        """One upsert before an effect, and only for agents that ask for it; one at the end for all."""
        updates: list[SearchAttributeUpdate[Any]] = []
        step = self.step
        if step and self._task().visibility == "state":
            state = name_of(step.snapshot.state)
            if state != self.published:
                updates.append(SearchAttributeKey.for_keyword("AgentState").value_set(state))
            self.published = state
        if self.exit:
            updates.append(SearchAttributeKey.for_keyword("AgentExit").value_set(self.exit.reason))
        if updates:
            workflow.upsert_search_attributes(updates)

    async def _tools(self, task: AgentTask) -> tuple[ToolSpec, ...]:
        """Tool specs enter the history once: a tool that changes later cannot break this run."""
        if not task.tools:
            return ()
        found: ToolsDescribed = await workflow.execute_local_activity(
            "describe_tools",
            ToolsWanted(names=task.tools),
            result_type=ToolsDescribed,
            start_to_close_timeout=timedelta(seconds=30),
            summary="describe the agent's tools",
        )
        if found.missing:
            has = ", ".join(found.available) or "none"
            raise _refused(f"unknown tools: {', '.join(found.missing)}. This worker has: {has}")
        return found.tools

    # -- the end --------------------

    async def _broken(self, error: MachineError) -> None:
        if error.step is not None:
            self.step = error.step
            self.records.extend(error.step.records)
        self.exit = Exit(reason="broken_rule", error=str(error))
        self.doing = ""
        self._publish_state()
        await self._archive(self._result(self.exit))

    async def _end(self) -> AgentResult:
        ended = self.exit or Exit(reason="bug", error="the loop ended without an exit")
        result = self._result(ended)
        await self._archive(result)
        return result

    async def _archive(self, result: AgentResult) -> None:
        """Its failure never fails the run."""
        info = workflow.info()
        request = ArchiveRequest(
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            after="",
            records=tuple(record.model_dump(mode="json") for record in self.records),
            result=result.model_dump(mode="json"),
        )
        try:
            await workflow.execute_activity(
                "archive_log",
                request,
                activity_id="archive",
                summary="archive the log",
                start_to_close_timeout=timedelta(seconds=60),
                retry_policy=RetryPolicy(maximum_attempts=5),
            )
        except (ActivityError, asyncio.CancelledError) as error:
            workflow.logger.warning("agent.archive_failed", extra={"ratchet": {"error": str(error)}})

    def _result(self, ended: Exit) -> AgentResult:
        info, status = workflow.info(), self.status()
        return AgentResult(
            ok=ended.ok, exit_reason=ended.reason, answer=ended.answer, error=ended.error,
            agent=status.agent, machine=status.machine, machine_version=status.machine_version,
            state=status.state, steps=status.step, counters=status.counters, outcome=ended.outcome,
            workflow_id=info.workflow_id, run_id=info.run_id, records=len(self.records),
            log_head=chain(self.records),
        )  # fmt: skip

    # -- queries --------------------

    @workflow.query
    def status(self) -> AgentStatus:
        """Where the run is."""
        task, step, ended = self._task(), self.step, self.exit
        design = self.design
        return AgentStatus(
            agent=task.agent,
            machine=task.machine,
            machine_version=design.version if design else "",
            state=name_of(step.snapshot.state) if step else "starting",
            step=step.snapshot.step if step else 0,
            visit=step.snapshot.visit if step else 0,
            branch=step.snapshot.branch if step else 0,
            doing=self.doing,
            finished=ended is not None,
            exit_reason=ended.reason if ended else None,
            answer=ended.answer if ended else None,
            counters=dict(step.ledger.spent) if step else {},
            caps=dict(step.ledger.caps) if step else {},
            records=len(self.records),
        )

    @workflow.query
    def log(self, query: PageQuery | None = None) -> LogPage:
        """The transition log, by pages."""
        return log_page(self.records, query or PageQuery(), self.exit is not None)

    @workflow.query
    def steps(self, query: PageQuery | None = None) -> StepsPage:
        """The steps in one line each, by pages."""
        return steps_page(self.records, query or PageQuery())

    @workflow.query
    def transcript(self, query: PageQuery | None = None) -> TranscriptPage:
        """The conversation with the model, by pages."""
        context = self.step.snapshot.context if self.step else None
        messages: tuple[Message, ...] = tuple(getattr(context, "transcript", ()))
        return transcript_page(messages, query or PageQuery())

    @workflow.query
    def diagram(self) -> str:
        """The machine in Mermaid, the current state marked."""
        _, machine = self._known()
        return mermaid(machine, name_of(self.step.snapshot.state) if self.step else None)

    def _task(self) -> AgentTask:
        if self.task is None:
            raise ApplicationError("the run has not begun: its input was refused", type="NotBegun")
        return self.task

    def _known(self) -> tuple[Design, Machine[Any]]:
        if self.design is None or self.machine is None:
            raise ApplicationError("the run has not begun: its input was refused", type="NotBegun")
        return self.design, self.machine


def _now() -> float:
    return workflow.now().timestamp()


def _refused(problem: str) -> ApplicationError:
    return ApplicationError(f"the task cannot be run: {problem}", type="InvalidTask", non_retryable=True)


def _task_of(inputs: tuple[Any, ...]) -> AgentTask:
    if len(inputs) != 1:
        raise _refused(f"one AgentTask is expected as input, {len(inputs)} values came")
    try:
        return AgentTask.model_validate(inputs[0])
    except ValidationError as error:
        raise _refused(_faults(error, "")) from error


def _faults(error: ValidationError, prefix: str) -> str:
    """Field by field what is wrong; never the values, which may hold secrets."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{prefix}{'.'.join(map(str, e['loc'])) or 'the whole input'}: {e['msg']}" for e in found[:10]]
    return "; ".join(lines)


def _build(task: AgentTask) -> tuple[Design, Machine[Any]]:
    """The machine that the task names, made with its knobs; a bad task fails the run at once."""
    try:
        design = registry.design(task.machine, task.machine_version)
        options = design.options.model_validate(task.options)
        machine = design.build(options, registry.parts())
    except ValidationError as error:
        raise _refused(_faults(error, "options.")) from error
    except (ValueError, DefinitionError) as error:
        raise _refused(str(error)) from error
    limit = task.limits.max_transitions
    return design, machine.with_limit(limit) if limit else machine
