"""The ledger: named counters with caps, kept by the kernel outside the snapshot.

What was spent stays spent, also after a rollback. A call is reserved before it is made and settled
once from its answer (spec 6, 7.4). A machine with budgets of its own keeps a second ledger in its
context, where it rolls back with the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from activities.contracts import (
    CallModel,
    CallModels,
    CallTools,
    Effect,
    EffectFailed,
    Frozen,
    MachineEnded,
    ModelReplied,
    ModelsReplied,
    RunMachine,
    ToolsReturned,
)

__all__ = ["SHARED", "Breach", "Ledger", "plain", "price_of", "reserved_for", "spent_by"]

GLOBAL = ""
SHARED = (
    "model_calls", "tool_calls", "input_tokens", "output_tokens", "tokens", "cost_usd", "unpriced_calls",
)  # fmt: skip
"""Counters that a machine inside another adds to the outer one's, once, when it has ended."""


def plain(number: float) -> str:
    """A number as people write it: `1200000`, `0.25`; never `1.2e+06`."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


class Breach(Frozen):
    """A limit that the next call would pass."""

    counter: str
    spent: float
    cap: float

    def __str__(self) -> str:
        return f"{self.counter}: {plain(self.spent)} of {plain(self.cap)} spent"


class Ledger(Frozen):
    """Counters by name; a scoped counter is `scope/name`. Immutable: charging gives a new ledger.

    A counter without a cap is only counted. A cap named in `advice` is printed and asked about but
    never counts as a breach. Remaining is never below 0, spent may pass the cap (overdraft).
    """

    spent: dict[str, float] = {}
    caps: dict[str, float] = {}
    advice: tuple[str, ...] = ()

    def charge(self, amounts: Mapping[str, float], *scopes: str) -> Ledger:
        """Amounts are added to each scope named; without a scope, to the whole run."""
        spent = dict(self.spent)
        for scope in scopes or (GLOBAL,):
            for counter, amount in amounts.items():
                name = f"{scope}/{counter}" if scope else counter
                # Rounded: sums of prices must not differ from the price of the sum by a hair.
                spent[name] = round(spent.get(name, 0) + amount, 9)
        return self.model_copy(update={"spent": spent})

    def without(self, effect: Effect | None) -> Ledger:
        """With the reservation for this effect taken back: it is not made, or is asked for anew."""
        return self.charge({counter: -amount for counter, amount in reserved_for(effect).items()})

    def at_least(self, counter: str, amount: float) -> Ledger:
        """The counter raised to this amount; it never falls. For time."""
        most = max(self.spent.get(counter, 0), round(amount, 3))
        return self.model_copy(update={"spent": {**self.spent, counter: most}})

    def credit(self, counter: str, amount: float) -> Ledger:
        """The counter's cap raised by this amount: a top-up. Without a cap nothing changes."""
        if counter not in self.caps:
            return self
        caps = {**self.caps, counter: round(self.caps[counter] + amount, 9)}
        return self.model_copy(update={"caps": caps})

    def used(self, counter: str) -> float:
        """What was spent."""
        return self.spent.get(counter, 0)

    def left(self, counter: str) -> float:
        """What may still be spent: never below 0, infinite without a cap."""
        if counter not in self.caps:
            return math.inf
        return max(0, round(self.caps[counter] - self.used(counter), 9))

    def breach(self, amounts: Mapping[str, float]) -> Breach | None:
        """The first limit that charging these amounts would pass; an amount of 0 asks if it is reached."""
        for counter, amount in amounts.items():
            if counter not in self.caps or counter in self.advice:
                continue
            spent, cap = self.used(counter), self.caps[counter]
            if round(spent + amount, 9) > cap or (amount == 0 and spent >= cap):
                return Breach(counter=counter, spent=spent, cap=cap)
        return None

    def line(self, counters: Sequence[str], scope: str = GLOBAL) -> str:
        """`decisions left 4/4, tools left 3/4` for those that have a cap."""
        parts = []
        for counter in counters:
            name = f"{scope}/{counter}" if scope else counter
            if name in self.caps:
                parts.append(f"{counter} left {plain(self.left(name))}/{plain(self.caps[name])}")
        return ", ".join(parts)


def price_of(effect: Effect) -> dict[str, float]:
    """What an effect costs before it is made; 0 asks only whether the limit is reached already."""
    shared: dict[str, float] = {"cost_usd": 0, "seconds": 0}
    if isinstance(effect, CallModel):
        return {"model_calls": 1, "tokens": 0, **shared}
    if isinstance(effect, CallModels):
        return {"model_calls": len(effect.calls), "tokens": 0, **shared}
    if isinstance(effect, CallTools):
        return {"tool_calls": len(effect.runs), **shared}
    if isinstance(effect, RunMachine):
        return shared
    return {}


def reserved_for(effect: Effect | None) -> dict[str, float]:
    """What is charged when an effect is handed out."""
    return {counter: amount for counter, amount in price_of(effect).items() if amount} if effect else {}


def spent_by(answer: BaseModel) -> dict[str, float]:
    """What an answer says was spent beyond the call itself."""
    if isinstance(answer, ModelReplied):
        used = answer.usage
        unknown = {} if answer.cost_known else {"unpriced_calls": 1.0}
        return {
            **unknown,
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "tokens": used.input_tokens + used.output_tokens,
            "cost_usd": answer.cost_usd,
        }
    if isinstance(answer, ModelsReplied):
        total: dict[str, float] = {}
        for reply in answer.replies:
            for name, amount in spent_by(reply).items():
                total[name] = total.get(name, 0) + amount
        return total
    if isinstance(answer, ToolsReturned):
        return {"cost_usd": sum(result.cost_usd for result in answer.results)}
    if isinstance(answer, MachineEnded | EffectFailed):
        return {name: amount for name, amount in answer.spent.items() if name in SHARED}
    return {}
