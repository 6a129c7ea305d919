"""Reading a decision `{action, params, confidence}` (spec 4.10). Never raises on any text.

What is read here is what the policy is asked about, what runs and what is audited: one and the same.
"""

from __future__ import annotations

from activities.contracts import JsonObject
from workflows.kernel.errors import kind_words
from workflows.machines.decisions import Decision
from workflows.machines.json_text import NotJson, cut, read_object

__all__ = ["DECISION_SCHEMA", "FINISH", "read_decision"]

FINISH = "finish"
"""The action that ends the run; it wins over a tool of that name."""
NAME_LIMIT = 100
"""Characters of an action; no tool's name is so long."""
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
    action, params = _action(given.get("action")), _params(given.get("params"))
    confidence = given.get("confidence")
    if isinstance(action, NotJson):
        return action
    if isinstance(params, NotJson):
        return params
    if isinstance(confidence, bool) or not isinstance(confidence, int | float | None):
        return NotJson(f"`confidence` must be a number from 0 to 1, not {kind_words(confidence)}")
    return Decision(action or None, params, confidence)


def _action(given: object) -> str | NotJson:
    if not isinstance(given, str | None):
        return NotJson(f"`action` must be a text, not {kind_words(given)}")
    name = (given or "").strip()
    if len(name) > NAME_LIMIT:
        return NotJson(f"`action` must have at most {NAME_LIMIT} characters, not {len(name)}: {cut(name)}")
    return name


def _params(given: object) -> JsonObject | NotJson:
    """Parameters by plain names: without spaces around them, without a symbol's colon in front."""
    if not isinstance(given, dict | None):
        return NotJson(f"`params` must be an object, not {kind_words(given)}")
    plain = {key.strip().removeprefix(":").strip(): value for key, value in (given or {}).items()}
    if len(plain) < len(given or {}):
        return NotJson("`params` names one parameter twice (spaces and a colon in front do not count)")
    return plain
