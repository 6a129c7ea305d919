"""The example tools do what their comments promise, and no input makes a shipped tool raise."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import ModelSpec, Setup, ToolRequest
from activities.contracts_people import CompensateRequest, ReconcileRequest
from activities.provider import ProviderCall
from activities.providers.scripted import ScriptedProvider
from activities.tool import ToolActivities
from activities.tool_after import AfterActivities
from activities.toolbox import Toolbox
from activities.transcript import Message, Transcript
from tests.activities.toolkit import called, environment, request_for, settings_on

EXAMPLES = Path(__file__).parents[2] / "examples" / "tools"


def activities_with(example: str, folder: Path) -> ToolActivities:
    worker = settings_on(folder, modules=(str(EXAMPLES / example),))
    return ToolActivities(Toolbox.load(worker), worker)


async def test_the_example_tool_counts_words(tmp_path: Path) -> None:
    result = await called(activities_with("word_count.py", tmp_path), "word_count", text="a b\nc")
    assert (result.output, result.error) == ("3", None)


async def test_a_keyed_tool_acts_once_for_a_key_however_often_it_is_called(tmp_path: Path) -> None:
    activities = activities_with("outbox.py", tmp_path)
    first = request_for("outbox", to="ann", text="hello")
    answers = [await environment(attempt).run(activities.call_tool, first) for attempt in (1, 2, 3)]
    other = first.model_copy(update={"key": "run/0/action#2:0"})
    answers.append(await environment().run(activities.call_tool, other))
    assert [answer.output for answer in answers] == [
        *['{"queued":1,"to":"ann"}'] * 3,
        '{"queued":2,"to":"ann"}',
    ]
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite")) as outbox:
        assert outbox.execute("SELECT count(*) FROM message").fetchone() == (2,)


def after_with(example: str, folder: Path) -> AfterActivities:
    worker = settings_on(folder, modules=(str(EXAMPLES / example),))
    return AfterActivities(Toolbox.load(worker), worker)


def undoing(request: ToolRequest, output: str = "") -> CompensateRequest:
    return CompensateRequest(tool=request.tool, arguments=request.arguments, output=output, key=request.key)


async def test_a_message_that_still_waits_is_taken_back_and_no_other_one(tmp_path: Path) -> None:
    activities, after = activities_with("outbox.py", tmp_path), after_with("outbox.py", tmp_path)
    first = request_for("outbox", to="ann", text="hello")
    for key in (first.key, "another"):
        await environment().run(activities.call_tool, first.model_copy(update={"key": key}))
    said = [await environment(n).run(after.compensate_tool, undoing(first)) for n in (1, 2)]
    assert [(one.ok, one.text) for one in said] == [(True, "taken back: the message to ann")] * 2
    unsent = first.model_copy(update={"key": "never used"})
    gone = await environment().run(after.compensate_tool, undoing(unsent))
    assert (gone.ok, gone.text) == (False, "outbox: ValueError: the message to ann has left the outbox")
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite")) as outbox:
        assert outbox.execute("SELECT key FROM message").fetchall() == [("another",)]


async def test_the_bank_knows_whether_a_transfer_happened(tmp_path: Path) -> None:
    activities, after = activities_with("transfer.py", tmp_path), after_with("transfer.py", tmp_path)
    request = request_for("transfer", to="ann", cents=1990)
    asked = ReconcileRequest.model_validate(request.model_dump())
    before = await environment().run(after.reconcile_tool, asked)
    assert (before.outcome, before.text) == ("not_happened", "no payment to ann has this reference")
    made = await environment().run(activities.call_tool, request)
    found = await environment().run(after.reconcile_tool, asked)
    assert (found.outcome, found.result and found.result.output) == ("happened", made.output)
    assert made.output == "payment 1: 1990 cents from us to ann"


async def test_a_transfer_is_paid_back_once(tmp_path: Path) -> None:
    activities, after = activities_with("transfer.py", tmp_path), after_with("transfer.py", tmp_path)
    request = request_for("transfer", to="ann", cents=1990)
    never = await environment().run(after.compensate_tool, undoing(request))
    assert (never.ok, never.text) == (
        False,
        "transfer: ValueError: the statement has no such payment to ann",
    )
    made = await environment().run(activities.call_tool, request)
    back = [await environment().run(after.compensate_tool, undoing(request, made.output)) for _ in range(2)]
    assert [(one.ok, one.text) for one in back] == [(True, "payment 2: 1990 cents from ann to us")] * 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["expression", "path", "content", "pattern", "glob", "limit", "offset", "time_zone", "url", "x"]
)
LOCAL = ["calculator", "current_time", "list_files", "read_file", "search_files", "write_file"]


@pytest.mark.parametrize("tool", LOCAL)
def test_any_arguments_give_a_result_and_never_an_exception(tool: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        worker = settings_on(Path(folder))
        activities = ToolActivities(Toolbox.load(worker), worker)

        @settings(deadline=None)
        @given(arguments=st.dictionaries(FIELDS, JSON, max_size=4))
        def check(arguments: dict[str, object]) -> None:
            request = ToolRequest.model_validate(
                {"id": "1", "tool": tool, "arguments": arguments, "key": "k"}
            )
            result = run_alone(activities, request)
            assert result in (None, "bad_arguments", "failed")

        check()


def run_alone(activities: ToolActivities, request: ToolRequest) -> str | None:
    """The error of one call, in an event loop of its own: hypothesis calls synchronously."""
    return asyncio.run(environment().run(activities.call_tool, request)).error


BILLS = """examples/data/bills.txt: lines 1-3 of 3
1\t# due to          cents   for
2\tPaper & Pen        1250   printer paper, invoice 4471
3\tHarbour Realty    48000   rent of the workshop, March"""
PAID = "payment 1: 1250 cents from us to Paper & Pen"
EDITED = '(A person changed the arguments to {"cents": 4800, "to": "Harbour Realty"}.)'


@pytest.mark.parametrize(
    ("observed", "said"),
    [
        (
            (BILLS, PAID, f"{EDITED}\npayment 2: 4800 cents from us to Harbour Realty"),
            f"Paper & Pen: {PAID}. Harbour Realty: payment 2: 4800 cents from us to Harbour Realty.",
        ),
        (
            (BILLS, PAID, "A person rejected this call, so it was not made."),
            f"Paper & Pen: {PAID}. Harbour Realty: rejected.",
        ),
        (
            (
                BILLS,
                PAID,
                "transfer needs a person's approval, and the run is unattended: it was not called.",
            ),
            f"Paper & Pen: {PAID}. Harbour Realty: not called.",
        ),
        (
            (BILLS, PAID, "It was paid by hand."),
            f"Paper & Pen: {PAID}. Harbour Realty: the bank names no payment.",
        ),
        (
            ("PathError: 'examples/data/bills.txt': there is no such file or folder",),
            "Nothing is paid. The file examples/data/bills.txt is not there, in the folder in which I was "
            "started, or it does not list two bills, and I know only how to pay two.",
        ),
    ],
)
async def test_the_example_that_pays_answers_what_the_bank_says_and_not_what_it_asked_for(
    observed: tuple[str, ...], said: str
) -> None:
    spec = yaml.safe_load((EXAMPLES.parent / "agents" / "payments.yaml").read_text())["models"]["default"]
    told = Transcript([Message(role="user", content="Pay what is due.")])
    for words in observed:
        told = Transcript(
            [*told, Message(role="assistant", content="…"), Message(role="user", content=words)]
        )
    setup = Setup(model=ModelSpec.model_validate(spec))
    reply = json.loads((await ScriptedProvider().complete(setup, told, ProviderCall())).text)
    assert reply == {"thought": f"FINAL ANSWER: {said}", "action": None}
