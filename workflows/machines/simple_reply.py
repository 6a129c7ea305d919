"""Reading a decision `{action, params, confidence}` (spec 4.10). Never raises on any text."""

from __future__ import annotations

from typing import Any

from activities.contracts import JsonObject
from workflows.machines.planner_policy import Decision
from workflows.machines.planner_reply import NotJson, read_object

__all__ = ["DECISION_SCHEMA", "FINISH", "normalised", "read_decision"]

FINISH = "finish"
"""The action that ends the run; it wins over a tool of that name."""
DECISION_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "action": {"type": "string"},
        "params": {"type": "object"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["action", "params"],
}


def read_decision(text: str) -> Decision | NotJson:
    """The decision that a reply is; one without an action is the policy's affair."""
    given = read_object(text)
    if isinstance(given, NotJson):
        return given
    action, params, confidence = (given.get(key) for key in ("action", "params", "confidence"))
    if action is not None and not isinstance(action, str):
        return NotJson(f"`action` must be a text, not {action!r:.100}")
    if params is not None and not isinstance(params, dict):
        return NotJson(f"`params` must be an object, not {params!r:.100}")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float | None):
        return NotJson(f"`confidence` must be a number from 0 to 1, not {confidence!r:.100}")
    return Decision((action or "").strip() or None, params or {}, confidence)


def normalised(params: Any) -> JsonObject:
    """Parameters by plain names: without spaces around them, without a symbol's colon in front."""
    return {str(key).strip().removeprefix(":"): value for key, value in params.items()}
