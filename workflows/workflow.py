"""`AgentWorkflow`: one run on Temporal. It makes the machine ready and lets the loop drive it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker.workflow_sandbox import RestrictedWorkflowAccessError

from activities.contracts import AskModel, Digests, JsonObject, ToolSpec
from workflows.api import (
    FOR_ARCHIVE,
    LOG_HEAD_KEY,
    RESULT_KEY,
    WORKFLOW_TYPE,
    AgentTask,
    Carry,
    EffectsQuery,
    LogPage,
    PageQuery,
    RequestsQuery,
    ResultPage,
    RunResult,
    RunStatus,
    StepsPage,
    TranscriptPage,
)
from workflows.engine.loop import Drive
from workflows.hosts.activities import Performer, until_done
from workflows.hosts.archive import RunLogWriter
from workflows.hosts.temporal import TemporalHost, identity, now
from workflows.kernel.diagram import mermaid
from workflows.kernel.errors import bug_line, bug_text, is_loading
from workflows.kernel.log import Record
from workflows.kernel.machine import ToolsUnknown
from workflows.kernel.snapshot import Suspension
from workflows.people import CommandDone, Decided, EffectsPage, RequestsPage
from workflows.queries import (
    effects_page,
    inline_result,
    log_page,
    requests_page,
    result_page,
    steps_page,
    transcript,
    transcript_page,
)
from workflows.signals import Messages, plain
from workflows.task import (
    InvalidTask,
    cancelled_step,
    carried_step,
    first_step,
    parse_task,
    program_for,
)

__all__ = ["AgentWorkflow"]

_EXIT = SearchAttributeKey.for_keyword("AgentExit")
_WAITING = SearchAttributeKey.for_keyword("AgentWaiting")
AT_THE_END = 10
"""Seconds that a run which is over waits for its notifications."""
IMPURE = "ImpureMachine"
"""Event and error type of a machine that uses what Temporal's sandbox refuses."""
NEWEST_BUILD = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
MAX_ERROR_CHARS = 2000
"""Characters of an error's message; the result has the whole."""


DECIDE = """answer a request: {"request": "r1", "digest": "...", "decision": "approve", "by": "ann"}
The query `requests` has its id, its digest, and the decisions that it takes."""
COMMAND = """{"command": "pause", "by": "ann"}
One of pause, resume, steer (text), abort (text), rollback (step), limits (limits)."""


class Bug(Exception):
    """A fault in a machine, or in Ratchet. It fails the workflow task, and Temporal tries again until the
    code is fixed: the history's event `WorkflowTaskFailed` has this text, and so has the worker's log."""


@workflow.defn(name=WORKFLOW_TYPE)
class AgentWorkflow:
    """One run of one agent: any machine, the same loop."""

    def __init__(self) -> None:
        self.task: AgentTask | None = None
        self.drive: Drive | None = None
        self.log_writer = RunLogWriter(workflow.info().first_execution_run_id)
        self.messages = Messages()
        self.problem = ""
        """Why the run could not begin."""
        self.result: RunResult | None = None
        """What came out, whole."""

    @workflow.run
    async def run(self, *inputs: Any) -> RunResult:
        """Run one AgentTask to its end. A broken rule or an invalid task fails the workflow readably.

        The signature takes anything: a typed one would be retried for ever when the input is missing or
        there are two, as happens with `temporal workflow start`.
        """
        with _bugs_named():
            try:
                self.task = parse_task([plain(value) for value in inputs])
                _forget(inputs)
                host = await self._begin(self.task)
            except InvalidTask as error:
                if self.task and self.task.carry and workflow.info().continued_run_id:
                    raise  # nothing is lost: this worker lacks what the run's last worker had
                raise self._ended_early("refused", str(error)) from None
            assert self.drive is not None
            try:
                await self._drive(host, self.drive)
            except InvalidTask as error:  # the worker lacks tools of the task, as the first question found
                self.drive = None
                raise self._ended_early("refused", str(error)) from None
            except RestrictedWorkflowAccessError as error:
                self.drive.fail(IMPURE, _impure_text(error))
                await self.drive.move()
            finally:
                self.messages.end()
            return await self._end(host, self.drive)

    async def _drive(self, host: TemporalHost, drive: Drive) -> None:
        """Run to the end. Where the specs of tools are needed before any reply, they are asked for by
        themselves. Raises InvalidTask."""
        try:
            await drive.move()
        except ToolsUnknown:  # also to end, so a cancellation does not stop it
            describing = asyncio.ensure_future(host.describe_tools())
            await until_done(describing)
            describing.result()
            await drive.move()

    async def _begin(self, task: AgentTask) -> TemporalHost:
        """Make the machine ready: at its start, at a fork's step, or where the execution before ended.

        A run knows its tools by name until its first question brings their specs, unless its machine looks
        at them before, or does something else first. Raises InvalidTask.
        """
        info, carry = workflow.info(), task.carry
        specs = {spec.name: spec for spec in carry.specs} if carry else {}
        performer = Performer(task, specs, carry.held if carry else ())
        origin = _origin(info, carry)
        was_reset = info.run_id != info.original_execution_run_id
        since = carry.reset_since if carry else None
        if since is None and was_reset:
            since = info.workflow_start_time.timestamp()
        step = await self._beginning(task, performer)
        self._publish(task, step.program.machine.name, step.program.machine.version)
        host = TemporalHost(task, performer, self.log_writer, lambda: self._continue_as_new(host, performer))
        if carry:
            records = [Record.model_validate(record) for record in carry.records]
            self.log_writer = host.log_writer = RunLogWriter(origin, carry.log_head, records)
        elif task.fork:
            self.log_writer.records.extend(Record.model_validate(record) for record in task.fork.records)
        try:
            me = identity(origin, since)
            drive = Drive(host, task, specs, me, step, carry.drive if carry else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidTask("`carry` is not what a run has carried; leave it out") from error
        self.drive = host.drive = drive
        self.messages.begin(drive, carry.unusable if carry else ())
        return host

    async def _beginning(self, task: AgentTask, performer: Performer) -> Suspension:
        """The step that the run begins with, once the specs are known that it needs. A run that is cancelled
        before has ended. Raises InvalidTask."""
        step, specs = None, performer.specs
        if task.certificate is None or task.carry:  # else the first record needs what the worker has
            with suppress(ToolsUnknown):
                step = self._step(task, specs)
                if performer.knows_tools or step.asked is None or isinstance(step.asked, AskModel):
                    return step
        try:
            digests = await performer.describe_tools()
        except asyncio.CancelledError:
            return step or cancelled_step(task, workflow.info().workflow_id, now=now())
        return step or self._step(task, specs, digests)

    def _step(
        self, task: AgentTask, specs: Mapping[str, ToolSpec], digests: Digests | None = None
    ) -> Suspension:
        """The first step, or the one that was carried. Raises InvalidTask or ToolsUnknown."""
        program = program_for(task, specs, workflow.info().workflow_id)
        if task.carry:
            return carried_step(program, task.carry, task.machine_version, now=now())
        return first_step(task, program, now=now(), digests=digests)

    async def _continue_as_new(self, host: TemporalHost, performer: Performer) -> None:
        """A run has no maximum length, and outlives the build of its worker: between two effects it may go on
        with an empty history."""
        drive, messages = self.drive, self.messages
        assert drive is not None
        assert self.task is not None
        await self.log_writer.write()
        # A handler may wait for a command that is in the queue: that comes first.
        await workflow.wait_condition(
            lambda: bool(drive.run.queue) or (workflow.all_handlers_finished() and not messages.is_busy)
        )
        if (
            drive.run.host.cancelled()
            or drive.run.queue
            or messages.is_busy
            or drive.run.suspension.effect is None
        ):
            return
        carry = Carry(
            origin_run_id=drive.run.identity.origin,
            reset_since=drive.run.identity.reset_since,
            drive=drive.dump(),
            specs=tuple(performer.specs.values()),
            log_head=self.log_writer.archived_head,
            records=self.log_writer.unarchived,
            held=performer.held,
            unusable=tuple(messages.unusable),
        )
        fork = self.task.fork.model_copy(update={"records": ()}) if self.task.fork else None
        version = drive.run.suspension.program.machine.version
        update = {"machine_version": version, "carry": carry, "fork": fork}
        workflow.continue_as_new(
            self.task.model_copy(update=update),
            # else a run that is pinned to its worker's build stays with it
            initial_versioning_behavior=NEWEST_BUILD if host.may_change_build else None,
        )

    # -- the end ------------------------------------------------------------------------------------

    async def _end(self, host: TemporalHost, drive: Drive) -> RunResult:
        """Notify, archive, and return the result; or fail with it where the machine broke a rule, and where
        the agent wants Temporal to show how it ended."""
        await self.log_writer.write_full_parts(ending=True)
        result = drive.result(self.log_writer.head)
        await host.end_notices(seconds=AT_THE_END)
        task = self.task.model_dump(mode="json", exclude={"carry", "fork"}) if self.task else {}
        facts: JsonObject = {"task": task, "parents": [list(run) for run in drive.run.identity.parents]}
        archived = await self.log_writer.write({**result.model_dump(mode="json"), **facts})
        await until_done(asyncio.ensure_future(workflow.wait_condition(workflow.all_handlers_finished)))
        self.result = result.model_copy(update={"archived": archived})
        if not archived:  # so workers find it, and write it when the archive is back
            workflow.upsert_search_attributes([_WAITING.value_set(FOR_ARCHIVE)])
            workflow.upsert_memo({LOG_HEAD_KEY: result.log_head})
        # An outer run goes on with the whole. Other programs may be unable to read what is not in history.
        result = self.result if drive.run.task.depth else inline_result(self.result)
        how = drive.run.task.on_end
        if workflow.cancellation_reason() is not None and result.exit_reason == "cancelled":
            if how.cancelled == "complete" or drive.run.task.depth:
                return result
            # Temporal takes no details of a cancellation
            workflow.upsert_memo({RESULT_KEY: result})
            raise asyncio.CancelledError
        if result.exit_reason == "broken_rule" or (not result.ok and how.failed == "fail_workflow"):
            # The whole result goes with the error. A message is no payload: a long one would pass no limit of
            # the server.
            text = (result.error or result.exit_reason)[:MAX_ERROR_CHARS]
            kind = result.raises or result.exit_reason
            raise ApplicationError(text, result, type=kind, non_retryable=True)
        return result

    def _ended_early(self, reason: str, problem: str) -> ApplicationError:
        """The run could not begin; lists say why."""
        self.problem = problem
        self.messages.end()
        workflow.upsert_search_attributes([_EXIT.value_set(reason)])
        return ApplicationError(problem[:MAX_ERROR_CHARS], type="InvalidTask", non_retryable=True)

    def _publish(self, task: AgentTask, machine: str, version: str) -> None:
        """Agent and machine as search attributes, goal and version in the memo: for lists."""
        present = workflow.info().typed_search_attributes
        wanted = {"AgentName": task.name, "AgentMachine": machine}
        keys = {SearchAttributeKey.for_keyword(name): value for name, value in wanted.items()}
        if missing := [key.value_set(value) for key, value in keys.items() if present.get(key) != value]:
            workflow.upsert_search_attributes(missing)
        memo = workflow.memo()
        facts = {
            "machine": f"{machine} {version}",
            "goal": memo.get("goal", " ".join(task.goal.split())[:200]),
        }
        if new := {name: value for name, value in facts.items() if memo.get(name) != value}:
            workflow.upsert_memo(new)

    # -- messages -----------------------------------------------------------------------------------

    @workflow.signal(name="decide", description=DECIDE)
    def on_decide(self, *inputs: Any) -> None:
        """A signal that cannot be used is in the log and never harms the run; a typed handler would be
        poisoned by a missing input (facts/temporal.md, 2)."""
        self.messages.signal("decide", inputs)

    @workflow.signal(name="command", description=COMMAND)
    def on_command(self, *inputs: Any) -> None:
        """As `on_decide`."""
        self.messages.signal("command", inputs)

    @workflow.signal(dynamic=True, description="unknown signals are recorded and ignored")
    def on_signal(self, name: str, inputs: Sequence[RawValue]) -> None:
        """Any other signal, as somebody may send by mistake."""
        self.messages.signal(name, inputs)

    @workflow.update(name="decide", description=DECIDE)
    async def decide(self, *inputs: Any) -> Decided:
        """Answer a request by one Decision; refused with the reason when it does not count.

        The signature takes anything, as that of `run`: no input, or two, are refused in plain words.
        """
        return await self.messages.decide(inputs)

    @decide.validator
    def _check_decision(self, *inputs: Any) -> None:
        self.messages.check_decision(inputs)

    @workflow.update(name="command", description=COMMAND)
    async def command(self, *inputs: Any) -> CommandDone:
        """By one Command: pause, resume, abort, steer, rollback, limits; answered when it is done."""
        return await self.messages.command(inputs)

    @command.validator
    def _check_command(self, *inputs: Any) -> None:
        self.messages.check_command(inputs)

    # -- queries ------------------------------------------------------------------------------------

    @workflow.query
    def status(self) -> RunStatus:
        """Where the run is."""
        return self._begun().status(self.messages.unusable)

    @workflow.query
    def log(self, query: PageQuery | None = None) -> LogPage:
        """The log by pages; what an earlier execution wrote is in the archive."""
        finished = bool(self.drive and self.drive.run.suspension.exit)
        return log_page(self.log_writer.records, query or PageQuery(), finished=finished)

    @workflow.query
    def steps(self, query: PageQuery | None = None) -> StepsPage:
        """The steps in one line each, by pages."""
        return steps_page(self.log_writer.records, query or PageQuery())

    @workflow.query
    def requests(self, query: RequestsQuery | None = None) -> RequestsPage:
        """Open requests, then the newest closed ones."""
        return requests_page(self.drive, query or RequestsQuery())

    @workflow.query
    def effects(self, query: EffectsQuery | None = None) -> EffectsPage:
        """Calls with outside effects since a step: what a rollback would leave, or undo."""
        return effects_page(self.drive, query or EffectsQuery())

    @workflow.query
    def transcript(self, query: PageQuery | None = None) -> TranscriptPage:
        """The conversation with the model, with questions beside it, by pages."""
        conversation = self._begun().run.suspension.snapshot.conversation
        return transcript_page(transcript(self.log_writer.records, conversation), query or PageQuery())

    @workflow.query(name="result")
    def whole_result(self, query: PageQuery | None = None) -> ResultPage:
        """The whole result of a run that is over, as JSON, by pages: Temporal's history cuts a long one."""
        if self.result is None:
            self._begun()
            raise ApplicationError("the run is not over, so it has no result", type="NotOver")
        return result_page(self.result, query or PageQuery())

    @workflow.query
    def diagram(self) -> str:
        """The machine in Mermaid, the current state marked."""
        suspension = self._begun().run.suspension
        return mermaid(suspension.program.machine, suspension.snapshot.state)

    def _begun(self) -> Drive:
        if self.drive is None:
            why = f": {self.problem}" if self.problem else ""
            raise ApplicationError(f"the run has not begun{why}", type="NotBegun")
        return self.drive


def _forget(inputs: Sequence[Any]) -> None:
    """Empty what a run was begun with: the SDK keeps it as long as the run, where it takes 12 KiB."""
    for value in inputs:
        if isinstance(value, dict):
            value.clear()


@contextmanager
def _bugs_named() -> Iterator[None]:
    """An error that no rule expects says where it comes from. What the sandbox refuses ends the run."""
    try:
        yield
    except RestrictedWorkflowAccessError as error:
        raise ApplicationError(_impure_text(error), type=IMPURE, non_retryable=True) from None
    except (FailureError, workflow.NondeterminismError):
        raise
    except Exception as error:
        text = f"{bug_text(error)}. Fix it and restart the workers; the run goes on by itself."
        raise Bug(text) from error


def _origin(info: workflow.Info, carry: Carry | None) -> str:
    """Run id of the first execution of the run's chain, which a reset keeps: keys, digests and the archived
    log are bound to it. Raises InvalidTask for what another run has carried: with it came that run's
    decisions, and its calls' keys; and under a cron schedule, where all runs are one chain."""
    if info.cron_schedule:
        raise InvalidTask(
            "a run cannot have a cron schedule, which ends where a run is continued as new: start runs by a "
            "schedule of Temporal (`temporal schedule create --cron`)"
        )
    first = info.first_execution_run_id
    if carry is not None and (not info.continued_run_id or carry.origin_run_id != first):
        raise InvalidTask("`carry` is not of this run, but what another one took over; leave it out")
    return first


def _impure_text(error: RestrictedWorkflowAccessError) -> str:
    used = error.qualified_name.removeprefix("__builtins__.").removesuffix(".__call__")
    if is_loading(error):
        return (
            f"the machine's file uses {used} ({bug_line(error)}) when it is loaded, and each run loads it "
            "under the rules of machines. Import a library that a tool needs inside the tool's function, or "
            "keep tools and machine in two files; `Path(__file__).parent` names the file's folder"
        )
    return (
        f"the machine uses {used} ({bug_line(error)}). A machine may read no clock, file, environment "
        "or random number, use no network and start nothing, because its run could not be continued "
        "elsewhere: move that into a tool, or take the time from `run.now`"
    )
