"""What happens to the calls of an effect: approvals, edits, unknown outcomes, failures, limits, commands."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from activities.contracts import (
    OUT_OF_REQUESTS,
    AskModel,
    EffectFailed,
    NotBegun,
    Reconciled,
    ToolInput,
    ToolResult,
)
from tests.people.bench import LOOK, PAY, PUT, Bench, brain, failed, replied
from workflows.api import Limits
from workflows.engine.run_state import MAX_EARLY
from workflows.gate.decisions import Refused
from workflows.hosts import CallAnswer, CallSite, HostCall
from workflows.people import Approvals, People, RequestSettings, StandingApproval

ASKED = Approvals()
UNKNOWN = ToolResult(id="c0", tool="pay", output="its worker died", error="unknown_outcome")
RECONCILES = PAY.model_copy(update={"reconciles": True})


# -- approvals --------------------


EDITED = 'A person changed the arguments of a call before it was made. What was called: pay {"x": "2"}'


@pytest.mark.parametrize("hops", [False, True])
@pytest.mark.parametrize("output", ["paid 2", '{"paid": 2}'])
async def test_edited_call_is_made_and_model_is_told(output: str, hops: bool) -> None:
    bench = Bench(brain("tools pay 3", "tools pay 3"), approvals=ASKED, hops=hops)
    bench.results["pay"] = ToolResult(id="", tool="pay", output=output)
    async with bench:
        await bench.decide("edit", arguments={"x": "2"})
        assert bench.calls == ["ask_model", "pay 2", "ask_model"]
        assert [message.content for message in bench.sent[-1]][-2:] == [EDITED, f"ok {output}"]
        assert bench.result.calls[0].arguments == {"x": "2"}


@pytest.mark.parametrize("error", ["expired", "failed"])
async def test_model_is_told_of_edit_if_call_was_made(error: Any) -> None:
    bench = Bench(brain("tools pay 3", "tools pay 3"), approvals=ASKED)
    bench.results["pay"] = ToolResult(id="", tool="pay", output="no", error=error)
    async with bench:
        await bench.decide("edit", arguments={"x": "2"})
        assert (EDITED in [message.content for message in bench.sent[-1]]) is (error == "failed")


async def test_note_of_an_edit_stays_on_its_branch() -> None:
    """It is about a call that the new branch does not have."""
    bench = Bench(brain("tools pay 3", "tools pay 3"), approvals=ASKED)
    async with bench:
        bench.blocked.add("ask_model")
        await bench.decide("edit", arguments={"x": "2"})
        assert EDITED in [message.content for message in bench.sent[-1]]
        assert bench.drive.status().inbox == 0
        await bench.command("steer", text="be quick")
        await bench.command("rollback", step=1)
        assert [message.content for message in bench.sent[-1]] == ["be quick", "begin"]
        await bench.command("abort")
        assert bench.result.unheard == ("be quick",)


async def test_status_shows_arguments_as_they_will_be_sent() -> None:
    number = PAY.model_copy(
        update={"parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    )
    async with Bench(brain("tools pay 3"), approvals=ASKED, tools=(LOOK, number)) as bench:
        assert (bench.drive.status().doing, bench.open[0].arguments) == ("pay(x=3)", {"x": 3})
        assert bench.drive.status().finished is None
        await bench.decide("approve")
        assert bench.drive.status().finished == bench.records[-1].at


async def test_status_says_what_is_under_way_and_since_when() -> None:
    bench = Bench(brain("tools pay 3"), approvals=ASKED)
    bench.blocked |= {"ask_model", "pay"}

    def doing() -> tuple[str, float | None]:
        status = bench.drive.status()
        return status.doing, status.doing_since

    async with bench:
        began = bench.clock
        await bench.pass_time(5)
        assert doing() == ("asking the model", began)
        await bench.release("ask_model")
        assert doing() == ('pay(x="3")', None)
        await bench.decide("edit", arguments={"x": "2"})
        assert doing() == ('calling pay(x="2")', began + 5)
        await bench.release()
        assert doing() == ("", None)


async def test_flood_of_decisions_without_request_drops_no_kept_one() -> None:
    """As many as are kept; whoever comes later is told that theirs is not."""
    async with Bench(brain("tools pay 3"), approvals=ASKED) as shown:
        request = shown.open[0]
        await shown.decide("reject")
    bench = Bench(brain("tools pay 3"), approvals=ASKED)
    bench.blocked.add("ask_model")
    async with bench:
        with pytest.raises(Refused, match="It is kept"):
            await bench.decide("approve", request=request)
        kept = 0
        for number in range(150):
            with pytest.raises(Refused) as refused:
                await bench.decide("approve", request=request.model_copy(update={"digest": f"{number:032}"}))
            kept += "It is kept" in refused.value.reason
        assert kept == MAX_EARLY - 1
        assert len(bench.drive.run.early_decisions) == MAX_EARLY
        await bench.release()
        assert [one.outcome for one in bench.result.decisions] == ["approved"]


async def test_kept_decision_counts_for_its_subject_whatever_its_number() -> None:
    """A run that was reset may ask for more, or less, before it asks the same again."""
    async with Bench(brain("tools pay 3"), approvals=ASKED) as shown:
        request = shown.open[0]
        await shown.decide("reject")
    bench = Bench(brain("tools pay 3"), approvals=ASKED)
    bench.identity = replace(bench.identity, reset_since=1.0)
    bench.blocked.add("ask_model")
    async with bench:
        with pytest.raises(Refused, match="It is kept"):
            await bench.decide("approve", request=request.model_copy(update={"id": "r7"}))
        await bench.release()
        assert [(one.request, one.outcome) for one in bench.result.decisions] == [("r1", "approved")]


async def test_kept_outcome_of_another_attempt_does_not_count() -> None:
    """Its digest says which call, and not which attempt of it a person has looked up."""
    async with lost_payment() as shown:
        request = shown.open[0]
        assert request.kind == "outcome"
        await shown.command("abort")
    bench = lost_payment()
    bench.identity = replace(bench.identity, reset_since=1.0)
    bench.blocked.add("ask_model")
    async with bench:
        with pytest.raises(Refused, match="It is kept"):
            await bench.decide("retry", request=request.model_copy(update={"id": "r7"}))
        await bench.release()
        assert [one.kind for one in bench.open] == ["outcome"]
        refused = [one.error or "" for one in bench.records if one.event == "RefusedDecision"]
        assert "no request 'r7'" in refused[-1]
        await bench.command("abort")


def lost_payment() -> Bench:
    """A run whose payment is lost, so that it asks what became of it."""
    bench = Bench(brain("tools pay 3"))
    bench.results = {"pay": UNKNOWN}
    return bench


async def test_title_that_is_cut_says_so() -> None:
    async with Bench(brain(f"tools pay {'9' * 120}"), approvals=ASKED) as bench:
        assert bench.drive.status().doing == f'pay(x="{"9" * 96}…)'


@pytest.mark.parametrize("decided", ["", "approve", "edit"])
async def test_call_that_new_code_has_changed_is_asked_about_anew(decided: Any) -> None:
    both = Approvals(effects={"read": "always"})
    bench = Bench(brain("tools look 1; pay 3"), approvals=both, hops=True)
    bench.plays = False  # it plays with one code
    async with bench:
        look, pay = bench.open
        if decided:
            more = {"arguments": {"x": "2"}} if decided == "edit" else {}
            await bench.decide(decided, request=pay, **more)
        bench.deployed = ("pay 3", "pay 999")
        await bench.command("pause")
        await bench.command("resume")
        assert [(one.id, one.arguments) for one in bench.open] == [("r1", {"x": "1"}), ("r3", {"x": "999"})]
        with pytest.raises(Refused, match="r2 is closed"):
            await bench.decide("approve", request=pay, by="bob")
        await bench.decide("approve", request=look)
        assert bench.calls == ["ask_model"]
        await bench.decide("approve")
        assert bench.calls == ["ask_model", "look 1", "pay 999", "ask_model"]


async def test_request_is_withdrawn_if_new_code_cannot_make_its_call() -> None:
    bench = Bench(brain("tools pay 3"), approvals=ASKED, hops=True)
    bench.plays = False  # it plays with one code
    async with bench:
        bench.deployed = ("pay 3", "buy 3")
        await bench.command("pause")
        await bench.command("resume")
        assert [one.outcome for one in bench.result.decisions] == ["withdrawn"]
        assert bench.result.answer == "unknown_tool Unknown tool: buy"


async def test_call_that_takes_too_long_to_judge_is_refused() -> None:
    many = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string"}}}}
    rule = {"tools": ["pay"], "arguments": {"x": {"items": {"pattern": "^a"}}}, "ask": "never"}
    rules = Approvals.model_validate({"rules": [rule]})
    pay = PAY.model_copy(update={"parameters": many})
    items = ",".join(['"a"'] * 30_000)
    async with Bench(brain(f"tools pay [{items}]"), approvals=rules, tools=(pay,)) as bench:
        assert bench.open == ()
        assert bench.result.answer == (
            "bad_arguments The arguments do not fit pay: there is too much to check in them against the "
            "approval rules; give shorter ones"
        )


async def test_call_is_counted_once_it_is_made() -> None:
    async with Bench(brain("tools pay 3"), approvals=ASKED) as bench:
        asked = bench.drive.status().counters, bench.records[-1].counters
        assert [one["tool_calls"] for one in asked] == [0, 0]
        await bench.decide("approve")
        assert bench.result.counters["tool_calls"] == 1
    (made,) = [one for record in bench.records for one in record.answered if one.kind == "call_tools"]
    assert (made.title, made.output) == ('pay(x="3")', "pay 3")


async def test_rejected_call_is_not_made_and_not_counted() -> None:
    async with Bench(brain("tools look a; pay 3"), approvals=ASKED) as bench:
        await bench.decide("reject", text="too much")
        assert "look a" in bench.calls
        assert "pay 3" not in bench.calls
        assert bench.question().endswith(
            "rejected A person rejected this call, and it was not made: too much"
        )
        assert bench.result.counters["tool_calls"] == 1


async def test_calls_of_one_reply_are_asked_about_together() -> None:
    async with Bench(brain("tools pay 1; look a; pay 2"), approvals=ASKED) as bench:
        assert [(one.activity_id, one.arguments) for one in bench.open] == [
            ("work#2:0.0", {"x": "1"}), ("work#2:0.2", {"x": "2"}),
        ]  # fmt: skip
        await bench.decide("approve", bench.open[1])
        assert "look a" not in bench.calls
        await bench.decide("approve")
        assert bench.calls == ["ask_model", "pay 1", "look a", "pay 2", "ask_model"]


async def test_unattended_run_rejects_calls_and_asks_nobody() -> None:
    async with Bench(brain("tools pay 3"), approvals=ASKED, people=People(unattended=True)) as bench:
        assert bench.result.answer == "rejected " + bench.question().removeprefix("rejected ")
        assert "Requested" not in bench.events


@pytest.mark.parametrize(
    ("at_deadline", "ending"),
    [("reject", "expired This call was not made"), ("approve", "ok pay 3"), ("abort", None)],
)
async def test_deadline_rejects_approves_or_aborts(at_deadline: Any, ending: str | None) -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline=at_deadline)
    async with Bench(brain("tools pay 3"), approvals=ASKED, people=People(requests=settings)) as bench:
        await bench.pass_time(61)
        assert bench.over
        if ending is None:
            assert bench.result.exit_reason == "expired"
        else:
            assert (bench.result.answer or "").startswith(ending)


@pytest.mark.parametrize("at_deadline", ["reject", "approve"])
async def test_run_meets_its_limit_when_nobody_decides_in_time(at_deadline: Any) -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline=at_deadline)
    people = People(requests=settings, on_limit="ask")
    async with Bench(brain("tools look a"), limits=Limits(model_calls=1), people=people) as bench:
        await bench.pass_time(61)
        assert bench.result.exit_reason == "limit"


@pytest.mark.parametrize("at_deadline", ["reject", "approve"])
async def test_outcome_stays_unknown_when_nobody_decides_in_time(at_deadline: Any) -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline=at_deadline)
    bench = Bench(brain("tools pay 3"), people=People(requests=settings))
    bench.results["pay"] = UNKNOWN
    async with bench:
        await bench.pass_time(61)
        assert bench.result.answer == "unknown_outcome its worker died"
        assert bench.calls.count("pay 3") == 1


@pytest.mark.parametrize(("at_deadline", "exit_reason"), [("reject", "expired"), ("approve", "answered")])
async def test_interrupt_ends_or_continues_at_its_deadline(at_deadline: Any, exit_reason: str) -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline=at_deadline)
    people = People(requests=settings, interrupt_states=("work",))
    async with Bench(brain("tools look a"), people=people) as bench:
        await bench.pass_time(61)
        assert bench.result.exit_reason == exit_reason


@pytest.mark.parametrize(("at_deadline", "asked"), [("reject", 1), ("approve", 2)])
async def test_failed_question_is_asked_again_where_the_deadline_approves(
    at_deadline: Any, asked: int
) -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline=at_deadline)
    people = People(requests=settings, on_trouble="ask")
    async with Bench([failed(), "answer b"], people=people) as bench:
        await bench.pass_time(61)
        assert bench.calls.count("ask_model") == asked
        assert bench.result.ok == (asked == 2)


async def test_unattended_run_is_interrupted_by_nobody() -> None:
    people = People(unattended=True, interrupt_states=("work",))
    async with Bench(brain("tools look a"), people=people) as bench:
        assert bench.result.exit_reason == "answered"
        assert "Requested" not in bench.events


async def test_deadline_that_approves_answers_yes_where_it_can() -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline="approve")
    async with Bench(brain("confirm pay?"), people=People(requests=settings)) as bench:
        await bench.pass_time(61)
        assert (bench.result.answer or "").startswith("approve ")


@pytest.mark.parametrize("wanted", [(), ("opened",), ("closed",), ("opened", "closed")], ids=str)
async def test_moments_that_nobody_wants_are_not_noticed(wanted: tuple[Any, ...]) -> None:
    people = People(notify=wanted)
    async with Bench(brain("tools pay 3"), approvals=ASKED, people=people) as bench:
        await bench.decide("approve")
        assert bench.over
        assert [moment for moment, _ in bench.noticed] == list(wanted)


async def test_deadline_passes_while_paused() -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline="reject")
    async with Bench(brain("tools pay 3"), approvals=ASKED, people=People(requests=settings)) as bench:
        await bench.command("pause")
        await bench.pass_time(61)
        assert bench.requests.closed_requests[0].outcome == "expired"
        assert bench.calls == ["ask_model"]
        await bench.command("resume")
        assert bench.over


async def test_abort_of_one_request_ends_the_run_although_another_waits() -> None:
    async with Bench(brain("tools pay 1; pay 2"), approvals=ASKED) as bench:
        await bench.decide("abort", text="no")
        assert (bench.result.exit_reason, bench.open) == ("aborted", ())
        assert [one.outcome for one in bench.result.decisions] == ["aborted", "withdrawn"]


async def test_abort_of_a_machines_question_is_its_answer() -> None:
    async with Bench(brain("ask sure?")) as bench:
        await bench.decide("abort", text="never")
        assert (bench.result.exit_reason, bench.result.answer) == ("answered", "abort never")


# -- arguments and tools that do not fit --------------------


async def test_arguments_that_do_not_fit_are_told_to_the_model() -> None:
    number = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [LOOK.model_copy(update={"parameters": number}), PAY]
    async with Bench(brain("side look seven; look 7"), tools=tools) as bench:
        assert bench.calls == ["ask_model", "look 7", "ask_model"]
        assert [call.arguments for _, call in bench.performed if hasattr(call, "arguments")] == [{"x": 7}]
        assert bench.question().startswith("bad_arguments ")


async def test_unknown_tool_ends_the_row_of_calls() -> None:
    async with Bench(brain("tools look a; dig b; look c")) as bench:
        assert bench.calls == ["ask_model", "look a", "ask_model"]
        assert bench.question() == "ok look a | unknown_tool Unknown tool: dig"
        assert bench.result.counters["tool_calls"] == 1


async def test_cached_call_is_made_once() -> None:
    tools = [LOOK.model_copy(update={"cache": "run"})]
    async with Bench(["tools look a", "tools look a", "answer b"], tools=tools, hops=True) as bench:
        assert bench.calls.count("look a") == 1
        assert bench.result.answer == "b"


# -- unknown outcomes --------------------


@pytest.mark.parametrize("verb", ["answer", "retry", "abort"])
async def test_person_says_whether_call_took_effect(verb: Any) -> None:
    bench = Bench(brain("tools pay 3; look a"))
    bench.results["pay"] = UNKNOWN
    async with bench:
        assert [request.kind for request in bench.open] == ["outcome"]
        assert "look a" not in bench.calls
        await bench.decide(verb, text="it is paid" if verb == "answer" else "")
        if verb == "answer":
            assert bench.calls.count("pay 3") == 1
            assert "it is paid" in bench.question()
        elif verb == "retry":
            made = [(name, one.key) for name, one in bench.performed if isinstance(one, ToolInput)]
            names = [name for name, _ in made if name.startswith("work#2:0.0")]
            assert names == ["work#2:0.0", "work#2:0.0+1"]
            assert len({key for _, key in made}) == len(made), "each has a key of its own"
            assert bench.result.answer == "ok pay 3 | ok look a"
        else:
            assert bench.result.exit_reason == "aborted"
            assert "outcome unknown: pay at work#2:0.0" in (bench.result.error or "")


@pytest.mark.parametrize(
    ("found", "made", "asks"),
    [
        (Reconciled(outcome="happened", result=ToolResult(id="c0", tool="pay", output="paid")), 1, False),
        (Reconciled(outcome="not_happened"), 2, False),
        (Reconciled(outcome="unknown", text="who knows"), 1, True),
    ],
    ids=["happened", "not happened", "unknown"],
)
async def test_tool_finds_out_whether_call_took_effect(found: Reconciled, made: int, asks: bool) -> None:
    bench = Bench(brain("tools pay 3"), tools=[RECONCILES])
    bench.results["pay"], bench.found = UNKNOWN, found
    async with bench:
        assert bench.calls.count("reconcile pay") == 1
        assert bench.calls.count("pay 3") == made
        assert bool(bench.open) == asks
        assert bench.record("Reconciled").reason.startswith(f'pay(x="3"): {found.outcome}')


FIND = RECONCILES.model_copy(update={"name": "find"})


@pytest.mark.parametrize("hops", [False, True])
@pytest.mark.parametrize(
    ("rule", "kinds", "group"),
    [
        ({"request": {"group": "ops"}}, {}, "ops"),
        ({"request": {"group": "ops"}, "ask": "first_time"}, {}, "ops"),
        ({"request": {"group": "ops"}, "ask": "never", "at_most": {"calls": 2}}, {}, "ops"),
        ({"ask": "never", "at_most": {"calls": 2}}, {"approval": {"group": "ops"}}, "ops"),
        ({"request": {"group": "ops"}}, {"outcome": {"group": "lab"}}, "lab"),
        ({"ask": "never"}, {"approval": {"group": "ops"}}, None),
    ],
    ids=["standing", "first time", "bound", "bound by default", "kind of its own", "nobody is asked"],
)
async def test_who_may_let_a_call_happen_says_whether_it_did(
    rule: Any, kinds: Any, group: str | None, hops: bool
) -> None:
    groups = {"ops": {"members": ["ann"]}, "lab": {"members": ["lou"]}}
    people = People.model_validate({"groups": groups, "kinds": kinds})
    rules = Approvals.model_validate({"rules": [{"tools": ["pay"], **rule}]})
    plans = ["tools pay 3", "tools look a", "tools pay 3"]
    bench = Bench(
        lambda call: plans.pop(0) if plans else "answer b", people=people, approvals=rules, hops=hops
    )
    bench.blocked.add("look")
    async with bench:
        if bench.open:
            await bench.decide("approve", standing_approval=StandingApproval(same=True))
        bench.results["pay"] = UNKNOWN
        await bench.release()
        assert [(one.kind, one.group) for one in bench.open] == [("outcome", group)]


@pytest.mark.parametrize("unattended", [False, True])
async def test_each_unknown_outcome_is_recovered(unattended: bool) -> None:
    people = People(unattended=unattended, requests=RequestSettings(deadline_seconds=60))
    bench = Bench(brain("apart pay 1; find 2; pay 3"), tools=(PAY, FIND), people=people)
    bench.results = {name: UNKNOWN.model_copy(update={"tool": name}) for name in ("pay", "find")}
    done = ToolResult(id="", tool="find", output="was done")
    bench.found = Reconciled(outcome="happened", result=done)
    bench.plays = False  # calls side by side have no order
    async with bench:
        if not unattended:
            assert [request.tool for request in bench.open] == ["pay"], "tools look before people"
            await bench.pass_time(60)
        assert bench.result.answer == "unknown_outcome its worker died & ok was done & ok pay 3"


@pytest.mark.parametrize("hops", [False, True])
async def test_people_are_asked_about_each_unknown_outcome(hops: bool) -> None:
    other = PAY.model_copy(update={"name": "send"})
    bench = Bench(brain("apart pay 1; send 2"), tools=(PAY, other), hops=hops)
    bench.results = {name: UNKNOWN.model_copy(update={"tool": name}) for name in ("pay", "send")}
    bench.plays = False  # calls side by side have no order
    async with bench:
        await bench.decide("retry")
        assert [request.tool for request in bench.open] == ["send"]
        await bench.decide("retry")
        assert bench.calls == ["ask_model", "pay 1", "send 2", "pay 1", "send 2", "ask_model"]
        assert bench.counted == bench.begun


async def test_unattended_run_reports_unknown_outcome_to_machine() -> None:
    bench = Bench(brain("tools pay 3; look a"), people=People(unattended=True))
    bench.results["pay"] = UNKNOWN
    async with bench:
        assert bench.result.answer == "unknown_outcome its worker died"
        assert bench.result.calls[0].error == "unknown_outcome"


async def test_lost_call_is_repeated_once_its_worker_cannot_make_it() -> None:
    bench = Bench(brain("tools pay 3"), people=People(on_limit="ask"))
    bench.results["pay"] = UNKNOWN.model_copy(update={"acts_for": 60})
    async with bench:
        assert "may still make it until 1970-01-01 00:17:40 UTC" in bench.open[0].text
        await bench.pass_time(10)
        await bench.decide("retry")
        assert (bench.drive.status().next_try, bench.calls.count("pay 3")) == (1060, 1)
        assert "made again at 1970-01-01 00:17:40 UTC" in (bench.drive.status().failing or "")
        await bench.command("pause")
        await bench.pass_time(60)
        assert bench.calls.count("pay 3") == 1
        await bench.command("resume")
        assert (bench.calls.count("pay 3"), bench.result.answer) == (2, "ok pay 3")


async def test_lost_call_is_repeated_at_once_when_time_is_over() -> None:
    bench = Bench(brain("tools pay 3"))
    bench.results["pay"] = UNKNOWN.model_copy(update={"acts_for": 60})
    async with bench:
        await bench.pass_time(60)
        await bench.decide("retry")
        assert bench.result.answer == "ok pay 3"


# -- calls that no worker can begin --------------------


async def begun_again(bench: Bench) -> int:
    """Let ten minutes pass, in which the call is given out again; how often it was so far."""
    await bench.pass_time(600)
    return len([call for call in bench.calls if call == "pay 3"])


async def test_call_that_no_worker_can_begin_waits_until_one_can() -> None:
    bench = Bench(brain("tools pay 3; look a"), people=People(unattended=True))
    bench.away = "the store is away"
    async with bench:
        times = []
        for _ in range(12):
            times.append(bench.drive.status().next_try or 0)
            await bench.pass_time(times[-1] - bench.clock)
        waits = [round(b - a) for a, b in pairwise(times)]
        assert waits == [4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]
        status = bench.drive.status()
        assert status.failing == 'pay(x="3") was not begun, and waits: the store is away'
        assert (status.attempt, status.counters["tool_calls"]) == (14, 0)
        bench.away = ""
        await begun_again(bench)
        assert bench.result.answer == "ok pay 3 | ok look a"
        assert bench.events.count("CallWaits") == 1
        assert bench.counted[1] == 2
        assert [call.error for call in bench.result.calls] == [None]
    void = [call.void for _, call in bench.performed if isinstance(call, ToolInput) and call.tool == "pay"]
    assert [len(times) for times in void] == list(range(14))


async def test_pause_holds_back_call_that_waits_to_be_begun() -> None:
    bench = Bench(brain("tools pay 3"))
    bench.away = "the store is away"
    async with bench:
        paused = await bench.command("pause")
        assert paused.done is not None
        assert paused.done.text == "The run is paused."
        bench.away = ""
        assert await begun_again(bench) == 1
        assert bench.drive.status().failing is None
        await bench.command("resume")
        assert bench.result.answer == "ok pay 3"
        assert bench.counted[1] == 1


@pytest.mark.parametrize("ends", ["abort", "cancel"])
async def test_run_ends_while_a_call_waits_to_be_begun(ends: str) -> None:
    bench = Bench(brain("tools pay 3"))
    bench.away = "the store is away"
    async with bench:
        await (bench.cancel() if ends == "cancel" else bench.command("abort"))
        assert bench.over
        assert "unknown" not in (bench.result.error or "")
        assert (bench.result.calls, bench.counted[1]) == ((), 0)


async def test_time_limit_is_met_while_call_waits_to_begin() -> None:
    people = People(on_limit="ask")
    bench = Bench(brain("tools pay 3"), people=people, limits=Limits(model_calls=None, seconds=30))
    bench.away = "the store is away"
    async with bench:
        await bench.pass_time(29)
        assert not bench.open
        await bench.pass_time(1)
        assert [one.kind for one in bench.open] == ["limit"]
        bench.away = ""
        await bench.decide("topup", amounts={"seconds": 3600})
        assert bench.result.answer == "ok pay 3"


async def test_call_waits_on_when_its_time_limit_was_raised() -> None:
    bench = Bench(brain("tools pay 3"), limits=Limits(model_calls=None, seconds=30))
    bench.away = "the store is away"
    async with bench:
        await bench.command("limits", limits={"seconds": 3600})
        await begun_again(bench)
        bench.away = ""
        await begun_again(bench)
        assert bench.result.answer == "ok pay 3"


@pytest.mark.parametrize("before", [None, 5000])
async def test_time_limit_set_while_call_waits_is_met(before: float | None) -> None:
    bench = Bench(brain("tools pay 3"), limits=Limits(model_calls=None, seconds=before))
    bench.away = "the store is away"
    async with bench:
        await bench.pass_time(500)
        await bench.command("limits", limits={"seconds": 520})
        await bench.pass_time(19)
        assert not bench.over
        await bench.pass_time(1)
        assert bench.result.exit_reason == "limit"


async def test_untimed_calls_forget_no_note_of_a_timed_one() -> None:
    """Only the notes of calls whose worker tried to write one can be in the store."""

    class Unread(Bench):
        async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
            answer = await super().perform(call, site)
            timed = isinstance(answer, NotBegun) and len(self.performed) > 2
            return NotBegun(reason="no key") if timed else answer

    bench = Unread(brain("tools pay 3"))
    bench.away = "the store is away"
    async with bench:
        for _ in range(110):
            await bench.pass_time(600)
        void = [call.void for _, call in bench.performed if isinstance(call, ToolInput)]
        assert void[-1] == void[1]
        assert len(void[1]) == 1
        await bench.command("abort")


async def test_lost_call_is_looked_up_once_worker_can_begin_that() -> None:
    limits = Limits(model_calls=None, seconds=30)
    bench = Bench(brain("tools pay 3"), tools=(LOOK, RECONCILES), limits=limits)
    bench.results["pay"], bench.found = UNKNOWN, Reconciled(outcome="unknown")
    bench.blocked.add("pay")
    async with bench:
        bench.blocked.clear()
        while "reconcile pay" not in bench.calls:  # the store leaves behind the call
            bench.away = "the store is away" if not bench.results else ""
            await asyncio.sleep(0)
        await bench.pass_time(60)
        assert not bench.open
        bench.away = ""
        await bench.pass_time(600)
        assert [one.kind for one in bench.open] == ["outcome"]
        await bench.decide("abort")


@pytest.mark.parametrize("stops", [False, True])
async def test_undoing_waits_until_a_worker_can_begin_it(stops: bool) -> None:
    script = ["tools put 1", "tools look a", "answer c"]
    bench = Bench(script)
    bench.blocked.add("look")
    async with bench:
        bench.away = "the store is away"
        rollback = await bench.command("rollback", step=1, compensate=True)
        assert (bench.undone, rollback.is_over) == ([], False)
        if stops:
            await bench.command("abort")
            assert bench.record("Compensated").reason == "put at work#2:0: not undone"
            return
        bench.away = ""
        await bench.pass_time(2)
        assert (len(bench.undone), rollback.is_over) == (1, True)


# -- models that fail --------------------


async def test_only_failed_members_are_asked_again() -> None:
    replies: list[Any] = ["both q", "one", failed(), "two", "answer b"]
    async with Bench(replies, people=People(on_trouble="ask"), hops=True) as bench:
        assert [request.kind for request in bench.open] == ["trouble"]
        await bench.decide("retry")
        assert [name for name, _ in bench.performed] == [
            "think#1:0", "work#2:0.0", "work#2:0.1", "work#2:0.2", "work#2:0.1+1", "think#3:0",
        ]  # fmt: skip
        assert bench.result.answer == "b"


async def test_failure_goes_to_the_machine_unless_people_fix_it() -> None:
    async with Bench([failed()]) as bench:
        assert (bench.result.exit_reason, bench.result.ok) == ("failed", False)
    async with Bench([failed()], people=People(on_trouble="ask")) as bench:
        await bench.decide("abort")
        assert bench.result.exit_reason == "aborted"


# -- limits --------------------


async def test_limit_ends_the_run_or_asks() -> None:
    async with Bench(brain("tools look a"), limits=Limits(model_calls=1)) as bench:
        assert (bench.result.exit_reason, bench.result.counters["model_calls"]) == ("limit", 1)
    ask = People(on_limit="ask")
    async with Bench(brain("tools look a"), limits=Limits(model_calls=1), people=ask) as bench:
        await bench.decide("finish")
        assert bench.result.exit_reason == "limit"


async def test_top_up_counts_once_for_each_request() -> None:
    script = ["tools look a", "tools look b", "answer c"]
    async with Bench(script, limits=Limits(model_calls=1), people=People(on_limit="ask"), hops=True) as bench:
        await bench.decide("topup", amounts={"model_calls": 1})
        assert [request.id for request in bench.open] == ["r2"]
        await bench.decide("topup", amounts={"model_calls": 1})
        assert bench.result.answer == "c"


async def test_limits_command_replaces_the_open_request() -> None:
    people, limits = People(on_limit="ask"), Limits(model_calls=1)
    async with Bench(brain("tools look a"), limits=limits, people=people) as bench:
        await bench.command("limits", limits={"model_calls": 1, "cost_usd": 9})
        assert [one.outcome for one in bench.requests.closed_requests] == ["withdrawn"]
        assert [one.kind for one in bench.open] == ["limit"]
        await bench.command("limits", limits={"model_calls": None})
        assert bench.over


WIDE = "; ".join(f"look {n}" for n in range(12))


@pytest.mark.parametrize(
    ("plan", "begun"),
    [("tools look a; look b", 1), (f"side {WIDE}", 10), ("children 12 inner", 10)],
    ids=["in order", "side by side", "inner runs"],
)
async def test_pause_holds_back_calls_that_have_not_begun(plan: str, begun: int) -> None:
    bench = Bench(brain(plan))
    bench.blocked.add("look")
    async with bench:
        looks = [call for call in bench.calls if call.startswith("look")]
        assert len(looks) == begun
        await bench.command("pause")
        await bench.release()
        assert (bench.drive.run.paused, bench.calls.count("ask_model")) == (True, bench.calls.index(looks[0]))
        assert [call for call in bench.calls if call.startswith("look")] == looks
        await bench.command("resume")
        assert (bench.result.exit_reason, bench.counted) == ("answered", bench.begun)


async def test_lower_limit_lets_the_call_under_way_end() -> None:
    bench = Bench(brain("tools look a"))
    bench.blocked.add("ask_model")
    async with bench:
        queued = await bench.command("limits", limits={"model_calls": 0})
        assert queued.done
        assert queued.done.text == (
            "Limits now: model_calls 0. model_calls: 1 of 0 spent already; the run ends before its next "
            "model call."
        )
        await bench.release()
        assert "look a" in bench.calls
        assert bench.result.exit_reason == "limit"


@pytest.mark.parametrize("limits", [{"tool_calls": 1}, {"cost_usd": 0}], ids=["calls", "cost"])
@pytest.mark.parametrize("pauses", ["no", "before", "after", "at once"])
@pytest.mark.parametrize("hops", [False, True])
async def test_lower_limit_reaches_the_rest_of_a_row(limits: Any, pauses: str, hops: bool) -> None:
    bench = Bench(brain("tools put 1; put 2; put 3"), hops=hops)
    bench.blocked.add("put")
    async with bench:
        if pauses != "no":
            await bench.command("pause", at_once=pauses == "at once")
        if pauses == "before":
            await bench.release()
        await bench.command("limits", limits=limits)
        if pauses != "no":
            await bench.command("resume")
        await bench.release()
        assert bench.calls == ["ask_model", "put 1"]
        assert (bench.result.exit_reason, bench.counted, bench.made_twice) == ("limit", (1, 1), [])


async def test_lower_limit_of_seconds_reaches_the_rest_of_a_row() -> None:
    bench = Bench(brain("tools pay 1; pay 2; pay 3"))
    bench.blocked.add("pay")
    async with bench:
        await bench.pass_time(100)
        await bench.command("limits", limits={"seconds": 5})
        await bench.release()
        assert bench.calls == ["ask_model", "pay 1"]
        assert bench.result.exit_reason == "limit"


async def test_command_past_the_limit_gives_up_no_unknown_outcome() -> None:
    bench = Bench(brain("tools pay 1; pay 2"), limits=Limits(seconds=10))
    bench.results["pay"] = UNKNOWN
    async with bench:
        assert bench.open[0].kind == "outcome"
        await bench.pass_time(1_000)
        await bench.command("steer", text="hello")
        assert bench.open[0].kind == "outcome"
        await bench.decide("answer", text="paid")
        assert bench.calls == ["ask_model", "pay 1"]
        assert bench.result.exit_reason == "limit"


async def test_lower_limit_that_leaves_room_ends_no_row() -> None:
    bench = Bench(brain("tools put 1; put 2; put 3"), people=People(on_limit="ask"))
    bench.blocked.add("put")
    async with bench:
        await bench.command("limits", limits={"tool_calls": 3})
        await bench.command("limits", limits={"tool_calls": 2})
        await bench.release()
        assert (bench.calls[-1], bench.open[0].kind) == ("put 1", "limit")
        await bench.decide("topup", amounts={"tool_calls": 1})
        assert (bench.result.exit_reason, bench.counted, bench.made_twice) == ("answered", (2, 3), [])


async def test_lower_limit_ends_the_run_and_counts_what_was_begun() -> None:
    bench = Bench(brain("tools look a; put b"))
    bench.blocked.add("put")
    async with bench:
        await bench.command("pause", at_once=True)
        await bench.command("limits", limits={"tool_calls": 0})
        await bench.command("resume")
        assert (bench.result.exit_reason, bench.counted, bench.begun) == ("limit", (1, 2), (1, 2))


@pytest.mark.parametrize(
    ("script", "limits", "results"),
    [
        (["tools pay 3", "answer b"], {"tool_calls": 1}, {"pay": UNKNOWN}),
        (["both q", failed(), "two", "one", "answer b"], {"model_calls": 3}, {}),
    ],
    ids=["call that did not take effect", "model that failed"],
)
async def test_call_that_is_made_again_meets_the_limit(script: Any, limits: Any, results: Any) -> None:
    people = People(on_trouble="ask", on_limit="ask")
    bench = Bench(script, limits={"model_calls": None, **limits}, people=people, hops=True)
    bench.results = dict(results)
    async with bench:
        begun = list(bench.performed)
        await bench.decide("retry")
        assert (bench.open[0].kind, bench.performed) == ("limit", begun)
        for more in (1, 2):
            if not bench.over:
                await bench.decide("topup", amounts=dict.fromkeys(limits, 1))
                assert len(bench.performed) >= len(begun) + more
        assert (bench.result.answer, bench.counted) == ("b", bench.begun)


OVER = EffectFailed(
    error="transient", type=OUT_OF_REQUESTS, message="busy", attempts=2, spent={"model_calls": 1}
)


async def test_question_that_may_send_no_more_meets_the_limit() -> None:
    limits = Limits(model_calls=2)
    async with Bench([OVER, "answer b"], limits=limits, people=People(on_limit="ask"), hops=True) as bench:
        assert bench.open[0].kind == "limit"
        await bench.decide("topup", amounts={"model_calls": 1})
        assert (bench.result.answer, bench.counted) == ("b", (3, 0))


async def test_paused_run_meets_its_limit_once_it_goes_on() -> None:
    bench = Bench([OVER], limits=Limits(model_calls=1))
    bench.blocked.add("ask_model")
    async with bench:
        await bench.command("pause")
        await bench.release()
        assert not bench.over
        await bench.command("limits", limits={"model_calls": 1})
        await bench.command("resume")
        assert bench.result.exit_reason == "limit"


async def test_command_comes_before_a_limit_that_ends_the_run() -> None:
    bench = Bench(["tools pay 3", "answer b"], tools=(RECONCILES,), limits=Limits(tool_calls=1))
    bench.found, bench.results["pay"] = Reconciled(outcome="not_happened"), UNKNOWN
    bench.blocked.add("pay")
    async with bench:
        await bench.command("steer", text="be quick")
        await bench.release()
        assert bench.events.index("Steered") < bench.events.index("Closed")


async def test_questions_side_by_side_meet_the_limit() -> None:
    script = ["both q", OVER, OVER, "one", "two", "answer b"]
    async with Bench(script, limits=Limits(model_calls=5), people=People(on_limit="ask"), hops=True) as bench:
        assert [one.kind for one in bench.open] == ["limit"]
        await bench.decide("topup", amounts={"model_calls": 3})
        assert (bench.result.answer, bench.counted) == ("b", (8, 1))


async def test_one_of_two_questions_gets_what_the_other_left() -> None:
    """What the other one's further requests have cost counts before it has reached the machine."""
    one = replied("one").model_copy(update={"requests": 2})
    people, limits = People(on_limit="ask"), Limits(model_calls=7)
    async with Bench(["both q", one, OVER, OVER], limits=limits, people=people, hops=True) as bench:
        beside = [name for name, call in bench.performed if isinstance(call, AskModel) and call.beside]
        assert [bench.allowed[name] for name in beside] == [3, 3, 2]
        assert [request.kind for request in bench.open] == ["limit"]
        assert "7 of 7" in bench.open[0].text


@pytest.mark.parametrize(("limit", "share"), [(3, 1), (4, 1), (8, 3)])
async def test_questions_side_by_side_share_the_limit(limit: int, share: int) -> None:
    async with Bench(["both q", "one", "two", "answer b"], limits=Limits(model_calls=limit)) as bench:
        beside = [name for name, call in bench.performed if isinstance(call, AskModel) and call.beside]
        assert [bench.allowed[name] for name in beside] == [share, share]


@pytest.mark.parametrize("hops", [False, True])
@pytest.mark.parametrize(("limit", "counted"), [(None, 5), (4, 4)])
async def test_message_forgets_no_request_of_the_question_that_failed(
    limit: int | None, counted: int, hops: bool
) -> None:
    refused = failed().model_copy(update={"spent": {"model_calls": 3}})
    people, limits = People(on_trouble="ask"), Limits(model_calls=limit)
    async with Bench([refused, "answer b"], people=people, limits=limits, hops=hops) as bench:
        await bench.command("steer", text="be quick")
        assert bench.counted == (counted, 0)
        assert bench.result.exit_reason == ("answered" if limit is None else "limit")


async def test_message_to_the_model_does_not_pass_the_limit() -> None:
    bench = Bench(["answer b"], limits=Limits(model_calls=1))
    bench.blocked.add("ask_model")
    async with bench:
        await bench.command("steer", text="be quick")
        await bench.release()
        assert (bench.result.exit_reason, bench.counted, bench.begun) == ("limit", (1, 0), (1, 0))


async def test_row_that_is_stopped_counts_only_what_was_begun() -> None:
    bench = Bench(brain("tools look a; put b; look c"))
    bench.blocked.add("put")
    async with bench:
        await bench.command("abort")
        assert bench.counted == bench.begun == (1, 2)


BLOCK = "```repl\nwhile True: pass\n```"


def out_of_time(bench: Bench) -> Any:
    """A model call that the limit of seconds ends."""

    def reply(call: AskModel) -> EffectFailed:
        bench.clock += 100
        return EffectFailed(error="transient", type="timeout", message="it took longer")

    return reply


async def test_seconds_reached_in_model_call_report_the_limit() -> None:
    bench = Bench([], limits=Limits(seconds=60))
    bench.script = [out_of_time(bench)]
    async with bench:
        assert bench.result.exit_reason == "limit"
        assert "seconds" in (bench.result.error or "")


async def test_wait_ending_a_moment_before_the_seconds_reports_limit() -> None:
    over = EffectFailed(error="transient", type="deadline", message="the time that the run had left is over")
    async with Bench([over], limits=Limits(seconds=60)) as bench:
        assert (bench.result.exit_reason, bench.result.counters["seconds"]) == ("limit", 60)


@pytest.mark.parametrize("seconds", [600, None])
async def test_wait_ending_after_seconds_were_raised_is_taken_up_again(seconds: int | None) -> None:
    over = EffectFailed(error="transient", type="deadline", message="the time that the run had left is over")
    bench = Bench([over, "answer b"], limits=Limits(seconds=60))
    bench.blocked.add("ask_model")
    async with bench:
        await bench.command("limits", limits={"seconds": seconds})
        await bench.pass_time(61)
        await bench.release()
        assert (bench.result.answer, bench.counted) == ("b", (2, 0))


async def test_call_that_was_approved_after_the_seconds_meets_the_limit() -> None:
    async with Bench(brain("tools pay 3"), approvals=ASKED, limits=Limits(seconds=10)) as bench:
        await bench.pass_time(1000)
        await bench.decide("approve")
        assert (bench.result.exit_reason, bench.calls) == ("limit", ["ask_model"])


async def test_approved_call_is_made_once_people_have_added_time() -> None:
    people, limits = People(on_limit="ask"), Limits(seconds=10)
    async with Bench(brain("tools pay 3"), approvals=ASKED, limits=limits, people=people, hops=True) as bench:
        await bench.pass_time(1000)
        await bench.decide("approve")
        assert [request.kind for request in bench.open] == ["limit"]
        await bench.decide("topup", amounts={"seconds": 2000})
        assert (bench.calls, bench.result.exit_reason) == (["ask_model", "pay 3", "ask_model"], "answered")


async def test_rejected_call_is_told_to_the_machine_after_the_seconds() -> None:
    async with Bench(brain("tools pay 3"), approvals=ASKED, limits=Limits(seconds=10)) as bench:
        await bench.pass_time(1000)
        await bench.decide("reject")
        assert (bench.result.exit_reason, bench.record("Worked").step) == ("limit", 1)


async def test_topped_up_seconds_ask_the_model_again() -> None:
    bench = Bench([], limits=Limits(seconds=60), people=People(on_limit="ask"))
    bench.script = [out_of_time(bench), "answer b"]
    async with bench:
        await bench.decide("topup", amounts={"seconds": 600})
        assert (bench.result.answer, bench.counted, bench.begun) == ("b", (2, 0), (2, 0))


async def test_reply_that_came_beyond_the_seconds_is_used() -> None:
    bench = Bench([], limits=Limits(seconds=60))

    def late(call: AskModel) -> str:
        bench.clock += 100
        return "answer b"

    bench.script = [late]
    async with bench:
        assert bench.result.answer == "b"


# -- commands --------------------


async def test_changed_question_is_another_call_and_both_count() -> None:
    bench = Bench(["answer b"])
    bench.blocked.add("ask_model")
    async with bench:
        await bench.command("steer", text="be quick")
        await bench.release()
        assert [name for name, _ in bench.performed] == ["think#1:0", "think#1:0+1"]
        assert [message.content for message in bench.performed[-1][1].say] == ["be quick", "begin"]  # type: ignore[union-attr]  # a question
        assert bench.result.counters["model_calls"] == 2


async def test_message_that_nobody_heard_is_named_in_the_result() -> None:
    bench = Bench([replied("tools look a"), failed()])
    bench.blocked.add("look")
    async with bench:
        await bench.command("steer", text="be quick")
        await bench.release()
        assert (bench.result.exit_reason, bench.result.unheard) == ("failed", ("be quick",))


async def test_text_at_an_interrupt_is_a_message_to_the_model() -> None:
    async with Bench(brain("tools look a"), people=People(interrupt_states=("work",))) as bench:
        await bench.decide("resume", text="be quick")
        assert [message.content for message in bench.drive.run.suspension.snapshot.conversation][
            2
        ] == "be quick"
        assert bench.over


async def test_interrupt_comes_once_for_each_number_of_steps() -> None:
    """R-000-13."""
    script = ["tools look a", "tools look b", "tools look c", "answer d"]
    async with Bench(script, people=People(interrupt_every=2), hops=True) as bench:
        assert [one.step for one in bench.open] == [3]
        await bench.decide("resume")
        assert bench.over


@pytest.mark.parametrize("hops", [False, True])
async def test_interrupt_says_what_happened_before_it(hops: bool) -> None:
    async with Bench(brain("tools look a"), people=People(interrupt_states=("work",)), hops=hops) as bench:
        said = next(record.summary for record in reversed(bench.records) if record.to)
        assert bench.open[0].text == f"Paused before work (step 1). Continue? Before this: {said}"
        assert said.endswith('-> look(x="a")')


async def test_rollback_does_not_bring_an_interrupt_again() -> None:
    script = [*["tools look a"] * 6, "answer d"]
    async with Bench(script, people=People(interrupt_every=1), hops=True) as bench:
        for _ in range(2):
            await bench.decide("resume")
        await bench.command("rollback", step=1)
        assert [one.step for one in (*bench.requests.closed_requests, *bench.open)] == [2, 3, 4, 4]


async def test_messages_wait_for_tools_in_order_and_delay_no_pause() -> None:
    bench = Bench(brain("tools pay a; pay b"))
    bench.blocked.add("pay")
    async with bench:
        for text in ("one", "two"):
            await bench.command("steer", text=text)
        await bench.command("pause")
        assert bench.drive.run.paused
        await bench.release()
        assert bench.calls == ["ask_model", "pay a"]
        await bench.command("resume")
        await bench.release()
        assert bench.result.exit_reason == "answered"
        told = [record.reason for record in bench.records if record.event in ("Steered", "Paused")]
        assert told == ["", "one", "two"]


async def test_message_beside_a_request_says_what_comes_first() -> None:
    async with Bench(brain("tools pay 3"), approvals=ASKED) as bench:
        steered = await bench.command("steer", text="be brief")
        assert steered.done is not None
        assert steered.done.text.endswith("brings the message; first people decide r1 (approval of pay).")
        assert [one.id for one in bench.open] == ["r1"]
        await bench.decide("approve")
        assert [one.content for one in bench.sent[-1]].count("be brief") == 1


async def test_messages_hold_up_no_lower_limit() -> None:
    bench = Bench(brain("tools pay a; pay b"))
    bench.blocked.add("pay")
    async with bench:
        await bench.command("steer", text="one")
        await bench.command("limits", limits={"tool_calls": 1})
        await bench.release()
        assert bench.calls == ["ask_model", "pay a"]
        assert bench.result.exit_reason == "limit"


async def test_command_with_known_id_is_the_same_command() -> None:
    async with Bench(brain("ask sure?"), hops=True) as bench:
        assert (await bench.command("steer", text="once", id="s1")).done
        assert (await bench.command("steer", text="once", id="s1")).done
        with pytest.raises(Refused):
            await bench.command("steer", text="other", id="s1")
        assert bench.events.count("Steered") == 1


async def test_nothing_counts_once_the_run_is_over() -> None:
    async with Bench(["answer b"]) as bench:
        with pytest.raises(Refused):
            await bench.command("abort")


async def test_cancelled_run_names_unsafe_call_under_way() -> None:
    bench = Bench(brain("tools pay 3"))
    bench.blocked.add("pay")
    async with bench:
        await bench.cancel()
        assert bench.result.exit_reason == "cancelled"
        assert 'outcome unknown: pay(x="3")' in (bench.result.error or "")
        assert bench.result.calls[0].error == "stopped: outcome unknown"


async def test_cancelled_run_is_cancelled_although_its_call_fails() -> None:
    """A model call that waits for its next attempt ends with its last failure when it is cancelled."""

    class Failing(Bench):
        async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
            with suppress(asyncio.CancelledError):
                await super().perform(call, site)
            return failed()

    bench = Failing(brain("answer x"))
    bench.blocked.add("ask_model")
    async with bench:
        await bench.cancel()
        assert bench.result.exit_reason == "cancelled"


async def test_cancelled_run_is_cancelled_although_its_unsafe_call_is_lost() -> None:
    """Not even its machine hears of it, which would end the run in a way of its own."""

    class Losing(Bench):
        async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
            with suppress(asyncio.CancelledError):
                return await super().perform(call, site)
            return UNKNOWN

    bench = Losing(brain("tools pay 3"))
    bench.blocked.add("pay")
    async with bench:
        await bench.cancel()
        assert bench.result.exit_reason == "cancelled"
        assert "outcome unknown: pay at" in (bench.result.error or "")


# -- rollback --------------------


async def test_rollback_undoes_calls_newest_first() -> None:
    bench = Bench(["tools put a; put b", "ask sure?", "answer d"], tools=[PUT])
    async with bench:
        queued = await bench.command("rollback", step=1, compensate=True)
        assert queued.done
        assert [key.rpartition(":")[2] for key in bench.undone] == ["0.1", "0.0"]
        assert [call.undone for call in bench.result.calls] == ["undone: as asked"] * 2
        assert bench.result.counters["cost_usd"] == pytest.approx(2 * 0.5 + 3 * 0.01)


async def test_abort_stops_undoing_and_the_rollback_is_refused() -> None:
    bench = Bench(["tools put a; put b", "ask sure?"], tools=[PUT])
    bench.blocked.add("compensate")
    async with bench:
        queued = await bench.command("rollback", step=1, compensate=True)
        await bench.command("abort")
        assert queued.refused
        assert bench.result.exit_reason == "aborted"
        assert bench.record("Compensated").reason.endswith("outcome of undoing it unknown")


async def test_aborted_rollback_counts_what_was_made_and_no_more() -> None:
    bench = Bench(["tools put a", "tools pay 3"], tools=[PUT, PAY], approvals=ASKED)
    bench.blocked.add("compensate")
    async with bench:
        await bench.command("rollback", step=1, compensate=True)
        await bench.command("abort")
        assert (bench.result.counters["model_calls"], bench.result.counters["tool_calls"]) == (2, 1)


async def test_rollback_keeps_a_message_that_nobody_heard() -> None:
    bench = Bench(brain("tools look a"))
    bench.blocked.add("look")
    async with bench:
        await bench.command("steer", text="be quick")
        await bench.command("rollback", step=1)
        await bench.release()
        said = [message.content for message in bench.drive.run.suspension.snapshot.conversation]
        assert said.count("be quick") == 1


async def test_refused_rollback_stops_nothing_under_way() -> None:
    bench = Bench(brain("tools look a"))
    bench.blocked.add("ask_model")
    async with bench:
        queued = await bench.command("rollback", step=7)
        assert "steps 0 to 1" in queued.refused
        await bench.release()
        assert bench.calls == ["ask_model", "look a", "ask_model"]


async def test_new_branch_has_keys_of_its_own() -> None:
    bench = Bench(["tools pay 3", "ask sure?", "tools pay 3", "answer d"])
    async with bench:
        await bench.command("rollback", step=1)
        keys = [call.key for call in bench.result.calls]
        assert keys == ["run-1/origin/0/work#2:0", "run-1/origin/1/work#6:0"]


async def test_seconds_reached_in_a_block_of_code_end_the_run() -> None:
    bench = Bench([BLOCK], machine="code", tools=(), limits=Limits(seconds=60))
    bench.script = [BLOCK, out_of_time(bench)]
    async with bench:
        assert bench.result.exit_reason == "limit"
        assert "seconds" in (bench.result.error or "")


async def test_pause_says_what_is_still_under_way() -> None:
    bench = Bench(brain("tools look a; look b"))
    bench.blocked.add("look")
    async with bench:
        queued = await bench.command("pause")
        assert queued.done is not None
        assert queued.done.text == 'The run pauses once this has ended: look(x="a").'
        await bench.release()
        await bench.command("resume")


async def test_limit_that_is_lowered_counts_what_was_begun() -> None:
    """The question is begun, and stopped; asking it again would be the second."""
    bench = Bench(brain("answer x"), people=People(on_limit="ask"))
    bench.blocked.add("ask_model")
    async with bench:
        await bench.command("pause", at_once=True)
        await bench.command("limits", limits={"model_calls": 1})
        await bench.command("limits", limits={"model_calls": 0})
        await bench.command("resume")
        assert "model_calls 1 of 0" in bench.open[0].text
        await bench.release()
        await bench.decide("topup", amounts={"model_calls": 2})
        assert (bench.result.exit_reason, bench.counted) == ("answered", bench.begun)
