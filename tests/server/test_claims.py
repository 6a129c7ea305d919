"""Claims on stored data that somebody else made are refused, and a genuine one waits for its data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from activities.settings import Settings
from activities.store.blobs import BlobStore, Files
from activities.store.converter import data_converter
from activities.store.secret import StoreSecret
from activities.store.stores import Stores
from client.runs.pending import bug_in
from client.sdk.material import material_for
from tests.logs import captured_logs
from tests.server.trials import Run, begin, calls, eventually, log_of, open_request, replayed, task, until
from workflows.api import Limits
from workflows.people import Approvals, People

REFERENCE = b"temporal.api.sdk.v1.ExternalStorageReference"
REFUSED = "claim on stored data that this store did not make"
Forge = Callable[["Forger"], Payload]


class Forger:
    """Somebody with Temporal's own client, who has seen this genuine claim in a history."""

    def __init__(self, genuine: Payload, other: Payload, foreign: Payload) -> None:
        self.genuine, self.other, self.foreign = genuine, other, foreign

    @property
    def digest(self) -> str:
        """Of the data."""
        return str(json.loads(self.genuine.data)["claimData"]["sha256"])

    def claim(self, metadata: dict[str, bytes] | None = None, **changed: Any) -> Payload:
        """The genuine claim, changed."""
        body = json.loads(self.genuine.data)
        body["claimData"] |= changed
        return reference(body, metadata)


def reference(body: Any, metadata: dict[str, bytes] | None = None) -> Payload:
    marks = {"encoding": b"json/protobuf", "messageType": REFERENCE} | (metadata or {})
    return Payload(metadata=marks, data=json.dumps(body).encode())


BARE = {"driverName": "ratchet-blobs"}
LEGACY = {"driver_name": "ratchet-blobs", "driver_claim": {"claim_data": {"sha256": "0" * 64}}}
FORGED: dict[str, Forge] = {
    "random digest": lambda f: f.claim(sha256="0" * 64),
    "unsigned": lambda f: reference({**BARE, "claimData": {"sha256": f.digest}}),
    "wrong signature": lambda f: f.claim(signature="0" * 32),
    "signature not of ASCII": lambda f: f.claim(signature="ä" * 32),
    "signature of another blob": lambda f: f.claim(
        signature=json.loads(f.other.data)["claimData"]["signature"]
    ),
    "more fields": lambda f: f.claim(path="../../etc/passwd"),
    "of another store": lambda f: f.foreign,
    "of another driver": lambda f: reference({**json.loads(f.genuine.data), "driverName": "s3"}),
    "no driver": lambda f: reference({"claimData": {"sha256": "0" * 64}}),
    "no fields": lambda f: reference(BARE),
    "nothing": lambda f: reference({}),
    "wrong types": lambda f: reference({"driverName": 7, "claimData": ["x"]}),
    "not JSON": lambda f: Payload(metadata=f.genuine.metadata, data=b"{"),
    "huge": lambda f: f.claim(padding="x" * 1_000_000),
    "older kind": lambda f: reference(LEGACY, {"encoding": b"json/external-storage-reference"}),
    "older kind, not JSON": lambda f: Payload(
        metadata={"encoding": b"json/external-storage-reference"}, data=b"{"
    ),
    "older kind, wrong types": lambda f: reference([1], {"encoding": b"json/external-storage-reference"}),
    "marked value": lambda f: Payload(
        metadata={"encoding": b"json/plain", "__temporal_external_storage_reference": b"true"}, data=b"{}"
    ),
    "our own mark": lambda f: Payload(metadata={"encoding": b"ratchet/unsigned-claim"}),
}  # fmt: skip


@pytest.fixture(scope="module")
async def forger(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Forger:
    """It has claims of the tests' store, and of one of its own."""
    folders = (settings.blobs_dir, tmp_path_factory.mktemp("foreign") / "blobs")
    own, foreign = [data_converter((BlobStore(one), StoreSecret(one))) for one in folders]
    genuine, other, strange = [
        (await one.encode([{"command": "abort", "text": letter * 20_000}]))[0]
        for one, letter in ((own, "a"), (own, "b"), (foreign, "a"))
    ]
    return Forger(genuine, other, strange)


@pytest.fixture(scope="module")
async def plain(working: Client) -> Client:
    """Temporal's own client."""
    return Client(working.service_client, namespace=working.namespace, data_converter=DataConverter.default)


@pytest.fixture(scope="module")
async def waiting(working: Client) -> AsyncIterator[Run]:
    """A run that waits for a person."""
    asks = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}
    run = await begin(
        working, task(calls(("mark_once", {"line": "x"})), "done", tools=("mark_once",), **asks)
    )
    await open_request(run)
    yield run
    await run.terminate()


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("message", ["decide", "command"])
async def test_forged_claim_in_a_signal_is_recorded(
    name: str, message: str, forger: Forger, plain: Client, waiting: Run
) -> None:
    before = len(await log_of(waiting))
    await plain.get_workflow_handle(waiting.id).signal(message, RawValue(FORGED[name](forger)))

    async def recorded() -> list[Any]:
        return (await log_of(waiting))[before:]

    (record,) = await eventually(recorded)
    assert record.event == "UnusableSignal"
    assert REFUSED in (record.error or "")


@pytest.mark.parametrize("name", FORGED)
async def test_forged_claim_in_update_query_and_start_is_refused(
    name: str, forger: Forger, plain: Client, waiting: Run
) -> None:
    claim = RawValue(FORGED[name](forger))
    handle = plain.get_workflow_handle(waiting.id)
    with pytest.raises(WorkflowUpdateFailedError) as updated:
        await handle.execute_update("command", claim)
    assert REFUSED in str(updated.value.cause)
    with pytest.raises(WorkflowQueryFailedError, match=REFUSED):
        await handle.query("log", claim)
    with pytest.raises(WorkflowFailureError) as started:
        await (await begin(plain, claim)).result()
    assert REFUSED in str(started.value.cause)


async def test_run_with_forged_claims_goes_on_and_replays(
    forger: Forger, plain: Client, working: Client, settings: Settings
) -> None:
    run = await begin(working, task(calls(("mark", {"line": "x", "seconds": 0.2})), "done"))
    for forged in FORGED.values():
        await plain.get_workflow_handle(run.id).signal("command", RawValue(forged(forger)))
    result = await run.result()
    assert (result.exit_reason, result.answer) == ("stop", "done")
    await replayed(run, settings)


async def test_run_waits_for_material_that_lies_elsewhere(
    working: Client, settings: Settings, tmp_path: Path
) -> None:
    """As of `ratchet task` with another directory: the run takes it as soon as it is there."""
    text = "long material " * 20_000
    material = await material_for(text, BlobStore(tmp_path))
    scripted = "```repl\nFINAL(str(context_len()))\n```"
    run = await begin(working, task(scripted, machine="code", tools=(), goal="count", material=material))

    async def waits() -> bool:
        events = (await run.fetch_history()).events
        return any(one.HasField("timer_started_event_attributes") for one in events)

    await eventually(waits)
    await material_for(text, Stores(settings).sealed)
    assert (await run.result()).answer == str(len(text))


async def test_wait_for_material_meets_the_limit_of_seconds(working: Client, tmp_path: Path) -> None:
    material = await material_for("other material " * 20_000, BlobStore(tmp_path))
    limits = Limits(seconds=4)
    given = task("```repl\nFINAL('x')\n```", machine="code", tools=(), material=material, limits=limits)
    result = await asyncio.wait_for((await begin(working, given)).result(), 60)
    assert (result.exit_reason, result.counters["seconds"] >= 4) == ("limit", True)


async def test_genuine_claim_waits_until_its_data_are_restored(
    forger: Forger, plain: Client, working: Client, settings: Settings
) -> None:
    digest = forger.digest
    path = Files(settings.blobs_dir).path(f"{digest[:2]}/{digest[2:]}")
    aside = path.rename(Path(f"{path}.lost"))
    run = await begin(working, task(calls(("mark", {"line": "x", "seconds": 1})), "done"))
    with captured_logs() as lines:
        await plain.get_workflow_handle(run.id).signal("command", RawValue(forger.genuine))
        problem = await eventually(lambda: bug_in(working, run.id))
    assert digest in next(line["error"] for line in lines if line["event"] == "store.blob_unusable")
    assert f"no blob {digest}" in problem
    assert "restore it from a backup" in problem
    aside.rename(path)
    await until(run, lambda status: status.exit_reason == "aborted")
