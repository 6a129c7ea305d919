"""Verifies a machine: each of its scenarios is explored, and every counterexample is played by the engine.

report = verify(MACHINE)
assert report.ok, report.text
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from activities.contracts import CallTools, JsonObject, ToolSpec
from activities.extensions import ExtensionError, declared, load_modules
from client.cassette.counterexample import NotConfirmed, confirmed
from client.errors import UsageError
from client.runs.words import counted
from client.server.workerconfig import register_modules
from workflows.kernel.machine import Extensions, Machine, RunInput
from workflows.kernel.properties import Scenario
from workflows.kernel.snapshot import Program
from workflows.registry import extensions as loaded_extensions
from workflows.registry import made_of
from workflows.verify.code.declared import Finding, findings
from workflows.verify.runs.domain import LEFT_OUT, Domain, open_tool
from workflows.verify.runs.explore import Explored, Violation, explore
from workflows.verify.runs.moments import BUILT_IN

if TYPE_CHECKING:
    from client.cassette.file import Cassette

__all__ = ["Counterexample", "MachineReport", "ScenarioReport", "declared_machines", "verify"]

SECONDS = 60.0
"""How long one scenario is explored, in seconds."""
STILL = {
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
ANSWER_CHARS = 400
"""Characters of an answer in a report."""


@dataclass(frozen=True)
class Counterexample:
    """A shortest run that violates something."""

    violation: Violation
    cassette: Cassette | None
    """The run, as `ratchet test` plays it; None: the engine does not let it happen."""
    unconfirmed: str = ""
    """Why there is no cassette."""

    @property
    def lines(self) -> Iterator[str]:
        """The answers on the way, whole, and what came then."""
        one = self.violation
        kind = "built in: " if one.built_in else ""
        yield f"VIOLATED  {kind}{one.name}{f': {one.detail}' if one.detail else ''}"
        width = max((len(turn.state) for turn in one.turns), default=0)
        for number, turn in enumerate(one.turns):
            if one.rounds and number == len(one.turns) - one.rounds:
                yield "    and from here on again and again"
            yield f"    {turn.state:{width}}  {_cut(turn.text)}"
        if one.shown:
            yield f"    then {_cut(one.shown)}"
        if one.place:
            yield f"    in {one.place}"
        if self.cassette is None:
            yield f"    NOT CONFIRMED: {self.unconfirmed}"


@dataclass(frozen=True)
class ScenarioReport:
    """What came of one scenario."""

    scenario: Scenario
    explored: Explored
    counterexamples: tuple[Counterexample, ...]
    never_taken: tuple[tuple[str, str, str], ...]
    """Rows of the table that no run of the domain takes: (state, event, state)."""
    made_up: tuple[str, ...]
    """Tools of which only the name is known."""

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
        for source, event, target in self.never_taken:
            yield f"  untaken  {source} --{event}--> {target}"
        if still := sorted({STILL[one] for one in found.still}):
            yield f"  still    it reads {' and '.join(still)}, which do not move here"
        if self.made_up:
            yield f"  open     {', '.join(self.made_up)}: only the name is known, any arguments, `unsafe`"


@dataclass(frozen=True)
class MachineReport:
    """What is known of a machine's runs in its scenarios."""

    machine: Machine
    scenarios: tuple[ScenarioReport, ...]
    findings: tuple[Finding, ...] = ()
    """Where declaration and code differ, or may differ."""

    @property
    def counterexamples(self) -> tuple[Counterexample, ...]:
        """Of all scenarios, each violation once."""
        found = {
            (c.violation.name, c.violation.place or c.violation.detail): c
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
    def text(self) -> str:
        """The whole report."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.machine.name} {self.machine.version}"
        yield from self._code_lines()
        for one in self.scenarios:
            yield from one.lines
        for found in self.counterexamples:
            yield ""
            yield from found.lines
        yield ""
        held = [one.name for one in self.machine.properties if not self._is_violated(one.name)]
        built_in = [text for name, text in BUILT_IN.items() if not self._is_violated(name)]
        if held or built_in:
            proven = "proven" if self.complete else "not violated as far as it was explored,"
            yield f"{proven} for every reply, result, failure and decision of the domain below:"
            yield from (f"  {name}" for name in held)
            yield from (f"  built in: {text}" for text in built_in)
        yield ""
        yield "domain"
        yield "  every failure of each effect, each decision of a person; replies and outputs from forms,"
        yield "  schemas of tools and scenarios. Left out:"
        yield from (f"  - {text}" for text in LEFT_OUT)

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
    seconds: float = SECONDS,
    progress: Callable[[str, Explored], None] = lambda scenario, found: None,
) -> MachineReport:
    """Explore the machine's scenarios, or those given, for at most so many seconds each.

    Args:
        machine: the machine, or the file that declares one.
        tools: specs of tools; a scenario's own come first. Of a tool that a state names and nobody knows, any
            arguments and any end are tried.
        extensions: rules, policies and hooks that options may name; default: those that are loaded.

    Raises PropertyBug, and ValueError for options that do not fit the machine, or a file without one.
    """
    if not isinstance(machine, Machine):
        (machine,) = declared_machines(machine)
    wanted = tuple(scenarios or machine.scenarios or _derived(machine))
    found = extensions if extensions is not None else loaded_extensions()
    reports = tuple(_explored(machine, one, tools, found, seconds, progress) for one in wanted)
    return MachineReport(machine, reports, findings(machine))


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


def _explored(  # as `verify` is asked, for one scenario
    machine: Machine,
    scenario: Scenario,
    tools: Sequence[ToolSpec],
    extensions: Extensions,
    seconds: float,
    progress: Callable[[str, Explored], None],
) -> ScenarioReport:
    machine = made_of(machine, scenario.options)
    scenario, made_up = _with_tools(machine, scenario, tools)
    extensions = _with(scenario.extensions, extensions)
    given = RunInput(
        goal=scenario.goal, tools=tuple(scenario.tools), depth=scenario.depth, values=scenario.values
    )
    program = Program(machine, given, options=scenario.options, extensions=extensions)
    explored = explore(
        program, Domain(scenario, {spec.name: spec for spec in scenario.tools}), machine.properties,
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
    )


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
    """The default options, and small ones: every number that has a least value at that."""
    least = {
        name: next(one.ge for one in field.metadata if getattr(one, "ge", None) is not None)
        for name, field in machine.options.model_fields.items()
        if any(getattr(one, "ge", None) is not None for one in field.metadata)
    }
    try:
        machine.read_options(least)
    except ValueError:
        least = {}
    small = (Scenario(name="small", options=least),) if least else ()
    return (Scenario(), *small)


def _with_tools(
    machine: Machine, scenario: Scenario, tools: Sequence[ToolSpec]
) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario with a spec for every tool that a state names."""
    specs = {spec.name: spec for spec in scenario.tools}
    known = {spec.name: spec for spec in tools}
    named = sorted({name for one in machine.states for name in one.tools or ()} - specs.keys())
    made_up = tuple(name for name in named if name not in known)
    specs |= {name: known.get(name) or open_tool(name) for name in named}
    if not specs and any(CallTools in one.asks for one in machine.states):
        specs = {spec.name: spec for spec in STAND_INS}
    return replace(scenario, tools=tuple(specs.values())), made_up


def _counterexample(
    machine: Machine, scenario: Scenario, violation: Violation, extensions: Extensions
) -> Counterexample:
    """The violation as a run of the engine, also where a loop is running already."""
    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(asyncio.run, confirmed(machine, scenario, violation, scenario.tools, extensions))
        try:
            return Counterexample(violation, work.result())
        except NotConfirmed as why:
            return Counterexample(violation, None, str(why))


def _cut(text: str) -> str:
    left = len(text) - ANSWER_CHARS
    return text if left <= 0 else f"{text[:ANSWER_CHARS]} [... {counted(left, 'character')}]"
