"""The archive as the client reads it: what is damaged is said, and never a traceback."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.archive import ArchiveActivities
from activities.contracts import ArchiveRequest
from client.archived import ArchivedRuns
from client.errors import RatchetError
from workflows.api import AgentResult
from workflows.kernel.log import Record

RECORD = Record(seq=0, machine="react", state="thought", event="Started", started=1.0)
RESULT = AgentResult(
    **{"ok": True, "exit_reason": "goal_achieved", "answer": "42", "agent": "x", "steps": 1, "counters": {}},
    **{"machine": "react", "machine_version": "1", "state": "__end__", "records": 1},
    **{"workflow_id": "w", "run_id": "r", "log_head": "0"},
)
READS: dict[str, Callable[[ArchivedRuns], Awaitable[object]]] = {
    "records": lambda runs: runs.records("w"),
    "result": lambda runs: runs.result("w"),
    "begun": lambda runs: runs.begun("w"),
    "log": lambda runs: runs.log("w", 0),
    "status": lambda runs: runs.status("w"),
}


async def archived(path: Path, damage: str = "") -> ArchivedRuns:
    """An archive of one run, and what a person or a disk did to it."""
    writing = ArchiveActivities(path)
    record, result = RECORD.model_dump(mode="json"), RESULT.model_dump(mode="json")
    part = ArchiveRequest(workflow_id="w", run_id="r", after="", records=(record,), result=result)
    await ActivityEnvironment().run(writing.archive_log, part)
    writing.close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(damage)
    return ArchivedRuns(path)


async def test_what_was_archived_is_read_again(tmp_path: Path) -> None:
    runs = await archived(tmp_path / "archive.db")
    assert await runs.records("w") == (RECORD,)
    assert await runs.result("w") == RESULT
    assert all([await read(runs) for read in READS.values()])
    runs.close()


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        (damage, read)
        for damage, reads in {
            "UPDATE records SET json='{'": "records log status",
            "UPDATE records SET json='[]'": "records log status",
            'UPDATE records SET json=\'{"seq": "x"}\'': "records log status",
            "UPDATE runs SET result='{'": "result begun log status",
            "UPDATE runs SET result='[1]'": "result begun log status",
            "UPDATE runs SET result='{\"answer\": 42}'": "result log status",
        }.items()
        for read in reads.split()
    ],
)
async def test_a_damaged_row_is_an_error_for_people(tmp_path: Path, damage: str, read: str) -> None:
    runs = await archived(tmp_path / "archive.db", damage)
    with pytest.raises(RatchetError, match=r"the archive cannot be read: .*damaged.*backup"):
        await READS[read](runs)
    runs.close()
