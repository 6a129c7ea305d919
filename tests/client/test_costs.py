"""`ratchet costs`: what the logs of finished runs say, each amount once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.contracts import ArchiveRequest
from activities.store.archive import Archive
from client.runs.costs import CostLine, archived_spending, cost_lines
from client.server.embedded import running_server
from tests.client.commandline import Cli, agent_file, until
from workflows.kernel.log import FORKED, chain
from workflows.kernel.log import Record as LogRecord

MINI, LARGE = "openai/mini", "openai/large"
FIRST, SECOND = (datetime(2026, 11, day, 23, 59, tzinfo=UTC).timestamp() for day in (1, 2))


def spent(**by_model: float) -> dict[str, float]:
    """Counters of a ledger: USD by model, one call for each 10 cents."""
    names = {"mini": MINI, "large": LARGE}
    own = {f"model:{names[name]}/cost_usd": usd for name, usd in by_model.items()}
    calls = {f"model:{names[name]}/model_calls": round(usd * 10) for name, usd in by_model.items()}
    return {"cost_usd": sum(by_model.values()), **own, **calls}


def records(
    *steps: tuple[float, dict[str, float]], first: int = 0, event: str = "Replied"
) -> list[LogRecord]:
    """One for each: when, and what the ledger said."""
    made = [
        LogRecord(seq=first + n, machine="react", state="thought", event=event, at=at, counters=counters)
        for n, (at, counters) in enumerate(steps)
    ]
    return made if first else [made[0].model_copy(update={"event": "Started"}), *made[1:]]


def archive_run(
    archive: Archive,
    run: str,
    log: list[LogRecord],
    *,
    agent: str = "birds",
    after: list[LogRecord] | None = None,
) -> None:
    """Write a whole run, or its end behind `after`."""
    new = log[len(after or ()) :]
    result: Any = {"agent": agent, "counters": log[-1].counters, "task": {"depth": 0}}
    archive.add(ArchiveRequest(
        workflow_id=run, run_id=f"id-{run}", after=chain(after or ()), result=result,
        records=tuple(record.model_dump(mode="json") for record in new),
    ))  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Empty."""
    return Archive(tmp_path / "archive.db")


def costs(archive: Archive, by: Any, since: float = 0) -> dict[str, tuple[float, float]]:
    """USD and calls by name."""
    lines = cost_lines(archived_spending(archive, timed=by == "day" or since > 0), by, since)
    return {line.name: (line.cost_usd, line.model_calls) for line in lines}


def test_days_get_what_was_spent_on_them(archive: Archive) -> None:
    archive_run(archive, "a", records((FIRST, {}), (FIRST + 30, spent(mini=0.1)), (SECOND, spent(mini=0.4))))
    assert costs(archive, "day") == {"2026-11-02": (0.3, 3), "2026-11-01": (0.1, 1)}
    assert costs(archive, "agent") == {"birds": (0.4, 4)}
    assert costs(archive, "agent", since=SECOND) == {"birds": (0.3, 3)}


def test_models_and_tools_are_told_apart(archive: Archive) -> None:
    counters = {**spent(mini=0.2, large=1), "tool:search/cost_usd": 0.05, "cost_usd": 1.25}
    archive_run(archive, "a", records((FIRST, {}), (FIRST, counters)))
    assert costs(archive, "model") == {LARGE: (1, 10), MINI: (0.2, 2), "tool search": (0.05, 0)}


def test_inner_run_counts_once_for_the_agent_above(archive: Archive) -> None:
    inner = spent(mini=0.2)
    outer = {**spent(large=1), "cost_usd": 1.2}  # of which 0.2 are the inner run's
    archive_run(archive, "a/x/inner", records((FIRST, {}), (FIRST, inner)), agent="birds.react")
    archive_run(archive, "a", records((FIRST, {}), (FIRST, outer)))
    (line,) = cost_lines(archived_spending(archive, timed=False), "agent")
    assert line == CostLine(
        name="birds", runs=1, model_calls=12, input_tokens=0, output_tokens=0, cost_usd=1.2, unpriced_calls=0
    )


def test_fork_counts_its_own_part(archive: Archive) -> None:
    source = records((FIRST, {}), (FIRST, spent(mini=0.3)))
    archive_run(archive, "a", source)
    fork = [*source, *records((SECOND, {}), (SECOND, spent(mini=0.1)), first=2)]
    fork[2] = fork[2].model_copy(update={"event": FORKED})
    archive_run(archive, "b", fork)
    assert costs(archive, "day") == {"2026-11-02": (0.1, 1), "2026-11-01": (0.3, 3)}


def test_reset_run_counts_both_ends(archive: Archive) -> None:
    begun = records((FIRST, {}), (FIRST, spent(mini=0.1)))
    archive_run(archive, "a", [*begun, *records((FIRST, spent(mini=0.4)), first=2)])
    again = [*begun, *records((SECOND, spent(mini=0.2)), first=2)]
    archive_run(archive, "a", again, after=begun)
    assert costs(archive, "agent") == {"birds": (0.5, 5)}


def test_command_prints_a_table_and_json_without_a_server(tmp_path: Path) -> None:
    archive_run(
        Archive(tmp_path / "archive.db"), "a", records((FIRST, {}), (FIRST, spent(mini=0.2, large=1)))
    )
    cli = Cli(tmp_path, tmp_path)
    shown = cli("costs", "--by", "model")
    assert [line.split() for line in shown.out.splitlines()] == [
        ["model", "runs", "calls", "input", "output", "USD"],
        [LARGE, "1", "10", "0", "0", "1.0000"],
        [MINI, "1", "2", "0", "0", "0.2000"],
        ["all", "12", "0", "0", "1.2000"],
    ]
    assert [line["cost_usd"] for line in cli("costs", "--by", "day", "--json").lines] == [1.2]
    assert "nothing was spent since 1h" in cli("costs", "--since", "1h").err
    assert "expected a time ago" in cli("costs", "--since", "soon").err


def test_run_under_way_is_named_where_no_server_runs(data_dir: Path, tmp_path: Path) -> None:
    cli = Cli(data_dir, tmp_path)
    assert cli("costs").err == "no run has spent anything\n"
    started = cli("run", "--agent", agent_file(tmp_path, "uno"), "--id", "kept-1", "--detach", "go")
    assert started.code == 0, started.err
    until(lambda: not (data_dir / "server.lock").exists() or running_server(data_dir) is None)
    shown = cli("costs")
    assert (shown.code, shown.out) == (0, "")
    for part in ("not counted, as no server runs: 1 run under way", "`ratchet show kept-1`", "no other run"):
        assert part in shown.err
    assert running_server(data_dir) is None, "costs starts none"
