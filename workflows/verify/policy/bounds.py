"""The blast radius: the most that an agent can do in one run with nobody asked. Pure, and without a solver.

Per tool, from the calls that pass (`call_sets.py`), the bounds of their rules, what the machine can do with
its options, and the agent's limits. All of it is an upper bound; `example` is a call that the most of is
made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import chain
from typing import Any

from activities.contracts import CallTools, RunMachine, ToolEffect, ToolSpec
from workflows.api import AgentSpec
from workflows.gate.approvals import covers
from workflows.kernel.machine import Machine
from workflows.people import DEFAULT_EFFECT_MODES, ApprovalMode, AtMost, RequestSettings
from workflows.verify.policy.call_sets import LEVELS, CallSet, JudgedCall, Level, level_of
from workflows.verify.policy.listed_arguments import Listed

__all__ = ["Amount", "CallsBound", "Radius", "calls_bound", "may_be_unbounded", "radius"]

Amount = int | Decimal | float
"""Exact, or infinite: nothing bounds it."""

REPLIES_TRIED = 10_000
"""Numbers of replies for which a machine is asked what calls they lead to; with more it would take long."""


@dataclass(frozen=True, slots=True)
class CallsBound:
    """The most calls of tools in one run."""

    calls: float
    """Infinite: nothing bounds them."""
    why: str
    """What says so, in words."""


def calls_bound(machine: Machine, agent: AgentSpec) -> CallsBound:
    """The most calls that a run of this agent makes, whatever its model says. A person can give it more."""
    limits = agent.limits
    options = machine.read_options(agent.options)
    replies = math.inf if limits.model_calls is None else limits.model_calls
    by_machine = _most_of(machine, agent, options, replies)
    by_limit = math.inf if limits.tool_calls is None else limits.tool_calls
    if math.isinf(min(by_machine, by_limit)):
        unknown = (
            "" if machine.most_calls else f", and the machine {machine.name} does not say how many it makes"
        )
        return CallsBound(math.inf, f"`limits.tool_calls` is null{unknown}")
    if by_limit <= by_machine:
        return CallsBound(by_limit, f"`limits.tool_calls` is {by_limit:,}")
    by_options = _most_of(machine, agent, options, math.inf)
    why = f"the options of the machine {machine.name}"
    if by_machine < by_options:
        why = f"`limits.model_calls` is {replies:,}, and {why}"
    return CallsBound(by_machine, why)


def _most_of(machine: Machine, agent: AgentSpec, options: Any, replies: float) -> float:
    """The most calls by the machine's options. Each answer that does not fit the agent's `output` ends a part
    of the run, and any part may make as many calls as a run; all share the replies."""
    if machine.most_calls is None:
        return math.inf
    most = machine.most_calls(options, replies)
    if agent.output is None or math.isinf(most):
        return most
    parts = machine.answer_attempts(options)
    if replies > REPLIES_TRIED:
        return most * parts
    none, *some = (machine.most_calls(options, n) for n in range(int(replies) + 1))
    for_one = max((calls / n for n, calls in enumerate(some, 1)), default=0)
    return min(most * parts, none * parts + math.ceil(for_one * replies))


def is_callable(tool: str, machine: Machine) -> bool:
    """Some state of the machine may call the tool, or hand it to an inner run."""
    asking = [one for one in machine.by_name.values() if one.asks & {CallTools, RunMachine}]
    return any(one.tools is None or tool in one.tools for one in asking)


@dataclass(frozen=True)
class Radius:
    """What calls of one tool can come to in one run, at one level."""

    tool: str
    effect: ToolEffect
    level: Level
    calls: float
    """The most; infinite: nothing bounds them."""
    calls_why: str
    sums: dict[str, Amount]
    """Argument that is a number -> the most that it sums up to; infinite: nothing bounds it."""
    sets: tuple[CallSet, ...]
    example: JudgedCall | None
    """The largest call that was found."""

    @property
    def is_unbounded(self) -> bool:
        """The number of calls, or a sum, has no bound."""
        return math.inf in (self.calls, *self.sums.values())


def radius(sets: Sequence[CallSet], level: Level, bound: CallsBound) -> Radius | None:
    """What the calls of one tool at this level come to; None: there are none."""
    held = tuple(one for one in sets if one.level == level)
    if not held or not bound.calls:
        return None
    own = sum(map(_most_calls, held))
    calls, why = (
        (own, f"`at_most` of {', '.join(one.entry for one in held)}")
        if own < bound.calls
        else (
            bound.calls,
            bound.why,
        )
    )
    names = dict.fromkeys(name for one in held for name in one.numbers)
    return Radius(
        tool=held[0].tool,
        effect=held[0].effect,
        level=level,
        calls=calls,
        calls_why=why,
        sums={name: largest_sum(held, name, bound.calls) for name in names},
        sets=held,
        example=next((one.example for one in held if one.example), None),
    )


def _most_calls(one: CallSet) -> float:
    """By the bound of its rule. What people are asked about takes nothing of it: neither the call that
    `first_time` asks about, nor one that is made because nobody answers."""
    if one.at_most is None or one.at_most.calls is None or one.level == "expiry":
        return math.inf
    return one.at_most.calls + (1 if one.level == "once" else 0)


def largest_sum(sets: Iterable[CallSet], name: str, calls: float) -> Amount:
    """The most that an argument can sum up to in so many calls, which the sets share."""
    gains = sorted((gain for one in sets for gain in _gains(one, name)), reverse=True)
    total, left = Fraction(0), calls
    for gain, times in gains:
        if gain <= 0 or left <= 0:
            break
        made = min(times, left)
        if math.inf in (gain, made):
            return math.inf
        total += Fraction(gain) * int(made)
        left = left if left == math.inf else int(left) - int(made)
    return _plain(total)


def _gains(one: CallSet, name: str) -> list[tuple[Fraction | float, float]]:
    """What a call adds to the sum, and how many calls add so much: most first."""
    if name not in one.numbers:
        return []
    upper, times = _exact(one.numbers[name]), _most_calls(one)
    most = _exact(one.at_most.sum.get(name) if one.at_most else None)
    largest = min(upper, most)
    if most == math.inf or one.level == "expiry" or largest <= 0:
        return [(largest, times)]
    asked = [(largest, 1)] if one.level == "once" else []
    times -= len(asked)
    whole = math.floor(Fraction(most) / Fraction(largest))
    rest = (most - whole * largest, 1 if times > whole else 0)
    return [*asked, (largest, min(whole, times)), rest]


def _exact(number: Amount | None) -> Fraction | float:
    """The number that is written so, as production counts it; infinite for none."""
    if number is None:
        return math.inf
    return Fraction(int(number)) if number == int(number) else Fraction(repr(number))


def _plain(number: Fraction) -> int | Decimal:
    """A sum of decimals as one."""
    if number.denominator == 1:
        return number.numerator
    with localcontext() as exact:
        exact.prec = 2 * len(str(number.numerator)) + 4 * len(str(number.denominator))
        return (Decimal(number.numerator) / Decimal(number.denominator)).normalize()


# -- without a solver --------------------


def may_be_unbounded(agent: AgentSpec, spec: ToolSpec, bound: CallsBound) -> bool:
    """Calls of this tool might pass without a person and without a bound. False: surely not, whichever calls
    each entry of the policy decides."""
    amounts = _open_ended(agent, spec)
    return any(
        (math.isinf(bound.calls) and (most is None or most.calls is None))
        or any(most is None or name not in most.sum for name in amounts)
        for level, most in _entries(agent, spec)
        if LEVELS.index(level) > LEVELS.index("asked")
    )


def _entries(agent: AgentSpec, spec: ToolSpec) -> Iterator[tuple[Level, AtMost | None]]:
    """Of each entry of the policy about the tool: what becomes of its calls, and the bound within which it
    does."""
    approvals, people = agent.approvals, agent.people

    def level(mode: ApprovalMode, own: RequestSettings | None = None) -> Level:
        return level_of(mode, None if people.unattended else own or people.settings_for("approval"))

    for rule in approvals.rules:
        if covers(rule, spec):
            own = level(rule.ask, rule.request)
            yield own, None if own == "expiry" else rule.at_most
            if rule.at_most is not None:
                yield level(rule.then, rule.request), None
    modes = {**DEFAULT_EFFECT_MODES, **approvals.effects}
    yield level(approvals.tools.get(spec.name, modes.get(spec.effect, "never"))), None


def _open_ended(agent: AgentSpec, spec: ToolSpec) -> list[str]:
    """Arguments that may be numbers, for which the tool's schema names no largest one."""
    listed = Listed(spec)
    rules = [rule for rule in agent.approvals.rules if covers(rule, spec)]
    summed = (rule.at_most.sum for rule in rules if rule.at_most)
    names = dict.fromkeys([*listed.names, *chain(*(rule.arguments for rule in rules), *summed)])
    return [name for name in names if listed.may_be_number(name) and not listed.has_largest(name)]
