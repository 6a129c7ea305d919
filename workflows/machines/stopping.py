"""Stopping policies as the machines use them (spec 2.6): the shipped ones, and how they are asked.

A machine asks its `Policies` with a `PolicyContext`, a view of the run: `ask` says which policy stops
it, `notify` gives the patch of the field in which policies remember. That field belongs to the
machine's context: `policy_memory: Annotated[JsonObject, MERGE] = {}`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from activities.contracts import JsonObject, Message
from workflows.kernel.design import Parts
from workflows.kernel.errors import AgentError, FatalError, failure_words, kind_words
from workflows.kernel.fields import MERGE, freeze
from workflows.kernel.ledger import Ledger
from workflows.kernel.policies import (
    PolicySpec,
    PolicyType,
    StoppingPolicy,
    build_policies,
)

__all__ = ["POLICY_TYPES", "STOPPED", "Call", "PolicyContext", "Policies"]

STOPPED = "[Stopped by custom policy]"
"""The response of a run that a policy has stopped."""


@dataclass(frozen=True, slots=True)
class Call:
    """One thing that the reply at hand asks to have done: a tool call, or a block of code."""

    name: str
    arguments: Any
    """As parsed; the text itself where it cannot be parsed."""
    result: str | None = None
    """What came back; None: it has not run."""

    def plain(self) -> dict[str, Any]:
        """As policies see it: without a result there is no such key."""
        ran = {} if self.result is None else {"result": self.result}
        return {"name": self.name, "arguments": self.arguments, **ran}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """What policies are shown of a run."""

    mode: Literal["tools", "code"]
    iteration: int
    """Iterations that are complete."""
    max_iterations: int
    depth: int
    history: Sequence[Message]
    last_result: str
    """What the last complete iteration brought; empty before the first."""
    calls: Sequence[Call]
    """What the reply at hand asks for; with results once it has run."""
    ledger: Ledger
    memory: Mapping[str, Any]
    """The context field in which all policies of the run remember."""

    def plain(self) -> dict[str, Any]:
        """The mapping of plain values that a policy gets; `memory` is added for each."""
        used = self.ledger.used
        return {
            "mode": self.mode,
            "iteration": self.iteration,
            "max_iterations": self.max_iterations,
            "depth": self.depth,
            "history": [message.model_dump(mode="json") for message in self.history],
            "last_result": self.last_result,
            "calls": [call.plain() for call in self.calls],
            "tokens": int(used("tokens")),
            "cost_usd": used("cost_usd"),
        }

    def remembering(self, patch: Mapping[str, Any]) -> PolicyContext:
        """The same view with what `Policies.notify` gave to remember."""
        return replace(self, memory=MERGE.fold(self.memory, patch.get("policy_memory", {})))


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one run, in their order."""

    named: tuple[tuple[str, StoppingPolicy], ...] = ()

    @staticmethod
    def of(specs: Sequence[PolicySpec], parts: Parts) -> Policies:
        """Shipped and loaded ones by name; raises ValueError for what cannot be made."""
        return Policies(build_policies(specs, {**POLICY_TYPES, **parts.policies}))

    def ask(self, view: PolicyContext) -> str | None:
        """The name of the first policy that stops the run; later ones are not asked.

        A policy may raise an `AgentError`; anything else that it raises is a FatalError (R-001-9).
        """
        for name, policy, context in self._shown(view):
            stops: object = _called(name, policy.should_stop, context)
            if not isinstance(stops, bool):
                # None is what a forgotten `return` gives, and a policy that never stops guards nothing.
                raise FatalError(
                    f"the policy {name} answered with {kind_words(stops)}; expected True or False"
                )
            if stops:
                return name
        return None

    def notify(self, view: PolicyContext, result: str) -> dict[str, JsonObject]:
        """Tell every policy what an iteration brought: the patch of what they remember, if anything.

        Raises as `ask` does.
        """
        remembered: JsonObject = {}
        for key, (name, policy, context) in zip(self._keys(), self._shown(view), strict=True):
            said: object = _called(name, policy.on_iteration_complete, context, result)
            if said is not None and (kept := _memory(name, said)):
                remembered[key] = kept
        return {"policy_memory": remembered} if remembered else {}

    def _keys(self) -> list[str]:
        """Where each policy remembers: under its name, the second of a name as `name#2`."""
        seen: Counter[str] = Counter()
        keys = []
        for name, _ in self.named:
            seen[name] += 1
            keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
        return keys

    def _shown(self, view: PolicyContext) -> list[tuple[str, StoppingPolicy, Mapping[str, Any]]]:
        """Each policy with the context that it gets: the same for all but its own memory. It is frozen, so
        that no policy hides anything from the next one, or rewrites what it remembers."""
        plain = freeze(view.plain()) if self.named else {}
        return [
            (name, policy, freeze({**plain, "memory": view.memory.get(key, {})}))
            for key, (name, policy) in zip(self._keys(), self.named, strict=True)
        ]


def _called(name: str, method: Callable[..., Any], *given: Any) -> Any:
    try:
        return method(*given)
    except AgentError:
        raise
    except Exception as error:
        raise FatalError(f"the policy {name} failed: {failure_words(error)}") from error


def _memory(name: str, said: object) -> JsonObject:
    """What a policy wants to remember, as JSON will give it back."""
    if not isinstance(said, Mapping):
        raise FatalError(
            f"the policy {name} returned {kind_words(said)}; expected a mapping to remember, or None"
        )
    try:
        kept: JsonObject = freeze(json.loads(json.dumps(dict(said), allow_nan=False)))
    except Exception as error:
        problem = f"the policy {name} wants to remember what JSON cannot hold: {failure_words(error)}"
        raise FatalError(problem) from error
    return kept


# -- the shipped policies ----------------------------------------------------------------------------


def _number(spec: PolicySpec, unit: str, default: float | None = None) -> float:
    """The policy's number; raises ValueError when it is missing or makes no sense."""
    for key in spec.config:
        raise ValueError(f"policy {spec.type}: unknown key {key!r} in `config`; it has none")
    value = default if spec.value is None else spec.value
    if value is None:
        raise ValueError(f"policy {spec.type}: `value` is missing; give {unit}")
    if value <= 0:
        raise ValueError(f"policy {spec.type}: `value` must be greater than 0 {unit}, not {value:g}")
    return value


def _count(spec: PolicySpec, unit: str, default: float | None = None) -> int:
    value = _number(spec, unit, default)
    if value != int(value):
        raise ValueError(f"policy {spec.type}: `value` must be a whole number of {unit}, not {value:g}")
    return int(value)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Spent:
    """Stops when so much was used."""

    key: Literal["tokens", "cost_usd"]
    most: float

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        return bool(context[self.key] >= self.most)

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        return None


@dataclass(frozen=True, slots=True)
class _NoProgress:
    """Stops when the last turns brought only results that the same tools had brought before."""

    turns: int

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        return bool(context["memory"].get("idle", 0) >= self.turns)

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        brought = {_digest([call["name"], call["result"]]) for call in context["calls"] if "result" in call}
        if not brought:
            return None  # no turn that did anything: there was an answer
        memory = context["memory"]
        new = sorted(brought - set(memory.get("seen", {})))
        return {"idle": 0 if new else memory.get("idle", 0) + 1, "seen": dict.fromkeys(new, True)}


@dataclass(frozen=True, slots=True)
class _RepeatedCall:
    """Stops when the same call with the same arguments is wanted so many times, before it is run."""

    times: int

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        wanted = Counter(_call(call) for call in context["calls"] if "result" not in call)
        made = context["memory"]
        return any(made.get(call, 0) + count >= self.times for call, count in wanted.items())

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        ran = Counter(_call(call) for call in context["calls"] if "result" in call)
        return {call: context["memory"].get(call, 0) + count for call, count in ran.items()}


def _call(call: Mapping[str, Any]) -> str:
    return _digest([call["name"], call["arguments"]])


POLICY_TYPES: Mapping[str, PolicyType] = {
    "max_tokens": lambda spec: _Spent("tokens", _count(spec, "tokens")),
    "max_cost": lambda spec: _Spent("cost_usd", _number(spec, "USD")),
    "no_progress": lambda spec: _NoProgress(_count(spec, "turns", 3)),
    "repeated_call": lambda spec: _RepeatedCall(_count(spec, "calls", 3)),
}
"""Shipped policies by name; `value` is their number.

`max_tokens`: tokens used so far, input and output. `max_cost`: USD spent so far. `no_progress`: the last
so many turns brought only results that the same tools had brought before (default 3). `repeated_call`:
the same call with the same arguments is wanted so many times (default 3); the last of them is not run.
"""
