"""What the files of a data directory say of its runs: as much as its server would, or nothing."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Never

import pytest

from activities.contracts import ArchiveRequest
from activities.contracts.chain import link_text
from activities.settings import Settings
from activities.store.archive import Archive, end_of
from client.errors import NoWorker, UnknownRun, UsageError
from client.runs.archived import ArchivedRuns, archive_opener
from client.runs.files import RunFiles
from client.runs.listing import RunLine
from client.runs.reader import RunReader
from client.runs.steps import checkpoint_lines
from client.sdk.agent import AgentClient
from client.server.embedded import EmbeddedServer, running_server
from tests.client.asking import asking, talk
from tests.client.commandline import environment, within
from tests.server.conftest import TOOLS
from tests.server.trials import eventually
from workflows.kernel.log import STARTED, Record, chain

DONE, WAITS, ENDED, AGAIN = "done", "waits", "ended", "again"


class Asked(Exception):
    """The server was asked."""


async def nobody() -> Never:
    raise Asked


def stopped(settings: Settings) -> RunReader:
    home = settings.data_dir
    archive = ArchivedRuns(archive_opener(home))
    return RunReader(archive, str(home), connect=nobody, files=RunFiles(home))


async def all_of(runs: RunReader) -> dict[str, Any]:
    """All that is read of the runs of these tests without a worker."""
    everything = await runs.list()
    return {
        "list": everything,
        "newest": await runs.list(limit=2),
        "since": await runs.list(since=everything[1].started),
        "counted": [await runs.count(), await runs.count(running=True, agent="agent")],
        "machine": [line.id for line in await runs.list(machine="tools", agent="other")],
        "running": [line.id for line in await runs.list(running=True)],
        "inbox": await runs.inbox(),
        "lines": [await runs.describe(run) for run in (DONE, WAITS, ENDED, AGAIN)],
        "ids": [await runs.find(short) for short in ("do", "its", "ended")],
        "archived": [await runs.is_archived(run) for run in (DONE, WAITS)],
        "result": await runs.result(DONE),
        "status": await runs.status(DONE),
        "records": await runs.records(DONE, 2),
        "steps": await runs.steps(DONE),
        "checkpoints": checkpoint_lines(DONE, await runs.records(DONE)),
    }


@pytest.fixture(scope="module")
async def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, dict[str, Any]]:
    """A data directory whose server has been stopped, and what that server said."""
    data_dir = tmp_path_factory.mktemp("stopped") / "data"
    settings = Settings(data_dir=data_dir, files_root=data_dir.parent, modules=(str(TOOLS),))
    async with AgentClient.connect(settings=settings, worker=True) as agents:
        await agents.start(talk(goal="a goal\nof \x1b[31mtwo lines"), DONE)
        for run, name in ((WAITS, "other"), (ENDED, "agent"), (AGAIN, "agent")):
            await agents.start(asking("x", name=name), run)
        for run in (ENDED, AGAIN):
            await agents.temporal.get_workflow_handle(run).terminate()
        await agents.temporal.start_workflow("AgentWorkflow", talk(), id=AGAIN, task_queue="nobody")
        await agents.result(DONE)

        async def seen() -> bool:  # visibility is written a little later
            ended = {
                line.id: line.exit_reason for line in await agents.list() if line.progress == "completed"
            }
            return bool(ended.get(DONE)) and [line.id for line in await agents.inbox()] == [WAITS]

        await eventually(seen)
        said = await all_of(agents)
        await eventually(lambda: _agrees(settings, said))  # also while the server runs
    assert running_server(data_dir) is None
    return settings, said


async def _agrees(settings: Settings, said: dict[str, Any]) -> bool:
    try:
        return await all_of(stopped(settings)) == said
    except Asked:
        return False


async def test_files_say_what_the_server_said(told: tuple[Settings, dict[str, Any]]) -> None:
    settings, said = told
    found = await all_of(stopped(settings))
    for what, expected in said.items():
        assert found[what] == expected, what
    assert (await stopped(settings).records(DONE))[0].event == STARTED
    assert running_server(settings.data_dir) is None


async def test_run_that_waits_needs_a_worker(told: tuple[Settings, dict[str, Any]]) -> None:
    for ask in (stopped(told[0]).status, stopped(told[0]).records, stopped(told[0]).result):
        with pytest.raises(NoWorker, match="ratchet"):
            await ask(WAITS)


async def test_unknown_run_is_unknown_without_a_server(told: tuple[Settings, dict[str, Any]]) -> None:
    for ask in (stopped(told[0]).find, stopped(told[0]).describe, stopped(told[0]).records):
        with pytest.raises(UnknownRun, match="no-such"):
            await ask("no-such")


async def test_look_at_the_users_is_no_user_for_whoever_leaves(data_dir: Path) -> None:
    server, files = await EmbeddedServer.attach(data_dir), RunFiles(data_dir)
    assert files.is_used()
    with (data_dir / "start.lock").open("rb") as leaving:
        fcntl.flock(leaving, fcntl.LOCK_EX)
        assert files.is_used()
    with (data_dir / "start.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert files.is_used(), "two may look at once"
        ending = asyncio.create_task(server.release())
    assert await ending, "it was the last user"
    assert not files.is_used()
    assert not files.is_served()


async def test_nobody_looks_at_the_users_while_somebody_leaves(data_dir: Path) -> None:
    for name in ("start.lock", "users.lock"):
        (data_dir / name).touch(mode=0o600)
    assert not RunFiles(data_dir).is_used()
    with (data_dir / "start.lock").open("rb") as leaving:
        fcntl.flock(leaving, fcntl.LOCK_EX)
        assert RunFiles(data_dir).is_used(), (
            "whoever leaves asks whether there are others, and nobody else does"
        )


async def test_directory_without_a_database_has_no_runs(tmp_path: Path) -> None:
    assert await stopped(Settings(data_dir=tmp_path / "data")).list() == ()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            "UPDATE executions_visibility SET _version = _version - 1 WHERE workflow_id = 'done'",
            id="a row is older than what happened",
        ),
        pytest.param("DELETE FROM executions_visibility WHERE workflow_id = 'waits'", id="a row is missing"),
        pytest.param("UPDATE executions_visibility SET status = 8", id="a status is not known"),
        pytest.param("ALTER TABLE visibility_tasks RENAME TO other", id="a table has another name"),
        pytest.param("UPDATE namespaces SET data = x'ffffffff'", id="a message has another form"),
        pytest.param(
            "UPDATE executions_visibility SET memo = replace(memo, CAST('json/plain' AS BLOB), "
            "CAST('binary/xyz' AS BLOB))",
            id="a value needs a codec",
        ),
    ],
)
async def test_server_is_asked_where_the_files_are_not_clear(
    told: tuple[Settings, dict[str, Any]], tmp_path: Path, change: str
) -> None:
    settings = _copied(told[0], tmp_path)
    assert await stopped(settings).list() == told[1]["list"]
    with closing(sqlite3.connect(settings.data_dir / "temporal.db")) as file, file:
        file.execute(change)
    for ask in (stopped(settings).list, stopped(settings).inbox):
        with pytest.raises(Asked):
            await ask()


async def test_directory_of_somebody_else_is_left_to_the_server(
    told: tuple[Settings, dict[str, Any]], tmp_path: Path
) -> None:
    settings = _copied(told[0], tmp_path)
    (settings.data_dir / "id").unlink()
    with pytest.raises(Asked):
        await stopped(settings).list()


def _copied(settings: Settings, folder: Path) -> Settings:
    home = folder / "data"
    home.mkdir(mode=0o700)
    for path in settings.data_dir.iterdir():
        if path.is_file():
            (home / path.name).write_bytes(path.read_bytes())
    return settings.model_copy(update={"data_dir": home})


async def test_server_is_asked_where_archived_result_has_another_form(
    told: tuple[Settings, dict[str, Any]], tmp_path: Path
) -> None:
    """As another release may have written it: its chain is whole, and Temporal knows the run."""
    settings = _copied(told[0], tmp_path)
    assert (await stopped(settings).result(DONE)).ok
    with closing(sqlite3.connect(settings.archive_file)) as file, file:
        (text,) = file.execute("SELECT result FROM runs WHERE workflow_id = ?", (DONE,)).fetchone()
        (last,) = file.execute(
            "SELECT hash FROM records WHERE workflow_id = ? ORDER BY seq DESC", (DONE,)
        ).fetchone()
        other = {name: value for name, value in json.loads(text).items() if name != "ok"}
        file.execute(
            "UPDATE runs SET result = ?, head = ? WHERE workflow_id = ?",
            (link_text(other), end_of(last, other), DONE),
        )
    for ask in (stopped(settings).result, stopped(settings).status):
        with pytest.raises(Asked):
            await ask(DONE)


def test_reading_commands_import_little(told: tuple[Settings, dict[str, Any]]) -> None:
    """What takes long to import is not imported by a command that does without it."""
    program = """
import sys
from client.cli.app import execute
for words in (
    "list --agent a", "inbox", "costs --by day", "show done", "steps done", "log done", "result done"
):
    code = execute(words.split())
    slow = (
        name
        for name in (
            "asyncio", "temporalio", "grpc", "pydantic", "rich.console", "workflows.api", "workflows.people",
            "workflows.kernel.machine", "activities.contracts.effects",
        )
        if name in sys.modules
    )
    print("loaded", words, code, *slow)
"""
    variables = {"RATCHET_DATA_DIR": str(told[0].data_dir), "PYTHONPATH": str(Path.cwd())}
    own = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**own, **variables}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    lines = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("loaded ")]
    assert lines == [
        "list --agent a 0", "inbox 0", "costs --by day 0", "show done 0 pydantic rich.console",
        "steps done 0 pydantic rich.console", "log done 0 pydantic rich.console",
        "result done 0 pydantic rich.console",
    ], done.stdout + done.stderr  # fmt: skip


def test_archive_is_found_without_settings(tmp_path: Path) -> None:
    """A directory's archive is opened by its name; what the environment says of another one counts."""
    file = archive_opener(tmp_path)().database
    assert file.where == str(Settings(data_dir=tmp_path).archive_file)
    other = "postgresql://somewhere/else"
    with within(environment(RATCHET_STORE_SECRET="s" * 16, RATCHET_STORE=other)):
        assert "somewhere" in archive_opener(tmp_path)().database.where
    misspelt = within(environment(RATCHET_STOER=other))
    with misspelt, pytest.raises(UsageError, match="did you mean RATCHET_STORE"):
        archive_opener(tmp_path)


async def test_end_before_a_reset_is_not_taken_for_the_end(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive.db")
    first = archive.add(_ended("before", ok=False))
    runs = RunReader(ArchivedRuns(lambda: archive), "here", connect=nobody)
    # the memo has the head of a log that could not be archived when its run ended
    head = Archive(tmp_path / "other.db").add(_ended("after", ok=True)).head
    line = RunLine(
        id="w",
        run_id="reset",
        progress="completed",
        task_queue="q",
        started=datetime.now(UTC),
        log_head=head,
    )
    archived = replace(line, run_id="first", log_head=first.head)
    seen = [one.ok for one in await runs.with_ends([archived, line])]
    archive.add(_ended("after", ok=True))
    seen += [one.ok for one in await runs.with_ends([line])]
    assert seen == [False, None, True]


def _ended(event: str, *, ok: bool) -> ArchiveRequest:
    """The whole log of a run, with its end."""
    record = Record(seq=0, machine="m", state="s", event=event, at=1.0)
    log = (record.model_dump(mode="json"),)
    result = {"ok": ok, "log_head": chain([record])}
    return ArchiveRequest(workflow_id="w", run_id="r", after="", records=log, result=result)
