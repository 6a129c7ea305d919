"""A counterexample: played by the engine before anybody is shown it, written as a cassette, and judged again.

The kernel's way to a violation is a list of answers. Here the same answers come from calls, tools' results
and people, with the engine's own checks of arguments in between: a way that the engine does not let happen is
no counterexample.

`judged` plays such a cassette with today's machine. It fails while the property is broken, and also where
nobody can tell: silence is no proof. Nothing is compared with the recorded course, so a question that is put
in other words gets its answer all the same. What the run asks beyond the way gets every answer of the domain,
one after the other, for up to `MAX_EXTRA_QUESTIONS` such questions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from activities.contracts import (
    Answers,
    AskPerson,
    CallTools,
    Compensated,
    CompensateInput,
    Effect,
    EffectFailed,
    PersonDecided,
    Reconciled,
    ReconcileInput,
    RunMachine,
    Together,
    ToolInput,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from client.agents.purity import ImpureMachine, observer_for
from client.cassette.file import Cassette, Counterexample, GivenAnswer, cassette_of
from client.cassette.recording import Recorder
from client.runs.words import counted
from workflows import registry
from workflows.api import AgentTask
from workflows.engine.loop import Drive
from workflows.gate.decisions import Refused
from workflows.hosts import CallAnswer, CallSite, HostCall
from workflows.hosts.memory import Choice, LocalRuns
from workflows.kernel.errors import NotLoaded, bug_text
from workflows.kernel.machine import Extensions, Machine
from workflows.kernel.properties import Scenario
from workflows.kernel.snapshot import Observer, Program
from workflows.people import Decision, Request
from workflows.task import InvalidTask, machine_of
from workflows.verify.runs.domain import Domain, open_tool
from workflows.verify.runs.explore import Violation
from workflows.verify.runs.moments import BUILT_IN, ENDS, Exchange
from workflows.verify.runs.watch import Broken, Watch

__all__ = ["NotReproduced", "judged", "reproduced", "task_of"]

BEGAN_AT = 1_767_225_600.0
"""When the run of a counterexample begins: 2026-01-01, in seconds since 1970."""
DEADLINE_SECONDS = 60
"""Seconds after which a request that nobody decides expires."""
MIN_ROUNDS = 3
"""So often at least the engine has gone round where a run is said to do so for ever."""
PLAY_SECONDS = 60
"""The longest that one run is played."""
MAX_EXTRA_QUESTIONS = 2
"""Questions beyond the way that are answered."""
MAX_PLAYS = 1000
"""Runs that are played to judge one file."""
NEVER_FAILS: dict[type[Effect[Any]], str] = {
    AskPerson: "a person's request that fails; in a run it is decided or expires",
}
"""Effects that the kernel lets fail and no host does."""
AT_THE_END = {ENDS, "declared exits"}
"""What is built in and is only broken once nothing else can be."""
BY_PEOPLE = {"rejected", "expired"}
"""Errors of a tool's result that come from people."""


class NotReproduced(Exception):
    """A run that was given these answers did something else; the text says what."""


class _Stopped(Exception):
    """The run asks for something that no answer is left for."""


# -- before it is shown --------------------


def task_of(machine: Machine, scenario: Scenario, violation: Violation, tools: Sequence[str]) -> AgentTask:
    """The run that the scenario describes. People are asked where the way has their decisions. One that goes
    round has a limit of transitions that only very many rounds reach."""
    exchanges = violation.exchanges
    asked = sorted({
        result.tool for one in exchanges for result in _results(one.answer) if result.error in BY_PEOPLE
    })  # fmt: skip
    waits = {"deadline_seconds": DEADLINE_SECONDS, "at_deadline": "reject"}
    rules = [{"tools": asked, "ask": "always"}] if asked else []
    most = {"max_transitions": 100 + 10 * len(exchanges)} if violation.rounds else {}
    return AgentTask.model_validate({
        "name": machine.name, "machine": machine.name, "machine_version": machine.version,
        "options": scenario.options, "goal": scenario.goal, "tools": list(tools),
        "models": {role: {"provider": "scripted", "name": "counterexample"} for role in machine.roles},
        "approvals": {"rules": rules, "effects": {"unsafe": "never"}},
        "people": {"requests": waits},
        "stuck": None,
        "limits": {"model_calls": None, **most},
    })  # fmt: skip


async def reproduced(
    machine: Machine,
    scenario: Scenario,
    violation: Violation,
    tools: Sequence[ToolSpec],
    extensions: Extensions | None = None,
) -> Cassette:
    """The violation as a run of the engine, in a cassette that names it. Raises NotReproduced."""
    specs = {spec.name: spec for spec in tools}
    way = Counterexample(
        scenario=scenario.name, answers=tuple(map(_given, violation.exchanges)), rounds=violation.rounds
    )
    task = task_of(machine, scenario, violation, [*specs])
    played = await _Play(way).play(task, LocalRuns(specs, machine=machine, extensions=extensions))
    if problem := _unlike(violation, played):
        raise NotReproduced(problem)
    if not played.drives:
        raise NotReproduced("the run does not begin, so that there is nothing to record")
    found = {"violates": violation.name, "counterexample": way}
    return cassette_of(played.recorder).model_copy(update=found)


def _given(exchange: Exchange) -> GivenAnswer:
    effect = exchange.effect
    return GivenAnswer(
        state=exchange.state,
        asks=effect.kind,
        label=effect.label,
        tools=_called(effect),
        answer=exchange.answer,
    )


def _unlike(violation: Violation, played: _Play) -> str:
    """Why what was played is not this violation; empty: it is."""
    size, problem = len(violation.exchanges), f" ({played.problem})" if played.problem else ""
    alike = [one for one in played.broken if one.name == violation.name]
    fails = [exchange for exchange in violation.exchanges if isinstance(exchange.answer, EffectFailed)]
    never = next((NEVER_FAILS[type(one.effect)] for one in fails if type(one.effect) in NEVER_FAILS), "")
    if not alike and never:
        return f"one answer is {never}"
    if not alike and not violation.exchanges:
        return "it broke before the first answer, so that there is nothing to play"
    if not alike:
        return f"it asked for something else after {played.number} of {size} answers{problem}"
    if violation.rounds:
        gone = (played.number - size) // violation.rounds
        return "" if gone >= MIN_ROUNDS else f"it went round {max(gone, 0)} times only{problem}"
    if not any(_is_it(one, violation) for one in alike):
        return f"it broke in another way: {alike[0].detail}"
    if not any(_is_it(one, violation) and one.answers == size for one in alike):
        return f"it broke after {alike[0].answers} of {size} answers"
    return ""


def _is_it(one: Broken, violation: Violation) -> bool:
    is_there = bool(one.author_line) and one.author_line == violation.author_line
    return not violation.built_in or is_there or one.detail == violation.detail


# -- when it is a test --------------------


@dataclass(frozen=True)
class Judgement:
    """What is known of a counterexample today."""

    problem: str = ""
    """How the property is broken, or why nobody can tell; empty: it holds."""
    given: int = 0
    """Answers that the run took."""


async def judged(
    cassette: Cassette, task: AgentTask, specs: Mapping[str, ToolSpec], machine: Machine | None = None
) -> Judgement:
    """Whether today's machine still breaks what the cassette `violates`."""
    way = cassette.counterexample
    if way is None:
        return _unknown(
            "the file has no `counterexample`; `ratchet verify machine FILE --out FOLDER` writes it"
        )
    try:
        version = None if machine else registry.machine(task.machine).version
        task = task.model_copy(update={"machine_version": version})
        today, _ = machine_of(task, machine)
    except NotLoaded as error:
        where = f"; it was declared in {way.module}, seen from this file" if way.module else ""
        return _unknown(f"{error}{where}. RATCHET_MODULES=FILE says where it is")
    except InvalidTask as error:
        return _unknown(f"today's code refuses the task: {error}")
    if problem := _unknown_property(today, cassette.violates):
        return _unknown(problem)
    named = {name for one in today.states for name in one.tools or ()} - {*task.tools}
    specs = {**specs, **{name: specs.get(name) or open_tool(name) for name in named}}
    task = task.model_copy(update={"tools": (*task.tools, *sorted(named))})
    scenario = next((one for one in today.scenarios if one.name == way.scenario), Scenario())
    judge = _Judge(cassette.violates, way, task, specs, today, scenario, observe=lambda task, program: (
        observer_for(task, program, specs, machine if program.machine is machine else None)
    ))  # fmt: skip
    return await judge.judge()


def _unknown(why: str, given: int = 0) -> Judgement:
    return Judgement(f"not judged: {why}", given)


def _unknown_property(machine: Machine, name: str) -> str:
    own = [one.name for one in machine.properties]
    if name in {*own, *BUILT_IN}:
        return ""
    return f"the machine has no property {name!r}; it has: {', '.join(map(repr, sorted(own))) or 'none'}"


@dataclass
class _Judge:
    """Plays a way, and where the run asks more than the way answers, every answer to that."""

    violates: str
    way: Counterexample
    task: AgentTask
    specs: Mapping[str, ToolSpec]
    machine: Machine
    scenario: Scenario
    observe: Callable[[AgentTask, Program], Observer | None]
    """Runs the visits of the first run a second time."""

    async def judge(self) -> Judgement:
        domain = Domain(self.scenario, self.specs)
        waiting: deque[dict[int, Any]] = deque([{}])
        """What is answered beyond the way: number of the question in the run -> answer."""
        given, plays = 0, 0
        while waiting:
            plays += 1
            if plays > MAX_PLAYS:
                return _unknown(
                    f"{MAX_PLAYS} ways of answering what the run asks beyond the file are not all"
                )
            more = waiting.popleft()
            played = await self._played(more)
            if worst := self._problem(played):
                return worst
            given = max(given, played.number)
            if played.beyond is not None and len(more) < MAX_EXTRA_QUESTIONS:
                number, effect = played.beyond
                waiting.extend({**more, number: one.answer} for one in domain.answers(effect))
        if not given and self.way.answers and played.beyond is not None:
            return _unknown("none of the answers fits what the run asks today; verify the machine again")
        return Judgement("", given)

    def _problem(self, played: _Play) -> Judgement | None:
        for one in played.broken:
            if one.name == self.violates:
                detail = f" ({one.detail})" if one.detail and one.name != ENDS else ""
                answers = counted(one.answers, "answer")
                return Judgement(f"violates {one.name!r}, after {answers}{detail}", played.number)
        if played.problem:
            return _unknown(played.problem, played.number)
        rule = next((one for one in played.broken if one.name in BUILT_IN.keys() - AT_THE_END), None)
        return _unknown(f"the run breaks {rule.name} first: {rule.detail}", played.number) if rule else None

    async def _played(self, more: Mapping[int, Any]) -> _Play:
        runs = LocalRuns(
            self.specs, machine=self.machine, extensions=_extensions(self.scenario),
            observe=None if more else self.observe,
        )  # fmt: skip
        return await _Play(self.way, more).play(self.task, runs)


def _extensions(scenario: Scenario) -> Extensions:
    """What is loaded, with what the scenario brings."""
    loaded, own = registry.extensions(), scenario.extensions or Extensions()
    return Extensions(
        rules={**loaded.rules, **own.rules},
        policies={**loaded.policies, **own.policies},
        hooks={**loaded.hooks, **own.hooks},
    )


# -- one run of the engine --------------------


@dataclass
class _Play:
    """One run of the engine, which is given the answers of a way and some beyond it."""

    way: Counterexample
    more: Mapping[int, Any] = field(default_factory=dict)
    """Number of a question in the run, from 0 -> the answer in place of the way's next."""
    number: int = 0
    """Answers of the way that were given; where it goes round, more than it has."""
    asked: int = 0
    """Questions of the machine that were answered."""
    beyond: tuple[int, Effect[Any]] | None = None
    """The first question, with its number, that the way may have no answer for."""
    problem: str = ""
    """What the run raised."""
    watch: Watch = field(default_factory=lambda: Watch(()))
    recorder: Recorder = field(default_factory=Recorder)
    drives: list[Drive] = field(default_factory=list)
    _answer: Any = None
    """To the question that is open."""

    @property
    def broken(self) -> Sequence[Broken]:
        return self.watch.broken

    async def play(self, task: AgentTask, runs: LocalRuns) -> _Play:
        """Play until the run ends, or asks what no answer is left for."""
        times = count()
        runs.decide, runs.watch, runs.now = self._decide, self._begun, lambda: BEGAN_AT + next(times)
        try:
            await asyncio.wait_for(runs.run(task, self._perform, trace_id="counterexample"), PLAY_SECONDS)
        except _Stopped:
            pass
        except TimeoutError:
            self.problem = f"the run has not ended after {PLAY_SECONDS} s"
        except InvalidTask as error:
            self.problem = f"today's code refuses the task: {error}"
        except ImpureMachine as error:
            self.problem = str(error)
        except Refused as refused:
            self.problem = f"the run refuses the decision: {refused}"
        except Exception as error:  # noqa: BLE001  # an author's exception may be what is looked for
            self.problem = f"today's code fails: {bug_text(error)}"
            if not self.drives:
                self.watch.raised(error)
        return self

    def _begun(self, drive: Drive) -> None:
        self.drives.append(drive)
        if len(self.drives) == 1:
            self.watch = Watch(drive.run.suspension.program.machine.properties)
            self.watch.attach(drive, self._delivered)
        self.recorder.watch(drive)

    def _delivered(self, answer: Any) -> None:
        """The machine was given an answer; the engine gives some by itself, such as one to bad arguments."""
        if self._answer is None:
            self._choose()
        self._answer = None
        self.asked += 1
        if self.number == len(self.way.answers) + self.way.rounds:
            self.recorder.end()

    def _next(self) -> Any:
        """The answer to the open question. Raises _Stopped."""
        if self._answer is None:
            self._choose()
        if self._answer is None:
            raise _Stopped
        return self._answer

    def _choose(self) -> None:
        """Take the next answer of the way, if it fits the open question, or what is given in its place."""
        if self.asked in self.more:
            self._answer = self.more[self.asked]
            return
        suspension = self.drives[0].run.suspension
        following, effect = self._following, suspension.effect
        if following is None or effect is None:
            return
        fit = _fit(following, suspension.snapshot.state, effect)
        is_news = fit != "exact" and self.number < len(self.way.answers)
        if is_news and self.beyond is None and self.asked > max(self.more, default=-1):
            self.beyond = (self.asked, effect)
        if fit:
            self._answer = following.answer
            self.number += 1

    @property
    def _following(self) -> GivenAnswer | None:
        """The next answer of the way, round and round if it is one."""
        answers, rounds = self.way.answers, self.way.rounds
        over = self.number - len(answers)
        if over < 0:
            return answers[self.number]
        return answers[len(answers) - rounds + over % rounds] if rounds else None

    def _perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        """The answer to one call of the open question."""
        if len(self.drives) > 1:
            self.problem = "an inner run asks something, and the answers only say how it ends"
            raise _Stopped
        answer = self._next()
        if isinstance(call, ReconcileInput):
            return Reconciled(outcome="unknown", text="nobody knows")
        if isinstance(call, CompensateInput):
            return Compensated(ok=False, text="nothing is undone")
        answer = answer.answers[0] if isinstance(answer, Answers) else answer
        if not isinstance(call, ToolInput) or isinstance(answer, EffectFailed):
            return answer  # type: ignore[return-value]  # the effect's own answer
        results = _results(answer)
        named = [one for one in results if one.tool == call.tool]
        found = next((one for one in results if one.id == call.id), named[0] if named else None)
        if found is None:
            raise _Stopped
        return found.model_copy(update={"id": call.id})

    def _decide(self, request: Request) -> Choice:
        """What a person says: of a call by how it ended, else by what the machine was told. Whatever the way
        does not say waits for its deadline."""
        answer = self._next()
        answer = answer.answers[0] if isinstance(answer, Answers) else answer
        if request.kind == "approval":
            errors = {one.error for one in _results(answer) if one.tool == request.tool}
            return "reject" if "rejected" in errors else None if "expired" in errors else "approve"
        if isinstance(answer, PersonDecided) and request.kind in ("question", "escalation"):
            return _decision_for(answer, request)
        return None


def _decision_for(answer: PersonDecided, request: Request) -> Choice:
    """The decision that gives the machine this answer, text and all; None: nobody decides."""
    if answer.decision == "unavailable":
        return None
    return Decision(
        request=request.id, digest=request.digest, decision=answer.decision, by=answer.by, text=answer.text
    )


def _fit(given: GivenAnswer, state: str, effect: Effect[Any]) -> Literal["exact", "by kind", ""]:
    """Whether an answer can be one to what is asked now."""
    if given.asks != effect.kind or given.tools != _called(effect):
        return ""
    answer = given.answer
    if isinstance(answer, PersonDecided) and isinstance(effect, AskPerson):
        is_offered = answer.decision in (*effect.options, "unavailable")
    elif isinstance(answer, Answers) and isinstance(effect, Together):
        is_offered = len(answer.answers) == len(effect.effects)
    else:
        is_offered = True
    if not is_offered:
        return ""
    return "exact" if (given.state, given.label) == (state, effect.label) else "by kind"


def _called(effect: Effect[Any]) -> tuple[str, ...]:
    """Tools of the calls that the effect asks for, in order; of an inner run the machine."""
    if isinstance(effect, RunMachine):
        return (effect.machine,)
    return tuple(call.tool for call in effect.calls) if isinstance(effect, CallTools) else ()


def _results(answer: Any) -> tuple[ToolResult, ...]:
    return answer.results if isinstance(answer, ToolsReturned) else ()
