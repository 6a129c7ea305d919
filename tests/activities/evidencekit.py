"""Evidence of recorded runs, made in memory as `ratchet export --evidence` makes it, and changes of it."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.contracts import ArchiveRequest
from activities.contracts.chain import link_text
from activities.evidence.events import attested
from activities.evidence.verify_evidence import canonical, chained, head_of, sha256
from activities.store.archive import end_of
from client.history.evidence import KeptExecution, KeptLog, RunParts, assembled
from tests.server.record import HISTORIES
from workflows.certificate import CERTIFICATE, DIFFERS

__all__ = ["CHANGES", "KEY", "PROOF", "RUNS", "Change", "evidence", "forged", "other", "parts_of", "retold"]

Json = dict[str, Any]
RECORDED = json.loads(gzip.decompress(HISTORIES.read_bytes()))
KEY = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
"""Of the worker."""
PROOF = '{"complete": true, "format": "ratchet certificate 1", "subject": {"machine": "tools", "code": {}}}'
"""As much of a certificate as the verifier reads."""
RUNS = {
    "edited call": ["edit"],
    "signals": ["signals"],
    "commands": ["commands"],
    "unknown outcome": ["unknown"],
    "cancelled": ["cancelled"],
    "chain": [f"chain {number}" for number in range(1, 5)],
    "inner runs": ["outer"],
}
"""Recorded runs, by their executions; the histories hold the whole log of each."""


def payload_of(event: Any) -> Any:
    return event.activity_task_scheduled_event_attributes.input.payloads[0]


def archiving(history: WorkflowHistory) -> Any:
    """The event by which an execution sent the end of its log to the archive."""
    calls = [
        event
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "archive_log"
    ]
    return calls[-1]


def parts_of(names: Sequence[str], certificate: str | None = None, differs: Sequence[str] = ()) -> RunParts:
    """A recorded run, signed by its worker; with a certificate as if it had begun under one, and this had
    differed."""
    histories = [WorkflowHistory.from_json(*RECORDED[name]) for name in names]
    executions, attestations, records = list[KeptExecution](), list[Json](), list[str]()
    result: Json | None = None
    for history in histories:
        event = archiving(history)
        sent = json.loads(payload_of(event).data)
        if certificate and not records:
            about = sent["records"][0].setdefault("about", {})
            about[CERTIFICATE] = sha256(certificate)
            if differs:
                about[DIFFERS] = list(differs)
            proof = json.loads(certificate)
            carried = {**proof["subject"], "complete": proof["complete"], "digest": about[CERTIFICATE]}
            sent["result"]["task"]["certificate"] = carried
            sent["result"]["log_head"] = chained(map(link_text, sent["records"]))[-1]
            payload_of(event).data = json.dumps(sent).encode()
        records += map(link_text, sent["records"])
        result = sent.get("result")
        run_id = history.events[0].workflow_execution_started_event_attributes.original_execution_run_id
        executions.append(KeptExecution(run_id, "server", history.events))
        request, before = ArchiveRequest.model_validate(sent), history.events[: event.event_id]
        end = end_of(chained(records)[-1], result)
        found = attested(KEY, request, end, run_id, before)
        assert found
        attestations.append(found)
    log = KeptLog(records, result)
    run = RunParts(histories[0].workflow_id, executions[0].run_id, log, executions, attestations)
    run.certificate = certificate
    return run


async def evidence(name: str, certificate: str | None = None, differs: Sequence[str] = ()) -> Json:
    """The evidence of a recorded run, not signed."""
    parts = parts_of(RUNS[name], certificate, differs)
    if name == "inner runs":
        parts.inner = [await assembled(parts_of(["inner"]), pydantic_data_converter)]
    return await assembled(parts, pydantic_data_converter)


def forged(pack: Json) -> Json:
    """The file with all hashes made anew, as whoever changes one can do."""
    pack = copy.deepcopy(pack)
    pack["inner"] = [forged(one) for one in pack["inner"]]
    log, messages = pack["log"], pack["messages"]
    log |= {"hashes": chained(log["records"]), "count": len(log["records"])}
    texts = [*map(canonical, messages["items"])]
    messages |= {"hashes": chained(texts), "count": len(texts)}
    for one in pack["history"]:
        events = [*map(canonical, one["events"])]
        one |= {"hashes": chained(events), "count": len(events)}
    return {**pack, "head": head_of(pack)}


def retold(pack: Json, change: Callable[[Json, list[Json]], Any]) -> Json:
    """What somebody with the worker's key makes of a run of one execution: `change` gets the file and its
    records, and all that hangs on them is made anew. What people signed stays as it is."""
    pack = copy.deepcopy({**pack, "attestations": [], "signature": None})
    records = [json.loads(text) for text in pack["log"]["records"]]
    change(pack, records)
    for number, record in enumerate(records):
        record["seq"] = number
    texts = [json.dumps(record) for record in records]
    pack["log"]["records"], head = texts, chained(texts)[-1]
    if pack["log"]["result"] is not None:
        closed = [record["about"] for record in records if "outcome" in record.get("about", {})]
        pairs = [(one["request"], one["outcome"]) for one in closed]
        result = json.loads(pack["log"]["result"])
        result |= {"records": len(texts), "log_head": head}
        result["decisions"] = [
            one for one in result["decisions"] if (one["request"], one["outcome"]) in pairs
        ]
        pack["log"]["result"] = json.dumps(result)
        end = chained([*texts, pack["log"]["result"]])[-1]
        for item in pack["messages"]["items"]:
            if item["name"] == "archive_log":
                item["text"] = canonical({"log": head, "result": True, "end": end})
    return forged(pack)


# -- changes --------------------


def other(value: Any, random: Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + random.choice([1, -1, 1000])
    if isinstance(value, str):
        at = random.randrange(len(value) + 1)
        return value[:at] + random.choice("0aX ") + value[at:] if random.random() < 0.7 else f"not {value}"
    if isinstance(value, list):
        return [*value, "more"]
    return {**value, "more": 1}


def edited(value: Json, random: Random) -> Json:
    """An object with another value in one place."""
    name = random.choice(sorted(value))
    inside = value[name]
    if isinstance(inside, dict) and inside and random.random() < 0.8:
        return {**value, name: edited(inside, random)}
    return {**value, name: other(inside, random)}


def edited_text(text: str, random: Random) -> str:
    return json.dumps(edited(json.loads(text), random))


Change = Callable[[Json, Random], str]
"""Changes a file in place; what the verifier must name."""


def where(execution: Json, index: int) -> str:
    """How the verifier names an event."""
    return re.escape(f"execution {execution['execution']}: event {index + 1}")


def record_is_edited(pack: Json, random: Random) -> str:
    records = pack["log"]["records"]
    at = random.randrange(len(records))
    records[at] = edited_text(records[at], random)
    return f"record {at}"


def record_is_deleted(pack: Json, random: Random) -> str:
    at = random.randrange(pack["log"]["count"])
    del pack["log"]["records"][at], pack["log"]["hashes"][at]
    return f"record {at}"


def records_are_swapped(pack: Json, random: Random) -> str:
    first, second = sorted(random.sample(range(pack["log"]["count"]), 2))
    for items in (pack["log"]["records"], pack["log"]["hashes"]):
        items[first], items[second] = items[second], items[first]
    return f"record {first}"


def record_comes_twice(pack: Json, random: Random) -> str:
    at = random.randrange(pack["log"]["count"])
    for items in (pack["log"]["records"], pack["log"]["hashes"]):
        items.insert(at, items[at])
    return f"record {at + 1}"


def result_is_edited(pack: Json, random: Random) -> str:
    pack["log"]["result"] = edited_text(pack["log"]["result"], random)
    return "result"


def result_is_deleted(pack: Json, random: Random) -> str:
    pack["log"]["result"] = None
    return "result"


def message_is_edited(pack: Json, random: Random) -> str:
    at = random.randrange(pack["messages"]["count"])
    pack["messages"]["items"][at] = edited(pack["messages"]["items"][at], random)
    return f"message {at}"


def message_is_deleted(pack: Json, random: Random) -> str:
    at = random.randrange(pack["messages"]["count"])
    del pack["messages"]["items"][at], pack["messages"]["hashes"][at]
    return f"message {at}"


def event_is_edited(pack: Json, random: Random) -> str:
    one = random.choice(pack["history"])
    at = random.randrange(one["count"])
    one["events"][at] = edited(one["events"][at], random)
    return where(one, at)


def event_is_deleted(pack: Json, random: Random) -> str:
    one = random.choice(pack["history"])
    at = random.randrange(one["count"])
    del one["events"][at], one["hashes"][at]
    return where(one, at)


def events_are_swapped(pack: Json, random: Random) -> str:
    one = random.choice(pack["history"])
    first, second = sorted(random.sample(range(one["count"]), 2))
    for items in (one["events"], one["hashes"]):
        items[first], items[second] = items[second], items[first]
    return where(one, first)


def hash_is_edited(pack: Json, random: Random) -> str:
    at = random.randrange(pack["log"]["count"])
    pack["log"]["hashes"][at] = other(pack["log"]["hashes"][at], random)
    return f"record {at}"


def execution_is_deleted(pack: Json, random: Random) -> str:
    at = random.randrange(len(pack["history"]))
    del pack["history"][at]
    return r"attestation \d+"


def certificate_is_edited(pack: Json, random: Random) -> str:
    pack["certificate"] = other(pack["certificate"] or "{}", random)
    return "certificate"


def attestation_is_edited(pack: Json, random: Random) -> str:
    at = random.randrange(len(pack["attestations"]))
    one = pack["attestations"][at]
    name = random.choice(["statement", "signature"])
    one[name] = edited_text(one[name], random) if name == "statement" else other(one[name], random)
    return f"attestation {at}"


def facts_are_edited(pack: Json, random: Random) -> str:
    name = random.choice(["workflow_id", "run_id", "agent", "machine", "machine_version", "agent_digest"])
    pack["run"][name] = other(pack["run"][name], random)
    return "agent" if name == "agent_digest" else "result"


CHANGES: list[Change] = [
    record_is_edited, record_is_deleted, records_are_swapped, record_comes_twice, result_is_edited,
    result_is_deleted, message_is_edited, message_is_deleted, event_is_edited, event_is_deleted,
    events_are_swapped, hash_is_edited, execution_is_deleted, certificate_is_edited, attestation_is_edited,
    facts_are_edited,
]  # fmt: skip
