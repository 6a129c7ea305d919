"""Check an evidence file of a Ratchet run: `python verify_evidence.py FILE [--key PUBLIC_KEY]...`

It needs Python 3.11 and the package `cryptography`, and nothing of Ratchet: copy this one file to where the
evidence is checked. `ratchet verify` runs the same code. Exit code 0: nothing is wrong; 1: something is, and
a line names it. What each line proves, and what none can prove, is in docs/evidence.md.

A file is JSON. Each of its lists (the log's records, what people sent, the events of each of Temporal's
histories) is a hash chain: the hash of an item is SHA-256 over the hash before it, a line feed and the item's
text. `head` is one hash over all of them. Whoever changes the file can make all hashes anew: only a signature
under the head, with a key that you know from elsewhere, shows that nobody did. So does what the worker has
signed when it archived the log (an attestation), for the log, the result, and the history so far.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = [
    "FORMAT", "NOT_OF_THE_AGENT", "Finding", "Json", "attested_content", "canonical", "chained", "check",
    "head_content", "head_of", "main", "sha256", "summary", "wrong",
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


def fits(key: str, content: bytes, signature: str) -> bool:
    """The signature is this key's over the content."""
    try:
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
        self.own = self.records[max(forked, 0) :]
        self.result = None if log["result"] is None else json.loads(log["result"])
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
    if records and records[0]["event"] != "Started":
        yield wrong("record 0", f"a log begins with Started, not with {records[0]['event']}")
    if len(run.own) < len(records):
        count = len(records) - len(run.own)
        yield unknown("fork", f"the first {count} records are of the run that it was forked from: see there")


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


def _check_decisions(run: Evidence) -> Iterator[Finding]:
    """Whatever the log calls signed has a signature of that person, over what they saw."""
    asked: dict[str, Json] = {}
    counts: Counter[str] = Counter()
    signers: dict[str, str] = {}
    for record in run.own:
        event, about = record["event"], record.get("about", {})
        what = f"record {record['seq']}"
        if "request" not in about:
            continue
        if event in ("Requested", "Escalated"):
            asked[about["request"]] = about
        is_bound = event == "Requested" or about.get("verb") == "edit"
        if is_bound and (problem := _other_digest(run, about)):
            yield wrong(what, problem)
        if event in ("Voted", "Decided"):
            key = _key_of(run, about, asked.get(about["request"], {})) if about["verified"] else ""
            problem = _unsigned(run, about, key) if about["verified"] else ""
            counts["unsigned" if problem else "signed" if key else "claimed"] += 1
            signers |= {about["by"]: key} if key else {}
            yield from _told(run, what, problem)
    yield from _check_commands(run)
    if counts["signed"]:
        names = ", ".join(f"{name} ({key})" for name, key in sorted(signers.items()))
        text = f"{counts['signed']} signed, over what was asked, with the keys that the agent lists: {names}"
        yield ok("decisions", text)
    if counts["claimed"]:
        claimed = f"{counts['claimed']} of groups without keys: their names are only claimed"
        yield unknown("decisions", claimed)


def _told(run: Evidence, what: str, problem: str) -> Iterator[Finding]:
    """A problem with what is not in the history, or does not fit the agent: without these nothing follows."""
    if problem:
        yield wrong(what, problem) if run.is_whole and run.task else unknown(what, problem)


def _other_digest(run: Evidence, about: Json) -> str:
    """Why the digest of a request is not that of what was asked; empty: it is, or the log has it cut."""
    arguments = about.get("arguments")
    if about["kind"] in ("question", "escalation") or arguments is None:
        return ""
    where = [run.workflow_id, run.pack["run"]["run_id"], about["activity_id"]]
    made = sha256(canonical([*where, about["kind"], about.get("tool"), arguments]))[:32]
    return "" if made == about["digest"] else f"the digest of {about['request']} is not that of its arguments"


def _key_of(run: Evidence, about: Json, request: Json) -> str:
    """The public key of who decided, as the agent lists it in the group that was asked."""
    groups = run.task.get("people", {}).get("groups", {})
    return str(groups.get(request.get("group"), {}).get("keys", {}).get(about["by"], ""))


def _unsigned(run: Evidence, about: Json, key: str) -> str:
    """Why nothing that was sent has this person's signature; empty: something has."""
    by, named = about["by"], f"{about['by']}'s signed decision on {about['request']}"
    wanted = {
        "request": about["request"], "digest": about["asked"], "decision": about["verb"], "by": by,
        "id": about["id"],
    }  # fmt: skip
    sent = [one for one in run.messages("decide") if {name: one.get(name) for name in wanted} == wanted]
    if not sent:
        return f"{named} is not among what was sent to the run"
    if any(_is_signed("decide", one, key, [{"run": run.workflow_id}]) for one in sent):
        return ""
    return f"{named} was sent, but the signature does not fit the key of {by} in the agent"


def _check_commands(run: Evidence) -> Iterator[Finding]:
    people = run.task.get("people", {})
    keys = people.get("groups", {}).get(people.get("commands"), {}).get("keys", {})
    runs = [[run.workflow_id, run.pack["run"]["run_id"]], *(run.result or {}).get("parents", ())]
    places = [{"run": name, "origin": origin} for name, origin in runs]
    count = 0
    for record in run.own:
        about, by = record.get("about", {}), str(record.get("by", "")).removesuffix(" (verified)")
        if "command" not in about or not str(record.get("by", "")).endswith(" (verified)"):
            continue
        sent = [one for one in run.messages("command") if one.get("id") == about.get("id")]
        if any(_is_signed("command", one, keys.get(by, ""), places) for one in sent):
            count += 1
            continue
        problem = f"{by}'s signed command {about['command']} is not among what was sent, or does not fit"
        yield from _told(run, f"record {record['seq']}", problem)
    if count:
        yield ok("commands", f"{count} of people who signed them")


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
                    found.unnamed[visit_of(named[0]) if named else visit] += int(one["title"].split()[1])
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
            yield from _told_of(what, _activity(event, logged, made))
        elif kind == "StartChildWorkflowExecutionInitiated":
            children.add(event["key"])
            place = places[execution, event["id"]] = _place_of_child(run, event["key"], logged)
            yield from _told_of(what, _call(place, "inner run", event, logged, made))
        elif "of" in event and not kind.endswith("Started"):
            made.ended.add(places.get((execution, event["of"]), ""))
        else:
            yield from _told_of(what, _foreign(event, children))


def _told_of(what: str, problem: str) -> Iterator[Finding]:
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
            yield from _told_of(what, _not_made(call, made, result in known))
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
        if calls and not let:
            text = f"people were asked about {place}; nobody allowed it, and it was made"
            yield wrong(f"record {asked['seq']}", text)
        elif calls:
            arguments = (let if let["outcome"] == "edited" else asked).get("arguments")
            if {key.rpartition("@")[2] for key in calls} == {_call_digest(asked, arguments)}:
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
    for record in run.own:
        about = record.get("about", {})
        if "request" not in about or about.get("kind") != "approval":
            continue
        place = about["activity_id"]
        if record["event"] == "Requested":
            found[place] = ({**about, "seq": record["seq"]}, {})
        lapsed = about["outcome"] == "expired" and about.get("at_deadline") == "approve"
        if place in found and (about["outcome"] in ("approved", "edited") or lapsed):
            found[place] = (found[place][0], about)
    return found


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
    shown = f"{counts['ok']} checked and right, {counts['unknown']} that this file cannot show"
    return f"{counts['wrong']} wrong; {shown}" if counts["wrong"] else f"nothing is wrong: {shown}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a file and print the findings; the exit code."""
    parser = argparse.ArgumentParser(description="Check an evidence file of a Ratchet run.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--key", action="append", default=[], help="public key that you trust, in base64")
    given = parser.parse_args(arguments)
    try:
        pack = json.loads(given.file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        sys.stderr.write(f"{given.file} cannot be read as JSON: {error}\n")
        return 1
    found = check(pack, given.key)
    for one in found:
        line = f"{one.verdict:8} {one.what}: {one.text}"
        sys.stdout.write("".join(c if c.isprintable() else "?" for c in line) + "\n")
    sys.stdout.write(summary(found) + "\n")
    return 1 if any(one.verdict == "wrong" for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
