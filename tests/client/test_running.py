"""In which order interrupted runs are followed."""

from __future__ import annotations

from datetime import UTC, datetime

from client.listing import RunLine
from client.running import in_turn


def line(run_id: str, waiting: str = "") -> RunLine:
    """A run that goes on."""
    return RunLine(id=run_id, progress="running", waiting=waiting, started=datetime(2026, 11, 21, tzinfo=UTC))


def test_runs_that_wait_for_people_come_last_and_runs_inside_others_not_by_themselves() -> None:
    newest_first = [
        line("d"),
        line("c/hold#1:1/deep#1:1", "approval"),
        line("c/hold#1:1"),
        line("c"),
        line("b"),
        line("a", "paused"),
        line("gone/hold#1:1"),
    ]
    assert in_turn(newest_first) == ("gone/hold#1:1", "b", "d", "a", "c")
