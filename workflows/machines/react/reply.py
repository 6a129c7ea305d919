"""Reading a ReAct reply: a JSON object, or labelled lines (R-000-7). Pure; never raises on any text."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

from activities.contracts import JsonObject
from workflows.machines.common.json_text import NotJson, as_text, clean, first_value, unfenced

__all__ = [
    "FINAL",
    "FINISH",
    "BadReply",
    "Thought",
    "final_answer",
    "cut_arguments",
    "read_reply",
]

FINAL = "FINAL ANSWER"
"""In a thought: the run has its answer (case-sensitive, anywhere)."""
FINISH = "finish"
"""As an action: the structured form of the same, with the input `answer`."""
TEXT_LIMIT = 4096
DEPTH_LIMIT = 4


@dataclass(frozen=True, slots=True)
class Thought:
    """A reply that has the right format."""

    text: str
    action: str | None = None
    action_input: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadReply:
    """A reply that does not have it, and why, in words for the model."""

    problem: str


_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation)[ \t]*:[ \t]*", re.MULTILINE)
_NOTHING = {"", "none", "null", "n/a"}
_MOST_OBJECTS = 20


def read_reply(text: str) -> Thought | BadReply:
    """The thought, action and input of a reply, or what is wrong with it."""
    body = unfenced(clean(text))
    if not body:
        return BadReply("the reply is empty")
    labels = list(_LABEL.finditer(body))
    if body.startswith("{"):
        value = first_value(body)  # a model may go on talking after it
        if isinstance(value, dict):
            return _thought_of(value)
        if not labels:
            return BadReply(value.problem)
    if labels:
        return _labelled(body, labels)
    if (found := _object_within(body)) is not None:
        return _thought_of(found)
    if FINAL in body:
        return Thought(body)
    return BadReply("the reply has neither a JSON object nor lines with Thought: and Action:")


def _object_within(text: str) -> JsonObject | None:
    """The first JSON object with a thought, after words or in a fence among them."""
    for opening in itertools.islice(re.finditer(r"\{", text), _MOST_OBJECTS):
        value = first_value(text, opening.start())
        if isinstance(value, dict) and "thought" in value:
            return value
    return None


def _labelled(text: str, labels: list[re.Match[str]]) -> Thought | BadReply:
    parts = _parts(text, labels)
    raw, value = unfenced(parts.get("Action Input", "")), None
    if raw.lower() not in _NOTHING:
        value = first_value(raw)
        if isinstance(value, NotJson):
            return BadReply(f"the Action Input cannot be used: {value.problem}")
    action = parts.get("Action", "").partition("\n")[0]
    return _thought_of({"thought": parts.get("Thought"), "action": action, "action_input": value})


def _parts(text: str, labels: list[re.Match[str]]) -> dict[str, str]:
    """The text after each label of the first step; thoughts before its action belong together."""
    parts: dict[str, str] = {}
    ends = [label.start() for label in labels[1:]] + [len(text)]
    for found, end in zip(labels, ends, strict=True):
        label, words = found.group(1), text[found.end() : end].strip()
        if set(parts) == {label} == {"Thought"}:
            words = f"{parts[label]}\n{words}".strip()
        elif label == "Observation" or label in parts:
            break  # the model has begun to play the tool's part, or another step
        parts[label] = words
    return parts


def _thought_of(parts: dict[str, Any]) -> Thought | BadReply:
    thought, action, given = (parts.get(k) for k in ("thought", "action", "action_input"))
    if not isinstance(thought, str) or not thought.strip():
        return BadReply("the thought is missing or blank")
    if action is not None and not isinstance(action, str):
        return BadReply(f"the action must be a tool's name, not {type(action).__name__}")
    if given is not None and not isinstance(given, dict):
        return BadReply(f"the action input must be a JSON object, not {type(given).__name__}")
    name = (action or "").strip()
    # an answer is no tool's argument: nothing of it may be lost
    arguments = (given or {}) if name == FINISH else cut_arguments(given or {})
    return Thought(thought.strip(), None if name.lower() in _NOTHING else name, arguments)


_ANSWER = re.compile(rf"{FINAL}(?:[*_]*[ \t]*:[*_]*|[*_]*)\s*")
_MARKED_ANSWER = re.compile(rf"{FINAL}[*_]*[ \t]*:[*_]*\s*")


def final_answer(thought: str, action: str | None, action_input: JsonObject) -> str | None:
    """The answer, when the step gives one: after `FINAL ANSWER`, or the input of `finish`."""
    if action == FINISH:
        answer = action_input.get("answer")
        if answer is not None:
            return as_text(answer)
    # The words may be mentioned before they are used; with a colon they are meant.
    found = _MARKED_ANSWER.search(thought) or _ANSWER.search(thought)
    if found:
        return thought[found.end() :].strip() or thought
    return thought if action == FINISH else None


def cut_arguments(value: Any, depth: int = DEPTH_LIMIT) -> Any:
    """Arguments made safe: strings cut at 4096 characters, nesting at most 4 deep (spec 1.5)."""
    if isinstance(value, str):
        return value[:TEXT_LIMIT]
    if isinstance(value, dict):
        return (
            {key[:TEXT_LIMIT]: cut_arguments(item, depth - 1) for key, item in value.items()} if depth else {}
        )
    if isinstance(value, list):
        return [cut_arguments(item, depth - 1) for item in value] if depth else []
    return value
