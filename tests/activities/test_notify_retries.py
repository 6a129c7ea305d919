"""`notify` as a real server tries it again: whom an attempt has told, the next one does not tell again."""

from __future__ import annotations

import asyncio
import json
import shlex
from datetime import timedelta
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.contracts_people import Notice, Noticed
from activities.notify import NotifyActivities
from activities.settings import Settings


@workflow.defn
class Tell:
    """Tell people once."""

    @workflow.run
    async def run(self, notice: Notice) -> Noticed:
        noticed: Noticed = await workflow.execute_activity(
            "notify",
            notice,
            result_type=Noticed,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.1), backoff_coefficient=1),
        )
        return noticed


async def test_a_command_that_was_told_is_not_told_again_for_a_webhook_that_fails(
    temporal: Client, tmp_path: Path
) -> None:
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.lower().split("x-ratchet-event: ")[1].split("\r\n")[0])
        status = "503 Busy" if len(asked) < 3 else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = ("/bin/sh", "-c", f"cat >> {shlex.quote(str(tmp_path / 'told'))}")
    worker = Settings(notify_url=f"http://127.0.0.1:{port}/", notify_command=command)
    client = await Client.connect(
        temporal.service_client.config.target_host, data_converter=pydantic_data_converter
    )
    async with Worker(
        client,
        task_queue="telling",
        workflows=[Tell],
        activities=[NotifyActivities(worker).notify],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        notice = Notice(moment="opened", request={"id": "r1"}, run="a")
        noticed = await client.execute_workflow(Tell.run, notice, id="telling", task_queue="telling")
    server.close()
    assert noticed == Noticed(sent=("webhook", "command"))
    assert (len(asked), len(set(asked))) == (3, 1)
    assert json.loads((tmp_path / "told").read_text())["event"] == asked[0]
