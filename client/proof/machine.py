"""Verifies a machine: each of its scenarios is explored, and every counterexample is played by the engine.

report = verify(MACHINE)
assert report.ok, report.text
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import ValidationError

from activities.contracts import CallTools, JsonObject, ToolSpec
from activities.extensions import ExtensionError, declared, load_modules
from activities.text import problems_text
from activities.tools import Tool
from client.cassette.counterexample import NotReproduced, reproduced
from client.errors import UsageError
from client.proof.digests import code_of
from client.runs.words import counted
from client.server.workerconfig import register_modules
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, Machine, RunInput
from workflows.kernel.properties import Property, Scenario
from workflows.kernel.snapshot import Program
from workflows.kernel.transition import start
from workflows.registry import extensions as loaded_extensions
from workflows.registry import made_of, other_extensions
from workflows.verify.code.declared import Finding, findings
from workflows.verify.runs.domain import LEFT_OUT, WITHOUT, Domain, open_tool
from workflows.verify.runs.explore import Explored, Violation, explore
from workflows.verify.runs.moments import BUILT_IN, ENDS

if TYPE_CHECKING:
    from client.cassette.file import Cassette

__all__ = [
    "Counterexample", "MachineReport", "ScenarioReport", "declared_machines", "declared_tools",
    "scenarios_of", "verify",
]  # fmt: skip

SCENARIO_SECONDS = 60.0
"""How long one scenario is explored, in seconds."""
FIXED_FACTS = {
    "run.now": "the clock",
    "run.ledger": "what was spent",
    "run.notes": "messages from people",
    "run.inbox": "messages from people",
}
TEXT_ARGUMENT: JsonObject = {
    "type": "object", "properties": {"text": {"enum": ["x"]}}, "required": ["text"],
}  # fmt: skip
STAND_INS = (
    ToolSpec(name="look", description="Look something up.", effect="read", parameters=TEXT_ARGUMENT),
    ToolSpec(name="pay", description="Pay.", effect="unsafe", parameters=TEXT_ARGUMENT),
)
"""Tools for a machine that takes any, in a scenario that brings none."""
NO_SCHEMA = "no schema is known (`Scenario.tools`), so any arguments fit; counted as `unsafe`"
"""Of tools that nobody describes."""
ANSWER_CHARS = 400
"""Characters of an answer in a report."""
DOMAIN_CHARS = 108
"""Characters of a line of the domain in a report."""
MAX_OPTION_SCENARIOS = 12
"""Scenarios that are made of a machine's options, beside the default ones."""


@dataclass(frozen=True)
class Counterexample:
    """A shortest run that violates something."""

    violation: Violation
    cassette: Cassette | None
    """The run, as `ratchet test` plays it; None: a run that is given these answers does something else."""
    unlike: str = ""
    """Why there is no cassette."""

    @property
    def lines(self) -> Iterator[str]:
        """The answers that lead to it, whole, and what happened when it broke."""
        one = self.violation
        kind = "built in: " if one.built_in else ""
        yield f"VIOLATED  {kind}{one.name}{f': {one.detail}' if one.detail else ''}"
        width = max(len(word) for word in ("state", *(exchange.state for exchange in one.exchanges)))
        if one.exchanges:
            yield f"    {'state':{width}}  the answer that it gets"
        for number, exchange in enumerate(one.exchanges):
            if one.rounds and number == len(one.exchanges) - one.rounds:
                yield "    and from here on again and again"
            yield f"    {exchange.state:{width}}  {_cut(exchange.text)}"
        if one.shown:
            yield f"    broken when {_cut(one.shown)}"
        if one.author_line:
            yield f"    in {one.author_line}"
        if self.cassette is None and one.exchanges:  # without an answer there is nothing to play, and no need
            yield f"    NOT REPRODUCED: a run that was given these answers did something else: {self.unlike}"


@dataclass(frozen=True)
class ScenarioReport:
    """What came of one scenario."""

    scenario: Scenario
    explored: Explored
    counterexamples: tuple[Counterexample, ...]
    never_taken: tuple[tuple[str, str, str], ...]
    """Rows of the table that no run of the domain takes: (state, event, state)."""
    made_up: tuple[str, ...]
    """Tools whose schema nobody has given."""
    tried: Mapping[str, tuple[str, ...]]
    """What was asked -> the answers that were tried, in words."""
    unfit: tuple[str, ...]
    """Where a form takes none of the values that were tried."""
    unused: tuple[str, ...]
    """What the scenario brings and nothing has asked for."""
    own_extensions: tuple[str, ...]
    """Rules, policies and hooks with which it was explored and that no run has, or that a run has and it had
    not: what was tried is verified of no run."""

    @property
    def lines(self) -> Iterator[str]:
        """How far it came, and how runs ended."""
        found = self.explored
        size = f"{found.states:,} states, {found.answers:,} answers, {found.seconds:.1f} s"
        if found.complete:
            yield f"scenario {self.scenario.name}: complete: {size}"
        else:
            waiting = f"{found.waiting:,} states wait"
            yield f"scenario {self.scenario.name}: not complete: depth {found.depth}, {size}; {waiting}"
        ends = ", ".join(f"{reason} {times:,}" for reason, times in found.ends.most_common())
        yield f"  ends     {ends or 'none'}"
        yield from (f"  unfit    {one}: bring some by `words` or `outputs`" for one in self.unfit)
        if self.unused and found.complete:
            yield f"  never used: {', '.join(self.unused)}"
        if fixed := sorted({FIXED_FACTS[one] for one in found.fixed}):
            yield f"  fixed    {' and '.join(fixed)}: the machine reads this, and here it never changes"
        if self.made_up:
            yield f"  tools    {', '.join(self.made_up)}: {NO_SCHEMA}"

    @property
    def domain(self) -> Iterator[str]:
        """In which setting it was explored, and what was tried; each has a line, and `tried` has all."""
        one = self.scenario
        yield f"  scenario {one.name}: goal {one.goal!r}"
        if one.options:
            yield _line(
                f"    options {', '.join(f'{name}={value!r}' for name, value in one.options.items())}"
            )
        if self.own_extensions:
            yield _line(f"    brings its own {', '.join(self.own_extensions)}: no run has it")
        if one.without:
            yield _line(f"    without {', '.join(sorted(one.without))}")
        for asked, answers in self.tried.items():
            yield f"    {asked}: {counted(len(answers), 'answer')}: {_joined(answers)}"


@dataclass(frozen=True)
class MachineReport:
    """What is known of a machine's runs in its scenarios."""

    machine: Machine
    scenarios: tuple[ScenarioReport, ...]
    findings: tuple[Finding, ...] = ()
    """Where declaration and code differ, or may differ."""
    code: tuple[Mapping[str, str], ...] = ()
    """Of each scenario: module -> SHA-256 of its file, as it was when the exploration began."""

    @property
    def counterexamples(self) -> tuple[Counterexample, ...]:
        """Of all scenarios, each violation once."""
        found = {
            (c.violation.name, c.violation.author_line or c.violation.detail): c
            for one in self.scenarios
            for c in one.counterexamples
        }
        return tuple(found.values())

    @property
    def complete(self) -> bool:
        """Every answer of every scenario was tried."""
        return all(one.explored.complete for one in self.scenarios)

    @property
    def ok(self) -> bool:
        """Nothing is violated, and declaration and code agree; `complete` says whether all was tried."""
        return not self.counterexamples and not any(one.certainty == "wrong" for one in self.findings)

    @property
    def unknown(self) -> bool:
        """Something in the code could not be read off."""
        return any(one.certainty == "unknown" for one in self.findings)

    @property
    def never_taken(self) -> tuple[tuple[str, str, str], ...]:
        """Rows of the table that no run of any scenario takes: (state, event, state)."""
        missed = Counter(row for one in self.scenarios for row in one.never_taken)
        return tuple(sorted(row for row, times in missed.items() if times == len(self.scenarios)))

    @property
    def text(self) -> str:
        """The whole report."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.machine.name} {self.machine.version}"
        yield from self._code_lines()
        for one in self.scenarios:
            yield from one.lines
        for source, event, target in self.never_taken:
            yield f"  untaken  {source} --{event}--> {target}"
        for found in self.counterexamples:
            yield ""
            yield from found.lines
        yield ""
        silent = self.silent
        held = [
            one.name
            for one in self.machine.properties
            if not self._is_violated(one.name) and one.name not in silent
        ]
        built_in = self.built_in
        if held or built_in:
            yield (
                "held in every run of these scenarios, in the domain below:"
                if self.complete
                else "not violated as far as these scenarios were explored, in the domain below:"
            )
            yield from (f"  {name}" for name in held)
            yield from (f"  built in: {text}" for text in built_in)
        if silent:
            yield "never came up, so nothing is known of it:"
            yield from (f"  {name}" for name in silent)
        yield ""
        yield "domain"
        for one in self.scenarios:
            yield from one.domain
        yield "  left out:"
        yield from (f"  - {text}" for text in LEFT_OUT)

    @property
    def built_in(self) -> list[str]:
        """What every machine must keep and this one keeps, in words."""
        told = {**BUILT_IN, ENDS: self._ends_text}
        return [text for name, text in told.items() if text and not self._is_violated(name)]

    @property
    def _ends_text(self) -> str:
        """What is known of `max_transitions`; empty: a run may come to it."""
        explored = [one.explored for one in self.scenarios]
        if any(one.transitions is None for one in explored):
            return "every run ends before it reaches `max_transitions`, unless people lead it round"
        in_reach = any((one.transitions or 0) >= one.limit for one in explored)
        return "" if in_reach else BUILT_IN[ENDS]

    @property
    def silent(self) -> tuple[str, ...]:
        """Properties that say nothing of any run that was explored, such as one of a tool that is never
        called."""
        came_up = {name for one in self.scenarios for name in one.explored.came_up}
        return tuple(one.name for one in self.machine.properties if one.name not in came_up)

    def _code_lines(self) -> Iterator[str]:
        """Where declaration and code differ; what is declared and never used comes last."""
        told = {"wrong": "WRONG   ", "unknown": "unknown ", "note": "unused  "}
        rows = [
            f"  {told[one.certainty]} {one}"
            for kind in told
            for one in self.findings
            if one.certainty == kind
        ]
        agrees = all(one.certainty == "note" for one in self.findings)
        yield "declaration and code agree" if agrees else "declaration and code:"
        yield from rows

    def _is_violated(self, name: str) -> bool:
        return any(one.violation.name == name for one in self.counterexamples)


def verify(
    machine: Machine | str | Path,
    *,
    scenarios: Sequence[Scenario] = (),
    tools: Sequence[ToolSpec] = (),
    extensions: Extensions | None = None,
    seconds: float = SCENARIO_SECONDS,
    progress: Callable[[str, Explored], None] = lambda scenario, found: None,
) -> MachineReport:
    """Explore the machine's scenarios, or those given, for at most so many seconds each.

    Args:
        machine: the machine, or the file that declares one.
        tools: specs of tools; a scenario's own come first. Of a tool that a state names and nobody knows, any
            arguments and any end are tried.
        extensions: rules, policies and hooks that options may name; default: those that are loaded.

    Raises PropertyBug, and ValueError for a scenario or a property that does not fit the machine, or a file
    without one.
    """
    if not isinstance(machine, Machine):
        tools = (*tools, *declared_tools(machine))
        (machine,) = declared_machines(machine)
    _check_properties(machine)
    wanted = tuple(scenarios or scenarios_of(machine))
    found = extensions if extensions is not None else loaded_extensions()
    made = [_made(machine, one) for one in wanted]
    code = tuple(code_of(machine, one.options) for one in wanted)  # as it is before it is explored
    reports = tuple(
        _explored(each, one, tools, found, seconds, progress) for each, one in zip(made, wanted, strict=True)
    )
    return MachineReport(machine, reports, findings(machine), code)


def declared_machines(file: str | Path) -> tuple[Machine, ...]:
    """The machines that a file declares. Raises UsageError."""
    if not Path(file).is_file():
        raise UsageError(f"there is no file {file}")
    try:
        found = tuple(one for one, _ in declared(load_modules([str(file)]), "MACHINE"))
    except ExtensionError as error:
        raise UsageError(str(error)) from error
    if not found:
        raise UsageError(f"{file} declares no machine: a module does by `MACHINE = Machine(...)`")
    register_modules([str(file)])
    return found


def declared_tools(file: str | Path) -> tuple[ToolSpec, ...]:
    """The tools that a machine's file declares beside it. Raises UsageError."""
    try:
        found = [one for one, _ in declared(load_modules([str(file)]), "TOOL")]
    except ExtensionError as error:
        raise UsageError(str(error)) from error
    return tuple(one.spec() for one in found if isinstance(one, Tool))


def scenarios_of(machine: Machine) -> tuple[Scenario, ...]:
    """Those that its author has written, else those that its options make: the defaults, and the smallest."""
    return tuple(machine.scenarios) or _derived(machine)


def _explored(  # as `verify` is asked, for one scenario
    machine: Machine,
    scenario: Scenario,
    tools: Sequence[ToolSpec],
    extensions: Extensions,
    seconds: float,
    progress: Callable[[str, Explored], None],
) -> ScenarioReport:
    scenario, made_up = _with_tools(machine, scenario, tools)
    extensions = _with(scenario.extensions, extensions)
    given = RunInput(
        goal=scenario.goal, tools=tuple(scenario.tools), depth=scenario.depth, values=scenario.values
    )
    program = Program(machine, given, options=scenario.options, extensions=extensions)
    domain = Domain(scenario, {spec.name: spec for spec in scenario.tools})
    explored = explore(
        program, domain, machine.properties,
        seconds=seconds, clock=time.perf_counter, progress=lambda found: progress(scenario.name, found),
    )  # fmt: skip
    rows = {
        (source, event.__name__, target)
        for source, row in machine.rows.items()
        for event, target in row.items()
    }
    return ScenarioReport(
        scenario=scenario,
        explored=explored,
        counterexamples=tuple(
            _counterexample(machine, scenario, one, extensions) for one in explored.violations.values()
        ),
        never_taken=tuple(sorted(rows - explored.arrows)),
        made_up=made_up,
        tried={asked: tuple(answers) for asked, answers in domain.tried.items()},
        unfit=tuple(domain.unfit),
        unused=tuple(domain.unused),
        own_extensions=tuple(other_extensions(extensions)),
    )


# -- what an author may have written wrongly --------------------


def _check_properties(machine: Machine) -> None:
    for number, one in enumerate(machine.properties):
        if not isinstance(one, Property):
            raise ValueError(
                f"{machine.name}: properties[{number}] is {one!r}, and no property; write never(name, when), "
                "or another form of `ratchet.verify`"
            )
    names = Counter(one.name for one in machine.properties)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ValueError(f"{machine.name}: two properties have the name {twice[0]!r}; give each its own")


def _check_scenario(scenario: Scenario) -> None:
    """Raises ValueError for what no domain knows, and for a text in place of a list of texts."""
    who = f"scenario {scenario.name!r}"
    for name in sorted(scenario.without - WITHOUT):
        close = difflib.get_close_matches(name, WITHOUT, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"{who}: without: no answer is called {name!r}; {hint}there are: {_listed(WITHOUT)}")
    replies = scenario.replies if isinstance(scenario.replies, Mapping) else {"": scenario.replies}
    for part, given in (("outputs", scenario.outputs), ("words", scenario.words), ("replies", replies)):
        for name, several in given.items():
            if isinstance(several, str):
                where = f"{part}[{name!r}]" if name else part
                raise ValueError(f"{who}: {where} is a text; write a list: [{several!r}]")


def _made(machine: Machine, scenario: Scenario) -> Machine:
    """The machine as the scenario's options make it. Raises ValueError for a scenario that does not fit."""
    _check_scenario(scenario)
    who = f"scenario {scenario.name!r}: options"
    try:
        made = made_of(machine, scenario.options)
        made.read_options(scenario.options)
    except ValidationError as error:
        raise ValueError(f"{who}: {problems_text(error)}") from error
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from error
    return made


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _with(own: Extensions | None, loaded: Extensions) -> Extensions:
    """What is loaded, with what a scenario brings."""
    if own is None:
        return loaded
    return Extensions(
        rules={**loaded.rules, **own.rules},
        policies={**loaded.policies, **own.policies},
        hooks={**loaded.hooks, **own.hooks},
    )


def _derived(machine: Machine) -> tuple[Scenario, ...]:
    """The default options; the smallest, with every number at its least value; and these with each other
    choice of an option that names its choices. Options with which no run begins are left out."""
    fields = {name: one for name, one in machine.options.model_fields.items() if name != "max_transitions"}
    least = {name: value for name, one in fields.items() if (value := _least(one)) is not None}
    smallest = (Scenario(name="smallest", options=least),) if least else ()
    varied = [
        Scenario(name=f"{name}={value}", options={**least, name: value})
        for name, one in fields.items()
        for value in _choices(one)
    ]
    found = tuple(
        one for one in (Scenario(), *smallest, *varied[:MAX_OPTION_SCENARIOS]) if _begins(machine, one)
    )
    return found or (Scenario(),)


def _least(field: Any) -> Any:
    """The least value that a number may have; None: it has none."""
    for one in field.metadata:
        if getattr(one, "ge", None) is not None:
            return one.ge
        if getattr(one, "gt", None) is not None and field.annotation is int:
            return one.gt + 1
    return None


def _choices(field: Any) -> list[Any]:
    """The named values that the option may have, but for its default."""
    kind, named = field.annotation, list[Any]()
    if kind is bool:
        named = [False, True]
    elif get_origin(kind) is Literal:
        named = list(get_args(kind))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        named = [one.value for one in kind]
    default = field.get_default(call_default_factory=True, validated_data={})
    return [one for one in named if one != getattr(default, "value", default)]


def _begins(machine: Machine, scenario: Scenario) -> bool:
    """A run with these options can begin. What its functions raise otherwise is found by exploring."""
    try:
        made = _made(machine, scenario)
        given = RunInput(goal=scenario.goal, tools=tuple(_with_tools(made, scenario, ())[0].tools))
        start(Program(made, given, options=scenario.options), now=0.0, ledger=Ledger())
    except ValueError:
        return False
    except Exception:  # noqa: BLE001  # the exploration says what is wrong, and where
        return True
    return True


def _with_tools(
    machine: Machine, scenario: Scenario, tools: Sequence[ToolSpec]
) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario with a spec for every tool that a state names."""
    specs = {spec.name: spec for spec in scenario.tools}
    known = {spec.name: spec for spec in tools}
    used = {name for one in machine.states for name in one.tools or ()}
    takes_any = any(CallTools in one.asks and one.tools is None for one in machine.states)
    stand_ins = {one.name for one in STAND_INS} if takes_any and not specs and not used else set()
    if unknown := sorted(scenario.outputs.keys() - specs.keys() - used - stand_ins):
        if not takes_any:
            there = _listed(frozenset({*specs, *used})) or "none"
            who = f"scenario {scenario.name!r}: outputs"
            raise ValueError(f"{who}: no state calls a tool {unknown[0]!r}; there are: {there}")
        used |= scenario.outputs.keys()
    named = sorted(used - specs.keys())
    made_up = tuple(name for name in named if name not in known)
    specs |= {name: known.get(name) or open_tool(name) for name in named}
    if not specs and any(CallTools in one.asks for one in machine.states):
        specs = {spec.name: spec for spec in STAND_INS}
    return replace(scenario, tools=tuple(specs.values())), made_up


def _counterexample(
    machine: Machine, scenario: Scenario, violation: Violation, extensions: Extensions
) -> Counterexample:
    """The violation as a run of the engine, also where a loop is running already."""
    played = reproduced(machine, scenario, violation, scenario.tools, extensions)
    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(asyncio.run, played)
        try:
            return Counterexample(violation, work.result())
        except NotReproduced as why:
            return Counterexample(violation, None, str(why))


def _cut(text: str) -> str:
    left = len(text) - ANSWER_CHARS
    return text if left <= 0 else f"{text[:ANSWER_CHARS]} [... {counted(left, 'character')}]"


def _joined(answers: Sequence[str]) -> str:
    """As many as fit a line, and how many are left."""
    shown = [" ".join(_cut(answer).split()) or "''" for answer in answers]
    fit = 1
    while fit < len(shown) and len(", ".join(shown[: fit + 1])) <= DOMAIN_CHARS:
        fit += 1
    left = [f"and {len(shown) - fit} more (`--json` has all)"] if fit < len(shown) else []
    return ", ".join([*shown[:fit], *left])


def _line(text: str) -> str:
    text = " ".join(text.split("\n"))
    return text if len(text) <= DOMAIN_CHARS else f"{text[: DOMAIN_CHARS - 4]} ..."
