"""Sets of tool calls that a policy decides alike, and what becomes of them when no person speaks. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from activities.contracts import JsonObject, Label, ToolEffect, call_title
from workflows.people import ApprovalMode, AtMost, RequestSettings
from workflows.verify.policy.ranges import Cell, number_text, range_text, upper_bound

__all__ = ["LEVELS", "SPENT", "JudgedCall", "CallSet", "Level", "level_of"]

SPENT = "(USD spent)"
"""What the run has spent, among the arguments of a call set. No argument of a tool has this name."""
Level = Literal["refused", "asked", "once", "expiry", "unasked"]
"""refused: the call is not made. asked: a person is asked about each call. once: one approval lets all others
pass. expiry: nobody answers, and the call is made. unasked: nobody is asked."""
LEVELS: tuple[Level, ...] = ("refused", "asked", "once", "expiry", "unasked")
"""From the strictest."""


def level_of(mode: ApprovalMode | Literal["reject"], settings: RequestSettings | None) -> Level:
    """What becomes of calls of this mode, with the settings of their requests; None: nobody is there to be
    asked."""
    if mode == "reject":
        return "refused"
    if mode in ("never", "rules"):
        return "unasked"
    if settings is None:
        return "refused"
    if settings.at_deadline == "approve" and settings.deadline_seconds is not None:
        return "expiry"
    return "once" if mode == "first_time" else "asked"


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """One call, as it is judged."""

    tool: str
    arguments: JsonObject
    spent_usd: float = 0.0
    labels: tuple[Label, ...] = ()
    """Those that the run has by then."""

    @property
    def title(self) -> str:
        """As the log names it."""
        spent = f" once {self.spent_usd:g} USD are spent" if self.spent_usd else ""
        after = f" after {' and '.join(self.labels)}" if self.labels else ""
        return f"{call_title(self.tool, self.arguments)}{spent}{after}"


@dataclass(frozen=True)
class CallSet:
    """The calls of one tool that one entry of a policy decides, as far as they are of interest."""

    tool: str
    effect: ToolEffect
    entry: str
    """`rules.0`, `tools.pay` or `effects.unsafe`."""
    level: Level
    example: JudgedCall | None
    """One of them, confirmed in production's own functions; None: there is none, but that is not proven."""
    held: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)
    """Argument -> the values that it has in them."""
    possible: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)
    """Argument -> the values that the tool takes."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Argument -> what its rule says of it, where that is more than `held` shows."""
    after: Mapping[Label, bool] = field(default_factory=dict)
    """Label -> the run has it whenever such a call is made, or never has; a label that makes no difference is
    not in it."""
    unknown: tuple[str, ...] = ()
    """What the solver could not decide; `held` has every value that may be in it."""
    at_most: AtMost | None = None
    """The bound of the entry's rule, over all tools that it is about."""
    asks: RequestSettings | None = None
    """How people are asked about them; None: nobody is there."""
    is_beyond: bool = False
    """These calls are made once the bound of the entry's rule is used up."""

    @property
    def bound_text(self) -> str:
        """`within 3 calls and 5000 cents`, `beyond that`; empty without a bound."""
        if self.at_most is None:
            return "beyond that" if self.is_beyond else ""
        calls = [] if self.at_most.calls is None else [f"{number_text(self.at_most.calls)} calls"]
        sums = [f"{number_text(most)} {name}" for name, most in self.at_most.sum.items()]
        return f"within {' and '.join([*calls, *sums])}"

    @property
    def after_text(self) -> str:
        """`after untrusted`, `before untrusted, before private`; empty: whatever labels the run has."""
        return ", ".join(f"{'after' if held else 'before'} {label}" for label, held in self.after.items())

    @property
    def narrowed(self) -> Iterator[tuple[str, str]]:
        """Arguments that do not have every value which the tool takes, with those that they have, in
        words."""
        for name, held in self.held.items():
            if name in self.conditions:
                yield name, f"what fits {json.dumps(self.conditions[name], ensure_ascii=False)}"
            elif set(held) != set(self.possible[name]):
                texts = {
                    one for one in self.possible[name] if one.kind == "value" and isinstance(one.value, str)
                }
                yield name, range_text(held, more_named=bool(texts))

    @property
    def numbers(self) -> dict[str, float | None]:
        """Argument that can be a number -> the largest; None: there is none."""
        return {
            name: upper_bound(held)
            for name, held in self.held.items()
            if name != SPENT and any(cell.is_numeric for cell in held)
        }
