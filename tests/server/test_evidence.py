"""Evidence of runs on the real server: it is right, it is whole, and what was changed in it is named."""

from __future__ import annotations

import base64
import copy
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from activities.evidence.events import public_text
from activities.evidence.verify_evidence import (
    Finding,
    Json,
    _call_digest,
    _other_arguments,
    check,
    digest_of,
)
from activities.keyfiles import private_key
from activities.settings import Settings
from client.errors import RatchetError, UnknownRun
from client.history.checkpoints import source_of
from client.history.evidence import evidence_of, with_signature
from client.history.fork import ForkChanges, forked_task
from client.keys import new_key, signer
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.activities.evidencekit import CHANGES, forged, retold
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import (
    UNATTENDED,
    Run,
    begin,
    boundaries,
    calls,
    command,
    decide,
    eventually,
    open_request,
    reset,
    scripted,
    task,
    until,
)
from worker import build_worker
from workflows.api import TASK_QUEUE
from workflows.certificate import Certificate
from workflows.gate.stuck import StuckSettings
from workflows.people import ApprovalRule, Approvals, AtMost, Group, People, RequestSettings, StandingApproval
from workflows.status import RunResult

QUESTIONER = (Path(__file__).parents[1] / "drifting.py").read_text().replace('"drifting"', '"questioner"')
"""A machine that asks a person."""
CAREFUL: dict[str, Any] = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}


@pytest.fixture(scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    found = {name: folder / f"{name}.pem" for name in ("worker", "ada", "bob")}
    for path in found.values():
        new_key(path)
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, Path]) -> Settings:
    """Settings of a worker that signs what it archives."""
    home = tmp_path_factory.mktemp("home")
    asking = home / "questioner.py"
    asking.write_text(QUESTIONER)
    return Settings(
        data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS), str(asking)),
        signing_key=keys["worker"], shutdown_seconds=1,
    )  # fmt: skip


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[AgentClient]:
    """A client of a server of its own, and a worker."""
    async with real_server(settings) as client, build_worker(client, settings):
        yield AgentClient(Connection(client, settings, "the test server", queues=(TASK_QUEUE,)))


@pytest.fixture(scope="module")
async def agents(own: Settings) -> AsyncIterator[AgentClient]:
    async with served(own) as found:
        yield found


@pytest.fixture(scope="module")
async def elsewhere(own: Settings) -> AsyncIterator[AgentClient]:
    """Another server with the same archive, whose worker keeps no histories there."""
    async with served(own.model_copy(update={"history_seconds": 0})) as found:
        yield found


def public(keys: dict[str, Path], name: str) -> str:
    return public_text(private_key(keys[name]))


async def ended(agents: AgentClient, given: Any) -> Run:
    run = await begin(agents.temporal, given)
    await run.result()
    return run


def wrong(pack: Json, *keys: str) -> list[Finding]:
    return [one for one in check(json.loads(json.dumps(pack)), keys) if one.verdict == "wrong"]


def verdicts(pack: Json, *keys: str) -> dict[str, str]:
    return {one.what: one.verdict for one in check(json.loads(json.dumps(pack)), keys)}


@pytest.fixture(scope="module")
async def signed_run(agents: AgentClient, keys: dict[str, Path]) -> Json:
    """The evidence of a run that two people have decided and commanded with their keys."""
    public_keys = {name: public(keys, name) for name in ("ada", "bob")}
    people = People(
        groups={"both": Group(keys=public_keys, quorum=2), "either": Group(keys=public_keys)},
        requests=RequestSettings(group="both"),
        commands="either",
    )
    replies = [calls(("mark_once", {"line": line, "seconds": 0.5})) for line in ("first", "second")]
    given = task(*replies, "done", tools=("mark_once",), **{**CAREFUL, "people": people})
    run = await begin(agents.temporal, given)
    ada, bob = (signer(name, keys[name]) for name in ("ada", "bob"))
    first = await open_request(run)
    await agents.command(run.id, "pause", by=ada, text="let me look")
    await agents.command(run.id, "resume", by=bob)
    await agents.decide(run.id, first, "approve", by=ada)
    await agents.decide(run.id, first, "approve", by=bob, text="looks good", signal=True)
    await until(run, lambda status: status.requests > 0 and "second" in status.doing)
    second = await open_request(run)
    less: dict[str, Any] = {"line": "less", "seconds": 1.5}
    for person in (ada, bob):
        await agents.decide(run.id, second, "edit", by=person, arguments=less)
    await run.result()
    return await evidence_of(agents, run.id, key=private_key(keys["worker"]))


async def test_signatures_of_people_and_worker_are_checked(signed_run: Json, keys: dict[str, Path]) -> None:
    found = verdicts(signed_run, public(keys, "worker"))
    assert wrong(signed_run, public(keys, "worker")) == []
    for what in ("signature", "decisions", "commands", "attestation 0", "completeness", "result"):
        assert found[what] == "ok", what
    told = {one.what: one.text for one in check(signed_run)}
    assert [told[what][0] for what in ("decisions", "commands", "approved calls")] == ["4", "2", "2"]
    assert all(f"{name} ({public(keys, name)})" in told["decisions"] for name in ("ada", "bob"))
    anybody = verdicts(signed_run)
    assert (anybody["signature"], anybody["attestation 0"]) == ("unknown", "unknown")
    assert {one.what for one in wrong(signed_run, public(keys, "ada"))} == {"signature"}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_random_change_of_a_real_run_is_named(change: Any, signed_run: Json, keys: dict[str, Path]) -> None:
    for seed in range(5):
        changed, random = copy.deepcopy(signed_run), Random(f"{change.__name__} {seed}")
        named = change(changed, random)
        found = {one.what for one in wrong(changed, public(keys, "worker"))}
        assert any(re.fullmatch(named, what) for what in found), (seed, named, found)


def test_what_people_signed_holds_though_all_hashes_are_made_anew(signed_run: Json) -> None:
    """Nobody without their keys can change what they said, whom it was about, or that they said it."""
    bare = {**signed_run, "attestations": [], "signature": None}
    sent = [n for n, one in enumerate(bare["messages"]["items"]) if one["name"] == "decide"]

    def with_message(number: int, **more: Any) -> Json:
        pack = copy.deepcopy(bare)
        item = pack["messages"]["items"][number]
        # as if the history had another text there, too
        item |= {"text": json.dumps({**json.loads(item["text"]), **more}), "as_sent": False}
        return forged(pack)

    assert wrong(forged(copy.deepcopy(bare))) == []
    for number in sent:
        for more in ({"decision": "reject"}, {"text": "never mind"}, {"by": "eve"}, {"request": "r7"}):
            assert any(one.what.startswith("record ") for one in wrong(with_message(number, **more))), more
    without = copy.deepcopy(bare)
    del without["messages"]["items"][sent[0]]
    assert any(one.what.startswith("record ") for one in wrong(forged(without)))
    edited = next(n for n in sent if '"edit"' in bare["messages"]["items"][n]["text"])
    pack = with_message(edited, arguments={"line": "more"})
    assert any(one.what.startswith("record ") for one in wrong(pack))


async def test_evidence_comes_from_the_archive_where_temporal_knows_no_run(
    agents: AgentClient, elsewhere: AgentClient, keys: dict[str, Path]
) -> None:
    run = await ended(agents, task(calls(("mark", {"line": "x"})), "done"))
    there, here = await evidence_of(agents, run.id), await evidence_of(elsewhere, run.id)
    assert [one["from"] for pack in (there, here) for one in pack["history"]] == ["server", "archive"]
    assert wrong(here, public(keys, "worker")) == []
    found = verdicts(here, public(keys, "worker"))
    assert (found["attestation 0"], found["completeness"], found["log and history"]) == ("ok", "ok", "ok")
    assert here["log"] == there["log"]
    short, whole = here["history"][0]["events"], there["history"][0]["events"]
    assert whole[: len(short)] == short, "the archive has all but the end"


async def test_run_without_a_history_shows_its_log_alone(agents: AgentClient, elsewhere: AgentClient) -> None:
    run = await ended(elsewhere, task("done"))
    pack = await evidence_of(agents, run.id)
    found = verdicts(pack)
    assert (wrong(pack), found["log"], found["result"]) == ([], "ok", "ok")
    assert (found["history"], found["completeness"], found["attestation"]) == ("unknown",) * 3


async def test_undone_reset_and_forked_runs_are_right(agents: AgentClient) -> None:
    """Of calls that a rollback undid, of a reset and of a fork all that was done is there."""
    book = calls(("book", {"line": "trip", "found": "happened"}))
    given = task(book, book, "done", tools=("book",), **{**CAREFUL, "people": People()})
    run = await begin(agents.temporal, given)
    await decide(run, "approve")
    await until(run, lambda status: status.requests > 0 and status.step == 2)
    await command(run, "rollback", step=1, compensate=True)
    await until(run, lambda status: status.requests > 0 and status.branch == 1)
    await decide(run, "approve")
    await until(run, lambda status: status.requests > 0 and status.step == 2)
    await decide(run, "reject")
    await run.result()
    undone = await evidence_of(agents, run.id)
    assert any(event.get("name") == "compensate_tool" for event in undone["history"][0]["events"])
    fork = await agents.fork(run.id, 2, ForkChanges(people=UNATTENDED))
    await agents.result(fork)
    forked = await evidence_of(agents, fork)
    events = await boundaries(run)
    last = await reset(run, agents.temporal, events[-2])
    assert (await last.result()).was_reset
    await evidence_of(agents, run.id)
    earlier = await reset(run, agents.temporal, events[-4])  # its log is another, and so is its history
    assert (await earlier.result()).was_reset
    again = await evidence_of(agents, run.id)
    for pack in (undone, forked, again):
        assert wrong(pack) == []
        assert verdicts(pack)["completeness"] == "ok"
    assert (verdicts(forked)["fork"], verdicts(again)["reset"]) == ("unknown", "unknown")


@pytest.fixture(scope="module")
async def fork_with_message(agents: AgentClient, keys: dict[str, Path]) -> Json:
    """The evidence of a fork that was given a message, in which a key must sign commands."""
    people = People(groups={"desk": Group(keys={"ada": public(keys, "ada")})}, commands="desk")
    run = await ended(agents, task("one", "done", people=people))
    fork = await agents.fork(run.id, 0, ForkChanges(message="be brief " * 3_000), by="eve")
    await agents.result(fork)
    return await evidence_of(agents, fork)


def test_message_of_a_fork_needs_no_signature(fork_with_message: Json) -> None:
    """It is part of the start, as the goal is."""
    assert wrong(fork_with_message) == []
    assert verdicts(fork_with_message)["record 2"] == "unknown"


def said_by_another(records: Records) -> None:
    of_event(records, "Steered")["by"] = "ada (claimed)"


def other_words(records: Records) -> None:
    record = of_event(records, "Steered")
    record["reason"] = record["notes"][0]["content"] = "pay everybody"


def other_reason(records: Records) -> None:
    of_event(records, "Steered")["reason"] = "pay everybody"


def rule_for_the_model(records: Records) -> None:
    of_event(records, "Steered")["notes"][0]["role"] = "system"


def message_of_a_fork_without(records: Records) -> None:
    del of_event(records, "Forked")["about"]["message"]


def left_out(records: Records) -> None:
    record = of_event(records, "Steered")
    record["event"], record["notes"] = "Migrated", []


@pytest.mark.parametrize(
    "change",
    [said_by_another, other_words, other_reason, rule_for_the_model, message_of_a_fork_without, left_out],
    ids=lambda change: change.__name__,
)
def test_message_of_a_fork_is_that_of_its_start(change: Any, fork_with_message: Json) -> None:
    changed = retold(fork_with_message, lambda pack, records: change(records))
    texts = [one.text for one in wrong(changed) if one.what in ("record 1", "record 2")]
    assert any("without a signature that was checked" in one or "does not come next" in one for one in texts)


async def test_calls_for_which_a_record_has_no_room_are_counted(agents: AgentClient) -> None:
    many = calls(*(("mark", {"line": f"{number} {'x' * 150}"}) for number in range(60)))
    run = await ended(agents, task(many, "done"))
    pack = await evidence_of(agents, run.id)
    assert '"kind":"more"' in "".join(pack["log"]["records"])
    assert (wrong(pack), verdicts(pack)["completeness"]) == ([], "ok")


@pytest.mark.exhaustive
async def test_encrypted_run_is_right(own: Settings, tmp_path: Path) -> None:
    """What people sent is not in the history to the letter; it is said which texts were decoded."""
    key = {"2026": base64.b64encode(b"k" * 64).decode()}
    settings = Settings(**{**own.model_dump(), "data_dir": tmp_path / ".ratchet", "encryption_keys": key})
    async with served(settings) as agents:
        asks = task(calls(("mark_once", {"line": "x"})), "done", tools=("mark_once",), **CAREFUL)
        run = await begin(agents.temporal, asks)
        await decide(run, "approve")
        await run.result()
        pack = await evidence_of(agents, run.id)
    assert {one["as_sent"] for one in pack["messages"]["items"]} == {False}
    assert (wrong(pack), verdicts(pack)["completeness"]) == ([], "ok")


async def test_run_that_was_ended_from_outside_has_no_result(agents: AgentClient) -> None:
    slow = calls(("mark", {"line": "slow", "seconds": 30}))
    run = await begin(agents.temporal, task(slow, "done"))
    await until(run, lambda status: status.doing.startswith("calling mark"))
    with pytest.raises(RatchetError, match="not over"):
        await evidence_of(agents, run.id)
    await run.terminate("somebody did")
    pack = await evidence_of(agents, run.id)
    found = verdicts(pack)
    assert (wrong(pack), found["result"], found["completeness"]) == ([], "unknown", "ok")


async def test_model_call_never_answered_belongs_to_visit_in_log(agents: AgentClient) -> None:
    asks = task(models={"default": scripted("late", delay_seconds=60)})
    run = await begin(agents.temporal, asks)
    await until(run, lambda status: status.doing != "")
    await eventually(lambda: is_asking(run))
    await run.terminate("somebody did")
    pack = await evidence_of(agents, run.id)
    assert (wrong(pack), verdicts(pack)["completeness"]) == ([], "ok")


async def is_asking(run: Run) -> bool:
    """A worker has begun to ask the model."""
    return bool((await run.describe()).raw_description.pending_activities)


async def test_run_that_ended_before_it_began_has_one_record(agents: AgentClient, own: Settings) -> None:
    given = task("done", machine="react")
    run = await begin(agents.temporal, given, task_queue="cancelled early")
    await run.cancel()
    async with build_worker(agents.temporal, own, "cancelled early"):
        await run.result()
    pack = await evidence_of(agents, run.id)
    assert [json.loads(text)["event"] for text in pack["log"]["records"]] == ["Closed"]
    assert (wrong(pack), verdicts(pack)["result"]) == ([], "ok")


async def test_fork_that_ended_before_it_began_is_right(agents: AgentClient, own: Settings) -> None:
    """Its source's records stand in its log, and none says where they end."""
    asks = task(calls(("mark_once", {"line": "x"})), "done", tools=("mark_once",), **CAREFUL)
    source = await begin(agents.temporal, asks)
    await decide(source, "approve")
    await source.result()
    proof = Certificate(
        digest="0" * 64, complete=True, machine="tools", version="1", ratchet="", code={}, table="",
        options_schema="", options={}, tools=(),
    )  # fmt: skip
    given = forked_task(await source_of(agents, source.id), 2).model_copy(update={"certificate": proof})
    run = await begin(agents.temporal, given, task_queue="forked early")
    await run.cancel()
    async with build_worker(agents.temporal, own, "forked early"):
        await run.result()
    pack = await evidence_of(agents, run.id)
    assert json.loads(pack["log"]["records"][-1])["event"] == "Closed"
    assert len(pack["log"]["records"]) > 1
    found = verdicts(pack)
    assert (wrong(pack), found["result"], found["fork"]) == ([], "ok", "unknown")


async def test_unknown_run_has_no_evidence(agents: AgentClient) -> None:
    with pytest.raises(UnknownRun):
        await evidence_of(agents, "no-such-run")


async def test_changed_archive_gives_no_evidence(agents: AgentClient, own: Settings) -> None:
    run = await ended(agents, task("done"))
    with closing(sqlite3.connect(own.archive_file)) as file, file:
        file.execute(
            "UPDATE records SET json=replace(json, 'done', 'gone') WHERE workflow_id=? AND seq=1", (run.id,)
        )
    with pytest.raises(RatchetError, match="record 1"):
        await evidence_of(agents, run.id)


async def test_signed_file_of_another_key_is_refused(agents: AgentClient, keys: dict[str, Path]) -> None:
    pack = await evidence_of(agents, (await ended(agents, task("done"))).id)
    theirs = with_signature(pack, private_key(keys["bob"]))
    assert [one.what for one in wrong(theirs, public(keys, "worker"))] == ["signature"]


# -- what people signed, told otherwise --------------------

EVIL = {"line": "EVIL", "seconds": 0.5, "file": "marks.txt", "until": "", "text": "done"}
Records = list[Json]


def of_event(records: Records, event: str, number: int = 0) -> Json:
    return [one for one in records if one["event"] == event][number]


def called_otherwise(pack: Json, records: Records, *numbers: int) -> None:
    """The call that these records are about was of other arguments, and was made with them."""
    for number in numbers:
        about = records[number]["about"]
        where = [pack["run"]["workflow_id"], pack["run"]["run_id"], about["activity_id"], about["kind"]]
        about |= {"arguments": EVIL, "digest": digest_of([*where, about["tool"], EVIL])}
        for event in pack["history"][0]["events"]:
            if event.get("key", "").startswith(f"{about['activity_id']}@"):
                event["key"] = f"{about['activity_id']}@{_call_digest(about, EVIL)}"


def edited_otherwise(pack: Json, records: Records) -> str:
    """They signed an edit to `less`."""
    called_otherwise(pack, records, 12, 13)
    return 'the log has line "EVIL", and what was signed is "less"'


def approved_otherwise(pack: Json, records: Records) -> str:
    """They signed the digest of another call."""
    called_otherwise(pack, records, 3)
    return "its asked is .*, and the request has"


def one_of_two(pack: Json, records: Records) -> str:
    """Bob has not signed, and the quorum is 2."""
    records[6]["event"], records[6]["about"]["outcome"] = "Decided", "approved"
    del records[7]
    return "r1 is approved by ada: expected 2 who decide the same, found 1"


def one_for_two(pack: Json, records: Records) -> str:
    """Ada's vote stands there twice."""
    records[7] = {**records[6], "event": "Decided", "about": {**records[6]["about"], "outcome": "approved"}}
    return "expected 2 who decide the same, found 1"


def never_signed(pack: Json, records: Records) -> str:
    """Nobody has signed, in a group with keys."""
    for number in (6, 7, 12, 13):
        about = records[number]["about"]
        about["verified"], records[number]["by"] = False, f"{about['by']} (claimed)"
    items = pack["messages"]["items"]
    pack["messages"]["items"] = [one for one in items if one["name"] != "decide"]
    return "without a signature that was checked; the group both has keys"


def other_outcome(pack: Json, records: Records) -> str:
    """The decision and what came of it do not belong together."""
    records[7]["about"]["outcome"], records[13]["about"]["outcome"] = "edited", "approved"
    return 'its outcome is "edited", and after approve it should be "approved"'


def other_group(pack: Json, records: Records) -> str:
    """One person of another group would do."""
    about = records[3]["about"]
    del about["quorum"]
    about["group"] = "either"
    records[6]["event"], records[6]["about"]["outcome"] = "Decided", "approved"
    del records[7]
    return 'its group is "either", and the agent has "both"'


def other_entry(pack: Json, records: Records) -> str:
    """An entry of the approvals that the agent does not have."""
    records[3]["about"]["rule"] = "rules.0"
    return "r1 names the entry rules.0 of the approvals; what the agent has for mark_once is: effects.unsafe"


def by_deadline(pack: Json, records: Records) -> str:
    """Nobody had to decide: the agent has no deadline, and rejects."""
    asked = records[3]
    asked["about"] |= {"at_deadline": "approve", "deadline": asked["at"] + 0.01}
    about = {**asked["about"], "outcome": "expired"}
    records[6:8] = [{**asked, "event": "Expired", "by": "deadline", "about": about, "at": asked["at"] + 1}]
    return 'its at_deadline is "approve", and the agent has "reject"'


def never_asked(pack: Json, records: Records) -> str:
    """The decisions are there, and the request is not."""
    del records[3]
    return "Voted of r1, and the records before it have no open request r1"


def nobody_asked(pack: Json, records: Records) -> str:
    """Nothing is left of the request."""
    del records[6:8], records[3]
    return "mark_once was called at .* nobody was asked, and the agent's approvals have effects.unsafe"


def asked_too_late(pack: Json, records: Records) -> str:
    """They are asked, and decide, when the call has ended."""
    late = [records[number] for number in (3, 6, 7)]
    del records[6:8], records[3]
    at = records.index(of_event(records, "Requested"))
    records[at:at] = late
    return "mark_once was called at .* nobody was asked"


def passed_to_others(pack: Json, records: Records) -> str:
    """The agent passes this on to nobody."""
    about = {**records[3]["about"], "group": "either", "quorum": 1}
    records.insert(4, {**records[3], "event": "Escalated", "about": about})
    return "r1 is passed on, and the agent names no group"


def another_command(pack: Json, records: Records) -> str:
    """Ada signed `pause`."""
    records[4]["event"] = "Steered"
    records[4]["about"] |= {"command": "steer", "text": "Pay eve."}
    return 'the log has command "steer", and what was signed is "pause"'


def another_event(pack: Json, records: Records) -> str:
    """The same, and the record still names the pause."""
    note = {"role": "user", "content": "Pay eve."}
    records[4] |= {"event": "Steered", "reason": "Pay eve.", "notes": [note]}
    return "no run writes Steered for ada's signed command pause"


def command_of_nobody(pack: Json, records: Records) -> str:
    """Nobody has signed it, in a group with keys."""
    records[4]["by"] = "ada (claimed)"
    return "Paused by ada \\(claimed\\), without a signature that was checked; the group either has keys"


def command_twice(pack: Json, records: Records) -> str:
    """Ada has paused the run once."""
    records.insert(9, records[4])
    return "ada's command .* was obeyed before"


def with_fork(pack: Json, records: Records) -> str:
    """All before is said to be of another run, so that nobody looks at it here."""
    other_outcome(pack, records)
    about = {"workflow_id": "source", "run_id": "of-source", "step": 3}
    records.insert(17, {**records[16], "event": "Forked", "by": "person", "about": about, "back_to": 16})
    return "it says that the run was forked from run source .*; the result names none"


def with_fork_and_origin(pack: Json, records: Records) -> str:
    """The result says so, too; the calls in the history do not."""
    with_fork(pack, records)
    result = json.loads(pack["log"]["result"])
    pack["log"]["result"] = json.dumps({**result, "origin": records[17]["about"]})
    return "was made, and the log does not have it"


@pytest.mark.parametrize("change", [
    edited_otherwise, approved_otherwise, one_of_two, one_for_two, never_signed, other_outcome, other_group,
    other_entry, by_deadline, never_asked, nobody_asked,
    asked_too_late, passed_to_others, another_command, another_event,
    command_of_nobody, command_twice, with_fork, with_fork_and_origin,
], ids=lambda change: change.__name__)  # fmt: skip
def test_what_people_signed_cannot_be_told_otherwise(change: Any, signed_run: Json) -> None:
    assert wrong(retold(signed_run, lambda pack, records: None)) == []
    expected = ""

    def changed(pack: Json, records: Records) -> None:
        nonlocal expected
        expected = change(pack, records)

    found = wrong(retold(signed_run, changed))
    assert any(re.search(expected, one.text) for one in found), found


@pytest.fixture(scope="module")
async def ordered_run(agents: AgentClient, keys: dict[str, Path]) -> Json:
    """The evidence of a run with other signatures: after an escalation, for later calls too, about a limit,
    and each command but a pause."""
    groups = {name: Group(keys={who: public(keys, who)}) for name, who in (("desk", "ada"), ("boss", "bob"))}
    later = RequestSettings(
        group="desk", deadline_seconds=10, at_deadline="escalate", escalate_to=("boss", "desk")
    )
    people = People(
        groups=groups,
        requests=RequestSettings(group="desk"),
        kinds={"approval": later},
        commands="desk",
        on_limit="ask",
    )
    lines = ("paid 1", "paid 2", "other")
    replies = [calls(("book", {"line": line, "found": "happened"})) for line in lines]
    given = task(*replies, tools=("book",), limits={"model_calls": 2}, **{**CAREFUL, "people": people})
    run = await begin(agents.temporal, given)
    ada, bob = (signer(name, keys[name]) for name in ("ada", "bob"))
    await open_request(run)
    await agents.command(run.id, "steer", "be brief", by=ada)
    await agents.command(run.id, "limits", limits={"tool_calls": 9}, by=ada)
    with pytest.raises(RatchetError, match="not paused"):
        await agents.command(run.id, "resume", "go on", by=ada)

    async def of_boss() -> Any:
        found = await open_request(run)
        return found if found.group == "boss" else None

    standing = StandingApproval(arguments={"line": {"pattern": "^paid"}})
    await agents.decide(run.id, await eventually(of_boss), "approve", by=bob, standing_approval=standing)
    limit = await open_request(run, "limit")
    await agents.decide(run.id, limit, "topup", by=ada, amounts={"model_calls": 3})
    await open_request(run, "approval")
    await agents.command(run.id, "rollback", step=1, by=ada, compensate=True)
    await agents.command(run.id, "abort", "enough", by=ada)
    await run.result()
    return await evidence_of(agents, run.id, key=private_key(keys["worker"]))


def test_signatures_of_every_kind_are_right(ordered_run: Json, keys: dict[str, Path]) -> None:
    events = [json.loads(text)["event"] for text in ordered_run["log"]["records"]]
    for event in ("Escalated", "ApprovedBefore", "RefusedCommand", "Compensated", "RolledBack", "Closed"):
        assert event in events
    found = check(json.loads(json.dumps(ordered_run)), [public(keys, "worker")])
    assert [one for one in found if one.verdict == "wrong"] == []
    told = {one.what: (one.verdict, one.text[0]) for one in found}
    assert (told["decisions"], told["commands"]) == (("ok", "2"), ("ok", "7")), "two of them have undone"
    assert told["approvals"][0] == "ok"


def asked_about_another_tool(records: Records) -> str:
    of_event(records, "ApprovedBefore")["about"]["tool"] = "mark"
    return "book was called at .*; nobody was asked"


def other_end(records: Records) -> str:
    of_event(records, "Closed")["about"]["exit_reason"] = "cancelled"
    return "it says that the run ended as aborted, and the log cancelled"


def asked_for_no_call(records: Records) -> str:
    records.remove(of_event(records, "ApprovedBefore"))
    return "book was called at .*; nobody was asked"


def asked_afterwards(records: Records) -> str:
    passed = of_event(records, "ApprovedBefore")
    records.remove(passed)
    records.insert(-1, passed)
    return "book was called at .*; nobody was asked"


def granted_by_nobody(records: Records) -> str:
    of_event(records, "ApprovedBefore")["about"]["granted"] = "r2"
    return "book passed by r2, and no decision on that lets later calls pass"


def ended_otherwise(records: Records) -> str:
    of_event(records, "Closed")["about"]["exit_reason"] = "stuck"
    return "Closed by ada|the log has exit_reason"


def more_money(records: Records) -> str:
    of_event(records, "Decided", 1)["about"]["amounts"] = {"model_calls": 300.0}
    return r'amounts {"model_calls":300}, and what was signed is {"model_calls":3}'


def for_all_calls(records: Records) -> str:
    of_event(records, "Decided")["about"]["standing_approval"] = {}
    return "the log has standing_approval"


def not_passed_on(records: Records) -> str:
    records.remove(of_event(records, "Escalated"))
    return "its asked is"


def passed_to_another(records: Records) -> str:
    of_event(records, "Escalated")["about"]["group"] = "desk"
    return 'its group is "desk", and the agent has "boss"'


def other_words_to_people(records: Records) -> str:
    of_event(records, "Decided")["about"]["text"] = "pay all of it"
    return 'the log has text "pay all of it", and what was signed is ""'


def other_message(records: Records) -> str:
    of_event(records, "Steered")["about"]["text"] = "Pay eve."
    return 'the log has text "Pay eve.", and what was signed is "be brief"'


def other_note(records: Records) -> str:
    of_event(records, "Steered")["notes"][0]["content"] = "Pay eve."
    return r'the log has message \["Pay eve."\], and what was signed is \["be brief"\]'


def other_limits(records: Records) -> str:
    of_event(records, "LimitsSet")["about"]["limits"] = {"tool_calls": None}
    return r'limits {"tool_calls":null}, and what was signed is {"tool_calls":9}'


def other_step(records: Records) -> str:
    of_event(records, "RolledBack")["about"]["step"] = 2
    return "the log has step 2, and what was signed is 1"


def other_refusal(records: Records) -> str:
    of_event(records, "RefusedCommand")["about"]["text"] = "go mad"
    return 'the log has text "go mad"'


def ended_by_another(records: Records) -> str:
    of_event(records, "Closed")["by"] = "bob (verified)"
    return "bob's signed command abort is not among what was sent"


def undone_by_another(records: Records) -> str:
    of_event(records, "Compensated")["by"] = "bob (verified)"
    return "bob's signed command rollback is not among what was sent"


def ended_by_nobody(records: Records) -> str:
    of_event(records, "Closed")["by"] = "ada (claimed)"
    return "Closed by ada .claimed., without a signature that was checked"


def other_last_words(records: Records) -> str:
    of_event(records, "Closed")["reason"] = "aborted: ada (verified) ended the run: bob lies"
    return "the log has reason"


@pytest.mark.parametrize("change", [
    more_money, for_all_calls, not_passed_on, passed_to_another, other_words_to_people, other_message,
    other_note, other_limits, other_step, other_refusal, ended_by_another, ended_by_nobody,
    undone_by_another, other_last_words, asked_for_no_call, asked_afterwards,
    asked_about_another_tool, granted_by_nobody, ended_otherwise, other_end,
], ids=lambda change: change.__name__)  # fmt: skip
def test_no_field_of_what_was_signed_can_be_another(change: Any, ordered_run: Json) -> None:
    expected = ""

    def changed(pack: Json, records: Records) -> None:
        nonlocal expected
        expected = change(records)

    found = wrong(retold(ordered_run, changed))
    assert any(re.search(expected, one.text) for one in found), found


async def test_first_approval_and_a_bound_let_later_calls_pass(agents: AgentClient) -> None:
    """Without what the log says of them they would be wrong."""
    rules = (
        ApprovalRule(tools=("mark_once",), ask="first_time"),
        ApprovalRule(tools=("mark",), ask="never", at_most=AtMost(calls=2)),
    )
    lines = [("mark_once", "a"), ("mark_once", "b"), ("mark", "c"), ("mark", "d"), ("mark", "e")]
    given = task(
        *(calls((tool, {"line": line})) for tool, line in lines), "done", tools=("mark", "mark_once"),
        approvals=Approvals(rules=rules), people=People(),
    )  # fmt: skip
    run = await begin(agents.temporal, given)
    await decide(run, "approve")
    await until(run, lambda status: status.requests > 0 and "mark(" in status.doing)
    await decide(run, "approve")
    await run.result()
    pack = await evidence_of(agents, run.id)
    told = {one.what: (one.verdict, one.text[0]) for one in check(pack)}
    assert (wrong(pack), told["approvals"]) == ([], ("ok", "5"))

    def without(event: str) -> list[str]:
        def changed(_: Json, records: Records) -> None:
            records.remove(of_event(records, event))

        return [one.text for one in wrong(retold(pack, changed))]

    assert "mark_once was called at" in without("ApprovedBefore")[0]
    assert "mark was called at" in without("WithinBound")[0]


async def test_call_that_a_condition_might_require_asking_about_is_named(agents: AgentClient) -> None:
    rules = (ApprovalRule(tools=("mark",), arguments={"line": {"const": "secret"}}),)
    given = task(calls(("mark", {"line": "x"})), "done", tools=("mark",), approvals=Approvals(rules=rules))
    pack = await evidence_of(agents, (await ended(agents, given)).id)
    (found,) = (one for one in check(pack) if one.what == "approvals")
    assert (wrong(pack), found.verdict) == ([], "unknown")
    assert found.text == "1 call made unasked; that the agent lets them is not shown: mark"


async def test_answer_is_to_the_words_of_the_question(agents: AgentClient, keys: dict[str, Path]) -> None:
    group = Group(keys={"ada": public(keys, "ada")})
    people = People(groups={"desk": group}, requests=RequestSettings(group="desk"))
    given = task("well", goal="ask", machine="questioner", people=people)
    run = await begin(agents.temporal, given)
    asked = await open_request(run, "question")
    await agents.decide(run.id, asked, "approve", by=signer("ada", keys["ada"]))
    await run.result()
    pack = await evidence_of(agents, run.id)
    assert (wrong(pack), verdicts(pack)["decisions"]) == ([], "ok")

    def other_question(_: Json, records: Records) -> None:
        of_event(records, "Requested")["reason"] = "Pay eve?"

    assert "not that of its words and options" in "".join(
        one.text for one in wrong(retold(pack, other_question))
    )


def test_arguments_that_nobody_can_compare_are_named(signed_run: Json) -> None:
    """Defaults that fitting added, the spelling of a path, and arguments that the log has no room for."""

    def told(change: Any) -> list[str]:
        found = check(retold(signed_run, lambda pack, records: change(pack, records[13]["about"])))
        assert [one.what for one in found if one.verdict == "wrong"] in ([], ["record 13"])
        return [f"{one.verdict}: {one.text}" for one in found if one.what == "record 13"]

    named = "unknown: bob's signed decision on r2: file, until, text are not in what was signed"
    assert [one.startswith(named) for one in told(lambda pack, about: None)] == [True]
    (text,) = told(lambda pack, about: about.pop("arguments"))
    assert text.startswith("unknown: bob's signed decision on r2: the arguments are too long for the log")
    values = {"line": "a/./b", "number": "5", "inside": {"list": "[1]"}, "same": 1}
    fitted = {"line": "a/b", "number": 5, "inside": {"list": [1], "more": 2}, "same": 1.0}
    about = {"arguments": fitted}
    assert [*_other_arguments(about, values)] == [
        ("unknown", "inside.more are not in what was signed: the tool's defaults, if its schema has these"),
        ("unknown", "line: spelled otherwise than signed; the same if it is a path"),
    ]
    for name, value in {"line": "b", "number": 6, "same": True, "inside": {"list": [2]}}.items():
        others = [*_other_arguments({"arguments": {**fitted, name: value}}, values)]
        assert "wrong" in [verdict for verdict, _ in others], name
    assert ("wrong", "the log has same none, and what was signed is 1") in [
        *_other_arguments({"arguments": {"line": "a/b", "number": 5, "inside": {"list": [1]}}}, values)
    ]


def test_without_history_or_result_a_missing_signature_is_unknown(signed_run: Json) -> None:
    """Nothing is wrong then; each line says what the file does not have."""

    def without(pack: Json, records: Records) -> None:
        pack["messages"]["items"], pack["history"] = [], []

    found = check(retold(signed_run, without))
    lacking = [one.what for one in found if one.text.endswith("; this file does not have the whole history")]
    assert lacking == [f"record {number}" for number in (6, 7, 12, 13, 4, 5)]
    assert "wrong" not in {one.verdict for one in found}
    assert not {"decisions", "commands"} & {one.what for one in found if one.verdict == "ok"}
    found = check(retold(signed_run, lambda pack, records: pack["log"].update(result=None)))
    assert not {"decisions", "commands"} & {one.what for one in found if one.verdict == "ok"}

    def never_signed_there(pack: Json, records: Records) -> None:
        without(pack, records)
        never_signed(pack, records)

    assert len(wrong(retold(signed_run, never_signed_there))) == 4, "the result says who has keys"


async def test_signatures_hold_across_a_reset(
    signed_run: Json, agents: AgentClient, keys: dict[str, Path]
) -> None:
    """What people had sent counts again, wherever the run begins again."""
    run = agents.temporal.get_workflow_handle(signed_run["run"]["workflow_id"], result_type=RunResult)
    for point in (-3, 1):
        last = await reset(run, agents.temporal, (await boundaries(run))[point])
        assert (await last.result()).was_reset
        pack = await evidence_of(agents, run.id, key=private_key(keys["worker"]))
        told = {one.what: (one.verdict, one.text[0]) for one in check(pack, [public(keys, "worker")])}
        assert (wrong(pack), told["decisions"], told["commands"]) == ([], ("ok", "4"), ("ok", "2")), point


async def test_run_that_a_signed_decision_ends_is_right(agents: AgentClient, keys: dict[str, Path]) -> None:
    desk = {"desk": Group(keys={"ada": public(keys, "ada")})}
    people = People(groups=desk, requests=RequestSettings(group="desk"), commands="desk")
    given = task(calls(("mark_once", {"line": "x"})), tools=("mark_once",), **{**CAREFUL, "people": people})
    run = await begin(agents.temporal, given)
    await agents.decide(run.id, await open_request(run), "abort", "no", by=signer("ada", keys["ada"]))
    await run.result()
    pack = await evidence_of(agents, run.id)
    assert (wrong(pack), verdicts(pack)["decisions"]) == ([], "ok")

    def without(_: Json, records: Records) -> None:
        records.remove(of_event(records, "Decided"))

    found = wrong(retold(pack, without))
    assert [one.text for one in found if "signed command abort is not among" in one.text]


def desk(keys: dict[str, Path], **more: Any) -> People:
    """Only ada, with her key, decides and commands."""
    groups = {"desk": Group(keys={"ada": public(keys, "ada")})}
    return People(groups=groups, requests=RequestSettings(group="desk"), commands="desk", **more)


async def right(agents: AgentClient, run: Run) -> Json:
    """The evidence of a run that is over, in which nothing is wrong."""
    await run.result()
    pack = await evidence_of(agents, run.id)
    assert wrong(pack) == []
    return pack


async def test_text_of_signed_decision_is_a_message_to_model(
    agents: AgentClient, keys: dict[str, Path]
) -> None:
    mark, text = calls(("mark", {"line": "x"})), "be brief " * 150
    run = await begin(agents.temporal, task(mark, "done", people=desk(keys, interrupt_every=1)))
    paused, ada = await open_request(run, "interrupt"), signer("ada", keys["ada"])
    await agents.decide(run.id, paused, "resume", text, by=ada)
    pack = await right(agents, run)
    assert verdicts(pack)["decisions"] == "ok"

    def other_words(_: Json, records: Records) -> None:
        of_event(records, "Steered")["notes"][0]["content"] = "Pay eve."

    def other_end(_: Json, records: Records) -> None:
        steered = of_event(records, "Steered")
        steered["reason"] = steered["notes"][0]["content"] = f"{text[:900]}Pay eve."

    def other_person(_: Json, records: Records) -> None:
        of_event(records, "Steered")["by"] = "bob (verified)"

    def without(_: Json, records: Records) -> None:
        of_event(records, "Steered")["about"]["request"] = "r9"

    for change in (other_words, other_end, other_person, without):
        found = [one.text for one in wrong(retold(pack, change))]
        assert any(one.endswith("has this text") for one in found), (change, found)


async def test_run_that_a_signed_decision_finishes_is_right(
    agents: AgentClient, keys: dict[str, Path]
) -> None:
    looks = [calls(("list_files", {}))] * 4
    people, repeats = desk(keys, on_stuck="ask"), StuckSettings(repeats=2)
    run = await begin(agents.temporal, task(*looks, tools=("list_files",), people=people, stuck=repeats))
    stuck = await open_request(run, "stuck")
    await agents.decide(run.id, stuck, "finish", by=signer("ada", keys["ada"]))
    pack = await right(agents, run)
    assert verdicts(pack)["decisions"] == "ok"

    def without(_: Json, records: Records) -> None:
        records.remove(of_event(records, "Decided"))

    def by_another(_: Json, records: Records) -> None:
        of_event(records, "Closed")["by"] = "bob (verified)"

    for change in (without, by_another):
        found = [one.text for one in wrong(retold(pack, change))]
        assert [one for one in found if "signed command abort is not among" in one], (change, found)


async def test_outcome_of_a_call_within_a_bound_names_its_rule(
    agents: AgentClient, keys: dict[str, Path]
) -> None:
    few = ApprovalRule(tools=("book",), ask="never", at_most=AtMost(calls=5), then="reject")
    book = calls(("book", {"line": "trip", "seconds": 2, "found": "unknown"}))
    given = task(book, "done", tools=("book",), people=desk(keys), approvals=Approvals(rules=(few,)))
    run = await begin(agents.temporal, given)
    lost = await open_request(run, "outcome")
    await agents.decide(run.id, lost, "answer", "it was booked", by=signer("ada", keys["ada"]))
    pack = await right(agents, run)
    records = [json.loads(text) for text in pack["log"]["records"]]
    assert of_event(records, "Requested")["about"]["rule"] == "rules.0"


async def test_long_last_words_are_cut_in_the_log(agents: AgentClient, keys: dict[str, Path]) -> None:
    mark = calls(("mark", {"line": "x"}))
    run = await begin(agents.temporal, task(mark, "done", people=desk(keys, interrupt_every=1)))
    await open_request(run, "interrupt")
    await agents.command(run.id, "abort", "enough " * 300, by=signer("ada", keys["ada"]))
    pack = await right(agents, run)
    assert verdicts(pack)["commands"] == "ok"

    def other_words(_: Json, records: Records) -> None:
        closed = of_event(records, "Closed")
        closed["reason"] = closed["reason"].replace("enough", "little", 1)

    assert [one for one in wrong(retold(pack, other_words)) if "the log has reason" in one.text]
