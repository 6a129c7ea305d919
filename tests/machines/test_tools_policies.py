"""When the tools machine asks and tells its policies, and what they are shown (spec 2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from activities.contracts import JsonObject, Usage
from tests.machines.answers import said, tool_said
from tests.machines.driver import Play, run_script, tool
from tests.machines.scripts_tools import Raising, call, calls
from workflows.kernel.design import Brief, Parts
from workflows.kernel.errors import FatalError, PolicyViolation, RecoverableError, TransientError
from workflows.registry import design

TOOL = tool("tool", q={"type": "string"})
ASKS = calls(call("tool", 1, q="x"), text="I look")


@dataclass
class Recorder:
    """A policy that never stops and writes down what it was shown."""

    seen: list[tuple[str, Mapping[str, Any]]]

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        self.seen.append(("ask", context))
        return False

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        self.seen.append((f"told {result}", context))
        told: Any = context["memory"].get("told", 0)
        return {"told": told + 1}


def recorded(*answers: Any, **options: Any) -> tuple[list[tuple[str, Mapping[str, Any]]], Play]:
    """What a policy sees of a run."""
    seen: list[tuple[str, Mapping[str, Any]]] = []
    parts = Parts(policies={"recorder": lambda spec: Recorder(seen)})
    run = run_script(
        "tools", answers, tools=(TOOL,), options={"policies": ["recorder"], **options}, parts=parts
    )
    return seen, run


def test_a_policy_is_asked_and_told_exactly_when_the_spec_says() -> None:
    """For two tool turns and an answer: asked at iterations 0, 1, 1, 2, 2, told at 0, 1, 2."""
    seen, run = recorded(ASKS, tool_said("a"), ASKS, tool_said("b"), said("42"))
    assert [(what, context["iteration"]) for what, context in seen] == [
        ("ask", 0), ('told "a"', 0), ("ask", 1), ("ask", 1), ('told "b"', 1), ("ask", 2), ("ask", 2),
        ("told 42", 2),
    ]  # fmt: skip
    assert run.context.policy_memory == {"recorder": {"told": 3}}


def test_the_first_model_call_happens_before_any_policy_is_asked() -> None:
    seen, run = recorded()
    assert (seen, len(run.prompts)) == ([], 1)


def test_at_the_limit_the_policy_is_asked_before_it_and_not_after() -> None:
    seen, _ = recorded(ASKS, tool_said("a"), said("42"), max_iterations=1)
    assert [(what, context["iteration"]) for what, context in seen] == [
        ("ask", 0),
        ('told "a"', 0),
        ("ask", 1),
    ]


def test_a_policy_sees_where_the_run_is() -> None:
    reply = ASKS.model_copy(update={"usage": Usage(input_tokens=10, output_tokens=5), "cost_usd": 0.25})
    seen, _ = recorded(reply, tool_said("a", cost=0.5), said("42"), max_iterations=7)
    contexts = [context for _, context in seen]
    assert {(c["mode"], c["max_iterations"], c["depth"]) for c in contexts} == {("tools", 7, 0)}
    assert [c["last_result"] for c in contexts] == ["", '"a"', '"a"', '"a"', '"a"']
    assert [c["tokens"] for c in contexts] == [15] * 5
    assert [c["cost_usd"] for c in contexts] == [0.25, 0.75, 0.75, 0.75, 0.75]
    wanted = {"name": "tool", "arguments": {"q": "x"}}
    ran = {**wanted, "result": '"a"'}
    assert [c["calls"] for c in contexts] == [[wanted], [ran], [ran], [], []]
    assert [c["history"][-1]["role"] for c in contexts] == ["assistant", "tool", "tool", *["assistant"] * 2]
    assert [c["memory"] for c in contexts] == [{}, {}, {"told": 1}, {"told": 1}, {"told": 1}]


def test_a_policy_sees_the_results_of_a_turn_in_their_order() -> None:
    def two(effect: Any) -> Any:
        whole: Any = tool_said()(effect)
        results = (r.model_copy(update={"output": str(n)}) for n, r in enumerate(whole.results, start=1))
        return whole.model_copy(update={"results": tuple(results)})

    seen, _ = recorded(calls("tool", "tool"), two, said("42"))
    assert [c["last_result"] for _, c in seen] == ["", "1\n2", "1\n2", "1\n2", "1\n2"]


def test_a_policy_sees_the_results_of_the_newest_turn_only() -> None:
    seen, _ = recorded(ASKS, tool_said("a"), ASKS, tool_said("b"), said("42"))
    assert seen[-1][1]["last_result"] == '"b"'


def test_a_policy_sees_how_deep_the_run_is_nested() -> None:
    knobs = design("tools").options()
    context: Any = design("tools").begin(Brief("goal", "trace", tools=(TOOL,), depth=2), knobs)
    assert context.depth == 2
    seen: list[tuple[str, Mapping[str, Any]]] = []
    parts = Parts(policies={"recorder": lambda spec: Recorder(seen)})
    run_script(
        "tools", [said("42")], tools=(TOOL,), options={"policies": ["recorder"]}, parts=parts,
        changed={"depth": 2},
    )  # fmt: skip
    assert seen[0][1]["depth"] == 2


# -- what a policy raises ----------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "name", "text"), [
    (FatalError("the books are lost"), "FatalError", "the books are lost"),
    (PolicyViolation("not today"), "PolicyViolation", "not today"),
    (TransientError("come back"), "TransientError", "come back"),
    (RecoverableError("no matter"), "RecoverableError", "no matter"),
    (KeyError("x"), "FatalError", "the policy raising failed: KeyError: 'x'"),
])  # fmt: skip
@pytest.mark.parametrize(("at", "states"), [
    (0, "INIT PROMPTING DONE"),
    (1, "INIT PROMPTING EXECUTING_TOOLS DONE"),
])  # fmt: skip
def test_R_001_9_what_a_policy_raises_leaves_the_run(
    error: Exception, name: str, text: str, at: int, states: str
) -> None:
    """R-001-9: an AgentError as it is, anything else as a FatalError that names the policy."""
    parts = Parts(policies={"raising": lambda spec: Raising(at, error)})
    run = run_script(
        "tools", [ASKS, tool_said("a")], tools=(TOOL,), options={"policies": ["raising"]}, parts=parts
    )
    assert run.visited == states
    assert (run.exit.reason, run.exit.ok, run.exit.raises, run.exit.error) == ("failed", False, name, text)
    assert len([m for m in run.context.transcript if m.role == "tool"]) == at, "the results are kept"


def test_R_001_9_also_when_it_is_told() -> None:
    """R-001-9: in both of its methods."""

    class Deaf(Raising):
        def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
            raise self.error

    parts = Parts(policies={"deaf": lambda spec: Deaf(9, ValueError("what?"))})
    runs: list[list[Any]] = [[ASKS, tool_said("a")], [said("42")]]
    for answers in runs:
        run = run_script("tools", answers, tools=(TOOL,), options={"policies": ["deaf"]}, parts=parts)
        assert (run.exit.raises, run.exit.error) == (
            "FatalError",
            "the policy deaf failed: ValueError: what?",
        )


# -- shipped policies in a run -----------------------------------------------------------------------


def test_repeated_call_stops_a_model_that_asks_for_the_same_again_and_again() -> None:
    run = run_script(
        "tools", [ASKS, tool_said("a"), ASKS, tool_said("b"), ASKS], tools=(TOOL,),
        options={"policies": ["repeated_call"]},
    )  # fmt: skip
    assert (run.exit.outcome["policy"], run.exit.outcome["iterations"]) == ("repeated_call", 2)
    assert run.visited.endswith("PROMPTING DONE")


def test_no_progress_stops_a_model_that_finds_nothing_new() -> None:
    other = calls(call("tool", 1, q="y"))
    run = run_script(
        "tools", [ASKS, tool_said("a"), other, tool_said("a"), ASKS, tool_said("a")], tools=(TOOL,),
        options={"policies": [{"type": "no_progress", "value": 2}]},
    )  # fmt: skip
    assert (run.exit.outcome["policy"], run.exit.outcome["iterations"]) == ("no_progress", 3)
    assert run.visited.endswith("EXECUTING_TOOLS DONE")


def test_max_tokens_counts_the_whole_run() -> None:
    reply = ASKS.model_copy(update={"usage": Usage(input_tokens=40, output_tokens=10)})
    run = run_script(
        "tools", [reply, tool_said("a"), reply], tools=(TOOL,),
        options={"policies": [{"type": "max_tokens", "value": 100}]},
    )  # fmt: skip
    assert (run.exit.reason, run.exit.outcome["policy"]) == ("policy_stop", "max_tokens")


def test_a_policy_that_nobody_knows_is_refused_when_the_machine_is_built() -> None:
    options = design("tools").options.model_validate({"policies": ["no_progres"]})
    with pytest.raises(ValueError, match="did you mean no_progress"):
        design("tools").build(options, Parts())
