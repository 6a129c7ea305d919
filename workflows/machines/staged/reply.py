"""Reading what the stages' models reply (spec 3.9). Never raises on any text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from workflows.machines.common.json_text import NotJson, as_text, clean, object_in
from workflows.machines.staged.context import Observation, Thought

__all__ = ["read_observation", "read_thought"]

RAW_CHARS = 2000
"""Of a reply that is not JSON and is therefore the final answer."""
MOST_TOOLS = 50
"""Tools that one thought may suggest."""


def read_thought(text: str, intents: Sequence[str]) -> Thought | NotJson:
    """The thought of a reply; its intent is one of the closed list. Otherwise the problem, in words for
    the model."""
    found: Any = object_in(text)
    if isinstance(found, NotJson):
        return NotJson("the reply is not a JSON object")
    given = found.get("intent")
    words = given if isinstance(given, str) else ""
    intent = "_".join(words.casefold().replace("-", " ").replace("_", " ").split())
    if intent not in intents:
        shown = json.dumps(given, ensure_ascii=False)[:100]
        return NotJson(f"the intent is {shown}; expected one of {', '.join(intents)}")
    tools = found.get("suggested_tools") or []
    names = [tools] if isinstance(tools, str) else tools
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return NotJson("`suggested_tools` must be a list of tool names")
    distinct = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    return Thought(
        intent=intent, suggested_tools=distinct[:MOST_TOOLS], reasoning=as_text(found.get("reasoning"))
    )


def read_observation(text: str, *, cut: bool = False) -> Observation:
    """The observation of a reply. A reply without a JSON object is the final answer itself, as far as it
    fits. `cut`: the reply ended at the limit of the model's output."""
    found = object_in(text)
    if isinstance(found, NotJson) or (found and not found.keys() & {"summary", "final_answer", "need_loop"}):
        raw = clean(text.strip())[:RAW_CHARS]
        return Observation(summary=raw, final_answer=raw, need_loop=not raw, cut=cut)
    return Observation(
        summary=as_text(found.get("summary")),
        final_answer=as_text(found.get("final_answer")),
        need_loop=_yes(found.get("need_loop", not found)),
        cut=cut,
    )


def _yes(value: Any) -> bool:
    """Models write truth values as texts, too."""
    return value.strip().casefold() not in {"", "false", "no", "0"} if isinstance(value, str) else bool(value)
