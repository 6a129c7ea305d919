"""Telling people that a run waits, on the real server: it never holds the run up."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType

from activities.settings import Settings
from tests.conftest import TOOLS, real_server
from tests.people.temporalkit import Person, asking_task, begun, decision, noted, reached
from worker import build_worker
from workflows.people import Asking, Group, People

DESKS = {"desk": Group(members=("ann",)), "boss": Group(members=("bob",))}
APPEND = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read().strip() + chr(10))"


def settings_of(home: Path, **more: Any) -> Settings:
    """A worker's, with its hooks."""
    tools = (str(TOOLS),)
    return Settings(data_dir=home / ".ratchet", files_root=home, modules=tools, shutdown_seconds=1, **more)


async def test_a_command_is_told_when_a_request_opens_nears_its_deadline_and_closes(tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    own = settings_of(tmp_path, notify_command=(sys.executable, "-c", APPEND, str(told)))
    people = People(
        asking=Asking(deadline_seconds=60, warn_seconds=59), notify=("opened", "expiring", "closed")
    )
    async with real_server(own) as client, build_worker(client, own):
        handle, request = await begun(client, asking_task("told", people=people))

        async def warned() -> bool:
            return told.exists() and told.read_text().count("\n") == 2

        await reached(warned)
        await Person.of(client).signal(handle, "decide", decision(request, "approve"))
        await handle.result()
    notices = [json.loads(line) for line in told.read_text().splitlines()]
    assert [notice["moment"] for notice in notices] == ["opened", "expiring", "closed"]
    assert [notice["request"]["outcome"] for notice in notices] == ["open", "open", "approved"]
    assert {notice["run"] for notice in notices} == {handle.id}
    assert notices[0]["request"]["digest"] == request.digest
    assert len({notice["event"] for notice in notices}) == 3


async def test_a_webhook_that_is_down_holds_no_deadline_up(tmp_path: Path) -> None:
    """Also when the same group is asked again while its first notice is still tried."""
    own = settings_of(tmp_path, notify_url="http://127.0.0.1:9/nobody")
    asking = Asking(
        group="desk", deadline_seconds=1, at_deadline="escalate", escalate_to=("boss", "desk", "boss")
    )
    people = People(groups=DESKS, asking=asking, notify=("opened", "closed"))
    async with real_server(own) as client, build_worker(client, own):
        handle, request = await begun(client, asking_task("unheard", people=people))
        async with asyncio.timeout(15):
            (expired,) = await reached(lambda: noted(handle, "Expired"))
        assert expired.started - request.created < 10
        events = (await handle.fetch_history()).events
        assert not [e for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]
        await handle.terminate("its notices would be tried for half a minute")
