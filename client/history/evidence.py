"""Evidence of a run that is over, as one file: log, result, what people sent, Temporal's history in short.

`activities/evidence/verify_evidence.py` says what is in it, and checks it. It is gathered from Temporal, and
from the archive where Temporal has forgotten the run, or its first executions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import ArchiveRequest, JsonObject
from activities.contracts.chain import link_text
from activities.evidence import verify_evidence
from activities.evidence.events import as_sent, events_of, payloads_of, public_text, signed
from activities.evidence.verify_evidence import NOT_OF_THE_AGENT, Json, canonical, chained, sha256
from activities.installed import installed_version
from activities.store.archive import end_of
from client.errors import RatchetError, UnknownRun, clear_errors
from client.history.recorded import ARCHIVE, archive_requests
from client.runs.connected import ConnectedReader
from workflows.certificate import CERTIFICATE, of_certificate
from workflows.kernel.log import VERSION, Record

__all__ = ["KeptExecution", "KeptLog", "RunParts", "assembled", "evidence_of", "with_signature"]

MESSAGES = {"decide", "command"}
"""Signals and updates by which people act."""


@dataclass(frozen=True)
class KeptExecution:
    """The history of one of a run's executions, and who had it."""

    run_id: str
    source: Literal["server", "archive"]
    events: Sequence[HistoryEvent]

    @property
    def first_run_id(self) -> str:
        """Of the chain that it belongs to."""
        start = self.events[0].workflow_execution_started_event_attributes
        return start.first_execution_run_id or start.original_execution_run_id

    @property
    def continues(self) -> str:
        """The execution before it; empty for the first."""
        return self.events[0].workflow_execution_started_event_attributes.continued_execution_run_id


@dataclass(frozen=True)
class KeptLog:
    """A log, each record as the JSON text that its hash is made of, and what the run gave back."""

    records: Sequence[str]
    result: Json | None


@dataclass
class RunParts:
    """All that evidence of one run is made of."""

    workflow_id: str
    run_id: str
    """Of the first execution of its chain."""
    log: KeptLog
    executions: Sequence[KeptExecution]
    """From the first that is known to the last."""
    attestations: Sequence[JsonObject] = ()
    """What workers have signed, see `activities/evidence/events.py`."""
    inner: Sequence[Json] = ()
    """The evidence of its inner runs."""
    missing: list[str] = field(default_factory=list)
    """What could not be read, in words."""
    certificate: str | None = None


async def evidence_of(
    agents: ConnectedReader, run: str, *, certificate: str | None = None, key: Ed25519PrivateKey | None = None
) -> Json:
    """The evidence of a run with its inner runs, as JSON; signed where there is a key.

    Args:
        run: its workflow id.
        certificate: the text of what was proven of its machine before, where there is one.

    Raises:
        UnknownRun: neither Temporal nor the archive knows the run.
        RatchetError: it is not over, what the archive has of it was changed, or it did not begin under this
            certificate.
    """
    parts = await _parts(agents, run, await agents.first_run_id(run))
    if certificate is not None:
        _check_certificate(run, parts.log, sha256(certificate))
    parts.certificate = certificate
    pack = await assembled(parts, agents.temporal.data_converter)
    return with_signature(pack, key) if key else pack


def _check_certificate(run: str, log: KeptLog, digest: str) -> None:
    records = [Record.model_validate_json(text) for text in log.records]
    named = of_certificate(records).get(CERTIFICATE)
    if named != digest:
        why = f"it began under {named}" if named else "its first record names none"
        raise RatchetError(f"run {run} did not begin under the certificate {digest}: {why}")


def with_signature(pack: Json, key: Ed25519PrivateKey) -> Json:
    """The file with its head signed."""
    signature = signed(key, verify_evidence.head_content(pack["head"]))
    return {**pack, "signature": {"key": public_text(key), "signature": signature}}


async def assembled(parts: RunParts, converter: DataConverter) -> Json:
    """The evidence file of these parts, not signed. What the converter cannot read becomes missing."""
    log, missing = parts.log, list(parts.missing)
    messages = [one for it in parts.executions for one in await _messages(converter, it, missing)]
    pack: Json = {
        "format": verify_evidence.FORMAT,
        "run": _facts(parts),
        "exported": {"at": datetime.now(UTC).isoformat(timespec="seconds"), "ratchet": installed_version()},
        "log": {
            "records": list(log.records),
            "hashes": chained(log.records),
            "count": len(log.records),
            "result": None if log.result is None else link_text(log.result),
        },
        "messages": {
            "items": messages,
            "hashes": chained(map(canonical, messages)),
            "count": len(messages),
        },
        "history": [_history(one) for one in parts.executions],
        "certificate": parts.certificate,
        "attestations": list(parts.attestations),
        "inner": list(parts.inner),
        "missing": missing,
        "signature": None,
    }
    return {**pack, "head": verify_evidence.head_of(pack)}


def _facts(parts: RunParts) -> Json:
    """Which run it is, of which agent and machine."""
    result, first = parts.log.result or {}, json.loads(parts.log.records[0])
    task: Json = result.get("task") or {}
    agent = {name: value for name, value in task.items() if name not in NOT_OF_THE_AGENT}
    return {
        "workflow_id": parts.workflow_id,
        "run_id": parts.run_id,
        "agent": result.get("agent", ""),
        "agent_digest": sha256(canonical(agent)) if task else "",
        "machine": result.get("machine", first["machine"]),
        "machine_version": result.get("machine_version", first.get("about", {}).get(VERSION, "")),
        "last_execution": parts.executions[-1].run_id if parts.executions else "",
    }


# -- what there is of a run --------------------


async def _parts(agents: ConnectedReader, run: str, run_id: str | None) -> RunParts:
    executions = [one async for one in _executions(agents, run, run_id)][::-1]
    run_id = run_id or (executions[0].first_run_id if executions else None)
    log = await _log(agents, run, run_id, executions)
    origin = str(log.result["run_id"] if log.result else run_id)
    attested = await agents.archive.read(lambda archive: archive.attestations(run, origin))
    known = {one.run_id for one in executions} or attested.keys()
    parts = RunParts(run, origin, log, executions)
    parts.attestations = [one for name, one in attested.items() if name in known]
    parts.inner = [one async for one in _inner(agents, executions, parts.missing)]
    return parts


async def _executions(agents: ConnectedReader, run: str, run_id: str | None) -> AsyncIterator[KeptExecution]:
    """The executions of a run that Temporal or the archive still has, the last one first."""
    kept = await agents.archive.read(lambda archive: archive.histories(run, run_id))
    newest = next(reversed(kept), "")
    if run_id is not None and await agents.first_run_id(run) == run_id:
        described = await agents.description(run)
        if (await agents.describe(run)).is_running:
            raise RatchetError(
                f"run {run} is not over, so there is no evidence of it yet; `ratchet show {run}` shows where "
                "it is"
            )
        newest = described.run_id
    while newest:
        found = await _from_server(agents, run, newest)
        if found is None and newest in kept:
            found = KeptExecution(newest, "archive", History.FromString(kept[newest]).events)
        if found is None:
            return
        yield found
        newest = found.continues


async def _from_server(agents: ConnectedReader, run: str, run_id: str) -> KeptExecution | None:
    """An execution as Temporal has it; None: it does not."""
    try:
        history = await agents.temporal.get_workflow_handle(run, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            return None
        async with clear_errors(agents.where, run):
            raise
    return KeptExecution(run_id, "server", history.events) if history.events else None


def _history(one: KeptExecution) -> Json:
    events = events_of(one.events)
    hashes = chained(map(canonical, events))
    return {
        "execution": one.run_id, "from": one.source, "events": events, "hashes": hashes,
        "count": len(events),
    }  # fmt: skip


# -- the log --------------------


async def _log(
    agents: ConnectedReader, run: str, run_id: str | None, executions: Sequence[KeptExecution]
) -> KeptLog:
    """The log and the result: of the archive, else of what the history has sent there, else of the run.
    Raises UnknownRun."""
    records = await agents.archive.read(lambda archive: archive.records(run, run_id))
    result = await agents.archive.read(lambda archive: archive.result(run, run_id))
    sent = await _sent_log(agents, run, executions)
    if sent.result is not None and result != sent.result:
        # a reset leaves several ends: that of this history is elsewhere in the archive, or not there yet
        ends: tuple[Json, ...] = (sent.result, result or {"was_reset": True})
        head, name = str(sent.result["log_head"]), str(sent.result["run_id"])
        replaced = await agents.archive.read(lambda archive: archive.records_up_to(head, run, name))
        if replaced or (sent.records and any(one["was_reset"] for one in ends)):
            return KeptLog([*map(link_text, replaced)] or sent.records, sent.result)
    if result is not None:
        return KeptLog([*map(link_text, records)], result)  # if it is not the history's, the verifier says so
    if not executions and not records:
        raise UnknownRun(
            f"neither Temporal nor the archive knows run {run}, so there is no evidence of it; "
            "`ratchet list` shows the runs"
        )
    if not (whole := (await agents.log(run, full=True)).records):
        raise RatchetError(f"run {run} ended before it began, so there is nothing to show of it")
    return KeptLog([record.model_dump_json() for record in whole], None)


async def _sent_log(agents: ConnectedReader, run: str, executions: Sequence[KeptExecution]) -> KeptLog:
    """What the histories have of the log, as the run sent it to the archive; no records where some are
    missing, or cannot be read here."""
    sent: dict[int, JsonObject] = {}
    result: Json | None = None
    try:
        for one in executions:
            for request in await archive_requests(agents.temporal, WorkflowHistory(run, list(one.events))):
                sent |= {record["seq"]: record for record in request.records}
                result = request.result or result
    except Exception:  # noqa: BLE001  # a key or a store that is not here: the archive may have it
        return KeptLog([], None)
    is_whole = sorted(sent) == [*range(len(sent))]
    return KeptLog([link_text(sent[seq]) for seq in sorted(sent)] if is_whole else [], result)


# -- what was sent, and to whom --------------------


async def _messages(converter: DataConverter, one: KeptExecution, missing: list[str]) -> list[Json]:
    """What people sent to the run, what the run sent to the archive, and what inner runs told it."""
    found: list[Json] = []
    for event in one.events:
        at = {"execution": one.run_id, "event": event.event_id}
        if not (name := _name_of(event)):
            continue
        try:
            text, is_sent = await _text(converter, event, name)
        except Exception as error:  # noqa: BLE001  # a key or a store that is not here: it is said
            missing.append(f"event {event.event_id} of execution {one.run_id} cannot be read here: {error}")
            continue
        found.append({**at, "name": name, "text": text, "as_sent": is_sent})
    return found


def _name_of(event: HistoryEvent) -> str:
    """What kind of message an event brings; empty: none that counts here."""
    if event.HasField("activity_task_scheduled_event_attributes"):
        kind = event.activity_task_scheduled_event_attributes.activity_type.name
        return ARCHIVE if kind == ARCHIVE else ""
    if event.HasField("child_workflow_execution_completed_event_attributes"):
        return "inner_run"
    signal = event.workflow_execution_signaled_event_attributes.signal_name
    update = event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name
    again = event.workflow_execution_update_admitted_event_attributes.request.input.name  # after a reset
    return next((name for name in (signal, update, again) if name in MESSAGES), "")


async def _text(converter: DataConverter, event: HistoryEvent, name: str) -> tuple[str, bool]:
    """The message, and whether it is what the event holds, to the letter."""
    payloads = payloads_of(event)
    if name == ARCHIVE:
        request = await _decoded(converter, payloads, ArchiveRequest)
        log = chained(map(link_text, request.records), request.after)[-1:] or [request.after]
        end = end_of(log[0], request.result)
        return canonical({"log": log[0], "result": request.result is not None, "end": end}), False
    if name == "inner_run":
        ended = await _decoded(converter, payloads, dict)
        return canonical({one: ended[one] for one in ("workflow_id", "log_head")}), False
    if len(payloads) == 1 and (text := as_sent(payloads[0])) is not None:
        return text, True
    return canonical(await _decoded(converter, payloads, object)), False


async def _decoded(converter: DataConverter, payloads: Sequence[Payload], kind: Any) -> Any:
    return (await converter.decode(payloads, [kind]))[0]


# -- inner runs --------------------


async def _inner(
    agents: ConnectedReader, executions: Iterable[KeptExecution], missing: list[str]
) -> AsyncIterator[Json]:
    """The evidence of each inner run that was started."""
    started: dict[str, str] = {}
    for one in executions:
        for event in one.events:
            child = event.child_workflow_execution_started_event_attributes.workflow_execution
            if child.workflow_id:
                started[child.workflow_id] = child.run_id
    for name, run_id in started.items():
        try:
            inner = await _parts(agents, name, run_id)
            yield await assembled(inner, agents.temporal.data_converter)
        except RatchetError as error:
            missing.append(f"the evidence of inner run {name}: {error}")
