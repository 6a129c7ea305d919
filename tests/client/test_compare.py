"""Two runs side by side: where they part, what each spent, what they have in common by origin."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from activities.settings import Settings
from client.agent import AgentClient
from client.checkpoints import checkpoints_of
from client.compare import Comparison, _common, compare
from client.errors import RatchetError, RunFailed, UnknownRun
from client.fork import Changes, fork
from client.pairing import paired
from client.replay import replay
from client.view_time import comparison
from tests.client.peoplekit import opened
from tests.client.test_fork import agent_file, talk
from tests.client.test_time_steps import elsewhere, finished, waiting_task
from tests.workflows.record import SCENARIOS
from tests.workflows.test_subgraphs import holding
from tests.workflows.trials import act, final, task
from workflows.kernel.log import ROLLED_BACK, STARTED, Record


def shown(told: Comparison, width: int = 100) -> str:
    """As a terminal shows it."""
    printed = io.StringIO()
    console = Console(width=width, highlight=False, markup=False, color_system=None, file=printed)
    console.print(comparison(told, width))
    return printed.getvalue()


async def test_the_same_script_twice_is_the_same_step_by_step(agents: AgentClient) -> None:
    one, other = [await finished(agents, talk("compare-a")) for _ in range(2)]
    told = await compare(agents, one, other)
    assert (told.parts, told.shared, told.common) == (None, 0, None)
    assert [(pair.step, pair.same) for pair in told.steps] == [(0, True), (1, True), (2, True), (3, True)]
    assert (told.left.run, told.right.run, told.left.answer) == (one, other, "both")
    assert "They do the same, step by step." in shown(told)


@pytest.mark.parametrize("name", ["contract-answer", "planner-tools", "staged-review", "code-tools"])
async def test_what_differs_by_the_clock_and_the_runs_ids_alone_is_the_same(
    agents: AgentClient, name: str
) -> None:
    runs = [await SCENARIOS[name](agents.temporal) for _ in range(2)]
    for run in runs:
        await run.result()
    told = await compare(agents, runs[0].id, runs[1].id)
    assert told.parts is None


async def test_two_runs_part_where_the_one_does_otherwise(agents: AgentClient) -> None:
    one = await finished(agents, talk("compare-b"))
    replies = (act("mark", line="compare-b-1"), act("crash", line="x"), final("one"))
    other = await finished(agents, task(*replies, tools=("mark", "crash"), agent="compare-b"))
    told = await compare(agents, one, other)
    assert told.parts is not None
    assert told.parts.step == 2
    assert told.parts.left == 'thought: Drafted (Next. -> mark("compare-b-2"))'
    assert told.parts.right == 'thought: Drafted (Next. -> crash("x"))'
    assert [pair.same for pair in told.steps] == [True, True, False, False]
    second = told.steps[2]
    assert second.left is not None
    assert second.right is not None
    assert second.left.path == ("thought", "validate", "action", "observation", "commit")
    assert second.right.said == ('Next. -> crash("x")', "RuntimeError: boom", "step 2 is done")
    assert second.left.spent["tool_calls"] == second.left.spent["model_calls"] == 1
    assert (told.left.answer, told.right.answer) == ("both", "one")


async def test_arguments_that_the_title_cuts_part_two_runs_and_are_shown(agents: AgentClient) -> None:
    runs = []
    for end in ("left", "right"):
        long = "compare-long " * 40 + end
        runs.append(await finished(agents, task(act("mark", line=long), final("x"), tools=("mark",))))
    told = await compare(agents, *runs)
    assert told.parts is not None
    assert (told.parts.step, told.steps[1].same) == (1, False)
    assert "left" in told.parts.left
    assert "right" in told.parts.right
    assert "They do the same" not in shown(told)


async def test_relatives_several_forks_apart_have_their_nearest_common_run_named(
    agents: AgentClient,
) -> None:
    source = await finished(agents, talk("compare-k"))
    child = await fork(agents, source, 3)
    await agents.result(child)
    grandchild = await fork(agents, child, 2)
    sibling = await fork(agents, source, 3)
    for run in (grandchild, sibling):
        await agents.result(run)
    for one, other, origin in (
        (grandchild, source, (source, 2)),
        (sibling, grandchild, (source, 2)),
        (grandchild, child, (child, 2)),
        (sibling, child, (source, 3)),
    ):
        told = await compare(agents, one, other)
        assert told.common is not None
        assert (told.common.workflow_id, told.common.step) == origin
    assert (await compare(agents, source, source)).common is None


def test_a_run_whose_id_was_used_again_is_no_relative() -> None:
    assert _common({("a", "new"): None}, {("b", "1"): None, ("a", "old"): 2}) is None
    found = _common({("a", "old"): None}, {("b", "1"): None, ("a", "old"): 2})
    assert found is not None
    assert (found.workflow_id, found.run_id, found.step) == ("a", "old", 2)


async def test_a_shorter_run_ends_where_the_longer_one_goes_on(agents: AgentClient) -> None:
    one = await finished(agents, talk("compare-c"))
    other = await finished(agents, task(act("mark", line="compare-c-1"), final("x"), tools=("mark",)))
    told = await compare(agents, one, other)
    assert [pair.right is None for pair in told.steps] == [False, False, False, True]
    assert told.parts is not None
    assert told.parts.step == 2


async def test_a_fork_shows_its_origin_and_from_where_it_is_itself(
    agents: AgentClient, tmp_path: Path
) -> None:
    source = await finished(agents, talk("compare-d"))
    changes = Changes(agent=agent_file(tmp_path, "compare-d-new"), goal="try it anew")
    run_id = await fork(agents, source, 2, changes=changes)
    await agents.result(run_id)
    for told in (await compare(agents, source, run_id), await compare(agents, run_id, source)):
        assert told.common is not None
        assert (told.common.workflow_id, told.common.step) == (source, 2)
        assert told.shared == 6
        assert told.parts is not None
        assert told.parts.step == 2
        assert {told.left.goal, told.right.goal} == {"try it", "try it anew"}
        assert {told.left.counters["model_calls"], told.right.counters["model_calls"]} == {3, 2}
        text = shown(told)
        assert f"before step 2 from {source}: 6 records are the very same" in " ".join(text.split())


async def test_two_forks_of_one_run_have_it_in_common(agents: AgentClient) -> None:
    source = await finished(agents, talk("compare-e"))
    runs = [await fork(agents, source, step) for step in (3, 2)]
    for run in runs:
        await agents.result(run)
    told = await compare(agents, *runs)
    assert told.common is not None
    assert (told.common.workflow_id, told.common.step, told.shared) == (source, 2, 6)


async def test_runs_that_go_on_and_were_rolled_back_are_compared_by_what_holds(agents: AgentClient) -> None:
    one, other = await agents.start(waiting_task()), await agents.start(waiting_task())
    for run in (one, other):
        await opened(agents, run)
    await agents.rollback(other, 2)
    await opened(agents, other)
    told = await compare(agents, one, other)
    assert told.parts is None
    assert (told.left.exit_reason, told.right.branch) == (None, 1)
    right = told.steps[2].right
    assert right is not None
    assert (right.branch, right.spent["model_calls"]) == (1, 1), (
        "what the step left behind spent is not its own"
    )
    for run in (one, other):
        await agents.abort(run)


async def test_machines_inside_belong_to_the_step_that_runs_them(agents: AgentClient) -> None:
    one = await finished(agents, holding(act("mark", line="compare-f"), final("x"), tools=("mark",)))
    other = await finished(agents, holding(final("y")))
    told = await compare(agents, one, other)
    assert told.parts is not None
    assert (told.parts.step, len(told.steps)) == (1, 2)
    assert told.steps[1].left is not None
    assert told.steps[1].left.path == ("[react]", "hold", "end")
    assert "mark" in told.parts.left
    assert [line.states for line in await checkpoints_of(agents, one)] == [("hold",)] * 2


async def test_runs_of_other_machines_stand_beside_each_other(agents: AgentClient) -> None:
    one = await finished(agents, talk("compare-g"))
    other = await finished(agents, holding(final("y")))
    told = await compare(agents, one, other)
    assert told.parts is not None
    assert (told.parts.step, told.right.machine) == (0, "holding")


async def test_the_archive_s_runs_can_be_compared(agents: AgentClient, settings: Settings) -> None:
    one, other = await finished(agents, talk("compare-h")), await finished(agents, talk("compare-i"))
    assert await compare(await elsewhere(agents, settings), one, other) == await compare(agents, one, other)
    with pytest.raises(UnknownRun, match="there is no run nix"):
        await compare(agents, one, "nix")


async def test_a_run_that_was_refused_has_nothing_to_compare_and_is_replayed_as_it_is(
    agents: AgentClient,
) -> None:
    refused = await agents.start(task(final("x"), tools=("no_such_tool",)))
    with pytest.raises(RunFailed):
        await agents.result(refused)
    one = await finished(agents, talk("compare-j"))
    with pytest.raises(RatchetError, match=f"run {refused} wrote nothing"):
        await compare(agents, one, refused)
    with pytest.raises(RatchetError, match=f"run {refused} wrote nothing"):
        await checkpoints_of(agents, refused)
    told = await replay(agents, refused)
    assert (told.same, told.records, told.notes) == (True, 0, ())


async def test_the_table_is_not_wider_than_the_terminal_and_cuts_what_models_said(
    agents: AgentClient,
) -> None:
    loud = "\x1b[2J" + "word " * 3000
    one = await finished(agents, task(final(loud)))
    other = await finished(
        agents, task({"thought": "Next.", "action": "nothing", "action_input": {}}, final("z"))
    )
    text = shown(await compare(agents, one, other))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert len(text.splitlines()) < 60
    assert "\x1b" not in text


def record(seq: int, step: int, **more: Any) -> Record:
    """A record of a log."""
    return Record(**{"seq": seq, "step": step, "machine": "m", "state": "s", "event": "e", "to": "s", **more})


def test_logs_that_differ_in_times_and_prices_alone_do_not_part() -> None:
    left = [record(0, 0, event=STARTED), record(1, 1, counters={"seconds": 1, "cost_usd": 1}, finished=5)]
    right = [record(0, 0, event=STARTED), record(1, 1, counters={"seconds": 2, "cost_usd": 2}, finished=6)]
    pairs, parts = paired(left, right)
    assert parts is None
    assert pairs[1].right is not None
    assert pairs[1].right.spent == {"cost_usd": 2}


def told(patch: dict[str, Any], machine: str = "m") -> list[Record]:
    """A log of one step that changed this."""
    return [record(0, 0, event=STARTED), record(1, 1, machine=machine, patch=patch)]


@pytest.mark.parametrize(
    "patch",
    [
        {"status": "validated", "said": "left here, a new plan for al/x"},
        {"child": "al"},
        {"one": {"trace_id": "al/hold"}},
    ],
)
@pytest.mark.parametrize("name", ["al", "here", "a"])
def test_a_run_s_id_parts_nothing_where_both_logs_say_the_same(name: str, patch: dict[str, Any]) -> None:
    assert paired(told(patch), told(patch), (name, "another-run"))[1] is None
    assert paired(told(patch), told(patch), (name, "b"))[1] is None


@pytest.mark.parametrize(
    "patches",
    [
        [{"child": f"{name}/hold#1:1"} for name in ("one", "two")],
        [
            {"detail": [{"workflow_id": f"{name}/0{n}a1fdb7/hold#1:1"}]}
            for n, name in enumerate(("one", "two"))
        ],
        [{"trace_id": name, "n": 1} for name in ("one", "two")],
    ],
)
def test_the_ids_of_two_runs_part_nothing_in_fields_that_hold_ids(patches: list[dict[str, Any]]) -> None:
    left, right = map(told, patches)
    assert paired(left, right, ("one", "two"))[1] is None
    assert paired(left, right, ("other", "two"))[1] is not None


@pytest.mark.parametrize(
    "texts",
    [
        ("pay one euro", "pay two euro"),
        ("one", "two"),
        ("one/hold", "two/hold"),
        (f"deploy {'a' * 40}", f"deploy {'b' * 40}"),
        ("a" * 32, "b" * 32),
    ],
)
def test_texts_part_two_runs_whatever_their_ids_and_their_digits(texts: tuple[str, str]) -> None:
    for patches in (
        [{"answer": text} for text in texts],
        [{"said": [text]} for text in texts],
        [{"call": {"arguments": {"run": text}}} for text in texts],
        [{"digest": text} for text in texts],
        [{text: 1} for text in texts],
    ):
        left, right = map(told, patches)
        assert paired(left, right, ("one", "two"))[1] is not None


def test_replies_are_held_against_each_other_whatever_they_answer() -> None:
    logs = [told({"cache": {digit * 32: said}}, "react") for digit, said in ("ax", "bx", "by")]
    assert paired(logs[0], logs[1])[1] is None
    assert paired(logs[0], logs[2])[1] is not None


def test_what_a_person_said_is_named_with_the_person() -> None:
    left = [record(0, 0, event=STARTED), record(1, 1, event="Steered", by="Ada", reason="be brief")]
    pairs, parts = paired(left, left[:1])
    assert pairs[1].left is not None
    assert pairs[1].left.said == ("Ada: be brief",)
    assert parts is not None
    assert (parts.left, parts.right) == ("s: Steered (be brief)", "")


def test_of_a_step_that_was_done_again_only_the_last_time_counts() -> None:
    log = [
        record(0, 0, event=STARTED), record(1, 1, reason="first"), record(2, 2, reason="left behind"),
        record(3, 1, event=ROLLED_BACK, back_to=1, branch=1), record(4, 2, reason="again", branch=1),
    ]  # fmt: skip
    pairs, parts = paired(log, [*log[:2], record(2, 2, reason="again")])
    assert parts is None
    assert [pair.left.said for pair in pairs if pair.left] == [(), ("first",), ("again",)]


def test_ten_thousand_records_are_compared_at_once() -> None:
    log = [record(0, 0, event=STARTED)]
    log += [record(seq, seq, counters={"tool_calls": seq}) for seq in range(1, 10_000)]
    began = time.process_time()
    pairs, parts = paired(log, log)
    assert (len(pairs), parts) == (10_000, None)
    assert time.process_time() - began < 5
