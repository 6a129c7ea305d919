"""What is wrong with approvals and people as they are written, before a run begins. Pure.

Each model checks itself; here is what only shows when they are seen together, and beside the tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from activities.contracts import ToolSpec
from workflows.gate.paths import stranger
from workflows.people import ApprovalRule, Approvals, People

__all__ = ["Fault", "problems", "unknown_arguments", "worded"]

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


def worded(faults: Iterable[Fault]) -> str:
    """Faults in one line."""
    return "; ".join(f"{'.'.join(map(str, place))}: {fault}" for place, fault in faults)


def unknown_arguments(approvals: Approvals, specs: Iterable[ToolSpec]) -> list[Fault]:
    """Arguments in rules that none of the tools which the rule is about has: such a rule never fits, unless
    it wants them absent."""
    known = list(specs)
    return [
        (("approvals", "rules", number, "arguments", path), fault)
        for number, rule in enumerate(approvals.rules)
        for path, wanted in rule.arguments.items()
        if not wanted.absent
        and (fault := _unknown_argument(path, [spec for spec in known if _about(rule, spec)]))
    ]


def _about(rule: ApprovalRule, spec: ToolSpec) -> bool:
    named = not rule.tools or any(fnmatchcase(spec.name, pattern) for pattern in rule.tools)
    return named and (not rule.effects or spec.effect in rule.effects)


def _unknown_argument(path: str, specs: list[ToolSpec]) -> str:
    strangers = [(spec.name, stranger(path, spec.parameters)) for spec in specs]
    if not strangers or not all(what for _, what in strangers):
        return ""
    told = ", ".join(f"{name} has no argument {what}" for name, what in strangers[:5])
    return f"the rule would never fit: {told}"


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
