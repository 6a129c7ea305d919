"""What people say to runs: decisions on what they ask, and commands."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from activities.contracts import JsonObject
from client.errors import NotAtHand, NoWorker, RatchetError, Refused, UsageError
from client.inbox import WAITING_FILTER, Ask, InboxLine, asks_of, inbox_line, oldest_first
from client.keys import Speaker
from client.paging import all_calls, all_open, open_and_closed
from client.reading import RunReader
from client.rpc import clear_errors, has_worker
from client.sending import NoAnswer, Sent, by_signal, by_update
from client.watching import watch_all
from client.yamltext import dotted, problems
from workflows.api import EffectsQuery, PageQuery
from workflows.gate.signing import sign, signed_content
from workflows.kernel.log import Record
from workflows.people import (
    Command,
    CommandDone,
    Decided,
    Decision,
    DoneCall,
    EffectsPage,
    Remember,
    Request,
    RequestsPage,
    Verb,
)

__all__ = ["By", "RunCommander", "Seen", "spoken"]

Seen = Request | Ask | str
"""A request as the caller saw it; an id stands for the request of that id, and never for a newer one."""
By = str | Speaker
"""Who says it: a name that is claimed, or a person, who signs if they have a key."""
PATIENCE = timedelta(seconds=5)
"""A worker that has just gone counts as there for a while: so long it is waited for, then the memo helps."""
M = TypeVar("M", Decision, Command)
A = TypeVar("A", Decided, CommandDone)


@dataclass(frozen=True)
class _What:
    """What is decided, apart from the request."""

    verb: Verb
    text: str = ""
    arguments: JsonObject | None = None
    amounts: Mapping[str, float] = field(default_factory=dict)
    remember: Remember | None = None


class RunCommander(RunReader):
    """Deciding what runs ask, and ordering them about; the part of `AgentClient` that people speak through.

    A message goes as an update, which the run answers, when a worker polls; else, or with `signal`, as a
    signal: then the answer is `Sent`, and it takes effect when a worker comes. Each has an id, so that
    one that comes twice counts once.

    Whatever sends may raise `Refused` (the run does not take it as it stands, and why), `UnknownRun`, and
    `RatchetError` when the run is over.
    """

    # -- what is asked --------------------

    async def inbox(self) -> tuple[InboxLine, ...]:
        """All runs that wait for people, those that have waited longest first; one call, needs no worker."""
        async with clear_errors(self.where):
            found = [await inbox_line(run) async for run in self.temporal.list_workflows(WAITING_FILTER)]
        return oldest_first(found)

    async def requests(self, run_id: str) -> tuple[Request, ...]:
        """What a run asks at present, oldest first.

        Raises:
            NoWorker: nobody can say; see `asks`.
            NotAtHand: it is long, and lies in the workers' store.
        """
        return (await self.asked(run_id)).open

    async def asked(self, run_id: str) -> RequestsPage:
        """All of the same at once, and whether the run stands paused. Raises as `requests`."""
        return await all_open(partial(self._requests, run_id))

    async def known_requests(self, run_id: str) -> tuple[Request, ...]:
        """The same, and the newest closed ones behind them."""
        return await open_and_closed(partial(self._requests, run_id))

    async def asks(self, run_id: str) -> tuple[Ask, ...]:
        """The same in short, as the run's memo has it: the oldest five at most, needs no worker."""
        async with clear_errors(self.where, run_id):
            return await asks_of(await self.temporal.get_workflow_handle(run_id).describe())

    async def request(self, run_id: str, request_id: str) -> Request | Ask:
        """One request by its id, open or lately closed; in short when no worker can be asked.

        Raises:
            Refused: the run knows no such request.
        """
        more = ""
        try:
            known: tuple[Request | Ask, ...] = await self.known_requests(run_id)
        except (NoWorker, NotAtHand) as error:
            known = await self.asks(run_id)
            more = f"; more may be open, which cannot be told: {error}"
        for request in known:
            if request.id == request_id:
                return request
        there = ", ".join(request.id for request in known) or "none"
        if more:
            raise RatchetError(f"request {request_id} of run {run_id} is not among {there}{more}")
        raise Refused(f"run {run_id} has no request {request_id}; there is {there}")

    def watch_all(self, run_id: str, since: int = 0) -> AsyncGenerator[Record | Request, None]:
        """What `watch` gives, and each request when it opens, at each vote, and when it closes.

        Also requests of runs inside this one: `Request.run` says whose it is. Of requests that were
        closed before, nothing is said.
        """
        return watch_all(self, run_id, since)

    async def effects(self, run_id: str, step: int = 0) -> tuple[DoneCall, ...]:
        """Calls since a step that changed something outside, or may have; oldest first.

        A rollback to that step does not undo them by itself; see `rollback`.
        """

        async def page(since: int) -> EffectsPage:
            query = EffectsQuery(step=step, since=since)
            return await self._query(run_id, "effects", EffectsPage, query)

        return await all_calls(page)

    # -- decisions --------------------

    async def decide(
        self, run_id: str, decision: Decision, *, by: By = "", signal: bool = False
    ) -> Decided | Sent:
        """Answer a request; what has become of it.

        An id is made up when the decision has none; `by` stands for its own when it is given.
        """
        whole = _named(decision, by)
        if isinstance(by, Speaker) and by.key is not None:
            signature = sign(by.key, signed_content(run_id, whole))
            whole = whole.model_copy(update={"signature": signature})
        return await self._send(run_id, "decide", whole, Decided, signal)

    async def approve(
        self,
        run_id: str,
        request: Seen,
        text: str = "",
        *,
        by: By = "",
        remember: Remember | None = None,
        signal: bool = False,
    ) -> Decided | Sent:
        """Let the tool be called; `remember` approves later calls that fit it, too."""
        what = _What("approve", text, remember=remember)
        return await self._answer(run_id, request, what, by, signal)

    async def reject(
        self, run_id: str, request: Seen, text: str = "", *, by: By = "", signal: bool = False
    ) -> Decided | Sent:
        """Do not let the tool be called; the model is told so, and the text."""
        return await self._answer(run_id, request, _What("reject", text), by, signal)

    async def edit(
        self,
        run_id: str,
        request: Seen,
        arguments: JsonObject,
        text: str = "",
        *,
        by: By = "",
        signal: bool = False,
    ) -> Decided | Sent:
        """Let the tool be called with other arguments: all of them."""
        return await self._answer(run_id, request, _What("edit", text, arguments), by, signal)

    async def answer(
        self, run_id: str, request: Seen, text: str, *, by: By = "", signal: bool = False
    ) -> Decided | Sent:
        """Answer a question; of a call whose outcome nobody knew, its result: it did happen."""
        return await self._answer(run_id, request, _What("answer", text), by, signal)

    async def resume_request(
        self, run_id: str, request: Seen, text: str = "", *, by: By = "", signal: bool = False
    ) -> Decided | Sent:
        """Let the run go on after an interrupt, an escalation or a question, without an answer."""
        return await self._answer(run_id, request, _What("resume", text), by, signal)

    async def retry(
        self, run_id: str, request: Seen, text: str = "", *, by: By = "", signal: bool = False
    ) -> Decided | Sent:
        """Make a call again: what was wrong is mended, or the call did not happen."""
        return await self._answer(run_id, request, _What("retry", text), by, signal)

    async def top_up(
        self,
        run_id: str,
        request: Seen,
        amounts: Mapping[str, float],
        text: str = "",
        *,
        by: By = "",
        signal: bool = False,
    ) -> Decided | Sent:
        """Raise limits by these amounts: counter (such as `cost_usd`) -> how much more."""
        return await self._answer(run_id, request, _What("topup", text, amounts=amounts), by, signal)

    async def finish(
        self, run_id: str, request: Seen, text: str = "", *, by: By = "", signal: bool = False
    ) -> Decided | Sent:
        """Let a run that has reached a limit end as the limit would have it."""
        return await self._answer(run_id, request, _What("finish", text), by, signal)

    async def abort_request(
        self, run_id: str, request: Seen, text: str = "", *, by: By = "", signal: bool = False
    ) -> Decided | Sent:
        """End the run by a decision: for those who may decide this request, but not order the run about."""
        return await self._answer(run_id, request, _What("abort", text), by, signal)

    # -- commands --------------------

    async def command(
        self, run_id: str, command: Command, *, by: By = "", signal: bool = False
    ) -> CommandDone | Sent:
        """Order a run about; what it did. Id and `by` as in `decide`."""
        whole = _named(command, by)
        if isinstance(by, Speaker) and by.key is not None:
            content = signed_content(run_id, whole, await self._origin(run_id))
            whole = whole.model_copy(update={"signature": sign(by.key, content)})
        return await self._send(run_id, "command", whole, CommandDone, signal)

    async def pause(
        self, run_id: str, reason: str = "", *, at_once: bool = False, by: By = "", signal: bool = False
    ) -> CommandDone | Sent:
        """Let a run stand still after what it is doing, or at once: then it does that again later."""
        return await self.command(
            run_id, spoken(Command, command="pause", text=reason, at_once=at_once), by=by, signal=signal
        )

    async def resume(
        self, run_id: str, reason: str = "", *, by: By = "", signal: bool = False
    ) -> CommandDone | Sent:
        """Let a paused run go on; what it asks is answered by decisions."""
        return await self.command(
            run_id, spoken(Command, command="resume", text=reason), by=by, signal=signal
        )

    async def abort(
        self, run_id: str, reason: str = "", *, by: By = "", signal: bool = False
    ) -> CommandDone | Sent:
        """End a run where it is; it still gives a result, with the exit reason `aborted`."""
        return await self.command(run_id, spoken(Command, command="abort", text=reason), by=by, signal=signal)

    async def steer(self, run_id: str, text: str, *, by: By = "", signal: bool = False) -> CommandDone | Sent:
        """Say something to the model before its next call."""
        return await self.command(run_id, spoken(Command, command="steer", text=text), by=by, signal=signal)

    async def rollback(
        self,
        run_id: str,
        step: int,
        reason: str = "",
        *,
        compensate: bool = False,
        by: By = "",
        signal: bool = False,
    ) -> CommandDone | Sent:
        """Begin a step again, 0 the whole run; `compensate` undoes what can be undone, see `effects`."""
        order = spoken(Command, command="rollback", step=step, text=reason, compensate=compensate)
        return await self.command(run_id, order, by=by, signal=signal)

    async def set_limits(
        self,
        run_id: str,
        limits: Mapping[str, float | None],
        reason: str = "",
        *,
        by: By = "",
        signal: bool = False,
    ) -> CommandDone | Sent:
        """Set caps of a run: counter -> new cap, None for no cap."""
        order = spoken(Command, command="limits", limits=dict(limits), text=reason)
        return await self.command(run_id, order, by=by, signal=signal)

    # -- how it is said --------------------

    async def _requests(self, run_id: str, since: int) -> RequestsPage:
        # Nothing is cut: who decides must see all of it, and who edits changes all of it.
        query = PageQuery(since=since, full=True)
        return await self._query(run_id, "requests", RequestsPage, query, patience=PATIENCE)

    async def _answer(self, run_id: str, request: Seen, what: _What, by: By, signal: bool) -> Decided | Sent:
        seen = await self.request(run_id, request) if isinstance(request, str) else request
        if isinstance(seen, Ask) and seen.options and what.verb not in seen.options:
            # With a worker the run says so itself; without one nobody would.
            raise Refused(
                f"{seen.id} of run {run_id} cannot be answered by {what.verb!r}; "
                f"its options are {', '.join(seen.options)}"
            )
        decision = spoken(
            Decision,
            request=seen.id,
            digest=seen.digest,
            decision=what.verb,
            text=what.text,
            arguments=what.arguments,
            amounts=dict(what.amounts),
            remember=what.remember,
        )
        return await self.decide(run_id, decision, by=by, signal=signal)

    async def _origin(self, run_id: str) -> str:
        """The id of a run's first execution, which a signed command is bound to."""
        async with clear_errors(self.where, run_id):
            about = await self.temporal.get_workflow_handle(run_id).describe()
            return about.raw_info.first_run_id

    async def _send(
        self, run_id: str, name: Literal["decide", "command"], body: M, answer: type[A], signal: bool
    ) -> A | Sent:
        """By update when a worker polls and answers in time, else by signal with the same id."""
        async with clear_errors(self.where, run_id):
            if signal:
                return await by_signal(self.temporal, run_id, name, body, "sent as a signal")
            if not self.worker_here and not await has_worker(self.temporal):
                return await by_signal(self.temporal, run_id, name, body, "sent; no worker runs at present")
            try:
                return await by_update(self.temporal, run_id, name, body, answer)
            except NoAnswer:
                why = "sent; no worker took it at once"
                return await by_signal(self.temporal, run_id, name, body, why)


def spoken(kind: type[M], **said: Any) -> M:
    """A decision or a command of what a person said.

    Raises:
        UsageError: something in it cannot be sent: a text that is too long, arguments that are no JSON.
    """
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        wrong = "; ".join(f"{dotted(where)}: {what}" for where, what in problems(error, kind))
        raise UsageError(f"this cannot be sent as a {kind.__name__.lower()}: {wrong}") from error


def _named(message: M, by: By) -> M:
    """The message with an id, and with the name of who says it."""
    name = by.name if isinstance(by, Speaker) else by
    found = {"id": message.id or secrets.token_hex(8), "by": name or message.by}
    return message.model_copy(update=found)
