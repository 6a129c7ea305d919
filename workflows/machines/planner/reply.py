"""Reading a proposed action, where there is no plan (spec 4.10). Pure; never raises on any text."""

from __future__ import annotations

import json
from functools import lru_cache

from workflows.machines.authoring import JsonObject
from workflows.machines.common.json_text import NotJson, cut, read_object
from workflows.machines.planner.policy import Proposal
from workflows.machines.planner.prompt import FINISH

NAME_CHARS = 100
"""Characters of an action."""


@lru_cache(maxsize=32)
def proposal_schema(tools: tuple[str, ...]) -> JsonObject:
    """A proposed action, for providers that enforce a schema: with other names than those of tools, a
    small model fills in words of the prompt."""
    return {
        "type": "object",
        "properties": {
            "action": {"enum": list(dict.fromkeys((*tools, FINISH)))},
            "params": {"type": "object"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["action", "params"],
    }


def read_proposal(text: str) -> Proposal | NotJson:
    """The proposal `{action, params, confidence}` that a reply is (spec 4.10). One without an action is left
    to the policy. What is read here is what the policy is asked about, what runs, and what is audited."""
    given = read_object(text)
    if isinstance(given, NotJson):
        return given
    action, params, sure = given.get("action"), given.get("params"), given.get("confidence")
    if not isinstance(action, str | None):
        return NotJson(f"`action` must be a text, not {json.dumps(action)[:NAME_CHARS]}")
    name = (action or "").strip()
    if len(name) > NAME_CHARS:
        return NotJson(f"`action` must have at most {NAME_CHARS} characters, not {len(name)}: {cut(name)}")
    if isinstance(sure, bool) or not isinstance(sure, int | float | None):
        return NotJson(f"`confidence` must be a number from 0 to 1, not {json.dumps(sure)[:NAME_CHARS]}")
    if not isinstance(params, dict | None):
        return NotJson(f"`params` must be an object, not {json.dumps(params)[:NAME_CHARS]}")
    # Plain names: models write `:path` for a symbol, or a space too many.
    plain = {key.strip().removeprefix(":").strip(): value for key, value in (params or {}).items()}
    if len(plain) < len(params or {}):
        return NotJson("`params` names one parameter twice (spaces and a colon in front do not count)")
    return Proposal(name or None, plain, sure)
