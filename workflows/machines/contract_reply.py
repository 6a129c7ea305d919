"""Reading a decision: one JSON object, read leniently (spec 5.3). Never raises on any text."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import JsonValue

from activities.contracts import ArtifactSpec, Frozen

__all__ = ["STRATEGIES", "Action", "Decision", "SlotMapping", "WantedCall", "read_decision", "read_specs"]

Action = Literal["call_tool", "decision", "clarify", "complete", "exit"]
STRATEGIES = ("explore", "exploit", "render", "exit")
DEPTH = 40
"""Levels of nesting that a reply may have; what is deeper cannot be kept."""
_OBJECTS = 20
_FENCE = re.compile(r"\A\s*```[A-Za-z]*[ \t\r]*\n(.*?)\n?```\s*\Z", re.DOTALL)


class WantedCall(Frozen):
    """The tool call that a decision asks for, as the model wrote it; checked in `protocol_verify`."""

    tool_id: str = ""
    reasoning: str = ""
    params: JsonValue = None
    """A mapping, if the model keeps to the protocol."""
    out_artifacts_spec: tuple[ArtifactSpec, ...] = ()
    """The entries that have a name."""


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


def read_decision(text: str) -> Decision:
    """The decision of a reply; what cannot be read at all is an empty decision with a `problem`."""
    given, problem = _object(text)
    if given is None:
        return Decision(problem=problem)
    action = _word(given.get("action")) or "complete"
    if action not in get_args(Action):
        return Decision(problem=f"the action {action[:60]!r} is none of {', '.join(get_args(Action))}")
    strategy, problem = _word(given.get("strategy")), ""
    if strategy not in STRATEGIES:
        problem = f"the strategy {strategy[:60]!r} is none of {', '.join(STRATEGIES)}"
        strategy = ""
    regular = _word(given.get("next_decision_model")) == "regular"
    return Decision.model_validate(
        {
            "action": action,
            "strategy": strategy,
            "focus_slot": _text(given.get("focus_slot")),
            "notes": _text(given.get("notes")),
            "next_decision_model": "regular" if regular else "strong",
            "tool_call": _call(given.get("tool_call")),
            "map_slots": [_mapping(item) for item in _list(given.get("map_slots"))],
            "show_artifacts": _texts(given.get("show_artifacts")),
            "show_skills": _texts(given.get("show_skills")),
            "completion_summary": _text(given.get("completion_summary")),
            "clarification_questions": _texts(given.get("clarification_questions")),
            "problem": problem,
        }
    )


def read_specs(given: Any) -> tuple[ArtifactSpec, ...]:
    """The named entries of an `out_artifacts_spec`: a list of objects or of names."""
    found = []
    for item in _list(given):
        entry = item if isinstance(item, Mapping) else {"name": item}
        name = _text(entry.get("name"))
        if name:
            kind, of = _text(entry.get("kind")), _text(entry.get("type"))
            found.append(ArtifactSpec(name=name, type=of or "text", kind=kind or "data"))
    return tuple(found)


# -- one object out of a text --------------------


def _object(text: str) -> tuple[dict[str, Any] | None, str]:
    fenced = _FENCE.match(text)
    body = (fenced.group(1) if fenced else text).strip()
    problem = "the reply is empty" if not body else "the reply holds no JSON object"
    for opening in itertools.islice(re.finditer(r"\{", body), _OBJECTS):
        try:
            # The first object counts; a model may go on talking behind it.
            value = _DECODER.raw_decode(body, opening.start())[0]
        except (ValueError, RecursionError) as error:
            problem = f"the reply is no JSON object: {str(error)[:200]}"
            continue
        if _deeper(value, DEPTH):
            return None, f"the reply is nested more than {DEPTH} levels deep"
        cleaned: dict[str, Any] = _clean(value)
        return cleaned, ""
    return None, problem


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the number {number[:40]} is too great")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_deeper(item, depth - 1) for item in inner)


def _clean(value: Any) -> Any:
    """JSON can spell half a character pair, which no encoding can write."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


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
    return WantedCall(
        tool_id=_text(value.get("tool_id")),
        reasoning=_text(value.get("reasoning")),
        params=value.get("params"),
        out_artifacts_spec=read_specs(value.get("out_artifacts_spec")),
    )


def _mapping(value: Any) -> SlotMapping:
    given = value if isinstance(value, dict) else {}
    return SlotMapping(
        slot_name=_text(given.get("slot_name")),
        source_path=_text(given.get("source_path")),
        draft=_word(given.get("draft")) == "true",
        gaps=_text(given.get("gaps")),
    )
