"""Pages of a run's log, and what of its result is in history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from activities.contracts import CallTools, Message, ToolCall, ToolResult, ToolsReturned
from activities.store.converter import data_converter
from workflows.api import PAGE_BYTES, RESULT_BYTES, PageQuery, RunResult
from workflows.kernel.log import Record
from workflows.kernel.logged_calls import answered
from workflows.people import Decided, DoneCall
from workflows.queries import RESULT_PARTS, inline_result, log_page


def test_record_that_is_cut_keeps_all_its_counters() -> None:
    counters = {f"counter {n}": float(n) for n in range(60)}
    patch = {"text": {"set": "long " * 10_000}}
    record = Record(
        seq=0, machine="m", state="s", event="Moved", to="s", at=1.0, patch=patch, counters=counters
    )
    (cut,) = log_page([record], PageQuery(), finished=True).records
    assert (len(str(cut.patch)) < 1000, cut.counters) == (True, counters)


@pytest.mark.parametrize("text", ["x", "漢", "\x1b"])
def test_page_with_many_calls_stays_small_and_counts_the_rest(text: str) -> None:
    calls, output = range(60), text * 1_000
    done = answered(
        CallTools(calls=tuple(ToolCall(id=f"c{n}", tool="t", arguments={"q": output}) for n in calls)),
        ToolsReturned(results=tuple(ToolResult(id=f"c{n}", tool="t", output=output) for n in calls)),
        "s#1:0",
    )
    messages = tuple(Message(role="tool", content=output, tool_call_id=f"c{n}") for n in calls)
    record = Record(
        seq=0, machine="m", state="s", event="Moved", reason=output, answered=done, messages=messages
    )
    page = log_page([record, record], PageQuery(), finished=False)
    assert len(page.model_dump_json().encode()) <= PAGE_BYTES
    *shown, more = page.records[0].answered
    assert (len(shown) > 2, more.title) == (True, f"and {60 - len(shown)} more")


TEXTS = st.sampled_from(["x", "漢", "\x1b", '"', "🦀"])
SIZES = st.sampled_from([0, 1, 700, 20_000, 90_000])
PARTS = ["answer", "error", "outcome", "output", "unheard", "calls"]


@given(TEXTS, st.fixed_dictionaries(dict.fromkeys(PARTS, SIZES)))
def test_result_of_any_size_fits_losing_no_more_than_needed(text: str, sizes: dict[str, int]) -> None:
    size = {name: text * count for name, count in sizes.items()}
    call = DoneCall(
        step=1, branch=0, activity_id="x", tool="pay", arguments={"note": size["calls"]}, effect="unsafe"
    )
    whole = RunResult(
        agent="a", machine="m", machine_version="1", state="END", step=1, ok=True, exit_reason="stop",
        answer=size["answer"], error=size["error"], outcome={"deep": [{"note": size["outcome"]}]},
        output={"note": size["output"]},
        unheard=(size["unheard"], "the newest"), calls=(call,), workflow_id="w", run_id="r",
    )  # fmt: skip
    cut = inline_result(whole)
    converter = data_converter(None).payload_converter
    assert converter.to_payload(cut).ByteSize() < 100_000
    fields = [name for name in sizes if getattr(cut, name) != getattr(whole, name)]
    assert fields == [name for name in sizes if name in cut.cut_fields]
    assert bool(fields) == (len(whole.model_dump_json().encode()) > RESULT_BYTES)
    assert cut.unheard[-1] == "the newest"
    assert cut.output in (whole.output, None)  # a part of it would not fit its schema


MIXED = st.lists(st.tuples(TEXTS, st.integers(0, 15_000)), max_size=4)
LONG = ["answer", "error", "outcome", "unheard", "decided"]


@given(st.fixed_dictionaries(dict.fromkeys(LONG, MIXED)), st.integers(0, 3_000))
def test_result_with_fields_of_any_length_is_cut_to_limit(
    mixed: dict[str, list[tuple[str, int]]], tools: int
) -> None:
    texts = {name: "".join(text * count for text, count in parts) for name, parts in mixed.items()}
    decided = Decided(request="r1", kind="question", outcome="answered", text=texts["decided"])
    counters = {f"tool:tool-{n}/seconds": float(n) for n in range(tools)} | {"cost_usd": 1.5}
    whole = RunResult(
        agent="a", machine="m", machine_version="1", state="END", step=1, ok=True, exit_reason="stop",
        answer=texts["answer"], error=texts["error"], outcome={"note": texts["outcome"]},
        unheard=(texts["unheard"],), decisions=(decided,), counters=counters,
        workflow_id="w" * 1000, run_id="r",
    )  # fmt: skip
    short = inline_result(whole)
    assert len(short.model_dump_json().encode()) <= RESULT_BYTES
    names = set(short.cut_fields)
    assert all(name in short.cut for name in names)
    assert names == {name for name in RESULT_PARTS if getattr(short, name) != getattr(whole, name)}
    assert (
        short.model_copy(update={name: getattr(whole, name) for name in (*RESULT_PARTS, "cut", "cut_fields")})
        == whole
    )
    assert bool(names) == (len(whole.model_dump_json().encode()) > RESULT_BYTES)
    for name in names & {"answer", "error"}:
        kept, _, note = getattr(short, name).rpartition(" [... ")
        assert note == f"{len(texts[name]):,} characters]"
        assert texts[name].startswith(kept)
        used = len(to_json(getattr(short, name)))
        assert RESULT_PARTS[name] - 60 <= used <= RESULT_PARTS[name]
    assert short.counters.items() <= counters.items()
    assert short.counters["cost_usd"] == 1.5


def test_result_is_cut_although_its_longest_field_may_stay() -> None:
    """In history it is a value, and no reference to the workers' store."""
    whole = RunResult(
        agent="a", machine="m", machine_version="1", state="END", step=1, ok=True, exit_reason="stop",
        answer="a" * 39_900, outcome={"rows": "x" * 39_000}, error="e" * 39_000, workflow_id="w", run_id="r",
    )  # fmt: skip
    short = inline_result(whole)
    assert (short.cut_fields, short.answer) == (("outcome",), whole.answer)
    assert len(short.model_dump_json().encode()) <= RESULT_BYTES
