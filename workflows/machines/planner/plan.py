"""The plan and the decision on it: what a model's or a hook's answer gives (spec 4.3). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workflows.machines.authoring import FatalError, JsonObject, ModelReplied
from workflows.machines.common.json_text import NotJson, clean, cut, read_object, unread
from workflows.machines.planner.policy import REASON_CHARS

if TYPE_CHECKING:
    from workflows.machines.common.json_schema import Schema

__all__ = ["CONTINUE_SCHEMA", "DEFAULT_SCHEMA", "continue_of", "plan_of", "plan_schema"]

DEFAULT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "goal": {"type": "string"},
        "required_capabilities": {"type": "array", "items": {"type": "string"}},
        "initial_steps": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["goal"],
    "additionalProperties": False,
}
"""What a plan looks like unless the agent says otherwise."""
CONTINUE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"continue": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["continue"],
}
"""What a model decides on the plan, for providers that enforce a schema."""


def plan_schema(schema: JsonObject | None) -> Schema:
    """The schema of plans; None: the default one. Raises ValueError naming what is wrong in it."""
    from workflows.machines.common.json_schema import checked_schema  # its library: a fifth of all machines

    return checked_schema("plan_schema", DEFAULT_SCHEMA if schema is None else schema)


def plan_of(reply: ModelReplied, schema: Schema, goal: str | None) -> JsonObject:
    """The plan that a reply is, with what it left out. Raises FatalError when there is none."""
    given = read_object(reply.text)
    if isinstance(given, NotJson):
        raise FatalError(f"the plan cannot be read: {unread(reply, given.problem)}")
    if problem := schema.problem(given):
        raise FatalError(f"the plan does not fit: {problem}")
    own = given.get("goal")
    lists: JsonObject = {key: given.get(key) or [] for key in ("required_capabilities", "initial_steps")}
    return {**given, "goal": goal if own is None else own, **lists}


def continue_of(answer: Any) -> JsonObject:
    """The decision `{continue, reason}`. Raises FatalError for an answer without a boolean `continue`
    (R-003-1)."""
    if isinstance(answer, NotJson):
        raise FatalError(answer.problem)
    if not isinstance(answer, dict) or not isinstance(answer.get("continue"), bool):
        came = (
            "a mapping without it" if isinstance(answer, dict) else f"a value of type {type(answer).__name__}"
        )
        raise FatalError(f"{came} came; expected a mapping with `continue`, true or false")
    reason = answer.get("reason")
    text = cut(clean(reason), REASON_CHARS) if isinstance(reason, str) else ""
    return {"continue": answer["continue"], "reason": text}
