"""The archive: the chain is the workflow's, parts may be repeated, changes are found."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.archive import CONFLICT, Archive, ArchiveActivities, ArchivedRun, _canonical, _chained
from activities.contracts import ArchiveRequest, LogWanted
from activities.converter import StrictConverter
from activities.sqlite import StoreError
from workflows.kernel.log import Record, chain

RECORDS = tuple(
    Record(
        seq=n,
        machine="react",
        state="thought",
        event="ModelReplied",
        reason=f"because {n}: ä \u2028 \x01 /",
        counters={"cost_usd": 1e-7 * n, "calls": n},
        patch={"steps": [n, 1e22, 0.1, None, {"deep": "x"}]},
        started=1_763_680_000.123 + n,
    )
    for n in range(5)
)
RESULT = {"answer": "42", "log_head": chain(RECORDS)}


def request(first: int = 0, last: int = 5, run_id: str = "r", finished: bool = False) -> ArchiveRequest:
    return ArchiveRequest(
        workflow_id="w",
        run_id=run_id,
        after=chain(RECORDS[:first]),
        records=tuple(record.model_dump(mode="json") for record in RECORDS[first:last]),
        result=RESULT if finished else None,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.db"


async def write(path: Path, *requests: ArchiveRequest) -> list[str]:
    activities = ArchiveActivities(path)
    try:
        return [await ActivityEnvironment().run(activities.archive_log, one) for one in requests]
    finally:
        activities.close()


def change(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql)
    connection.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@given(value=json_values, number=st.floats(allow_nan=False, allow_infinity=False))
def test_the_hash_over_travelled_json_equals_the_hash_over_the_record(value: object, number: float) -> None:
    record = Record(
        seq=0, machine="m", state="s", event="e", patch={"x": value}, counters={"n": number}, started=number
    )
    sent = ArchiveRequest(workflow_id="w", run_id="r", after="", records=(record.model_dump(mode="json"),))
    converter = StrictConverter()
    (come,) = converter.from_payloads(converter.to_payloads([sent]), [ArchiveRequest])
    assert _chained("before", _canonical(come.records[0])) == chain([record], "before")


async def test_the_head_is_the_workflows_own_and_the_log_can_be_read(path: Path) -> None:
    heads = await write(path, request(0, 2), request(2, 5, finished=True))
    assert heads == [chain(RECORDS[:2]), chain(RECORDS)]
    archive = Archive(path)
    assert await archive.runs() == (ArchivedRun("w", "r", 5, chain(RECORDS), finished=True),)
    assert [Record.model_validate(record) for record in await archive.records("w")] == list(RECORDS)
    assert [record["seq"] for record in await archive.records("w", "r", since=3)] == [3, 4]
    assert await archive.result("w") == RESULT
    assert await archive.verify("w") is None
    archive.close()


async def test_repeated_and_late_parts_change_nothing(path: Path) -> None:
    parts = [request(0, 2), request(2, 5, finished=True)]
    await write(path, *parts, parts[0], parts[1], parts[0])
    archive = Archive(path)
    assert await archive.runs() == (ArchivedRun("w", "r", 5, chain(RECORDS), finished=True),)
    assert await archive.verify("w", "r") is None
    archive.close()


async def test_another_history_of_the_same_run_is_refused_and_the_first_kept(path: Path) -> None:
    await write(path, request())
    other = RECORDS[3].model_copy(update={"reason": "forged"}).model_dump(mode="json")
    forged = ArchiveRequest(workflow_id="w", run_id="r", after=chain(RECORDS[:3]), records=(other,))
    with pytest.raises(ApplicationError, match="another record 3 of run w") as caught:
        await write(path, forged)
    assert (caught.value.type, caught.value.non_retryable) == (CONFLICT, True)
    archive = Archive(path)
    assert await archive.verify("w") is None
    archive.close()


async def test_another_result_of_the_same_run_is_refused_and_the_first_kept(path: Path) -> None:
    await write(path, request(finished=True))
    forged = request(finished=True).model_copy(update={"result": {**RESULT, "answer": "forged"}})
    with pytest.raises(ApplicationError, match="another result of run w") as caught:
        await write(path, forged)
    assert (caught.value.type, caught.value.non_retryable) == (CONFLICT, True)
    archive = Archive(path)
    assert await archive.result("w") == RESULT
    archive.close()


@pytest.mark.parametrize(
    ("damage", "breaks_at"),
    [
        ("UPDATE records SET json=replace(json,'because 2','therefore 2') WHERE seq=2", 2),
        ("DELETE FROM records WHERE seq=1", 1),
        ("DELETE FROM records WHERE seq=4", 4),
        ("DELETE FROM records", 0),
        ("UPDATE records SET hash='0' WHERE seq=0", 0),
        ("DELETE FROM runs", 0),
        ("UPDATE runs SET result=replace(result,'log_head\":\"','log_head\":\"0')", 5),
        ("UPDATE runs SET result='{'", 5),
        ("UPDATE runs SET result='[]'", 5),
        ("UPDATE records SET json='{' WHERE seq=3", 3),
    ],
)
async def test_verify_names_where_the_chain_breaks(path: Path, damage: str, breaks_at: int) -> None:
    await write(path, request(finished=True))
    change(path, damage)
    archive = Archive(path)
    assert await archive.verify("w", "r") == breaks_at
    archive.close()


@pytest.mark.parametrize("text", ["{", "[]", "", "null"])
async def test_a_damaged_row_is_named(path: Path, text: str) -> None:
    await write(path, request(finished=True))
    change(path, f"UPDATE records SET json='{text}' WHERE seq=2")
    change(path, "UPDATE runs SET result='{'")
    archive, activities = Archive(path), ArchiveActivities(path)
    with pytest.raises(StoreError, match="record 2 of run w in the archive is damaged"):
        await archive.records("w", "r")
    with pytest.raises(StoreError, match="the result of run w in the archive is damaged"):
        await archive.result("w", "r")
    with pytest.raises(StoreError, match="a record of run w in the archive is damaged"):
        await ActivityEnvironment().run(activities.read_log, LogWanted(workflow_id="w", run_id="r"))
    archive.close()
    activities.close()


async def test_runs_of_one_workflow_id_are_kept_apart_and_the_newest_is_meant(path: Path) -> None:
    await write(path, request(run_id="old", finished=True), request(0, 1, run_id="new"))
    archive = Archive(path)
    assert [run.run_id for run in await archive.runs()] == ["old", "new"]
    assert len(await archive.records("w")) == 1
    assert len(await archive.records("w", "old")) == 5
    assert await archive.result("w") is None
    archive.close()


async def test_a_missing_archive_reads_as_empty_and_is_not_made(path: Path) -> None:
    archive = Archive(path)
    assert await archive.runs() == ()
    assert await archive.records("w") == ()
    assert await archive.result("w") is None
    assert await archive.verify("w") is None
    assert list(path.parent.iterdir()) == []
