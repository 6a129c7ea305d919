"""Reading what the stages' models say (spec 3.9). Never raises on any text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workflows.machines.json_text import NotJson, read_object
from workflows.machines.staged_context import Observation, Thought

__all__ = ["RAW_LIMIT", "BadReply", "object_in", "read_observation", "read_thought"]

RAW_LIMIT = 2000
"""Characters of a reply that is no JSON and therefore is the final answer."""
MOST_TOOLS = 50


@dataclass(frozen=True, slots=True)
class BadReply:
    """A reply that cannot be used, and why, in words for the model."""

    problem: str


def object_in(text: str) -> dict[str, Any] | None:
    """The JSON object that a reply is, or that its outermost braces hold."""
    whole = text.strip()
    for part in (whole, whole[whole.find("{") : whole.rfind("}") + 1]):
        found = read_object(part) if part.startswith("{") else None
        if found is not None and not isinstance(found, NotJson):
            return found
    return None


def read_thought(text: str, intents: Sequence[str]) -> Thought | BadReply:
    """The thought of a reply; its intent is one of the closed list."""
    found = object_in(text)
    if found is None:
        return BadReply("the reply is not a JSON object")
    given = found.get("intent")
    words = given if isinstance(given, str) else ""
    intent = "_".join(words.casefold().replace("-", " ").replace("_", " ").split())
    if intent not in intents:
        shown = json.dumps(given, ensure_ascii=False)[:100]
        return BadReply(f"the intent is {shown}; expected one of {', '.join(intents)}")
    tools = found.get("suggested_tools") or []
    names = [tools] if isinstance(tools, str) else tools
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return BadReply("`suggested_tools` must be a list of tool names")
    distinct = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    return Thought(
        intent=intent, suggested_tools=distinct[:MOST_TOOLS], reasoning=_text(found.get("reasoning"))
    )


def read_observation(text: str) -> Observation:
    """The observation of a reply. What is no JSON object is, cut at 2000 characters, the final answer."""
    found = object_in(text)
    if found is None or (found and not found.keys() & Observation.model_fields.keys()):
        raw = _plain(text.strip())[:RAW_LIMIT]
        return Observation(summary=raw, final_answer=raw, need_loop=not raw)
    return Observation(
        summary=_text(found.get("summary")),
        final_answer=_text(found.get("final_answer")),
        need_loop=_yes(found.get("need_loop", not found)),
    )


def _text(value: Any) -> str:
    """A text as it is; nothing for nothing; anything else as JSON."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(text: str) -> str:
    """Half a character pair cannot be written anywhere."""
    return text.encode("utf-8", "replace").decode()


def _yes(value: Any) -> bool:
    """Models write truth values as texts, too."""
    return value.strip().casefold() not in {"", "false", "no", "0"} if isinstance(value, str) else bool(value)
