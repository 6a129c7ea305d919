"""Plays a cassette: repeats the run in this process with the recorded answers, decisions and commands.

The engine is that of `Local`. It asks no server and no model, and runs no tool. Each question, call, request
and record of the log is compared with the recording as it happens, and so is the end. The clock is the
recording's, so it waits for nothing.

A counterexample (`violates`) is the other way round: it fails as long as the run breaks that property, and
passes once it does not, whatever way the run takes instead (`counterexample.py`).
"""

from __future__ import annotations

import asyncio
import difflib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from activities.contracts import EarlyReply, EffectFailed, ModelReplied, ToolInput, ToolResult, ToolSpec
from activities.text import problems_text
from client.agents.purity import ImpureMachine, observer_for
from client.cassette.counterexample import judged
from client.cassette.file import Cassette, yaml_text
from client.cassette.recording import ANSWERS, INPUTS, Entry, Recorder, WatchedHost, final_of, sealed
from workflows.api import AgentSpec, AgentTask, RunResult
from workflows.engine.loop import Drive
from workflows.gate.decisions import Refused
from workflows.hosts import CallAnswer, CallSite, ChildRun, HostCall
from workflows.hosts.memory import LocalRuns
from workflows.kernel.errors import bug_text
from workflows.kernel.machine import Machine
from workflows.people import Command, Decision, Group, People
from workflows.task import InvalidTask

__all__ = ["CassetteVerdict", "play"]

QUIET_TURNS = 40
"""After so many turns of the event loop without news, a run counts as waiting for something from outside."""
FREE_FIELDS = {
    "ask_model": None,
    "run_code": {"names", "constants", "material"},
    "run_machine": {"options", "tools"},
}
"""Kind of call -> its fields that another agent may word differently; None: all of them."""


@dataclass(frozen=True)
class CassetteVerdict:
    """The verdict on a cassette that was played."""

    difference: str = ""
    """The first difference, for a person; empty: the run took the recorded course."""
    changes: tuple[str, ...] = ()
    """Questions that another agent words differently."""
    calls: int = 0
    """How many recorded calls have ended; of a counterexample, how many of its answers the run took."""
    decisions: int = 0
    """People's decisions and commands."""
    violates: str = ""
    """The property of a counterexample."""

    @property
    def ok(self) -> bool:
        """There is no difference, except of questions where another agent was given."""
        return not self.difference


async def play(
    cassette: Cassette,
    agent: AgentSpec | None = None,
    *,
    tools: tuple[ToolSpec, ...] = (),
    machine: Machine | None = None,
) -> CassetteVerdict:
    """Play it.

    Args:
        agent: to be used in place of the recorded one. What it asks its models may differ then; calls with
            their arguments, requests to people, transitions and the end may not.
        tools: specs of that agent's tools, in place of the recorded ones with the same names.
        machine: in place of the one that is registered under the recorded name.
    """
    task = cassette.task
    if agent is not None:
        task = task.model_copy(update={name: getattr(agent, name) for name in AgentSpec.model_fields})
    task = task.model_copy(update={"people": _unsigned(task.people)})
    specs = {spec.name: spec for spec in (*cassette.tools, *tools)}
    if cassette.violates:
        judgement = await judged(cassette, task, specs, machine)
        return CassetteVerdict(judgement.problem, violates=cassette.violates, calls=judgement.given)
    player = _Player(cassette, lenient=agent is not None)
    difference = await player.play(task, specs, machine)
    people = cassette.count("decide", "command")
    return CassetteVerdict(difference, tuple(player.changes), cassette.count("answer"), people)


def _unsigned(people: People) -> People:
    """Who may decide, without keys: signatures were checked when the decisions came."""
    groups = {
        name: Group(members=group.approvers, quorum=group.quorum) for name, group in people.groups.items()
    }
    return people.model_copy(update={"groups": groups})


@dataclass
class _Call:
    """A call that is under way in the repeated run."""

    request: Any
    end: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    cancelled: bool = False
    begin: asyncio.Event = field(default_factory=asyncio.Event)
    """The inner run begins."""
    inner: asyncio.Task[Any] | None = None
    """The inner run."""


class _Player(Recorder):
    """Plays one cassette."""

    def __init__(self, cassette: Cassette, *, lenient: bool) -> None:
        super().__init__()
        self.cassette, self.lenient = cassette, lenient
        self.clock = cassette.began
        self.changes: list[str] = []
        self.difference = ""
        self.calls: dict[tuple[str, str], _Call] = {}
        self.timers: list[float] = []
        self.news = 0
        """Rises whenever the run does something."""
        self.closing = False
        self._unseen = ""
        """The first record that holds something else. A question that follows from it shows more."""
        self._expected: dict[str, deque[Entry]] = {}
        self._inputs: list[Entry] = []
        for entry in cassette.course:
            if any(key in entry for key in INPUTS):
                self._inputs.append(entry)
            else:
                self._expected.setdefault(_inner(entry), deque()).append(entry)
        self._root: asyncio.Task[Any] | None = None

    def host_for(self, drive: Drive, name: str) -> WatchedHost:
        return _PlayedHost(drive, self, name)

    # -- what the run does, compared with the recording --------------------

    def add(self, entry: Entry) -> None:
        name = _inner(entry)
        if any(key in entry for key in INPUTS):
            return
        self.news += 1
        if self.difference or self.closing:
            return
        left = self._expected.get(name)
        recorded, entry = left.popleft() if left else None, sealed(entry)
        if recorded == entry:
            return
        if recorded is not None and "log" in entry and recorded.get("log") == entry["log"]:
            if not self._unseen:
                step = self.drives[name].run.suspension.snapshot.step
                self._unseen = (
                    f"step {step}, {_name(entry)}: the record holds something else (its digest differs), "
                    "although questions, calls and transitions are the same"
                )
            return
        if recorded is not None and self.lenient and _is_the_same_course(recorded, entry):
            self.changes.append(_diff(_name(entry), recorded, entry))
            return
        self._differs(_name(recorded or entry), recorded, entry, name)

    def _differs(self, what: str, recorded: Entry | None, today: Entry | None, name: str) -> None:
        step = self.drives[name].run.suspension.snapshot.step
        self.difference = self.difference or _diff(f"step {step}, {what}", recorded, today)

    # -- playing --------------------

    async def play(self, task: AgentTask, specs: dict[str, ToolSpec], machine: Machine | None) -> str:
        """The first difference, or an empty text."""
        given = {name: specs[name] for name in task.tools if name in specs}
        if missing := [name for name in task.tools if name not in given]:
            return (
                f"the agent has tools that neither the cassette nor this worker knows: {', '.join(missing)}"
            )
        cassette = self.cassette
        runs = LocalRuns(
            given, decide=lambda request: None, now=lambda: self.clock, machine=machine, watch=self.watch,
            origins=cassette.runs,
            observe=lambda task, program: observer_for(
                task, program, given, machine if program.machine is machine else None
            ),
        )  # fmt: skip
        self._root = asyncio.ensure_future(
            runs.run(task, _nothing_is_performed, trace_id=cassette.trace_id, workflow_id=cassette.run)
        )
        try:
            for entry in self._inputs:
                await self._pass_time(entry)
                if not self.difference and (problem := await self._give(entry)):
                    self._cannot_go_on(entry, problem)
                if self.difference:
                    return self.difference
            await self._pass_time(None)
            return self.difference or self._end()
        except InvalidTask as error:
            return (
                f"today's code refuses the task: {error}. Machines, rules and tools of your own come from "
                "RATCHET_MODULES"
            )
        except ImpureMachine as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  # a bug in a machine of today is a difference
            return f"today's code fails: {bug_text(error)}"
        finally:
            await self._close()

    async def settle(self) -> None:
        """Until the run waits for something from outside."""
        quiet, news = 0, self.news
        while quiet < QUIET_TURNS and not self.difference:
            await asyncio.sleep(0)
            quiet, news = (quiet + 1, news) if news == self.news else (0, self.news)
        if self._root is not None and self._root.done() and not self._root.cancelled():
            self._root.result()  # raises what today's code did

    async def _pass_time(self, entry: Entry | None) -> None:
        """Let the time up to this entry pass, with the deadlines in it; None: all the time that is left."""
        if entry is not None and entry.get("together"):
            return
        await self.settle()
        at = self._time_of(entry) if entry is not None else None
        while not self.difference and (due := min(self.timers, default=None)) is not None:
            if (at is None and not self.cassette.is_over) or (at is not None and due > at):
                break
            if entry is not None and self._came_in_time(entry, due):
                break
            self.clock = max(due, self.clock)
            self.news += 1
            await self.settle()
        self.clock = max(self.clock, at or 0)

    def _time_of(self, entry: Entry) -> float:
        at: Any = entry["at"]
        before: Any = entry.get("before", 0)
        return round(self.cassette.began + float(at), 6) - float(before)

    def _came_in_time(self, entry: Entry, due: float) -> bool:
        """A decision that was there before anybody looked at the deadline."""
        drive = self.drives.get(_inner(entry))
        if drive is None or "decide" not in entry:
            return False
        asked = [one for one in drive.run.requests.open_requests if one.id == entry["decide"]]
        return any(due in (one.deadline, one.warn_at) for one in asked)

    async def _give(self, entry: Entry) -> str:
        """Give the run what came from outside; returns why that is impossible, or nothing."""
        problem = self._given(entry)
        if problem and entry.get("together"):  # what it is about comes of the entry before
            await self.settle()
            problem = self._given(entry)
        self.news += 1
        return "" if self.difference else problem

    def _given(self, entry: Entry) -> str:
        name = _inner(entry)
        if "begin" in entry:
            return self._begun(name)
        if name not in self.drives:
            return f"there is no inner run {name}"
        if "answer" in entry:
            return self._answered(entry, name)
        return self._cancelled(name) if "cancel" in entry else self._give_message(entry, self.drives[name])

    def _give_message(self, entry: Entry, drive: Drive) -> str:
        """A person decides or commands."""
        said: dict[str, Any] = {key: one for key, one in entry.items() if key not in _ABOUT}
        try:
            if "command" in entry:
                drive.commands.put(Command.model_validate(said))
                return ""
            request = next(
                (one for one in drive.run.requests.open_requests if one.id == entry["decide"]), None
            )
            if request is None:
                return f"request {entry['decide']} is not open"
            del said["decide"]
            drive.run.decide(
                Decision.model_validate({**said, "request": request.id, "digest": request.digest})
            )
        except Refused as refused:
            return f"the run refuses it: {refused}"
        except ValidationError as error:
            return f"it cannot be read: {problems_text(error)}"
        return ""

    def _inner_run(self, name: str) -> _Call | None:
        return next((one for (_, place), one in self.calls.items() if place == name), None)

    def _begun(self, name: str) -> str:
        if not name:
            return ""
        if (call := self._inner_run(name)) is None:
            return f"the inner run {name} was not asked for"
        call.begin.set()
        return ""

    def _cancelled(self, name: str) -> str:
        call = self._inner_run(name)
        task = call.inner if call is not None else self._root
        if task is None or task.done():
            return "the run is over"
        if not task.cancelling():  # an inner run may be cancelled because the outer one is
            task.cancel()
        return ""

    def _answered(self, entry: Entry, name: str) -> str:
        place = str(entry["answer"])
        call = self.calls.get((name, place))
        if call is None:
            return f"the call {place} is not under way"
        if "stopped" in entry:
            if not call.cancelled:
                return f"the call {place} was stopped then, and is not stopped now"
            call.end.set_result(None)
        elif "ended" in entry:
            if call.inner is None or not call.inner.done():
                return f"the inner run {place} had ended then, and goes on now"
            call.end.set_result(call.inner.result())
        else:
            try:
                answer = _answer(entry, call.request)
            except ValidationError as error:
                return f"the answer cannot be read: {problems_text(error)}"
            call.end.set_result(answer)
        del self.calls[name, place]
        return ""

    # -- where it differs --------------------

    def _cannot_go_on(self, entry: Entry, problem: str) -> None:
        """The run did not reach the point at which the recording goes on."""
        name = _inner(entry)
        left = self._expected.get(name)
        recorded = left[0] if left else None
        if recorded is not None:
            self._differs(_name(recorded), recorded, None, name if name in self.drives else "")
        where = self._where(name)
        self.difference = self.difference or f"{_name(entry)}: {problem}; {where}"
        self.difference += f"\n{where}" if recorded is not None else ""

    def _where(self, name: str) -> str:
        drive = self.drives.get(name) or self.drives[""]
        status = drive.status()
        if status.exit_reason:
            return f"today the run has ended by then: {status.exit_reason}"
        asks = ", ".join(request.id for request in drive.run.requests.open_requests)
        waits = f", and waits for {asks}" if asks else ""
        return f"today the run is in state {status.state}, at {status.doing or 'nothing'}{waits}"

    def _end(self) -> str:
        """Whether everything that was recorded has happened, with the same end."""
        for name, left in self._expected.items():
            if left:
                self._differs(_name(left[0]), left[0], None, name if name in self.drives else "")
                return f"{self.difference}\n{self._where(name)}"
        found = final_of(self.drives[""])
        if found != self.cassette.final:
            return _diff("the end", self.cassette.final, found)
        return "" if self.lenient else self._unseen

    async def _close(self) -> None:
        self.closing = True
        for call in self.calls.values():
            call.end.cancel()
        while self._root is not None and not self._root.done():
            self._root.cancel()
            await asyncio.sleep(0)


_ABOUT = {"at", "together", "inner"}


class _PlayedHost(WatchedHost):
    """The host of a run that is played: all that it gives comes from the cassette."""

    def __init__(self, drive: Drive, player: _Player, name: str) -> None:
        super().__init__(drive.run.host, player, name)
        self.player = player

    async def wait(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        """See `Host`; the time is the recording's."""
        end = None if seconds is None else self.player.clock + seconds
        if end is not None:
            self.player.timers.append(end)
        try:
            while not condition() and (end is None or self.player.clock < end):  # noqa: ASYNC110  # as the engine polls
                await asyncio.sleep(0)
        finally:
            self.player.news += 1
            if end is not None:
                self.player.timers.remove(end)

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        """See `Host`."""
        self.player.note_call(call, site, self.name)
        answer: CallAnswer = await self._end(site.activity_id, _Call(call))
        self.player.note_answer(call, site, answer, self.name, self.player.clock)
        return answer

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        """See `Host`."""
        place = self.player.note_child(child, self.name)
        call = _Call(child)

        async def begun() -> RunResult | EffectFailed:
            await call.begin.wait()
            return await self.host.run_child(child)

        call.inner = inner = asyncio.ensure_future(begun())
        try:
            result: RunResult | EffectFailed = await self._end(place, call)
        finally:
            while not inner.done():
                inner.cancel()
                await asyncio.sleep(0)
        return result

    async def tell_child(self, workflow_id: str, command: Command) -> bool:
        """See `Host`; the recording has what came of it in the inner run."""
        drive = self.player.drives.get(self.player.name_of(workflow_id))
        return drive is not None and drive.run.suspension.exit is None

    async def _end(self, place: str, call: _Call) -> Any:
        """The recorded answer of the call, also while the call is being stopped."""
        self.player.calls[self.name, place] = call
        while not call.end.done():
            try:
                await asyncio.shield(call.end)
            except asyncio.CancelledError:
                if self.player.closing:
                    raise
                call.cancelled = True
                self.player.news += 1
                if call.inner is not None:
                    call.inner.cancel()
        self.player.news += 1
        if call.end.cancelled() or (found := call.end.result()) is None:
            raise asyncio.CancelledError
        return found


async def _nothing_is_performed(call: HostCall, site: CallSite) -> CallAnswer:
    raise AssertionError(f"{site.activity_id} was performed")


def _answer(entry: Entry, call: Any) -> Any:
    """The answer that an entry holds. Raises ValidationError."""
    key = next(key for key in ANSWERS if key in entry)
    values: Any = entry[key]
    if key == "result" and isinstance(call, ToolInput):
        values = {"id": call.id, "tool": call.tool, **values}
    answer = ANSWERS[key].model_validate(values)
    if "lost" in entry and isinstance(answer, ToolResult):
        reply = ModelReplied.model_validate(entry["lost"])
        answer = answer.model_copy(update={"early": EarlyReply(question="", reply=reply)})
    return answer


def _is_the_same_course(recorded: Entry, today: Entry) -> bool:
    """Only what is asked differs, not what is done."""
    if recorded.get("call") != today.get("call") or recorded.get("kind") != today.get("kind"):
        return False
    kind = str(today.get("kind"))
    if "request" in today:
        return {**recorded, "text": ""} == {**today, "text": ""}
    if kind not in FREE_FIELDS:
        return False
    free = FREE_FIELDS[kind]
    return free is None or _without(recorded, free) == _without(today, free)


def _without(entry: Entry, keys: set[str]) -> Entry:
    return {key: one for key, one in entry.items() if key not in keys}


def _inner(entry: Entry) -> str:
    return str(entry.get("inner", ""))


def _name(entry: Entry) -> str:
    """The entry in a few words."""
    key = next(iter(entry))
    kind = f" ({entry['kind']})" if "kind" in entry else ""
    inner = f" of inner run {entry['inner']}" if "inner" in entry else ""
    return f"{key} {entry[key]}{kind}{inner}"


def _diff(what: str, recorded: Entry | None, today: Entry | None) -> str:
    """The difference, as `diff -u` shows it."""
    return f"{what}:\n" + "\n".join(_lines(recorded, today))


def _lines(recorded: Entry | None, today: Entry | None) -> Iterator[str]:
    was, now = ([] if one is None else yaml_text(one).splitlines() for one in (recorded, today))
    before = "recorded" if recorded is not None else "recorded: nothing"
    after = "today" if today is not None else "today: nothing"
    for line in difflib.unified_diff(was, now, before, after, lineterm=""):
        yield line.rstrip()
