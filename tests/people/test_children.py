"""Inner runs: what goes down to them, what comes up, and what is known about what they did."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from activities.contracts import AskModel, EffectFailed
from tests.people.bench import Bench, brain
from workflows.api import Limits, RunResult
from workflows.hosts import ChildRun
from workflows.people import Approvals, Command, People

CHILD = "run-1/origin/work#2:0"


def inner(tool: str, **more: Any) -> Bench:
    """A run whose inner run calls a tool that does not end."""
    model = brain("child inner")
    bench = Bench(lambda call: f"tools {tool} i" if call.say[-1].content == "inner" else model(call), **more)
    bench.blocked.add(tool)
    return bench


async def test_pause_and_resume_go_down() -> None:
    async with inner("look") as bench:
        queued = await bench.command("pause")
        assert queued.done is not None
        assert CHILD in queued.done.text
        child = bench.children[CHILD].drive.run
        assert (bench.drive.run.paused, child.paused) == (True, True)
        await bench.release()
        assert bench.calls.count("ask_model") == 2
        await bench.command("resume")
        assert (child.paused, bench.result.answer) == (False, "inner answered ok look i")


async def test_requests_of_inner_runs_are_their_own() -> None:
    async with inner("pay", approvals=Approvals()) as bench:
        assert bench.open == ()
        (request,) = bench.children[CHILD].open
        assert (request.run, request.tool) == (CHILD, "pay")


async def test_abort_cancels_the_inner_run_and_counts_its_cost() -> None:
    async with inner("pay") as bench:
        await bench.command("abort")
        result, child = bench.result, bench.children[CHILD].result
        assert (result.exit_reason, child.exit_reason) == ("aborted", "cancelled")
        assert result.counters["cost_usd"] == pytest.approx(0.02)
        assert 'outcome unknown: pay(x="i")' in (result.error or "")
        assert [(call.activity_id, call.tool, call.step) for call in result.calls] == [
            (f"{CHILD}: work#2:0", "pay", 1)
        ]
        assert bench.events.count("ChildStopped") == 1


async def test_rollback_begins_another_inner_run() -> None:
    async with inner("look") as bench:
        await bench.command("rollback", step=0)
        await bench.release()
        assert set(bench.children) == {CHILD, "run-1/origin/work#4:0"}
        assert bench.result.answer == "inner answered ok look i"


async def test_cancelled_run_cancels_the_inner_run() -> None:
    async with inner("look") as bench:
        await bench.cancel()
        assert bench.result.exit_reason == "cancelled"
        assert bench.children[CHILD].result.exit_reason == "cancelled"


class Failing(Bench):
    """Its inner runs end as it says."""

    end: Any = None

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        assert (child.workflow_id, child.task.depth, child.parents) == (CHILD, 1, (("run-1", "origin"),))
        found: RunResult | EffectFailed = self.end
        return found


@pytest.mark.parametrize(
    ("end", "answer", "done"),
    [
        (
            RunResult(
                agent="a",
                machine="any_effect",
                machine_version="1",
                state="think",
                step=1,
                ok=False,
                error="no row",
                exit_reason="broken_rule",
                raises="NoTransition",
                workflow_id=CHILD,
                run_id="x",
                counters={"cost_usd": 0.5},
            ),
            "failed NoTransition: run-1/origin/work#2:0: no row",
            [],
        ),
        (
            EffectFailed(error="unknown_outcome", type="terminated", message="gone"),
            "failed terminated: gone",
            ["outcome unknown; its own log may say what it did"],
        ),
        (EffectFailed(error="fatal", type="child_exists", message="twice"), "failed child_exists: twice", []),
        (EffectFailed(error="fatal", type="cancelled", message="early"), "failed cancelled: early", []),
    ],
    ids=["broken rule", "terminated", "never started", "cancelled by others"],
)
async def test_failed_inner_run_is_a_failed_effect(end: Any, answer: str, done: list[str]) -> None:
    bench = Failing(brain("child inner"))
    bench.end, bench.plays = end, False  # the inner run never was
    async with bench:
        assert bench.result.answer == answer
        assert [call.error for call in bench.result.calls] == done
        spent = end.counters["cost_usd"] if isinstance(end, RunResult) else 0
        assert bench.result.counters["cost_usd"] == pytest.approx(0.02 + spent)


async def test_abort_of_inner_run_not_yet_begun_is_an_abort() -> None:
    class Early(Failing):
        async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return EffectFailed(error="fatal", type="cancelled", message="early")

    async with Early(brain("child inner")) as bench:
        await bench.command("abort")
        assert (bench.result.exit_reason, bench.result.calls) == ("aborted", ())
        assert bench.calls == ["ask_model"]
        assert bench.events[-1] == "Closed"


async def test_inner_run_that_fails_beyond_the_seconds_still_costs() -> None:
    class Late(Failing):
        async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
            self.clock += 100
            return EffectFailed(error="fatal", type="broken", message="late", spent={"cost_usd": 0.5})

    async with Late(brain("child inner"), limits=Limits(seconds=60)) as bench:
        assert bench.result.exit_reason == "limit"
        assert bench.result.counters["cost_usd"] == pytest.approx(0.51)


async def test_failed_inner_run_is_not_repeated_when_time_is_added() -> None:
    class Broken(Bench):
        ran = 0

        async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
            self.ran += 1
            result = await super().run_child(child)
            assert isinstance(result, RunResult)
            self.clock += 100
            return result.model_copy(update={"exit_reason": "broken_rule", "ok": False, "error": "x"})

    says = {"begin": "child inner", "inner": "tools pay 7"}
    people, limits = People(on_limit="ask"), Limits(seconds=60)
    bench = Broken(lambda q: says.get(q.say[-1].content, "answer x"), people=people, limits=limits)
    bench.plays = False  # the inner run never ended so
    async with bench:
        await bench.decide("topup", amounts={"seconds": 1000})
        assert (bench.ran, bench.calls.count("pay 7"), bench.made_twice) == (1, 1, [])
        assert bench.result.exit_reason == "answered"


async def test_inner_run_gets_seconds_left_when_it_begins() -> None:
    class Noted(Failing):
        seconds: float | None = None

        async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
            self.seconds = child.task.limits.seconds
            return EffectFailed(error="fatal", type="done", message="enough")

    people = People(interrupt_states=("work",))
    bench = Noted(brain("child inner"), limits=Limits(seconds=60), people=people)
    async with bench:
        await bench.command("pause")
        await bench.decide("resume")
        await bench.pass_time(40)
        await bench.command("resume")
        assert bench.seconds == pytest.approx(20)


async def test_inner_run_that_cannot_be_run_says_why() -> None:
    async with Bench(["child  ", "answer b"]) as bench:
        assert "blank" in bench.question()
        assert not bench.children


async def test_siblings_spend_no_more_than_is_left() -> None:
    """Each needs two model calls. Five are left for three of them, and none for the run itself."""
    async with Bench(brain("children 3 inner"), limits=Limits(model_calls=6)) as bench:
        ends = [child.result.exit_reason for child in bench.children.values()]
        assert ends == ["answered", "answered", "limit"]
        assert bench.counted == bench.begun == (6, 3)


async def test_sibling_that_begins_later_gets_what_the_others_left() -> None:
    """Twelve share 24 calls. Ten begin at once; the others get what those have not spent."""
    model = brain("children 12 inner")
    async with Bench(
        lambda call: "answer early" if call.say[-1].content == "inner" else model(call),
        limits=Limits(model_calls=25),
    ) as bench:
        shares = [child.task.limits.model_calls for child in bench.children.values()]
        assert shares == [*[2] * 10, 7, 7]
        assert (bench.result.exit_reason, bench.counted) == ("answered", bench.begun)


class SlowToTell(Bench):
    """Telling an inner run takes a while, as a signal does; the last of the first ten ends meanwhile."""

    async def tell_child(self, workflow_id: str, command: Command) -> bool:
        """See `Host`."""
        self.children[f"{CHILD}.9"].blocked = set()
        for _ in range(60):
            await asyncio.sleep(0)
        return await super().tell_child(workflow_id, command)


def twelve(kind: type[Bench] = Bench) -> Bench:
    """A run with twelve inner runs, of which ten are under way."""
    model = brain("children 12 inner")
    bench = kind(lambda call: "tools look i" if call.say[-1].content == "inner" else model(call))
    bench.blocked.add("look")
    return bench


async def test_no_inner_run_begins_while_others_are_told_to_pause() -> None:
    async with twelve(SlowToTell) as bench:
        await bench.command("pause")
        while not bench.drive.run.paused:
            await bench.settle()
        assert sorted(bench.children) == [f"{CHILD}.{number}" for number in range(10)]
        assert all(
            child.drive.run.paused or child.drive.run.suspension.exit for child in bench.children.values()
        )


async def test_inner_runs_held_back_by_pause_begin_as_others_end() -> None:
    async with twelve() as bench:
        await bench.command("pause")
        bench.children[f"{CHILD}.9"].drive.commands.put(Command(command="resume", by="ann"))
        bench.children[f"{CHILD}.9"].blocked, bench.plays = set(), False
        await bench.settle()
        assert len(bench.children) == 10
        await bench.command("resume")
        assert len(bench.children) == 11
        await bench.release()
        assert bench.result.exit_reason == "answered"


async def test_inner_run_after_a_rollback_shares_with_nobody() -> None:
    """Ten of twelve have begun, each with one model call, when the run is rolled back; 31 - 12 are left."""
    plans = ["children 12 inner", "child inner"]

    def model(call: AskModel) -> str:
        newest = call.say[-1].content
        return plans.pop(0) if newest == "begin" else "tools look i" if newest == "inner" else "answer done"

    bench = Bench(model, limits=Limits(model_calls=31))
    bench.blocked.add("look")
    async with bench:
        await bench.command("rollback", step=0)
        assert list(bench.children.values())[-1].task.limits.model_calls == 19
        await bench.release()
        assert bench.result.exit_reason == "answered"
