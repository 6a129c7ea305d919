"""The staged machine on the real server: its ways, and the text of observe while it is produced."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities.contracts import ModelSpec, ScriptedReply
from activities.settings import Settings
from tests.conftest import TOOLS, real_server
from tests.fake_openai import FakeOpenAI
from tests.fake_openai_answers import Answer
from tests.workflows.scenarios_staged import SCENARIOS, acts, models, observes, staged, thinks
from tests.workflows.trials import begin, log_of, until
from worker import build_worker
from workflows.api import AgentResult, AgentTask
from workflows.kernel.errors import MaxIterationsExceeded
from workflows.kernel.rebuild import rebuild
from workflows.machines.staged import DESIGN
from workflows.machines.staged_options import STANDARD, Options
from workflows.machines.staged_result import transition_events
from workflows.registry import parts

OBSERVATION = {"summary": "s", "final_answer": " ".join(f"word{n}" for n in range(40)), "need_loop": False}


async def ended(client: Client, name: str) -> AgentResult:
    """How a scenario ended."""
    result: AgentResult = await (await SCENARIOS[name](client)).result()
    return result


async def test_a_run_on_the_server_takes_two_passes_and_is_degraded(working: Client) -> None:
    handle = await SCENARIOS["staged-passes"](working)
    result = await handle.result()
    assert (result.ok, result.answer, result.steps) == (True, "it is marked", 2)
    assert result.outcome["degraded"] is True
    codes = [event["code"] for event in result.outcome["degrade_events"]]
    assert codes == ["failed", "bad_arguments", "unknown_tool"]
    records = await log_of(handle)
    machine = DESIGN.build(Options(), parts())
    state, context = rebuild(machine, records)
    assert (state, context.lifecycle) == (machine.state_named("Finished"), "Finished")
    assert [event.stage for event in transition_events(records, STANDARD)] == [
        *("orchestrator", "think", "act", "observe", "think", "observe"),
    ]


async def test_a_run_that_never_has_enough_is_forced_to_answer(working: Client) -> None:
    result = await ended(working, "staged-forced")
    assert (result.ok, result.exit_reason, result.steps) == (False, "no_answer", 2)
    assert result.outcome["fallback_used"] is True


async def test_a_failure_that_is_raised_fails_the_workflow_with_its_name(working: Client) -> None:
    """R-002-8: and the whole result goes with it."""
    handle = await SCENARIOS["staged-exhausted"](working)
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    cause: Any = failed.value.cause
    assert cause.type == "MaxIterationsExceeded"
    result = AgentResult.model_validate(cause.details[0])
    assert result.outcome["last_error"]["stage"] == "observe"
    with pytest.raises(MaxIterationsExceeded):
        result.raise_if_failed()


async def test_a_stage_that_fails_ends_the_run_with_a_result(working: Client) -> None:
    result = await ended(working, "staged-no-call")
    assert (result.ok, result.exit_reason, result.state) == (False, "failed", "Failed")
    assert result.outcome["last_error"]["code"] == "StageError"


async def test_a_whole_machine_and_a_review_work_as_stages(working: Client) -> None:
    result = await ended(working, "staged-review")
    assert (result.ok, result.answer, result.steps) == (True, "seen", 2)
    assert result.outcome["extensions"] == {"review": {"remark": "nothing"}}
    assert result.counters["passes"] == 2


async def live_text(handle: WorkflowHandle[Any, Any]) -> str:
    """What the model has said so far, as everybody can read it who may describe the run."""
    about = (await handle.describe()).raw_description
    for pending in about.pending_activities:
        for payload in pending.heartbeat_details.payloads:
            text: str = json.loads(payload.data)
            return text
    return ""


async def watched(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """The texts that could be read while the run was in Observing, each once."""
    await until(handle, lambda status: status.state == "Observing" or status.finished)
    texts: list[str] = []
    while (await handle.describe()).close_time is None:
        text = await live_text(handle)
        if text and text not in texts:
            texts.append(text)
        await asyncio.sleep(0.05)
    return texts


async def test_what_observe_says_can_be_read_while_it_is_said(working: Client) -> None:
    slow = ScriptedReply(reply=OBSERVATION, delay_seconds=3)
    handle = await begin(working, staged(models(think=thinks(), observe=slow)))
    texts = await watched(handle)
    whole = json.dumps(OBSERVATION)
    assert len(texts) >= 2
    assert all(whole.startswith(text) for text in texts)
    assert (await handle.result()).answer == OBSERVATION["final_answer"]


async def test_a_streaming_provider_is_shown_word_by_word(tmp_path: Path) -> None:
    """With a server that streams as OpenAI's does; nothing of the stream is in the history."""
    with FakeOpenAI() as server:
        server.say(Answer(json.dumps(OBSERVATION), word_seconds=0.06))
        spec = ModelSpec(provider="openai", name="echo", base_url=server.base_url)
        own = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, base_urls=(server.base_url,))
        async with real_server(own) as client, build_worker(client, own):
            given = staged({**models(think=thinks()), "observe": spec}).model_copy(update={"tools": ()})
            handle = await begin(client, given)
            texts = await watched(handle)
            assert (await handle.result()).answer == OBSERVATION["final_answer"]
            history = await handle.fetch_history()
    assert len(texts) >= 2
    assert all(json.dumps(OBSERVATION).startswith(text) for text in texts)
    raw = [event.SerializeToString() for event in history.events]
    assert any(b"word39" in one for one in raw)
    assert [one for one in raw if b"word5 " in one and b"word39" not in one] == []


async def test_an_archive_that_cannot_be_written_does_not_harm_a_run(tmp_path: Path) -> None:
    """Spec 3.7, the last row: the log's store fails, the run does not."""
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),))
    async with real_server(settings) as client:
        (settings.data_dir / "archive.db").mkdir()  # a folder in the place of the file
        async with build_worker(client, settings):
            handle = await begin(client, _marked())
            result = await handle.result()
    assert (result.ok, result.answer) == (True, "it is marked")
    assert result.records > 0
    assert (settings.data_dir / "archive.db").is_dir()


def _marked() -> AgentTask:
    replies = models(
        think=thinks("mark"), act=acts(("mark", {"line": "a"})), observe=observes("it is marked")
    )
    return staged(replies)
