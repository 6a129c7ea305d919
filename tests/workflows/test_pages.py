"""Pages and the text for Temporal's UI."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import Message
from workflows.api import PAGE_BYTES, AgentStatus, LogPage, PageQuery
from workflows.kernel.log import Record
from workflows.pages import details, log_page, steps_of, transcript_page
from workflows.people import Request


def _records(texts: list[str], first: int = 0) -> list[Record]:
    return [
        Record(seq=first + n, machine="m", state="a", event="E", to="b", step=1 + n // 2, reason=text)
        for n, text in enumerate(texts)
    ]


@given(st.lists(st.text(max_size=60).map(lambda text: text * 100), max_size=30), st.booleans())
def test_pages_hold_every_record_once_and_in_order(texts: list[str], full: bool) -> None:
    records, since = _records(texts), 0
    seen: list[Record] = []
    while since < len(records):
        page = log_page(records, PageQuery(since=since, full=full), finished=True)
        assert page.records
        assert page.next > since
        seen += page.records
        since = page.next
    assert [r.seq for r in seen] == list(range(len(texts)))
    if full:
        assert seen == records


@settings(max_examples=20)
@given(st.lists(st.integers(1000, 9000).map(lambda n: "é" * n), min_size=1, max_size=12))
def test_a_page_that_may_be_cut_fits_into_what_temporal_shows(texts: list[str]) -> None:
    page = log_page(_records(texts), PageQuery(), finished=False)
    assert len(LogPage.model_dump_json(page).encode()) <= PAGE_BYTES
    told = transcript_page([Message(role="user", content=text) for text in texts], PageQuery())
    assert len(told.model_dump_json().encode()) <= PAGE_BYTES


def test_a_run_that_was_continued_as_new_gives_what_it_holds_and_says_from_where() -> None:
    page = log_page(_records(["x", "y"], first=40), PageQuery(since=3), finished=False, first=40)
    assert ([r.seq for r in page.records], page.first, page.next, page.total) == ([40, 41], 40, 42, 42)
    empty = log_page([], PageQuery(since=3), finished=False, first=40)
    assert (empty.first, empty.next, empty.total) == (40, 40, 40)


def test_steps_are_told_by_what_was_said_first() -> None:
    (first, second) = steps_of(_records(["I look", "found", "I answer"]))
    assert (first.step, first.summary, first.states) == (1, "I look", ("a", "a"))
    assert (second.step, second.summary) == (2, "I answer")


def test_what_a_model_says_cannot_draw_links_or_pictures_in_the_ui() -> None:
    status = AgentStatus(
        agent="a", machine="m", machine_version="1", state="__end__", step=1, visit=1, doing="x`](u)"
    )
    text = details(status, "see ![p](http://x/y.png) `code`\n# head", _records(["[click](http://x) ` `` |"]))
    assert "`see ![p](http://x/y.png) 'code' # head`" in text
    assert "`[click](http://x) ' '' |`" in text
    assert "Doing: `x'](u)`" in text


def test_the_text_for_the_ui_says_each_open_request_once_and_that_there_are_more() -> None:
    status = AgentStatus(agent="a", machine="m", machine_version="1", state="s", step=1, visit=1)
    asked = [
        Request(
            id=f"r{n}", kind="approval", run="w", machine="m", state="s", step=1, place=f"s#1:{n}",
            text=f'May the agent call t with {{"n": {n}}}?', tool="t", arguments={"n": n},
            digest="d", options=("approve", "reject"), created=0,
        )
        for n in range(1, 6)
    ]  # fmt: skip
    records = [
        Record(seq=n, machine="m", state="s", event="Requested", reason=one.text, about={"request": one.id})
        for n, one in enumerate(asked)
    ]
    text = details(status, "the goal", records, asked)
    assert [text.count(f'{{"n": {n}}}') for n in range(1, 6)] == [1] * 5
    assert text.count('"request": "r') == 3
    assert "2 more requests are open" in text
    assert "more requests" not in details(status, "the goal", records, asked[:3])


def test_an_action_with_a_thousand_arguments_fits_into_a_page() -> None:
    patch = {
        "steps": {
            str(n): {"action_input": {f"key{k}" * 50: "x" * 300 for k in range(1000)}} for n in range(30)
        }
    }
    record = Record(seq=0, machine="m", state="a", event="E", patch=patch)
    page = log_page([record], PageQuery(), finished=False)
    assert len(page.model_dump_json().encode()) <= PAGE_BYTES
    assert log_page([record], PageQuery(full=True), finished=False).records == (record,)
