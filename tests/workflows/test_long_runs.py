"""Continue-as-new: a run goes on with an empty history and loses nothing."""

from __future__ import annotations

from pathlib import Path

from activities.archive import Archive
from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from tests.conftest import TOOLS, real_server
from tests.workflows.trials import act, begin, final, task
from worker import build_worker
from workflows import registry
from workflows.kernel.log import Record, chain
from workflows.kernel.rebuild import rebuild

STEPS = 12


async def test_a_long_run_continues_as_new_with_one_log_one_answer_and_no_step_twice(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),))
    async with (
        real_server(settings, "limit.historyCount.suggestContinueAsNew=60") as client,
        build_worker(client, settings),
    ):
        replies = [act("mark", line=f"step{n}") for n in range(STEPS)]
        handle = await begin(client, task(*replies, final("at the end"), tools=("mark",)))
        first = handle.result_run_id
        result = await handle.result()
        agents = AgentClient(client, ArchivedRuns(settings.data_dir / "archive.db"), ui=None, where="here")
        seen = await agents.records(handle.id, full=True)
        steps = await agents.steps(handle.id)

    assert (result.answer, result.steps) == ("at the end", STEPS + 1)
    assert result.run_id != first, "the run was continued as new"
    assert result.counters["tool_calls"] == STEPS
    marks = (tmp_path / "marks.txt").read_text().splitlines()
    assert [line.split()[0] for line in marks] == [f"step{n}" for n in range(STEPS)]
    assert {line.split()[1].split("/")[1] for line in marks} == {first}, (
        "keys name the first run of the chain"
    )

    archive = Archive(settings.data_dir / "archive.db")
    records = [Record.model_validate(one) for one in await archive.records(handle.id)]
    assert [r.seq for r in records] == list(range(result.records))
    assert chain(records) == result.log_head
    assert await archive.verify(handle.id) is None
    assert list(seen) == records
    assert [line.step for line in steps] == list(range(1, STEPS + 2))
    design = registry.design("react")
    machine = design.build(design.options(), registry.parts())
    assert len(rebuild(machine, records)[1].steps) == STEPS + 1
