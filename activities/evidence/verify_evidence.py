"""Check an evidence file of a Ratchet run: `python verify_evidence.py FILE [--key PUBLIC_KEY]...`

It needs Python 3.11 and the package `cryptography`, and nothing of Ratchet: copy this one file to where the
evidence is checked. `ratchet verify` runs the same code. Exit code 0: nothing is wrong; 1: something is, and
a line names it, also where the JSON is no evidence at all; 2: nothing was checked, as the file or a key
cannot be read. What each line proves, and what none can prove, is in docs/evidence.md.

A file is JSON. Each of its lists (the log's records, what people sent, the events of each of Temporal's
histories) is a hash chain: the hash of an item is SHA-256 over the hash before it, a line feed and the item's
text. `head` is one hash over all of them. Whoever changes the file can make all hashes anew: only a signature
under the head, with a key that you know from elsewhere, shows that nobody did. So does what the worker has
signed when it archived the log (an attestation), for the log, the result, and the history so far.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fnmatch
import functools
import hashlib
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = [
    "FORMAT", "NOT_OF_THE_AGENT", "SMALL_ORDER", "SMALL_ORDER_POINTS", "Finding", "Json", "attested_content",
    "canonical", "chained", "check", "head_content", "head_of", "is_of_small_order", "key_of", "main",
    "sha256", "summary", "wrong",
]  # fmt: skip

KIND = "ratchet evidence "
FORMAT = f"{KIND}1"
Json = dict[str, Any]
Verdict = Literal["ok", "wrong", "unknown"]
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
"""What reading a file raises that is not in the form of one."""

WORKFLOW = "AgentWorkflow"
"""Temporal's type of every run."""
NOT_MADE = {"rejected", "expired", "unknown_tool", "bad_arguments", "depth_limit", "inner_machine"}
"""Errors of calls that were not made, as the log has them."""
REFUSED = {"rejected", "expired"}
"""Those of them that no call may have been made with."""
CALLS = {"call_tool", "run_code", "read_artifacts"}
"""Activities that the log has by their place."""
OF_CALLS = {"block_call", "reconcile_tool"}
"""Activities about a call that was made before."""
OF_RATCHET = {"describe_tools", "archive_log", "read_log"}
"""Activities that only read tools' descriptions, and write and read the log."""
NO_ACTIVITY = {"ask_person", "together", "say", "more"}
"""Kinds of what the log calls answered that is no activity."""
TO_OTHERS = {
    "SignalExternalWorkflowExecutionInitiated",
    "RequestCancelExternalWorkflowExecutionInitiated",
}
FOREIGN = {"MarkerRecorded", "NexusOperationScheduled"}
"""Events by which a workflow does what no run of Ratchet does."""
NOT_OF_THE_AGENT = {
    "goal", "material", "values", "depth", "spent_above_usd", "labels_above", "bounds", "fork", "carry",
}  # fmt: skip
"""Fields of a task that are of one run."""
UNSAID: dict[str, Json] = {
    "decide": {
        "id": "", "by": "", "made_at": None, "text": "", "arguments": None, "amounts": {},
        "standing_approval": None,
    },
    "command": {
        "id": "", "by": "", "text": "", "at_once": False, "step": None, "compensate": False, "limits": {},
    },
}  # fmt: skip
"""Fields of a message that are not signed while they have these values."""
OUTCOMES = {
    "approve": "approved", "reject": "rejected", "edit": "edited", "answer": "answered",
    "resume": "resumed", "retry": "retried", "topup": "topped_up", "finish": "finished", "abort": "aborted",
}  # fmt: skip
"""How a request is closed by each decision."""
IMMEDIATE = {"reject", "abort"}
"""Decisions that one person makes, whatever the quorum."""
CLOSING = {"Expired", "Withdrawn"}
"""Events that close a request without a decision."""
OF_REQUESTS = {"Requested", "Escalated", "Voted", "Decided", *CLOSING}
"""Those by which one is opened, changed and closed."""
ASKING = {"always", "first_time"}
"""Modes of an approval with which people are asked."""
NEVER_UNASKED = {*ASKING, "reject"}
"""Those with which no call is made unasked."""
EFFECTS = ("pure", "read", "idempotent", "keyed", "unsafe")
"""Of tools."""
HARMLESS = ("pure", "read")
"""Effects of tools whose calls the result does not name."""
RESULT_CALLS = 1_000
"""The most calls that it names."""
USUAL_MODES = {"unsafe": "always"}
"""Those of effects that an agent does not name."""
COMMENT_CHARS = 1_000
"""Characters of a person's text in the record of their decision."""
REASON_CHARS = 2_000
"""Characters of the reason of a record that ends a run."""
OBEYED = {
    "Paused": "pause", "Resumed": "resume", "Steered": "steer", "LimitsSet": "limits",
    "RolledBack": "rollback",
}  # fmt: skip
"""Events by which a command is obeyed, with the command."""
UNNAMED = {"Closed": "abort", "Compensated": "rollback"}
"""Others, whose record does not name it."""
PASSED_DOWN = {"pause", "resume"}
"""Commands that a run passes to its inner runs, with the signature for the run above."""
AFTER_THE_END = {"RefusedCommand", "RefusedDecision", "Withdrawn"}
"""Events that may follow on the one that ends a run."""
VERIFIED = " (verified)"
"""How the log marks whose signature was checked."""


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, and how it came out."""

    verdict: Verdict
    """`unknown`: it can be shown neither way from this file."""
    what: str
    """Such as `log`, or the part that is wrong: `record 17`."""
    text: str


def ok(what: str, text: str) -> Finding:
    """It was checked and is as it should be."""
    return Finding("ok", what, text)


def wrong(what: str, text: str) -> Finding:
    """It was checked and is not."""
    return Finding("wrong", what, text)


def unknown(what: str, text: str) -> Finding:
    """It cannot be checked with what is here."""
    return Finding("unknown", what, text)


def counted(number: int, what: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


# -- texts and hashes --------------------


def link(before: str, text: str) -> str:
    """The hash of an item in its chain."""
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def chained(texts: Iterable[str], before: str = "") -> list[str]:
    """The hash of each item."""
    hashes = []
    for text in texts:
        before = link(before, text)
        hashes.append(before)
    return hashes


def sha256(text: str) -> str:
    """Of the text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: Any) -> str:
    """A value as canonical JSON (JCS, RFC 8785). A whole number beyond 2^53 is the text of its digits."""
    match value:
        case dict():
            keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
            return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in keys) + "}"
        case list():
            return "[" + ",".join(map(canonical, value)) + "]"
        case float():
            return _number(value)
        case int() if not isinstance(value, bool) and abs(value) >= 2**53:
            return f'"{value}"'
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """A number as JavaScript writes it."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = digits.partition(".")
    point = len(whole) + int(exponent or 0)
    figures = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(figures)
    figures = figures.rstrip("0")
    if 0 < point <= 21:
        figures = figures.ljust(point, "0")
        return sign + figures[:point] + ("." + figures[point:] if figures[point:] else "")
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{figures}"
    return f"{sign}{figures[0]}{'.' + figures[1:] if figures[1:] else ''}e{point - 1:+d}"


def head_of(pack: Json) -> str:
    """The hash over all of a file but its signature: of what is in a chain over the chain's end."""
    long = {"log", "messages", "history", "inner", "certificate"}
    whole: Json = {name: pack[name] for name in pack if name not in (*long, "head", "signature")}
    whole["log"] = [pack["log"]["count"], log_head(pack)]
    whole["messages"] = [pack["messages"]["count"], _end(map(canonical, pack["messages"]["items"]))]
    whole["history"] = [
        [one["execution"], one["from"], one["count"], _end(map(canonical, one["events"]))]
        for one in pack["history"]
    ]
    whole["inner"] = [head_of(one) for one in pack["inner"]]
    whole["certificate"] = None if pack["certificate"] is None else sha256(pack["certificate"])
    return sha256(canonical(whole))


def log_head(pack: Json) -> str:
    """The end of the log's chain: the result is one more link after the records."""
    log = pack["log"]
    texts = log["records"] if log["result"] is None else [*log["records"], log["result"]]
    return _end(texts)


def _end(texts: Iterable[str]) -> str:
    return next(reversed(chained(texts)), "")


# -- signatures --------------------


def head_content(head: str) -> bytes:
    """What is signed of a file."""
    return b"ratchet evidence v1\n" + head.encode()


def attested_content(statement: str) -> bytes:
    """What a worker signs when it archives a run's end."""
    return b"ratchet attestation v1\n" + statement.encode()


SMALL_ORDER_POINTS = (
    "00" * 32,
    "01" + "00" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
)
"""Points of Ed25519 of small order, without the sign bit: for them anybody can make signatures."""
SMALL_ORDER = "a point of small order, for which anybody can sign; make another key"


def is_of_small_order(key: str) -> bool:
    """The key, 32 bytes in base64, is such a point."""
    point = base64.b64decode(key, validate=True)
    return (point[:31] + bytes([point[31] & 0x7F])).hex() in SMALL_ORDER_POINTS


def key_of(text: str) -> str:
    """The public key in a line of `ratchet key show`: it stands after a name, or alone. Raises ValueError."""
    key = text.rpartition(":")[2].strip()
    if not re.fullmatch(r"[A-Za-z0-9+/]{43}=", key):
        raise ValueError(
            f"{text!r} is not an Ed25519 public key: expected 32 bytes in base64 (44 characters), or what "
            "`ratchet key show FILE` prints"
        )
    if is_of_small_order(key):
        raise ValueError(f"{text!r} is {SMALL_ORDER}")
    return key


def fits(key: str, content: bytes, signature: str) -> bool:
    """The signature is this key's over the content."""
    try:
        if is_of_small_order(key):
            return False
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
        public.verify(base64.b64decode(signature, validate=True), content)
    except (InvalidSignature, *DAMAGED):
        return False
    return True


# -- one run of a file --------------------


@dataclass
class Evidence:
    """What a file has of one run, read once."""

    pack: Json
    records: list[Json] = field(default_factory=list)
    own: list[Json] = field(default_factory=list)
    """The records that this run wrote: those of a fork's source stand before them."""
    result: Json | None = None
    events: list[tuple[str, Json]] = field(default_factory=list)
    """Of all executions, in order, each with the execution's run id."""
    begins: bool = False
    """The histories are there from the run's beginning."""
    ends: bool = False
    """They are there to the end, be it without Temporal's last word."""

    def __post_init__(self) -> None:
        log, histories = self.pack["log"], self.pack["history"]
        self.records = [json.loads(text) for text in log["records"]]
        forked = max(
            (n for n, one in enumerate(self.records) if one["event"] == "Forked" and "back_to" in one),
            default=-1,
        )
        self.result = None if log["result"] is None else json.loads(log["result"])
        if forked < 0 and (self.result or {}).get("origin"):  # it was ended before it began
            forked = len(self.records) - 1
        self.own = self.records[max(forked, 0) :]
        self.events = [(one["execution"], event) for one in histories for event in one["events"]]
        self.begins = bool(self.events) and not self.events[0][1].get("continues")
        last = histories[-1] if histories else {"execution": ""}
        # the archive may have what there was before the end
        is_closed = last.get("from") == "server" or any(
            json.loads(item["text"])["result"]
            for item in self.pack["messages"]["items"]
            if (item["name"], item["execution"]) == ("archive_log", last["execution"])
        )
        goes_on = bool(histories) and "next" in last["events"][-1]
        self.ends = is_closed and not goes_on and last["execution"] == self.pack["run"]["last_execution"]

    @property
    def is_whole(self) -> bool:
        """The histories cover all that the run did."""
        return self.begins and self.ends

    @property
    def workflow_id(self) -> str:
        """Name of the run."""
        return str(self.pack["run"]["workflow_id"])

    @property
    def task(self) -> Json:
        """What the run began with; empty where no result says so."""
        found: Json = (self.result or {}).get("task") or {}
        return found

    def messages(self, name: str) -> Iterator[Json]:
        """What was sent to the run under this name, as JSON objects."""
        for item in self.pack["messages"]["items"]:
            if item["name"] == name:
                value = json.loads(item["text"])
                if isinstance(value, dict):
                    yield value


def check(pack: Any, keys: Sequence[str] = (), *, required: bool = True) -> list[Finding]:
    """All findings about a file. Never raises.

    `keys` are public keys that are trusted; where there are some, and it is `required`, one of them must have
    signed the file, or the end of the run.
    """
    given = pack.get("format") if isinstance(pack, dict) else None
    if not str(given).startswith(KIND):
        said = "it has no `format`" if given is None else f"its format is {str(given)[:80]!r}"
        return [wrong("file", f"it is no evidence of a run: {said}, expected {FORMAT!r}")]
    found = _guarded("file", lambda: _check_head(pack, keys, required=required))
    return [*found, *_check_run(pack, keys, "")]


def _check_run(pack: Any, keys: Sequence[str], prefix: str) -> list[Finding]:
    """The findings about one run, and about its inner runs."""
    found = _guarded("file", lambda: _check_chains(pack))
    try:
        run = Evidence(pack)
    except DAMAGED as error:
        found.append(_damaged("log", error))
    else:
        for what, look in LOOKS.items():
            found += _guarded(what, functools.partial(look, run))
        found += _guarded("attestation", lambda: _check_attestations(run, keys))
    found = [Finding(one.verdict, f"{prefix}{one.what}", one.text) for one in found]
    inner = pack.get("inner") if isinstance(pack, dict) else None
    for one in inner if isinstance(inner, list) else ():
        found += _check_run(one, keys, f"{prefix}inner run {_name_of(one)}: ")
    return found


def _name_of(inner: Any) -> str:
    try:
        return str(inner["run"]["workflow_id"])
    except DAMAGED:
        return "?"


def _guarded(what: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(look())
    except DAMAGED as error:
        return [_damaged(what, error)]


def _damaged(what: str, error: Exception) -> Finding:
    return wrong(what, f"it is not in the form of evidence: {type(error).__name__}: {str(error)[:200]}")


# -- hashes and signatures --------------------


def _check_head(pack: Json, keys: Sequence[str], *, required: bool) -> Iterator[Finding]:
    if pack["format"] != FORMAT:
        yield wrong("file", f"its format is {pack['format']!r}; this verifier reads {FORMAT!r}")
    head = head_of(pack)
    if head != pack["head"]:
        yield wrong("head", "the hash over the whole file does not fit: something in it was changed")
    else:
        yield ok("head", f"the hash over the whole file fits: {head}")
    given = pack["signature"]
    if given is not None and not fits(given["key"], head_content(head), given["signature"]):
        yield wrong("signature", f"the signature of {given['key']} does not fit what the file holds")
    elif given is not None and given["key"] in keys:
        yield ok("signature", f"signed with {given['key']}")
    elif given is not None:
        text = f"signed with {given['key']}"
        hint = "which is none of the keys that you gave" if keys else "and whose key that is you must know"
        yield (wrong if keys and required else unknown)("signature", f"{text}, {hint} (--key)")
    else:
        text = "the file is not signed: whoever had it could have made all of it anew"
        attested = any(one["key"] in keys and _attests_end(pack, one) for one in pack["attestations"])
        is_wrong = keys and required and not attested
        yield (wrong if is_wrong else unknown)("signature", text)


def _attests_end(pack: Json, one: Json) -> bool:
    """The attestation fits, and is over the run's end: a log that goes on has no result yet."""
    statement = json.loads(one["statement"])
    is_end = statement["result"] and statement["log"] == log_head(pack) and _names(statement, pack)
    return is_end and fits(one["key"], attested_content(one["statement"]), one["signature"])


def _names(statement: Json, pack: Json) -> bool:
    """The statement is about this run."""
    run = pack["run"]
    return (statement["workflow_id"], statement["run_id"]) == (run["workflow_id"], run["run_id"])


def _check_attestations(run: Evidence, keys: Sequence[str]) -> Iterator[Finding]:
    """What the worker signed when it archived the log is what the file holds."""
    histories = {one["execution"]: one for one in run.pack["history"]}
    heads = chained(run.pack["log"]["records"])
    if not run.pack["attestations"]:
        yield unknown("attestation", "no worker has signed the log when it was written (RATCHET_SIGNING_KEY)")
    attested = {json.loads(one["statement"])["execution"] for one in run.pack["attestations"]}
    for name in histories.keys() - attested if attested else ():
        yield unknown("attestation", f"no worker has signed the history of execution {name}")
    for number, one in enumerate(run.pack["attestations"]):
        what, statement = f"attestation {number}", json.loads(one["statement"])
        log, result, count = statement["log"], statement["result"], statement["events"]
        if not fits(one["key"], attested_content(one["statement"]), one["signature"]):
            yield wrong(what, f"the signature of {one['key']} does not fit the statement")
            continue
        events = histories.get(statement["execution"], {"events": []})["events"][:count]
        fitting = {
            "run": _names(statement, run.pack),
            "log": log == log_head(run.pack) if result else log in heads,
            "history": len(events) == count and statement["history"] == _end(map(canonical, events)),
        }
        if others := [name for name, fit in fitting.items() if not fit]:
            yield wrong(what, f"the worker has attested another {' and '.join(others)} than the file holds")
            continue
        records = len(heads) if result else heads.index(log) + 1
        what_of = (
            f"{counted(records, 'record')}{' and the result' if result else ''}, {counted(count, 'event')}"
        )
        text = f"the worker attested {what_of} on {statement['at']} with {one['key']}"
        yield ok(what, text) if one["key"] in keys else unknown(what, f"{text}; is that a key you trust?")


def _check_chains(pack: Json) -> Iterator[Finding]:
    """Each item is in its place and as it was written."""
    broken = [*_chain("record", "the log", pack["log"]["records"], pack["log"])]
    yield from broken or [ok("log", f"{counted(len(pack['log']['records']), 'record')} in one hash chain")]
    messages = pack["messages"]
    yield from _chain("message", "the list", [*map(canonical, messages["items"])], messages)
    for one in pack["history"]:
        of, texts = f"execution {one['execution']}", [*map(canonical, one["events"])]
        broken = [*_chain(f"{of}: event", "the history", texts, one, first=1)]
        yield from broken or [ok("history", f"{counted(len(texts), 'event')} of {of} in one hash chain")]


def _chain(what: str, part: str, texts: Sequence[str], chain: Json, first: int = 0) -> Iterator[Finding]:
    """The first item that does not fit its hash."""
    hashes, count = chain["hashes"], chain["count"]
    for number, (given, made) in enumerate(zip(hashes, chained(texts), strict=False), start=first):
        if given != made:
            text = f"it was changed, or {part} lacks what stood here or before it"
            yield wrong(f"{what} {number}", text)
            return
    if not len(texts) == len(hashes) == count:
        at = min(len(texts), len(hashes), count) + first
        numbers = f"{len(texts)} items, {len(hashes)} hashes, and {count} were written"
        yield wrong(f"{what} {at}", f"{part} has {numbers}")


# -- the log and the result --------------------


def _check_log(run: Evidence) -> Iterator[Finding]:
    records = run.records
    if not records:
        yield wrong("log", "it has no records")
    for number, record in enumerate(records):
        if record["seq"] != number:
            yield wrong(
                f"record {number}", f"it has the number {record['seq']}: records are missing or moved"
            )
            return
    ended_at_once = [record["event"] for record in records] == ["Closed"]
    if records and records[0]["event"] != "Started" and not ended_at_once:
        yield wrong("record 0", f"a log begins with Started, not with {records[0]['event']}")
    if len(run.own) < len(records):
        yield _of_fork(run, len(records) - len(run.own))


def _of_fork(run: Evidence, count: int) -> Finding:
    """What counts as the source's. Only a run that was begun as a fork has such records."""
    names = ("workflow_id", "run_id", "step")
    about = run.own[0].get("about", {})
    origin = (run.result or {}).get("origin") or {}
    forked = {name: about.get(name, origin.get(name)) for name in names}
    what, source = f"record {run.own[0]['seq']}", f"run {forked['workflow_id']} ({forked['run_id']})"
    if run.result is not None and forked != {name: origin.get(name) for name in names}:
        of = f"run {origin['workflow_id']} ({origin['run_id']})" if origin else "none"
        return wrong(what, f"it says that the run was forked from {source}; the result names {of}")
    text = f"the first {count} records are of {source}, from which it was forked: see there"
    return unknown("fork", f"{text}. This file does not show that they are not of this run")


def _check_result(run: Evidence) -> Iterator[Finding]:
    result, given, heads = run.result, run.pack["run"], chained(run.pack["log"]["records"])
    if result is None:
        yield unknown("result", "the run has none: it was ended from outside, or its end was not archived")
        return
    pairs = {
        "log_head": (result["log_head"], heads[-1] if heads else ""),
        "records": (result["records"], len(heads)),
        "workflow_id": (result["workflow_id"], given["workflow_id"]),
        "run_id": (result["run_id"], given["run_id"]),
        "agent": (result["agent"], given["agent"]),
        "machine": (result["machine"], given["machine"]),
        "machine_version": (result["machine_version"], given["machine_version"]),
    }
    others = [name for name, (is_so, should_be) in pairs.items() if is_so != should_be]
    if others:
        yield wrong("result", f"its {', '.join(others)} is not that of the log and the run beside it")
    closed = {(one["about"].get("request"), one["about"].get("outcome")) for one in run.own if "about" in one}
    for one in result.get("decisions", ()):
        if (one["request"], one["outcome"]) not in closed:
            others.append("decisions")
            yield wrong("result", f"it says that {one['request']} was {one['outcome']}; the log does not")
    last: Json = next((one for one in reversed(run.own) if one["event"] not in AFTER_THE_END), {})
    ended = last.get("about", {}).get("exit_reason")
    if last.get("event") == "Closed" and ended != result["exit_reason"]:
        others.append("exit_reason")
        yield wrong("result", f"it says that the run ended as {result['exit_reason']}, and the log {ended}")
    if not others:
        yield ok("result", f"{result['exit_reason']}, after record {len(heads) - 1}: the log ends in it")
    if result.get("was_reset"):
        yield unknown(
            "reset", "Temporal has reset the run: what it had done after that point is not in this file"
        )


def _check_agent(run: Evidence) -> Iterator[Finding]:
    if not run.task:
        yield unknown("agent", "without a result nothing in the log says which agent it was")
        return
    agent = {name: value for name, value in run.task.items() if name not in NOT_OF_THE_AGENT}
    digest = sha256(canonical(agent))
    if digest != run.pack["run"]["agent_digest"]:
        yield wrong("agent", "the digest is not that of the agent which the result names")
        return
    yield ok("agent", f"{agent['name']}, sha256 {digest}")


def _check_certificate(run: Evidence) -> Iterator[Finding]:
    text = run.pack["certificate"]
    about = run.own[0].get("about", {})
    named = about.get("certificate", "")
    if text is None:
        why = f"the run began under {named}, and its text is not here (--certificate)" if named else (
            "the run's first record names none: nothing was proven of the machine before it ran"
        )  # fmt: skip
        yield unknown("certificate", why)
    elif not named:
        yield wrong("certificate", "the file holds one, and the run's first record names none")
    elif sha256(text) != named:
        yield wrong("certificate", f"it is not the one that the run's first record names: {named}")
    elif not run.task:
        text = "without a result nothing in the log says what the run was compared with"
        yield unknown("certificate", f"the run began under it, and {text}")
    elif run.task.get("certificate") != _carried(text):
        yield wrong("certificate", "the run was compared with other digests than those in it")
    elif differs := about.get("differs"):
        others = "; ".join(differs)
        yield unknown("certificate", f"the run began under {named}, and what ran differs from it: {others}")
    else:
        less = "" if json.loads(text)["complete"] else "; its exploration is not complete"
        yield ok("certificate", f"the run began under it, and nothing differed{less}: sha256 {named}")


def _carried(text: str) -> Json:
    """What a run carries of a certificate."""
    found = json.loads(text)
    return {**found["subject"], "complete": found["complete"], "digest": sha256(text)}


# -- what people decided --------------------


@dataclass
class Asked:
    """A request that is open, as the newest record that asks it has it."""

    about: Json
    first: str
    """Its digest before any escalation."""
    settings: Json | None = None
    """How the agent has such requests asked; None: nothing here says so."""
    group: Json = field(default_factory=dict)
    """Who was asked, as the agent has it."""
    later: list[str] = field(default_factory=list)
    """The groups that it is still passed to."""
    votes: list[tuple[str, str]] = field(default_factory=list)
    """Who decided what."""

    @property
    def keys(self) -> Json:
        """Public keys of those who were asked, by name."""
        found: Json = self.group.get("keys", {})
        return found

    @property
    def quorum(self) -> float:
        """How many must decide the same."""
        said = self.about.get("quorum", 1)
        given = said if self.settings is None else self.settings["quorum"] or self.group.get("quorum", 1)
        return float(given)


@dataclass
class Decisions:
    """What was found of decisions so far."""

    requests: dict[str, Asked] = field(default_factory=dict)
    """Those that are open."""
    approved: dict[str, tuple[Json, Json]] = field(default_factory=dict)
    """Of the calls that people approved: what was asked last, and the decision."""
    counts: Counter[str] = field(default_factory=Counter)
    signers: dict[str, str] = field(default_factory=dict)
    """Who has signed, with which key."""


def _check_decisions(run: Evidence) -> Iterator[Finding]:
    """What the log says that people decided is what they signed, about what they were asked; enough did."""
    found = Decisions()
    for record in run.own:
        if record["event"] in OF_REQUESTS and "request" in record.get("about", {}):
            yield from _check_request(run, record, found)
        elif record["event"] == "ApprovedBefore":
            problem = _not_granted(run, record.get("about", {}), found.approved)
            yield from _wrong_if(f"record {record['seq']}", problem)
    yield from _check_commands(run)
    if count := found.counts["signed"]:
        names = ", ".join(f"{name} ({key})" for name, key in sorted(found.signers.items()))
        text = f"{count} signed, over what was asked, with the keys that the agent lists: {names}"
        yield ok("decisions", text)
    yield from _claimed(run, "decisions", found.counts["claimed"])


def _claimed(run: Evidence, what: str, count: int) -> Iterator[Finding]:
    """So many that nobody had to sign."""
    if count:
        whose = "of groups without keys" if run.task else "without a signature"
        yield unknown(what, f"{count} {whose}: their names are only claimed")


def _check_request(run: Evidence, record: Json, found: Decisions) -> Iterator[Finding]:
    """One thing that happened to a request."""
    event, about, what = record["event"], record["about"], f"record {record['seq']}"
    name = about["request"]
    if event == "Requested":
        found.requests[name] = Asked(about, about["digest"])
        yield from _check_asked(run, what, record, found.requests[name])
    elif name not in found.requests:
        yield wrong(what, f"{event} of {name}, and the records before it have no open request {name}")
    elif event == "Escalated":
        yield from _check_escalated(run, what, about, found.requests[name])
    elif event in CLOSING:
        yield from _check_closed(what, record, found.requests.pop(name))
    else:
        yield from _check_decision(run, what, record, found)


def _check_decision(run: Evidence, what: str, record: Json, found: Decisions) -> Iterator[Finding]:
    """A decision, and with it all those that agree."""
    about, is_last = record["about"], record["event"] == "Decided"
    asked = found.requests[about["request"]]
    signed = _signed_decisions(run, about, asked) if about["verified"] else []
    problems = [*_check_vote(run, what, record, asked, signed)]
    if is_last and (about["kind"], about["outcome"]) == ("approval", "approved"):
        found.approved[about["request"]] = asked.about, about
    if is_last:
        problems += _wrong_if(what, _too_few(about, found.requests.pop(about["request"])))
    yield from problems
    if any(one.verdict == "wrong" for one in problems):
        return
    if signed:
        found.counts["signed"] += 1
        found.signers[about["by"]] = str(asked.keys[about["by"]])
    elif not about["verified"]:
        found.counts["claimed"] += 1


def _wrong_or_unknown(run: Evidence, what: str, problem: str) -> Iterator[Finding]:
    """A problem with what is not in the history, or does not fit the agent: without these nothing follows."""
    if problem and run.is_whole and run.task:
        yield wrong(what, problem)
    elif problem:
        lacking = "the run's result, which has the keys" if run.is_whole else "the whole history"
        yield unknown(what, f"{problem}; this file does not have {lacking}")


def _differences(what: str, of: str, pairs: dict[str, tuple[Any, Any]]) -> Iterator[Finding]:
    """What differs: each name with what the record has, and what it should have."""
    for name, (given, expected) in pairs.items():
        if given != expected:
            yield wrong(what, f"its {name} is {_short(given)}, and {of} {_short(expected)}")


def _short(value: Any) -> str:
    text = "none" if value is None else canonical(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


# -- what people were asked --------------------


def _check_asked(run: Evidence, what: str, record: Json, asked: Asked) -> Iterator[Finding]:
    """A request is bound to what it asks, and goes to the people to whom the agent has it go."""
    about = asked.about
    yield from _wrong_if(what, _other_digest(run, about, record))
    if not run.task:
        return
    ways, rule = _ways(run.task, about), about.get("rule", "")
    if rule not in ways:
        named = ", ".join(one or "none" for one in ways) or "none"
        text = f"{about['request']} names the entry {rule or 'none'} of the approvals"
        yield wrong(what, f"{text}; what the agent has for {about.get('tool')} is: {named}")
        return
    asked.settings = ways[rule]
    asked.later = list(asked.settings["escalate_to"])
    yield from _put_to(run, what, asked, asked.settings["group"], asked.settings["at_deadline"])
    others = {
        name: _short([way["group"], way["quorum"]])
        for name, way in ways.items()
        if (way["group"], way["quorum"]) != (asked.settings["group"], asked.settings["quorum"])
    }
    if others:
        text = f"that the entry {rule or 'of no approval'} decides about this call is not shown"
        yield unknown(what, f"{text}; the group and quorum of others: {others}")


def _put_to(run: Evidence, what: str, asked: Asked, group: str | None, then: str) -> Iterator[Finding]:
    """The record asks this group, as the agent has it."""
    assert asked.settings is not None
    asked.group = {} if group is None else run.task["people"]["groups"][group]
    about = asked.about
    pairs = {
        "group": (about.get("group"), group),
        "quorum": (about.get("quorum", 1), asked.quorum),
        "at_deadline": (about.get("at_deadline", "reject"), then),
        "deadline": ("deadline" in about, asked.settings["deadline_seconds"] is not None),
    }
    yield from _differences(what, "the agent has", pairs)


def _ways(task: Json, about: Json) -> dict[str, Json]:
    """How the agent may have asked this: the settings by the entry of its approvals; none has an empty name.
    Of rules, only arguments and the like decide which one fits; these are not judged here."""
    people, kind, tool = task["people"], about["kind"], about.get("tool")
    found: dict[str, Json] = {}
    if kind != "approval":
        found[""] = people["kinds"].get(kind, people["requests"])
    if kind not in ("approval", "outcome"):
        return found
    usual = people["kinds"].get("approval", people["requests"])
    for entry, mode, rule in _entries(task["approvals"], str(tool)):
        is_bound = rule.get("at_most") and (rule["then"] == "always" or kind == "outcome")
        if mode in ASKING or is_bound:
            found[entry] = rule.get("request") or usual
    return found


def _entries(approvals: Json, tool: str, effect: str = "") -> Iterator[tuple[str, str, Json]]:
    """Which entries of the approvals may decide about a call of this tool: each with its mode, and its rule
    if it is one. Of rules, only arguments and the like decide which one fits; these are not judged here.
    `effect` is the tool's, where it is known."""
    for number, rule in enumerate(approvals["rules"]):
        named, effects = rule["tools"], rule.get("effects")
        if named and not any(fnmatch.fnmatchcase(tool, pattern) for pattern in named):
            continue
        if effects and effect and effect not in effects:
            continue
        yield f"rules.{number}", rule["ask"], rule
        has_more = rule["cost_above"] is not None or any(
            rule.get(name) for name in ("arguments", "after", "sends")
        )
        if not has_more and (effect or not effects):
            return
    modes = USUAL_MODES | approvals["effects"]
    if tool in approvals["tools"]:
        yield f"tools.{tool}", approvals["tools"][tool], {}
    elif effect:
        yield f"effects.{effect}", modes.get(effect, "never"), {}
    else:
        yield from ((f"effects.{name}", modes.get(name, "never"), {}) for name in EFFECTS)


def _other_digest(run: Evidence, about: Json, record: Json) -> str:
    """Why the digest of a request is not that of what was asked; empty: it is, or the log has it cut."""
    kind, bound = about["kind"], about.get("arguments")
    if bound is None and kind in ("approval", "outcome"):
        return ""
    if kind in ("question", "escalation"):
        bound = {"text": record.get("reason", ""), "options": about["options"]}
    where = [run.workflow_id, run.pack["run"]["run_id"], about["activity_id"]]
    if digest_of([*where, kind, about.get("tool"), bound]) == about["digest"]:
        return ""
    of = "words and options" if kind in ("question", "escalation") else "arguments"
    return f"the digest of {about['request']} is not that of its {of}"


def digest_of(value: Any) -> str:
    """What names a request: the first 32 hexadecimal characters."""
    return sha256(canonical(value))[:32]


def _check_escalated(run: Evidence, what: str, about: Json, asked: Asked) -> Iterator[Finding]:
    """It goes to the next group of the agent; what was decided before is void."""
    same = ("kind", "activity_id", "tool", "arguments")
    yield from _differences(
        what, "the request has", {name: (about.get(name), asked.about.get(name)) for name in same}
    )
    asked.about, asked.votes = about, []
    if asked.settings is None:
        return
    if not asked.later:
        yield wrong(what, f"{about['request']} is passed on, and the agent names no group to pass it to")
        return
    expected = digest_of([asked.first, *asked.later])
    yield from _differences(what, "by the agent's groups it is", {"digest": (about["digest"], expected)})
    name, *asked.later = asked.later
    yield from _put_to(run, what, asked, name, "escalate" if asked.later else "reject")


def _check_closed(what: str, record: Json, asked: Asked) -> Iterator[Finding]:
    """Nobody decided: what follows is what the request said."""
    event, about = record["event"], record["about"]
    same = ("kind", "activity_id", "tool", "digest", "group", "at_deadline", "deadline")
    pairs = {name: (about.get(name), asked.about.get(name)) for name in same}
    yield from _differences(what, "the request has", pairs)
    yield from _differences(what, "it should be", {"outcome": (about["outcome"], event.lower())})
    if event == "Expired" and not asked.about.get("deadline", record["at"] + 1) <= record["at"]:
        yield wrong(what, f"{about['request']} expired at {record['at']}, before its deadline")


# -- what people decided --------------------


def _check_vote(
    run: Evidence, what: str, record: Json, asked: Asked, signed: Sequence[Json]
) -> Iterator[Finding]:
    """A decision is on this request, as it was asked last, and is what its sender has signed."""
    about, of = record["about"], asked.about
    pairs = {
        "asked": (about["asked"], of["digest"]),
        "kind": (about["kind"], of["kind"]),
        "activity_id": (about["activity_id"], of["activity_id"]),
        "tool": (about.get("tool"), of.get("tool")),
    }
    if about["verb"] != "edit":
        pairs["digest"] = (about["digest"], of["digest"])
    yield from _differences(what, "the request has", pairs)
    outcome = OUTCOMES[about["verb"]] if record["event"] == "Decided" else "open"
    mark = "verified" if about["verified"] else "claimed"
    expected = {
        "outcome": (about["outcome"], outcome),
        "by": (record["by"], f"{about['by'] or 'somebody'} ({mark})"),
    }
    yield from _differences(what, f"after {about['verb']} it should be", expected)
    if about["verb"] == "edit":
        yield from _wrong_if(what, _other_digest(run, about, record))
    asked.votes.append((about["by"], _content(about)))
    if asked.keys and not about["verified"]:
        by = about["by"] or "somebody"
        text = f"{by} decided on {about['request']} without a signature that was checked"
        yield wrong(what, f"{text}; the group {of.get('group')} has keys, with which each must sign")
    if not about["verified"]:
        return
    if not signed:
        yield from _wrong_or_unknown(run, what, _unsigned(run, about))
        return
    said = [[*_other_words(about, one)] for one in signed]
    for verdict, text in min(said, key=lambda found: [verdict for verdict, _ in found].count("wrong")):
        yield Finding(verdict, what, f"{about['by']}'s signed decision on {about['request']}: {text}")


def _content(about: Json) -> str:
    """What somebody decides: who decides the same agrees. Comments may differ."""
    details = {"edit": "digest", "topup": "amounts", "answer": "text", "resume": "text"}
    return canonical([about["verb"], about.get(details.get(about["verb"], ""))])


def _too_few(about: Json, asked: Asked) -> str:
    """Why a request is not decided yet; empty: enough people decided the same."""
    agreeing = {by for by, content in asked.votes if content == _content(about)}
    if about["verb"] in IMMEDIATE or len(agreeing) >= asked.quorum:
        return ""
    named = ", ".join(sorted(one or "somebody" for one in agreeing))
    expected = f"expected {asked.quorum:g} who decide the same, found {len(agreeing)}"
    return f"{about['request']} is {about['outcome']} by {named}: {expected}"


def _signed_decisions(run: Evidence, about: Json, asked: Asked) -> list[Json]:
    """What was sent under this id with this person's signature, whatever it says."""
    key = str(asked.keys.get(about["by"], ""))
    return [
        one
        for one in run.messages("decide")
        if (one.get("by"), one.get("id")) == (about["by"], about["id"])
        and _is_signed("decide", one, key, [{"run": run.workflow_id}])
    ]


def _unsigned(run: Evidence, about: Json) -> str:
    """Why nothing that was sent is this decision with this person's signature."""
    by, named = about["by"], f"{about['by']}'s signed decision on {about['request']}"
    if any((one.get("by"), one.get("id")) == (by, about["id"]) for one in run.messages("decide")):
        return f"{named} was sent, but the signature does not fit the key of {by} in the agent"
    return f"{named} is not among what was sent to the run"


def _other_words(about: Json, sent: Json) -> Iterator[tuple[Verdict, str]]:
    """How a decision in the log differs from the one that was signed."""
    said = UNSAID["decide"] | sent
    standing = {"arguments": {}, "same": False}
    pairs = {
        "request": (about["request"], said["request"]),
        "digest": (about["asked"], said["digest"]),
        "decision": (about["verb"], said["decision"]),
        "text": (about.get("text", ""), said["text"][:COMMENT_CHARS]),
        "amounts": (about.get("amounts", {}), said["amounts"]),
        "made_at": (about.get("made_at"), said["made_at"]),
        "standing_approval": tuple(
            None if one is None else standing | one
            for one in (about.get("standing_approval"), said["standing_approval"])
        ),
    }
    for name, (given, signed) in pairs.items():
        if given != signed:
            yield "wrong", f"the log has {name} {_short(given)}, and what was signed is {_short(signed)}"
    if about["verb"] == "edit":
        yield from _other_arguments(about, said["arguments"])


def _other_arguments(about: Json, sent: Json) -> Iterator[tuple[Verdict, str]]:
    """The same of an edit's arguments, which were fitted to the tool; and what cannot be told of them."""
    if "arguments" not in about:
        yield "unknown", "the arguments are too long for the log: that they are those is not shown"
        return
    found = [*_other_values("", sent, about["arguments"])]
    for place, (given, signed) in found:
        if signed is not ABSENT and not _is_path_of(given, signed):
            had = "none" if given is ABSENT else _short(given)
            yield "wrong", f"the log has {place} {had}, and what was signed is {_short(signed)}"
    if added := [place for place, (_, signed) in found if signed is ABSENT]:
        text = "are not in what was signed: the tool's defaults, if its schema has these"
        yield "unknown", f"{', '.join(added)} {text}"
    if paths := [place for place, (given, signed) in found if _is_path_of(given, signed)]:
        yield "unknown", f"{', '.join(paths)}: spelled otherwise than signed; the same if it is a path"


ABSENT = object()
"""Stands for an argument that is not there."""


def _other_values(place: str, signed: Any, given: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The places at which arguments differ from signed ones, with both values. They were fitted to the tool:
    a text that spells a number, a boolean, a list or an object may have become it."""
    if isinstance(signed, str) and not isinstance(given, str):
        with contextlib.suppress(*DAMAGED):
            signed = json.loads(signed)
    if isinstance(signed, dict) and isinstance(given, dict):
        for name in {**signed, **given}:
            inner = f"{place}.{name}" if place else str(name)
            yield from _other_values(inner, signed.get(name, ABSENT), given.get(name, ABSENT))
    elif isinstance(signed, list) and isinstance(given, list) and len(signed) == len(given):
        for number, pair in enumerate(zip(signed, given, strict=True)):
            yield from _other_values(f"{place}[{number}]", *pair)
    elif signed is ABSENT or given is ABSENT or canonical(signed) != canonical(given):
        yield place, (given, signed)


def _is_path_of(given: Any, signed: Any) -> bool:
    """The value is the normal form of the signed text, if that is a path."""
    if not (isinstance(given, str) and isinstance(signed, str)):
        return False
    parts = [part for part in unicodedata.normalize("NFC", signed).split("/") if part not in ("", ".")]
    return given == ("/" * signed.startswith("/") + "/".join(parts) or ".")


# -- what people ordered --------------------


def _check_commands(run: Evidence) -> Iterator[Finding]:
    """What the log says that people ordered is what they signed, each once."""
    people = run.task.get("people", {})
    keys = people.get("groups", {}).get(people.get("commands"), {}).get("keys", {})
    obeyed, count, claimed = set[tuple[str, str]](), 0, 0
    decided: dict[str, Json] = {}
    yield from _check_message_of_fork(run)
    for record in run.own:
        event, about, by = record["event"], record.get("about", {}), str(record.get("by", ""))
        what, name = f"record {record['seq']}", by.removesuffix(VERIFIED)
        if event in ("Voted", "Decided"):
            decided[about["request"]] = about
        elif (problem := _undecided(record, decided)) is not None:
            yield from _wrong_if(what, problem)
        elif by.endswith(VERIFIED):
            found = [*_check_command(run, what, record, name, keys)]
            if (once := (name, about.get("id", ""))) in obeyed:
                text = f"{name}'s command {once[1]} was obeyed before: one that is signed counts once"
                found.append(wrong(what, text))
            yield from found
            obeyed |= {once} if once[1] else set()
            count += not found
        else:
            claimed += not keys and _is_ordered(record)
            yield from _without_signature(run, record, people if keys else {})
    if count:
        yield ok("commands", f"{count} of people who signed them")
    yield from _claimed(run, "commands", claimed)


def _check_message_of_fork(run: Evidence) -> Iterator[Finding]:
    """The message that a run was forked with stands behind the record of the fork."""
    first, *others = run.own[:2]
    if others and "message" in first.get("about", {}) and not _is_of_fork(run, others[0]):
        yield wrong(f"record {first['seq']}", "the message that the run was forked with does not come next")


def _is_of_fork(run: Evidence, record: Json) -> bool:
    """The record comes right after the one of the fork, and has the message whose digest that one has."""
    first, notes = run.own[0], record.get("notes", ())
    text = str(notes[0]["content"]) if len(notes) == 1 else ""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (
        (first["event"], record["event"], record["seq"] - first["seq"]) == ("Forked", "Steered", 1)
        and first.get("about", {}).get("message") == digest
        and (notes[0]["role"], record.get("reason")) == ("user", text)
        and (record.get("by"), record.get("about", {})) == (first.get("by"), {})
    )


def _without_signature(run: Evidence, record: Json, people: Json) -> Iterator[Finding]:
    """A command that had to be signed; `people` are empty where none had to. Or the message of a fork, or the
    end of a run that was cancelled in Temporal."""
    event, by, about = record["event"], record.get("by", ""), record.get("about", {})
    what = f"record {record['seq']}"
    if people and _is_of_fork(run, record):
        yield unknown(what, f"{by} forked the run with this message: nobody signs the start of a run")
    elif people and _is_ordered(record):
        text = f"{event} by {by}, without a signature that was checked"
        yield wrong(what, f"{text}; the group {people['commands']} has keys, with which each must sign")
    elif event == "Closed" and about.get("exit_reason") == "cancelled":
        yield unknown("commands", f"who cancelled the run ({what}) is not shown: Temporal asks for no name")


def _undecided(record: Json, decided: dict[str, Json]) -> str | None:
    """Why a record that follows from a decision on a request does not; empty: it does, and the decision is
    looked at where it stands; None: the record is no such one."""
    event, about = record["event"], record.get("about", {})
    if event == "Steered" and "command" not in about and "request" in about:
        return _other_text(record, decided.get(about["request"], {}))
    return "" if event == "Closed" and _is_decided(record, decided.values()) else None


def _is_decided(record: Json, decisions: Iterable[Json]) -> bool:
    """The run ended by one of these decisions: an abort, or the finish of a run that was stuck."""
    outcome = "finished" if record.get("about", {}).get("exit_reason") == "stuck" else "aborted"
    return any(
        one["outcome"] == outcome and (outcome == "aborted" or one["kind"] == "stuck") and _is_by(record, one)
        for one in decisions
    )


def _other_text(record: Json, about: Json) -> str:
    """Why the message to the model is not the text of this decision to go on; empty: it is."""
    text, notes = str(record.get("reason", "")), [note["content"] for note in record.get("notes", ())]
    said = (about.get("outcome"), about.get("text", ""), notes)
    if said == ("resumed", text[:COMMENT_CHARS], [text]) and _is_by(record, about):
        return ""
    return f"Steered by {record['by']}, and no decision on {record['about']['request']} has this text"


def _is_by(record: Json, about: Json) -> bool:
    """The record names who decided. It says `verified` only if the decision was."""
    names, _, mark = str(record.get("by", "")).rpartition(" (")
    is_named = f", {about['by'] or 'somebody'}, " in f", {names}, "
    return is_named and (about["verified"] or mark != VERIFIED.removeprefix(" ("))


def _is_ordered(record: Json) -> bool:
    """A record says that somebody's command was obeyed."""
    event, by = record["event"], record.get("by", "")
    if event in UNNAMED:
        return str(by).endswith(" (claimed)")
    return event in OBEYED and (by != "kernel" or "command" in record.get("about", {}))


def _check_command(run: Evidence, what: str, record: Json, by: str, keys: Json) -> Iterator[Finding]:
    """A person has signed what the record says."""
    event, about = record["event"], record.get("about", {})
    kind = about.get("command") or UNNAMED.get(event)
    if kind is None or OBEYED.get(event, kind) != kind:
        yield wrong(what, f"no run writes {event} for {by}'s signed command {kind or '(none)'}")
        return
    runs = [[run.workflow_id, run.pack["run"]["run_id"]], *(run.result or {}).get("parents", ())]
    places = [{"run": name, "origin": origin} for name, origin in runs]
    signed = [
        UNSAID["command"] | one
        for one in run.messages("command")
        if one.get("by") == by
        and ("command" not in about or one.get("id") == about.get("id"))
        and _is_signed(
            "command", one, keys.get(by, ""), places if str(one.get("command")) in PASSED_DOWN else places[:1]
        )
    ]
    if "command" not in about:
        signed = [one for one in signed if one["command"] == kind]
    if not signed:
        problem = f"{by}'s signed command {kind} is not among what was sent, or does not fit"
        yield from _wrong_or_unknown(run, what, problem)
        return
    problems = [_other_order(record, one) for one in signed]
    if all(problems):
        yield wrong(what, f"{by}'s signed command {kind}: {problems[0]}")


def _other_order(record: Json, said: Json) -> str:
    """How a command in the log differs from the one that was signed; empty: it does not."""
    event, text = record["event"], said["text"]
    reason = str(record.get("reason", ""))
    pairs: dict[str, tuple[Any, Any]] = {}
    if event in UNNAMED:
        if event == "Closed":
            start = f"{record['by']} ended the run{f': {text}' if text else ''}"
            most = min(len(start), REASON_CHARS)
            pairs["reason"] = (reason[:most], start[:most])
            pairs["exit_reason"] = (record["about"].get("exit_reason"), "aborted")
        else:
            pairs["compensate"] = (True, said["compensate"])
    else:
        about = UNSAID["command"] | record["about"]
        pairs = {name: (about[name], said[name]) for name in ("command", *UNSAID["command"])}
        if event == "RefusedCommand":  # of those it has as much as there was room for
            pairs["text"] = (about["text"], text[: len(about["text"])])
            pairs["limits"] = (about["limits"], {name: said["limits"].get(name) for name in about["limits"]})
        elif event in ("Paused", "Resumed", "Steered"):
            pairs["reason"] = (reason, text)
        if event == "Steered":
            pairs["message"] = ([one["content"] for one in record.get("notes", ())], [text])
    others = [
        f"the log has {name} {_short(given)}, and what was signed is {_short(signed)}"
        for name, (given, signed) in pairs.items()
        if given != signed
    ]
    return "; ".join(others)


def _is_signed(name: str, message: Json, key: str, places: Iterable[Json]) -> bool:
    """The message is signed with the key, for one of these runs."""
    said = {
        field: value
        for field, value in message.items()
        if field != "signature" and (field not in UNSAID[name] or value != UNSAID[name][field])
    }
    if isinstance(standing := said.get("standing_approval"), dict):
        unsaid = {"arguments": {}, "same": False}
        said["standing_approval"] = {k: v for k, v in standing.items() if v != unsaid.get(k, ...)}
    purpose = "decision" if name == "decide" else name
    return any(
        fits(
            key,
            f"ratchet {purpose} v1\n{canonical({**place, 'message': said})}".encode(),
            str(message.get("signature")),
        )
        for place in places
    )


# -- the history --------------------


def _check_history(run: Evidence) -> Iterator[Finding]:
    """The events have no gap, and each execution goes on where the one before it ended."""
    histories = run.pack["history"]
    if not histories:
        yield unknown("history", "neither Temporal nor the archive has one any more")
        return
    for one, before in zip(histories, [None, *histories], strict=False):
        yield from _check_execution(run, one, before)
    if not run.begins:
        yield unknown("history", "its beginning is missing: the executions before are gone")
    if not run.ends:
        yield unknown("history", "its end is missing")
    events = {(execution, event["id"]): event for execution, event in run.events}
    for number, item in enumerate(run.pack["messages"]["items"]):
        event = events.get((item["execution"], item["event"]), {})
        if not event or (item["as_sent"] and sha256(item["text"]) not in event.get("payloads", ())):
            yield wrong(f"message {number}", "the history's event does not hold it")
    yield from _check_sent_log(run)


def _check_execution(run: Evidence, one: Json, before: Json | None) -> Iterator[Finding]:
    of, start = f"execution {one['execution']}", one["events"][0]
    for number, event in enumerate(one["events"], start=1):
        if event["id"] != number:
            yield wrong(f"{of}: event {number}", f"its id is {event['id']}: events are missing or moved")
            break
    begun = (start["type"], start["name"], start["key"], start["first"])
    if begun != ("WorkflowExecutionStarted", WORKFLOW, run.workflow_id, run.pack["run"]["run_id"]):
        yield wrong(f"{of}: event 1", "it does not begin this run")
    if before is not None:
        follows = before["events"][-1].get("next") in (one["execution"], start.get("original"))
        if start.get("continues") != before["execution"] or not follows:
            yield wrong(of, f"it does not continue execution {before['execution']}")


def _check_sent_log(run: Evidence) -> Iterator[Finding]:
    """What the run sent to the archive, by its history, is the log."""
    heads = chained(run.pack["log"]["records"])
    count = 0
    for sent in run.messages("archive_log"):
        if sent["log"] not in heads:
            yield wrong(
                "log", "it differs from the one that the history has, as the run sent it to the archive"
            )
        elif sent["result"] and sent["end"] != log_head(run.pack):
            yield wrong("result", "it differs from the one that the history has")
        else:
            count += 1
    if count:
        parts = counted(count, "part")
        yield ok("log and history", f"the history has the log, as the run sent it to the archive in {parts}")


# -- completeness --------------------


def place_of(activity_id: str) -> str:
    """Where the machine stood that made a call: `act#3:0` of `act#3:0+1?@5e0c1a`."""
    name = activity_id.partition("@")[0].rstrip("!").removesuffix("?")
    return re.sub(r"\+\d+$", "", re.sub(r"~compact(\.\d+)?$", "", name))


def visit_of(place: str) -> str:
    """The visit of a place: `act#3`."""
    return place.rpartition(":")[0] or place


@dataclass
class Made:
    """What the history says was done."""

    places: dict[str, list[tuple[str, Json]]] = field(default_factory=dict)
    """Of activities and inner runs that the log must have: kind and event by place."""
    ended: set[str] = field(default_factory=set)
    """Those of them that came to an end."""
    questions: dict[str, Json] = field(default_factory=dict)
    """Activities that asked a model, by place."""


@dataclass
class Logged:
    """What the log says was done."""

    places: set[str] = field(default_factory=set)
    visits: set[str] = field(default_factory=set)
    requests: dict[str, Json] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    unnamed: Counter[str] = field(default_factory=Counter)
    """Calls for whose names a record had no room, by visit."""

    @classmethod
    def of(cls, run: Evidence) -> Logged:
        """What the run's own records say."""
        found = cls()
        for record in run.own:
            about, visit = record.get("about", {}), f"{record['state']}#{record.get('visit', 0)}"
            entered = f"{record['to']}#{record.get('visit', 0) + 1}" if record.get("to") else visit
            found.visits |= {visit, entered}
            if "undoes" in about:
                found.undone.add(about["undoes"])
            if "request" in about:
                found.requests[about["request"]] = about
            asked = record.get("asked", ())
            named = [one["id"] for one in (*asked, *record.get("answered", ())) if one.get("id")]
            found.places.update(named)
            found.visits.update(map(visit_of, named))
            for one in asked:
                if one["kind"] == "more":  # after those that are named, of the same effect
                    found.unnamed[visit_of(named[0]) if named else visit] += int(one.get("count", 1))
        return found


def _check_complete(run: Evidence) -> Iterator[Finding]:
    """No activity in the history that the log lacks, and none in the log that the history lacks."""
    if not run.events:
        yield unknown("completeness", "there is no history to compare the log with")
        return
    logged, made = Logged.of(run), Made()
    problems = [*_made(run, logged, made)]
    problems += _logged(run, made) if run.is_whole else ()
    problems += _approved(run, made)
    problems += _unasked(run, made)
    yield from problems
    if any(one.verdict == "wrong" for one in problems):
        return
    calls = sum(map(len, made.places.values()))
    found = f"{counted(calls, 'call')} and {counted(len(made.questions), 'model call')} of the history"
    if run.is_whole:
        text = f"the log has {found}; what the log says was done is in the history"
        yield ok("completeness", text)
    else:
        text = f"the log has {found}; what it says of the part that is missing cannot be shown"
        yield unknown("completeness", text)


def _made(run: Evidence, logged: Logged, made: Made) -> Iterator[Finding]:
    """What was done and is not in the log."""
    places: dict[tuple[str, int], str] = {}
    children: set[str] = set()
    for execution, event in run.events:
        what, kind = f"execution {execution}: event {event['id']}", event["type"]
        if kind == "ActivityTaskScheduled":
            places[execution, event["id"]] = place_of(event["key"])
            yield from _wrong_if(what, _activity(event, logged, made))
        elif kind == "StartChildWorkflowExecutionInitiated":
            children.add(event["key"])
            place = places[execution, event["id"]] = _place_of_child(run, event["key"], logged)
            yield from _wrong_if(what, _call(place, "inner run", event, logged, made))
        elif "of" in event and not kind.endswith("Started"):
            made.ended.add(places.get((execution, event["of"]), ""))
        else:
            yield from _wrong_if(what, _foreign(event, children))


def _wrong_if(what: str, problem: str) -> Iterator[Finding]:
    if problem:
        yield wrong(what, problem)


def _foreign(event: Json, children: set[str]) -> str:
    """Why an event is none of a run; empty: it is."""
    if event["type"] in TO_OTHERS and event["key"] not in children:
        return f"the run reached for workflow {event['key']}, which is no inner run of it"
    return f"{event['type']}: no run of Ratchet does that" if event["type"] in FOREIGN else ""


def _activity(event: Json, logged: Logged, made: Made) -> str:
    """Why an activity should not be there; empty: it should."""
    kind, key, place = event["name"], event["key"], place_of(event["key"])
    if kind in CALLS:
        return _call(place, kind, event, logged, made)
    if kind == "ask_model":
        made.questions[place] = event
        is_known = visit_of(place) in logged.visits
        return "" if is_known else f"a model was asked at {key}, and the log has no such visit"
    is_known = kind in OF_RATCHET or (kind in OF_CALLS and place in made.places)
    if kind == "compensate_tool":
        is_known = key.partition("@")[0].removeprefix("undo:") in logged.undone
    if kind == "notify":
        is_known = key.split(":")[1] in logged.requests
    return "" if is_known else f"{kind} {key} is of nothing that the log has"


def _call(place: str, kind: str, event: Json, logged: Logged, made: Made) -> str:
    is_new = place not in made.places
    made.places.setdefault(place, []).append((kind, event))
    if place in logged.places or not is_new:
        return ""
    if logged.unnamed[visit_of(place)] > 0:
        logged.unnamed[visit_of(place)] -= 1
        return ""
    return f"{kind} {event['key']} was made, and the log does not have it"


def _place_of_child(run: Evidence, workflow_id: str, logged: Logged) -> str:
    """Where the machine stood that started an inner run. An id that is too long ends in a digest."""
    root = str(next(iter((run.result or {}).get("parents", ())), ("", run.pack["run"]["run_id"]))[1])[:8]
    before = f"{run.workflow_id}/{root}/"
    if re.search(r"~[0-9a-f]{32}$", workflow_id):
        end = workflow_id[-32:]
        return next((place for place in logged.places if sha256(before + place)[:32] == end), workflow_id)
    return workflow_id.removeprefix(f"{run.workflow_id}/").partition("/")[2]


def _logged(run: Evidence, made: Made) -> Iterator[Finding]:
    """What the log says was done and the history lacks."""
    last_call, known = "", set[tuple[str, str]]()
    for record in run.own:
        what = f"record {record['seq']}"
        for call in record.get("answered", ()):
            kind, place = call["kind"], call.get("id", "")
            if kind in NO_ACTIVITY or not place:
                continue
            if kind == "ask_model":
                # the activity of a tool's call may ask the question after it: one activity for both
                if place not in made.questions and last_call not in made.places:
                    yield wrong(what, f"the log has a reply at {place}, the history no model call there")
                continue
            last_call, result = place, (call["title"], call.get("output", ""))
            yield from _wrong_if(what, _not_made(call, made, result in known))
            if call.get("error") is None and place in made.ended:
                known.add(result)


def _not_made(call: Json, made: Made, is_known: bool) -> str:
    """Why a call cannot have gone as the log says; empty: it can. A tool may allow that an earlier result
    answers the same call again: that `is_known`."""
    place, error = call["id"], call.get("error")
    if error in REFUSED:
        is_made = place in made.places
        return f"the log says that {place} was {error}, and the history has the call" if is_made else ""
    if error in NOT_MADE or place in made.ended or is_known:
        return ""
    return f"the log says that {place} was done, and the history has no such call"


def _approved(run: Evidence, made: Made) -> Iterator[Finding]:
    """A call that people were asked about was made only if they let it, and as they let it."""
    same, others = 0, list[str]()
    for place, (asked, let) in _approvals(run).items():
        calls = [event["key"] for kind, event in made.places.get(place, ()) if kind == "call_tool"]
        arguments = (let if let.get("outcome") == "edited" else asked).get("arguments")
        is_same = {key.rpartition("@")[2] for key in calls} == {_call_digest(asked, arguments)}
        if not calls or (asked.get("withdrawn") and not is_same):  # new code has changed the call
            continue
        if not let:
            text = f"people were asked about {place}; nobody allowed it, and it was made"
            yield wrong(f"record {asked['seq']}", text)
        elif is_same:
            same += 1
        else:
            others.append(place)
    if same:
        text = (
            f"{counted(same, 'call')} made with the arguments that were approved, by the digests in the ids"
        )
        yield ok("approved calls", text)
    if others:
        text = (
            "no id shows the approved arguments (too long for the log, artifacts kept, or others were sent)"
        )
        yield unknown("approved calls", f"{text}: {', '.join(others)}")


def _approvals(run: Evidence) -> dict[str, tuple[Json, Json]]:
    """By place what people were asked about a call, and what let it be made; empty: nothing did."""
    found: dict[str, tuple[Json, Json]] = {}
    done = set[str]()
    for record in run.own:
        event, about = record["event"], record.get("about", {})
        done |= {call.get("id", "") for call in record.get("answered", ())}
        if "request" not in about or about.get("kind") != "approval" or about["activity_id"] in done:
            continue
        place = about["activity_id"]
        if event == "Requested":
            found[place] = ({**about, "seq": record["seq"]}, {})
        decided = event == "Decided" and about["outcome"] in ("approved", "edited")
        lapsed = event == "Expired" and about.get("at_deadline") == "approve"
        if place in found and (decided or lapsed):
            found[place] = (found[place][0], about)
        if place in found and event == "Withdrawn":
            found[place] = ({**found[place][0], "withdrawn": True}, {})
    return found


def _unasked(run: Evidence, made: Made) -> Iterator[Finding]:
    """Calls of tools by the agent's approvals: one that these never let pass unasked was made by an approval,
    its own or an earlier one, or within the bound of its rule."""
    places = [place for place, found in made.places.items() if any(kind == "call_tool" for kind, _ in found)]
    if not run.task:
        text = "without a result nothing says who must approve the calls"
        yield from [unknown("approvals", text)] if places else []
        return
    calls = Called.of(run)
    entries = functools.cache(lambda tool, effect: [*_entries(run.task["approvals"], tool, effect)])
    passed, unshown = 0, Counter[str]()
    for place in places:
        tool = calls.tools.get(place, "")
        may = [one for effect in calls.effects(place) for one in entries(tool, effect)]
        verdict, text = _judged(may, tool in calls.let.get(place, ()), calls.within.get(place, set()))
        if tool != (named := calls.of_result.get(place, tool)):
            verdict, text = "wrong", f"the result has {named} called there"
        elif verdict == "wrong" and not tool:
            verdict = "unknown"
        passed += verdict == "ok"
        unshown[tool or "calls that the log does not name"] += verdict == "unknown"
        if verdict == "wrong":
            yield wrong(f"record {calls.records.get(place, 0)}", f"{tool} was called at {place}; {text}")
    if passed:
        yield ok("approvals", f"{counted(passed, 'call')} made by an approval, or within a bound")
    if unshown.total():
        names = ", ".join(sorted(name for name, count in unshown.items() if count))
        text = f"{counted(unshown.total(), 'call')} made unasked; that the agent lets them is not shown"
        yield unknown("approvals", f"{text}: {names}")


def _judged(
    entries: Sequence[tuple[str, str, Json]], is_let: bool, within: set[str]
) -> tuple[Verdict | None, str]:
    """Whether a call could be made that these entries of the approvals may decide about, and why not; None:
    it needed nobody. `within`: the rules in whose bounds it passed."""
    modes = {entry: mode for entry, mode, _ in entries}
    bounds = {entry for entry, mode, rule in entries if mode == "never" and rule.get("at_most")}
    asking = {entry for entry, mode in modes.items() if mode in NEVER_UNASKED} | bounds
    if not asking:
        return None, ""
    if is_let or within & bounds:
        return "ok", ""
    said = ", ".join(f"{entry}: {mode}" for entry, mode in modes.items())
    verdict: Verdict = "wrong" if asking == modes.keys() else "unknown"
    return verdict, f"nobody was asked, and the agent's approvals have {said}"


@dataclass
class Called:
    """The calls of tools that the log and the result have, by place; and why they could be made."""

    tools: dict[str, str] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    """The last record that has the call."""
    done: dict[str, str | None] = field(default_factory=dict)
    """Those that have ended, with their error."""
    let: dict[str, set[str]] = field(default_factory=dict)
    """The tools for which an approval, a deadline or an earlier approval let a call pass, before it ended."""
    within: dict[str, set[str]] = field(default_factory=dict)
    """The rules in whose bounds it passed."""
    of_result: dict[str, str] = field(default_factory=dict)
    """The tool by the result."""
    known: dict[str, str] = field(default_factory=dict)
    """Effects of tools that change something."""
    by_place: dict[str, str] = field(default_factory=dict)
    """The same of calls."""
    has_all: bool = False
    """The result has room for all such calls."""

    @classmethod
    def of(cls, run: Evidence) -> Called:
        """What the run's own records and its result say."""
        found = cls()
        for record in run.own:
            found._add(record)
        for place, (about, let) in _approvals(run).items():
            if let:
                found.let.setdefault(place, set()).add(about["tool"])
        calls = (run.result or {}).get("calls") or []
        found.has_all = run.result is not None and len(calls) < RESULT_CALLS
        for call in calls:
            place = place_of(call["activity_id"])
            found.of_result[place], found.by_place[place] = call["tool"], call["effect"]
            if place in found.records:  # those of inner runs are elsewhere
                found.known[call["tool"]] = call["effect"]
            if place not in found.done or place not in found.tools:  # new code may have changed it
                found.tools[place] = call["tool"]
        return found

    def _add(self, record: Json) -> None:
        about, place = record.get("about", {}), str(record.get("about", {}).get("activity_id"))
        if record["event"] == "ApprovedBefore" and place not in self.done:
            self.let.setdefault(place, set()).add(about["tool"])
        elif record["event"] == "WithinBound" and place not in self.done:
            self.within.setdefault(place, set()).update(bound["rule"] for bound in about["bounds"])
        section, _, effect = str(about.get("rule", "")).partition(".")
        if section == "effects" and about.get("tool"):
            self.known[about["tool"]] = effect
        for call in (*record.get("asked", ()), *record.get("answered", ())):
            if call.get("id"):
                self.records[call["id"]] = record["seq"]
            if call.get("tool"):
                self.tools[call["id"]] = call["tool"]
        self.done |= {one["id"]: one.get("error") for one in record.get("answered", ()) if one.get("id")}

    def effects(self, place: str) -> tuple[str, ...]:
        """The effects that the call may have had. What has ended and is not in the result, although that has
        room, has changed nothing."""
        effect = self.by_place.get(place) or self.known.get(self.tools.get(place, ""), "")
        is_harmless = self.has_all and place in self.done and self.done[place] not in NOT_MADE
        return HARMLESS if is_harmless and not effect else (effect,)


def _not_granted(run: Evidence, about: Json, approved: dict[str, tuple[Json, Json]]) -> str:
    """Why no earlier approval lets this call pass; empty: one does. `approved` has those that people gave
    before: what was asked, and the decision."""
    tool, rule, name = (about.get(key) for key in ("tool", "rule", "granted"))
    asked, decided = approved.get(str(name), ({}, {}))
    modes = {
        entry: mode
        for entry, mode, entry_rule in (_entries(run.task["approvals"], str(tool)) if run.task else ())
        if mode in ASKING or entry_rule.get("at_most")
    }
    if run.task and rule not in modes:
        return f"{tool} passed by the entry {rule} of the approvals, which asks nobody about it"
    is_once = modes.get(str(rule), "first_time") == "first_time" and asked.get("rule") == rule
    if asked.get("tool") == tool and (is_once or decided.get("standing_approval") is not None):
        return ""
    return f"{tool} passed by {name}, and no decision on that lets later calls pass"


def _call_digest(request: Json, arguments: Json | None) -> str:
    """How the id of a tool's call ends that keeps no artifacts; another one ends otherwise."""
    text = json.dumps(["ToolInput", [request.get("tool"), arguments, []]], sort_keys=True)
    return sha256(text)[:6]


def _check_inner(run: Evidence) -> Iterator[Finding]:
    """The inner runs whose evidence is here, and those whose is not."""
    here = {one["run"]["workflow_id"]: one for one in run.pack["inner"]}
    started = {event["key"] for _, event in run.events if event["type"] == "ChildWorkflowExecutionStarted"}
    for name in sorted(started - here.keys()):
        yield unknown(f"inner run {name}", "it was started; what it did is not in this file")
    for name in sorted(here.keys() - started):
        yield wrong(f"inner run {name}", "the history does not have it")
    ends = {sent["workflow_id"]: sent["log_head"] for sent in run.messages("inner_run")}
    for name in sorted(here.keys() & ends.keys()):
        if ends[name] != _end(here[name]["log"]["records"]):
            yield wrong(f"inner run {name}", "its log ends otherwise than the outer run was told")
    for text in run.pack["missing"]:
        yield unknown("missing", text)


LOOKS: dict[str, Callable[[Evidence], Iterator[Finding]]] = {
    "log": _check_log,
    "result": _check_result,
    "agent": _check_agent,
    "certificate": _check_certificate,
    "decisions": _check_decisions,
    "history": _check_history,
    "completeness": _check_complete,
    "inner": _check_inner,
}


# -- the command --------------------


def summary(found: Sequence[Finding]) -> str:
    """In one line how it came out."""
    counts = Counter(one.verdict for one in found)
    shown = f"{counts['ok']} checked and right, {counts['unknown']} that nothing here can show"
    return f"{counts['wrong']} wrong; {shown}" if counts["wrong"] else f"nothing is wrong: {shown}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a file and print the findings; the exit code."""
    parser = argparse.ArgumentParser(description="Check an evidence file of a Ratchet run.")
    parser.add_argument("file", type=Path)
    trusted = "public key that you trust, as `ratchet key show` prints it"
    parser.add_argument("--key", action="append", default=[], help=trusted)
    given = parser.parse_args(arguments)
    try:
        keys = [*map(key_of, given.key)]
    except ValueError as error:
        parser.error(f"--key {error}")
    try:
        pack = json.loads(given.file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        parser.error(f"{given.file} cannot be read as JSON: {error}")
    found = check(pack, keys)
    for one in found:
        line = f"{one.verdict:8} {one.what}: {one.text}"
        sys.stdout.write("".join(c if c.isprintable() else "?" for c in line) + "\n")
    sys.stdout.write(summary(found) + "\n")
    return 1 if any(one.verdict == "wrong" for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
