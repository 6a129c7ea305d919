"""A run that is recorded and played takes the same course; whatever is altered in the file is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.cassette.file import Cassette, cassette_of, read_cassette, write_cassette
from client.cassette.playing import play
from client.cassette.recording import CONTENT, Recorder
from tests.people import any_effect
from tests.people.bench import Bench, brain
from tests.server import fakes
from tests.server.fakes import FakeWorld, Scenario
from tests.server.scenarios import SCENARIOS
from workflows.kernel.log import Record
from workflows.kernel.machine import Run, Visit, state


async def recorded(scenario: Scenario) -> Cassette:
    """The cassette of a scenario that ran in memory."""
    recorder = Recorder()
    await fakes.play(scenario, f"cassette-{scenario.name}", FakeWorld(), recorder.watch)
    return cassette_of(recorder)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
async def test_recorded_run_plays_from_its_file(scenario: Scenario, tmp_path: Path) -> None:
    cassette = await recorded(scenario)
    for name in ("run.yaml", "run.json"):
        write_cassette(cassette, tmp_path / name)
        assert read_cassette(tmp_path / name) == cassette
    verdict = await play(cassette)
    assert verdict.difference == ""
    assert verdict.calls == cassette.count("answer") > 0


async def test_bug_of_todays_machine_is_named() -> None:
    async with Bench(brain("tools look a")) as bench:
        await bench.settle()

    def fails(c: any_effect.Notes, run: Run) -> Visit:
        raise ZeroDivisionError("by zero")

    think = state(any_effect.S.THINK, writes={"todo"}, counts="steps")(fails)
    machine = dataclasses.replace(any_effect.MACHINE, states=(think, any_effect.work))
    verdict = await play(cassette_of(bench.recorder), machine=machine)
    assert "ZeroDivisionError: by zero" in verdict.difference


async def test_machine_that_is_not_here_is_named() -> None:
    cassette = await recorded(SCENARIOS[0])
    task = cassette.task.model_copy(update={"machine": "nowhere"})
    verdict = await play(cassette.model_copy(update={"task": task}))
    assert "nowhere" in verdict.difference
    assert "RATCHET_MODULES" in verdict.difference


# -- whatever is altered is named --------------------


def altered(cassette: Cassette, number: int, change: dict[str, Any]) -> Cassette:
    """The cassette with another entry at that place."""
    course = list(cassette.course)
    course[number] = {**course[number], **change}
    return cassette.model_copy(update={"course": tuple(course)})


async def test_altered_result_is_named_though_nothing_follows_from_it() -> None:
    """The machine only notes that these tools ran."""
    cassette = await recorded(next(one for one in SCENARIOS if one.name == "contract"))
    results = [found for found in alterations(cassette) if "result" in found[1]]
    for number, change in results:
        assert (await play(altered(cassette, number, change))).difference
    assert results


def test_every_checked_part_of_record_is_one_of_its_fields() -> None:
    assert set(Record.model_fields) >= CONTENT


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, str):
        return f"{value} or not"
    if isinstance(value, dict):
        name = next(iter(value))
        return {**value, name: other(value[name])}
    return [other(value[0]), *value[1:]] if isinstance(value, list) else not value


def alterations(cassette: Cassette) -> Iterator[tuple[int, dict[str, Any]]]:
    """Another text of each reply and result, other arguments of each call, another verb of each decision."""
    verbs = {"approve": "reject", "reject": "approve", "edit": "approve", "resume": "abort"}
    for number, entry in enumerate(cassette.course):
        reply, result = entry.get("reply"), entry.get("result")
        if isinstance(reply, dict):
            yield number, {"reply": {**reply, "text": other(reply["text"])}}
            if reply.get("tool_calls"):
                yield number, {"reply": {**reply, "tool_calls": other(reply["tool_calls"])}}
        if isinstance(result, dict):
            read = "artifacts" if "artifacts" in result else "output"
            yield number, {"result": {**result, read: other(result[read])}}
        if entry.get("arguments"):
            yield number, {"arguments": other(entry["arguments"])}
        if "decide" in entry:
            verb = verbs[str(entry["decision"])]
            yield number, {"decision": verb} | ({"arguments": None} if "arguments" in entry else {})


@pytest.mark.parametrize(
    "most", [pytest.param(12, id="some"), pytest.param(10_000, id="all", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
async def test_altered_entry_is_named(scenario: Scenario, most: int) -> None:
    """At most so many entries, from the beginning to the end of a run."""
    cassette = await recorded(scenario)
    found = list(alterations(cassette))
    changed = found[:: -(-len(found) // most) or 1]
    passed = []
    for number, change in changed:
        if (await play(altered(cassette, number, change))).ok:
            passed.append((number, change))
    assert passed == []
    assert changed
