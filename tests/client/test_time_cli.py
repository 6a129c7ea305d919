"""`steps`, `show --step`, `fork`, `replay` and `compare` as a person meets them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.server import stop_server
from tests.client.conftest import Ratchet, ratchet_in

QUESTION = "Which service fails most, and since when?"
MACHINE = """
from dataclasses import dataclass
from enum import Enum

from activities.contracts import CallModel, Frozen, Message, Strict, Transcript
from workflows.kernel.design import Design
from workflows.kernel.machine import Exit, Machine, Row, State


class S(Enum):
    ASK = "ask"
    END = "end"


class Context(Frozen):
    goal: str = ""
    answer: str = ""


class Options(Strict):
    pass


@dataclass(frozen=True)
class Answered:
    reason: str


def ask(c, at):
    return CallModel(transcript=Transcript([Message(role="user", content=c.goal + "?")]))


def hear(c, reply, at):
    return {"answer": reply.text}, Answered("it was said")


def build(options, parts):
    asks = State(
        enter=ask, resume=hear, reads={"goal"}, writes={"answer"}, grants={"call_model"}, spends="rounds"
    )
    return Machine(
        name="asker", context=Context, initial=S.ASK, final={S.END}, table=[Row(S.ASK, Answered, S.END)],
        states={S.ASK: asks, S.END: State()}, step_state=S.ASK,
        result=lambda c, state: Exit(reason="answered", ok=True, answer=c.answer),
    )


DESIGN = Design(
    name="asker", description="Asks once.", options=Options, build=build,
    begin=lambda brief, options: Context(goal=brief.goal),
)
"""
AGENT = """
name: asker
machine: asker
modules: [asker.py]
tools: [calculator]
models: {default: {provider: scripted, name: script, script: [{reply: fine}, {reply: fine}]}}
"""
MARKING = """
from pydantic import BaseModel

from activities.toolbox import Tool


class Line(BaseModel):
    '''Leave a line.'''

    line: str


async def leave(params):
    '''Leave it.'''
    return "left"


TOOLS = [Tool(name="leave", params=Line, run=leave, effect="idempotent")]
"""
MARKER = """
name: marker
machine: react
modules: [marker.py]
tools: [leave]
models:
  default:
    provider: scripted
    name: script
    script:
      - reply: {thought: "Next.", action: leave, action_input: {line: here}}
      - reply: {thought: "FINAL ANSWER: done", action: null}
      - reply: {thought: "FINAL ANSWER: done", action: null}
people: {unattended: true}
"""


def detective(served: Ratchet, run_id: str) -> None:
    """A run of the shipped agent that is over."""
    run = served("run", "--agent", "log_detective", "--id", run_id, "--json", QUESTION)
    assert run.returncode == 0, run.stderr


def test_a_run_s_steps_are_listed_and_each_can_be_looked_at(served: Ratchet) -> None:
    detective(served, "time-a")
    listed = served("steps", "time-a")
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"^1 +after record 0 +thought → validate → action", listed.stdout, re.M)
    assert "ratchet show time-a --step N" in listed.stderr
    lines = json.loads(served("steps", "time-a", "--json").stdout)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    shown = served("show", "time-a", "--step", "2")
    assert shown.returncode == 0, shown.stderr
    assert "thought, about to be entered" in shown.stdout
    assert f"user: {QUESTION}" in shown.stdout
    assert "what came next" in shown.stdout
    snapshot = json.loads(served("show", "time-a", "--step", "2", "--json").stdout)
    assert (snapshot["step"], len(snapshot["context"]["steps"])) == (2, 1)
    missing = served("show", "time-a", "--step", "77")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no step 77 to go back to; it has steps 0 to" in missing.stderr


def test_a_fork_is_followed_to_its_end_and_can_be_compared_with_its_source(served: Ratchet) -> None:
    detective(served, "time-b")
    forked = served("fork", "time-b", "--step", "2", "--id", "time-b-fork", "--set", "limits.model_calls=50")
    assert forked.returncode == 0, forked.stderr
    assert re.search(r"run time-b-fork, from step 2 of time-b: \d+ records are its source's", forked.stderr)
    assert "Forked" in forked.stdout
    assert "step 1 is done" not in forked.stdout, "only what is new is shown"
    result = json.loads(served("result", "time-b-fork", "--json").stdout)
    assert (result["origin"]["workflow_id"], result["origin"]["step"]) == ("time-b", 2)
    compared = served("compare", "time-b", "time-b-fork")
    assert compared.returncode == 0, compared.stderr
    assert "step 2 of time-b" in compared.stdout
    assert "records are the very same" in compared.stdout
    told = json.loads(served("compare", "time-b", "time-b-fork", "--json").stdout)
    assert (told["common"]["step"], told["shared"] > 0) == (2, True)


def test_a_fork_that_would_change_something_outside_again_wants_a_yes(folder: Path) -> None:
    (folder / "asker.yaml").write_text(MARKER)
    (folder / "marker.py").write_text(MARKING)
    run = ratchet_in(folder, "run", "--agent", "asker.yaml", "--id", "marked", "Mark it")
    assert run.returncode == 0, run.stderr
    unsure = ratchet_in(folder, "fork", "marked", "--step", "1", "--id", "again")
    assert unsure.returncode == 4, unsure.stderr
    assert re.search(r'1 +leave +\{"line": "here"\}', unsure.stderr)
    said = " ".join(unsure.stderr.split())
    assert "the fork does these again if it comes to them" in said
    assert "say --yes" in said
    assert "again" not in [line["id"] for line in json.loads(ratchet_in(folder, "list", "--json").stdout)]
    later = ratchet_in(folder, "fork", "marked", "--step", "2", "--id", "later")
    assert later.returncode == 0, later.stderr
    done = ratchet_in(folder, "fork", "marked", "--step", "1", "--id", "again", "--yes")
    assert done.returncode == 0, done.stderr
    assert "not paid for again; calls from there on are made anew" in " ".join(done.stderr.split())


def test_a_fork_that_makes_no_sense_starts_nothing(served: Ratchet) -> None:
    detective(served, "time-c")
    for words, said in (
        (["--step", "99"], "no step 99"),
        (["--step", "2", "--agent", "invoice_checker"], "Machine, machine version and material"),
        (["--step", "2", "--set", "max_steps=no"], "--set max_steps=no: options.max_steps: "),
        (["--step", "2", "--goal", ""], "goal"),
    ):
        refused = served("fork", "time-c", "--id", "time-c-fork", *words)
        assert refused.returncode in (1, 2), words
        assert said in refused.stderr
    assert "time-c-fork" not in served("list", "--json").stdout
    nobody = served("fork", "nix", "--step", "1")
    assert "there is no run nix" in nobody.stderr


def test_a_detached_fork_waits_for_a_worker(ratchet: Ratchet) -> None:
    detective(ratchet, "source")
    forked = ratchet("fork", "source", "--step", "1", "--detach", "--id", "later", "--json")
    assert (forked.returncode, json.loads(forked.stdout)) == (0, {"id": "later"})
    assert "ratchet run --resume" in forked.stderr
    assert [line["id"] for line in json.loads(ratchet("list", "--running", "--json").stdout)] == ["later"]
    resumed = ratchet("run", "--resume")
    assert resumed.returncode == 0, resumed.stderr


def test_a_replay_of_a_run_of_today_says_so(served: Ratchet) -> None:
    detective(served, "time-d")
    told = served("replay", "time-d")
    assert (told.returncode, "code and machine of today do the same" in told.stdout) == (0, True)
    part = json.loads(served("replay", "time-d", "--step", "2", "--json").stdout)
    assert (part["same"], part["step"], part["records"] > 0) == (True, 2, True)
    assert "there is no run nix" in served("replay", "nix").stderr


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A user's folder with a machine, an agent and a run of them that is over."""
    (tmp_path / "asker.py").write_text(MACHINE)
    (tmp_path / "asker.yaml").write_text(AGENT)
    run = ratchet_in(tmp_path, "run", "--agent", "asker.yaml", "--id", "asked", "How are you")
    assert run.returncode == 0, run.stderr
    yield tmp_path
    stop_server(tmp_path / ".ratchet")


def test_a_replay_says_what_a_changed_machine_does_otherwise(folder: Path) -> None:
    same = ratchet_in(folder, "replay", "asked")
    assert (same.returncode, "do the same" in same.stdout) == (0, True), same.stderr

    def changed(old: str, new: str) -> str:
        assert old in MACHINE
        (folder / "asker.py").write_text(MACHINE.replace(old, new))
        told = ratchet_in(folder, "replay", "asked")
        assert told.returncode == 1, told.stderr
        return " ".join(told.stdout.split())

    prompt = changed('c.goal + "?"', 'c.goal + "!"')
    assert "Called otherwise today: 1 call ask#1:1 (call_model)" in prompt
    assert 'messages[0].content: was "How are you?", now "How are you!"' in prompt
    assert "Temporal:" not in prompt, "open runs can go on with another prompt"

    record = changed('"answer": reply.text}', '"answer": reply.text.upper()}')
    assert "The log parts at record 1 (step 1): was ask: Answered, now ask: Answered" in record
    assert 'patch.answer: was "fine", now "FINE"' in record

    call = changed(
        "def hear(c, reply, at):", "def hear(c, reply, at):\n    if at.call < 2:\n        return ask(c, at)\n"
    )
    assert "the run called archive:2 (archive_log); the code of today calls ask#1:2 (call_model)" in call


def test_where_temporal_has_forgotten_a_run_its_steps_come_from_the_archive(folder: Path) -> None:
    (folder / ".ratchet" / "temporal.db").unlink()
    shown = ratchet_in(folder, "show", "asked", "--step", "1")
    assert shown.returncode == 0, shown.stderr
    assert "How are you" in shown.stdout
    refused = ratchet_in(folder, "replay", "asked")
    assert refused.returncode == 1
    assert "ratchet show asked --step N" in refused.stderr
    forked = ratchet_in(folder, "fork", "asked", "--step", "1", "--id", "again")
    assert forked.returncode == 0, forked.stderr
    assert json.loads(ratchet_in(folder, "result", "again", "--json").stdout)["answer"] == "fine"
