"""The archive: its chain is the kernel's, parts can be repeated, changes are found."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.testing import ActivityEnvironment

from activities.archiving import ArchiveActivities
from activities.contracts import ArchiveRequest, LogRead, LogWanted, Message
from activities.store.archive import SCHEMA, Added, Archive, ChainBroken
from activities.store.blobs import StoreError, StoreUnavailable
from activities.store.converter import StrictConverter
from activities.store.database import SqliteFile
from tests.forked import Forked
from tests.storekit import opened_archive
from workflows.kernel.log import LoggedCall, Record, chain

ROOT = Path(__file__).parents[2]
RECORDS = tuple(
    Record(
        seq=n,
        machine="react",
        state="thought",
        event="ModelReplied",
        reason=f"because {n}: ä \u2028 \x01 /",
        counters={"cost_usd": 1e-7 * n, "calls": n},
        patch={"steps": {"value": [n, 1e22, 0.1, None, {"deep": "x"}]}},
        messages=(Message(role="user", content="x"),),
        at=1_763_680_000.123 + n,
    )
    for n in range(5)
)
RESULT = {"answer": "42", "log_head": chain(RECORDS)}


def part(first: int = 0, last: int = 5, run_id: str = "r", finished: bool = False) -> ArchiveRequest:
    return ArchiveRequest(
        workflow_id="w",
        run_id=run_id,
        after=chain(RECORDS[:first]),
        records=tuple(record.model_dump(mode="json") for record in RECORDS[first:last]),
        result=RESULT if finished else None,
    )


@pytest.fixture(params=["file", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an archive is that does not exist yet."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return str(tmp_path / "sub" / "archive.db")


@pytest.fixture
def archive(where: str) -> Iterator[Archive]:
    archive = opened_archive(where)
    yield archive
    archive.database.close()


def change(archive: Archive, sql: str, *values: object) -> None:
    with archive.database.writing("test") as execute:
        execute(sql, values)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@given(value=json_values, number=st.floats(allow_nan=False, allow_infinity=False))
def test_hash_of_archived_json_is_the_records_hash(
    value: object, number: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    record = Record.model_validate(
        {"seq": 0, "machine": "m", "state": "s", "event": "e", "patch": {"x": {"value": value}},
         "counters": {"n": number}, "at": number}
    )  # fmt: skip
    sent = ArchiveRequest(workflow_id="w", run_id="r", after="", records=(record.model_dump(mode="json"),))
    converter = StrictConverter()
    (arrived,) = converter.from_payloads(converter.to_payloads([sent]), [ArchiveRequest])
    archive = Archive(tmp_path_factory.mktemp("archive") / "archive.db")
    assert archive.add(arrived).head == chain([record])


async def test_log_is_written_and_read(archive: Archive) -> None:
    activities, run = ArchiveActivities(archive), ActivityEnvironment().run
    heads = [await run(activities.archive_log, one) for one in (part(0, 2), part(2, 5, finished=True))]
    assert heads == [chain(RECORDS[:2]), chain(RECORDS)]
    assert archive.runs() == (("w", "r"),)
    assert [Record.model_validate(record) for record in archive.records("w")] == list(RECORDS)
    assert archive.result("w") == RESULT
    assert archive.broken_at("w") is None
    assert (archive.ended(), archive.has_end("w", heads[1]), archive.has_end("w", "0")) == (
        ("w",),
        True,
        False,
    )
    read = await run(activities.read_log, LogWanted(workflow_id="w", run_id="r", head=chain(RECORDS)))
    assert read == LogRead(records=archive.records("w"))


def test_tools_that_fail_most_are_found_in_sql(archive: Archive) -> None:
    """By the queries of the page."""
    page = (ROOT / "docs" / "stores.md").read_text()
    files, postgres = re.findall(r"```sql\n(.*?);\n```", page, re.DOTALL)
    outcomes = {"pay": (None, "failed", "rejected"), "look": (None, None)}
    calls = tuple(
        LoggedCall(kind="call_tools", title="for people(", tool=tool, error=error)
        for tool, errors in outcomes.items()
        for error in errors
    )
    asked = LoggedCall(kind="ask_model", title="ask")
    records = (RECORDS[0], RECORDS[1].model_copy(update={"answered": (asked, *calls)}))
    for run_id in ("r", "r~1"):
        given = part(run_id=run_id).model_copy(
            update={"records": tuple(record.model_dump(mode="json") for record in records)}
        )
        archive.add(given)
    query = files if isinstance(archive.database, SqliteFile) else postgres
    assert [tuple(row) for row in archive.database.rows(query)] == [("pay", 2, 1), ("look", 2, 0)]


def test_file_is_readable_to_its_owner_alone(tmp_path: Path) -> None:
    Archive(tmp_path / "archive.db").add(part())
    assert (tmp_path / "archive.db").stat().st_mode & 0o077 == 0


async def test_history_that_does_not_come_holds_up_no_log(archive: Archive) -> None:
    """The server takes connections and says nothing; with no time for it, it is not asked."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        client = await Client.connect(f"127.0.0.1:{silent.getsockname()[1]}", lazy=True)
        run = ActivityEnvironment(client=client).run
        async with asyncio.timeout(5):
            await run(ArchiveActivities(archive, history_seconds=0).archive_log, part(0, 2))
            with pytest.raises(BlockingIOError):
                silent.accept()
            await run(ArchiveActivities(archive, history_seconds=0.3).archive_log, part(2, 5))
            silent.accept()[0].close()
    assert archive.broken_at("w") is None
    assert len(archive.records("w")) == 5


class _Fetched:
    """Stands for a client and its run: all that a worker fetches of a history."""

    def get_workflow_handle(self, workflow_id: str, run_id: str) -> _Fetched:
        return self

    async def fetch_history(self) -> WorkflowHistory:
        return WorkflowHistory("w", [HistoryEvent(event_id=1)])


async def test_history_that_is_slowly_written_holds_up_no_log(tmp_path: Path) -> None:
    release = threading.Event()

    class Slow(Archive):
        def add_history(self, workflow_id: str, run_id: str, execution: str, events: bytes) -> None:
            release.wait(60)

        def add(self, part: ArchiveRequest, execution: str = "", events: bytes = b"") -> Added:
            assert not events, "what failed with a history is tried again without"
            return super().add(part)

    archive = Slow(tmp_path / "archive.db")
    client = cast("Client", _Fetched())
    try:
        async with asyncio.timeout(30):
            again = ActivityEnvironment(client=client)
            again.info = replace(again.info, attempt=2)
            await again.run(ArchiveActivities(archive, history_seconds=0.1).archive_log, part())
        assert not release.is_set()
    finally:
        release.set()
    assert len(archive.records("w")) == 5


async def test_history_is_no_longer_fetched_once_writing_the_log_failed(tmp_path: Path) -> None:
    (tmp_path / "archive.db").write_text("these are my notes" * 100)
    before = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = await Client.connect(f"127.0.0.1:{silent.getsockname()[1]}", lazy=True)
        activities = ArchiveActivities(Archive(tmp_path / "archive.db"), history_seconds=600)
        with pytest.raises(StoreUnavailable):
            await ActivityEnvironment(client=client).run(activities.archive_log, part())
        async with asyncio.timeout(30):
            await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)


def test_history_of_a_late_attempt_replaces_no_newer_one(archive: Archive) -> None:
    newer, late = b"event" * 1000, b"event" * 999
    for events in (newer, late):
        archive.add(part(), "one", events)
    assert archive.histories("w") == {"one": newer}
    change(archive, "UPDATE histories SET events=?", b"0")
    archive.add(part(), "one", late)
    assert archive.histories("w") == {"one": late}


def test_repeated_and_late_parts_change_nothing(archive: Archive) -> None:
    parts = [part(0, 2), part(2, 5, finished=True)]
    for one in (*parts, parts[0], parts[1], parts[0]):
        archive.add(one)
    assert len(archive.records("w", "r")) == 5
    assert archive.broken_at("w", "r") is None


def other(
    first: int, last: int, why: str, finished: bool = False, **more: object
) -> tuple[ArchiveRequest, str]:
    """A part that a reset run writes behind the same beginning, and its head."""
    records = [record.model_copy(update={"reason": why, **more}) for record in RECORDS[first:last]]
    head = chain(records, chain(RECORDS[:first]))
    values = tuple(record.model_dump(mode="json") for record in records)
    result = {"answer": why, "log_head": head} if finished else None
    return part(first, last).model_copy(update={"records": values, "result": result}), head


def test_log_of_a_reset_run_replaces_none(archive: Archive) -> None:
    archive.add(part(0, 2))
    archive.add(part(2, 5, finished=True))
    second, head = other(3, 5, "second", finished=True)
    for one in (second, part(2, 5, finished=True), second):  # the first one's last part comes late once more
        archive.add(one)
    archive.add(other(1, 4, "third")[0])
    assert archive.runs() == (("w", "r~1"), ("w", "r~2"), ("w", "r"))
    reasons = [[record["reason"] for record in archive.records("w", one)] for _, one in archive.runs()]
    first = [record.reason for record in RECORDS]
    assert reasons == [first, [*first[:3], "second", "second"], [first[0], "third", "third", "third"]]
    assert [archive.result("w", one) for _, one in archive.runs()] == [
        RESULT, {"answer": "second", "log_head": head}, None,
    ]  # fmt: skip
    assert {archive.broken_at(*one) for one in archive.runs()} == {None}
    assert [record["reason"] for record in archive.records_up_to(head, "w", "r")] == reasons[1]
    assert archive.result("w") is None, "the newest is the run's"


@pytest.mark.parametrize("first", [2, 3])
def test_run_that_a_reset_has_ended_replaces_no_newer_log(archive: Archive, first: int) -> None:
    """Its last part comes when the reset has gone on; its records were written before."""
    archive.add(part(0, 2))
    archive.add(other(2, 3, "newer", at=time.time(), finished=True)[0])
    assert archive.add(part(2, 3 if first == 3 else 5)).records == ()
    if first == 3:
        archive.add(part(3, 5))
    assert [record["reason"] for record in archive.records("w")][2:] == ["newer"]
    assert (archive.result("w") or {})["answer"] == "newer"
    late = [record["reason"] for record in archive.records("w", "r~1")]
    assert late == [record.reason for record in RECORDS[:5]]
    assert {archive.broken_at(*one) for one in archive.runs()} == {None}


@pytest.mark.parametrize(
    ("damage", "breaks_at"),
    [
        ("UPDATE records SET json=replace(json,'because 2','therefore 2') WHERE seq=2", 2),
        ("UPDATE records SET json='{' WHERE seq=3", 3),
        ("DELETE FROM records WHERE seq=1", 1),
        ("DELETE FROM records WHERE seq=4", 4),
        ("DELETE FROM records", 0),
        ("UPDATE records SET hash='0' WHERE seq=0", 0),
        ("DELETE FROM runs", 0),
        ("UPDATE runs SET result=replace(result,'log_head\":\"','log_head\":\"0')", 5),
        ("UPDATE runs SET result='{'", 5),
        ("UPDATE runs SET result='[]'", 5),
        ("UPDATE runs SET result=''", 5),
        ("UPDATE runs SET result=NULL", 5),
        ("UPDATE runs SET result=replace(result,'42','43')", 5),
    ],
)
def test_verifying_finds_where_the_chain_breaks(archive: Archive, damage: str, breaks_at: int) -> None:
    archive.add(part(finished=True))
    change(archive, damage)
    assert archive.broken_at("w", "r") == breaks_at
    place = f"(at record {breaks_at}|behind record {breaks_at - 1})"
    for read in (archive.records, archive.last_record, archive.result):
        with pytest.raises(ChainBroken, match=rf"run w .* {place}\b.* backup"):
            read("w")


@pytest.mark.parametrize("text", ["{", "[]", "", "null"])
def test_damaged_row_is_named_and_the_others_are_read(archive: Archive, text: str) -> None:
    archive.add(part(finished=True))
    archive.add(part(run_id="other").model_copy(update={"workflow_id": "v"}))
    change(archive, f"UPDATE records SET json='{text}' WHERE workflow_id='w' AND seq=2")
    assert [(one.run, one.at) for one in archive.broken()] == [(("w", "r"), 2)]
    assert len(archive.records("v")) == 5
    assert archive.runs() == (("w", "r"), ("v", "other"))


WRITER = """
import sys
from tests.activities.test_archive import part
from tests.storekit import opened_archive
archive = opened_archive(sys.argv[1])
for n in range(8):
    for parts in (part(0, 2), part(2, 5, finished=True)):
        archive.add(parts.model_copy(update={"workflow_id": f"shared {n}"}))
        archive.add(parts.model_copy(update={"workflow_id": f"{sys.argv[2]} {n}"}))
archive.database.close()
"""


@pytest.mark.parametrize(
    "where", ["file", pytest.param("postgres", marks=pytest.mark.exhaustive)], indirect=True
)
def test_several_writers_at_once_keep_every_chain_whole(archive: Archive, where: str) -> None:
    writers = [Forked(WRITER, where, name, env=os.environ) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    runs = archive.runs()
    assert len(runs) == 24
    assert {(len(archive.records(run)), archive.result(run) == RESULT) for run, _ in runs} == {(5, True)}
    assert {archive.broken_at(run) for run, _ in runs} == {None}


def test_newest_run_of_a_workflow_id_is_taken(archive: Archive) -> None:
    archive.add(part(run_id="old", finished=True))
    archive.add(part(0, 1, run_id="new"))
    assert archive.runs() == (("w", "old"), ("w", "new"))
    assert len(archive.records("w")) == 1
    assert len(archive.records("w", "old")) == 5
    assert archive.result("w") is None


def test_run_that_is_archived_late_is_not_the_newest(archive: Archive) -> None:
    newer = RECORDS[0].model_copy(update={"at": RECORDS[-1].at + 60})
    archive.add(part(run_id="new").model_copy(update={"records": (newer.model_dump(mode="json"),)}))
    archive.add(part(run_id="old", finished=True))
    assert len(archive.records("w")) == 1
    assert archive.result("w") is None
    assert archive.result("w", "old") == RESULT


def test_result_for_a_list_is_that_of_the_newest_run(archive: Archive) -> None:
    assert archive.unchecked_result("w") is None
    archive.add(part(run_id="old", finished=True))
    assert archive.unchecked_result("w") == RESULT
    newer = RECORDS[0].model_copy(update={"at": RECORDS[-1].at + 60})
    archive.add(part(run_id="new").model_copy(update={"records": (newer.model_dump(mode="json"),)}))
    assert archive.unchecked_result("w") is None


class Counted(SqliteFile):
    """A file that counts the rows that are read of it."""

    read = 0

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        rows = super().rows(sql, values)
        self.read += len(rows)
        return rows


def test_result_for_list_takes_no_longer_where_log_is_long(tmp_path: Path) -> None:
    file = Counted(tmp_path / "archive.db", SCHEMA)
    archive = Archive(file)
    archive.add(part(finished=True))
    assert archive.unchecked_result("w") == RESULT
    assert file.read == 2


def test_missing_archive_is_empty_and_not_made(archive: Archive, tmp_path: Path) -> None:
    assert archive.runs() == ()
    assert archive.records("w") == ()
    assert archive.result("w") is None
    assert archive.broken_at("w") is None
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_archive_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "archive.db"
    notes.write_text("these are my notes, not a database " * 40)
    with pytest.raises(StoreUnavailable, match="backup"):
        Archive(notes).add(part())
    with pytest.raises(StoreUnavailable, match="backup"):
        Archive(notes).runs()
    assert notes.read_text().startswith("these are my notes")


def test_deleted_runs_give_their_space_back(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive.db")
    for n in range(20):
        archive.add(part(run_id=f"r{n}"), "one", bytes(random.Random(n).randbytes(50_000)))
    before = (tmp_path / "archive.db").stat().st_size
    for n in range(19):
        archive.delete("w", f"r{n}")
    archive.database.shrink()
    assert (tmp_path / "archive.db").stat().st_size < before / 5
    assert archive.broken_at("w", "r19") is None
    assert len(archive.records("w", "r19")) == 5


def test_histories_of_before_a_reset_stay_with_the_run(archive: Archive) -> None:
    """The execution of the reset may continue them."""
    archive.add(part(0, 5), "one", b"1")
    archive.add(other(1, 4, "second")[0], "again", b"2")
    assert archive.histories("w", "r") == {"one": b"1", "again": b"2"}


def test_histories_come_back_in_order_and_the_newest_of_each(archive: Archive) -> None:
    archive.add(part(run_id="other"), "one", b"3")
    for execution, events in (("one", b"1"), ("two", b"2"), ("one", b"1 and more")):
        archive.add(part(run_id="r", finished=True), execution, events)
    kept = {"one": b"1 and more", "two": b"2"}
    assert archive.histories("w") == archive.histories("w", "r") == kept
    assert archive.histories("nobody") == {}
    change(archive, "UPDATE histories SET events=?", b"0")
    with pytest.raises(StoreError, match="damaged"):
        archive.histories("w")
