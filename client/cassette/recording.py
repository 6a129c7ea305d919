"""What a run asked of the world, what came back, and what people said, in order: what a cassette holds.

A `Recorder` stands between a run and its host, whichever that is. Entries are JSON objects; the first key
says what an entry is. What the run does:

    call     a call is begun: the activity id, the kind, and what is asked
    log      a record of the log: `state: Event -> state by whom`, and a digest of what it holds
    request  people are asked: the request's id, who may decide, about what

What comes from outside, `at` so many seconds after the beginning:

    begin    an inner run begins
    answer   the answer to a call
    decide   a decision on a request
    command  a person's command
    cancel   the run is cancelled

`inner` names the inner run that an entry belongs to: its workflow id without the part of the outer run.
`before` means that a tool had ended so many seconds earlier: a model was asked after it. `together` means in
the same turn as the entry before it: the run sees both at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter

from activities.contracts import (
    ArtifactsRead,
    AskModel,
    CodeStepped,
    Compensated,
    CompensateInput,
    Conversation,
    EffectFailed,
    JsonObject,
    Message,
    ModelReplied,
    NotBegun,
    ReadArtifacts,
    Reconciled,
    ReconcileInput,
    RunCode,
    ToolInput,
    ToolResult,
)
from workflows.api import COUNTERS, AgentTask, RunResult
from workflows.engine.loop import Drive
from workflows.engine.run_state import QueuedCommand
from workflows.hosts import CallAnswer, CallSite, ChildRun, Host, HostCall
from workflows.kernel.log import Record
from workflows.people import Command, Decided, Decision, Request

__all__ = ["ANSWERS", "CONTENT", "INPUTS", "Entry", "Recorder", "WatchedHost", "final_of", "sealed"]

Entry = JsonObject
INPUTS = ("begin", "answer", "decide", "command", "cancel")
"""First keys of what comes from outside."""
ANSWERS: dict[str, type[BaseModel]] = {
    "reply": ModelReplied, "result": ToolResult, "stepped": CodeStepped, "read": ArtifactsRead,
    "reconciled": Reconciled, "compensated": Compensated, "failed": EffectFailed, "not_begun": NotBegun,
}  # fmt: skip
"""Key of an answer -> what it holds. An inner run that came to its end is `ended`, a call that was stopped is
`stopped`."""
NOT_OF_THE_RUN = {
    "UnusableSignal", "RefusedDecision", "RepeatedDecision", "RefusedCommand", "RepeatedCommand",
}  # fmt: skip
"""Events of messages that did not count: they are not repeated."""
CONTENT = {"thought", "asked", "patch", "messages", "beside", "notes", "heard", "answered", "error"}
"""What of a record must be the same; its times and digests need not."""
OF_A_REPLY = {"conversation", "tools", "kind"}
SESSION = "recorded:"
"""Begins the name of a code session: its content is for the sandbox alone."""
MESSAGES: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])


class Recorder:
    """Records one run with its inner runs. Every execution of it is handed to `watch`, in order."""

    def __init__(self, turn: Callable[[], object] = object) -> None:
        """`turn` names the turn in which the host is: what comes in one turn, the run sees at once."""
        self._entries: list[tuple[float, Entry]] = []
        """With the times at which they came, in seconds since 1970."""
        self.final: JsonObject = {}
        """`final_of` the outer run at the end of what was recorded."""
        self.drives: dict[str, Drive] = {}
        """The newest execution of each run, by name; the outer run has the empty one."""
        self.origins: dict[str, str] = {}
        """Workflow id -> run id of the first execution."""
        self.task: AgentTask | None = None
        """What the outer run began with."""
        self.began = 0.0
        """Of the outer run, in seconds since 1970."""
        self._prefix = ""
        self._is_ignoring = False
        self._turn = turn
        self._last: object = None
        self._known: dict[str, str] = {}
        """Digest of a conversation -> the question whose reply is its end."""
        self._sessions: dict[str, str] = {}
        self._early: dict[str, Entry] = {}
        """Of each run, the result that brought a reply which no question has taken yet."""

    def watch(self, drive: Drive) -> None:
        """Record this run from here on; it has not moved yet."""
        me = drive.run.identity
        began = drive.run.suspension.snapshot.began
        if not self.drives:
            self.task, self.began, self.drives[""] = drive.run.task, began, drive
            self._prefix = f"{me.workflow_id}/{me.origin[:8]}/"
        name = self.name_of(me.workflow_id)
        is_new, self._is_ignoring = name not in self.drives, False
        self.drives[name] = self._newest = drive
        if is_new:
            self.note_input({"begin": name}, name, began)
        self.origins[me.workflow_id] = me.origin
        self._listen(drive, name)
        drive.run.host = cast(Host, self.host_for(drive, name))

    def name_of(self, workflow_id: str) -> str:
        """Name of an inner run in the entries; empty: the outer run."""
        is_outer = workflow_id == self.drives[""].run.identity.workflow_id
        return "" if is_outer else workflow_id.removeprefix(self._prefix)

    def host_for(self, drive: Drive, name: str) -> WatchedHost:
        """A host for that run which records what passes through it."""
        return WatchedHost(drive.run.host, self, name)

    def add(self, entry: Entry) -> None:
        """Take the next entry."""
        if not self._is_ignoring:
            name = str(entry.get("inner", ""))
            self._entries.append((self.drives[name].run.host.now(), entry))

    def note(self, entry: Entry, name: str) -> Entry:
        """Add an entry of that run."""
        entry = {**entry, "inner": name} if name else entry
        self.add(entry)
        return entry

    def note_input(self, entry: Entry, name: str, now: float) -> Entry:
        """Add what came from outside; the entry as it was added."""
        turn = (name, self._turn())
        at: Entry = {"at": round(now - self.began, 6)}
        together: Entry = {"together": True} if turn == self._last else {}
        self._last = turn
        return self.note({**entry, **at, **together}, name)

    def end(self) -> None:
        """Ignore everything until the next `watch`: it does not belong to the run."""
        self._is_ignoring = True
        if self.drives and (self._newest is self.drives[""] or not self.final):  # else no run ever began
            self.final = final_of(self.drives[""])

    def entries(self) -> list[Entry]:
        """All entries in order of time, once no more come. A reply that no question has taken was lost."""
        for entry in self._early.values():
            entry["lost"] = entry.pop("early")
        self._early.clear()
        return [entry for _, entry in sorted(self._entries, key=lambda one: one[0])]

    # -- what the run does --------------------

    def note_records(self, records: Sequence[Record], name: str) -> None:
        """Records of its log, and the requests that they name."""
        for record in records:
            if record.event in NOT_OF_THE_RUN:
                continue
            if record.event in ("Requested", "Escalated") and "request" in record.about:
                requests = self.drives[name].run.requests
                self.note(_request_entry(requests.get(str(record.about["request"]))), name)
                continue
            to = f" -> {record.to}" if record.to else ""
            who = record.by.removesuffix(" (claimed)")
            by = "" if who in ("machine", "kernel") else f" by {who}"
            content = self._with_session_names(_lean(record, include=CONTENT))
            self.note({"log": f"{record.state}: {record.event}{to}{by}", "content": content}, name)

    def note_call(self, call: HostCall, site: CallSite, name: str) -> None:
        """A call is begun."""
        if isinstance(call, AskModel):
            asked = self._question(call, site.conversation)
            if (early := self._early.pop(name, None)) is not None:
                reply: Any = early.pop("early")
                if site.reply is None:
                    early["lost"] = reply
                else:  # the tool had ended before the model began
                    early["before"] = reply.get("seconds", 0)
        else:
            asked = self._effect_entry(call)
        self.note({"call": site.activity_id, **asked}, name)

    def note_child(self, child: ChildRun, name: str) -> str:
        """An inner run is begun; its name in the entries."""
        place = self.name_of(child.workflow_id)
        fields = {"machine", "goal", "instructions", "tools", "options", "values", "material"}
        self.note({"call": place, "kind": "run_machine", **_lean(child.task, include=fields)}, name)
        return place

    def _question(self, effect: AskModel, sent: Conversation) -> Entry:
        """Only the messages that follow those of an earlier question and its reply."""
        start = next((n for n in range(len(sent), 0, -1) if sent.digests[n] in self._known), 0)
        fields = {"role", "beside", "skip", "offer", "tool_choice", "response_schema"}
        asked = _lean(effect, include=fields)
        messages = MESSAGES.dump_python(sent.messages[start:], mode="json", exclude_defaults=True)
        after = {"after": self._known[sent.digests[start]]} if start else {}
        return {"kind": "ask_model", **asked, **after, "say": messages}

    def _effect_entry(self, call: Any) -> Entry:
        match call:
            case ReconcileInput():
                return {"kind": "reconcile", **_lean(call, include={"tool", "arguments"})}
            case ToolInput():
                return {"kind": "call_tool", **_lean(call, include={"tool", "arguments", "artifacts"})}
            case CompensateInput():
                return {"kind": "compensate", **_lean(call, include={"tool", "arguments", "output"})}
            case RunCode():
                asked = _lean(call, include={"block", "names", "constants", "material"})
                if call.answer is not None:
                    asked["given"] = _lean(call.answer)
                sessions = {key: self._session(getattr(call, key)) for key in ("session", "before")}
                return {"kind": "run_code", **asked, **{key: one for key, one in sessions.items() if one}}
            case ReadArtifacts():
                return {"kind": "read_artifacts", **_lean(call, exclude={"kind", "label"})}
        raise AssertionError(f"unknown call {type(call).__name__}")

    def _session(self, session: str) -> str:
        if session and not session.startswith(SESSION):
            return self._sessions.setdefault(session, f"{SESSION}{len(self._sessions) + 1}")
        return session

    def _with_session_names(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._sessions.get(value, value)
        if isinstance(value, dict):
            return {key: self._with_session_names(item) for key, item in value.items()}
        return [self._with_session_names(item) for item in value] if isinstance(value, list) else value

    # -- what comes from outside --------------------

    def note_answer(self, call: HostCall, site: CallSite, answer: CallAnswer, name: str, now: float) -> None:
        """A call has ended."""
        key = next(key for key, kind in ANSWERS.items() if type(answer) is kind)
        if isinstance(answer, ModelReplied):
            assert isinstance(call, AskModel)
            self._known[site.conversation.add(answer.message).digest] = site.activity_id
            if site.reply is not None:
                self._last = None  # it came after its tool's result
        entry = self.note_input({"answer": site.activity_id, key: self._answer(answer, call)}, name, now)
        if isinstance(answer, ToolResult) and answer.early is not None:
            entry["early"] = _lean(answer.early.reply, exclude=OF_A_REPLY)
            self._early[name] = entry

    def _answer(self, answer: CallAnswer, call: HostCall) -> Entry:
        match answer:
            case ModelReplied():
                return _lean(answer, exclude=OF_A_REPLY)
            case ToolResult():
                assert isinstance(call, ToolInput)
                known = {"id": call.id, "tool": call.tool}
                found = _lean(answer, exclude={"early"})
                return {key: one for key, one in found.items() if one != known.get(key)}
            case CodeStepped():
                found = _lean(answer, exclude={"kind"})
                return {**found, "session": self._session(answer.session)}
        return _lean(answer, exclude={"kind"})

    def _listen(self, drive: Drive, name: str) -> None:
        """Note the decisions and commands that count."""
        decide, obey = drive.run.decide, drive.commands.put

        def decided(decision: Decision) -> Decided:
            if drive.run.counts(decision):  # one that is early comes again, once its request is open
                said = _lean(decision, exclude={"request", "digest", "signature"})
                self.note_input({"decide": decision.request, **said}, name, drive.run.host.now())
            return decide(decision)

        def commanded(command: Command) -> QueuedCommand:
            drive.commands.check(command)
            if not drive.run.command_gate.is_repeat(command):
                self.note_input(_lean(command, exclude={"signature"}), name, drive.run.host.now())
            return obey(command)

        drive.run.decide = decided  # type: ignore[method-assign]  # it has callers of many kinds
        drive.commands.put = commanded  # type: ignore[method-assign]  # signals and updates call it


class WatchedHost:
    """A host whose run is recorded."""

    def __init__(self, host: Host, recorder: Recorder, name: str) -> None:
        self.host, self.recorder, self.name = host, recorder, name
        self._cancelled = False

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.host, attribute)

    def cancelled(self) -> bool:
        """See `Host`."""
        if self.host.cancelled() and not self._cancelled:
            self._cancelled = True
            self.recorder.note_input({"cancel": True}, self.name, self.host.now())
        return self.host.cancelled()

    def publish(self, records: Sequence[Record]) -> None:
        """See `Host`."""
        self.recorder.note_records(records, self.name)
        self.host.publish(records)

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        """See `Host`."""
        self.recorder.note_call(call, site, self.name)
        try:
            answer = await self.host.perform(call, site)
        except asyncio.CancelledError:
            self._note_stopped(site.activity_id)
            raise
        self.recorder.note_answer(call, site, answer, self.name, self.host.now())
        return answer

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        """See `Host`."""
        place = self.recorder.note_child(child, self.name)
        try:
            result = await self.host.run_child(child)
        except asyncio.CancelledError:
            self._note_stopped(place)
            raise
        failed: Entry = {"failed": _lean(result)} if isinstance(result, EffectFailed) else {"ended": True}
        self.recorder.note_input({"answer": place, **failed}, self.name, self.host.now())
        return result

    async def wait(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        """See `Host`."""
        try:
            await self.host.wait(condition, seconds, why)
        except asyncio.CancelledError:
            self.cancelled()  # it comes before what it stops
            raise

    def _note_stopped(self, place: str) -> None:
        self.recorder.note_input({"answer": place, "stopped": True}, self.name, self.host.now())


def final_of(drive: Drive) -> JsonObject:
    """How a run ended, or where it is."""
    status = drive.status()
    spent = {
        key: round(amount, 9)
        for key, amount in status.counters.items()
        if key in (*COUNTERS, "input_tokens", "output_tokens") and key != "seconds"
    }
    if drive.run.suspension.exit is None:
        asks: Any = [request.id for request in drive.run.requests.open_requests]
        return {"state": status.state, "waits_for": asks, "paused": status.paused, "spent": spent}
    fields = {"state", "exit_reason", "ok", "answer", "error", "outcome", "output", "unheard"}
    return {**drive.result().model_dump(mode="json", include=fields), "spent": spent}


def sealed(entry: Entry) -> Entry:
    """The entry with a digest in place of its content."""
    if "content" not in entry:
        return entry
    text = json.dumps(entry["content"], sort_keys=True)
    return {**entry, "content": hashlib.sha256(text.encode()).hexdigest()[:12]}


def _request_entry(request: Request) -> Entry:
    """What people are asked, and who may decide."""
    fields = {"kind", "tool", "arguments", "options", "group", "approvers", "quorum", "at_deadline"}
    asked = _lean(request, include=fields)
    if request.kind not in ("approval", "interrupt"):  # the text of these follows from the rest
        asked["text"] = request.text
    if request.deadline is not None:
        asked["seconds"] = round(request.deadline - request.created)
    return {"request": request.id, **asked}


def _lean(model: BaseModel, **which: Any) -> Entry:
    """As JSON, without what is at its default."""
    found: Entry = model.model_dump(mode="json", exclude_defaults=True, **which)
    return found
