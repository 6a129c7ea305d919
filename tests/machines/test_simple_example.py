"""The example agent `csv_question` says what is in the table, and something else when that changes."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from tests.machines.examplekit import agent_says

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "examples" / "data" / "tickets.csv"
QUESTION = "Where do urgent tickets pile up?"
HEAD = "id,opened,product,priority,status\n"


def folder_with(tmp_path: Path, text: str) -> Path:
    """A folder with this table where the agent looks."""
    (tmp_path / "examples" / "data").mkdir(parents=True)
    (tmp_path / "examples" / "data" / "tickets.csv").write_text(text, encoding="utf-8")
    return tmp_path


async def test_it_finds_what_is_in_the_table(tmp_path: Path) -> None:
    with TABLE.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["priority"], r["status"]) == ("urgent", "open")]
    product, count = Counter(row["product"] for row in rows).most_common(1)[0]
    oldest = next(row for row in rows if row["product"] == product)
    folder = folder_with(tmp_path, TABLE.read_text(encoding="utf-8"))
    ended, used = await agent_says("csv_question", folder, QUESTION)
    assert (ended.ok, ended.reason) == (True, "finished")
    assert ended.answer == (
        f"At {product}: {count} of the {len(rows)} urgent open tickets ({round(100 * count / len(rows))} %). "
        f"The oldest is {oldest['id']}, open since {oldest['opened']}."
    )
    assert used == ["search_files", "search_files", "calculator"]


async def test_another_table_gives_another_answer(tmp_path: Path) -> None:
    table = HEAD + "1,2026-01-01,mail,urgent,open\n2,2026-01-02,mail,urgent,closed\n"
    ended, _ = await agent_says("csv_question", folder_with(tmp_path, table), QUESTION)
    assert (
        ended.answer
        == "At mail: 1 of the 1 urgent open tickets (100 %). The oldest is 1, open since 2026-01-01."
    )


async def test_a_table_without_urgent_tickets_is_said_to_have_none(tmp_path: Path) -> None:
    ended, _ = await agent_says("csv_question", folder_with(tmp_path, HEAD), QUESTION)
    assert (ended.ok, ended.answer) == (True, "No urgent ticket is open.")


async def test_a_table_that_is_not_there_raises(tmp_path: Path) -> None:
    ended, _ = await agent_says("csv_question", tmp_path, QUESTION)
    assert (ended.ok, ended.raises) == (False, "ExecutionError")
    assert "there is no such file" in str(ended.error)
