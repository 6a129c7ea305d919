"""Garbage collection: what a run needs stays, however old; the rest goes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
)

from activities.settings import Settings
from activities.store.blobs import BlobMissing, BlobStore, Files
from activities.store.stores import Stores
from client.errors import RatchetError
from client.server.garbage import Garbage, delete_garbage, find_garbage
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import Run, begin, calls, decide, eventually, open_request, replayed, task
from worker import build_worker
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentTask
from workflows.people import Approvals, People

LONG = "long material " * 4000
"""Well above what history holds itself."""
ASKING = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}
NOW = timedelta(0)


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),), shutdown_seconds=1
    )


@pytest.fixture
def stores(own: Settings) -> Stores:
    return Stores(own)


@pytest.fixture
async def quiet(own: Settings) -> AsyncIterator[Client]:
    """A server that has no worker."""
    async with real_server(own) as client:
        yield client


def waiting(**more: object) -> AgentTask:
    """A run that asks a person, with long values before and after."""
    script = (calls(("mark_once", {"line": LONG})), "done")
    return task(*script, tools=("mark_once",), **{"goal": LONG, **ASKING, **more})


async def collected(client: Client, stores: Stores, archive: bool = False) -> Garbage:
    """What was deleted, whatever its age."""
    found = await find_garbage(client, stores, NOW, archive=archive)
    await delete_garbage(stores, found)
    return found


async def known(client: Client, *runs: Run) -> None:
    """The server's list of runs, which lags, has these."""
    wanted = {run.id for run in runs}

    async def listed() -> bool:
        return wanted <= {run.id async for run in client.list_workflows()}

    await eventually(listed)


def has(blobs: BlobStore, digest: str) -> bool:
    try:
        return bool(blobs.get(digest))
    except BlobMissing:
        return False


async def test_open_run_goes_on_after_everything_else_is_gone(
    quiet: Client, own: Settings, stores: Stores
) -> None:
    async with build_worker(quiet, own):
        run = await begin(quiet, waiting())
        request = await open_request(run)
    await known(quiet, run)
    orphan = stores.blobs.put(b"nobody needs it")
    needed = {one.digest for one in stores.blobs.list()} - {orphan}
    found = await collected(quiet, stores)
    assert [one.digest for one in found.blobs] == [orphan]
    assert needed
    assert {one.digest for one in stores.blobs.list()} == needed
    own.cache_file.unlink(missing_ok=True)
    async with build_worker(quiet, own):
        await decide(run, "approve", request)
        assert (await run.result()).answer == "done"
        await known(quiet, run)
        await collected(quiet, stores)
        await replayed(run, own)


async def test_blob_that_a_needed_blob_refers_to_is_kept(quiet: Client, stores: Stores) -> None:
    inner = stores.blobs.put(b"the material")
    outer = stores.blobs.put(f'{{"digest": "{inner}"}}'.encode())
    other = stores.blobs.put(b"other material")
    run = await begin(quiet, waiting(goal=f"read {outer}"))
    await known(quiet, run)
    assert [one.digest for one in (await collected(quiet, stores)).blobs] == [other]
    assert has(stores.blobs, inner)


async def test_new_blob_is_kept_and_a_search_deletes_nothing(quiet: Client, stores: Stores) -> None:
    digest = stores.blobs.put(b"nobody needs it")
    assert (await find_garbage(quiet, stores, timedelta(days=1))).blobs == ()
    assert [one.digest for one in (await find_garbage(quiet, stores, NOW)).blobs] == [digest]
    assert has(stores.blobs, digest)


async def test_no_history_or_blob_is_read_where_none_is_old(quiet: Client, stores: Stores) -> None:
    digest = stores.blobs.put(b"the material")
    run = await begin(quiet, waiting(goal=f"read {digest}"))
    await known(quiet, run)
    Files(stores.settings.blobs_dir).path(f"{digest[:2]}/{digest[2:]}").write_bytes(b"damaged")
    found = await find_garbage(quiet, stores, timedelta(days=1))
    assert (found.blobs, found.executions) == ((), 1)
    with pytest.raises(RatchetError, match=f"nothing was deleted: .*{digest}.* have changed"):
        await find_garbage(quiet, stores, NOW)


async def test_schedule_keeps_the_task_of_its_runs(quiet: Client, stores: Stores) -> None:
    start = ScheduleActionStartWorkflow(WORKFLOW_TYPE, waiting(), id="scheduled", task_queue=TASK_QUEUE)
    schedule = await quiet.create_schedule(f"s-{uuid.uuid4().hex}", Schedule(start, ScheduleSpec()))

    async def listed() -> bool:
        return schedule.id in [one.id async for one in await quiet.list_schedules()]

    await eventually(listed)
    assert (await collected(quiet, stores)).blobs == ()
    assert list(stores.blobs.list())


@pytest.mark.exhaustive  # the server takes half a minute to delete a run
async def test_archive_keeps_what_it_refers_to_until_asked_for(
    quiet: Client, own: Settings, stores: Stores
) -> None:
    async with build_worker(quiet, own):
        run = await begin(quiet, waiting())
        await decide(run, "approve")
        await run.result()
        await known(quiet, run)
        assert (await collected(quiet, stores, archive=True)).archived == (), "Temporal knows the run"
        assert (await collected(quiet, stores)).blobs == ()
        await quiet.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=quiet.namespace, workflow_execution=WorkflowExecution(workflow_id=run.id)
            )
        )

        async def gone() -> bool:
            return run.id not in [one.id async for one in quiet.list_workflows()]

        await eventually(gone)
    assert len((await collected(quiet, stores)).blobs) < len(list(stores.blobs.list()))
    assert stores.archive.records(run.id)
    found = await collected(quiet, stores, archive=True)
    assert [name for name, _ in found.archived] == [run.id]
    assert (stores.archive.records(run.id), list(stores.blobs.list())) == ((), [])


async def test_store_of_another_server_is_left_alone(quiet: Client, own: Settings, stores: Stores) -> None:
    digest = stores.blobs.put(b"perhaps the other one needs it")
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(real_server(own))
        async with build_worker(other, own):
            pass
    with pytest.raises(RatchetError, match=r"nothing was deleted: .* --forget [0-9a-f-]{36}") as caught:
        await find_garbage(quiet, stores, NOW)
    assert has(stores.blobs, digest)
    gone = str(caught.value).rpartition(" ")[2]
    await delete_garbage(stores, await find_garbage(quiet, stores, NOW, forget=[gone]))
    assert not has(stores.blobs, digest)
    assert stores.namespaces() == {}
