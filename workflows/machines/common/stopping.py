"""Stopping policies: asked at set points whether a run shall stop (spec 2.6). Pure.

A policy's two methods get a read-only mapping: `mode` ("tools" or "code"), `iteration` (complete ones),
`max_iterations`, `depth` (how deep the run is nested), `history` (the conversation's messages),
`last_result` (what the last complete iteration brought), `calls` (what the newest reply asks for: `name`,
`arguments` and, once it has run, `result`), `tokens` and `cost_usd` (used so far), and `memory` (what this
policy returned earlier). A policy keeps nothing in itself: the run may go on in another process.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from workflows.kernel.errors import error_text
from workflows.machines.authoring import Extensions, FatalError, JsonObject, Message, Run
from workflows.machines.common.json_text import merged
from workflows.machines.common.named_parts import (
    NamedSpec,
    call_user_function,
    make_part,
    number,
    whole_number,
)

__all__ = [
    "POLICY_TYPES",
    "STOPPED",
    "SeenCall",
    "Policies",
    "PolicySpec",
    "PolicyType",
    "StoppingPolicy",
    "newest_results",
    "policy_view",
]

STOPPED = "[Stopped by custom policy]"
"""The response of a run that a policy has stopped."""


@runtime_checkable
class StoppingPolicy(Protocol):
    """What a policy answers. What it raises ends the run (R-001-9)."""

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        """Whether the run shall stop here. Asked before what a reply wants is done, and after it."""
        ...

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        """Called once per model reply that was looked at; `result` is what its calls brought, or the
        answer. Returns what to remember, or None: it is merged into `context["memory"]`, nested mappings
        too, so that only what changed needs to be returned."""
        ...


class PolicySpec(NamedSpec):
    """A policy as an agent file declares it."""


PolicyType = Callable[[PolicySpec], StoppingPolicy]
"""Makes a policy from its declaration. Raises ValueError for a bad one."""


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One thing that the newest reply asks for: a tool call, or a block of code."""

    name: str
    arguments: Any
    """As parsed; the text itself where it cannot be parsed."""
    result: str | None = None
    """What came back; None: it has not run."""

    def plain(self) -> dict[str, Any]:
        """As policies see it: without a result there is no such key."""
        ran = {} if self.result is None else {"result": self.result}
        return {"name": self.name, "arguments": self.arguments, **ran}


def policy_view(
    mode: Literal["tools", "code"], c: Any, run: Run, calls: Sequence[SeenCall], last_result: str
) -> dict[str, Any]:
    """What policies are shown of a run. `memory` has what each of them remembers, by its key; `history` is
    read when a policy looks at it."""
    return {
        "mode": mode,
        "iteration": c.iteration,
        "max_iterations": run.options.max_iterations,
        "depth": run.input.depth,
        "history": run.conversation,
        "last_result": last_result,
        "calls": tuple(call.plain() for call in calls),
        "tokens": int(run.ledger.used("tokens")),
        "cost_usd": run.ledger.used("cost_usd"),
        "memory": c.policy_memory,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Shown(Mapping[str, Any]):
    """What one policy is shown. Most look at no message, so these are read when one does."""

    view: Mapping[str, Any]
    memory: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        if key == "history":
            return tuple(self.view["history"])
        return self.memory if key == "memory" else self.view[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.view)

    def __len__(self) -> int:
        return len(self.view)


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one run, in their order, with their names."""

    named: tuple[tuple[str, StoppingPolicy], ...] = ()

    @staticmethod
    def of(specs: Sequence[PolicySpec], extensions: Extensions) -> Policies:
        """Shipped and loaded ones by name. Raises ValueError for one that cannot be made."""
        makers = {**extensions.policies, **POLICY_TYPES}
        return Policies(
            tuple((spec.type, make_part("policy", spec, makers, StoppingPolicy)) for spec in specs)  # type: ignore[type-abstract]  # a protocol is taken for an abstract class
        )

    def stop(self, view: Mapping[str, Any]) -> str | None:
        """The name of the first policy that stops the run; later ones are not asked.

        Raises what a policy raises if it is a KernelError, else a FatalError (R-001-9).
        """
        for name, policy, _, context in self._shown(view):
            stops = call_user_function(f"policy {name}", policy.should_stop, context)
            if not isinstance(stops, bool):
                # None is what a forgotten `return` gives, and a policy that never stops guards nothing.
                raise FatalError(
                    f"the policy {name} answered with a {type(stops).__name__}; expected True or False"
                )
            if stops:
                return name
        return None

    def notify(self, view: Mapping[str, Any], result: str) -> dict[str, Any]:
        """Tell every policy what an iteration brought. Returns the new `policy_memory`, whole.

        Raises as `stop` does.
        """
        memory = dict(view["memory"])
        for name, policy, key, context in self._shown(view):
            kept = call_user_function(f"policy {name}", policy.on_iteration_complete, context, result)
            if kept is not None:
                memory[key] = merged(view["memory"].get(key, {}), _json_memory(name, kept))
        return {key: value for key, value in memory.items() if value}

    def _shown(self, view: Mapping[str, Any]) -> Iterator[tuple[str, StoppingPolicy, str, Mapping[str, Any]]]:
        """Each policy with its name, the key of its memory, and the context that it gets."""
        seen: Counter[str] = Counter()
        for name, policy in self.named:
            seen[name] += 1
            key = name if seen[name] == 1 else f"{name}#{seen[name]}"
            yield name, policy, key, _Shown(view, view["memory"].get(key, {}))


def newest_results(messages: Sequence[Message]) -> str:
    """The contents of the newest block of tool messages, one below the other; empty before the first."""
    end = next((n for n in range(len(messages), 0, -1) if messages[n - 1].role == "tool"), 0)
    begin = next((n for n in range(end, 0, -1) if messages[n - 1].role != "tool"), 0)
    return "\n".join(message.content for message in messages[begin:end])


def _json_memory(name: str, kept: object) -> JsonObject:
    """What a policy wants to remember, as JSON gives it back."""
    if not isinstance(kept, Mapping):
        raise FatalError(
            f"the policy {name} returned a {type(kept).__name__}; expected a mapping to remember, or None"
        )
    try:
        checked: JsonObject = json.loads(json.dumps(dict(kept), allow_nan=False))
        json.dumps(checked, ensure_ascii=False).encode()  # half a character pair cannot be written
    except Exception as error:
        problem = f"the policy {name} wants to remember what JSON cannot hold: {error_text(error)}"
        raise FatalError(problem) from error
    return checked


# -- the shipped policies -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Spent:
    """Stops when so much was used."""

    key: Literal["tokens", "cost_usd"]
    most: float

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        return bool(context[self.key] >= self.most)

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> None:
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
            return None  # the reply asked for nothing: it was an answer
        memory = context["memory"]
        new = sorted(brought - set(memory.get("seen", {})))
        return {"idle": 0 if new else memory.get("idle", 0) + 1, "seen": dict.fromkeys(new, True)}


@dataclass(frozen=True, slots=True)
class _RepeatedCall:
    """Stops when the same call with the same arguments is wanted so many times, before it is run."""

    times: int

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        wanted = Counter(_call_digest(call) for call in context["calls"] if "result" not in call)
        return any(context["memory"].get(call, 0) + count >= self.times for call, count in wanted.items())

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        ran = Counter(_call_digest(call) for call in context["calls"] if "result" in call)
        return {call: context["memory"].get(call, 0) + count for call, count in ran.items()}


def _call_digest(call: Mapping[str, Any]) -> str:
    return _digest([call["name"], call["arguments"]])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=dict)  # a read-only mapping is no dict
    return hashlib.sha256(text.encode()).hexdigest()[:16]


POLICY_TYPES: Mapping[str, PolicyType] = {
    "max_tokens": lambda spec: _Spent("tokens", whole_number("policy", spec, "tokens")),
    "max_cost": lambda spec: _Spent("cost_usd", number("policy", spec, "USD")),
    "no_progress": lambda spec: _NoProgress(whole_number("policy", spec, "turns", 3)),
    "repeated_call": lambda spec: _RepeatedCall(whole_number("policy", spec, "calls", 3)),
}
"""Shipped policies by name; `value` is their number.

`max_tokens`: tokens used so far, input and output. `max_cost`: USD spent so far. `no_progress`: the last
so many turns brought only results that the same tools had brought before (default 3). `repeated_call`:
the same call with the same arguments is wanted so many times (default 3); the last of them is not run.
"""
