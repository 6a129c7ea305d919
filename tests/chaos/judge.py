"""The judge of chaos: compares what was done, said and written down with what was to be done."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError

from activities.contracts import JsonObject
from activities.store.archive import Archive
from activities.store.blobs import StoreError
from tests.chaos.actors import AWAY, SOON, People, Runs
from tests.chaos.runs import DONE, expected_answer, lines_of, names_in
from tests.chaos.world import World
from workflows.api import RunResult, RunStatus
from workflows.kernel.log import Record
from workflows.kernel.logged_calls import LEFT_OUT

__all__ = ["Verdict", "judge", "judge_effects", "until_archived"]

INNER = {"nested": 2}
"""How many inner runs a run of a kind has."""
TITLE = re.compile(r'(\w+)\(line="([^"]+)"')
"""A call in a log."""


@dataclass
class Verdict:
    """What must not be; all lists are to be empty."""

    repeated_unsafe: list[str] = field(default_factory=list)
    repeated_keyed: list[str] = field(default_factory=list)
    lost_effects: list[str] = field(default_factory=list)
    lost_decisions: list[str] = field(default_factory=list)
    wrong_outputs: list[str] = field(default_factory=list)
    wrong_answers: list[str] = field(default_factory=list)
    broken_logs: list[str] = field(default_factory=list)
    lost_records: list[str] = field(default_factory=list)
    stuck_runs: list[str] = field(default_factory=list)
    ended_workers: list[str] = field(default_factory=list)
    """By themselves."""

    @property
    def is_clean(self) -> bool:
        """Nothing of all that."""
        return not any(vars(self).values())


async def judge(runs: Runs, people: People, world: World, archive: Archive) -> Verdict:
    """Compare what was done with what was to be done."""
    found = Verdict(lost_decisions=list(people.lost))
    results = {name: result for name in runs.begun if (result := await judge_run(runs, name, found))}
    judge_effects(results, world, found)
    for (run, request), verb in people.decided.items():
        if run in results and not runs.resets[run] and run not in runs.stopped:
            outcome = {one.request: one.outcome for one in results[run].decisions}.get(request)
            if outcome != OUTCOMES[verb]:
                found.lost_decisions.append(f"{run} {request}: {verb} became {outcome}")
    judge_logs(archive, results, world, found)
    for run, event in people.commanded:
        with suppress(StoreError):
            is_whole = run in results and not runs.resets[run]
            if is_whole and event not in {one["event"] for one in archive.records(run, results[run].run_id)}:
                found.lost_decisions.append(f"{run} has said that it was {event}, and its log has not")
    return found


async def judge_run(runs: Runs, name: str, found: Verdict) -> RunResult | None:
    """Its result, if it has one."""
    if name in runs.open:
        found.stuck_runs.append(f"{name}: {await where_it_is(runs, name)}")
        return None
    wanted = runs.stopped.get(name)
    status = (await runs.handle(name).describe()).status
    if wanted == "terminated" and status is WorkflowExecutionStatus.TERMINATED:
        return None
    try:
        result: RunResult = await runs.handle(name).result()
    except WorkflowFailureError as error:
        found.wrong_answers.append(f"{name} has no result: {error.cause}")
        return None
    if wanted == result.exit_reason == "cancelled":
        return result
    if not result.ok or result.answer != expected_answer(name):
        found.wrong_answers.append(f"{name}: {result.exit_reason}: {result.answer or result.error}")
    if not (name in runs.rolled_back) <= result.branch <= (name in runs.sent_back) and wanted is None:
        found.lost_decisions.append(f"{name} was rolled back {result.branch} times")
    return result


OUTCOMES = {
    "approve": "approved", "retry": "retried", "answer": "answered", "resume": "resumed"
}  # fmt: skip


def judge_effects(results: dict[str, RunResult], world: World, found: Verdict) -> None:
    """Each line once in each branch of its run; and all of them, where the run ended well."""
    times = Counter((one.tool, one.line, one.branch) for one in world.effects)
    for (tool, line, branch), count in times.items():
        if count > 1 and tool != "mark":
            repeated = found.repeated_keyed if tool == "pay" else found.repeated_unsafe
            repeated.append(f"{tool} {line} {count} times in branch {branch}")
    made = {(tool, line) for tool, line, _ in times}
    for name in [name for name, result in results.items() if result.ok]:
        for inner in names_in(_kind(name), name):
            wanted = {call for group in lines_of(inner) for call in group}
            found.lost_effects += [" ".join(call) for call in sorted(wanted - made)]


def judge_logs(archive: Archive, results: Mapping[str, RunResult], world: World, found: Verdict) -> None:
    """Each chain is whole, each log has all records, and what they say of calls is what the world says."""
    made = {(effect.tool, effect.line) for effect in world.effects}
    for run, origin in archive.runs():
        try:
            if (broken := archive.broken_at(run, origin)) is not None:
                found.broken_logs.append(f"{run} {origin}: at record {broken}")
            found.wrong_outputs += wrong_outputs(run, archive.records(run, origin), made)
        except StoreError as error:
            found.broken_logs.append(f"{run} {origin}: {error}")
    for name, result in results.items():
        with suppress(StoreError):  # a log that is broken is among those above
            records = archive.records(name, result.run_id)
            if problem := lost_records(records, result, archive.result(name, result.run_id)):
                found.lost_records.append(f"{name}: {problem}")
        inner = [run for run, origin in archive.runs() if run.startswith(f"{name}/")]
        if result.ok and len(inner) < INNER.get(_kind(name), 0):
            found.lost_records.append(f"{name}: of its inner runs the archive has {len(inner)}")


def lost_records(records: Iterable[JsonObject], result: RunResult, archived: JsonObject | None) -> str:
    """What the archive lacks of a run; empty: nothing."""
    count = len(tuple(records))
    if count != result.records:
        return f"the archive has {count} of {result.records} records"
    if archived is None:
        return "the archive has no result"
    return "" if archived["log_head"] == result.log_head else "the archive has another log"


def wrong_outputs(run: str, records: Iterable[JsonObject], made: set[tuple[str, str]]) -> list[str]:
    """Calls that did not fail, and gave what another call gave, or what nobody did."""
    wrong = []
    for record in (Record.model_validate(one) for one in records):
        for call in record.answered:
            title = TITLE.match(call.title)
            if call.kind != "call_tools" or title is None or call.error or call.output == LEFT_OUT:
                continue
            tool, line = title.groups()
            right = call.output == line if tool == "tell" else set(DONE.findall(call.output)) == {line}
            if not right:
                wrong.append(f"{run} record {record.seq}: {call.title} gave {call.output[:100]!r}")
            elif tool != "tell" and (tool, line) not in made:
                wrong.append(f"{run} record {record.seq}: {call.title} was never executed")
    return wrong


async def until_archived(runs: Runs, archive: Archive, patience: float) -> None:
    """Wait until all runs that have ended are in the archive; one may come late, if the archive was away."""
    ended = [one for one in runs.begun if one not in runs.open and runs.stopped.get(one) != "terminated"]
    with suppress(TimeoutError, StoreError):
        async with asyncio.timeout(patience):
            for name in ended:
                while archive.result(name) is None:  # noqa: ASYNC110  # a file says nothing by itself
                    await asyncio.sleep(0.5)


def _kind(name: str) -> str:
    return name.partition("-")[0]


async def where_it_is(runs: Runs, name: str) -> str:
    """For the one who has to find out why."""
    with suppress(*AWAY, WorkflowQueryFailedError):
        handle = runs.handle(name)
        pending = (await handle.describe()).raw_description.pending_activities
        calls = [f"{one.activity_id} attempt {one.attempt} {one.last_failure.message}" for one in pending]
        status: RunStatus = await handle.query("status", result_type=RunStatus, rpc_timeout=SOON)
        return f"{status.state} {status.doing} waits for {status.waiting or calls or 'nothing'}"
    return "it does not answer"
