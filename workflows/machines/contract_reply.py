"""Reading a decision: one JSON object, read leniently (spec 5.3). Never raises on any text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import JsonValue

from activities.contracts import ArtifactSpec, Frozen, JsonObject, ModelReplied
from workflows.machines.json_text import NotJson, read_object, unread

__all__ = [
    "MAPPINGS",
    "SHOWS",
    "SPECS",
    "STRATEGIES",
    "Action",
    "Decision",
    "SlotMapping",
    "WantedCall",
    "decision_of",
    "read_decision",
    "read_specs",
]

Action = Literal["call_tool", "decision", "clarify", "complete", "exit"]
STRATEGIES = ("explore", "exploit", "render", "exit")
MAPPINGS, SPECS, SHOWS = 100, 50, 50
"""Entries of `map_slots`, of `out_artifacts_spec` and of each other list that one decision may have."""


class WantedCall(Frozen):
    """The tool call that a decision asks for, as the model wrote it; checked in `protocol_verify`."""

    tool_id: str = ""
    reasoning: str = ""
    params: JsonValue = None
    """A mapping, if the model keeps to the protocol."""
    out_artifacts_spec: tuple[ArtifactSpec, ...] = ()
    """The entries that have a name; not yet checked."""
    more_artifacts: int = 0
    """Entries beyond the cap, which were left out."""


class SlotMapping(Frozen):
    """The wish to fill a slot from an artifact."""

    slot_name: str = ""
    source_path: str = ""
    """Id of an artifact, and behind it a path into its value: `rows`, `rows[0].name`."""
    draft: bool = False
    gaps: str = ""
    """What is still missing, in the model's words."""


class Decision(Frozen):
    """What the decision model wants. An empty one is an invalid strategy (spec 5.7, 4)."""

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
    """What was wrong with the reply, in words for the model."""
    left_out: dict[str, int] = {}
    """List -> how many entries were beyond its cap."""


def decision_of(reply: ModelReplied) -> Decision:
    """The decision of a reply; one that was cut at its length limit and cannot be read says so."""
    found = read_decision(reply.text)
    return found.model_copy(update={"problem": unread(reply, found.problem)}) if found.problem else found


def read_decision(text: str) -> Decision:
    """The decision of a reply; what cannot be read at all is an empty decision with a `problem`."""
    given = _object(text)
    if isinstance(given, NotJson):
        return Decision(problem=given.problem)
    action = _word(given.get("action")) or "complete"
    if action not in get_args(Action):
        return Decision(problem=f"the action {action[:60]!r} is none of {', '.join(get_args(Action))}")
    strategy, problem = _word(given.get("strategy")), ""
    if strategy not in STRATEGIES:
        problem = f"the strategy {strategy[:60]!r} is none of {', '.join(STRATEGIES)}"
        strategy = ""
    regular = _word(given.get("next_decision_model")) == "regular"
    lists, left_out = _lists(given)
    return Decision.model_validate(
        {
            "action": action,
            "strategy": strategy,
            "focus_slot": _text(given.get("focus_slot")),
            "notes": _text(given.get("notes")),
            "next_decision_model": "regular" if regular else "strong",
            "tool_call": _call(given.get("tool_call")),
            **lists,
            "completion_summary": _text(given.get("completion_summary")),
            "problem": problem,
            "left_out": left_out,
        }
    )


def _lists(given: JsonObject) -> tuple[dict[str, Any], dict[str, int]]:
    """The decision's lists, each entry once and not too many; and what was beyond the caps."""
    found: dict[str, Any] = {"map_slots": [_mapped(item) for item in _list(given.get("map_slots"))]}
    for name in ("show_artifacts", "show_skills", "clarification_questions"):
        found[name] = _texts(given.get(name))
    once: dict[str, Sequence[Any]] = {name: tuple(dict.fromkeys(items)) for name, items in found.items()}
    caps = {name: MAPPINGS if name == "map_slots" else SHOWS for name in once}
    left_out = {name: len(items) - caps[name] for name, items in once.items() if len(items) > caps[name]}
    kept = {name: items[: caps[name]] for name, items in once.items()}
    return {**kept, "map_slots": [_mapping(*fields) for fields in kept["map_slots"]]}, left_out


def read_specs(given: Any) -> tuple[tuple[ArtifactSpec, ...], int]:
    """The named entries of an `out_artifacts_spec`, a list of objects or of names; and how many more
    there are than one call may have."""
    found = []
    for item in _list(given):
        entry = item if isinstance(item, Mapping) else {"name": item}
        name = _text(entry.get("name"))
        if name:
            found.append((name, entry))
    specs = [
        ArtifactSpec(
            name=name, type=_word(entry.get("type")) or "text", kind=_word(entry.get("kind")) or "data"
        )
        for name, entry in found[:SPECS]
    ]
    return tuple(specs), max(0, len(found) - SPECS)


# -- one object out of a text --------------------


def _object(text: str) -> JsonObject | NotJson:
    """The object at the first brace; words may stand around it.

    Only there: a brace further on may be within an object that is broken or cut, and what is inside
    such an object is not what the model decided.
    """
    start = text.find("{")
    if start < 0:
        return NotJson("the reply holds no JSON object" if text.strip() else "the reply is empty")
    try:
        end = _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError) as error:
        return NotJson(f"the reply is no JSON object: {str(error)[:200]}")
    found = read_object(text[start:end])
    return NotJson(f"the reply cannot be used: {found.problem}") if isinstance(found, NotJson) else found


_DECODER = json.JSONDecoder()


# -- lenient fields --------------------


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).strip()


def _word(value: Any) -> str:
    return _text(value).lower().replace("-", "_").replace(" ", "_")


def _list(value: Any) -> list[Any]:
    """A list as it is, one thing as a list of it, nothing as an empty one."""
    if isinstance(value, list):
        return value
    return [] if value in (None, "", {}) else [value]


def _texts(value: Any) -> list[str]:
    return [text for item in _list(value) if (text := _text(item))]


def _call(value: Any) -> WantedCall | None:
    if not isinstance(value, dict):
        return None
    specs, more = read_specs(value.get("out_artifacts_spec"))
    return WantedCall(
        tool_id=_text(value.get("tool_id")),
        reasoning=_text(value.get("reasoning")),
        params=value.get("params"),
        out_artifacts_spec=specs,
        more_artifacts=more,
    )


def _mapped(value: Any) -> tuple[str, str, bool, str]:
    """The fields of a mapping; plain ones, because a reply may hold very many that are left out."""
    given = value if isinstance(value, dict) else {}
    draft = _word(given.get("draft")) == "true"
    return _text(given.get("slot_name")), _text(given.get("source_path")), draft, _text(given.get("gaps"))


def _mapping(slot_name: str, source_path: str, draft: bool, gaps: str) -> SlotMapping:
    return SlotMapping(slot_name=slot_name, source_path=source_path, draft=draft, gaps=gaps)
