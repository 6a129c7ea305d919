"""Every command at every moment of a run, in one execution and in a new one whenever possible.

The model answers by the newest message, so a run comes to the same answer whatever happens on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from activities.contracts import ToolResult
from tests.people.bench import Bench, brain, failed
from workflows.engine.run_state import QueuedCommand
from workflows.kernel.rollback import restored
from workflows.people import Approvals, People, Request

MESSAGE = "be quick"
UNKNOWN = ToolResult(id="c0", tool="pay", output="its worker died", error="unknown_outcome")


@dataclass(frozen=True)
class Moment:
    """Where a command comes: what is pending, and how far it is."""

    plan: str
    answer: str
    blocked: tuple[str, ...] = ()
    first: Any = None
    results: dict[str, ToolResult] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    asks: str = ""
    """Kind of the open request."""
    late: frozenset[str] = frozenset()
    """Commands that are obeyed only once what is under way has ended."""
    paused: bool = False

    def bench(self, hops: bool) -> Bench:
        bench = Bench(brain(self.plan, self.first), hops=hops, **self.more)
        bench.blocked |= set(self.blocked)
        bench.results = dict(self.results)
        return bench


EFFECT = frozenset({"steer"})
MOMENTS = {
    "question to a model": Moment("tools look a", "ok look a", blocked=("ask_model",)),
    "tools in order": Moment(
        "tools look a; put b; look c", "ok look a | ok put b | ok look c", ("put",), late=EFFECT
    ),
    "tools side by side": Moment("side look a; put b", "ok look a | ok put b", ("put",), late=EFFECT),
    "unsafe tool": Moment(
        "tools look a; pay 3; look c",
        "ok look a | ok pay 3 | ok look c",
        ("pay",),
        late=EFFECT | {"rollback", "pause at once"},
    ),
    "approval": Moment("tools pay 3", "ok pay 3", more={"approvals": Approvals()}, asks="approval"),
    "person's answer": Moment("ask sure?", "answer yes", asks="question"),
    "interrupt": Moment(
        "tools look a", "ok look a", more={"people": People(interrupt_states=("work",))}, asks="interrupt"
    ),
    "limit": Moment(
        "tools look a",
        "ok look a",
        more={"people": People(on_limit="ask"), "limits": {"model_calls": 1}},
        asks="limit",
    ),
    "trouble": Moment(
        "tools look a", "ok look a", first=failed(), more={"people": People(on_trouble="ask")}, asks="trouble"
    ),
    "unknown outcome": Moment("tools pay 3", "ok pay 3", results={"pay": UNKNOWN}, asks="outcome"),
    "inner run": Moment("child inner", "inner answered ok look i", blocked=("look",)),
    "members side by side": Moment("both q", "part & part & ok look z", blocked=("look",), late=EFFECT),
    "paused": Moment("tools look a", "ok look a", more={"people": People(interrupt_every=1)}, paused=True),
}
COMMANDS: dict[str, dict[str, Any]] = {
    "pause": {},
    "pause at once": {"at_once": True},
    "resume": {},
    "abort": {"text": "enough"},
    "steer": {"text": MESSAGE},
    "rollback": {"step": 0},
    "rollback nowhere": {"step": 9},
    "limits": {"limits": {"model_calls": 50}},
}
DECISIONS: dict[str, dict[str, Any]] = {
    "approval": {"verb": "approve"},
    "question": {"verb": "answer", "text": "yes"},
    "interrupt": {"verb": "resume"},
    "limit": {"verb": "topup", "amounts": {"model_calls": 5}},
    "trouble": {"verb": "retry"},
    "outcome": {"verb": "retry"},
    "stuck": {"verb": "resume"},
}


async def arrive(moment: Moment, bench: Bench) -> None:
    """Be where the command comes."""
    if moment.paused:
        await bench.command("pause")
    if moment.asks:
        assert [request.kind for request in bench.open] == [moment.asks]
    assert not bench.over


async def give(bench: Bench, name: str) -> QueuedCommand:
    """Give the command."""
    return await bench.command(name.partition(" ")[0], **COMMANDS[name])


async def finish(bench: Bench) -> None:
    """Resume, let everything end, and decide whatever is asked until the run is over."""
    await bench.release()
    if bench.drive.run.paused:
        await bench.command("resume")
    for _ in range(20):
        requests: list[tuple[Bench, Request]] = [
            (one, r) for one in (bench, *bench.children.values()) for r in one.open
        ]
        if bench.over:
            return
        for one, request in requests[:1]:
            await one.decide(request=request, **DECISIONS[request.kind])
        await bench.settle()
    raise AssertionError(f"the run does not end: {bench.drive.status()}")


def is_refused(name: str, moment: Moment) -> bool:
    """The command cannot be obeyed at this moment."""
    if name.startswith("pause"):
        return moment.paused
    return name == "rollback nowhere" or (name == "resume" and not moment.paused)


async def obeyed(bench: Bench, name: str, moment: Moment) -> QueuedCommand:
    """The command, once it is obeyed or refused as it should be at this moment."""
    begun, events, requests = list(bench.performed), len(bench.events), bench.open
    queued = await give(bench, name)
    if name in moment.late:
        assert not queued.is_over
        assert bench.performed == begun
        return queued
    assert bool(queued.refused) == is_refused(name, moment), queued
    if queued.refused:
        assert bench.events[events:] == ["RefusedCommand"]
        assert (bench.performed, bench.open) == (begun, requests)
    elif name.startswith("pause"):
        await bench.release()
        begun = list(bench.performed)
        await bench.pass_time(100)
        assert (bench.drive.run.paused, bench.performed) == (True, begun)
    return queued


CASES = [
    pytest.param(
        where, name, hops, id=f"{where}-{name}-{'many executions' if hops else 'one execution'}",
        # `make test` has each command at each moment once, and all of a row or a column in both ways by turns
        marks=() if (row + column) % 2 == hops else pytest.mark.exhaustive,
    )
    for row, where in enumerate(MOMENTS)
    for column, name in enumerate(COMMANDS)
    for hops in (False, True)
]  # fmt: skip


@pytest.mark.parametrize(("where", "name", "hops"), CASES)
async def test_command_at_moment(where: str, name: str, hops: bool) -> None:
    moment = MOMENTS[where]
    async with moment.bench(hops) as bench:
        await arrive(moment, bench)
        queued = await obeyed(bench, name, moment)
        if name == "abort":
            assert (bench.result.exit_reason, bench.over) == ("aborted", True)
            assert "ann (claimed) ended the run: enough" in (bench.result.error or "")
        else:
            await finish(bench)
            assert (bench.result.exit_reason, bench.result.answer) == ("answered", moment.answer)
        assert queued.is_over
        assert bench.made_twice == []
        assert bench.counted == bench.begun
        assert not bench.open
        assert bench.executions == 1 or hops
        snapshot, rebuilt = bench.drive.run.suspension.snapshot, restored(bench.program, bench.records)
        assert (rebuilt.context, rebuilt.conversation) == (snapshot.context, snapshot.conversation)
        assert [record.seq for record in bench.records] == list(range(len(bench.records)))
        said = [message.content for message in snapshot.conversation]
        assert said.count(MESSAGE) == (name == "steer")
        assert bench.result.branch == (name == "rollback")
