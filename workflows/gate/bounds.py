"""How much may pass unasked in one run: the bounds of its approval rules, and what is used of them. Pure.

The whole rule:

1.  A call that a rule with `at_most` would let pass takes its share of the bound before it is made. So calls
    side by side cannot pass together what they could not pass one by one.
2.  A share is given back when the call was surely not made: no worker began it, its arguments did not fit, or
    the effect ended before its turn came. All else stays counted: what failed, what was undone, what nobody
    knows the outcome of. Rollbacks and new executions keep the count. A call that is made again counts once;
    where another rule decides by then, it counts there, too.
3.  A call that people are asked about takes nothing. Nor does one that passes beyond the bound by a standing
    approval: people have said yes to it, so it is no part of what passes unasked.
4.  What cannot be counted passes every bound: an amount that is missing, no number, or below 0. A negative
    one would make room for other calls.
5.  An inner run gets an even part of what is left, for itself and the runs inside it. The whole part counts
    as used until it ends, and for ever if nobody knows what it did; else only what it has used counts then.

Amounts are decimals, added without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import Context, Decimal
from typing import Any

from activities.contracts import Frozen, JsonObject
from workflows.kernel.log import Record
from workflows.people import Amount, Approvals, Bound

__all__ = ["WITHIN_BOUND", "Bounds"]

WITHIN_BOUND = "WithinBound"
"""Event of a record: a call may pass unasked within a bound, or an inner run has used some of one."""
EXACT = Context(prec=400)
"""Digits for a sum of any floats up to the largest bound: it is never rounded."""


class _Share(Frozen):
    """What a call of the pending effect has taken, or what an inner run under way was given."""

    amounts: dict[str, Amount]
    begun: int = 0
    """How often the call was begun; 0: it was surely not made."""


class _Dump(Frozen):
    """What one execution hands to the next."""

    used: dict[str, Amount] = {}
    shares: dict[str, _Share] = {}


class Bounds:
    """The bounds of one run, and what is used of them; named `rules.0.calls`, `rules.0.sum.cents`."""

    def __init__(self, approvals: Approvals, share: Mapping[str, Decimal] | None = None) -> None:
        """`share`: what an inner run was given; None: the run has the whole bounds."""
        self._sums = {
            f"rules.{number}": tuple(rule.at_most.sum)
            for number, rule in enumerate(approvals.rules)
            if rule.at_most is not None
        }
        """Rule -> the arguments that are summed up."""
        most = {key: cap for key, cap in _caps(approvals) if cap is not None}
        self.rules = frozenset(self._sums)
        """That have bounds."""
        self._most = {key: min(cap, share.get(key, cap)) if share else cap for key, cap in most.items()}
        self._is_share = share is not None
        self._used = dict.fromkeys(self._most, Decimal(0))
        """With what is in `_shares`."""
        self._shares: dict[str, _Share] = {}
        """By activity id."""

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        return _Dump(used=self._used, shares=self._shares).model_dump(mode="json")

    def load(self, carried: Any) -> None:
        """Go on as the execution before. Raises ValueError for what is no dump."""
        known = _Dump.model_validate(carried)
        self._used, self._shares = {**self._used, **known.used}, dict(known.shares)

    def recall(self, log: Iterable[Record]) -> None:
        """Go on from what a run has logged: it may have used less, if calls were not made."""
        for record in log:
            if record.event == WITHIN_BOUND:
                found: Any = record.about["bounds"]
                self._used |= {_key(one): one.used for one in map(Bound.model_validate, found)}

    # -- what is left --------------------

    def passed(self, rule: str, arguments: JsonObject, besides: str = "") -> Bound | None:
        """The first bound of this entry of the policy that a call would pass; None: it passes none. What the
        call `besides` has taken does not count."""
        own = self._shares[besides].amounts if besides in self._shares else {}
        for key, amount in self._amounts(rule, arguments).items():
            used = EXACT.subtract(self._used[key], own.get(key, Decimal(0)))
            if amount is None or amount > EXACT.subtract(self._most[key], used):
                return self._bound(key).model_copy(update={"used": used, "wanted": amount})
        return None

    def state(self, rule: str | None = None) -> tuple[Bound, ...]:
        """All bounds, or those of a rule, in the order of the file."""
        return tuple(self._bound(key) for key in self._most if rule is None or _rule_of(key) == rule)

    def _amounts(self, rule: str, arguments: JsonObject) -> dict[str, Decimal | None]:
        """What a call takes of each bound of the rule; None: that cannot be counted."""
        if rule not in self._sums:
            return {}
        calls: dict[str, Decimal | None] = {f"{rule}.calls": Decimal(1)}
        sums = {f"{rule}.sum.{name}": _exact(arguments.get(name)) for name in self._sums[rule]}
        return {key: amount for key, amount in {**calls, **sums}.items() if key in self._most}

    def _bound(self, key: str) -> Bound:
        rule = _rule_of(key)
        return Bound(
            rule=rule, of=key.removeprefix(f"{rule}."), most=self._most[key], used=self._used[key],
            is_share=self._is_share,
        )  # fmt: skip

    # -- calls --------------------

    def take(self, name: str, rule: str, arguments: JsonObject) -> bool:
        """A call takes its share: it is about to be made unasked. False: it has just this one, or gets none.

        It may have taken another one, before another rule decided or new code changed its amounts. That is
        given back; if the call was begun, what is more comes to it.
        """
        counted = {
            key: amount for key, amount in self._amounts(rule, arguments).items() if amount is not None
        }
        has = self._shares.get(name, _Share(amounts={}))
        begun = has.amounts if has.begun >= 1 else {}
        share = {**begun, **{key: max(amount, begun.get(key, amount)) for key, amount in counted.items()}}
        if has.amounts == share:
            return False
        is_beyond = self.passed(rule, arguments, besides=name) is not None
        self.give_back(name)
        if is_beyond or not counted:
            return False
        if begun:
            self._drop(name)
        self._use(share)
        self._shares[name] = has.model_copy(update={"amounts": share})
        return True

    def give_back(self, name: str) -> None:
        """The call is not made, or people are asked about it after all. What was begun stays counted."""
        if name in self._shares and self._shares[name].begun < 1:
            self._drop(name)

    def begin(self, name: str, times: int = 1) -> None:
        """A call that has a share begins; -1: it was not made."""
        if (share := self._shares.get(name)) is not None:
            self._shares[name] = share.model_copy(update={"begun": share.begun + times})

    def settle(self) -> None:
        """Another effect follows: what was begun is used, all else is given back."""
        for name in tuple(self._shares):
            self.give_back(name)
        self._shares = {}

    def _use(self, amounts: Mapping[str, Decimal]) -> None:
        self._used |= {key: EXACT.add(self._used[key], amount) for key, amount in amounts.items()}

    def _drop(self, name: str) -> None:
        amounts = self._shares.pop(name).amounts
        self._used |= {key: EXACT.subtract(self._used[key], amount) for key, amount in amounts.items()}

    # -- inner runs --------------------

    def lend(self, name: str, runs: int) -> dict[str, Decimal]:
        """The part of an inner run that begins: what is left, for each of so many `runs` that have not begun
        yet."""
        left = {key: EXACT.subtract(most, self._used[key]) for key, most in self._most.items()}
        part = {key: _part(amount, runs) for key, amount in left.items()}
        self._use(part)
        self._shares[name] = _Share(amounts=part, begun=1)
        return part

    def return_from(self, name: str, used: Iterable[Bound]) -> tuple[Bound, ...]:
        """An inner run has ended, and has used so much of its part. The bounds that it has used."""
        if name in self._shares:
            self._drop(name)
        amounts = {_key(one): one.used for one in used if one.used and _key(one) in self._most}
        self._use(amounts)
        return tuple(self._bound(key) for key in amounts)


def _key(bound: Bound) -> str:
    """`rules.0.sum.cents`."""
    return f"{bound.rule}.{bound.of}"


def _rule_of(key: str) -> str:
    """`rules.0` of `rules.0.sum.cents`."""
    return ".".join(key.split(".")[:2])


def _caps(approvals: Approvals) -> Iterator[tuple[str, Decimal | None]]:
    """All bounds, and how much each lets pass."""
    for number, rule in enumerate(approvals.rules):
        if rule.at_most is not None:
            yield f"rules.{number}.calls", _exact(rule.at_most.calls)
            for name, cap in rule.at_most.sum.items():
                yield f"rules.{number}.sum.{name}", _exact(cap)


def _exact(value: object) -> Decimal | None:
    """The number; None for what cannot be counted."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if (isinstance(value, float) and not math.isfinite(value)) or value < 0:
        return None
    return Decimal(int(value) if value == int(value) else repr(value))


def _part(amount: Decimal, parts: int) -> Decimal:
    """An even part, rounded down to the amount's own last place: of 5 calls, three runs get 1, 2 and 2."""
    place = min(int(amount.as_tuple().exponent), 0)
    units = int(amount.scaleb(-place, EXACT))
    return Decimal(units // parts).scaleb(place, EXACT)
