"""Which bounds of an old policy no longer hold under a new one, by the solver.

A bound holds over all calls that its rule decides, of all tools. Under another policy other rules decide
these calls, each within its own bound. If all that these let pass together is no more than the old bound, no
run lets more of these calls pass than before; else some run may.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import z3  # type: ignore[import-untyped]  # z3-solver ships no types

from activities.contracts import ToolSpec
from workflows.people import ApprovalRule
from workflows.verify.policy.bounds import Amount, largest_sum
from workflows.verify.policy.call_sets import LEVELS, CallSet, JudgedCall, Level
from workflows.verify.policy.questions import PolicyEntry, RunPolicy, SymbolicCalls, Undecided, decided
from workflows.verify.policy.ranges import Cell

__all__ = ["CALLS", "Grown", "approvals_merged", "bounds_grown"]

CALLS = ""
"""In the place of an argument. No argument has this name."""
ROUNDED = 1 + 1e-12
"""A bound is a float, and may lie a little below the number that its author wrote."""
ONCE = LEVELS.index("once")


@dataclass(frozen=True, slots=True)
class Grown:
    """Calls of tools for which an old rule had a bound, of which one run may let more pass now."""

    tools: tuple[str, ...]
    of: str
    """The argument that is summed up; `CALLS`: their number."""
    most: Amount
    """The most now; infinite: nothing bounds it."""
    before: float
    level: Level
    """How easily they pass, at least."""
    rule: str
    """The old one."""
    unknown: str = ""
    """Why that is not known; empty: it is."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What entries of one name let pass of the calls of an old rule."""

    tool: SymbolicCalls
    entry: PolicyEntry
    old: PolicyEntry
    unknown: str = ""
    """Why nobody knows whether they are about the same calls."""

    def call_set(self, policy: RunPolicy | None) -> CallSet:
        """The calls of both; None: their values are not asked for."""
        spec, entry = self.tool.spec, self.entry
        bare = CallSet(spec.name, spec.effect, entry.name, entry.level, None, at_most=entry.at_most)
        if policy is None:
            return bare
        held, _ = self.tool.holds(z3.And(entry.decides, self.old.decides), decided(policy, entry))
        return replace(bare, held=held)


def bounds_grown(new: RunPolicy, old: RunPolicy, specs: Sequence[ToolSpec], most: float) -> Iterator[Grown]:
    """Bounds of the old policy that a run under the new one may pass, with calls of tools that both have;
    `most` is how many calls it makes at all."""
    tools = [SymbolicCalls(spec, [new, old]) for spec in specs if spec.name in old.policy.specs]
    for number, rule in enumerate(old.policy.approvals.rules):
        if rule.at_most is not None:
            pairs = [
                (tool, one) for tool in tools for one in tool.entries(old) if one.name == f"rules.{number}"
            ]
            yield from _Bound(new, rule, pairs, most).grown()


@dataclass
class _Bound:
    """The bound of one old rule."""

    new: RunPolicy
    rule: ApprovalRule
    pairs: Sequence[tuple[SymbolicCalls, PolicyEntry]]
    """Its entries, by tool: within the bound and beyond it."""
    most: float
    parts: list[_Part] = field(default_factory=list)
    """Entries of the new policy that decide some of the same calls."""

    def grown(self) -> Iterator[Grown]:
        """What a run may let more of pass, each once: at the level at which it passes most easily."""
        within = [(tool, one) for tool, one in self.pairs if not one.is_beyond]
        if not within:
            return
        beyond = next(one for _, one in self.pairs if one.is_beyond)
        self.parts = [part for tool, one in within for part in self._parts(tool, one)]
        ranks = range(LEVELS.index(within[0][1].level), LEVELS.index(beyond.level), -1)
        assert self.rule.at_most is not None
        calls = [] if self.rule.at_most.calls is None else [(CALLS, self.rule.at_most.calls)]
        for name, before in [*calls, *self.rule.at_most.sum.items()]:
            found = (self._passed(name, before, LEVELS[rank]) for rank in ranks)
            known = [one for one in found if one is not None]
            if known:
                yield next((one for one in known if not one.unknown), known[0])

    def _parts(self, tool: SymbolicCalls, old: PolicyEntry) -> Iterator[_Part]:
        for entry in tool.entries(self.new):
            try:
                if tool.exists(z3.And(entry.decides, old.decides), decided(self.new, entry)):
                    yield _Part(tool, entry, old)
            except Undecided as why:
                yield _Part(tool, entry, old, str(why))

    def _passed(self, name: str, before: float, level: Level) -> Grown | None:
        """The bound is passed at this level; None: it holds."""
        rank = LEVELS.index(level)
        parts = [one for one in self.parts if LEVELS.index(one.entry.level) >= rank]
        open_ones = [one for one in parts if one.unknown]
        for some in ([one for one in parts if not one.unknown], parts):
            total = self._total(some, name, before)
            if total > before * ROUNDED:
                why = open_ones[0].unknown if some is parts and open_ones else ""
                tools = tuple(dict.fromkeys(one.tool.spec.name for one in some))
                return Grown(tools, name, total, before, level, self.pairs[0][1].name, why)
        return None

    def _total(self, parts: Sequence[_Part], name: str, before: float) -> Amount:
        """The most that these parts let pass in one run."""
        named: dict[str, list[_Part]] = {}
        for part in parts:
            named.setdefault(part.entry.name, []).append(part)
        if name == CALLS:
            return min(self.most, sum(map(_calls, named.values())))
        total = largest_sum(_merged(named, None, name), name, self.most)
        return (
            total
            if total <= before * ROUNDED
            else largest_sum(_merged(named, self.new, name), name, self.most)
        )


def _calls(parts: Iterable[_Part]) -> float:
    """The most calls by one rule, whose bound all of its tools share."""
    bounds = [one.entry.at_most for one in parts]
    return max(math.inf if one is None or one.calls is None else one.calls for one in bounds)


def _merged(named: Mapping[str, Sequence[_Part]], policy: RunPolicy | None, name: str) -> Iterator[CallSet]:
    """The calls of each rule, of all its tools; those beyond a bound have none."""
    for parts in named.values():
        sets = [one.call_set(policy) for one in parts]
        free = [one for one in sets if one.at_most is None]
        values = [one.held.get(name, ()) for one in sets]
        held = (
            {name: tuple(cell for each in values for cell in each)} if policy else {name: (Cell("numbers"),)}
        )
        yield replace((free or sets)[0], held=held)


def approvals_merged(new: RunPolicy, old: RunPolicy, spec: ToolSpec) -> tuple[list[str], list[str]]:
    """Where one approval lets calls of a tool pass that needed another one before, in words; and where that
    is not known."""
    tool, found, unknown = SymbolicCalls(spec, [new, old]), list[str](), list[str]()
    before = [one for one in tool.entries(old) if LEVELS.index(one.level) >= ONCE]
    for entry in tool.entries(new):
        if entry.mode != "first_time" or LEVELS.index(entry.level) < ONCE:
            continue
        try:
            met = {one.name: (call, one.mode) for one in before if (call := _met(tool, new, entry, one))}
        except Undecided as why:
            if len({one.name for one in before}) > 1:
                unknown.append(f"{entry.name}: whether an approval newly lets other calls pass: {why}")
            continue
        for name, (call, mode) in met.items():
            others = [other for known, (other, _) in met.items() if known != name]
            if mode == "first_time" and others:
                say = f"an approval of a call such as {others[-1].title} newly lets others pass"
                found.append(f"{say}, such as {call.title} ({entry.name})")
                break
    return found, unknown


def _met(tool: SymbolicCalls, new: RunPolicy, entry: PolicyEntry, old: PolicyEntry) -> JudgedCall | None:
    """A call that both decide; None: it is proven that there is none. Raises Undecided."""
    return tool.find(z3.And(entry.decides, old.decides), decided(new, entry))
