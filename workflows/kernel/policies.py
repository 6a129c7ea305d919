"""Stopping policies: asked at set points whether a run shall stop (spec 2.6).

A policy is pure and runs inside the workflow: what it wants to remember it returns, and gets back
with the next question; what it keeps in itself is lost when the run goes on elsewhere. What it raises
leaves the run (R-001-9).

Both methods get a mapping of plain values: `mode` ("tools" or "code"), `iteration` (complete ones),
`max_iterations`, `depth` (how deep the run is nested), `history` (the conversation, each message a
dict with `role`, `content`, `tool_calls`, `tool_call_id`), `last_result` (text of what the last
complete iteration brought), `calls` (what the reply at hand asks for: dicts with `name`, `arguments`
and, once it has run, `result`), `tokens` and `cost_usd` (used so far), `memory` (this policy's own). All of
it is read-only, also within: who tries to change it gets a TypeError.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import Field, model_validator

from activities.contracts import JsonObject, Strict
from workflows.kernel.errors import failure_words, kind_words

__all__ = ["PolicySpec", "PolicyType", "StoppingPolicy", "build_policies"]


@runtime_checkable
class StoppingPolicy(Protocol):
    """What a policy answers; the module's text says what is in `context`."""

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        """Shall the run stop here? Asked before what a reply wants is done, and after it."""
        ...

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        """Told once per model reply that was looked at: `result` is what its calls brought, or the
        answer. Returns what to remember, or None: it is merged into `context["memory"]`, nested
        mappings too, so that only what changed needs to be returned. JSON values only."""
        ...


class PolicySpec(Strict):
    """A policy as an agent file declares it."""

    type: str = Field(description="a shipped policy or one that the worker has loaded")
    value: float | None = Field(
        default=None, allow_inf_nan=False, description="the policy's number, where it has one"
    )
    config: JsonObject = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, given: Any) -> Any:
        """A bare name is the policy with its default."""
        return {"type": given} if isinstance(given, str) else given


PolicyType = Callable[[PolicySpec], StoppingPolicy]
"""Makes a policy from its declaration; raises ValueError for a bad one."""


def build_policies(
    specs: Sequence[PolicySpec], types: Mapping[str, PolicyType]
) -> tuple[tuple[str, StoppingPolicy], ...]:
    """The policies with their names, in order; raises ValueError for one that cannot be made."""
    return tuple((spec.type, _made(spec, types)) for spec in specs)


def _made(spec: PolicySpec, types: Mapping[str, PolicyType]) -> StoppingPolicy:
    if spec.type not in types:
        close = difflib.get_close_matches(spec.type, types, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"unknown policy {spec.type!r}; {hint}there are {', '.join(sorted(types))}")
    try:
        policy: object = types[spec.type](spec)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"policy {spec.type} cannot be made: {failure_words(error)}") from error
    if not isinstance(policy, StoppingPolicy):
        raise ValueError(
            f"policy {spec.type}: its maker returned {kind_words(policy)}; expected a StoppingPolicy"
        )
    return policy
