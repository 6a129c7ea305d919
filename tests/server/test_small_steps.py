"""A step is small in history: one activity where the call may be repeated, and a tool's output once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowQueryFailedError

from activities.contracts import ScriptedReply
from activities.extensions import load_modules
from activities.settings import Settings
from tests.server.trials import (
    UNATTENDED,
    Run,
    begin,
    calls,
    command,
    eventually,
    log_of,
    replayed,
    scripted,
    task,
)
from workflows import registry
from workflows.api import PageQuery, TranscriptPage
from workflows.kernel.log import Record

SLOW = ScriptedReply(reply="too late", delay_seconds=600)
"""A reply that nobody waits for."""


async def activities_of(run: Run) -> Counter[str]:
    """How often each activity was scheduled."""
    events = (await run.fetch_history()).events
    names = (event.activity_task_scheduled_event_attributes.activity_type.name for event in events)
    return Counter(name for name in names if name)


@pytest.mark.parametrize(
    ("tool", "fuse", "questions"),
    [("mark", "auto", 1), ("mark", "off", 4), ("mark_once", "auto", 4), ("mark_slowly", "auto", 4)],
    ids=["repeatable", "off", "unsafe", "slow"],
)
async def test_only_quick_calls_that_may_be_repeated_ask_the_model(
    working: Client, settings: Settings, tool: str, fuse: str, questions: int
) -> None:
    made = [calls((tool, {"line": f"{tool} {number}"})) for number in range(3)]
    run = await begin(working, task(*made, "done", tools=(tool,), fuse=fuse))
    result = await run.result()
    assert (result.answer, result.counters["model_calls"], result.counters["tool_calls"]) == ("done", 4, 3)
    scheduled = await activities_of(run)
    assert (scheduled["ask_model"], scheduled["call_tool"]) == (questions, 3)
    await replayed(run, settings)


async def test_run_costs_its_steps_and_its_archive(working: Client, settings: Settings) -> None:
    run = await begin(working, task(calls(("mark", {"line": "one"})), "done", fuse="off"))
    assert (await run.result()).answer == "done"
    assert await activities_of(run) == {"ask_model": 2, "call_tool": 1, "archive_log": 1}
    await replayed(run, settings)


async def test_first_question_refuses_a_run_whose_tools_the_worker_lacks(working: Client) -> None:
    run = await begin(working, task("never asked", tools=("mark", "absent")))
    with pytest.raises(WorkflowFailureError) as failed:
        await run.result()
    assert "unknown tools: absent. This worker has:" in str(failed.value.cause)
    with pytest.raises(WorkflowQueryFailedError, match="the run has not begun: unknown tools: absent"):
        await run.query("status")


@pytest.mark.parametrize(
    ("name", "more", "event"),
    [
        ("pause", {}, "Paused"),
        ("steer", {"text": "be quick"}, "Steered"),
        ("rollback", {"step": 1}, "RolledBack"),
    ],
)
async def test_command_gets_the_tools_result_and_ends_the_question(
    working: Client, settings: Settings, name: str, more: dict[str, object], event: str
) -> None:
    once = calls(("mark", {"line": name}))
    run = await begin(working, task(once, SLOW, fuse="auto"))
    marks = settings.files_root / "marks.txt"

    async def asked() -> bool:
        pending = (await run.describe()).raw_description.pending_activities
        return bool(pending) and marks.exists() and name in marks.read_text()  # one small file

    await eventually(asked)
    await command(run, name, **more)
    log = await eventually(lambda: _log_with(run, event))
    assert [record.event for record in log].index(event) > [r.event for r in log].index("ToolCallsFound")
    await command(run, "abort")
    await run.result()
    await replayed(run, settings)


async def _log_with(run: Run, event: str) -> list[Record] | None:
    log = await log_of(run)
    return log if any(record.event == event for record in log) else None


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("fuse", ["auto", "off"])
async def test_output_of_a_tool_is_in_history_once(
    working: Client, settings: Settings, fuse: str, lines: bool
) -> None:
    text = "long output\n" * 100 if lines else "long output " * 100
    call = calls(("mark", {"line": "end", "text": text}))
    run = await begin(working, task(call, "done", fuse=fuse))
    assert (await run.result()).answer == "done"
    output = json.dumps(f"{text} end")[1:-1]
    page: TranscriptPage = await run.query("transcript", PageQuery(full=True), result_type=TranscriptPage)
    (told,) = [message.content for message in page.messages if message.role == "tool"]
    assert output in told
    times = 0
    for event in (await run.fetch_history()).events:
        if event.activity_task_scheduled_event_attributes.activity_type.name != "archive_log":
            times += event.SerializeToString().replace(b"\\\\", b"\\").count(output.encode())
    assert times == 1
    await replayed(run, settings)


OTHER_WORDS = """
from enum import Enum

from pydantic import BaseModel

from ratchet import AskModel, CallTools, Context, Event, Exit, Machine, Message, ToolCall, do, state


class S(Enum):
    LOOK, DONE = "look", "done"


class Options(BaseModel, frozen=True):
    pass


class Seen(Context):
    text: str = ""


class Looked(Event):
    pass


@state(S.LOOK, asks={AskModel, CallTools}, tools={"mark"}, writes={"text"})
def look(c, run):
    yield from do(CallTools(calls=(ToolCall(id="1", tool="mark", arguments={"line": "clock"}),)))
    question = Message(role="user", content=f"It is {run.now}.")
    reply = yield from do(AskModel(say=(question,)))
    return {"text": reply.text}, Looked()


MACHINE = Machine(
    name="timed",
    options=Options,
    context=Seen,
    begin=lambda given, options: Seen(),
    initial=S.LOOK,
    table={S.LOOK: {Looked: S.DONE}},
    states=(look,),
    result=lambda c, run: Exit(reason="looked", ok=True, answer=c.text),
)
"""


async def test_machine_of_a_user_is_never_fused(working: Client, settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "timed.py"
    file.write_text(OTHER_WORDS)  # one small file
    for module in load_modules([str(file)]):
        registry.add_module(module)
    models = {"default": scripted("in time")}
    given = {"goal": "x", "machine": "timed", "tools": ("mark",), "people": UNATTENDED, "models": models}
    run = await begin(working, {**given, "fuse": "auto"})
    result = await run.result()
    assert (result.ok, result.answer) == (True, "in time")
    assert (await activities_of(run))["ask_model"] == result.counters["model_calls"] == 1
    await replayed(run, settings)


FAILING_FIRST = (
    OTHER_WORDS.replace("timed", "helpless")
    .replace(
        """    yield from do(CallTools(calls=(ToolCall(id="1", tool="mark", arguments={"line": "clock"}),)))
    question = Message(role="user", content=f"It is {run.now}.")
    reply = yield from do(AskModel(say=(question,)))
    return {"text": reply.text}, Looked()
""",
        """    try:
        yield from do(AskModel(say=(Message(role="user", content="help"),)))
    except EffectError:
        called = yield from do(CallTools(calls=(ToolCall(id="1", tool="mark", arguments={"line": "alone"}),)))
        return {"text": called.results[0].output}, Looked()
""",
    )
    .replace("Context, Event", "Context, EffectError, Event")
)
"""No reply brings the specs of the tools before the first call."""


async def test_first_call_behind_a_failed_question_is_made(
    working: Client, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "helpless.py"
    file.write_text(FAILING_FIRST)  # one small file
    for module in load_modules([str(file)]):
        registry.add_module(module)
    models = {"default": scripted(ScriptedReply(reply="unused", expect="never said"))}
    given = {"goal": "x", "machine": "helpless", "tools": ("mark",), "people": UNATTENDED, "models": models}
    run = await begin(working, given)
    assert (await run.result()).answer == "done alone"
    await replayed(run, settings)
