"""Bounds in a run: what passes unasked stays within them, whatever happens to the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activities.contracts import AskModel, EffectFailed, ToolInput, ToolResult
from tests.people.bench import LOOK, PAY, PUT, Bench
from tests.people.test_matrix import DECISIONS, UNKNOWN, give
from workflows.api import Fork, Origin, RunResult
from workflows.gate.decisions import Refused
from workflows.hosts import ChildRun
from workflows.people import Approvals, People

NUMBER = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
TOOLS = tuple(tool.model_copy(update={"parameters": NUMBER}) for tool in (LOOK, PAY, PUT))


def approvals(calls: int | None = None, most: float | None = None, **more: Any) -> Approvals:
    """`pay` and `put` pass unasked within these bounds."""
    at_most = {"calls": calls, "sum": {"x": most} if most else {}}
    return Approvals.model_validate(
        {"rules": [{"tools": ["p*"], "ask": "never", "at_most": at_most, **more}]}
    )


def bench(plans: Sequence[str], bounds: Approvals, kind: type[Bench] = Bench, **more: Any) -> Bench:
    """A run whose model wants these plans one by one, inner runs included, and then answers."""
    left = list(plans)

    def reply(question: AskModel) -> str:
        newest = question.say[-1].content
        return left.pop(0) if left else f"answer {newest}"

    return kind(reply, tools=TOOLS, approvals=bounds, **more)


def used(run: Bench) -> list[str]:
    """How far the bounds are used, as the result says."""
    return [bound.text for bound in run.result.bounds]


# -- in order, side by side --------------------


async def test_log_and_request_beyond_bound_say_how_much_is_used() -> None:
    async with bench(["tools pay 30; pay 60; pay 11"], approvals(5, 100)) as run:
        assert run.calls == ["ask_model"], "all calls of an effect are asked about before one is made"
        (request,) = run.open
        why = "rules.0 allows at most 100 x unasked; 90 used, and this call has 11"
        assert request.text.endswith(f"? Asked because {why}.")
        facts = {"rule": "rules.0", "of": "sum.x", "most": 100, "used": 90, "wanted": 11}
        assert run.record("Requested").about["bound"] == facts
        passed = run.record("WithinBound")
        assert passed.reason == "pay(x=60) may pass unasked (rules.0: 2 of 5 calls, 90 of 100 x)"
        bounds: Any = passed.about["bounds"]
        assert [one["used"] for one in bounds] == [2, 90]
        await run.decide("approve")
        assert run.result.answer == "ok pay 30 | ok pay 60 | ok pay 11"
        assert used(run) == ["2 of 5 calls", "90 of 100 x"], "what a person approved takes nothing"


async def test_call_that_a_person_edits_takes_nothing() -> None:
    async with bench(["tools pay 100; pay 30", "tools pay 1"], approvals(most=100)) as run:
        await run.decide("edit", arguments={"x": 20})
        assert run.calls.count("pay 20") == 1
        assert [bound.text for bound in run.drive.status().bounds] == ["100 of 100 x"]


async def test_calls_side_by_side_do_not_pass_together() -> None:
    async with bench(["side put 60; put 60; put 40"], approvals(most=100)) as run:
        assert [request.arguments for request in run.open] == [{"x": 60}]
        await run.decide("reject")
        assert run.calls == ["ask_model", "put 60", "put 40", "ask_model"]


async def test_negative_amount_makes_no_room() -> None:
    async with bench(["tools pay 100; pay -100", "tools pay 1"], approvals(most=100)) as run:
        (request,) = run.open
        assert "of this call x cannot be counted" in request.text
        await run.decide("approve")
        assert [request.arguments for request in run.open] == [{"x": 1}]


async def test_rule_that_rejects_asks_nobody_and_tells_the_model() -> None:
    async with bench(["tools pay 1; pay 2; look 3"], approvals(1, then="reject")) as run:
        said = "This call of pay was not made: rules.0 allows at most 1 call unasked; 1 made."
        assert run.question() == f"ok pay 1 | rejected {said} | ok look 3"
        record = run.record("BeyondBound")
        assert (record.reason, record.about["tool"]) == (said, "pay")
        assert record.about["bound"] == {
            "rule": "rules.0", "of": "calls", "most": 1, "used": 1, "is_share": False, "wanted": 1,
        }  # fmt: skip


async def test_unattended_run_rejects_beyond_the_bound() -> None:
    people = People(unattended=True)
    async with bench(["tools pay 1; pay 2"], approvals(1), people=people) as run:
        assert run.calls == ["ask_model", "pay 1", "ask_model"]
        bound = "rules.0 allows at most 1 call unasked; 1 made"
        said = f"pay needs a person's approval ({bound}), and this run is unattended: the call was not made."
        assert run.question() == f"ok pay 1 | rejected {said}"


# -- what stays counted, and what is given back --------------------


async def test_rollback_does_not_refill_the_bound() -> None:
    plans = ["tools put 60", "ask sure?", "tools put 50", "tools put 40"]
    async with bench(plans, approvals(most=100), hops=True) as run:
        await run.command("rollback", step=0, compensate=True)
        assert run.undone, "what was undone is counted, too"
        assert [request.arguments for request in run.open] == [{"x": 50}]
        await run.decide("reject")
        assert used(run) == ["100 of 100 x"]


async def test_fork_is_a_new_run_with_whole_bounds() -> None:
    async with bench(["tools pay 60", "tools pay 40"], approvals(most=100)) as source:
        records = tuple(record.model_dump(mode="json") for record in source.records)
    origin = Origin(workflow_id="run-0", run_id="x", step=2)
    fork = Fork(origin=origin, records=records)
    async with bench(["tools pay 90"], approvals(most=100), fork=fork) as run:
        assert used(run) == ["90 of 100 x"]


@pytest.mark.parametrize(("verb", "made"), [("retry", 2), ("answer", 1)])
async def test_call_with_an_unknown_outcome_counts_once(verb: Any, made: int) -> None:
    run = bench(["tools pay 3"], approvals(2))
    run.results["pay"] = UNKNOWN
    async with run:
        await run.decide(verb, text="it is paid" if verb == "answer" else "")
        assert run.calls.count("pay 3") == made
        assert used(run) == ["1 of 2 calls"]


async def test_call_that_was_stopped_stays_counted() -> None:
    run = bench(["tools pay 3; pay 4"], approvals(5, 10))
    run.blocked.add("pay")
    async with run:
        await run.command("abort")
        await run.release()
        assert used(run) == ["1 of 5 calls", "3 of 10 x"], "the second call was never begun"


@pytest.mark.parametrize(
    "plan",
    ["tools pay 1; dig 2; pay 3", "tools pay 1; pay many"],
    ids=["behind an unknown tool", "bad arguments"],
)
async def test_call_that_is_not_made_takes_nothing(plan: str) -> None:
    async with bench([plan], approvals(5)) as run:
        assert used(run) == ["1 of 5 calls"]


@pytest.mark.parametrize(("error", "count"), [("bad_arguments", 0), ("failed", 1), ("timeout", 1)])
async def test_failed_call_stays_counted_unless_it_was_not_made(error: Any, count: int) -> None:
    run = bench(["tools pay 3"], approvals(5))
    run.results["pay"] = ToolResult(id="c0", tool="pay", output="no", error=error)
    async with run:
        assert used(run) == [f"{count} of 5 calls"]


async def test_call_that_no_worker_could_begin_is_given_back() -> None:
    run = bench(["tools pay 3"], approvals(5))
    run.away = "the store is away"
    async with run:
        await run.command("abort")
        assert run.result.exit_reason == "aborted"
        assert used(run) == ["0 of 5 calls"]


async def test_call_that_waits_for_another_ones_approval_keeps_its_share() -> None:
    async with bench(["tools pay 60; pay 60", "tools pay 1"], approvals(most=60), hops=True) as run:
        await run.command("pause")
        await run.command("resume")
        assert [request.arguments for request in run.open] == [{"x": 60}]
        assert [bound.text for bound in run.drive.status().bounds] == ["60 of 60 x"]
        await run.decide("reject")
        assert [request.arguments for request in run.open] == [{"x": 1}]
        assert run.executions > 1
        await run.decide("reject")
        assert used(run) == ["60 of 60 x"]


# -- inner runs --------------------


async def test_inner_run_asks_beyond_what_the_outer_run_has_left() -> None:
    plans = ["tools pay 60", "child x", "tools pay 30; pay 20", "answer x", "tools pay 10; pay 1"]
    async with bench(plans, approvals(5, 100)) as run:
        (inner,) = run.children.values()
        (request,) = inner.open
        assert request.bound is not None
        assert request.bound.passed_text == (
            "rules.0 allows this inner run at most 40 x unasked; 30 used, and this call has 20"
        )
        await inner.decide("reject")
        assert run.record("WithinBound").reason.endswith("(rules.0: 3 of 5 calls, 100 of 100 x)")
        assert [request.arguments for request in run.open] == [{"x": 1}]
        await run.decide("reject")
        assert used(run) == ["3 of 5 calls", "100 of 100 x"]


async def test_inner_runs_side_by_side_share_what_is_left() -> None:
    async with bench(["children 3 x", *["tools pay 10; pay 10"] * 3], approvals(5)) as run:
        inner = list(run.children.values())
        assert [[one.arguments for one in child.open] for child in inner] == [[{"x": 10}], [], []]
        await inner[0].decide("reject")
        assert used(run) == ["5 of 5 calls"]


async def test_inner_run_of_an_inner_run_shares_its_part() -> None:
    async with bench(["child x", "child y", "tools pay 1; pay 1", "answer y"], approvals(1)) as run:
        (inner,) = run.children.values()
        (innermost,) = inner.children.values()
        await innermost.decide("approve")
        assert used(run) == ["1 of 1 call"]


async def test_cancelled_inner_run_keeps_only_what_it_has_used() -> None:
    run = bench(["child x", "tools pay 1; pay 2", "tools pay 3; pay 4; pay 5"], approvals(3))
    run.blocked.add("pay")
    async with run:
        await run.command("rollback", step=0)
        await run.release()
        assert [request.arguments for request in run.open] == [{"x": 5}]


class Lost(Bench):
    """Its inner runs end without a result."""

    end: Any = None

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        found: EffectFailed = self.end
        return found


@pytest.mark.parametrize(("error", "left"), [("unknown_outcome", 0), ("fatal", 2)])
async def test_part_of_a_lost_inner_run_stays_used(error: Any, left: int) -> None:
    run: Any = bench(["child x", "tools pay 1; pay 1"], approvals(2), Lost)
    run.end, run.plays = EffectFailed(error=error, type="terminated", message="gone"), False
    async with run:
        assert run.begun[1] == left


# -- judged again --------------------


@pytest.mark.parametrize("begins", [False, True], ids=["not begun", "begun"])
async def test_call_counts_in_bound_of_the_rule_that_finally_decides(begins: bool) -> None:
    rules = Approvals.model_validate({"rules": [
        {"tools": ["put"], "after": "untrusted", "ask": "never", "at_most": {"calls": 1}, "then": "reject"},
        {"tools": ["put"], "ask": "never", "at_most": {"calls": 100}},
    ]})  # fmt: skip
    run = bench(["tools put 1", "tools put 2"], rules, labels={"people": ["untrusted"]})
    run.away = "" if begins else "the store is away"
    run.blocked |= {"put"} if begins else set()
    async with run:
        await run.command("steer", text="as this mail says")
        await run.command("pause", at_once=True)
        await run.command("resume")
        run.away = ""
        await run.release()
        await run.pass_time(10)
        assert "put 2" not in run.calls
        assert used(run) == ["1 of 1 call", f"{int(begins)} of 100 calls"]


async def test_call_that_new_code_has_changed_takes_what_it_needs() -> None:
    run = bench(["tools put 3", "tools put 90"], approvals(most=100), hops=True)
    run.plays, run.away = False, "the store is away"
    async with run:
        run.deployed = ("put 3", "put 60")
        await run.command("pause", at_once=True)
        run.away = ""
        await run.command("resume")
        assert [str(one.bound.used) for one in run.open if one.bound] == ["60"]
        assert run.open[0].arguments == {"x": 90}


# -- whatever happens --------------------

PLANS = [
    "tools pay 30; pay 30", "side put 20; put 50; look 1", "tools put 0.1; put 0.2", "tools pay -40",
    "children 2 x", "child x", "tools pay 5",
]  # fmt: skip
ACTIONS = [
    "approve", "reject", "pause", "pause at once", "resume", "rollback", "release", "block", "unknown",
]  # fmt: skip


async def act(run: Bench, action: str) -> None:
    """One thing that happens to the run."""
    match action:
        case "approve" | "reject":
            for one in all_runs(run):
                if one.open:
                    request = one.open[-1]
                    verb = {"verb": action} if request.kind == "approval" else DECISIONS[request.kind]
                    await one.decide(request=request, **verb)
        case "release":
            await run.release()
        case "block":
            run.blocked |= {"pay", "put"}
        case "unknown":
            run.results["pay"] = UNKNOWN
        case _:
            await give(run, action)


def all_runs(run: Bench) -> list[Bench]:
    """The run and those inside it."""
    return [run, *(below for child in run.children.values() for below in all_runs(child))]


def unasked(run: Bench) -> list[Fraction]:
    """The amounts of the calls that were made and that nobody was asked about; one that was made again
    counts once."""
    requests = (r for one in all_runs(run) for r in (*one.open, *one.requests.closed_requests))
    asked = {(one.run, one.activity_id) for one in requests if one.kind == "approval"}
    amounts: dict[tuple[str, str], Fraction] = {}
    for name, one in run.performed:
        if type(one) is ToolInput and one.tool != "look":
            run_id = one.key.removesuffix(f"/{name}").rsplit("/", 2)[0]
            amounts[run_id, name.partition("+")[0]] = Fraction(str(one.arguments["x"]))
    return [amount for call, amount in amounts.items() if call not in asked]


async def finish(run: Bench) -> None:
    """Resume, let everything end, and decide whatever is asked until the run is over."""
    for _ in range(100):
        await run.release()
        if run.over:
            return
        if run.drive.run.paused:
            await run.command("resume")
        await act(run, "approve")
    raise AssertionError(f"the run does not end: {run.drive.status()}")


async def play(plans: list[str], actions: list[str], hops: bool) -> Bench:
    """A run to its end."""
    run = bench(plans, approvals(4, 100), hops=hops)
    run.plays = False  # a cassette does not say in which order inner runs were cancelled
    async with run:
        for action in actions:
            if not run.over:
                try:
                    await act(run, action)
                except Refused:
                    assert run.over
        await finish(run)
    return run


@given(
    plans=st.lists(st.sampled_from(PLANS), min_size=1, max_size=6),
    actions=st.lists(st.sampled_from(ACTIONS), max_size=8),
    hops=st.booleans(),
)
@example(plans=["tools pay 30; pay 30"] * 6, actions=[], hops=False)  # people are asked about the circle
def test_what_runs_unasked_never_passes_a_bound(plans: list[str], actions: list[str], hops: bool) -> None:
    run = asyncio.run(play(plans, actions, hops))
    amounts = unasked(run)
    assert len(amounts) <= 4
    assert sum(amounts) <= 100
    assert min(amounts, default=0) >= 0
    counted = [Fraction(bound.used) for bound in run.result.bounds]
    assert counted == [len(amounts), sum(amounts)], "no more is counted than was made"
