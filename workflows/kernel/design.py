"""A design: an agent machine as the product offers it, from its knobs to its first context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from activities.contracts import ToolSpec
from workflows.kernel.machine import Machine
from workflows.kernel.rules import RuleType

__all__ = ["Brief", "Design", "Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Users' named parts that the worker has loaded: a task names them, it never brings them."""

    rules: Mapping[str, RuleType] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Brief:
    """What a run begins with."""

    goal: str
    trace_id: str
    """The workflow id."""
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()


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
