"""Commands, decisions, released calls and time in any order: the run ends, and no call is made twice."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.people.bench import Bench
from tests.people.test_matrix import COMMANDS, DECISIONS, MOMENTS, finish, give
from workflows.gate.decisions import Refused
from workflows.kernel.rollback import restored

ACTIONS = [*(name for name in COMMANDS if name != "abort"), "decide", "release", "block", "time"]


async def act(bench: Bench, action: str, kinds: tuple[str, ...]) -> None:
    """One thing that happens to a run."""
    match action:
        case "decide":
            for one in (bench, *bench.children.values()):
                if one.open:
                    request = one.open[-1]
                    await one.decide(request=request, **DECISIONS[request.kind])
        case "release":
            await bench.release()
        case "block":
            bench.blocked |= {"ask_model", *kinds}
        case "time":
            await bench.pass_time(10)
        case _:
            await give(bench, action)


async def play(where: str, actions: list[str], hops: bool) -> Bench:
    """A run to its end."""
    moment = MOMENTS[where]
    async with moment.bench(hops) as bench:
        for action in actions:
            if not bench.over:
                try:
                    await act(bench, action, moment.blocked)
                except Refused:
                    assert bench.over
        if not bench.over:
            await finish(bench)
    return bench


@given(
    where=st.sampled_from(sorted(MOMENTS)),
    actions=st.lists(st.sampled_from(ACTIONS), max_size=8),
    hops=st.booleans(),
)
def test_any_order_ends_and_makes_no_call_twice(where: str, actions: list[str], hops: bool) -> None:
    bench: Any = asyncio.run(play(where, actions, hops))
    assert bench.result.exit_reason == "answered", bench.result.error
    assert bench.made_twice == []
    assert bench.counted == bench.begun
    snapshot, rebuilt = bench.drive.run.suspension.snapshot, restored(bench.program, bench.records)
    assert (rebuilt.context, rebuilt.conversation) == (snapshot.context, snapshot.conversation)
    assert rebuilt.inbox == snapshot.inbox
    assert [record.seq for record in bench.records] == list(range(len(bench.records)))
    assert not bench.open
