"""Two runs side by side: which steps are the same, where they differ first, and what they have in common."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from client.cli.render import comparison_block
from client.errors import RatchetError
from client.history.compare import Comparison, Side, align_steps
from client.sdk.agent import AgentClient
from tests.server.trials import calls, task
from workflows.kernel.log import STARTED, LoggedCall, Record


def marking(*lines: str) -> Any:
    """A run that marks these lines, one step each."""
    return task(*(calls(("mark", {"line": line})) for line in lines), "done")


async def test_same_script_twice_is_the_same(agents: AgentClient) -> None:
    given = marking("one", "two")
    one, other = [(await agents.run(given)).workflow_id for _ in range(2)]
    comparison = await agents.compare(one, other)
    assert comparison.first_different is None
    assert [pair.step for pair in comparison.steps] == [0, 1, 2, 3]
    assert (comparison.left.ok, comparison.left.step, comparison.shared) == (True, 3, 0)
    assert comparison.steps[1].left is not None
    assert comparison.steps[1].left.spent["tool_calls"] == 1


async def test_first_different_step_is_shown(agents: AgentClient) -> None:
    one, other = [(await agents.run(marking("one", line))).workflow_id for line in ("two", "three")]
    comparison = await agents.compare(one, other)
    assert comparison.first_different is not None
    assert comparison.first_different.step == 2  # it begins with the other reply
    assert comparison.first_different.difference is not None
    assert "two" in comparison.first_different.difference.left
    assert "three" in comparison.first_different.difference.right


async def test_longer_run_goes_on_alone(agents: AgentClient) -> None:
    short, long = [(await agents.run(marking(*lines))).workflow_id for lines in (("a",), ("a", "b"))]
    comparison = await agents.compare(short, long)
    assert comparison.steps[-1].left is None
    assert comparison.steps[-1].right is not None


async def test_forks_have_their_source_in_common(agents: AgentClient) -> None:
    source = (await agents.run(marking("one", "two"))).workflow_id
    forks = [await agents.fork(source, step) for step in (2, 3)]
    for run in forks:
        await agents.result(run)
    comparison = await agents.compare(*forks)
    with_source = await agents.compare(forks[0], source)
    assert with_source.shared == comparison.shared > 0
    assert with_source.first_different is None


async def test_run_without_a_log_cannot_be_compared(agents: AgentClient) -> None:
    refused = await agents.start(task("x", machine="nothing"))
    with pytest.raises(RatchetError):
        await agents.result(refused)
    with pytest.raises(RatchetError, match="no log"):
        await agents.compare(refused, refused)


def log(*moves: dict[str, Any], at: float = 1_000.0, run: str = "a") -> list[Record]:
    """A log of one record per step, after the record that starts it."""
    begun = Record(seq=0, machine="m", state="", event=STARTED, to="s", at=at, patch={"run": {"set": run}})
    common = {"machine": "m", "state": "s", "event": "Moved", "to": "s"}
    return [begun] + [
        Record.model_validate({**common, "seq": n, "step": n, "of_step": n, "at": at + n, **move})
        for n, move in enumerate(moves, start=1)
    ]


def test_equal_lines_of_a_step_that_differs_stand_once() -> None:
    fixed = {"machine": "m", "state": "s", "event": "Moved", "to": "t", "step": 1, "of_step": 1}
    mine, theirs = (
        [
            Record.model_validate({**fixed, "seq": n, "thought": f"{word} is said"})
            for n, word in enumerate(words)
        ]
        for words in ("abcxd", "abcyd")
    )
    one, other = (
        Side(run=run, agent="a", machine="m", machine_version="1", state="t", step=1)
        for run in ("one", "two")
    )
    file = io.StringIO()
    comparison = Comparison(left=one, right=other, steps=align_steps(mine, theirs))
    Console(file=file, width=200).print(comparison_block(comparison))
    lines = [line.split("  ") for line in file.getvalue().splitlines()]
    cells = [tuple(filter(None, map(str.strip, line))) for line in lines]
    for expected in (("… 3 lines", "the same"), ("x is said", "y is said"), ("d is said", "the same")):
        assert cells.count(expected) == 1, file.getvalue()


@pytest.mark.parametrize(
    ("left", "right", "different"),
    [
        pytest.param({"thought": "x"}, {"thought": "y"}, True, id="another thought"),
        pytest.param({"reason": "x"}, {"reason": "y"}, False, id="other words for people"),
        pytest.param({"patch": {"x": {"set": 1}}}, {"patch": {"x": {"set": 2}}}, True, id="another value"),
        pytest.param(
            {"patch": {"t": {"set": 1_001.5}}}, {"patch": {"t": {"set": 9_001.5}}}, False, id="times"
        ),
        pytest.param({"patch": {"t": {"set": 5.0}}}, {"patch": {"t": {"set": 6.0}}}, True, id="no times"),
        pytest.param({"patch": {"r": {"set": "a/c"}}}, {"patch": {"r": {"set": "b/c"}}}, False, id="ids"),
        pytest.param({"counters": {"tokens": 1}}, {"counters": {"tokens": 2}}, False, id="prices"),
        pytest.param(
            {"about": {"request": "r1", "outcome": "approved"}},
            {"about": {"request": "r4", "outcome": "approved"}},
            False,
            id="numbers of requests",
        ),
        pytest.param(
            {"about": {"outcome": "approved"}}, {"about": {"outcome": "edited"}}, True, id="outcomes"
        ),
    ],
)
def test_only_deeds_make_a_difference(left: Any, right: Any, different: bool) -> None:
    pairs = align_steps(log(left), log(right, at=9_000.0, run="b"), ("a", "b"))
    assert bool(pairs[1].difference) is different


def test_person_is_named_with_what_they_did() -> None:
    (_, pair) = align_steps(log({"by": "ada (claimed)", "reason": "enough"}), log({"reason": "enough"}))
    assert pair.left is not None
    assert pair.left.summary == ("ada (claimed): enough",)
    assert pair.difference is not None


def test_call_is_shown_once_as_made_with_its_result() -> None:
    wanted = {"a": 'pay(to="Eve")', "b": "look()"}
    asked = [LoggedCall(kind="call_tools", title=title, id=name) for name, title in wanted.items()]
    made = LoggedCall(kind="call_tools", title='pay(to="Ada")', id="a", output="paid", edited_by="Bob")
    step = {"step": 1, "of_step": 1}
    records = log({"thought": "I pay.", "asked": asked}, {**step, "answered": (made,)})
    pair = align_steps(records, ())[1]
    assert pair.left is not None
    assert pair.left.summary == (
        "I pay.", '→ pay(to="Ada"), edited by Bob', "← paid", "→ look(): not ended",
    )  # fmt: skip


def test_repeated_step_counts_as_it_was_done_last() -> None:
    first = log({"reason": "wrong"})
    back = Record(seq=2, machine="m", state="s", event="RolledBack", to="s", back_to=0, branch=1)
    again = Record(
        seq=3, machine="m", state="s", event="Moved", to="s", step=1, of_step=1, branch=1, reason="right"
    )
    (_, pair) = align_steps([*first, back, again], log({"reason": "right"}))
    assert pair.difference is None
    assert pair.left is not None
    assert pair.left.branch == 1
