"""A design: an agent machine as the product offers it, from its knobs to its first context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from activities.contracts import ContextRef, JsonObject, ToolSpec
from workflows.kernel.machine import Machine
from workflows.kernel.policies import PolicyType
from workflows.kernel.rules import RuleType

__all__ = ["COMMON_EXITS", "Brief", "Design", "Parts"]

COMMON_EXITS: Mapping[str, str] = {
    "limit": "a limit of the agent is reached: calls, tokens, money or time; the error names it",
    "max_transitions": "the machine moved as often as it may",
    "aborted": "a person ended the run with `abort`",
    "expired": "nobody decided in time, and the request's deadline ends the run",
    "cancelled": "somebody ended the run through Temporal or `ratchet cancel`",
    "dead_end": "an event came for which the state has no row (machines with `on_unmatched: end`)",
    "broken_rule": "the machine broke a rule that it declared; the run fails with the rule's name",
    "refused": "the task cannot be run; the run fails before it begins and says what is wrong",
    "bug": "the run failed by a fault of Ratchet itself",
}
"""Exit reasons of every machine: the kernel and the workflow end a run so, wherever it is."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Users' named parts that the worker has loaded: a task names them, it never brings them."""

    rules: Mapping[str, RuleType] = field(default_factory=dict)
    policies: Mapping[str, PolicyType] = field(default_factory=dict)
    """Stopping policies by name (spec 2.6)."""
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Pure functions by name that a machine's knobs may refer to, such as a planner's decide hook."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a run begins with."""

    goal: str
    trace_id: str
    """The workflow id."""
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    depth: int = 0
    """How deep the run is nested in others; 0: it is not."""
    context: str | ContextRef | None = None
    """Material that the run is about, for machines that take it."""
    values: JsonObject = field(default_factory=dict)
    """What of an outer machine's state it begins with, for machines that take it (spec 1.9)."""


@dataclass(frozen=True, slots=True)
class Design:
    """One agent machine: name and version, knobs, and how machine and context are made of them."""

    name: str
    description: str
    options: type[BaseModel]
    """The knobs, with defaults, units and allowed ranges."""
    build: Callable[[Any, Parts], Machine[Any]]
    """(options, parts) -> the machine; raises ValueError or DefinitionError."""
    begin: Callable[[Brief, Any], BaseModel]
    """(brief, options) -> the first context."""
    version: str = "1"
    roles: tuple[str, ...] = ("default",)
    """Model roles that the machine can use; only `default` must be given."""
    stand_in: bool = True
    """A model that only looks around and answers in plain words (the provider `scripted` without a script)
    can take part; where replies have a form of their own it cannot."""
    takes_context: bool = False
    """The machine uses `Brief.context`; a task that gives one to any other is refused."""
    exits: Mapping[str, str] = field(default_factory=dict)
    """Exit reason -> what it means, for those that only this machine has; see `COMMON_EXITS` too."""
