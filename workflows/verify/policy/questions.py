"""What an approval policy lets pass without a person, by a solver (z3, the extra `verify`).

Rules are first-match over conditions on arguments, so for each tool and each entry of the policy there is a
formula that is true of exactly the calls that this entry decides. The solver finds such a call or proves
that there is none. Each call that is found is confirmed by the functions that judge calls in production; one
that is not confirmed, and a question that the solver does not decide, is *unknown*, never proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import z3  # type: ignore[import-untyped]  # z3-solver ships no types

from activities.contracts import Label, ToolSpec
from workflows.gate.approvals import ApprovalPolicy, RequiredApproval, covers
from workflows.gate.arguments import arguments_for
from workflows.people import DEFAULT_EFFECT_MODES, ApprovalMode, ApprovalRule, AtMost, RequestSettings
from workflows.verify.policy.call_sets import LEVELS, SPENT, CallSet, JudgedCall, Level, level_of
from workflows.verify.policy.listed_arguments import Listed, names_in
from workflows.verify.policy.ranges import Cell, cells, constants, is_loose, largest, range_text
from workflows.verify.policy.schemas import Filled, Value, Values, exact_number

__all__ = [
    "PolicyEntry", "RunPolicy", "SymbolicCalls", "Undecided", "after_label", "call_sets", "decided",
    "newly_allowed", "other_requests", "useless_rules",
]  # fmt: skip

MAX_SOLVER_TRIES = 5
"""Calls that are asked of the solver until one is confirmed."""
TRANSLATED = {
    "tools", "effects", "arguments", "sends", "after", "cost_above", "ask", "at_most", "then", "request",
}  # fmt: skip
"""Fields of a rule. What another one says is unknown."""
PLAIN = {
    "type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions",
}  # fmt: skip
"""A schema with no more than these is never broken by a default that is filled in."""
LABELS: tuple[Label, ...] = get_args(Label)
QUIET = ("unasked", "refused")
"""Levels at which nobody is asked."""
SOLVER_MILLISECONDS = 5_000
"""For one question to the solver."""


Cells = Mapping[str, tuple[Cell, ...]]
Confirm = Callable[[JudgedCall], bool]


class Undecided(Exception):
    """The solver does not know, or what it found is not confirmed; the text says which."""


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """An approval policy, and the labels that runs under it can have."""

    policy: ApprovalPolicy
    sometimes: frozenset[Label] = frozenset(LABELS)
    """Labels that something can bring."""
    always: frozenset[Label] = frozenset()
    """Those that each run has from its beginning."""

    def required_approval(self, call: JudgedCall) -> RequiredApproval | None:
        """What approval production asks for this call."""
        labels = self._labels(call)
        return self.policy.required_approval(
            call.tool, call.arguments, spent_usd=call.spent_usd, labels=labels
        )

    def entry(self, call: JudgedCall) -> str:
        """The entry that decides on this call in production."""
        labels = self._labels(call)
        return self.policy.entry(call.tool, call.arguments, spent_usd=call.spent_usd, labels=labels)

    def has(self, label: Label, held: Any) -> Any:
        """Formula: a run under this policy has the label where another one has it if `held` is true."""
        if label in self.always:
            return z3.BoolVal(True)
        return held if label in self.sometimes else z3.BoolVal(False)

    @property
    def open(self) -> frozenset[Label]:
        """Labels that some runs have, and others do not."""
        return self.sometimes - self.always

    def _labels(self, call: JudgedCall) -> tuple[Label, ...]:
        can = self.always | (self.sometimes & set(call.labels))
        return tuple(label for label in LABELS if label in can)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """Calls of one tool that one entry of a policy decides alike."""

    name: str
    """`rules.0`, `tools.pay` or `effects.unsafe`."""
    mode: ApprovalMode | Literal["reject"]
    asks: RequestSettings | None
    """How people are asked; None: nobody is there."""
    decides: Any
    """Formula over the calls of the tool: the entry decides them."""
    at_most: AtMost | None = None
    """The bound within which they are decided so."""
    is_beyond: bool = False
    """They are decided so once the bound of the rule is used up."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The conditions of the rule."""
    after: tuple[Label, ...] = ()
    """The labels that the rule waits for: an approval that was given before does not hold for it."""

    @property
    def level(self) -> Level:
        """What becomes of them when no person speaks."""
        return level_of(self.mode, self.asks)

    @property
    def decision(self) -> tuple[object, ...]:
        """All that is decided; equal for entries that make no difference."""
        own = self.name if self.at_most or self.is_beyond or self.mode == "first_time" else ""
        quiet = self.level in QUIET
        return (self.level, own, None if quiet else self.asks, () if quiet else frozenset(self.after))


class SymbolicCalls:
    """All calls of one tool: how the solver sees them, and what policies decide about them."""

    def __init__(self, spec: ToolSpec, policies: Sequence[RunPolicy]) -> None:
        """`policies`: all that are asked about; the runs are those of the first."""
        self.spec, self._values, listed = spec, Values(), Listed(spec)
        rules = [rule for one in policies for _, rule in _rules(one.policy, spec)]
        summed = [dict.fromkeys(rule.at_most.sum, True) if rule.at_most else {} for rule in rules]
        conditions = [{**sums, **rule.arguments} for sums, rule in zip(summed, rules, strict=True)]
        named = (name for one in conditions for name in one)
        self.arguments = tuple(dict.fromkeys([*listed.certain, *listed.names, *named]))
        inside = [*names_in(listed.schema), *names_in([[*one.values()] for one in conditions])]
        self.call, self.spent = Value(spec.name, dict.fromkeys([*self.arguments, *inside])), z3.Real(SPENT)
        whole = {name for name in self.arguments if listed.is_whole(name)}
        for name in self.arguments:
            self.call.inner(name, integral=name in whole)
        fits = self._fits(self.call, listed)
        self.labels = {label: z3.Bool(f"(has {label})") for label in LABELS}
        known = [held == policies[0].has(label, held) for label, held in self.labels.items()]
        filled = self._filled(listed)
        self._legal = z3.And(self.call.is_a("object"), fits, self.spent >= 0, *filled, *known)
        self._awaited = {label for rule in rules for label in rule.after if label in policies[0].open}
        self._cells: dict[str, tuple[Cell, ...]] = {}
        """Of arguments that rules are about, or that may be numbers."""
        for name in self.arguments:
            ruled = [one for each in conditions for one in constants(each.get(name))]
            if any(name in one for one in conditions) or listed.may_be_number(name):
                sums = [rule.at_most.sum[name] for rule in rules if rule.at_most and name in rule.at_most.sum]
                every = [*constants(listed.names.get(name)), *ruled, *([0, *sums] if sums else [])]
                self._cells[name] = cells(every, integral=name in whole)
        costs = [rule.cost_above for rule in rules if rule.cost_above is not None]
        if costs:
            self._cells[SPENT] = tuple(one for one in cells([0, *costs], integral=False) if one.is_numeric)

    # -- formulas --------------------

    def _fits(self, value: Value, listed: Listed) -> Any:
        """The value fits the tool's schema."""
        return self._values.fits(listed.schema, value, condition=False, draft=listed.draft)

    def _filled(self, listed: Listed) -> Iterator[Any]:
        """Production fills in each default with which the call still fits."""
        is_plain = listed.schema.keys() <= PLAIN
        for name in listed.certain:
            if (filled := _filled_value(listed.certain[name], name, self.spec)) is None:
                continue
            if is_plain:
                yield self.call.has(name)
                continue
            call = Filled(self.call, name)
            value, fits = call.inner(name), self._fits(call, listed)
            yield z3.And(value.sound(), self._values.fits({"const": filled[0]}, value, condition=False))
            yield z3.Or(self.call.has(name), z3.Not(fits))

    def entries(self, run: RunPolicy) -> Iterator[PolicyEntry]:
        """The entries of a policy about this tool, in their order. One with a bound comes twice: within it,
        and beyond."""
        approvals, spec, left = run.policy.approvals, self.spec, z3.BoolVal(True)
        asks = _asks(run.policy, None)
        for number, rule in _rules(run.policy, spec):
            name, own, fits = f"rules.{number}", _asks(run.policy, rule.request), self.fits(rule, run)
            decides = z3.And(left, fits)
            within = z3.And(decides, self._within_bound(rule))
            said: Any = {"arguments": rule.arguments, "after": rule.after}
            yield PolicyEntry(name, rule.ask, own, within, rule.at_most, **said)
            if rule.at_most is not None:
                yield PolicyEntry(name, rule.then, own, decides, is_beyond=True, **said)
            left = z3.And(left, z3.Not(fits))
        if spec.name in approvals.tools:
            yield PolicyEntry(f"tools.{spec.name}", approvals.tools[spec.name], asks, left)
        else:
            modes = {**DEFAULT_EFFECT_MODES, **approvals.effects}
            yield PolicyEntry(f"effects.{spec.effect}", modes.get(spec.effect, "never"), asks, left)

    def _within_bound(self, rule: ApprovalRule) -> Any:
        """One call alone does not pass the bound of the rule: each amount can be counted, and is not too
        large."""
        each = []
        for name, most in rule.at_most.sum.items() if rule.at_most else ():
            value = self.call.inner(name)
            amount = z3.And(value.number >= 0, value.number <= exact_number(most))
            each.append(z3.And(self.call.has(name), value.is_a("number"), amount))
        return z3.And(each)

    def fits(self, rule: ApprovalRule, run: RunPolicy) -> Any:
        """The calls that a rule of this policy fits which is about the tool."""
        each = [z3.BoolVal(True) if rule.cost_above is None else self.spent > exact_number(rule.cost_above)]
        each += [run.has(label, self.labels[label]) for label in rule.after]
        if more := {name: getattr(rule, name) for name in sorted(rule.model_fields_set - TRANSLATED)}:
            each.append(self._values.unknown_fact(self.call, "rule", more, "it is not translated"))
        for name, condition in rule.arguments.items():
            there = self.call.has(name)
            if condition is False:
                each.append(z3.Not(there))
            else:
                fits = self._values.fits(condition, self.call.inner(name), condition=True)
                each.append(z3.And(there, fits))
        return z3.And(each)

    def _within(self, name: str, cell: Cell) -> Any:
        """The argument, or what the run has spent, has a value of this cell."""
        if name == SPENT:
            return _number_within(cell, self.spent)
        there, value = self.call.has(name), self.call.inner(name)
        if cell.kind == "absent":
            return z3.Not(there)
        if cell.kind == "numbers":
            return z3.And(there, value.is_a("number"), _number_within(cell, value.number))
        if cell.kind in ("list", "object"):
            return z3.And(there, value.is_a("array" if cell.kind == "list" else "object"))
        if cell.kind == "value":
            return z3.And(there, self._values.fits({"const": cell.value}, value, condition=False))
        named = [one.value for one in self._cells[name] if one.kind == "value" and isinstance(one.value, str)]
        others = self._values.fits({"not": {"enum": named}}, value, condition=False)
        return z3.And(there, value.is_a("string"), others)

    # -- questions --------------------

    def find(self, wanted: Any, confirm: Confirm) -> JudgedCall | None:
        """A call for which the formula is true, confirmed: with whole numbers and printable text, where there
        is such a call. None: it is proven that there is none. Raises Undecided."""
        model = self._confirmed(wanted, confirm, plain=True)
        return None if model is None else self._call(model)

    def exists(self, wanted: Any, confirm: Confirm = lambda call: True) -> bool:
        """There is such a call. Raises Undecided."""
        return self._confirmed(wanted, confirm, plain=False) is not None

    def _confirmed(self, wanted: Any, confirm: Confirm, *, plain: bool) -> Any:
        """A model whose call is confirmed; None: it is proven that there is none. Raises Undecided."""
        asked = [self._legal, wanted, self.call.sound()]
        for attempt in range(MAX_SOLVER_TRIES):
            model = self._model(asked)
            if model is None and attempt == 0:
                return None
            if model is None:
                break
            if plain or attempt:
                model = self._plain_model(asked) or model
            if (call := self._call(model)) is not None and confirm(call):
                return model
            asked.append(z3.Not(self._same_as(model)))
        raise Undecided("what the solver finds is not confirmed")

    def _plain_model(self, asked: Sequence[Any]) -> Any:
        """A model with whole numbers, plain text, and no more labels than it needs; None: none was found."""
        inner = [self.call.inner(name) for name in self.arguments]
        plain = z3.Star(z3.Range(" ", "~"))
        nice = [z3.And(z3.IsInt(one.number), z3.InRe(one.text, plain)) for one in inner]
        nice.append(z3.IsInt(self.spent))
        for few in ([z3.Not(held) for held in self.labels.values()], []):
            with suppress(Undecided):
                if (model := self._model([*asked, *nice, *few])) is not None:
                    return model
        return None

    def _model(self, asked: Sequence[Any]) -> Any:
        """Any model; None: it is proven that there is none. Raises Undecided."""
        solver = z3.Solver()  # a new one each time: one that is asked again and again may search for ever
        solver.set("timeout", SOLVER_MILLISECONDS)
        solver.add(*asked)
        answer = solver.check()
        if answer == z3.unknown:
            raise Undecided(f"the solver does not know: {solver.reason_unknown()}")
        return solver.model() if answer == z3.sat else None

    def _call(self, model: Any) -> JudgedCall | None:
        """The call of a model; None: production does not take it as it is."""
        try:
            found = self.call.found(model)
        except (ValueError, OverflowError):
            return None
        spent = model.eval(self.spent, model_completion=True).as_fraction()
        if arguments_for(self.spec, found) != found:
            return None
        held = [label for label, one in self.labels.items() if _is_true(model, one)]
        return JudgedCall(self.spec.name, found, float(spent), tuple(held))

    def _same_as(self, model: Any) -> Any:
        """The arguments have the values of this model, as far as they are plain; and so has what else an
        entry of the policy waits for."""
        beside = [self.spent] if SPENT in self._cells else []
        same: list[Any] = [*beside, *(self.labels[label] for label in self._awaited)]
        for name in self.arguments:
            value, there = self.call.inner(name), self.call.has(name)
            same.append(there)
            if _is_true(model, there):
                same += value.plain_parts(model)
        return z3.And([part == model.eval(part, model_completion=True) for part in same])

    def holds(self, wanted: Any, confirm: Confirm) -> tuple[Cells, tuple[str, ...]]:
        """Argument -> the values that it has in calls for which the formula is true. What the solver could
        not decide is among them, and named."""
        held: dict[str, tuple[Cell, ...]] = {}
        unknown: list[str] = []
        models: list[Any] = []
        for name, each in self._cells.items():
            within = [self._within(name, cell) for cell in each]
            true, open_ones = self._some(wanted, within, models, confirm)
            for number in open_ones:
                try:
                    if not self.exists(z3.And(wanted, within[number]), confirm):
                        continue
                except Undecided as why:
                    unknown.append(f"{name}: {range_text([each[number]])}: {why}")
                true.add(number)
            held[name] = tuple(each[number] for number in sorted(true))
        return held, tuple(unknown)

    def _some(
        self, wanted: Any, within: Sequence[Any], models: list[Any], confirm: Confirm
    ) -> tuple[set[int], set[int]]:
        """Which of these formulas are true of confirmed calls, and of which this is open. `models` are of
        such calls, and become more: what one shows is not asked again."""
        true, left, new = set[int](), set(range(len(within))), [*models]
        for _ in within:
            true |= {number for number in left if any(_is_true(model, within[number]) for model in new)}
            left -= true
            try:
                any_left = z3.Or([within[number] for number in sorted(left)])
                new = [self._confirmed(z3.And(wanted, any_left), confirm, plain=False)]
            except Undecided:
                return true, left
            if new == [None]:
                return true, set()
            models += new
        return true, left

    def _after(self, wanted: Any, confirm: Confirm) -> Iterator[tuple[Label, bool]]:
        """The awaited labels that the run always has, or never, in calls for which the formula is true."""
        for label in sorted(self._awaited, key=LABELS.index):
            held = self.labels[label]
            with suppress(Undecided):  # then both may be
                if not self.exists(z3.And(wanted, z3.Not(held)), confirm):
                    yield label, True
                elif not self.exists(z3.And(wanted, held), confirm):
                    yield label, False

    @cached_property
    def possible(self) -> Cells:
        """Argument -> the values that the tool takes."""
        return self.holds(z3.BoolVal(True), lambda call: True)[0]

    def call_set(self, entry: PolicyEntry, wanted: Any, confirm: Confirm) -> CallSet | None:
        """The calls of this entry for which the formula is true too; None: it is proven that there are
        none."""
        wanted, unknown, example = z3.And(entry.decides, wanted), tuple[str, ...](), None
        try:
            if (example := self.find(wanted, confirm)) is None:
                return None
        except Undecided as why:
            unknown = (str(why),)
        held, more = self.holds(wanted, confirm)
        example = self._largest(wanted, held, confirm) or example
        return CallSet(
            tool=self.spec.name,
            effect=self.spec.effect,
            entry=entry.name,
            level=entry.level,
            example=example,
            held=held,
            possible=self.possible,
            # what tells apart values of one cell
            conditions={name: one for name, one in entry.arguments.items() if is_loose(one)},
            after=dict(self._after(wanted, confirm)),
            at_most=entry.at_most,
            asks=entry.asks,
            is_beyond=entry.is_beyond,
            unknown=(*unknown, *more),
        )

    def _largest(self, wanted: Any, held: Cells, confirm: Confirm) -> JudgedCall | None:
        """The call whose numbers are all as large as they can be, if there is one."""
        tops = [
            self._within(name, top) for name, each in held.items() if name != SPENT and (top := largest(each))
        ]
        try:
            return self.find(z3.And(wanted, *tops), confirm) if tops else None
        except Undecided:
            return None


# -- what a policy does --------------------


def call_sets(policy: RunPolicy, spec: ToolSpec) -> list[CallSet]:
    """The calls of a tool by the entry that decides them, in the policy's order. Entries that decide no call
    are left out."""
    tool = SymbolicCalls(spec, [policy])
    sets = [tool.call_set(one, z3.BoolVal(True), decided(policy, one)) for one in tool.entries(policy)]
    return [one for one in sets if one is not None]


def after_label(policy: RunPolicy, spec: ToolSpec, label: Label) -> tuple[CallSet | None, list[str]]:
    """The calls of a tool that pass most easily once the run has the label, and what the solver could not
    decide about those that might pass more easily; no calls: it is proven that there are none."""
    tool, unknown = SymbolicCalls(spec, [policy]), list[str]()
    for entry in sorted(tool.entries(policy), key=lambda one: -LEVELS.index(one.level)):
        found = tool.call_set(entry, tool.labels[label], decided(policy, entry))
        if found is not None and found.example is not None:
            return found, unknown
        unknown += [f"{entry.name}: {why}" for why in found.unknown] if found else []
    return None, unknown


def decided(policy: RunPolicy, entry: PolicyEntry) -> Confirm:
    """Production decides so about the call: in a run that has used nothing of its bounds, or all."""

    def confirm(call: JudgedCall) -> bool:
        if entry.is_beyond:
            return policy.entry(call) == entry.name
        required = policy.required_approval(call)
        if entry.level == "unasked":
            return required is None
        return required is not None and (required.rule, required.mode) == (entry.name, entry.mode)

    return confirm


def useless_rules(policy: RunPolicy, specs: Sequence[ToolSpec]) -> dict[str, str]:
    """Rule -> why it could be left out: it decides no call, or all of its calls as they would be without
    it."""
    tools = [SymbolicCalls(spec, [policy]) for spec in specs]
    return {
        f"rules.{number}": problem
        for number, rule in enumerate(policy.policy.approvals.rules)
        if (problem := _use_problem(policy, number, rule, [one for one in tools if covers(rule, one.spec)]))
    }


def _use_problem(policy: RunPolicy, number: int, rule: ApprovalRule, tools: Sequence[SymbolicCalls]) -> str:
    name = f"rules.{number}"
    try:
        if not any(tool.exists(tool.fits(rule, policy)) for tool in tools):
            return "fits no call of the agent's tools"
        mine = [(tool, one) for tool in tools for one in tool.entries(policy) if one.name == name]
        if not any(tool.exists(one.decides) for tool, one in mine):
            return "is never reached: rules before it decide every call that it fits"
        whole = policy.policy
        rules = (*whole.approvals.rules[:number], *whole.approvals.rules[number + 1 :])
        without = whole.approvals.model_copy(update={"rules": rules})
        shorter = replace(policy, policy=ApprovalPolicy(without, whole.people, whole.specs))
        for tool, one in mine:
            for other in tool.entries(shorter):
                differs = other.decision != one.decision
                if differs and tool.exists(z3.And(one.decides, other.decides)):
                    return ""
    except Undecided:
        return ""  # it may be of use
    return "changes nothing: without it every call would be decided alike"


def newly_allowed(new: RunPolicy, old: RunPolicy, spec: ToolSpec) -> list[CallSet]:
    """Calls of a tool that the new policy lets pass more easily than the old one did, by a person at least; a
    tool that the old agent did not have had no calls at all."""
    tool = SymbolicCalls(spec, [new, old])
    before = list(tool.entries(old)) if spec.name in old.policy.specs else []
    found = []
    for entry in tool.entries(new):
        rank = LEVELS.index(entry.level)
        if rank > LEVELS.index("refused"):
            as_easily = [one.decides for one in before if LEVELS.index(one.level) >= rank]
            found.append(tool.call_set(entry, z3.Not(z3.Or(as_easily)), _newly(entry, new, old)))
    return [one for one in found if one is not None]


def _newly(entry: PolicyEntry, new: RunPolicy, old: RunPolicy) -> Confirm:
    is_decided = decided(new, entry)

    def confirm(call: JudgedCall) -> bool:
        if not is_decided(call) or call.tool not in old.policy.specs:
            return is_decided(call)
        required, name = old.required_approval(call), old.entry(call)
        before: list[Level] = ["unasked"]
        if required is not None:
            before = [level_of(required.mode, _asks(old.policy, required.settings))]
        rules = old.policy.approvals.rules
        rule = rules[int(name.removeprefix("rules."))] if name.startswith("rules.") else None
        if rule is not None and rule.at_most is not None:  # and once its bound is used up
            before.append(level_of(rule.then, _asks(old.policy, rule.request)))
        return max(map(LEVELS.index, before)) < LEVELS.index(entry.level)

    return confirm


def other_requests(
    new: RunPolicy,
    old: RunPolicy,
    spec: ToolSpec,
    differ: Callable[[PolicyEntry, PolicyEntry], Iterable[str]],
) -> tuple[dict[str, JudgedCall], dict[str, str]]:
    """How requests about a tool differ, in words of `differ`, which is asked of a new and an old entry: each
    with a call that both decide. And how they may differ, with what the solver could not decide."""
    tool, found, unknown = SymbolicCalls(spec, [new, old]), dict[str, JudgedCall](), dict[str, str]()
    then = [one for one in tool.entries(old) if one.level not in QUIET]
    for mine in tool.entries(new):
        for theirs in then if mine.level not in QUIET else ():
            texts = [text for text in differ(mine, theirs) if text not in found]
            try:
                call = tool.find(z3.And(mine.decides, theirs.decides), decided(new, mine)) if texts else None
            except Undecided as why:
                unknown |= {text: f"{mine.name}: whether requests are {text}: {why}" for text in texts}
            else:
                found |= {text: call for text in texts if call is not None}
    return found, {text: why for text, why in unknown.items() if text not in found}


# -- parts --------------------


def _asks(policy: ApprovalPolicy, own: RequestSettings | None) -> RequestSettings | None:
    """How people are asked about a call whose rule has these settings."""
    return None if policy.people.unattended else own or policy.people.settings_for("approval")


def _rules(policy: ApprovalPolicy, spec: ToolSpec) -> Iterator[tuple[int, ApprovalRule]]:
    """The rules of a policy that are about the tool, as its agent labels it."""
    labelled = policy.specs.get(spec.name, spec)
    return ((n, rule) for n, rule in enumerate(policy.approvals.rules) if covers(rule, labelled))


def _filled_value(schema: Any, name: str, spec: ToolSpec) -> tuple[Any] | None:
    """What production fills in for this argument where a call leaves it out; None: nothing."""
    kept = {key: one for key, one in spec.parameters.items() if key in ("$schema", "$defs", "definitions")}
    alone = spec.model_copy(update={"parameters": {**kept, "properties": {name: schema}}})
    filled = arguments_for(alone, {})
    return (filled[name],) if isinstance(filled, dict) and name in filled else None


def _number_within(cell: Cell, number: Any) -> Any:
    if cell.kind == "value":
        return number == exact_number(cell.value)
    above = [] if cell.low is None else [number > exact_number(cell.low)]
    below = [] if cell.high is None else [number < exact_number(cell.high)]
    return z3.And(*above, *below)


def _is_true(model: Any, formula: Any) -> bool:
    return bool(z3.is_true(model.eval(formula, model_completion=True)))
