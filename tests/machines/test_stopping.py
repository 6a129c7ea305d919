"""Stopping policies: what they see, what they may answer, and the shipped ones (spec 2.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import Conversation, Message
from workflows.kernel.errors import AgentError, FatalError, PolicyViolation, RecoverableError
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, Run, RunInput
from workflows.machines.common.stopping import Policies, PolicySpec, SeenCall, newest_results, policy_view
from workflows.machines.tools.machine import Options, S, Tools


@dataclass
class Scripted:
    """A policy that answers as it is told, and keeps what it was shown."""

    stops: Any = False
    remembers: Any = None
    shown: list[Any] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        self.shown.append(context)
        if isinstance(self.stops, Exception):
            raise self.stops
        return self.stops  # type: ignore[no-any-return]  # a user's policy may answer anything

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> Any:
        self.results.append(result)
        if isinstance(self.remembers, Exception):
            raise self.remembers
        return self.remembers


def look(calls: Sequence[SeenCall] = (), **changes: Any) -> dict[str, Any]:
    """A run at its first reply, as policies are shown it."""
    values: dict[str, Any] = {
        "mode": "tools", "iteration": 0, "max_iterations": 10, "depth": 0, "history": (), "last_result": "",
        "tokens": 0, "cost_usd": 0.0, "memory": {},
    }  # fmt: skip
    return {**values, "calls": [call.plain() for call in calls], **changes}


def shipped(name: str, value: float | None = None) -> Policies:
    """One shipped policy."""
    return Policies.of((PolicySpec(type=name, value=value),), Extensions())


# -- what a policy sees ---------------------------------------------------------------------------


def test_policy_sees_the_mapping_of_the_spec() -> None:
    policy, message = Scripted(), Message(role="user", content="hi")
    c = Tools(iteration=2, policy_memory={"mine": {"n": 1}, "other": {"n": 2}})
    run = Run(
        Options(max_iterations=9), None, RunInput("g", depth=1), S.PROMPTING, step=1, visit=1, counts={},
        ledger=Ledger(spent={"tokens": 12, "cost_usd": 0.5}), conversation=Conversation().add(message),
    )  # fmt: skip
    view = policy_view("code", c, run, (SeenCall("a", {"q": 1}), SeenCall("b", "{bad", "ran")), "found")
    assert Policies((("mine", policy),)).stop(view) is None
    assert dict(policy.shown[0]) == {
        "mode": "code", "iteration": 2, "max_iterations": 9, "depth": 1, "last_result": "found",
        "history": (message,), "memory": {"n": 1}, "tokens": 12, "cost_usd": 0.5,
        "calls": ({"name": "a", "arguments": {"q": 1}}, {"name": "b", "arguments": "{bad", "result": "ran"}),
    }  # fmt: skip


@pytest.mark.parametrize("change", [
    lambda c: c.update(iteration=9),
    lambda c: c["memory"].update(n=9),
    lambda c: c["memory"]["list"].append(9),
    lambda c: c["calls"][0].pop("name"),
    lambda c: c["calls"][0]["arguments"]["q"].append(2),
    lambda c: setattr(c["history"][0], "content", "no"),
])  # fmt: skip
def test_policy_cannot_change_what_it_is_shown(change: Callable[[Any], Any]) -> None:
    """Else one policy would blind the next, and rewrite what the run remembers without a record."""

    class Meddling(Scripted):
        def should_stop(self, context: Mapping[str, Any]) -> bool:
            change(context)
            return False

    view = look(
        calls=(SeenCall("a", {"q": [1]}, "ran"),), history=(Message(role="user", content="hi"),),
        memory={"mine": {"n": 0, "list": [1]}},
    )  # fmt: skip
    with pytest.raises(FatalError, match="policy mine"):
        Policies((("mine", Meddling()),)).stop(view)


# -- asking and telling ---------------------------------------------------------------------------


def test_first_stopping_policy_is_named_and_later_ones_rest() -> None:
    first, second, third = Scripted(), Scripted(stops=True), Scripted(stops=True)
    assert Policies((("first", first), ("", second), ("third", third))).stop(look()) == ""
    assert (len(first.shown), len(third.shown)) == (1, 0)


def test_each_policy_remembers_under_its_own_key() -> None:
    one, two, silent = Scripted(remembers={"n": 1}), Scripted(remembers={"n": 2}), Scripted()
    policies = Policies((("same", one), ("same", two), ("silent", silent)))
    memory = policies.notify(look(), "the result")
    assert memory == {"same": {"n": 1}, "same#2": {"n": 2}}
    assert one.results == two.results == silent.results == ["the result"]
    policies.stop(look(memory=memory))
    assert [policy.shown[0]["memory"] for policy in (one, two, silent)] == [{"n": 1}, {"n": 2}, {}]


def test_memory_is_merged_deeply() -> None:
    policies = Policies((("p", Scripted(remembers={"deep": {"b": 2}, "n": 1})),))
    memory = policies.notify(look(memory={"p": {"deep": {"a": 1}, "n": 0}, "gone": {"x": 1}}), "r")
    assert memory == {"p": {"deep": {"a": 1, "b": 2}, "n": 1}, "gone": {"x": 1}}


def test_no_policies_change_nothing() -> None:
    assert (Policies().stop(look()), Policies().notify(look(), "r")) == (None, {})


@pytest.mark.parametrize("error", [PolicyViolation("no"), FatalError("no"), RecoverableError("no")])
def test_R_001_9_agent_error_of_a_policy_passes(error: AgentError) -> None:
    policies = Policies((("p", Scripted(stops=error, remembers=error)),))
    for use in (lambda: policies.stop(look()), lambda: policies.notify(look(), "r")):
        with pytest.raises(type(error)) as raised:
            use()
        assert raised.value is error


@pytest.mark.parametrize("policy", [
    pytest.param(Scripted(KeyError("x"), KeyError("x")), id="another error"),
    pytest.param(Scripted(None, {"n": float("nan")}), id="no answer; no JSON number"),
    pytest.param(Scripted("yes" * 9999, {"n": {1, 2}}), id="no truth value; no JSON"),
    pytest.param(Scripted(1, ["n" * 9999]), id="no truth value; no mapping"),
    pytest.param(Scripted(object(), {"n": "\ud800"}), id="no truth value; no text"),
])  # fmt: skip
def test_R_001_9_fatal_error_names_the_faulty_policy(policy: Scripted) -> None:
    policies = Policies((("picky", policy),))
    with pytest.raises(FatalError, match="policy picky") as asked:
        policies.stop(look())
    with pytest.raises(FatalError, match="policy picky") as told:
        policies.notify(look(), "r")
    assert max(len(str(asked.value)), len(str(told.value))) < 300, "what it says of itself is not repeated"


@pytest.mark.parametrize(("roles", "found"), [
    ([], ""), (["user", "assistant"], ""), (["tool"], "0"), (["assistant", "tool", "tool"], "1\n2"),
    (["tool", "assistant", "tool", "tool", "user", "assistant"], "2\n3"),
])  # fmt: skip
def test_newest_results_are_those_of_one_turn(roles: list[Any], found: str) -> None:
    assert newest_results([Message(role=role, content=str(n)) for n, role in enumerate(roles)]) == found


# -- declarations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("declared", "words"), [
    ({"type": "max_token", "value": 5}, "'max_token'; did you mean max_tokens"),
    ({"type": "max_tokens"}, "max_tokens.*missing"),
    ({"type": "max_cost"}, "max_cost.*missing"),
    ({"type": "max_cost", "value": 0}, "greater than 0"),
    ({"type": "max_tokens", "value": 1.5}, "whole number"),
    ({"type": "no_progress", "value": -1}, "greater than 0"),
    ({"type": "no_progress", "config": {"turns": 3}}, "'turns'"),
    ({"type": "raises"}, "raises cannot be made: KeyError"),
    ({"type": "wrong"}, "wrong.*expected a StoppingPolicy"),
])  # fmt: skip
def test_bad_declaration_is_refused_by_name(declared: Any, words: str) -> None:
    own = {"raises": lambda spec: spec.config["missing"], "wrong": lambda spec: object()}
    with pytest.raises(ValueError, match=words):
        Policies.of((PolicySpec.model_validate(declared),), Extensions(policies=own))


def test_bare_name_and_loaded_policy_are_found() -> None:
    assert PolicySpec.model_validate("no_progress") == PolicySpec(type="no_progress")
    own = Extensions(policies={"mine": lambda spec: Scripted(stops=True)})
    assert (
        Policies.of((PolicySpec(type="repeated_call"), PolicySpec(type="mine")), own).stop(look()) == "mine"
    )


# -- the shipped ones -----------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "limit", "counter", "below"), [
    ("max_tokens", 100, "tokens", 99), ("max_cost", 0.25, "cost_usd", 0.2499),
])  # fmt: skip
def test_spending_policies_stop_at_their_number(
    policy: str, limit: float, counter: str, below: float
) -> None:
    policies = shipped(policy, limit)
    assert policies.stop({**look(), counter: below}) is None
    assert policies.stop({**look(), counter: limit}) == policy


class Watched:
    """A run as its policy sees it, from turn to turn."""

    def __init__(self, name: str, value: float | None = None) -> None:
        self.policies, self.memory = shipped(name, value), dict[str, Any]()

    def wants(self, *calls: tuple[str, Any]) -> bool:
        """A reply asks for these calls: is the run stopped?"""
        return self._stopped([SeenCall(name, arguments) for name, arguments in calls])

    def ran(self, *calls: tuple[str, Any, str]) -> bool:
        """They ran, with these results: is the run stopped then?"""
        done = [SeenCall(*one) for one in calls]
        self.memory = self.policies.notify(look(calls=done, memory=self.memory), "r")
        return self._stopped(done)

    def _stopped(self, calls: list[SeenCall]) -> bool:
        return self.policies.stop(look(calls=calls, memory=self.memory)) is not None


def test_repeated_call_stops_before_the_last_of_them() -> None:
    run = Watched("repeated_call", 3)
    for _ in range(2):
        assert not run.wants(("search", {"q": "x", "n": 1}))
        assert not run.ran(("search", {"n": 1, "q": "x"}, "nothing"))
    assert not run.wants(("search", {"q": "y", "n": 1}))
    assert not run.wants(("other", {"q": "x", "n": 1}))
    assert run.wants(("other", {}), ("search", {"q": "x", "n": 1}))


def test_repeated_call_counts_within_one_reply() -> None:
    assert Watched("repeated_call", 2).wants(("a", {}), ("a", {}))
    assert not Watched("repeated_call", 2).wants(("a", {}), ("a", {"n": 1}))
    assert not Watched("repeated_call").wants(("a", {}), ("a", {})), "the default is 3"


def test_no_progress_counts_turns_without_new_results() -> None:
    run = Watched("no_progress", 2)
    assert not run.ran(("a", {"n": 1}, "red"), ("a", {"n": 2}, "blue"))
    assert not run.ran(("a", {"n": 3}, "blue"))
    assert not run.ran(("a", {}, "red"), ("b", {}, "red")), "new from the tool b"
    assert not run.ran(), "an answer is no turn"
    assert not run.ran(("a", {}, "red"))
    assert run.ran(("b", {}, "red"))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y"])), min_size=1, max_size=12))
def test_repeated_call_never_lets_a_call_run_n_times(turns: list[tuple[str, str]]) -> None:
    run, made = Watched("repeated_call", 3), dict[tuple[str, str], int]()
    for turn in turns:
        if run.wants(turn):
            break
        run.ran((*turn, "same"))
        made[turn] = made.get(turn, 0) + 1
        assert made[turn] < 3
