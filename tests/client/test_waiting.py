"""Runs that wait in a directory: a command's worker goes on with them only as they were begun."""

from __future__ import annotations

import json
from pathlib import Path

from tests.client.conftest import Ratchet
from tests.fake_openai import FakeOpenAI

FINAL = json.dumps({"thought": "FINAL ANSWER: seen", "action": None})


def test_a_run_that_waits_for_a_key_is_not_broken_by_another_command(
    ratchet: Ratchet, data_dir: Path
) -> None:
    begun = ratchet(
        "run", "--detach", "--model", "gpt-5-mini", "--id", "keyed", "x", OPENAI_API_KEY="sk-test"
    )
    assert begun.returncode == 0, begun.stderr
    other = ratchet("run", "--agent", "log_detective", "--id", "other", "which?")
    assert other.returncode == 2
    assert "keyed: the model gpt-5-mini needs a key" in other.stderr
    assert "ratchet cancel RUN" in other.stderr
    listed = {line["id"]: line for line in json.loads(ratchet("list", "--json").stdout)}
    assert "keyed" in listed
    assert "other" not in listed

    assert ratchet("cancel", "keyed").returncode == 0
    assert ratchet("run", "--agent", "log_detective", "--id", "after", "which?").returncode == 0


def test_the_server_that_was_typed_gets_the_key_again_on_resume(ratchet: Ratchet, data_dir: Path) -> None:
    with FakeOpenAI() as server:
        server.say(FINAL)
        begun = ratchet(
            "run", "--detach", "--base-url", server.base_url, "--model", "m", "--id", "mine", "x",
            OPENAI_API_KEY="sk-mine",
        )  # fmt: skip
        assert begun.returncode == 0, begun.stderr
        done = ratchet("run", "--resume", OPENAI_API_KEY="sk-mine")
        assert done.returncode == 0, done.stderr
        assert "seen" in done.stdout
        assert server.asked[0].headers["authorization"] == "Bearer sk-mine"


def test_a_call_that_fails_and_is_tried_again_is_told_meanwhile(ratchet: Ratchet, data_dir: Path) -> None:
    with FakeOpenAI() as server:
        url, model = server.base_url, "status:429@4+say:" + FINAL
        run = ratchet("run", "--base-url", url, "--model", model, "x")
        assert run.returncode == 0, run.stdout + run.stderr
        assert "thought#1:1 failed and is tried again" in run.stdout
