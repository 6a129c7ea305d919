"""Temporal's history as evidence has it: what tells each event apart, and a digest of all that it holds."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from activities.contracts import ArchiveRequest, JsonObject
from activities.evidence.verify_evidence import Json, attested_content, canonical, chained

__all__ = ["as_sent", "events_of", "payloads_of", "public_text", "attested"]

FIELDS: dict[str, dict[str, str]] = {
    "workflow_execution_started": {
        "name": "workflow_type.name", "key": "workflow_id", "first": "first_execution_run_id",
        "original": "original_execution_run_id", "continues": "continued_execution_run_id",
    },
    "workflow_execution_continued_as_new": {"next": "new_execution_run_id"},
    "workflow_execution_signaled": {"name": "signal_name"},
    "workflow_execution_update_accepted": {"name": "accepted_request.input.name"},
    "workflow_execution_update_admitted": {"name": "request.input.name"},
    "activity_task_scheduled": {"name": "activity_type.name", "key": "activity_id"},
    "start_child_workflow_execution_initiated": {"name": "workflow_type.name", "key": "workflow_id"},
    "signal_external_workflow_execution_initiated": {
        "name": "signal_name", "key": "workflow_execution.workflow_id",
    },
    "request_cancel_external_workflow_execution_initiated": {"key": "workflow_execution.workflow_id"},
}  # fmt: skip
"""What of an event's attributes stands beside its digest."""
OF_ACTIVITIES = {
    f"activity_task_{end}" for end in ("started", "completed", "failed", "timed_out", "canceled")
}
"""Events that name the one with which their activity was scheduled."""
OF_CHILDREN = {
    f"child_workflow_execution_{end}"
    for end in ("started", "completed", "failed", "timed_out", "canceled", "terminated")
} | {"start_child_workflow_execution_failed"}
"""The same of an inner run."""
PAYLOADS = ("input", "result", "accepted_request.input.args", "request.input.args")
"""Attributes whose payloads have digests of their own, so that a text can be held against them."""


def events_of(history: Iterable[HistoryEvent]) -> list[Json]:
    """The events as evidence has them, in order."""
    return [_event(event) for event in history]


def _event(event: HistoryEvent) -> Json:
    kind = str(event.WhichOneof("attributes") or "").removesuffix("_event_attributes")
    attributes: Any = getattr(event, f"{kind}_event_attributes", None)
    fields = dict(FIELDS.get(kind, {}))
    of = (
        "scheduled_event_id" if kind in OF_ACTIVITIES else "initiated_event_id" if kind in OF_CHILDREN else ""
    )
    if kind in OF_CHILDREN and kind != "start_child_workflow_execution_failed":
        fields |= {"key": "workflow_execution.workflow_id", "run_id": "workflow_execution.run_id"}
    found: Json = {
        "id": event.event_id,
        "type": EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").title().replace("_", ""),
        "time": event.event_time.ToJsonString(),
        "digest": hashlib.sha256(event.SerializeToString(deterministic=True)).hexdigest(),
    }
    found |= {name: value for name, path in fields.items() if (value := _at(attributes, path))}
    if of:
        found["of"] = getattr(attributes, of)
    if digests := [hashlib.sha256(one.data).hexdigest() for one in payloads_of(event)]:
        found["payloads"] = digests
    return found


def _at(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = getattr(message, name, None)
    return message


def payloads_of(event: HistoryEvent) -> Sequence[Payload]:
    """What an event brings into a run or out of it."""
    attributes = getattr(event, str(event.WhichOneof("attributes") or ""), None)
    return [one for path in PAYLOADS for one in getattr(_at(attributes, path), "payloads", ())]


def as_sent(payload: Payload) -> str | None:
    """The JSON that a payload holds as it is; None: it is encrypted, or kept elsewhere."""
    plain = payload.metadata.get("encoding") == b"json/plain" and not payload.external_payloads
    return payload.data.decode() if plain else None


# -- what a worker attests --------------------


def public_text(key: Ed25519PrivateKey) -> str:
    """The public half of a key: 32 bytes in base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def signed(key: Ed25519PrivateKey, content: bytes) -> str:
    """The signature in base64."""
    return base64.b64encode(key.sign(content)).decode()


def attested(
    key: Ed25519PrivateKey, part: ArchiveRequest, log: str, execution: str, history: Sequence[HistoryEvent]
) -> JsonObject | None:
    """What a worker signs of a part of a log that it has archived, with the history of the execution that
    sent it; None: that history is of another run, so whoever sent the log is not the run.

    `log` is the end of the log's chain, after the result where the part brings it.
    """
    start = history[0].workflow_execution_started_event_attributes
    first = start.first_execution_run_id or start.original_execution_run_id
    if (start.workflow_id, first) != (part.workflow_id, part.run_id):
        return None
    events = events_of(history)
    statement = canonical({
        "workflow_id": part.workflow_id,
        "run_id": part.run_id,
        "execution": execution,
        "log": log,
        "result": part.result is not None,
        "events": len(events),
        "history": chained(map(canonical, events))[-1],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    return {
        "statement": statement,
        "key": public_text(key),
        "signature": signed(key, attested_content(statement)),
    }
