"""Which sub-queries become runs of their own, and what such a run is given (R-001-6). Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from activities.contracts import JsonObject, RunMachine
from workflows.kernel.design import Parts
from workflows.kernel.errors import AgentError, FatalError
from workflows.machines.code_context import Nested, Offered, Options, Query

__all__ = ["Nesting"]

_BUILT_IN: dict[str, Callable[..., Any]] = {
    "never": lambda prompt, depth: False,
    "always": lambda prompt, depth: True,
}


@dataclass(frozen=True, slots=True)
class Nesting:
    """The nested policy with its settings."""

    knob: Nested
    should_orchestrate: Callable[..., Any]
    """(prompt, depth of the run that asks) -> is the sub-query a run of its own?"""
    options: JsonObject

    @staticmethod
    def of(options: Options, parts: Parts) -> Nesting:
        """Raises ValueError for a hook that the worker has not loaded."""
        knob = options.nested
        known = {**parts.hooks, **_BUILT_IN}
        if knob.policy not in known:
            close = difflib.get_close_matches(knob.policy, known, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(
                f"nested.policy: unknown hook {knob.policy!r}; {hint}there are {', '.join(sorted(known))}"
            )
        # A run of the same machine has the same knobs, so that it ends by the same rules.
        base = options.model_dump(mode="json", exclude_unset=True) if knob.machine == "code" else {}
        return Nesting(knob, known[knob.policy], {**base, **knob.options})

    def wants(self, prompt: str, depth: int) -> bool:
        """Ask the policy. It may raise an `AgentError`; anything else that it raises is a FatalError."""
        try:
            wants: object = self.should_orchestrate(prompt, depth)
        except AgentError:
            raise
        except Exception as error:
            problem = f"the nested policy {self.knob.policy} failed: {type(error).__name__}: {error}"
            raise FatalError(problem) from error
        if not isinstance(wants, bool):
            raise FatalError(
                f"the nested policy {self.knob.policy} answered {wants!r}; expected True or False"
            )
        return wants

    def run(self, query: Query, tools: tuple[Offered, ...], label: str) -> RunMachine:
        """The sub-query as a run with depth + 1; where that is too deep for code, it answers at once."""
        given = self.knob.tools
        return RunMachine(
            machine=self.knob.machine,
            goal=query.prompt,
            options=self.options,
            tools_given=tuple(tool.tool for tool in tools) if given is None else given,
            roles={"default": query.role},
            limits=self.knob.limits,
            mode=self.knob.mode,
            label=label,
        )
