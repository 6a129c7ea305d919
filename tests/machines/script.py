"""What the scripts of every machine look like: see `scripts_react.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.machines.driver import Play, Reaction, run_script, tool
from workflows.kernel.design import Design, Parts
from workflows.kernel.errors import FatalError
from workflows.kernel.rules import Rule, RuleSpec

__all__ = ["PARTS", "TOOL", "Script"]

TOOL = tool("tool", q={"type": "string"})
"""The tool that every script has."""


def _raises(spec: RuleSpec) -> Rule:
    def check(step: Any, context: Any) -> str | None:
        raise FatalError("the rules are lost")

    return Rule("raises", "terminal", check)


PARTS = Parts(rules={"raises": _raises})
"""Users' parts that every script may name."""


@dataclass(frozen=True)
class Script:
    """One run of a machine as a list of answers, with the knobs and the first context that it needs."""

    name: str
    answers: tuple[Reaction, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    changed: Mapping[str, Any] = field(default_factory=dict)

    def run(self, design: Design) -> Play:
        """Play it."""
        return run_script(
            design, self.answers, options=self.options, tools=(TOOL,), changed=self.changed, parts=PARTS
        )
