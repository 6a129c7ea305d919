"""Which sub-queries become runs of their own, and what such a run gets (spec 2.4, R-001-6). Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from activities.contracts import InnerLimits, JsonObject, RunMachine, Strict
from workflows.kernel.errors import FatalError
from workflows.kernel.machine import RunInput
from workflows.machines.common.named import called

__all__ = ["Nested", "Nesting"]

NESTS: Mapping[str, Callable[..., Any]] = {
    "never": lambda prompt, depth: False,
    "always": lambda prompt, depth: True,
}
"""Policies that need no hook."""


class Nested(Strict):
    """When a sub-query becomes a run of its own with depth + 1, and how."""

    policy: str = Field(
        default="never",
        description="never, always, or the name of a hook `(prompt, depth) -> bool` that the worker has "
        "loaded [R-001-6]",
    )
    machine: str = Field(
        default="code", description="the machine of that run; `code` gets these options, too"
    )
    options: JsonObject = Field(default_factory=dict, description="options that differ there")
    tools: tuple[str, ...] | None = Field(default=None, description="null: the tools of this run")
    limits: InnerLimits = Field(
        default=InnerLimits(),
        description="limits of its own, such as model_calls; what this run has left is a limit, too",
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, given: Any) -> Any:
        """A bare name is the policy with the defaults."""
        return {"policy": given} if isinstance(given, str) else given


@dataclass(frozen=True, slots=True)
class Nesting:
    """The nested policy of a run with its settings."""

    nested: Nested
    should_orchestrate: Callable[..., Any]
    """(prompt, depth of the run that asks) -> whether the sub-query becomes a run of its own."""
    options: JsonObject

    @staticmethod
    def of(nested: Nested, options: JsonObject, hooks: Mapping[str, Callable[..., Any]]) -> Nesting:
        """`options` are those that the run itself was given. Raises ValueError for an unknown hook."""
        known = {**hooks, **NESTS}
        if nested.policy not in known:
            close = difflib.get_close_matches(nested.policy, known, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(
                f"nested.policy: unknown hook {nested.policy!r}; {hint}there are {', '.join(sorted(known))}"
            )
        # A run of the same machine has the same options, so that it ends by the same rules.
        base = options if nested.machine == "code" else {}
        return Nesting(nested, known[nested.policy], {**base, **nested.options})

    def wants(self, prompt: str, depth: int) -> bool:
        """Whether this prompt becomes a run of its own.

        Raises what the hook raises if it is a KernelError; for any other failure a FatalError.
        """
        name = f"nested policy {self.nested.policy}"
        wants = called(name, self.should_orchestrate, prompt, depth)
        if not isinstance(wants, bool):
            raise FatalError(f"the {name} answered {wants!r}; expected True or False")
        return wants

    def run(self, prompt: str, role: str, input: RunInput, label: str) -> RunMachine:
        """The sub-query as a run with depth + 1; where that is too deep for code, it answers at once."""
        return RunMachine(
            machine=self.nested.machine,
            goal=prompt,
            options=self.options,
            give=tuple(spec.name for spec in input.tools) if self.nested.tools is None else self.nested.tools,
            roles={"default": role},
            limits=self.nested.limits,
            label=label,
        )
