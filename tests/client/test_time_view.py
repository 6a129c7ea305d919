"""Steps, snapshots, replays and comparisons on a terminal: nothing that a model or a tool sent steers it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from client.checkpoints import CheckpointLine, Moved, StepSnapshot
from client.compare import Comparison, Side
from client.described import ChangedTool
from client.differences import Difference
from client.pairing import Pair, Parting, StepOf
from client.replay import ChangedCall, ChangedRecord, Replayed
from client.view_time import comparison, replay_text, snapshot_text, steps_listing
from workflows.api import Origin

BAD = "\x1b[2J\x07bad\u202e " + "word " * 400
FOUND = Difference(at=f"patch.{BAD}", was=BAD, now=BAD)
LINES = [
    CheckpointLine(step=1, branch=0, seq=3, state="s", states=("s",) * 20, said=BAD),
    CheckpointLine(step=1, branch=1, seq=9, state="s", held=False, counters={"model_calls": 2}),
]
SNAPSHOT = StepSnapshot(
    run="run", machine="m", version="1", step=1, branch=1, state="s", context={"a": BAD, "b": {"c": BAD},
    "talk": [{"role": "user", "content": BAD}]}, counters={}, visit=2, transitions=1, records=3, started=0,
    next=(Moved(seq=3, state="s", event="E", to="t", reason=BAD),), notes=("a note",),
)  # fmt: skip
REPLAYED = Replayed(
    run="run", same=False, goes_on=False, trouble=BAD, records=3, calls=2,
    record=ChangedRecord(seq=1, was="s: E", now="", differences=(FOUND,)),
    changed=(ChangedCall(place="s#1:1", activity="call_model", differences=(FOUND,)),) * 2, changed_calls=2,
    tools=(ChangedTool(tool=BAD, differences=(FOUND,)),), notes=(BAD,),
)  # fmt: skip
UNREAD = Replayed(run="run", same=False, goes_on=True, records=0, calls=2, unread=True)
SIDE = Side(
    run="run", agent=BAD, machine="m", version="1", goal=BAD, state="s", exit_reason="x", answer=BAD, steps=1,
    branch=1, counters={"tokens": 5}, records=3, origin=Origin(workflow_id="w", run_id="r", step=1),
)  # fmt: skip
STEP = StepOf(step=1, branch=1, path=("s", "t"), said=(BAD,) * 9, spent={"model_calls": 1}, first=0)
COMPARED = Comparison(
    left=SIDE, right=SIDE.model_copy(update={"origin": None}), shared=2, common=SIDE.origin,
    steps=(Pair(step=1, left=STEP, right=STEP, same=True), Pair(step=2, left=STEP, right=None, same=False)),
    parts=Parting(step=2, left=BAD, right=""),
)  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "lines", "words"),
    [
        pytest.param(
            steps_listing(LINES),
            40,
            ("left behind", "after record 3", "from record 9", "2 model calls"),
            id="steps",
        ),
        pytest.param(snapshot_text(SNAPSHOT), 90, ("after record 2", "user: ", "E → t", "1 tra"), id="one"),
        pytest.param(replay_text(REPLAYED), 50, ("differs", "was s: E, now nothing", "told o"), id="replay"),
        pytest.param(replay_text(UNREAD), 9, ("nothing differs as far as", "no worker runs"), id="unread"),
        pytest.param(comparison(COMPARED), 90, ("the same", "step 1 of w", "… 3 more"), id="compare"),
    ],
)  # fmt: skip
def test_it_fits_on_a_terminal_and_steers_nothing(
    shown: RenderableType, lines: int, words: tuple[str, ...]
) -> None:
    printed = io.StringIO()
    Console(width=100, highlight=False, markup=False, color_system=None, file=printed).print(shown)
    text = printed.getvalue()
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert max(len(line) for line in text.splitlines()) <= 100
    assert len(text.splitlines()) <= lines
    for word in words:
        assert word in text
