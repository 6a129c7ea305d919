"""Reading a decision: one JSON object, read leniently (spec 5.3). Never raises, whatever the model wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import JsonValue

from activities.contracts import ArtifactSpec, Frozen, JsonObject, ModelReplied
from workflows.machines.common.json_text import NotJson, first_value, unread

__all__ = [
    "LIST_ENTRIES",
    "MAPPINGS",
    "STRATEGIES",
    "Action",
    "Decision",
    "SlotMapping",
    "WantedCall",
    "artifact_specs",
    "decision_of",
]

Action = Literal["call_tool", "decision", "clarify", "complete", "exit"]
STRATEGIES = ("explore", "exploit", "render", "exit")
MAPPINGS = 100
"""Entries of `map_slots` that one decision may have."""
LIST_ENTRIES = 50
"""Entries of `out_artifacts_spec` and of each other list."""


class WantedCall(Frozen):
    """The tool call of a decision, as the model wrote it; checked in `protocol_verify`."""

    tool_id: str = ""
    reasoning: str = ""
    params: JsonValue = None
    """A mapping, if the model keeps to the protocol."""
    out_artifacts_spec: tuple[ArtifactSpec, ...] = ()
    """The entries that have a name."""
    more_artifacts: int = 0
    """Entries beyond the cap; they were left out."""


class SlotMapping(Frozen):
    """One entry of `map_slots`: the slot to fill, and from where."""

    slot_name: str = ""
    source_path: str = ""
    """Id of an artifact, and behind it a path into its value: `rows`, `rows[0].name`."""
    draft: bool = False
    gaps: str = ""
    """What is still missing, in the model's words."""


class Decision(Frozen):
    """What the model decided. An empty one has an invalid strategy (spec 5.7, step 4)."""

    action: Action = "complete"
    strategy: str = ""
    """One of `STRATEGIES`; empty: missing or unknown."""
    focus_slot: str = ""
    notes: str = ""
    next_decision_model: Literal["strong", "regular"] = "strong"
    tool_call: WantedCall | None = None
    map_slots: tuple[SlotMapping, ...] = ()
    show_artifacts: tuple[str, ...] = ()
    show_skills: tuple[str, ...] = ()
    completion_summary: str = ""
    clarification_questions: tuple[str, ...] = ()
    problem: str = ""
    """What is wrong with the reply, for the model."""
    left_out: dict[str, int] = {}
    """List -> how many entries were beyond its cap."""


def decision_of(reply: ModelReplied) -> Decision:
    """The decision of a reply. One that cannot be read is an empty decision with a `problem`."""
    decision = _decision(reply.text)
    if not decision.problem:
        return decision
    return decision.model_copy(update={"problem": unread(reply, decision.problem)})


def _decision(text: str) -> Decision:
    given = _object(text)
    if isinstance(given, NotJson):
        return Decision(problem=given.problem)
    action = _word(given.get("action")) or "complete"
    if action not in get_args(Action):
        # Not taken for `complete`: an unknown action must end nothing.
        return Decision(problem=f"unknown action {action[:60]!r}; use one of {', '.join(get_args(Action))}")
    strategy, problem = _word(given.get("strategy")), ""
    if strategy not in STRATEGIES:
        problem = f"unknown strategy {strategy[:60]!r}; use one of {', '.join(STRATEGIES)}"
        strategy = ""
    fields = {
        "action": action,
        "strategy": strategy,
        "focus_slot": _text(given.get("focus_slot")),
        "notes": _text(given.get("notes")),
        "next_decision_model": "regular"
        if _word(given.get("next_decision_model")) == "regular"
        else "strong",
        "tool_call": _call(given.get("tool_call")),
        "completion_summary": _text(given.get("completion_summary")),
        "problem": problem,
    }
    return Decision.model_validate({**fields, **_lists(given)})


def _object(text: str) -> JsonObject | NotJson:
    """The object at the first brace; words may be around it.

    Only there: a later brace may be inside an object that is broken or cut, and what is inside such an
    object is not what the model decided.
    """
    start = text.find("{")
    if start < 0:
        return NotJson("the reply has no JSON object" if text.strip() else "the reply is empty")
    found: JsonObject | NotJson = first_value(text, start)
    return NotJson(f"the reply cannot be used: {found.problem}") if isinstance(found, NotJson) else found


def _lists(given: JsonObject) -> dict[str, Any]:
    """The decision's lists: each entry once, at most as many as the cap; and what was left out."""
    found: dict[str, Sequence[Any]] = {
        "map_slots": [_mapping(item) for item in _list(given.get("map_slots"))]
    }
    for name in ("show_artifacts", "show_skills", "clarification_questions"):
        found[name] = [text for item in _list(given.get(name)) if (text := _text(item))]
    kept: dict[str, Any] = {}
    left_out = {}
    for name, items in found.items():
        once, most = tuple(dict.fromkeys(items)), MAPPINGS if name == "map_slots" else LIST_ENTRIES
        kept[name] = once[:most]
        if len(once) > most:
            left_out[name] = len(once) - most
    return {**kept, "left_out": left_out}


def _mapping(value: Any) -> SlotMapping:
    given = value if isinstance(value, dict) else {}
    return SlotMapping(
        slot_name=_text(given.get("slot_name")),
        source_path=_text(given.get("source_path")),
        draft=_word(given.get("draft")) == "true",
        gaps=_text(given.get("gaps")),
    )


def _call(value: Any) -> WantedCall | None:
    if not isinstance(value, dict):
        return None
    specs, more = artifact_specs(value.get("out_artifacts_spec"))
    return WantedCall(
        tool_id=_text(value.get("tool_id")),
        reasoning=_text(value.get("reasoning")),
        params=value.get("params"),
        out_artifacts_spec=specs,
        more_artifacts=more,
    )


def artifact_specs(given: Any) -> tuple[tuple[ArtifactSpec, ...], int]:
    """The entries of an `out_artifacts_spec` that have a name, and how many there are beyond the cap.
    An entry is an object or just a name."""
    entries = [item if isinstance(item, Mapping) else {"name": item} for item in _list(given)]
    named = [(name, entry) for entry in entries if (name := _text(entry.get("name")))]
    specs = tuple(
        ArtifactSpec(
            name=name, type=_word(entry.get("type")) or "text", kind=_word(entry.get("kind")) or "data"
        )
        for name, entry in named[:LIST_ENTRIES]
    )
    return specs, max(0, len(named) - LIST_ENTRIES)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).strip()


def _word(value: Any) -> str:
    return _text(value).lower().replace("-", "_").replace(" ", "_")


def _list(value: Any) -> list[Any]:
    """A list as it is, a single thing as a list of one, nothing as an empty list."""
    if isinstance(value, list):
        return value
    return [] if value in (None, "", {}) else [value]
