"""From a task to a machine ready to start: what is refused, what a fork and an inner run begin with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from activities.contracts import InnerLimits, ModelSpec, RunMachine
from activities.extensions import load_modules
from tests.people import any_effect
from tests.people.bench import LOOK, PAY, Bench, brain
from workflows import registry
from workflows.api import AgentTask, Carry, Fork, Limits, Origin
from workflows.people import ApprovalRule, Approvals, Group, People
from workflows.task import (
    InvalidTask,
    cancelled_step,
    carried_step,
    first_step,
    inner_task,
    parse_task,
    program_for,
)

TOOLS = {"look": LOOK, "pay": PAY}


def task(**more: Any) -> AgentTask:
    """A task of `any_effect`."""
    return AgentTask.model_validate(
        {"goal": "begin", "machine": "any_effect", "tools": ("look", "pay"), **more}
    )


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ([], "0 values"),
        ([{"goal": "a"}, {"goal": "b"}], "2 values"),
        ([{"goal": " "}], "goal"),
        ([{"goal": "x" * 200_001}], "200,001 bytes"),
        ([{"goal": "a", "modles": {}}], "modles"),
        ([{"goal": "a", "models": {"other": {}}}], "default"),
        ([{"goal": "a", "tools": ["look", "look"]}], "duplicate tool: look"),
        ([{"goal": "a", "limits": {"model_calls": -1}}], "limits.model_calls"),
    ],
)
def test_unusable_input_is_refused_with_the_field(inputs: list[Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        parse_task(inputs)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"machine": "any_efect"}, "did you mean any_effect"),
        ({"machine_version": "7"}, "any_effect of version 7"),
        ({"material": "a text"}, "material: any_effect takes none"),
        ({"models": {"default": ModelSpec(), "critic": ModelSpec()}}, "no role critic"),
        ({"people": People(interrupt_states=("wrok",))}, "wrok"),
        ({"approvals": Approvals(tools={"pya": "always"})}, "approvals.tools.pya"),
        ({"approvals": Approvals(rules=(ApprovalRule(arguments={"y": {"const": 1}}),))}, "no argument 'y'"),
    ],
)
def test_task_that_cannot_be_run_says_why(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        program_for(task(**more), TOOLS, "t-1")


def stages(**of_the_first: Any) -> dict[str, Any]:
    """A task of stages, the first of which is an inner machine."""
    first = {
        "name": "look", "flow_type": "machine", "enters": "Thinking", "exits": ["Observing"],
        "merge": "observation", "writes": ["observation"], **of_the_first,
    }  # fmt: skip
    last = {"name": "close", "flow_type": "observe", "enters": "Observing", "exits": ["Thinking", "Finished"]}
    return {"machine": "staged", "tools": (), "options": {"stages": [first, last]}}


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        ({"machine": "reakt"}, "options.stages.0: unknown machine reakt; did you mean react"),
        ({"machine": "react", "machine_version": "9"}, "options.stages.0: .*of version 9"),
        ({"machine": "react", "options": {"max_steps": 0}}, "options.stages.0.options.max_steps"),
        (
            {"machine": "react", "roles": {"critic": "think"}},
            "roles.critic: machine react has no role critic",
        ),
        ({"machine": "react", "roles": {"default": "big"}}, "roles.default: the agent has no role big"),
    ],
)
def test_inner_machine_that_cannot_run_is_refused_before_run(first: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        program_for(task(**stages(**first)), TOOLS, "t-1")


def named(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {"tools": named("t", 100_000)},
            "100,0.. values in lists and maps, most of them in `tools`; at most 50,000",
        ),
        ({"tools": named("t", 501)}, "tools: Tuple should have at most 500 items"),
        (
            {"models": {key: {} for key in named("m", 101)}},
            "models: Dictionary should have at most 100 items",
        ),
        (
            {"options": dict.fromkeys(named("o", 1001), 1)},
            "options: Dictionary should have at most 1000 items",
        ),
        ({"values": dict.fromkeys(named("v", 1001), 1)}, "values: Dictionary should have at most 1000 items"),
        ({"options": {"a": [[0] * 1000] * 60}}, "most of them in `options`"),
        (dict.fromkeys(named("f", 60_000), 1), "60,0.. values in lists and maps; at most 50,000"),
        (
            {"models": {"default": {"script": [{"reply": 1}] * 10_001}}},
            "script: Tuple should have at most 10000",
        ),
        ({"models": {"default": {"name": "m" * 301}}}, "name: String should have at most 300 characters"),
        (
            {"approvals": {"rules": [{"tools": named("t*", 300)}] * 2}},
            "rules: they name 600 tools in all, at most 500",
        ),
        (
            {"approvals": {"rules": [{"arguments": dict.fromkeys(named("a", 99), True)}] * 3}},
            "rules: they name 297 arguments in all, at most 200",
        ),
        (
            {"approvals": {"rules": [{"arguments": {"a": {"anyOf": [{"type": "string"}] * 1000}}}]}},
            "2,002 values in the schemas, at most 1,000",
        ),
    ],
)
def test_task_too_large_to_be_checked_in_time_is_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem.replace("*", r"\*")):
        parse_task([{"goal": "x", **more}])


def test_misspelt_tool_of_a_state_is_refused_at_the_start() -> None:
    work, *others = sorted(any_effect.MACHINE.states, key=lambda one: one.name is not any_effect.S.WORK)
    states = [replace(work, tools=frozenset({"lok"})), *others]
    with pytest.raises(InvalidTask, match=r"state work of machine any_effect .*`lok`.* did you mean `look`"):
        program_for(task(), TOOLS, "t-1", replace(any_effect.MACHINE, states=states))


def test_inner_run_gets_the_smaller_limits_and_its_own_tools() -> None:
    outer = task(
        limits=Limits(model_calls=10, cost_usd=2, depth=3),
        models={"default": ModelSpec(name="big"), "small": ModelSpec(name="small")},
        people=People(groups={"ops": Group(members=("ann",))}, interrupt_every=1),
        spent_above_usd=1,
    )
    effect = RunMachine(
        machine="any_effect", goal="inner", give=("look",), roles={"default": "small"},
        limits=InnerLimits(model_calls=3, tokens=50, max_transitions=9), values={"a": 1},
    )  # fmt: skip
    inner = inner_task(outer, effect, {"model_calls": 2, "cost_usd": 1.5}, spent_usd=0.5)
    assert inner.limits == Limits(model_calls=2, cost_usd=1.5, tokens=50, max_transitions=9, depth=3)
    assert (inner.tools, inner.depth, inner.spent_above_usd) == (("look",), 1, 1.5)
    assert (inner.models["default"].name, inner.values) == ("small", {"a": 1})
    assert (inner.people.interrupt_every, inner.people.groups) == (None, outer.people.groups)


def test_inner_run_cannot_get_a_tool_that_the_run_lacks() -> None:
    with pytest.raises(ValueError, match="dig"):
        inner_task(task(), RunMachine(machine="any_effect", goal="a", give=("dig",)), {}, 0)


async def test_fork_goes_on_from_a_step_of_another_run() -> None:
    async with Bench(["tools look a", "tools look b", "answer c"]) as source:
        records = tuple(record.model_dump(mode="json") for record in source.records)
    origin = Origin(workflow_id="run-0", run_id="x", step=2)
    forking = Bench(["answer d"], fork=Fork(origin=origin, records=records))
    async with forking as bench:
        assert (bench.question(), bench.result.answer) == ("ok look a", "d")
        assert bench.result.origin == origin
        assert bench.result.counters["model_calls"] == 1
        assert bench.records[0].by == "person"
    nowhere = task(fork=Fork(origin=origin.model_copy(update={"step": 9}), records=records))
    with pytest.raises(InvalidTask, match="No step 9"):
        first_step(nowhere, forking.program, now=0)
    (ended,) = cancelled_step(nowhere, "run-1", now=0).records
    assert ended.seq == len(records)


async def test_records_of_a_fork_name_who_forked_it() -> None:
    async with Bench(["tools look a", "answer c"]) as source:
        records = tuple(record.model_dump(mode="json") for record in source.records)
    origin = Origin(workflow_id="run-0", run_id="x", step=2)
    fork = Fork(origin=origin, records=records, message="Be brief.", by="ann")
    async with Bench(["answer d"], fork=fork) as bench:
        own = [(record.event, record.by) for record in bench.records[:2]]
    assert own == [("Forked", "ann (claimed)"), ("Steered", "ann (claimed)")]
    with pytest.raises(ValidationError, match="is not a name"):
        Fork(origin=origin, by="ann (verified)")


async def test_carried_run_of_another_machine_is_refused() -> None:
    async with Bench(brain("ask sure?")) as bench:
        dump = bench.drive.dump()
        assert isinstance(dump["step"], dict)
        dump["step"]["state"] = "elsewhere"
        with pytest.raises(InvalidTask, match="elsewhere"):
            carried_step(bench.program, Carry(origin_run_id="origin", drive=dump), now=0)


# -- the registry --------------------


def module(name: str, **values: Any) -> ModuleType:
    """A user's module, as if imported."""
    made = sys.modules[name] = ModuleType(name)
    for key, value in values.items():
        setattr(made, key, value)
    return made


def test_module_adds_extensions_under_both_names() -> None:
    registry.add_module(any_effect)
    rules = registry.extensions().rules
    assert rules["short"] is rules["any_effect.short"] is any_effect.short


def test_options_naming_no_hook_of_user_run_shipped_code_alone(tmp_path: Path) -> None:
    file = tmp_path / "hooked.py"
    file.write_text("HOOKS = dict.fromkeys(('ax', 'größer', 'quo\"te'), len)")
    registry.add_module(load_modules([str(file)])[0])
    assert registry.is_shipped("staged", {"stages": [{"name": "relax", "reads": ["taxes"]}]})
    for name in ("ax", "hooked.ax", "größer", 'quo"te'):
        assert not registry.is_shipped("staged", {"stages": [{"name": "act", "hook": name}]})
        assert not registry.is_shipped("staged", {"hooks": {name: {}}})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"MACHINE": "any_effect"}, "is not a Machine"),
        (
            {"MACHINE": replace(any_effect.MACHINE)},
            "a machine any_effect of version 1 is in .*any_effect.py, too",
        ),
        (
            {"MACHINE": replace(any_effect.MACHINE, name="tools", version="99")},
            "a machine tools .version 99.* rename",
        ),
        ({"RULES": {"r": 5}}, "rule 'r' is not callable"),
        ({"POLICIES": {"max_tokens": lambda spec: None}}, "policy max_tokens already"),
    ],
)
def test_module_that_cannot_be_used_is_refused(values: dict[str, Any], problem: str) -> None:
    before = registry.machines()
    with pytest.raises((TypeError, ValueError), match=problem):
        registry.add_module(module("users2", **values))
    assert registry.machines() == before


def test_machine_that_is_imported_stays_that_of_its_module() -> None:
    tools = registry.machine("tools")
    registry.add_module(module("users3", MACHINE=tools))
    assert [one.__name__ for one in registry.modules_of(tools, {})] == ["workflows.machines.tools"]


def test_machine_with_a_shipped_name_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    imported = "from dataclasses import replace\nfrom workflows.machines.tools import MACHINE as SHIPPED\n"
    file.write_text(f'{imported}MACHINE = replace(SHIPPED, version="99")\n')
    with pytest.raises(ValueError, match=r"mine\.py: line 3: a machine tools \(version 99\)"):
        registry.add_module(*load_modules([str(file)]))
