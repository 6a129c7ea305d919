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
from activities.evidence.verify_evidence import Finding, Json, check
from activities.keyfiles import private_key
from activities.settings import Settings
from client.errors import RatchetError, UnknownRun
from client.history.evidence import evidence_of, with_signature
from client.history.fork import ForkChanges
from client.keys import new_key, signer
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.activities.evidencekit import CHANGES, forged
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
from workflows.people import Approvals, Group, People, RequestSettings

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
    return Settings(
        data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),), signing_key=keys["worker"],
        shutdown_seconds=1,
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


async def test_calls_that_a_record_has_no_room_to_name_are_counted(agents: AgentClient) -> None:
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


async def test_question_that_was_never_answered_is_of_a_visit_in_the_log(agents: AgentClient) -> None:
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
