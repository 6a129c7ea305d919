"""Which tool calls need a person: data, evaluated here. Pure.

No text of a model or a tool is asked for an opinion: what comes in is the policy as the agent's author
wrote it, the tool's declared effect, the call's name and arguments, and what the run has spent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from activities.contracts import ToolRun, ToolSpec
from workflows.gate.conditions import fits, untold
from workflows.people import (
    EFFECTS_ASKED,
    ApprovalRule,
    Approvals,
    Asking,
    Mode,
    People,
)

__all__ = ["Asked", "asking_for", "first_key", "reaches"]


class Asked(Asking):
    """How a call is put to people, and what made it be asked."""

    because: str = ""
    """The entry of the approvals: `rules.0`, `tools.pay`, `effects.unsafe`."""
    spent_usd: float = 0
    """What the run had spent by then, and the runs above it."""
    certain: bool = True
    """That entry surely fits the call; else its approval is no first time of that entry."""
    undecided: str = ""
    """Rules that may fit would put the call to different people: what is wrong with its arguments. Nobody
    is asked then; it is not made."""


class _Entry(NamedTuple):
    """An entry of the approvals that fits, or may fit."""

    mode: Mode
    because: str
    asking: Asking | None
    untold: str = ""
    """It may fit: which arguments cannot be judged; empty: it fits."""


def asking_for(
    approvals: Approvals,
    people: People,
    spec: ToolSpec | None,
    run: ToolRun,
    *,
    spent_usd: float,
    approved: Collection[str] = (),
) -> Asked | None:
    """How the call is to be asked about; None: nobody is asked.

    The first rule that fits decides; else the entry of the tool; else that of its effect. Rules before it
    of which it cannot be told ask too, and always; where those that ask ask in different ways, nobody can
    say who has to decide: the answer is `undecided`. `approved` are the `first_key`s of what people have
    approved in this run. A tool without a spec is not in the run's reach and never called, so nobody is
    asked about it.
    """
    if spec is None:
        return None
    entries = [one for one in _entries(approvals, spec, run, spent_usd) if _asks(one, run, approved)]
    if not entries:
        return None
    ways = [one.asking or people.asking_of("approval") for one in entries]
    doubt = ""
    if any(way != ways[0] for way in ways):
        doubts = "; ".join(f"{one.because}: {one.untold}" for one in entries if one.untold)
        doubt = (
            "it cannot be told who has to approve this call; give these arguments as the approvals expect "
            f"them, and none that the tool does not have: {doubts}"
        )
    return Asked(
        **ways[-1].model_dump(),
        because=entries[0].because,
        spent_usd=spent_usd,
        certain=not entries[0].untold,
        undecided=doubt,
    )


def reaches(asking: Asking, first: str | None, now: str | None) -> bool:
    """Does a call that is asked about so come to the people who decide: to the group that was asked first,
    and from there to the one that is asked now?"""
    return asking.group == first and now in (asking.group, *asking.escalate_to)


def _asks(entry: _Entry, run: ToolRun, approved: Collection[str]) -> bool:
    if entry.mode in ("never", "rules"):
        return False
    known = entry.mode == "first_time" and first_key(run.tool, entry.because) in approved
    return not known or bool(entry.untold)


def first_key(tool: str, because: str) -> str:
    """What `first_time` goes by: the tool, and the entry that asks. Who approved a small payment that one
    rule asks about has not approved the first large one that another rule asks about."""
    return f"{tool} {because}"


def _entries(approvals: Approvals, spec: ToolSpec, run: ToolRun, spent_usd: float) -> Iterator[_Entry]:
    """Those that may fit, up to the first that does."""
    for number, rule in enumerate(approvals.rules):
        fit, because = _fits(rule, spec, run, spent_usd), f"rules.{number}"
        if fit is None:
            # What cannot be told counts against the call: it is asked about, and not let pass.
            yield _Entry(
                rule.ask, because, rule.asking, untold(rule.arguments, run.arguments, spec.parameters)
            )
        elif fit:
            yield _Entry(rule.ask, because, rule.asking)
            return
    if run.tool in approvals.tools:
        yield _Entry(approvals.tools[run.tool], f"tools.{run.tool}", None)
        return
    effects = {**EFFECTS_ASKED, **approvals.effects}
    yield _Entry(effects.get(spec.effect, "never"), f"effects.{spec.effect}", None)


def _fits(rule: ApprovalRule, spec: ToolSpec, run: ToolRun, spent_usd: float) -> bool | None:
    if rule.tools and not any(fnmatchcase(run.tool, name) for name in rule.tools):
        return False
    if rule.effects and spec.effect not in rule.effects:
        return False
    if rule.cost_above is not None and not spent_usd > rule.cost_above:
        return False
    return fits(rule.arguments, run.arguments, spec.parameters)
