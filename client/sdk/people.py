"""What people do with runs: see requests, decide, command, and follow a run with its requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from pydantic import ValidationError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest

from activities.contracts import JsonObject
from client.agents.yaml import problem_text
from client.errors import (
    NoWorker,
    RatchetError,
    Refused,
    StoreNotShared,
    UnknownRun,
    UsageError,
    clear_errors,
    resume_command,
)
from client.keys import Signer
from client.runs.attributes import requests_in_memo
from client.runs.connected import ConnectedReader
from client.runs.listing import RequestSummary
from client.sdk.sending import MessageName, NoAnswer, SentSignal, by_signal, by_update
from workflows.api import EffectsQuery, PageQuery, RequestsQuery, limits_problem
from workflows.kernel.log import Record
from workflows.people import (
    Command,
    CommandDone,
    Decided,
    Decision,
    DoneCall,
    EffectsPage,
    Request,
    RequestsPage,
    StandingApproval,
    Verb,
)

__all__ = ["CommandName", "RunCommander", "command_from", "decision_from"]

CommandName = Literal["pause", "resume", "abort", "steer", "rollback", "limits"]
QUERY_SECONDS = 5
"""How long an open request is asked for; a worker that has just gone counts as there for a while. Then the
run's memo helps."""
LOOK_SECONDS = 1.0
"""How often `watch_all` looks for requests of inner runs: the outer run's history does not show them."""
A = TypeVar("A", Decided, CommandDone)
M = TypeVar("M", Decision, Command)


class DecisionFields(TypedDict, total=False):
    """Fields of a decision that only some verbs take; see `workflows.people.Decision`."""

    arguments: JsonObject | None
    amounts: Mapping[str, float]
    standing_approval: StandingApproval | None


class CommandFields(TypedDict, total=False):
    """Fields of a command that only some commands take; see `workflows.people.Command`."""

    at_once: bool
    step: int
    compensate: bool
    limits: Mapping[str, float | None]


def decision_from(
    request: Request | RequestSummary, verb: Verb, text: str = "", **fields: Unpack[DecisionFields]
) -> Decision:
    """A decision on a request as the caller saw it.

    Raises:
        UsageError: a field cannot be sent: a text that is too long, arguments that are not JSON.
    """
    about = {"request": request.id, "digest": request.digest, "decision": verb}
    return _message_of(Decision, {**about, "text": text, **fields})


def command_from(command: CommandName, text: str = "", **fields: Unpack[CommandFields]) -> Command:
    """A command. Raises as `decision_from`, also for limits that no run has."""
    found = _message_of(Command, {"command": command, "text": text, **fields})
    _check_limits(found)
    return found


def _check_limits(command: Command) -> None:
    if command.command == "limits" and (problem := limits_problem(command.limits)):
        raise UsageError(problem)


def _message_of(kind: type[M], fields: Mapping[str, Any]) -> M:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        name = kind.__name__.lower()
        raise UsageError(f"this cannot be sent as a {name}: {problem_text(error, kind)}") from error


class RunCommander(ConnectedReader):
    """Deciding what runs ask, and commanding them: the part of `AgentClient` that people act through.

    A message goes as an update, which the run answers, when a worker polls. Otherwise, or with `signal`, it
    goes as a signal; then the answer is `SentSignal`, and it takes effect when a worker comes. Each message
    has an id, so that one that comes twice counts once.
    """

    # -- requests --------------------

    async def requests(self, run: str) -> tuple[Request, ...]:
        """The open requests of a run, oldest first, with nothing cut.

        Raises:
            NoWorker: the run cannot answer; `request_summaries` needs no worker.
            StoreNotShared: they are long and lie in the workers' store.
        """
        return (await self.requests_page(run)).open

    async def requests_page(self, run: str, *, schemas: bool = False) -> RequestsPage:
        """All open requests in one page, as they were at one moment, and whether the run is paused.

        Args:
            schemas: with their tools. An MCP server's schemas may be so long that they lie in the workers'
                store.
        """
        while True:
            page = await self._requests_from(run, 0, schemas)
            found, tools = page.open, page.tools
            while page.open and len(found) < page.total:
                page = await self._requests_from(run, len(found), schemas)
                # When an older request closes, indices fall, and the page has left one out: begin again.
                last = (await self._requests_from(run, len(found) - 1)).open
                if not last or last[0].id != found[-1].id:
                    break
                found, tools = (*found, *page.open), tools | page.tools
            else:
                return page.model_copy(update={"open": found, "tools": tools})

    async def open_and_closed_requests(self, run: str) -> tuple[Request, ...]:
        """The open requests, followed by the five that were closed last; each once."""
        while True:
            found = (await self.requests_page(run)).open
            page = await self._requests_from(run, len(found))
            closed = {request.id for request in page.closed}
            if page.total == len(found) and not any(request.id in closed for request in found):
                return (*found, *page.closed)

    async def request_summaries(self, run: str) -> tuple[RequestSummary, ...]:
        """The oldest five open requests in short; needs no worker."""
        return await requests_in_memo(await self.description(run))

    async def waiting_decisions(self, run: str) -> tuple[Decision, ...]:
        """Decisions that were sent as signals and that no worker has taken yet, oldest first.

        Needs no worker. Only the newest 100 events of the history are read; what cannot be read here is
        left out.
        """
        wanted = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self.temporal.namespace,
            execution=WorkflowExecution(workflow_id=run),
            maximum_page_size=100,
        )
        async with clear_errors(self.where, run):
            service = self.temporal.workflow_service
            newest = (await service.get_workflow_execution_history_reverse(wanted)).history.events
        found: list[Decision] = []
        for event in newest:
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                break
            signal = event.workflow_execution_signaled_event_attributes
            if signal.signal_name == "decide":
                with suppress(Exception):  # anybody may send anything, and encrypt it
                    payloads = signal.input.payloads
                    found += await self.temporal.data_converter.decode(payloads, [Decision])
        return tuple(reversed(found))

    async def request(self, run: str, request_id: str) -> Request | RequestSummary:
        """One request by its id, open or closed lately; in short when the run cannot answer.

        Raises:
            Refused: the run has no such request, or cannot answer and its memo does not name it.
        """
        cause: RatchetError | None = None
        try:
            known: Sequence[Request | RequestSummary] = await self.open_and_closed_requests(run)
        except (NoWorker, StoreNotShared) as error:
            known, cause = await self.request_summaries(run), error
        for request in known:
            if request.id == request_id:
                return request
        names = ", ".join(request.id for request in known) or "none"
        if cause is not None:
            raise Refused(
                f"request {request_id} of run {run} is not among those that its memo names ({names}), and "
                f"the run cannot answer: {cause}"
            ) from cause
        raise Refused(f"run {run} has no request {request_id}; it has {names}")

    async def effects(self, run: str, step: int = 0) -> tuple[DoneCall, ...]:
        """Calls since a step that changed something outside, or may have; oldest first.

        A rollback to that step undoes them only with `compensate`.
        """
        calls: tuple[DoneCall, ...] = ()
        while True:
            query = EffectsQuery(step=step, since=len(calls))
            page = await self.query(run, "effects", EffectsPage, query)
            if page.total < len(calls):  # the run was rolled back meanwhile
                calls = ()
                continue
            calls += page.calls
            if not page.calls or len(calls) >= page.total:
                return calls

    async def _requests_from(self, run: str, since: int, schemas: bool = False) -> RequestsPage:
        # Nothing is cut: who decides must see all of it, and who edits changes all of it.
        query = PageQuery(since=since, full=True)
        if schemas:  # which a worker of an older release does not know
            query = RequestsQuery(since=since, full=True, schemas=True)
        return await self.query(run, "requests", RequestsPage, query, seconds=QUERY_SECONDS)

    # -- decisions and commands --------------------

    async def decide(
        self,
        run: str,
        request: Decision | Request | RequestSummary | str,
        verb: Verb | None = None,
        text: str = "",
        *,
        by: str | Signer = "",
        signal: bool = False,
        **fields: Unpack[DecisionFields],
    ) -> Decided | SentSignal:
        """Answer a request; its state afterwards.

            await agents.decide(run, request, "approve", "as agreed", by="ann")
            await agents.decide(run, "r2", "edit", arguments={"amount": 5})
            await agents.decide(run, Decision(...))

        Args:
            request: as the caller saw it, so that a decision never counts for something else; an id means
                that request as it is now; or a whole Decision.
            verb: one of the request's `options`.
            text: comment, answer or result.
            by: a name, which is only claimed; a `Signer` with a key signs.
            signal: send a signal, and do not wait for an answer.

        Raises:
            Refused: the decision does not count; the message says why. Nothing was changed.
            UsageError: it cannot be sent.
        """
        if isinstance(request, Decision):
            return await self._send(run, request, Decided, by, signal)
        if verb is None:
            raise UsageError("a decision needs a verb, such as `approve`")
        seen = await self.request(run, request) if isinstance(request, str) else request
        if isinstance(seen, RequestSummary) and seen.options and verb not in seen.options:
            # a run that answers says so itself; a signal would be refused in the log only
            raise Refused(
                f"{seen.id} of run {run} cannot be decided by {verb!r}; options: {', '.join(seen.options)}"
            )
        return await self._send(run, decision_from(seen, verb, text, **fields), Decided, by, signal)

    async def command(
        self,
        run: str,
        command: Command | CommandName,
        text: str = "",
        *,
        by: str | Signer = "",
        signal: bool = False,
        **fields: Unpack[CommandFields],
    ) -> CommandDone | SentSignal:
        """Command a run; what the command did.

            await agents.command(run, "pause", by="ann")
            await agents.command(run, "steer", "Look at the newest file first.")
            await agents.command(run, "rollback", step=3, compensate=True)
            await agents.command(run, "limits", limits={"model_calls": 50, "cost_usd": None})

        Args and errors as in `decide`; `text` is the reason, or the message that steers.
        """
        body = command if isinstance(command, Command) else command_from(command, text, **fields)
        _check_limits(body)
        return await self._send(run, body, CommandDone, by, signal)

    async def _send(
        self, run: str, body: Decision | Command, answer: type[A], by: str | Signer, signal: bool
    ) -> A | SentSignal:
        """By update when a worker polls and answers in time, otherwise by signal with the same id."""
        who = by if isinstance(by, Signer) else Signer(by)
        body = body.model_copy(update={"id": body.id or secrets.token_hex(8), "by": who.name or body.by})
        if isinstance(body, Decision) and body.made_at is None:
            body = body.model_copy(update={"made_at": time.time()})
        if who.key is not None:
            from workflows.gate.decisions import sign, signed_content

            # a decision names the digest of its request; a command names the very run
            is_command = isinstance(body, Command)
            origin = (await self.description(run)).raw_info.first_run_id if is_command else ""
            body = body.model_copy(update={"signature": sign(who.key, signed_content(run, body, origin))})
        name: MessageName = "decide" if isinstance(body, Decision) else "command"
        async with clear_errors(self.where, run):
            if signal:
                text = "sent as a signal; it takes effect when a worker takes it"
            elif not await self.has_worker(run):
                start = resume_command(embedded=self.ui is not None)
                text = f"sent, but no worker runs: it takes effect when one does ({start})"
            else:
                try:
                    return await by_update(self.temporal, run, name, body, answer)
                except NoAnswer:
                    text = "sent; no worker took it in time, so it takes effect when one does"
            if isinstance(body, Decision):
                await self._check_arguments(run, body)
            return await by_signal(self.temporal, run, name, body, text)

    async def fitted_arguments(self, run: str, tool: str, arguments: JsonObject) -> JsonObject:
        """The arguments as the run brings them to the tool's schema; as they are where that cannot be known
        here, or they do not fit: then the run refuses them."""
        from client.history.recorded import recorded_tools
        from workflows.gate.arguments import arguments_for

        with suppress(RatchetError):
            async with clear_errors(self.where, run):
                spec = (await recorded_tools(self.temporal, run)).get(tool)
            fitted = arguments_for(spec, arguments) if spec is not None else arguments
            return arguments if isinstance(fitted, str) else fitted
        return arguments

    async def _check_arguments(self, run: str, decision: Decision) -> None:
        """Raise Refused for arguments that the run would refuse in its log alone, when it takes the signal.
        What cannot be judged here is sent."""
        standing = decision.standing_approval.arguments if decision.standing_approval else {}
        if decision.arguments is None and not standing:
            return
        from client.history.recorded import recorded_tools  # these take a tenth of a second
        from workflows.gate.arguments import argument_problem, arguments_for, condition_problem
        from workflows.gate.decisions import unchanged

        asked = {one.id: one for one in await self.request_summaries(run)}.get(decision.request)
        tool = asked.tool if asked else None
        spec = (await recorded_tools(self.temporal, run)).get(tool) if tool else None
        for name, condition in standing.items():
            problem = condition_problem(condition) or (spec and argument_problem(name, condition, spec))
            if problem:
                raise Refused(f"standing_approval.arguments.{name}: {problem}. Nothing was sent")
        if asked and spec is not None and decision.arguments is not None:
            fitted = arguments_for(spec, decision.arguments)
            if isinstance(fitted, str):
                raise Refused(f"{decision.request} of run {run}: {fitted}. Nothing was sent")
            if problem := unchanged(asked.id, asked.arguments, fitted):
                raise Refused(f"{problem} Nothing was sent")

    # -- following --------------------

    async def watch_all(self, run: str, since: int = 0) -> AsyncGenerator[Record | Request, None]:
        """What `watch` gives, and each request when it opens, at each vote, and when it closes.

        Requests of inner runs come too; `Request.run` names the run. A request that is already open follows
        the records that are already there; one that is already closed does not come.
        """
        if await self.is_archived(run):
            async for record in self.watch(run, since):
                yield record
            return
        changes = _RequestChanges(self, run)
        requests, newest = await changes.next(), 0.0
        async with aclosing(self.batches(run, since, seconds=LOOK_SECONDS)) as batches:
            async for records in batches:
                news: tuple[Record | Request, ...] = (*records, *requests)
                for one in news:
                    yield one
                newest = max([newest, *(record.at for record in records)])
                found = await changes.after(records)
                # one that has opened since then comes after the records that led to it
                requests = [r for r in found if r.run == run and r.is_open and r.created > newest]
                for request in (r for r in found if r not in requests):
                    yield request
        for request in (*requests, *await changes.next()):
            yield request


class _RequestChanges:
    """Which requests of a run and of its inner runs have changed since the last look."""

    def __init__(self, agents: RunCommander, run: str) -> None:
        self._agents, self._run = agents, run
        self._known: dict[str, dict[str, Request]] = {}
        """Run -> its requests by id, as they were when it answered last."""
        self._lengths: dict[str, int] = {}
        """Run -> length of its history then: while it is the same, nothing has changed."""
        self._looked = 0.0

    async def after(self, records: Sequence[Record]) -> list[Request]:
        """The same as `next`, if these records are about people, or the last look was long ago."""
        is_due = time.monotonic() - self._looked >= LOOK_SECONDS
        return await self.next() if is_due or any(record.about for record in records) else []

    async def next(self) -> list[Request]:
        """Requests that opened, got a vote or were closed. A run that does not answer is asked next time."""
        is_first, self._looked = self._run not in self._lengths, time.monotonic()
        changed: list[Request] = []
        runs = [self._run]
        for run in runs:  # with its inner runs, however deep, that are found meanwhile
            try:
                about = await self._agents.description(run)
            except RatchetError:
                continue
            runs += [child.workflow_id for child in about.raw_description.pending_children]
            if about.history_length != self._lengths.get(run) and await self._look(run, changed):
                self._lengths[run] = about.history_length
        for run, known in self._known.items():
            if run not in runs and any(request.is_open for request in known.values()):
                await self._look(run, changed)  # an inner run that has ended
        # what was closed before is no news
        return [request for request in changed if request.is_open] if is_first else changed

    async def _look(self, run: str, changed: list[Request]) -> bool:
        """Add what has changed in one run; False: it does not answer now."""
        found: list[Request] = []
        try:
            found += await self._agents.open_and_closed_requests(run)
        except (StoreNotShared, UnknownRun):
            pass  # asking again would not help
        except RatchetError:  # the worker is away or slow
            return False
        known = self._known.setdefault(run, {})
        names = {one.id for one in found}
        gone = {name: one for name, one in known.items() if one.is_open and name not in names}
        found += await self._closed_long_ago(run, gone)
        changed += [one for one in found if one.id not in known or _state(one) != _state(known[one.id])]
        known |= {one.id: one for one in found}
        return True

    async def _closed_long_ago(self, run: str, gone: Mapping[str, Request]) -> list[Request]:
        """Requests that were open and are not among the newest closed ones: the log has the outcome."""
        closed: list[Request] = []
        with suppress(RatchetError):
            for record in await self._agents.records(run) if gone else ():
                outcome, request = record.about.get("outcome"), gone.get(str(record.about.get("request")))
                if request is not None and outcome not in (None, "open"):
                    closed.append(request.model_copy(update={"outcome": outcome, "closed": record.at}))
        return closed


def _state(request: Request) -> tuple[object, ...]:
    """What makes a request news when it changes."""
    return request.outcome, len(request.votes), request.group, request.deadline
