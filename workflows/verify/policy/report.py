"""What an agent can do with nobody asked, as a report: by tool, by rule, by run. Pure; the solver is
imported when a report is made."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from activities.contracts import Label, RunMachine, Sink, ToolSpec
from workflows.api import AgentSpec, AgentTask
from workflows.gate.approvals import ApprovalPolicy
from workflows.kernel.machine import Machine
from workflows.machines.common.options import NamesMachine
from workflows.task import inner_task
from workflows.verify.policy.bounds import (
    Amount,
    CallsBound,
    Radius,
    calls_bound,
    is_callable,
    may_be_unbounded,
    radius,
)
from workflows.verify.policy.call_sets import LEVELS, CallSet, Level
from workflows.verify.policy.deciders import deciders_text, newly_decided, people_grown, sooner
from workflows.verify.policy.ranges import number_text

if TYPE_CHECKING:
    from workflows.verify.policy.questions import PolicyEntry, RunPolicy

__all__ = [
    "OUTSIDE", "WHEN", "AgentReport", "Comparison", "JudgedAgent", "SinkReport", "ToolReport",
    "alone_text", "bound_text", "compared", "excess", "newly_text", "radius_text", "reported",
    "tool_report", "unbounded",
]  # fmt: skip

OUTSIDE = ("unsafe", "keyed")
"""Effects whose calls cannot simply be repeated: how many there can be matters."""
UNKNOWN_TOOL = "this tool is not known here (the server of an MCP tool must answer)"
SAME_CALLS = ("machine", "machine_version", "options", "limits", "approvals", "people", "labels")
"""Fields of an agent that say what becomes of the calls of a tool, whatever tool it is."""
WHEN: Mapping[Level, str] = {
    "unasked": "nobody is asked",
    "expiry": "made if nobody answers in time",
    "once": "one approval lets all of them pass",
    "asked": "a person is asked about each",
    "refused": "not made, and nobody is asked",
}


NEWLY: Mapping[Level, str] = {
    "asked": "newly passes if people approve it",
    "unasked": "newly passes unasked",
    "expiry": "is newly made if nobody answers in time",
    "once": "newly passes once another one was approved",
}


@dataclass(frozen=True, slots=True)
class JudgedAgent:
    """An agent with what it names: its machine, and the tools of it that are known here."""

    agent: AgentSpec
    machine: Machine
    specs: Mapping[str, ToolSpec]
    """As the agent labels them."""

    @property
    def policy(self) -> RunPolicy:
        """What judges the calls of its runs. Raises ImportError without z3."""
        from workflows.verify.policy.questions import LABELS, RunPolicy

        return RunPolicy(
            ApprovalPolicy(self.agent.approvals, self.agent.people, self.specs),
            sometimes=frozenset(label for label in LABELS if self.sources(label)),
            always=frozenset(self.agent.labels.input),
        )

    def sources(self, label: Label) -> list[str]:
        """What brings the label into its runs. Of a tool that is not known here nobody knows what it brings,
        unless the agent says so."""
        labels = self.agent.labels
        found = ["the input"] * (label in labels.input) + ["people"] * (label in labels.people)
        for name in self.agent.tools:
            if name in self.specs:
                found += [name] * (label in self.specs[name].brings)
            else:
                unknown = ToolSpec(name=name, description="", parameters={}, brings=("untrusted", "private"))
                found += [name] * (label in labels.labelled(unknown).brings)
        return found

    @property
    def callable(self) -> list[ToolSpec]:
        """The tools that its machine can call, as the agent names them."""
        return [
            self.specs[name]
            for name in self.agent.tools
            if name in self.specs and is_callable(name, self.machine)
        ]

    @property
    def unknown_tools(self) -> list[str]:
        """Tools of it that are not known here, and that its machine may call."""
        missing = (name for name in self.agent.tools if name not in self.specs)
        return [name for name in missing if is_callable(name, self.machine)]

    @property
    def bound(self) -> CallsBound:
        """The most calls of one run."""
        return calls_bound(self.machine, self.agent)


@dataclass(frozen=True, slots=True)
class SinkReport:
    """What becomes of the calls of a tool that sends something once the run has read untrusted text."""

    tool: str
    sends: Sink
    passing: CallSet | None
    """Those that pass most easily; None: no call is known."""
    unknown: Sequence[str]
    """What is not proven: calls that might pass more easily."""

    @property
    def level(self) -> Level | None:
        """How the loosest of them is decided; None: no call is known."""
        return self.passing.level if self.passing else None

    @property
    def text(self) -> str:
        """`people are asked`, `passes unasked, such as pay(cents=3)`."""
        said = _AFTER[self.level] if self.level else "no call is made"
        if self.unknown:
            said = f"{said}, as far as is known; what may pass more easily is UNKNOWN"
        if self.passing is None or self.passing.example is None or self.level in ("asked", "refused"):
            return said
        bound = f" {self.passing.bound_text}" if self.passing.bound_text else ""
        call = self.passing.example
        shown = replace(call, labels=()) if call.labels == ("untrusted",) else call
        return f"{said}{bound}, such as {shown.title}"


_AFTER: Mapping[Level, str] = {
    "unasked": "passes unasked",
    "expiry": "is made if nobody answers in time",
    "once": "passes once another one was approved",
    "asked": "people are asked",
    "refused": "no call is made",
}


@dataclass(frozen=True)
class AgentReport:
    """What an agent can do."""

    judged: JudgedAgent
    sets: Mapping[str, Sequence[CallSet]]
    """Tool -> its calls, by what decides them."""
    radii: Sequence[Radius]
    """Of tools whose calls have an effect outside, by level: the loosest first."""
    sinks: Sequence[SinkReport]
    """Tools that send something, after untrusted text; empty where nothing brings any."""
    useless: Mapping[str, str]
    """Rule -> why it could be left out."""
    remarks: Sequence[str]
    """What else lets calls pass, or people decide."""
    violations: Sequence[str]
    """Where an inner run would have more than this one."""

    @property
    def unknown(self) -> list[str]:
        """What is not proven."""
        found = [f"{name}: {UNKNOWN_TOOL}, so the report leaves it out" for name in self.judged.unknown_tools]
        for each in self.sets.values():
            found += [f"{one.tool}, {one.entry}: {why}" for one in each for why in one.unknown]
        return found + [f"{one.tool} after untrusted, {why}" for one in self.sinks for why in one.unknown]


def reported(judged: JudgedAgent) -> AgentReport:
    """The report on an agent. Raises ImportError without z3."""
    from workflows.verify.policy.questions import call_sets, useless_rules

    policy, specs = judged.policy, judged.callable
    sets = {spec.name: call_sets(policy, spec) for spec in specs}
    radii = [
        found for spec in specs if spec.effect in OUTSIDE for found in _radii(sets[spec.name], judged.bound)
    ]
    return AgentReport(
        judged=judged,
        sets=sets,
        radii=sorted(radii, key=lambda one: -LEVELS.index(one.level)),
        sinks=[*_sinks(judged)],
        useless=useless_rules(policy, specs),
        remarks=[*_remarks(judged, sets)],
        violations=[*_violations(judged)],
    )


@dataclass(frozen=True, slots=True)
class ToolReport:
    """What calls of one tool can come to in one run with nobody asked."""

    radii: Sequence[Radius]
    """By level: the loosest first."""
    unknown: Sequence[str]
    """What is not proven."""


def tool_report(judged: JudgedAgent, spec: ToolSpec) -> ToolReport:
    """The report on one tool that the agent's machine can call. Raises ImportError without z3."""
    from workflows.verify.policy.questions import call_sets

    sets = call_sets(judged.policy, spec)
    radii = sorted(_radii(sets, judged.bound), key=lambda one: -LEVELS.index(one.level))
    return ToolReport(radii, [f"{one.entry}: {why}" for one in sets for why in one.unknown])


def unbounded(judged: JudgedAgent) -> Iterator[Radius]:
    """What calls of unsafe tools can come to without a bound and without a person. The solver is imported
    only where a rule may allow it. Raises ImportError without z3 then."""
    for spec in judged.callable:
        if spec.effect == "unsafe" and may_be_unbounded(judged.agent, spec, judged.bound):
            yield from (one for one in tool_report(judged, spec).radii if one.is_unbounded)


def _sinks(judged: JudgedAgent) -> Iterator[SinkReport]:
    from workflows.verify.policy.questions import after_label

    for spec in judged.callable if judged.sources("untrusted") else ():
        if spec.sends != "nowhere":
            yield SinkReport(spec.name, spec.sends, *after_label(judged.policy, spec, "untrusted"))


def _radii(sets: Sequence[CallSet], bound: CallsBound) -> Iterator[Radius]:
    for level in LEVELS[2:]:
        if (found := radius(sets, level, bound)) is not None:
            yield found


def _remarks(judged: JudgedAgent, sets: Mapping[str, Sequence[CallSet]]) -> Iterator[str]:
    people, agent = judged.agent.people, judged.agent
    for name in agent.tools:
        if name not in judged.specs:
            continue
        if not is_callable(name, judged.machine):
            yield f"{name}: no state of the machine {judged.machine.name} may call it"
    for name, group in people.groups.items():
        if not group.approvers:
            yield f"people.groups.{name}: nobody is in it, so anybody who can reach the run decides"
    if any(one.level == "asked" for each in sets.values() for one in each) and not people.unattended:
        yield "a person who approves a call can let others of the same tool pass for the rest of the run"


# -- inner runs --------------------


def _violations(judged: JudgedAgent) -> Iterator[str]:
    """Where an inner run that the options name would have more tools, money or approvers than this run."""
    task = AgentTask.model_validate(
        {**{n: getattr(judged.agent, n) for n in AgentSpec.model_fields}, "goal": "-"}
    )
    for where, inner in _inner_machines(judged.machine.read_options(judged.agent.options), "options"):
        tools = getattr(inner, "tools", None)
        given = task.tools if tools is None else tools
        limits: Any = getattr(inner, "limits", None)
        more = {"limits": limits} if limits is not None else {}
        try:
            effect = RunMachine(machine=str(inner.machine), goal="-", give=given, **more)  # type: ignore[attr-defined]  # each has the field
            child = inner_task(task, effect, task.limits.caps, 0.0)
        except ValueError as error:
            yield f"{where}: {error}"
            continue
        yield from (f"{where}: {problem}" for problem in excess(task, child))


def excess(task: AgentTask, child: AgentTask) -> Iterator[str]:
    """What a run inside another one has that the outer one has not."""
    if more := sorted(set(child.tools) - set(task.tools)):
        yield f"the inner run has the tools {', '.join(more)}"
    caps = child.limits.caps
    for name, cap in task.limits.caps.items():
        if caps.get(name, math.inf) > cap:
            yield f"the inner run's limit of {name} is {caps.get(name, 'none')}, the outer run's {cap:g}"
    if child.approvals != task.approvals:
        yield "the inner run has other approval rules"
    if (child.people.groups, child.people.requests, child.people.kinds) != (
        task.people.groups,
        task.people.requests,
        task.people.kinds,
    ):
        yield "other people decide on the inner run's requests"


def _inner_machines(value: Any, where: str) -> Iterator[tuple[str, NamesMachine]]:
    if isinstance(value, tuple | list):
        for number, one in enumerate(value):
            yield from _inner_machines(one, f"{where}.{number}")
    elif isinstance(value, BaseModel):
        if isinstance(value, NamesMachine) and isinstance(getattr(value, "machine", None), str):
            yield where, value
        for name in value.model_fields_set:
            yield from _inner_machines(getattr(value, name), f"{where}.{name}")


# -- two agents --------------------


@dataclass(frozen=True)
class Comparison:
    """What a change newly allows."""

    passes: Sequence[CallSet]
    """Calls that pass more easily than before."""
    grown: Sequence[str]
    """More calls, larger sums, higher limits, other people, one line each."""
    unknown: Sequence[str]
    """What is not proven."""

    @property
    def is_empty(self) -> bool:
        """Nothing is newly allowed, and that is proven."""
        return not (self.passes or self.grown or self.unknown)


def compared(new: JudgedAgent, old: JudgedAgent) -> Comparison:
    """What the new agent may do that the old one may not. Raises ImportError without z3."""
    from workflows.verify.policy.questions import call_sets, newly_allowed, other_requests
    from workflows.verify.policy.weaker_bounds import approvals_merged

    callable_before = {one.name: one for one in old.callable}
    known = ApprovalPolicy(old.agent.approvals, old.agent.people, callable_before)
    policy, before = new.policy, replace(old.policy, policy=known)
    passes, unknown, radii = list[CallSet](), list[str](), dict[tuple[str, str], str]()
    grown = [
        *_limits_grown(new.agent, old.agent),
        *people_grown(new.agent.people, old.agent.people),
        *_labels_lost(new, old),
    ]
    for spec in new.callable:
        passes += newly_allowed(policy, before, spec)
        if spec.name not in callable_before:
            continue
        if spec.effect in OUTSIDE or spec.sends != "nowhere":
            now, then = call_sets(policy, spec), call_sets(before, callable_before[spec.name])
            more = dict(_radius_grown(_radii(now, new.bound), [*_radii(then, old.bound)]))
            radii |= {(spec.name, of): text for of, text in more.items()}
            grown += more.values()
        found, open_ones = other_requests(
            policy, before, spec, lambda mine, theirs: _differences(new, mine, old, theirs)
        )
        grown += [f"{spec.name}: requests such as {call.title} are {text}" for text, call in found.items()]
        unknown += [f"{spec.name}, {why}" for why in open_ones.values()]
        merged, open_merged = approvals_merged(policy, before, spec)
        grown += [f"{spec.name}: {text}" for text in merged]
        unknown += [f"{spec.name}, {why}" for why in open_merged]
    most = f"newly {_up_to(new.bound.calls)} in one run"
    is_told = any(most in text for (_, of), text in radii.items() if not of)
    if new.bound.calls > old.bound.calls and not is_told:
        grown.append(f"calls of all tools {most}; before {_most(old.bound.calls)}")
    bounds, open_bounds = _bounds_grown(new, policy, before, old.bound.calls, radii)
    unknown += [*open_bounds, *(f"{one.tool}, {one.entry}: {why}" for one in passes for why in one.unknown)]
    unknown += _unknown_tools(new, old)
    return Comparison(passes, list(dict.fromkeys([*grown, *bounds])), list(dict.fromkeys(unknown)))


def _bounds_grown(
    new: JudgedAgent, policy: RunPolicy, before: RunPolicy, calls: float, told: Container[tuple[str, str]]
) -> tuple[list[str], list[str]]:
    """Bounds of old rules that a run may pass now, and those of which this is not known; but not what is told
    of a tool already. `calls`: the most in one run before."""
    from workflows.verify.policy.weaker_bounds import CALLS, bounds_grown

    found, unknown = list[str](), list[str]()
    for one in bounds_grown(policy, before, new.callable, new.bound.calls):
        if len(one.tools) == 1 and (one.tools[0], one.of) in told and not one.unknown:
            continue
        tools, what = ", ".join(one.tools), f"{one.of} in all" if one.of else "calls"
        then = min(one.before, calls) if one.of == CALLS else one.before
        rest = f"{_up_to(one.most)} in one run, {WHEN[one.level]}; before {_most(then)} (the old {one.rule})"
        if one.unknown:
            unknown.append(f"{tools}: {what} may newly be {rest}: {one.unknown}")
        else:
            found.append(f"{tools}: {what} newly {rest}")
    return found, unknown


def _unknown_tools(new: JudgedAgent, old: JudgedAgent) -> Iterator[str]:
    """Tools of which nobody knows here whether their calls pass more easily: all that are new, and all where
    anything has changed that decides about them."""
    is_same = all(getattr(new.agent, name) == getattr(old.agent, name) for name in SAME_CALLS)
    is_same &= (new.agent.output is None) is (old.agent.output is None)
    for name in new.unknown_tools:
        if not (is_same and name in old.agent.tools):
            yield f"{name}: {UNKNOWN_TOOL}, so nothing is proven of its calls"


def _limits_grown(new: AgentSpec, old: AgentSpec) -> Iterator[str]:
    caps = {**new.limits.caps, "depth": new.limits.depth}
    for name, cap in {**old.limits.caps, "depth": old.limits.depth}.items():
        now = caps.get(name)
        if now is None or now > cap:
            text = "null" if now is None else number_text(now)
            yield f"limits.{name} is newly {text}; before {number_text(cap)}"


def _labels_lost(new: JudgedAgent, old: JudgedAgent) -> Iterator[str]:
    """What no longer brings a label that a rule waited for: the rule does not protect against it any more.
    What each run begins with is compared by the solver."""
    for label in dict.fromkeys(label for rule in old.agent.approvals.rules for label in rule.after):
        always = {*new.agent.labels.input, *old.agent.labels.input}
        now, still_there = new.sources(label), {"people", *new.agent.tools}
        for name in old.sources(label) if label not in always else ():
            if name in still_there and name not in now:
                yield f"{name}: what comes from there is newly not {label}, for which a rule waited"


def _radius_grown(new: Iterator[Radius], old: Sequence[Radius]) -> Iterator[tuple[str, str]]:
    """The argument that is summed up, empty for the number of calls, and what is said of it."""
    for one in new:
        before = [other for other in old if LEVELS.index(other.level) >= LEVELS.index(one.level)]
        calls = max((other.calls for other in before), default=0)
        if before and one.calls > calls:
            most = f"calls newly {_up_to(one.calls)} in one run"
            yield "", f"{one.tool}: {most}, {WHEN[one.level]}; before {_most(calls)}"
        for name, total in one.sums.items():
            then = max((other.sums.get(name, 0) for other in before), default=0)
            if before and total > then:
                sums = f"{name} in all newly {_up_to(total)} in one run"
                yield name, f"{one.tool}: {sums}, {WHEN[one.level]}; before {_most(then)}"


def _differences(new: JudgedAgent, mine: PolicyEntry, old: JudgedAgent, theirs: PolicyEntry) -> Iterator[str]:
    """How requests about a call newly let it pass more easily, where two entries ask people about it."""
    one, other = mine.asks, theirs.asks
    assert one is not None
    assert other is not None
    found = (newly_decided(new.agent.people, one, old.agent.people, other), sooner(one, other))
    yield from (text for text in found if text)


# -- in words --------------------


def newly_text(found: CallSet, new: AgentSpec) -> str:
    """`newly passes unasked (rules.0)`, `newly passes if people approve it: 1 of ann (rules.0)`."""
    asks = found.asks if found.level == "asked" else None
    who = f": {deciders_text(new.people, asks)}" if asks else ""
    return f"{NEWLY[found.level]}{who} ({found.entry})"


def _most(number: Amount) -> str:
    return "without bound" if number == math.inf else number_text(number)


def _up_to(number: Amount) -> str:
    return "without bound" if number == math.inf else f"up to {number_text(number)}"


def bound_text(bound: CallsBound) -> str:
    """`at most 6 calls of tools in one run (the options of the machine react)`."""
    most = "any number of" if math.isinf(bound.calls) else f"at most {number_text(bound.calls)}"
    return f"{most} calls of tools in one run ({bound.why})"


def radius_text(one: Radius) -> str:
    """`at most 6 calls, cents at most 60,000,000 in all`."""
    calls = "any number of calls" if math.isinf(one.calls) else f"at most {_counted(one.calls)}"
    return ", ".join([calls, *_sum_texts(one)])


def alone_text(judged: JudgedAgent, tool: str, approved: Sequence[str]) -> str:
    """What a run of this agent could do with the tool if the person who is asked were not there, in one
    sentence. `approved`: requests that have approved later calls as well. Raises ImportError without z3."""
    found = tool_report(judged, judged.specs[tool])
    said = [_alone(one, judged.agent.labels.input) for one in found.radii]
    said = said or [f"no further call of {tool} would pass"]
    if approved:
        said.append(f"calls that {' and '.join(approved)} approved for later pass, too")
    if found.unknown:
        said.append("it is UNKNOWN whether more can pass")
    return f"Without you, {'; '.join(said)}."


_ALONE: Mapping[Level, str] = {
    "unasked": "{} could pass",
    "expiry": "{} could pass if nobody answers in time",
    "once": "{} could pass once one is approved",
}


def _alone(one: Radius, held: Sequence[Label]) -> str:
    most = f"at most {number_text(one.calls)} more call{'' if one.calls == 1 else 's'}"
    calls = f"{'any number of calls' if math.isinf(one.calls) else most} of {one.tool}"
    said = ", ".join([_ALONE[one.level].format(calls), *_sum_texts(one)])
    if one.example is None:
        return said
    newer = tuple(label for label in one.example.labels if label not in held)
    return f"{said}, such as {replace(one.example, labels=newer).title}"


def _sum_texts(one: Radius) -> list[str]:
    return [
        f"{name} {'without any bound' if total == math.inf else f'at most {number_text(total)} in all'}"
        for name, total in one.sums.items()
    ]


def _counted(calls: float) -> str:
    return f"{number_text(calls)} call{'' if calls == 1 else 's'}"
