"""Labels: a run has one while a text with it, or what may be derived from that, is in what it knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import (
    AskModel,
    EffectFailed,
    JsonObject,
    LabelSource,
    ModelReplied,
    ModelSpec,
    ToolSpec,
)
from tests.people.bench import LOOK, PAY, PUT, Bench, failed, replied
from workflows.api import Fork, Origin, RunResult
from workflows.hosts import CallAnswer, CallSite, ChildRun, HostCall
from workflows.kernel.rollback import restored
from workflows.people import ApprovalRule, Approvals, People, Request
from workflows.task import InvalidTask

EVIL = "EVIL"
"""In all that a stranger wrote. The model repeats it, and obeys it: what is derived from it has it too."""
WEB = LOOK.model_copy(update={"brings": ("untrusted",)})
FILES = PUT.model_copy(update={"brings": ("private",)})
TOOLS = (WEB, PAY, FILES)
ASKED = Approvals(
    rules=(ApprovalRule(tools=("pay",), after=("untrusted",)), ApprovalRule(tools=("pay",), ask="never"))
)
WINDOW = {"default": ModelSpec(window_tokens=1000)}


def bench(*plans: str, kind: type[Bench] | None = None, **more: Any) -> Bench:
    """A run in which `look` returns what strangers wrote. Inner runs do `look` and answer."""

    def reply(call: AskModel) -> ModelReplied:
        newest = call.say[-1].content
        if call.label.startswith("summarise"):
            return replied("a summary")
        own = {"inner": "tools look i", f"ok {EVIL} look i": "answer found", "tell": "answer told"}
        return replied(own.get(newest) or next(script, "answer done"))

    script: Iterator[str] = iter(plans)
    made = (kind or Bench)(reply, **{"tools": TOOLS, "approvals": ASKED, **more})
    made.says = {"look": f"{EVIL} "}
    return made


def labels(run: Bench) -> list[str]:
    return [one.text for one in run.drive.run.labels]


async def test_rule_asks_only_after_an_untrusted_output() -> None:
    async with bench("tools pay 1", "tools look a", "tools pay 2") as run:
        assert run.calls == ["ask_model", "pay 1", "ask_model", "look a", "ask_model"]
        (request,) = run.open
        assert (request.arguments, request.rule) == ({"x": "2"}, "rules.0")
        assert request.holds == ("untrusted text from look (work#4:0, step 2)",)
        await run.decide("approve")
        assert run.result.ok
        assert run.result.labels == (LabelSource(label="untrusted", tool="look", call="work#4:0", step=2),)
    brought = {record.event: record.brought for record in run.records if record.brought}
    assert brought == {"Worked": run.result.labels}


async def test_rule_can_reject_without_asking() -> None:
    rule = ApprovalRule(tools=("pay",), after=("untrusted",), ask="reject")
    approvals = Approvals(rules=(rule,), effects={"unsafe": "never"})
    async with bench("tools look a", "tools pay 2", approvals=approvals) as run:
        assert (run.over, "pay 2" in run.calls) == (True, False)
        assert run.record("RejectedByRule").about == {
            "activity_id": "work#4:0", "tool": "pay", "rule": "rules.0",
        }  # fmt: skip
        assert "rejected The agent's approvals reject pay (rules.0)" in run.question()
        assert "untrusted text from look (work#2:0, step 1)" in run.question()


async def test_rule_about_two_labels_waits_for_both() -> None:
    both = Approvals(rules=(ApprovalRule(after=("untrusted", "private")),), effects={"unsafe": "never"})
    plans = ("tools look a", "tools pay 1", "tools put b", "tools pay 2")
    async with bench(*plans, approvals=both) as run:
        assert [request.arguments for request in run.open] == [{"x": "2"}]
        assert len(run.open[0].labels) == 2


async def test_call_beside_the_untrusted_output_was_written_before_it() -> None:
    async with bench("tools look a; pay 1", "tools pay 2") as run:
        assert [request.arguments for request in run.open] == [{"x": "2"}]


@pytest.mark.parametrize("hops", [False, True])
async def test_rollback_behind_the_untrusted_output_is_clean(hops: bool) -> None:
    async with bench("tools pay 1", "tools look a", "ask why", hops=hops) as run:
        assert labels(run) == ["untrusted text from look (work#4:0, step 2)"]
        await run.command("rollback", step=2)
        assert labels(run) == []
        assert run.result.ok


async def test_rollback_to_after_the_untrusted_output_keeps_its_label() -> None:
    async with bench("tools look a", "tools put b", "ask why", "tools pay 1") as run:
        await run.command("rollback", step=2)
        assert labels(run) == ["untrusted text from look (work#2:0, step 1)"]
        assert [request.arguments for request in run.open] == [{"x": "1"}]


@pytest.mark.parametrize(("later_replies", "held"), [(0, []), (1, ["untrusted"])])
async def test_text_that_machine_takes_over_rollback_keeps_its_label(
    later_replies: int, held: list[str]
) -> None:
    """React takes over its replies of later steps."""
    acts = [{"thought": name, "action": name, "action_input": {"x": EVIL}} for name in ("look", "put")]
    script = [*acts[: 1 + later_replies], {"thought": "FINAL ANSWER: done", "action": None}]
    texts = [json.dumps(one) for one in script]
    more: Any = {"machine": "react", "tools": (WEB, PUT), "people": People(interrupt_every=1)}
    async with Bench(texts, **more) as run:
        for _ in range(later_replies):
            await run.decide("resume")
        assert labels(run)
        await run.command("rollback", step=1)
        assert [one.label for one in run.record("RolledBack").brought] == held
        assert [one.label for one in run.result.labels] == held


async def test_summary_that_survives_a_rollback_keeps_its_label() -> None:
    """It tells what people decided, also on the branch that is left."""
    long = "-".join(["long"] * 50)
    plans = [*[f"tools put {long}"] * 6, "tools look a", f"tools pay {EVIL}", f"tools put {long}", "ask why"]
    more: Any = {"models": WINDOW, "compaction": {"keep": 0.5}, "tools": (WEB, PAY, PUT)}
    async with bench(*plans, **more) as run:
        await run.decide("approve")
        assert run.record("Compacted").step == 9
        await run.command("rollback", step=7)
        assert [m.content for m in run.drive.run.suspension.snapshot.conversation if EVIL in m.content] == []
        assert [m.role for m in run.sent[-1].messages if EVIL in m.content] == ["user"]
        assert run.record("Labelled").brought[0].tool == "look"


async def test_summary_that_tells_of_an_abandoned_branch_brings_its_label() -> None:
    long = "-".join(["long"] * 50)
    plans = ["tools look a", f"tools pay {EVIL}", "ask why", *[f"tools put {long}"] * 6, "ask why"]
    async with bench(*plans, models=WINDOW, tools=(WEB, PAY, PUT)) as run:
        await run.decide("approve")
        await run.command("rollback", step=1)
        assert run.record("Compacted").brought[0].tool == "look"
        assert [m.role for m in run.sent[-1].messages if EVIL in m.content] == ["user"]


async def test_inner_run_passes_labels_up_and_gets_outer_ones() -> None:
    async with bench("child inner", "tools pay 1") as run:
        (inner,) = run.children
        assert labels(run) == [f"untrusted text from look (work#2:0, step 1, run {inner})"]
        assert run.open
    async with bench("tools look a", "child tell", "tools pay 1") as run:
        (begun,) = run.children.values()
        assert labels(begun) == ["untrusted text from look (work#2:0, step 1, run run-1)"]


@pytest.mark.parametrize(("step", "asks"), [(1, False), (2, True)])
async def test_fork_has_the_labels_of_its_step(step: int, asks: bool) -> None:
    async with bench("tools look a", "ask why") as run:
        records = tuple(record.model_dump(mode="json") for record in run.records)
    origin = Origin(workflow_id="run-1", run_id="origin", step=step)
    async with bench("tools pay 1", fork=Fork(origin=origin, records=records)) as fork:
        assert [one.label for one in fork.drive.run.labels] == ["untrusted"] * asks
        assert bool(fork.open) == asks


async def test_failure_of_inner_run_brings_what_its_text_may_hold() -> None:
    class Losing(Bench):
        async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
            return EffectFailed(error="unknown_outcome", type="TerminatedError", message="terminated")

    lost = bench("child inner", "tools pay 1", kind=Losing)
    lost.plays = False  # this host is no recording
    async with lost as run:
        assert [one.tool for one in run.drive.run.labels] == ["look"]
        assert run.open


async def test_what_people_write_is_trusted_unless_the_agent_says_otherwise() -> None:
    async with bench("ask who", "tools pay 1", "answer done") as run:
        await run.decide("answer", text="somebody")
        assert run.result.ok
    said: JsonObject = {"people": ["untrusted"]}
    async with bench("ask who", "tools pay 1", labels=said) as run:
        await run.decide("answer", text="somebody")
        assert run.open[0].holds == ("untrusted text from ann (claimed) (step 1)",)


async def test_message_not_yet_heard_keeps_its_label_over_rollback() -> None:
    async with bench("tools put a", "ask who", labels={"people": ["untrusted"]}) as run:
        await run.command("steer", text="hear me")
        assert labels(run) == [
            "private text from put (work#2:0, step 1)",
            "untrusted text from ann (claimed) (step 2)",
        ]
        await run.command("rollback", step=1)
        assert [one.label for one in run.drive.run.labels] == ["untrusted"]


async def test_input_can_be_marked_as_untrusted() -> None:
    async with bench("tools pay 1", labels={"input": ["untrusted"]}) as run:
        assert run.open[0].holds == ("untrusted text from what the run began with",)


async def test_agent_file_says_what_tools_bring() -> None:
    said: JsonObject = {"tools": {"lo*": {"brings": []}, "put": {"brings": ["untrusted"]}}}
    plans = ("tools look a", "tools pay 1", "tools put b", "tools pay 2")
    specs = [ToolSpec.model_validate(spec.model_dump()) for spec in TOOLS]
    made = bench(*plans, labels=said)
    made.specs = {spec.name: made.task.labels.labelled(spec) for spec in specs}
    made.plays = False
    async with made as run:
        assert [request.arguments for request in run.open] == [{"x": "2"}]


async def test_standing_approval_holds_for_run_with_no_other_label() -> None:
    approvals = Approvals(
        rules=(ApprovalRule(tools=("pay",), after=("untrusted",)), ApprovalRule(tools=("pay",)))
    )
    plans = ("tools pay 1", "tools pay 2", "tools look a", "tools pay 3", "tools pay 4")
    async with bench(*plans, approvals=approvals) as run:
        await run.decide("approve", standing_approval={})
        assert run.open[0].arguments == {"x": "3"}
        await run.decide("approve", standing_approval={})
        assert run.result.ok


def test_label_that_nothing_brings_is_named_before_the_run_begins() -> None:
    with pytest.raises(InvalidTask, match=r"approvals.rules.0.after: nothing brings 'untrusted'"):
        asyncio.run(is_begun(tools=(PUT, PAY)))
    with pytest.raises(InvalidTask, match=r"approvals.rules.0.sends: no tool .* there are look: nowhere"):
        asyncio.run(is_begun(approvals=Approvals(rules=(ApprovalRule(sends=("external",)),))))
    with pytest.raises(InvalidTask, match=r"labels.tools.no\*: no tool fits"):
        asyncio.run(is_begun(labels={"tools": {"no*": {"sends": "external"}}}))


async def is_begun(**more: Any) -> None:
    async with bench(**more):
        pass


# -- in any order --------------------


MARKS = {EVIL: "untrusted", "SECRET": "private"}
"""What stands in all that a stranger wrote, and in all that people wrote."""


class Watched(Bench):
    """A run that is looked at whenever it asks a model, and whenever it stands still."""

    def check(self) -> None:
        """The invariant: where there is text that may come from a stranger, the run has the label."""
        s, run = self.drive.run.suspension.snapshot, self.drive.run
        texts = [
            *(m.content for m in s.conversation),
            *(n.content for n in s.notes),
            s.context.model_dump_json(),
        ]
        for mark, label in MARKS.items():
            if any(mark in text for text in texts):
                assert label in [one.label for one in run.labels], (mark, run.labels)
        assert restored(self.program, self.records).labels == s.labels

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        for mark, label in MARKS.items():
            if any(mark in message.content for message in site.conversation):
                assert label in [one.label for one in self.drive.run.labels], (mark, site.activity_id)
        return await super().perform(call, site)

    async def settle(self) -> None:
        await super().settle()
        for one in (self, *self.children.values()):
            one.check()  # type: ignore[attr-defined]  # inner runs are of this class, too


PLANS = (
    "tools put {x}", "tools look {x}", "tools pay {x}", "side look {x}; put {x}", "both {x}", "ask {x}",
    "child inner {x}", "children 2 inner {x}", "tools put {long}",
)  # fmt: skip
ACTIONS = ("rollback", "steer", "decide", "fail", "pause", "resume")


@given(
    plans=st.lists(st.sampled_from(PLANS), min_size=2, max_size=8),
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9)), max_size=5),
    hops=st.booleans(),
    is_short=st.booleans(),
)
def test_label_is_there_in_any_order(
    plans: list[str], actions: list[tuple[str, int]], hops: bool, is_short: bool
) -> None:
    asyncio.run(any_order(plans, actions, hops, is_short))


async def any_order(plans: list[str], actions: list[tuple[str, int]], hops: bool, is_short: bool) -> None:
    todo, fails = list(plans), [False]

    def reply(call: AskModel) -> Any:
        if fails[0]:
            fails[0] = False
            return failed("down")
        newest = call.say[-1].content
        x = "-".join([*(mark for mark in MARKS if mark in newest), str(len(todo))])
        if call.label.startswith("summarise"):
            return replied("a summary")
        if newest.startswith("inner ") and " answered " not in newest:
            return replied(f"tools look {x}" if len(todo) % 2 else f"answer {x}")
        return replied(todo.pop(0).format(x=x, long="long-" * 80 + x) if todo else f"answer {x}")

    windows = {"models": WINDOW} if is_short else {}
    run = Watched(
        reply,
        hops=hops,
        tools=(WEB, PAY, PUT),
        approvals=ASKED,
        labels={"people": ["private"]},
        people=People(on_trouble="ask"),
        **windows,
    )
    run.says = {"look": f"{EVIL} "}
    # a cassette does not say in which order inner runs were cancelled
    run.plays = not any("child" in plan for plan in plans)
    async with run:
        for action, number in (*actions, *[("decide", 0)] * 12):
            if run.over:
                break
            await act(run, action, number, fails)
        for one in (run, *run.children.values()):
            one.check()  # type: ignore[attr-defined]  # inner runs are of this class, too


async def act(run: Watched, action: str, number: int, fails: list[bool]) -> None:
    """One thing that happens to the run."""
    match action:
        case "rollback":
            await run.command("rollback", step=number)
        case "steer":
            await run.command("steer", text=f"SECRET {number}")
        case "fail":
            fails[0] = True
        case "decide":
            await decide(run, number)
        case _:
            await run.command(action)


async def decide(run: Watched, number: int) -> None:
    """Somebody answers the oldest request; a paused run goes on."""
    asking = [one for one in (*run.children.values(), run) if one.open]
    if not asking:
        await run.command("resume")
    elif number % 2 and "edit" in asking[0].open[0].options:
        await asking[0].decide("edit", arguments={"x": "SECRET"})
    else:
        await asking[0].decide(_verb(asking[0].open[0]), text="SECRET")


def _verb(request: Request) -> Any:
    return next(verb for verb in ("approve", "answer", "retry", "resume", "topup") if verb in request.options)
