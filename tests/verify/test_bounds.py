"""The blast radius: what is printed is what runs reach, and never more than they do."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from activities.contracts import ModelReplied, NativeCall, RunMachine
from activities.tools import Tool
from client.sdk.local import Asked, Local, ScriptedModel, tool_call
from workflows import registry
from workflows.api import AgentSpec, AgentTask, Limits
from workflows.gate.approvals import ApprovalPolicy, label_problems, problems
from workflows.kernel.labels import Labels, ToolLabels
from workflows.kernel.machine import Machine
from workflows.people import ApprovalRule, Approvals, AtMost, Bound, Group, People, RequestSettings
from workflows.task import inner_task
from workflows.verify.policy.bounds import CallsBound, calls_bound, largest_sum, may_be_unbounded, radius
from workflows.verify.policy.call_sets import CallSet, JudgedCall, level_of
from workflows.verify.policy.ranges import Cell
from workflows.verify.policy.report import JudgedAgent, alone_text, excess, radius_text, reported, tool_report
from workflows.verify.policy.run_so_far import RunSoFar, agent_from_here

pytest.importorskip("z3")

from tests.verify.test_policy import MODE, RULE  # behind the skip
from workflows.verify.policy.questions import RunPolicy, call_sets  # behind the skip


class Params(BaseModel, frozen=True, extra="forbid"):
    """Send money."""

    cents: int = Field(ge=0, le=6)
    to: Literal["ann", "bob", "bank"]
    fast: bool = False
    note: Literal["a"] | None = None


def bank(paid: list[int]) -> Tool[Params]:
    def run(params: Params) -> str:
        paid.append(params.cents)
        return f"paid {len(paid)}"

    return Tool(name="pay", params=Params, run=run, effect="unsafe")


PAY = bank([]).spec()


def agent(machine: str = "tools", *, limits: Limits | None = None, **options: Any) -> AgentSpec:
    never = ApprovalRule(arguments={"cents": {"maximum": 4}}, ask="never")
    return AgentSpec(
        machine=machine,
        tools=("pay",),
        options=options,
        limits=limits or Limits(),
        approvals=Approvals(rules=(never,)),
    )


def sets_of(approvals: Approvals) -> tuple[CallSet, ...]:
    return tuple(call_sets(RunPolicy(ApprovalPolicy(approvals, People(), {"pay": PAY})), PAY))


def machine_of(spec: AgentSpec) -> Machine:
    return registry.machine_for(spec.machine, None, spec.options, newest=True)[0]


# -- what is printed is what a run reaches --------------------


def thinks(asked: Asked) -> str:
    """React, and the planner without a plan: one call each time."""
    call = {"cents": 4, "to": "ann", "note": None}
    return json.dumps(
        {"thought": "more", "action": "pay", "action_input": call, "params": call, "confidence": 1}
    )


def calls_natively(times: int) -> Any:
    """As many calls as a reply may hold."""
    numbers = count()
    arguments = json.dumps({"cents": 4, "to": "ann"})

    def model(asked: Asked) -> ModelReplied | str:
        if asked.role == "planner":
            return json.dumps({"goal": "g", "required_capabilities": [], "initial_steps": []})
        each = (NativeCall(id=f"c{next(numbers)}", name="pay", arguments=arguments) for _ in range(times))
        return ModelReplied(text="", tool_calls=tuple(each), model="local")

    return model


def suggests(asked: Asked) -> ModelReplied | str:
    """Staged: suggest the tool, call it as often as one reply may, want another pass."""
    if asked.tools:
        return calls_natively(60)(asked)  # type: ignore[no-any-return]  # a reply
    thought = {"reasoning": "r", "intent": "change", "suggested_tools": ["pay"]}
    return json.dumps({**thought, "summary": "s", "need_loop": True, "final_answer": ""})


def decides(asked: Asked) -> str:
    """Contract: a call each round."""
    call = {"tool_id": "pay", "params": {"cents": 4, "to": "ann"}, "out_artifacts_spec": [{"name": "a"}]}
    return json.dumps({"action": "call_tool", "strategy": "explore", "tool_call": call})


def writes_code(asked: Asked) -> str:
    """Code: as many blocks as are run, and more calls in each than there may be."""
    return '```repl\nfor n in range(9):\n    pay(cents=4, to="ann")\n```\n' * 60


@pytest.mark.parametrize(
    ("spec", "model", "reaches"),
    [
        (agent("react", max_steps=4, cost_limit=9), thinks, 4),
        (agent("tools", max_iterations=2, max_calls_per_reply=3), calls_natively(5), 6),
        (agent("tools", limits=Limits(tool_calls=2)), calls_natively(1), 2),
        (agent("tools", limits=Limits(model_calls=2), max_calls_per_reply=3), calls_natively(5), 6),
        (agent("planner", mode="simple", max_iterations=3, on_tool_error="record"), thinks, 3),
        (agent("planner", max_iterations=2), calls_natively(7), None),
        (agent("staged", max_iterations=2, on_max_iterations="last_observation"), suggests, 100),
        (agent("contract", caps={"decision_rounds": 3}), decides, None),
        (agent("code", max_iterations=1, block={"calls": 2}), writes_code, None),
    ],
    ids=lambda one: one.machine if isinstance(one, AgentSpec) else "",
)
async def test_run_calls_as_often_as_is_said_and_never_more(
    spec: AgentSpec, model: Any, reaches: int | None
) -> None:
    """A hostile model, and nobody asked. `None`: the bound is not reached, it holds."""
    paid: list[int] = []
    quiet = spec.model_copy(update={"stuck": None})
    await Local(quiet, model=model, tools=[bank(paid)]).run("go")
    bound = calls_bound(machine_of(spec), spec)
    found = radius(sets_of(spec.approvals), "unasked", bound)
    assert found is not None
    assert 0 < len(paid) <= found.calls
    assert sum(paid) <= found.sums["cents"] == 4 * found.calls
    if reaches is not None:
        assert len(paid) == found.calls == reaches


def test_run_reaches_exactly_the_bound_of_its_rule() -> None:
    """The rule lets 4 + 4 + 1 pass and no more, whatever order the model tries."""
    never = ApprovalRule(ask="never", at_most=AtMost(calls=3, sum={"cents": 9}))
    spec = agent().model_copy(update={"approvals": Approvals(rules=(never,))})
    paid: list[int] = []
    replies = [tool_call("pay", cents=cents, to="ann") for cents in (4, 4, 4, 1, 1)]
    Local(spec, model=ScriptedModel([*replies, "done"]), tools=[bank(paid)]).run_sync("go")
    found = radius(sets_of(spec.approvals), "unasked", calls_bound(machine_of(spec), spec))
    assert found is not None
    assert (len(paid), sum(paid)) == (found.calls, found.sums["cents"]) == (3, 9)


def test_calls_that_need_a_person_are_not_made_when_unattended() -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline="approve")
    spec = agent().model_copy(update={"people": People(requests=settings, unattended=True)})
    report = reported(JudgedAgent(spec, machine_of(spec), {"pay": PAY}))
    assert [one.level for one in report.sets["pay"]] == ["unasked", "refused"]
    assert [one.level for one in report.radii] == ["unasked"]


def test_deadline_that_approves_undoes_a_bound() -> None:
    """Beyond the bound people are asked, and when nobody answers the calls are made."""
    settings = RequestSettings(deadline_seconds=60, at_deadline="approve")
    never = ApprovalRule(ask="never", at_most=AtMost(calls=3), request=settings)
    spec = agent().model_copy(update={"approvals": Approvals(rules=(never,))})
    levels = {one.level: one for one in reported(JudgedAgent(spec, machine_of(spec), {"pay": PAY})).radii}
    assert levels["unasked"].sums == {"cents": 18}
    assert levels["expiry"].sums == {"cents": 6000}


def alone(spec: AgentSpec, run: RunSoFar) -> str:
    """What a run that is so far could do with nobody asked."""
    now = agent_from_here(spec, run)
    found = JudgedAgent(now, machine_of(now), {"pay": PAY})
    return alone_text(found, "pay", run.approved)


def test_remainder_of_bound_is_what_run_then_lets_pass() -> None:
    never = ApprovalRule(ask="never", at_most=AtMost(calls=3, sum={"cents": 9}))
    spec = agent().model_copy(update={"approvals": Approvals(rules=(never,))})
    before, paid = [tool_call("pay", cents=4, to="ann")], list[int]()
    now = Local(spec, model=ScriptedModel([*before, "done"]), tools=[bank([])]).run_sync("go").result
    more = [tool_call("pay", cents=cents, to="ann") for cents in (6, 4, 4, 1, 1)]
    Local(spec, model=ScriptedModel([*before, *more, "done"]), tools=[bank(paid)]).run_sync("go")
    assert paid == [4, 4, 1]
    said = alone(spec, RunSoFar(bounds=now.bounds))
    assert "Without you, at most 2 more calls of pay could pass, cents at most 5 in all, such as pay(" in said


FEW = {"ask": "never", "at_most": {"calls": 3}}
USED_UP = Bound(rule="rules.0", of="calls", most=Decimal(3), used=Decimal(3))
AFTER = [{"after": ["untrusted"]}, {"ask": "never"}]
LATER = {"deadline_seconds": 9, "at_deadline": "approve"}
NO_CALL = "Without you, no further call of pay would pass."


@pytest.mark.parametrize(
    ("rules", "run", "said"),
    [
        ([FEW], RunSoFar(bounds=(USED_UP,)), NO_CALL),
        ([FEW], RunSoFar(caps={"tool_calls": 9}, tool_calls=8), "at most 1 more call of pay could pass"),
        (AFTER, RunSoFar(labels=("untrusted",)), NO_CALL),
        (AFTER, RunSoFar(), "at most 50 more calls of pay could pass"),
        ([{"cost_above": 1}, {"ask": "never"}], RunSoFar(spent_usd=2), NO_CALL),
        ([{"ask": "first_time"}], RunSoFar(approved=("r1",)), "calls that r1 approved for later pass, too"),
        ([{"request": LATER}], RunSoFar(), "could pass if nobody answers in time, cents at most 300 in all"),
    ],
    ids=["bound used up", "one call left", "has the label", "has no label", "spent", "approved", "deadline"],
)
def test_run_under_way_says_what_it_could_still_do(rules: Any, run: RunSoFar, said: str) -> None:
    approvals = Approvals.model_validate({"rules": rules})
    more = {"approvals": approvals, "labels": PEOPLE_BRING}
    assert said in alone(agent(max_iterations=10, max_calls_per_reply=5).model_copy(update=more), run)


@given(st.data(), st.booleans(), st.booleans())
def test_what_needs_no_solver_to_be_bounded_is_bounded(
    data: st.DataObject, has_largest: bool, has_limit: bool
) -> None:
    """`ratchet run` starts no solver for it."""
    cents: Any = {"type": "integer", "minimum": 0, **({"maximum": 6} if has_largest else {})}
    pay = PAY.model_copy(update={"parameters": {"type": "object", "properties": {"cents": cents}}})
    limits = Limits(tool_calls=9) if has_limit else Limits(tool_calls=None, model_calls=None)
    spec = agent(limits=limits).model_copy(update={"approvals": data.draw(POLICIES), "people": BOSS})
    machine = object.__new__(type(machine_of(spec)))
    machine.__dict__.update({**machine_of(spec).__dict__, "most_calls": None})
    found = JudgedAgent(spec, machine, {"pay": pay})
    is_unbounded = any(one.is_unbounded for one in tool_report(found, pay).radii)
    assert may_be_unbounded(spec, pay, found.bound) or not is_unbounded


def test_nothing_bounds_a_machine_that_does_not_say() -> None:
    """A machine of one's own without `most_calls`: only `limits.tool_calls` counts."""
    machine = machine_of(agent())
    unsaid = object.__new__(type(machine))
    unsaid.__dict__.update({**machine.__dict__, "most_calls": None})
    assert calls_bound(unsaid, agent()).calls == math.inf
    assert calls_bound(unsaid, agent(limits=Limits(tool_calls=7))).calls == 7


BOSS = People(groups={"boss": Group(members=("ann",))})


PEOPLE_BRING = Labels(people=("untrusted", "private"))
"""A run can have every label, and begins with none."""


def _is_usable(rule: ApprovalRule) -> bool:
    """It can protect something; a run with another one does not begin."""
    approvals = Approvals(rules=(rule,))
    tools: Any = {"tools": ("pay",), "specs": (PAY,)}
    return not (problems(approvals, BOSS, **tools) or label_problems(approvals, PEOPLE_BRING, **tools))


POLICIES = st.builds(
    Approvals,
    rules=st.lists(RULE.filter(_is_usable), max_size=3).map(tuple),
    tools=st.one_of(st.just({}), st.builds(lambda mode: {"pay": mode}, MODE)),
)


@profile(max_examples=profile().max_examples // 4)  # each is played, and takes the solver long
@given(POLICIES)
def test_every_witness_is_really_called_with_nobody_asked(approvals: Approvals) -> None:
    policy = RunPolicy(ApprovalPolicy(approvals, BOSS, {"pay": PAY}))
    for one in call_sets(policy, PAY):
        if one.level != "unasked":
            continue
        assert one.example is not None
        assert played(approvals, one.example) == ([one.example.arguments["cents"]], [])


def played(approvals: Approvals, call: JudgedCall) -> tuple[list[int], list[Any]]:
    """What is paid, and what is asked, when a model makes this call."""
    asked: list[Any] = []
    paid: list[int] = []

    def decide(request: Any) -> Literal["reject"]:
        asked.append(request)
        return "reject"

    model = ScriptedModel([tool_call("pay", **call.arguments), "done"])
    labels = PEOPLE_BRING.model_copy(update={"input": call.labels})
    spec = AgentSpec(machine="tools", tools=("pay",), approvals=approvals, people=BOSS, labels=labels)
    local = Local(spec, model=model, tools=[bank(paid)], decide=decide)
    local.run_sync("go", spent={"cost_usd": call.spent_usd})
    return paid, asked


CENTS: dict[str, Any] = {"properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
PLACES: dict[str, dict[str, Any]] = {
    "at the top": CENTS,
    "allOf": {"allOf": [CENTS]},
    "anyOf": {"anyOf": [CENTS, {"properties": {"card": {"type": "string"}}, "required": ["card"]}]},
    "oneOf": {"oneOf": [{"type": "null"}, CENTS]},
    "then": {"if": {"required": ["cents"]}, "then": CENTS},
    "a reference": {"$ref": "#/$defs/cents", "$defs": {"cents": CENTS}},
    "a reference in a choice": {"anyOf": [{"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": CENTS}},
    "an anchor": {"$ref": "#cents", "$defs": {"one": {"$anchor": "cents", **CENTS}}},
    "required": {"required": ["cents"]},
    "beside a reference in draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"m": {"type": "number"}},
        "properties": {"cents": {"$ref": "#/definitions/m", "type": "string", "maximum": 5}},
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_number_is_seen_wherever_the_schema_lists_it(place: str) -> None:
    """A run can pay without a bound: this is said, and `--strict` fails."""
    pay = PAY.model_copy(update={"parameters": PLACES[place]})
    spec = agent().model_copy(update={"approvals": Approvals(rules=(ApprovalRule(ask="never"),))})
    found = JudgedAgent(spec, machine_of(spec), {"pay": pay})
    assert may_be_unbounded(spec, pay, found.bound)
    (one,) = reported(found).radii
    assert (one.sums["cents"], one.is_unbounded) == (math.inf, True)


@pytest.mark.parametrize("place", ["allOf", "a reference"])
def test_number_that_is_listed_elsewhere_can_be_bounded(place: str) -> None:
    pay = PAY.model_copy(update={"parameters": PLACES[place]})
    bounded = ApprovalRule(ask="never", at_most=AtMost(calls=3, sum={"cents": 9}))
    less = agent().model_copy(update={"approvals": Approvals(rules=(bounded,))})
    assert reported(JudgedAgent(less, machine_of(less), {"pay": pay})).radii[0].sums["cents"] == 9


# -- what people are asked about --------------------


ONCE = ApprovalRule(ask="first_time", at_most=AtMost(calls=3, sum={"cents": 9}))


def test_call_that_first_time_asks_about_is_one_more() -> None:
    """It takes nothing of the bound: one question, and the calls of the bound as well."""
    spec = agent().model_copy(update={"approvals": Approvals(rules=(ONCE,)), "stuck": None})
    asked, paid = list[Any](), list[int]()

    def decide(request: Any) -> Literal["approve", "reject"]:
        asked.append(request)
        return "approve" if len(asked) == 1 else "reject"

    replies = [tool_call("pay", cents=cents, to="ann") for cents in (6, 4, 4, 1, 1, 1)]
    model = ScriptedModel([*replies, "done"])
    Local(spec, model=model, tools=[bank(paid)], decide=decide).run_sync("go")
    assert paid == [6, 4, 4, 1]
    (found,) = (
        one
        for one in reported(JudgedAgent(spec, machine_of(spec), {"pay": PAY})).radii
        if one.level == "once"
    )
    assert (found.calls, found.sums["cents"]) == (4, 15)


def test_bound_does_not_count_calls_that_a_deadline_approves() -> None:
    """People were asked about each of them."""
    settings = RequestSettings(deadline_seconds=60, at_deadline="approve")
    rule = ApprovalRule(ask="first_time", at_most=AtMost(calls=1), then="reject", request=settings)
    approvals = Approvals(rules=(rule,))
    spec = agent().model_copy(update={"approvals": approvals, "limits": Limits(tool_calls=4), "stuck": None})
    paid: list[int] = []
    model = ScriptedModel([*(tool_call("pay", cents=6, to="ann") for _ in range(4)), "done"])
    times = count(1000.0, 10)
    quiet = Local(spec, model=model, tools=[bank(paid)], decide=lambda request: None, now=lambda: next(times))
    quiet.run_sync("go")
    assert paid == [6, 6, 6, 6]
    (found,) = reported(JudgedAgent(spec, machine_of(spec), {"pay": PAY})).radii
    assert (found.level, found.calls, found.sums["cents"]) == ("expiry", 4, 24)
    endless = spec.model_copy(update={"limits": Limits(tool_calls=None, model_calls=None)})
    assert may_be_unbounded(endless, PAY, CallsBound(math.inf, "nothing"))


# -- sums --------------------

NUMBERS = st.integers(0, 6)


def limited(upper: int, calls: int | None, total: int | None) -> CallSet:
    cell = Cell("numbers", low=-1, high=upper + 1, integral=True)
    return CallSet(
        "pay", "unsafe", "rules.0", "unasked", None, held={"cents": (cell,)}, possible={},
        at_most=AtMost(calls=calls, sum={"cents": total} if total else {}) if calls or total else None,
    )  # fmt: skip


ENTRY = st.tuples(NUMBERS, st.none() | st.integers(1, 4), st.none() | st.integers(1, 9))


@given(st.lists(ENTRY, min_size=1, max_size=2), st.integers(0, 8))
def test_largest_sum_is_that_of_the_best_calls(
    entries: list[tuple[int, int | None, int | None]], calls: int
) -> None:
    sets = [limited(*one) for one in entries]
    first, *rest = entries
    by_hand = max(_total(first, n) + (_total(rest[0], calls - n) if rest else 0) for n in range(calls + 1))
    assert largest_sum(sets, "cents", calls) == by_hand


def _total(entry: tuple[int, int | None, int | None], calls: int) -> int:
    upper, most, total = entry
    made = calls if most is None else min(calls, most)
    return made * upper if total is None else min(made * upper, total)


@pytest.mark.parametrize(
    ("upper", "calls", "bound", "total"),
    [
        (10**17 + 1, 1, None, "100,000,000,000,000,001"),
        (10**17 + 1, 3, None, "300,000,000,000,000,003"),
        (0.1, 3, None, "0.3"),
        (0.1, math.inf, 0.3, "0.3"),
        (1e-308, 5, 1e10, "5E-308"),
        (1e-308, math.inf, 1e10, "10,000,000,000"),
        (1e308, 5, None, f"{5 * int(1e308):,}"),
    ],
)
def test_sums_are_exact(upper: float, calls: float, bound: float | None, total: str) -> None:
    cell = Cell("value", upper)
    at_most = None if bound is None else AtMost(sum={"cents": bound})
    one = CallSet("pay", "unsafe", "rules.0", "unasked", None, held={"cents": (cell,)}, at_most=at_most)
    found = radius([one], "unasked", CallsBound(calls, "the limit"))
    assert found is not None
    assert not found.is_unbounded or math.isinf(calls)
    assert f"cents at most {total} in all" in radius_text(found)


# -- inner runs --------------------


@given(
    st.sets(st.sampled_from("abc"), min_size=1).map(sorted),
    st.sets(st.sampled_from("abc")).map(sorted),
    st.dictionaries(st.sampled_from(["model_calls", "tool_calls", "cost_usd", "tokens"]), st.integers(0, 9)),
    st.dictionaries(st.sampled_from(["model_calls", "tool_calls", "cost_usd", "tokens"]), st.integers(0, 9)),
)
def test_inner_run_never_has_more_than_the_outer_one(
    tools: list[str], given: list[str], caps: dict[str, Any], own: dict[str, Any]
) -> None:
    task = AgentTask(
        goal="g", tools=tuple(tools), limits=Limits(**caps), people=BOSS, approvals=agent().approvals
    )
    effect = RunMachine.model_validate({"machine": "tools", "goal": "g", "give": given, "limits": own})
    if set(given) - set(tools):
        with pytest.raises(ValueError, match="has no tool"):
            inner_task(task, effect, task.limits.caps, 0)
    else:
        assert not list(excess(task, inner_task(task, effect, task.limits.caps, 0)))


def test_stage_with_tool_that_agent_lacks_is_a_violation() -> None:
    stages = [
        {"name": "t", "flow_type": "think", "enters": "Thinking", "exits": ["Working"]},
        {
            "name": "w", "flow_type": "machine", "enters": "Working", "exits": ["Finished"],
            "machine": "tools", "tools": ["drop"], "merge": "observation",
            "reads": ["thought"], "writes": ["observation"],
        },
    ]  # fmt: skip
    spec = agent("staged", stages=stages)
    (violation,) = reported(JudgedAgent(spec, machine_of(spec), {"pay": PAY})).violations
    assert "no tool drop to give" in violation


# -- people --------------------


def remarks_of(**people: Any) -> list[str]:
    spec = agent().model_copy(update={"people": People(**people)})
    return list(reported(JudgedAgent(spec, machine_of(spec), {"pay": PAY})).remarks)


def test_group_that_nobody_is_in_lets_anybody_decide() -> None:
    assert any("nobody is in it" in one for one in remarks_of(groups={"ops": Group()}))
    assert not any("nobody is in it" in one for one in remarks_of(groups={"ops": Group(members=("ann",))}))


def test_deadline_that_approves_is_an_unasked_call() -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline="approve")
    assert level_of("always", settings) == level_of("first_time", settings) == "expiry"
    spec = agent().model_copy(update={"people": People(requests=settings)})
    levels = {one.level: one for one in reported(JudgedAgent(spec, machine_of(spec), {"pay": PAY})).radii}
    assert levels["unasked"].sums == {"cents": 4000}
    assert levels["expiry"].sums == {"cents": 6000}


# -- labels --------------------


def test_tool_that_nobody_knows_may_bring_every_label() -> None:
    """Such as one of a server that does not answer; what the agent file says of it counts."""
    spec = agent().model_copy(update={"tools": ("pay", "far__off")})
    sure = {"pay": PAY.model_copy(update={"brings": ()})}
    assert JudgedAgent(spec, machine_of(spec), sure).sources("untrusted") == ["far__off"]
    quiet = Labels(tools={"far__*": ToolLabels(brings=())})
    said = spec.model_copy(update={"labels": quiet})
    assert JudgedAgent(said, machine_of(said), sure).sources("untrusted") == []


def test_sink_that_the_solver_cannot_judge_is_unknown() -> None:
    """Whether the rule lets anything pass is not known: nothing is proven of what comes behind it."""
    odd = PAY.model_copy(
        update={"parameters": {"properties": {"to": {"type": "string"}}, "required": ["to"]}}
    )
    rule = ApprovalRule(arguments={"to": {"pattern": r"^\b\B"}}, ask="never")
    spec = agent().model_copy(update={"approvals": Approvals(rules=(rule,))})
    report = reported(JudgedAgent(spec, machine_of(spec), {"pay": odd}))
    (sink,) = report.sinks
    assert sink.text == "people are asked, as far as is known; what may pass more easily is UNKNOWN"
    assert any(one.startswith("pay after untrusted, rules.0: ") for one in report.unknown)
