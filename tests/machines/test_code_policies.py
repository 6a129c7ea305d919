"""Stopping policies in code mode: when they are asked, when they are told, what ends (spec 2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from activities.contracts import JsonObject, ModelReplied, Usage
from tests.machines.answers import said
from tests.machines.driver import Play, run_script
from tests.machines.scripts_code import block, calls, ran
from workflows.kernel.design import Parts
from workflows.kernel.errors import PolicyViolation
from workflows.machines.stopping import STOPPED


@dataclass
class Watcher:
    """Writes down what it is shown, and stops when it is asked for the so-many-th time."""

    stops: int = 99
    raises: Exception | None = None
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    told: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        self.asked.append(context)
        if len(self.asked) == self.stops and self.raises:
            raise self.raises
        return len(self.asked) == self.stops

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        self.told.append((context, result))
        return {"seen": len(self.told)}

    def iterations(self) -> tuple[list[int], list[int]]:
        """What the two methods saw."""
        return [c["iteration"] for c in self.asked], [c["iteration"] for c, _ in self.told]


def watched(watcher: Watcher, *answers: Any, **options: Any) -> Play:
    """A run with this policy."""
    parts = Parts(policies={"watcher": lambda spec: watcher})
    return run_script("code", answers, options={"policies": ["watcher"], **options}, parts=parts)


TURNS = (block("a"), ran("A"), block("b"), ran("B"), said("FINAL(42)"))


def test_R_001_8_policies_are_asked_before_blocks_and_after_them() -> None:
    """R-001-8: two turns and an answer show iterations 0, 1, 1, 2, 2, and complete 0, 1, 2 (2.6)."""
    watcher = Watcher()
    run = watched(watcher, *TURNS)
    assert run.exit.reason == "stop"
    assert watcher.iterations() == ([0, 1, 1, 2, 2], [0, 1, 2])


@pytest.mark.parametrize(
    ("stops", "state", "kinds", "iterations"),
    [
        pytest.param(1, "PROMPTING", ["call_model"], 0, id="before the first blocks are run"),
        pytest.param(2, "EXECUTING", ["call_model", "run_code"], 1, id="after them, before the next call"),
        pytest.param(
            3, "PROMPTING", ["call_model", "run_code", "call_model"], 1, id="before the second ones"
        ),
    ],
)
def test_R_001_8_a_policy_stops_the_run(stops: int, state: str, kinds: list[str], iterations: int) -> None:
    """R-001-8: nothing more is run or asked."""
    run = watched(Watcher(stops), *TURNS)
    assert [effect.kind for effect in run.effects] == kinds
    assert (run.records[-1].state, run.records[-1].event) == (state, "PolicyStop")
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("policy_stop", False, STOPPED)
    assert run.exit.outcome == {
        "policy_stop": True, "policy": "watcher", "iterations": iterations, "depth": 0,
    }  # fmt: skip
    assert "the stopping policy watcher ended the run" in str(run.exit.error)


def test_the_first_model_call_is_made_before_a_policy_is_asked() -> None:
    watcher = Watcher(1)
    assert watched(watcher).effects[0].kind == "call_model"
    assert watcher.asked == []


def test_a_policy_discards_an_answer_that_is_there() -> None:
    run = watched(Watcher(1), said("FINAL(42)"))
    assert (run.exit.reason, run.exit.answer) == ("policy_stop", STOPPED)


def test_a_policy_goes_before_the_limit() -> None:
    run = watched(Watcher(2), block("a"), ran("A"), max_iterations=1)
    assert (run.exit.reason, len(run.prompts)) == ("policy_stop", 1)


def test_a_policy_is_neither_asked_nor_told_of_the_forced_call() -> None:
    watcher = Watcher()
    run = watched(watcher, block("a"), ran("A"), said("FINAL(42)"), max_iterations=1)
    assert run.exit.reason == "max_iterations"
    assert watcher.iterations() == ([0, 1], [0])


def test_what_policies_are_shown() -> None:
    watcher = Watcher()
    watched(watcher, block("a", "b", cost=0.5), ran("A"), ran("B"), said("FINAL(42)"))
    first, after, second = watcher.asked
    assert (first["mode"], first["max_iterations"], first["depth"]) == ("code", 30, 0)
    assert first["calls"] == [{"name": "repl", "arguments": "a"}, {"name": "repl", "arguments": "b"}]
    assert (first["last_result"], first["cost_usd"], first["memory"]) == ("", 0.5, {})
    assert after["calls"] == [
        {"name": "repl", "arguments": "a", "result": "A"},
        {"name": "repl", "arguments": "b", "result": "B"},
    ]
    assert (after["last_result"], after["memory"]) == ("A\nB", {"seen": 1})
    assert (second["calls"], second["last_result"]) == ([], "A\nB")
    assert [message["role"] for message in first["history"]] == ["system", "user", "assistant"]
    assert len(after["history"]) == 5
    assert [result for _, result in watcher.told] == ["A\nB", "42"]


def test_an_answer_behind_blocks_is_told_with_what_they_brought() -> None:
    watcher = Watcher()
    watched(watcher, block("a", behind="FINAL(42)"), ran("A"))
    (told,) = watcher.told
    assert (told[0]["calls"], told[1]) == ([{"name": "repl", "arguments": "a", "result": "A"}], "42")
    assert watcher.iterations() == ([0], [0])


def test_a_reply_without_blocks_is_told_too() -> None:
    watcher = Watcher()
    watched(watcher, said("hm"), said("FINAL_VAR(x)"), ran("1"))
    assert watcher.iterations() == ([0, 1, 1], [0, 1])
    assert [result for _, result in watcher.told] == ["", "1"]


def test_memory_is_kept_in_the_context() -> None:
    run = watched(Watcher(), *TURNS)
    assert run.context.policy_memory == {"watcher": {"seen": 3}}


@pytest.mark.parametrize("stops", [1, 2])
@pytest.mark.parametrize(
    ("error", "raises", "words"),
    [
        (PolicyViolation("not here"), "PolicyViolation", "not here"),
        (KeyError("x"), "FatalError", "the policy watcher failed: KeyError: 'x'"),
    ],
)
def test_R_001_9_what_a_policy_raises_leaves_the_run(
    stops: int, error: Exception, raises: str, words: str
) -> None:
    """R-001-9: asked before blocks or after them."""
    run = watched(Watcher(stops, error), *TURNS)
    assert (run.exit.reason, run.exit.raises, run.exit.error) == ("failed", raises, words)
    assert run.records[-1].event == "Failed"


class Deaf(Watcher):
    """Raises when it is told something."""

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        raise PolicyViolation("do not tell me")


@pytest.mark.parametrize("answers", [(said("FINAL(42)"),), (block("a"), ran("A"))])
def test_R_001_9_also_when_it_is_told(answers: Any) -> None:
    """R-001-9: in both of its methods."""
    run = watched(Deaf(), *answers)
    assert (run.exit.reason, run.exit.raises) == ("failed", "PolicyViolation")


def test_shipped_policies_work_in_code_mode() -> None:
    same = (block("print(1)"), ran("1")) * 4
    run = run_script("code", same, options={"policies": [{"type": "no_progress", "value": 2}]})
    assert (run.exit.outcome["policy"], run.context.iteration) == ("no_progress", 3)
    run = run_script("code", same, options={"policies": [{"type": "repeated_call", "value": 3}]})
    assert (run.exit.outcome["policy"], run.context.iteration) == ("repeated_call", 2)
    spent = (block("1"), calls("llm_query", "a"), said("b", cost=3), ran())
    run = run_script("code", spent, options={"policies": [{"type": "max_cost", "value": 2}]})
    assert (run.exit.outcome["policy"], run.context.iteration) == ("max_cost", 1)


def test_without_policies_nothing_is_remembered() -> None:
    run = run_script("code", TURNS)
    assert (run.context.policy_memory, run.context.last_result) == ({}, "")


def test_policies_see_the_whole_of_the_run_each_time() -> None:
    """Every field, with values of this run that are not the default ones."""
    watcher = Watcher()
    parts = Parts(policies={"watcher": lambda spec: watcher})
    first = ModelReplied(
        text="```repl\na\n```", cost_usd=0.25, usage=Usage(input_tokens=30, output_tokens=12)
    )
    options = {"policies": ["watcher"], "max_iterations": 7, "max_depth": 2}
    answers = (first, ran("A"), said("FINAL(42)", cost=0.5))
    run = run_script("code", answers, options=options, changed={"depth": 1}, parts=parts)
    history = [message.model_dump(mode="json") for message in run.context.transcript]
    same = {"mode": "code", "max_iterations": 7, "depth": 1, "tokens": 42}
    wanted = {"name": "repl", "arguments": "a"}
    before = {
        **same, "iteration": 0, "history": history[:3], "last_result": "", "calls": [wanted],
        "cost_usd": 0.25, "memory": {},
    }  # fmt: skip
    told = {**before, "history": history[:4], "last_result": "A", "calls": [{**wanted, "result": "A"}]}
    after = {**told, "iteration": 1, "memory": {"seen": 1}}
    second = {**after, "history": history, "calls": [], "cost_usd": 0.75}
    assert watcher.asked == [before, after, second]
    assert watcher.told == [(told, "A"), (second, "42")]
