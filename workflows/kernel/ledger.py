"""The ledger: named counters with caps, kept by the kernel outside the snapshot.

What was spent stays spent, also after a rollback. `RunState.reserve` in `workflows/engine/run_state.py` says
when calls are reserved and settled. A machine with a budget of its own keeps a second ledger in its context,
where it rolls back with the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import model_validator

from activities.contracts import Frozen, ReadOnlyDict, read_only

__all__ = ["Breach", "Ledger", "plain_number"]


LEDGER = "`run.ledger`"


def plain_number(number: float) -> str:
    """A number as people write it: `1200000`, `0.25`; never `1.2e+06`."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


class Breach(Frozen):
    """A limit that the next call would pass."""

    counter: str
    spent: float
    cap: float

    def __str__(self) -> str:
        return f"{self.counter}: {plain_number(self.spent)} of {plain_number(self.cap)} spent"


class Ledger(Frozen):
    """Counters by name; a scoped counter is `scope/name`. Immutable: charging gives a new ledger.

    A counter without a cap is only counted. A cap named in `advice` is shown but never a breach.
    What is left is never below 0; spending may pass the cap (overdraft).
    """

    spent: dict[str, float] = {}
    caps: dict[str, float] = {}
    advice: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_read_only(self) -> Self:
        return read_only(self, LEDGER)  # type: ignore[no-any-return]  # a model stays the same object

    def _with(self, name: str, amounts: Mapping[str, float]) -> Ledger:
        return self.model_copy(update={name: ReadOnlyDict(amounts, LEDGER)})

    def charge(self, amounts: Mapping[str, float], *scopes: str) -> Ledger:
        """With these amounts added to each scope; without a scope, to the whole run."""
        if not any(amounts.values()):
            return self
        spent = dict(self.spent)
        for scope in scopes or ("",):
            for counter, amount in amounts.items():
                name = f"{scope}/{counter}" if scope else counter
                # Rounded: a sum of prices must not differ from the price of the sum by a hair.
                # A float: a visit that is run again from JSON must see `2.0`, not `2`.
                spent[name] = round(float(spent.get(name, 0) + amount), 9)
        return self._with("spent", spent)

    def refund(self, amounts: Mapping[str, float]) -> Ledger:
        """With a reservation taken back: its call is not made, or is made again."""
        return self.charge({counter: -amount for counter, amount in amounts.items()})

    def with_seconds(self, seconds: float) -> Ledger:
        """With the counter `seconds` raised to this; it never falls."""
        seconds = round(float(seconds), 3)
        if seconds <= self.spent.get("seconds", 0):
            return self
        return self._with("spent", {**self.spent, "seconds": seconds})

    def credit(self, amounts: Mapping[str, float]) -> Ledger:
        """With caps raised by these amounts: a top-up. A counter without a cap stays without."""
        raised = {name: self.caps[name] + amount for name, amount in amounts.items() if name in self.caps}
        return self.capped({name: round(cap, 9) for name, cap in raised.items()})

    def capped(self, caps: Mapping[str, float | None]) -> Ledger:
        """With these caps in place of its own; None removes one."""
        named = {**self.caps, **caps}
        return self._with("caps", {n: float(c) for n, c in named.items() if c is not None})

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

    def line(self, counters: Sequence[str], scope: str = "") -> str:
        """`decisions left 4/4, tools left 3/4` for those that have a cap."""
        names = {counter: f"{scope}/{counter}" if scope else counter for counter in counters}
        return ", ".join(
            f"{counter} left {plain_number(self.left(name))}/{plain_number(self.caps[name])}"
            for counter, name in names.items()
            if name in self.caps
        )
