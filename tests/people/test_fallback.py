"""A model that is unavailable: the next one is asked, and people see which and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from activities.contracts import AskModel, EffectFailed, ModelSpec, ToolResult
from tests.people.bench import Bench, failed, replied
from workflows.api import AgentSpec
from workflows.engine.fallback import FALLBACK_SECONDS
from workflows.people import People

MODELS = {
    "default": ModelSpec(name="first", fallback=("second", "third")),
    "second": ModelSpec(name="second"),
    "third": ModelSpec(name="third"),
}
DOWN = EffectFailed(error="transient", type="HTTP503", message="overloaded")
ASKED = People(on_trouble="ask")


def models(down: dict[str, EffectFailed]) -> Callable[[AskModel], Any]:
    """Models that fail so; the others look at x, then answer with their name."""

    def reply(call: AskModel) -> Any:
        newest = call.say[-1].content
        if call.role in down:
            return down[call.role]
        return replied("tools look x" if newest == "begin" else f"answer {call.role}")

    return reply


def asked(bench: Bench) -> list[str]:
    """The models that were asked, in order."""
    return [call.role for _, call in bench.performed if isinstance(call, AskModel)]


def changes(bench: Bench) -> list[tuple[str, str | None]]:
    """From which model to which, by the log."""
    found: Any = [record.about for record in bench.records if record.event == "ModelChanged"]
    return [(one["left"], one["asked"]) for one in found]


@pytest.mark.parametrize(
    "failure", [DOWN, failed("HTTP401"), failed("model_not_found"), failed("insufficient_quota")]
)
@pytest.mark.parametrize("hops", [False, True])
async def test_next_model_is_asked_and_stays(failure: EffectFailed, hops: bool) -> None:
    async with Bench(models({"default": failure}), models=MODELS, people=ASKED, hops=hops) as bench:
        assert bench.result.answer == "second"
        assert asked(bench) == ["default", "second", "second"]
        assert changes(bench) == [("default", "second")]
        assert bench.record("ModelChanged").reason == (
            f"default: second (second) is asked instead of default (first): {failure.type}: {failure.message}"
        )
        assert bench.counted == bench.begun == (3, 1)
        assert not bench.made_twice
        assert "Requested" not in bench.events


async def test_models_are_asked_in_their_order_and_then_people() -> None:
    down = {name: failed() for name in MODELS}
    async with Bench(models(down), models=MODELS, people=ASKED) as bench:
        assert bench.open[0].kind == "trouble"
        assert changes(bench) == [("default", "second"), ("second", "third"), ("third", None)]
        assert bench.record("ModelChanged").reason.startswith("default: no model is left after third (third)")
        down.clear()
        await bench.decide("retry")
        assert bench.result.answer == "default"
        assert asked(bench) == [*MODELS, "default", "default"]


async def test_failure_of_all_goes_to_the_machine() -> None:
    async with Bench(models({"default": DOWN, "second": DOWN, "third": failed()}), models=MODELS) as bench:
        assert bench.result.exit_reason == "failed"
        assert bench.counted == bench.begun == (3, 0)


@pytest.mark.parametrize(
    "failure",
    [
        EffectFailed(error="recoverable", type="content_filter", message="no"),
        EffectFailed(error="recoverable", type="context_too_long", message="no"),
        EffectFailed(error="transient", type="rate_limit", message="no room for an hour"),
        failed("HTTP400"),
    ],
    ids=lambda failure: failure.type,
)
async def test_what_is_not_the_models_fault_asks_no_other(failure: EffectFailed) -> None:
    async with Bench(models({"default": failure}), models=MODELS) as bench:
        assert (asked(bench), changes(bench)) == (["default"], [])


async def test_first_model_is_asked_again_after_a_while() -> None:
    down = {"default": DOWN}
    bench = Bench(models(down), models=MODELS)
    bench.blocked.add("look")
    async with bench:
        down.clear()
        await bench.pass_time(FALLBACK_SECONDS)
        await bench.release()
        assert asked(bench) == ["default", "second", "default"]
        assert changes(bench) == [("default", "second"), ("second", "default")]
        assert bench.record("ModelChanged").reason.endswith("10 minutes have passed since it failed")


async def test_questions_side_by_side_change_the_model_once() -> None:
    def reply(call: AskModel) -> Any:
        newest = call.say[-1].content
        if newest.startswith("q "):
            return "part" if call.role == "third" else DOWN
        return "both q" if newest == "begin" else "answer done"

    async with Bench(reply, models=MODELS) as bench:
        assert changes(bench) == [("default", "second"), ("second", "third")]
        assert asked(bench) == [
            "default",
            "default",
            "default",
            "second",
            "second",
            "third",
            "third",
            "third",
        ]
        assert bench.counted == bench.begun == (8, 1)


async def test_next_model_is_asked_beside_call_with_unknown_outcome() -> None:
    def reply(call: AskModel) -> Any:
        newest = call.say[-1].content
        if newest.startswith("q "):
            return DOWN if call.role == "default" else "part"
        return "both q" if newest == "begin" else f"answer {newest}"

    bench = Bench(reply, models=MODELS, people=People(unattended=True))
    bench.results["look"] = ToolResult(id="", tool="look", output="lost", error="unknown_outcome")
    async with bench:
        assert bench.result.answer == "part & part & unknown_outcome lost"
        assert changes(bench) == [("default", "second")]


async def test_fallback_meets_the_limit() -> None:
    async with Bench(models({"default": DOWN}), models=MODELS, limits={"model_calls": 1}) as bench:
        assert (bench.result.exit_reason, bench.begun) == ("limit", (1, 0))


async def test_command_while_the_fallback_is_asked_keeps_it() -> None:
    bench = Bench(models({"default": DOWN}), models=MODELS)
    bench.blocked.add("look")
    async with bench:
        bench.blocked = {"ask_model"}
        await bench.settle()
        await bench.command("steer", text="be quick")
        await bench.release()
        assert asked(bench) == ["default", "second", "second", "second"]


async def test_rollback_keeps_the_fallback() -> None:
    async with Bench(models({"default": DOWN}), models=MODELS, people=People(interrupt_every=1)) as bench:
        await bench.command("rollback", step=1)
        await bench.decide("resume")
        assert asked(bench) == ["default", "second", "second", "second"]


async def test_inner_run_falls_back_too() -> None:
    def reply(call: AskModel) -> Any:
        newest = call.say[-1].content
        if call.role == "default":
            return DOWN
        return {"begin": "child inner", "inner": "answer deep"}.get(newest, f"answer {newest}")

    async with Bench(reply, models=MODELS) as bench:
        assert [call.role for _, call in bench.performed if isinstance(call, AskModel)][:4] == [
            "default", "second", "default", "second",
        ]  # fmt: skip
        assert bench.result.exit_reason == "answered"


@pytest.mark.parametrize(
    ("fallback", "problem"),
    [
        ("third", "there is no other model 'third'; there are: second"),
        ("default", "there is no other model 'default'; there are: second"),
        (("second", "second"), "'second' is named twice"),
    ],
)
def test_fallback_names_another_model(fallback: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        AgentSpec(models={"default": {"fallback": fallback}, "second": ModelSpec()})
