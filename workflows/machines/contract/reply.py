"""Reading a decision: one JSON object, read leniently (spec 5.3). Never raises, whatever the model wrote."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, JsonValue

from activities.contracts import ArtifactSpec, Frozen, JsonObject, ModelReplied
from workflows.machines.common.json_text import NotJson, as_text, first_value, unread

__all__ = [
    "MAX_LIST_ENTRIES",
    "MAX_MAPPINGS",
    "Action",
    "ModelDecision",
    "SlotMapping",
    "WantedCall",
    "artifact_specs",
    "decision_of",
    "decision_schema",
]

Action = Literal["call_tool", "decision", "clarify", "complete", "exit"]
STRATEGIES = ("explore", "exploit", "render", "exit")
MAX_MAPPINGS = 100
"""Entries of `map_slots` that are read."""
MAX_LIST_ENTRIES = 50
"""Entries that are read of any other list."""


def _word(value: Any) -> str:
    return as_text(value).lower().replace("-", "_").replace(" ", "_")


def _list(value: Any) -> list[Any]:
    """A list as it is, a single thing as a list of one, nothing as an empty list."""
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value in (None, "", {}) else [value]


def _texts(value: Any) -> list[str]:
    """Each text once, at most as many as are read."""
    return list(dict.fromkeys(text for item in _list(value) if (text := as_text(item))))[:MAX_LIST_ENTRIES]


def artifact_specs(given: Any) -> tuple[ArtifactSpec, ...]:
    """The entries of an `out_artifacts_spec` that have a name. An entry is an object or just a name."""
    entries = [item if isinstance(item, dict) else {"name": item} for item in _list(given)]
    return tuple(
        ArtifactSpec(
            name=name, type=_word(entry.get("type")) or "text", kind=_word(entry.get("kind")) or "data"
        )
        for entry in entries
        if (name := as_text(entry.get("name")))
    )[:MAX_LIST_ENTRIES]


def _mappings(given: Any) -> list[SlotMapping]:
    entries = (item if isinstance(item, dict | SlotMapping) else {} for item in _list(given))
    return list(dict.fromkeys(SlotMapping.model_validate(entry) for entry in entries))[:MAX_MAPPINGS]


Text = Annotated[str, BeforeValidator(as_text)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class WantedCall(Frozen):
    """The tool call of a decision, as the model wrote it; checked in `protocol_verify`."""

    tool_id: Text = ""
    reasoning: Text = ""
    params: JsonValue = None
    """A mapping, if the model keeps to the protocol."""
    out_artifacts_spec: Annotated[tuple[ArtifactSpec, ...], BeforeValidator(artifact_specs)] = ()


class SlotMapping(Frozen):
    """One entry of `map_slots`: the slot to fill, and from where."""

    slot_name: Text = ""
    source_path: Text = ""
    """Id of an artifact, then a path into its value: `rows`, `rows[0].name`."""
    draft: Annotated[bool, BeforeValidator(lambda given: _word(given) == "true")] = False
    gaps: Text = ""
    """What is still missing, in the model's words."""


class ModelDecision(Frozen):
    """What the model decided. An empty one has an invalid strategy (spec 5.7, step 4).

    Validating it reads what the model wrote: words in any case, a single thing for a list, anything
    for a text.
    """

    action: Action = "complete"
    strategy: Literal["", "explore", "exploit", "render", "exit"] = ""
    """Empty: missing or unknown."""
    focus_slot: Text = ""
    notes: Text = ""
    next_decision_model: Annotated[
        Literal["strong", "regular"],
        BeforeValidator(lambda given: "regular" if _word(given) == "regular" else "strong"),
    ] = "strong"
    tool_call: Annotated[
        WantedCall | None,
        BeforeValidator(lambda given: given if isinstance(given, dict | WantedCall) else None),
    ] = None
    map_slots: Annotated[tuple[SlotMapping, ...], BeforeValidator(_mappings)] = ()
    show_artifacts: Texts = ()
    show_skills: Texts = ()
    completion_summary: Text = ""
    clarification_questions: Texts = ()
    problem: str = ""
    """What is wrong with the reply, for the model."""


@lru_cache(maxsize=32)
def decision_schema(tools: tuple[str, ...], slots: tuple[str, ...]) -> JsonObject:
    """A decision as a JSON schema. A model whose last one could not be read is held to it."""
    text: JsonObject = {"type": "string"}
    call = {
        "tool_id": {"enum": list(tools)},
        "params": {"type": "object"},
        "out_artifacts_spec": {"type": "array", "items": _object_of(name=text, type=text, kind=text)},
    }
    mapping = _object_of(
        slot_name={"enum": list(slots)} if slots else text, source_path=text, draft={"type": "boolean"}
    )
    fields: dict[str, JsonObject] = {
        "action": {"enum": list(get_args(Action))},
        "strategy": {"enum": list(STRATEGIES)},
        "notes": text,
        "map_slots": {"type": "array", "items": mapping},
        "show_artifacts": {"type": "array", "items": text},
        "completion_summary": text,
        **({"tool_call": _object_of(**call)} if tools else {}),
    }
    return {**_object_of(**fields), "required": ["action", "strategy"]}


def _object_of(**properties: Any) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(properties)}


def decision_of(reply: ModelReplied) -> ModelDecision:
    """The decision of a reply. One that cannot be read is an empty decision with a `problem`."""
    given = _object(reply.text)
    if isinstance(given, NotJson):
        return ModelDecision(problem=unread(reply, given.problem))
    action, strategy = _word(given.get("action")) or "complete", _word(given.get("strategy"))
    if action not in get_args(Action):
        # Not taken for `complete`: an unknown action must end nothing.
        problem = f"unknown action {action[:60]!r}; use one of {', '.join(get_args(Action))}"
        return ModelDecision(problem=unread(reply, problem))
    problem = ""
    if strategy not in STRATEGIES:
        problem = unread(reply, f"unknown strategy {strategy[:60]!r}; use one of {', '.join(STRATEGIES)}")
        strategy = ""
    return ModelDecision.model_validate({**given, "action": action, "strategy": strategy, "problem": problem})


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
