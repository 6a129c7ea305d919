"""What holds for every machine of the registry, whatever it does.

A machine brings `scripts_<name>.py` with `SCRIPTS`, which together take every row of its table, and
`REPLIES`, what a model may say in random runs; it may bring `answers(effect)`, a strategy for the
answers to effects of other kinds.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import json
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.contracts import (
    AskPerson,
    CallModel,
    CallModels,
    CallTools,
    EffectFailed,
    ErrorClass,
    ModelsReplied,
    PersonDecided,
    ToolResult,
    ToolsReturned,
)
from tests.machines.driver import Play, play
from tests.machines.script import PARTS, TOOL, Script
from workflows import machines
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.diagram import mermaid
from workflows.kernel.errors import name_of
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import Step, dump, load
from workflows.kernel.step import advance, start
from workflows.machines.declined import DECLINED
from workflows.registry import shipped

DESIGNS = [pytest.param(design, id=f"{design.name}-{design.version}") for design in shipped()]
every_machine = pytest.mark.parametrize("design", DESIGNS)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "machines.md"


def built(design: Design) -> Machine[Any]:
    """The machine with its default knobs."""
    return design.build(design.options(), PARTS)


def scripts(design: Design) -> ModuleType:
    """The module that a machine has to bring."""
    return importlib.import_module(f"tests.machines.scripts_{design.name}")


def plays(design: Design) -> list[Play]:
    """All its scripts, played."""
    found: tuple[Script, ...] = scripts(design).SCRIPTS
    return [script.run(design) for script in found]


def machine_modules(design: Design) -> list[ModuleType]:
    """The modules of one machine: `<name>.py` and `<name>_*.py`."""
    names = [info.name for info in pkgutil.iter_modules(machines.__path__)]
    mine = [name for name in names if name == design.name or name.startswith(f"{design.name}_")]
    return [importlib.import_module(f"{machines.__name__}.{name}") for name in mine]


def events(design: Design) -> set[type]:
    """The event classes that a machine's modules define: frozen dataclasses with a reason for people."""
    found: set[type] = set()
    for module in machine_modules(design):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            own = dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
            if own and "reason" in kind.__annotations__:
                found.add(kind)
    return found


@every_machine
def test_a_machine_builds_with_its_default_knobs_and_its_names_agree(design: Design) -> None:
    machine = design.build(design.options(), Parts())
    assert (machine.name, machine.version) == (design.name, design.version)
    assert "default" in design.roles
    assert machine.step_state is not None
    assert design.description


@every_machine
def test_every_row_of_the_table_is_taken_by_some_script(design: Design) -> None:
    rows = {(name_of(r.source), r.event.__name__, name_of(r.target)) for r in built(design).rows}
    taken = {(r.state, r.event, r.to) for run in plays(design) for r in run.records if r.to}
    assert rows - taken == set()


@every_machine
def test_every_script_of_a_machine_uses_all_its_answers(design: Design) -> None:
    found: tuple[Script, ...] = scripts(design).SCRIPTS
    assert {script.name: script.run(design).unused for script in found} == dict.fromkeys(
        (script.name for script in found), 0
    )


@every_machine
def test_every_event_class_of_a_machine_has_a_row(design: Design) -> None:
    assert events(design)
    assert events(design) - {row.event for row in built(design).rows} == set()


@every_machine
def test_no_script_ends_by_a_broken_rule_or_a_dead_end(design: Design) -> None:
    for run in plays(design):
        assert [record.error for record in run.records if record.error] == []
        assert run.last.exit is None or run.last.exit.reason != "dead_end"


def _same(machine: Machine[Any], run: Play) -> None:
    """The state equals what the log says, also when the log comes out of JSON."""
    snapshot = run.last.snapshot
    assert rebuild(machine, run.records) == (snapshot.state, snapshot.context)
    texts = [record.model_dump_json() for record in run.records]
    again = [Record.model_validate_json(text) for text in texts]
    assert again == list(run.records)
    assert rebuild(machine, again) == (snapshot.state, snapshot.context)


@every_machine
def test_the_state_can_be_rebuilt_from_the_log_of_every_script(design: Design) -> None:
    for run in plays(design):
        _same(run.machine, run)


@every_machine
def test_a_snapshot_survives_json_at_every_effect_of_every_script(design: Design) -> None:
    for run in plays(design):
        for step in run.steps:
            text = json.dumps(dump(step.snapshot), allow_nan=False)
            assert load(run.machine, json.loads(text)) == step.snapshot


# -- random runs --------------------


def answer_to(effect: Any, given: ModuleType) -> st.SearchStrategy[Any]:
    """Any answer that the world may give to an effect; `given` is the machine's module of scripts."""
    own: st.SearchStrategy[Any] | None = given.answers(effect) if hasattr(given, "answers") else None
    if own is not None:
        return own
    replies: st.SearchStrategy[Any] = given.REPLIES
    kinds: st.SearchStrategy[ErrorClass] = st.sampled_from(
        ["transient", "recoverable", "fatal", "unknown_outcome"]
    )
    fails = st.builds(EffectFailed, error=kinds, type=st.just("HTTP503"), message=st.text(max_size=5))
    if isinstance(effect, CallModel):
        return st.one_of(replies, replies, replies, fails)
    if isinstance(effect, CallModels):
        each = st.tuples(*[st.one_of(replies, replies, fails) for _ in effect.calls])
        return each.map(lambda given: ModelsReplied(replies=given))
    if isinstance(effect, CallTools):
        errors = st.sampled_from(
            [None, None, None, "failed", "transient", "bad_arguments", "unknown_outcome", *DECLINED]
        )
        made = [
            st.builds(
                ToolResult,
                id=st.just(run.id),
                tool=st.just(run.tool),
                output=st.text(max_size=9),
                error=errors,
            )
            for run in effect.runs
        ]
        returned = st.tuples(*made).map(lambda results: ToolsReturned(results=results))
        return st.one_of(returned, returned, fails)
    assert isinstance(effect, AskPerson), effect
    choices = st.sampled_from(["resume", "abort", "answer", "unavailable"])
    return st.builds(PersonDecided, decision=choices, text=st.text(max_size=5))


def random_run(design: Design, data: st.DataObject, most: int = 25) -> Play:
    """A run of at most so many answers, drawn one by one."""
    machine, given = built(design), scripts(design)
    context = design.begin(Brief("goal", "trace", tools=(TOOL,)), design.options())
    steps: list[Step[Any]] = [start(machine, context, now=1)]
    for now in itertools.count(2):
        effect = steps[-1].effect
        if effect is None or now > most:
            return Play(machine, tuple(steps))
        steps.append(advance(machine, steps[-1], data.draw(answer_to(effect, given)), now=now))
    raise AssertionError("a count has no end")


@every_machine
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_state_can_be_rebuilt_from_the_log_of_any_run(design: Design, data: st.DataObject) -> None:
    run = random_run(design, data)
    _same(run.machine, run)
    assert [record.seq for record in run.records] == list(range(len(run.records)))


OUTSIDE_THE_TABLE = {"Started", "Closed"}
"""Events of the kernel that need no row: the start, and the close in the middle."""
BROKEN = {"PermissionViolation", "InvariantViolation", "BadPatch", "NoTransitionError"}
"""What a machine of ours never does, whatever the world answers."""


def ends_by_the_rules(design: Design, data: st.DataObject) -> None:
    """A run of random answers under limits ends, along its table, with all its invariants."""
    machine, given = built(design), scripts(design)
    context = design.begin(Brief("goal", "trace", tools=(TOOL,)), design.options())
    ledger = Ledger(caps={"model_calls": 25, "tool_calls": 25})
    step = start(machine, context, now=1, ledger=ledger)
    records = list(step.records)
    for now in itertools.count(2):
        if step.effect is None:
            break
        assert now < 2000, f"it does not end: {[r.event for r in records[-10:]]}"
        step = advance(machine, step, data.draw(answer_to(step.effect, given)), now=now)
        records += step.records
    assert step.exit is not None
    assert step.exit.reason != "dead_end"
    rows = {(name_of(r.source), r.event.__name__, name_of(r.target)) for r in machine.rows}
    moves = {(r.state, r.event, r.to) for r in records if r.to and r.event not in OUTSIDE_THE_TABLE}
    fail = name_of(machine.fail_state) if machine.fail_state else None
    assert {move for move in moves - rows if move[2] != fail} == set()
    assert [r.event for r in records if r.event in BROKEN] == []
    of_kernel = {"limit", "max_transitions", "aborted", *machine.limit_reasons.values()}
    assert step.exit.reason in {*design.exits, *of_kernel}


@every_machine
@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_answers_never_leave_the_table_and_always_end(design: Design, data: st.DataObject) -> None:
    ends_by_the_rules(design, data)


@pytest.mark.exhaustive
@every_machine
@settings(deadline=None, max_examples=3000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_thousands_of_random_runs_never_leave_the_table_and_always_end(
    design: Design, data: st.DataObject
) -> None:
    ends_by_the_rules(design, data)


@every_machine
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_run_goes_on_alike_from_its_snapshot_out_of_json(design: Design, data: st.DataObject) -> None:
    run = random_run(design, data, most=12)
    before = run.last
    text = json.dumps(dump(before.snapshot), allow_nan=False)
    after = dataclasses.replace(before, snapshot=load(run.machine, json.loads(text)))
    assert after.snapshot == before.snapshot
    if before.effect is None:
        return
    answer = data.draw(answer_to(before.effect, scripts(design)))
    assert advance(run.machine, before, answer, now=99) == advance(run.machine, after, answer, now=99)


@every_machine
def test_the_same_script_gives_the_same_log(design: Design) -> None:
    for script in scripts(design).SCRIPTS:
        assert script.run(design).records == script.run(design).records


@every_machine
def test_a_run_that_was_started_does_not_change_the_machine(design: Design) -> None:
    machine = built(design)
    context = design.begin(Brief("goal", "trace", tools=(TOOL,)), design.options())
    first = play(machine, context, scripts(design).SCRIPTS[0].answers)
    assert play(machine, context, scripts(design).SCRIPTS[0].answers).records == first.records


# -- the docs --------------------


@every_machine
def test_the_docs_once_they_are_there_have_the_diagram_of_the_machine(design: Design) -> None:
    text = DOCS.read_text(encoding="utf-8") if DOCS.exists() else mermaid(built(design))
    assert mermaid(built(design)) in text
