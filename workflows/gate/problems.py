"""What is wrong with approvals and people as they are written, before a run begins. Pure.

Each model checks itself; here is what only shows when they are seen together, and beside the tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from workflows.people import Approvals, People

__all__ = ["Fault", "problems"]

Fault = tuple[tuple[str | int, ...], str]
"""Where, as keys and indices from the top of the agent file; and what, for its author."""


def problems(approvals: Approvals, people: People, tools: Iterable[str] | None = None) -> list[Fault]:
    """All faults, in the order of the file. With `tools`, names that fit none of them are faults too: a
    misspelt name would protect nothing."""
    faults: list[Fault] = []
    for number, rule in enumerate(approvals.rules):
        if rule.asking is not None and (fault := people.fault_of(rule.asking)):
            faults.append((("approvals", "rules", number, "asking"), fault))
    return faults + (_unknown(approvals, list(tools)) if tools is not None else [])


def _unknown(approvals: Approvals, tools: list[str]) -> list[Fault]:
    has = f"the agent has {', '.join(tools) or 'no tools'}"
    rules = [
        (("approvals", "rules", number, "tools", place), f"no tool fits {pattern!r}; {has}")
        for number, rule in enumerate(approvals.rules)
        for place, pattern in enumerate(rule.tools)
        if not any(fnmatchcase(tool, pattern) for tool in tools)
    ]
    names = [
        (("approvals", "tools", name), f"there is no tool {name!r}; {has}")
        for name in approvals.tools
        if name not in tools
    ]
    return [*rules, *names]
