"""The shipped stopping policies, and how a machine asks policies (spec 2.6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import JsonObject, Message
from workflows import registry
from workflows.kernel.design import Parts
from workflows.kernel.errors import AgentError, FatalError, PolicyViolation, RecoverableError
from workflows.kernel.fields import MERGE
from workflows.kernel.ledger import Ledger
from workflows.kernel.policies import PolicySpec
from workflows.machines.stopping import POLICY_TYPES, Call, Policies, PolicyContext


@dataclass
class Told:
    """A policy that stops when it is told to, and remembers what it is given to."""

    stops: Any = False
    remembers: Any = None
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    told: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        self.asked.append(context)
        if isinstance(self.stops, Exception):
            raise self.stops
        return self.stops  # type: ignore[no-any-return]  # a policy of a user may answer anything

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        self.told.append((context, result))
        if isinstance(self.remembers, Exception):
            raise self.remembers
        return self.remembers  # type: ignore[no-any-return]  # as above


@dataclass(frozen=True)
class Meddling:
    """A policy that changes what it is shown."""

    meddle: Callable[[Any], Any]

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        self.meddle(context)
        return False

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        self.meddle(context)
        return None


class Odd(Mapping[str, Any]):
    """A thing of which every question raises."""

    def __repr__(self) -> str:
        raise LookupError("no words")

    def __bool__(self) -> bool:
        raise LookupError("no truth")

    def __getitem__(self, key: str) -> Any:
        raise LookupError("no items")

    def __iter__(self) -> Any:
        raise LookupError("no keys")

    def __len__(self) -> int:
        raise LookupError("no length")


class Mute(Exception):
    """An error that cannot be written."""

    def __str__(self) -> str:
        raise LookupError("no words")


def raise_(error: Exception) -> Any:
    """An error as an expression."""
    raise error


def look(**changes: Any) -> PolicyContext:
    """A run at its first reply."""
    values: dict[str, Any] = {
        "mode": "tools", "iteration": 0, "max_iterations": 10, "depth": 0, "history": (), "last_result": "",
        "calls": (), "ledger": Ledger(), "memory": {},
    }  # fmt: skip
    return PolicyContext(**{**values, **changes})


def shipped(name: str, value: float | None = None) -> Policies:
    """One shipped policy."""
    return Policies.of((PolicySpec(type=name, value=value),), Parts())


# -- what a policy sees ------------------------------------------------------------------------------


def test_a_policy_sees_the_mapping_of_the_spec_in_plain_values() -> None:
    policy = Told()
    message = Message(role="user", content="hi")
    shown = look(
        mode="code", iteration=2, max_iterations=9, depth=1, history=(message,), last_result="found",
        calls=(Call("a", {"q": 1}), Call("b", "{bad", "ran")),
        ledger=Ledger(spent={"tokens": 12, "cost_usd": 0.5}), memory={"mine": {"n": 1}, "other": {"n": 2}},
    )  # fmt: skip
    assert Policies((("mine", policy),)).ask(shown) is None
    (context,) = policy.asked
    assert context == {
        "mode": "code", "iteration": 2, "max_iterations": 9, "depth": 1, "last_result": "found",
        "history": [{"role": "user", "content": "hi", "tool_calls": [], "tool_call_id": None}],
        "calls": [{"name": "a", "arguments": {"q": 1}}, {"name": "b", "arguments": "{bad", "result": "ran"}],
        "tokens": 12, "cost_usd": 0.5, "memory": {"n": 1},
    }  # fmt: skip
    assert json.loads(json.dumps(dict(context))) == context


def test_a_policy_cannot_change_what_it_is_shown() -> None:
    policy = Told()
    Policies((("mine", policy),)).ask(look())
    with pytest.raises(TypeError):
        policy.asked[0]["iteration"] = 99  # type: ignore[index]  # that is the point


@pytest.mark.parametrize("meddle", [
    lambda c: c["memory"].update(idle=99),
    lambda c: c["memory"]["list"].append(9),
    lambda c: c["memory"]["deep"].clear(),
    lambda c: c["calls"].clear(),
    lambda c: c["calls"][0].pop("result"),
    lambda c: c["calls"][0]["arguments"]["q"].append(2),
    lambda c: c["history"].pop(),
    lambda c: c["history"][0].update(content="no"),
    lambda c: c["history"][0]["tool_calls"].append("x"),
])  # fmt: skip
def test_what_is_nested_in_it_cannot_be_changed_either(meddle: Callable[[Any], Any]) -> None:
    """Else one policy would blind the others, and rewrite what the run remembers without a record."""
    last = Told(remembers={"list": [1], "deep": {"n": 1}})
    policies = Policies((("mine", Meddling(meddle)), ("mine", last)))
    arguments: dict[str, Any] = {"q": [1]}
    before = look(
        calls=(Call("a", arguments, "ran"),), history=(Message(role="user", content="hi"),),
        memory={"mine": {"n": 0}},
    )  # fmt: skip
    patch = Policies((("mine", last),)).notify(before, "r")
    shown = before.remembering(patch)
    plain = json.dumps([shown.plain(), shown.memory, patch])
    for use in (policies.ask, lambda view: policies.notify(view, "r")):
        with pytest.raises(FatalError, match="the policy mine failed: TypeError"):
            use(shown)
    assert json.dumps([shown.plain(), shown.memory, patch]) == plain


# -- asking and telling ------------------------------------------------------------------------------


def test_the_first_policy_that_stops_is_named_and_later_ones_are_not_asked() -> None:
    first, second, third = Told(), Told(stops=True), Told(stops=True)
    policies = Policies((("first", first), ("second", second), ("third", third)))
    assert policies.ask(look()) == "second"
    assert (len(first.asked), len(third.asked)) == (1, 0)


def test_every_policy_is_told_and_what_each_remembers_is_kept_under_its_name() -> None:
    one, two, silent = Told(remembers={"n": 1}), Told(remembers={"n": 2}), Told()
    policies = Policies((("same", one), ("same", two), ("silent", silent)))
    patch = policies.notify(look(), "the result")
    assert patch == {"policy_memory": {"same": {"n": 1}, "same#2": {"n": 2}}}
    assert [policy.told[0][1] for policy in (one, two, silent)] == ["the result"] * 3
    policies.ask(look().remembering(patch))
    assert (one.asked[0]["memory"], two.asked[0]["memory"], silent.asked[0]["memory"]) == (
        {"n": 1},
        {"n": 2},
        {},
    )


def test_without_policies_nothing_stops_and_nothing_is_remembered() -> None:
    assert Policies().ask(look()) is None
    assert Policies().notify(look(), "r") == {}


# -- what a policy raises ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [
    PolicyViolation("no"), FatalError("no"), RecoverableError("no")
])  # fmt: skip
def test_R_001_9_an_agent_error_of_a_policy_is_raised_as_it_is(error: AgentError) -> None:
    """R-001-9: what a policy raises leaves the run."""
    with pytest.raises(type(error)) as raised:
        Policies((("p", Told(stops=error)),)).ask(look())
    assert raised.value is error
    with pytest.raises(type(error)):
        Policies((("p", Told(remembers=error)),)).notify(look(), "r")


@pytest.mark.parametrize("policy", [
    pytest.param(Told(stops=KeyError("x"), remembers=KeyError("x")), id="it raises something else"),
    pytest.param(Told(stops=None, remembers={"n": float("nan")}), id="no answer; no JSON number"),
    pytest.param(Told(stops="yes", remembers={"n": {1, 2}}), id="no truth value; no JSON"),
    pytest.param(Told(stops=1, remembers=["n"]), id="no truth value; no mapping"),
])  # fmt: skip
def test_R_001_9_any_other_failure_of_a_policy_is_a_fatal_error_that_names_it(policy: Told) -> None:
    """R-001-9: what a policy raises leaves the run."""
    policies = Policies((("picky", policy),))
    with pytest.raises(FatalError, match="the policy picky"):
        policies.ask(look())
    with pytest.raises(FatalError, match="the policy picky"):
        policies.notify(look(), "r")


@pytest.mark.parametrize(("answer", "kind"), [
    (None, "NoneType"), (1, "int"), ("yes" * 9999, "str"), (Odd(), "Odd"), (object(), "object")
])  # fmt: skip
def test_an_answer_that_is_none_is_named_by_its_type_alone(answer: Any, kind: str) -> None:
    """What it says of itself may be an address, a megabyte, or another error."""
    with pytest.raises(FatalError) as raised:
        Policies((("p", Told(stops=answer)),)).ask(look())
    assert str(raised.value) == f"the policy p answered with a value of type {kind}; expected True or False"


@pytest.mark.parametrize(("remembers", "words"), [
    (["n" * 9999], "returned a value of type list; expected a mapping to remember, or None"),
    (False, "returned a value of type bool; expected a mapping to remember, or None"),
    (object(), "returned a value of type object; expected a mapping to remember, or None"),
    (Odd(), "wants to remember what JSON cannot hold: LookupError: no keys"),
    ({"n": object()}, "wants to remember what JSON cannot hold: TypeError: "),
    ({"n": "\ud800"}, "wants to remember what JSON cannot hold: UnicodeEncodeError: "),
])  # fmt: skip
def test_what_cannot_be_remembered_is_named_by_its_type_alone(remembers: Any, words: str) -> None:
    with pytest.raises(FatalError) as raised:
        Policies((("p", Told(remembers=remembers)),)).notify(look(), "r")
    assert str(raised.value).startswith(f"the policy p {words}")
    assert "0x" not in str(raised.value)


@pytest.mark.parametrize(("error", "words"), [
    (Mute(), "the policy p failed: Mute"),
    (ValueError("x" * 9999), f"the policy p failed: ValueError: {'x' * 999}…"),
])  # fmt: skip
def test_an_error_that_cannot_be_written_or_is_too_long_does_not_wedge_the_run(
    error: Exception, words: str
) -> None:
    with pytest.raises(FatalError) as raised:
        Policies((("p", Told(stops=error)),)).ask(look())
    assert str(raised.value) == words


def test_a_policy_that_stops_is_named_even_if_its_name_is_empty() -> None:
    assert Policies((("", Told(stops=True)),)).ask(look()) == ""


# -- declarations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("declared", "words"), [
    ({"type": "max_token", "value": 5}, "unknown policy 'max_token'; did you mean max_tokens?"),
    ({"type": "max_tokens"}, "policy max_tokens: `value` is missing; give tokens"),
    ({"type": "max_cost"}, "policy max_cost: `value` is missing; give USD"),
    ({"type": "max_cost", "value": 0}, "must be greater than 0 USD, not 0"),
    ({"type": "max_tokens", "value": 1.5}, "must be a whole number of tokens, not 1.5"),
    ({"type": "no_progress", "value": -1}, "must be greater than 0 turns, not -1"),
    ({"type": "repeated_call", "value": 2.5}, "must be a whole number of calls, not 2.5"),
    ({"type": "no_progress", "config": {"turns": 3}}, "unknown key 'turns' in `config`"),
])  # fmt: skip
def test_a_bad_declaration_is_refused_in_words(declared: Any, words: str) -> None:
    with pytest.raises(ValueError, match="policy") as refused:
        Policies.of((PolicySpec.model_validate(declared),), Parts())
    assert words in str(refused.value)


def test_a_bare_name_is_a_policy_with_its_default() -> None:
    assert PolicySpec.model_validate("no_progress") == PolicySpec(type="no_progress")
    assert [name for name, _ in Policies.of((PolicySpec(type="repeated_call"),), Parts()).named] == [
        "repeated_call"
    ]


def test_a_users_policy_is_found_by_its_registered_name() -> None:
    policies = Policies.of(
        (PolicySpec(type="mine"),), Parts(policies={"mine": lambda spec: Told(stops=True)})
    )
    assert policies.ask(look()) == "mine"


@pytest.mark.parametrize(("maker", "words"), [
    (lambda spec: spec.config["missing"], "policy mine cannot be made: KeyError"),
    (lambda spec: object(), "its maker returned a value of type object; expected a StoppingPolicy"),
    (lambda spec: Odd(), "its maker returned a value of type Odd; expected a StoppingPolicy"),
    (lambda spec: raise_(Mute()), "policy mine cannot be made: Mute"),
])  # fmt: skip
def test_a_users_policy_that_cannot_be_made_is_refused_in_words(maker: Any, words: str) -> None:
    with pytest.raises(ValueError, match="policy mine") as refused:
        Policies.of((PolicySpec(type="mine"),), Parts(policies={"mine": maker}))
    assert words in str(refused.value)


def test_the_registry_keeps_users_from_taking_the_name_of_a_shipped_policy() -> None:
    assert set(registry.parts().policies).isdisjoint(POLICY_TYPES)


# -- the shipped ones --------------------------------------------------------------------------------


def test_max_tokens_stops_when_so_many_were_used() -> None:
    policies = shipped("max_tokens", 100)
    assert policies.ask(look(ledger=Ledger(spent={"tokens": 99}))) is None
    assert policies.ask(look(ledger=Ledger(spent={"tokens": 100}))) == "max_tokens"
    assert policies.notify(look(), "r") == {}


def test_max_cost_stops_when_so_much_was_spent() -> None:
    policies = shipped("max_cost", 0.25)
    assert policies.ask(look(ledger=Ledger(spent={"cost_usd": 0.2499}))) is None
    assert policies.ask(look(ledger=Ledger(spent={"cost_usd": 0.25}))) == "max_cost"


class Watched:
    """A run as its policies see it, from turn to turn."""

    def __init__(self, name: str, value: float | None = None) -> None:
        self.policies = shipped(name, value)
        self.memory: Mapping[str, Any] = {}
        self.turns = 0

    def wants(self, *calls: tuple[str, Any]) -> bool:
        """A reply asks for these calls: is it stopped?"""
        return self.stopped(*(Call(name, arguments) for name, arguments in calls))

    def ran(self, *calls: tuple[str, Any, str]) -> bool:
        """They ran, with these results: is the run stopped then?"""
        done = tuple(Call(*one) for one in calls)
        patch = self.policies.notify(look(calls=done, memory=self.memory, iteration=self.turns), "r")
        self.memory, self.turns = MERGE.fold(self.memory, patch.get("policy_memory", {})), self.turns + 1
        return self.stopped(*done)

    def stopped(self, *calls: Call) -> bool:
        return self.policies.ask(look(calls=calls, memory=self.memory, iteration=self.turns)) is not None


def test_repeated_call_stops_before_the_same_call_is_made_so_many_times() -> None:
    run = Watched("repeated_call", 3)
    for _ in range(2):
        assert not run.wants(("search", {"q": "x", "n": 1}))
        assert not run.ran(("search", {"n": 1, "q": "x"}, "nothing"))
    assert not run.wants(("search", {"q": "y", "n": 1}))
    assert not run.wants(("other", {"q": "x", "n": 1}))
    assert run.wants(("other", {}), ("search", {"q": "x", "n": 1}))


def test_repeated_call_counts_within_one_reply_too() -> None:
    run = Watched("repeated_call", 2)
    assert run.wants(("a", {}), ("a", {}))
    assert not run.wants(("a", {}), ("a", {"n": 1}))
    assert Watched("repeated_call", 1).wants(("a", {}))
    assert not Watched("repeated_call").wants(("a", {}), ("a", {})), "the default is 3"


def test_no_progress_stops_after_so_many_turns_that_bring_nothing_new() -> None:
    run = Watched("no_progress", 2)
    assert not run.ran(("a", {"n": 1}, "red"), ("a", {"n": 2}, "blue"))
    assert not run.ran(("a", {"n": 3}, "blue"))
    assert run.ran(("a", {"n": 4}, "red"), ("a", {"n": 5}, "blue"))


def test_no_progress_begins_to_count_again_when_something_new_comes() -> None:
    run = Watched("no_progress", 2)
    assert not run.ran(("a", {}, "red"))
    assert not run.ran(("a", {}, "red"))
    assert not run.ran(("a", {}, "red"), ("b", {}, "red")), "new from the tool b"
    assert not run.ran(("a", {}, "red"))
    assert run.ran(("b", {}, "red"))


def test_no_progress_ignores_an_answer() -> None:
    run = Watched("no_progress", 1)
    assert not run.ran()
    assert run.memory == {}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y"])), min_size=1, max_size=12))
def test_repeated_call_with_n_never_lets_a_call_run_n_times(turns: list[tuple[str, str]]) -> None:
    run, made = Watched("repeated_call", 3), dict[tuple[str, str], int]()
    for turn in turns:
        if run.wants(turn):
            break
        run.ran((*turn, "same"))
        made[turn] = made.get(turn, 0) + 1
        assert made[turn] < 3
