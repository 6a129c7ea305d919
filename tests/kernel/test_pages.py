"""Pages of a run's log."""

from __future__ import annotations

import pytest

from activities.contracts import CallTools, Message, ToolResult, ToolRun, ToolsReturned
from workflows.api import PAGE_BYTES, PageQuery
from workflows.kernel.log import Record, answered
from workflows.pages import log_page


def test_record_that_is_cut_keeps_all_its_counters() -> None:
    counters = {f"counter {n}": float(n) for n in range(60)}
    patch = {"text": {"set": "long " * 10_000}}
    record = Record(
        seq=0, machine="m", state="s", event="Moved", to="s", at=1.0, patch=patch, counters=counters
    )
    (cut,) = log_page([record], PageQuery(), finished=True).records
    assert (len(str(cut.patch)) < 1000, cut.counters) == (True, counters)


@pytest.mark.parametrize("text", ["x", "漢", "\x1b"])
def test_page_with_many_calls_stays_small_and_says_how_many_more(text: str) -> None:
    calls, output = range(60), text * 1_000
    done = answered(
        CallTools(runs=tuple(ToolRun(id=f"c{n}", tool="t", arguments={"q": output}) for n in calls)),
        ToolsReturned(results=tuple(ToolResult(id=f"c{n}", tool="t", output=output) for n in calls)),
    )
    messages = tuple(Message(role="tool", content=output, tool_call_id=f"c{n}") for n in calls)
    record = Record(
        seq=0, machine="m", state="s", event="Moved", reason=output, answered=done, messages=messages
    )
    page = log_page([record, record], PageQuery(), finished=False)
    assert len(page.model_dump_json().encode()) <= PAGE_BYTES
    *shown, more = page.records[0].answered
    assert (len(shown) > 2, more.title) == (True, f"and {60 - len(shown)} more")
