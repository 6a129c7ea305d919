"""Reading a ReAct reply: a JSON object, or labelled lines (R-000-7). Never raises on any text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FINAL", "FINISH", "BadReply", "Thought", "final_answer", "harden", "read_reply"]

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
    action_input: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadReply:
    """A reply that has not, and why, in words for the model."""

    problem: str


_FENCE = re.compile(r"\A\s*```(?:json)?[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation)[ \t]*:[ \t]*", re.MULTILINE)


def read_reply(text: str) -> Thought | BadReply:
    """The thought, action and input of a reply, or what is wrong with it."""
    fenced = _FENCE.match(text)
    body = (fenced.group(1) if fenced else text).strip()
    if not body:
        return BadReply("the reply is empty")
    if body.startswith("{"):
        value, problem = _json(body)
        if isinstance(value, dict):
            return _checked(value)
        if not _LABEL.search(body):
            return BadReply(f"the reply is not a JSON object: {problem}")
    return _labelled(body)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json(text: str) -> tuple[Any, str]:
    try:
        # The first object counts; a model may go on talking behind it.
        return json.JSONDecoder(parse_constant=_no_constant).raw_decode(text)[0], ""
    except (ValueError, RecursionError) as error:
        return None, str(error)[:200]


def _labelled(text: str) -> Thought | BadReply:
    marks = list(_LABEL.finditer(text))
    if not marks:
        if FINAL in text:
            return Thought(text)
        return BadReply("the reply has neither a JSON object nor lines with Thought: and Action:")
    parts: dict[str, Any] = {}
    for number, mark in enumerate(marks):
        end = marks[number + 1].start() if number + 1 < len(marks) else len(text)
        label = mark.group(1)
        if label == "Observation" or label in parts:
            break  # the model has begun to play the tool's part, or another step
        parts[label] = text[mark.end() : end].strip()
    raw = parts.get("Action Input", "")
    value: Any = None
    if raw:
        fenced = _FENCE.match(raw)
        value, problem = _json((fenced.group(1) if fenced else raw).strip())
        if problem:
            return BadReply(f"Action Input is not JSON: {problem}")
    action = parts.get("Action")
    return _checked({"thought": parts.get("Thought"), "action": action, "action_input": value})


def _checked(parts: dict[str, Any]) -> Thought | BadReply:
    thought, action, given = (parts.get(k) for k in ("thought", "action", "action_input"))
    if not isinstance(thought, str) or not thought.strip():
        return BadReply("the thought is missing or blank")
    if action is not None and not isinstance(action, str):
        return BadReply(f"the action must be a tool's name, not {type(action).__name__}")
    if given is not None and not isinstance(given, dict):
        return BadReply(f"the action input must be a JSON object, not {type(given).__name__}")
    name = (action or "").strip()
    nothing = not name or name.lower() in {"none", "null", "n/a"}
    return Thought(_text(thought.strip()), None if nothing else _text(name), harden(given or {}))


def _text(text: str) -> str:
    """JSON can spell half a character pair, which no encoding can write."""
    return text.encode("utf-8", "replace").decode()


def final_answer(thought: str, action: str | None, action_input: dict[str, Any]) -> str | None:
    """The answer, when the step gives one: behind `FINAL ANSWER`, or the input of `finish`."""
    if action == FINISH:
        answer = action_input.get("answer")
        if answer is not None:
            return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    if FINAL in thought:
        return thought.split(FINAL, 1)[1].lstrip(" :*\n\t").strip() or thought
    return thought if action == FINISH else None


def harden(value: Any, depth: int = DEPTH_LIMIT) -> Any:
    """Arguments made safe: strings cut at 4096 characters, nesting at most 4 deep (spec 1.5)."""
    if isinstance(value, str):
        return _text(value[:TEXT_LIMIT])
    if isinstance(value, dict):
        return {harden(k): harden(v, depth - 1) for k, v in value.items()} if depth else {}
    if isinstance(value, list):
        return [harden(item, depth - 1) for item in value] if depth else []
    return value
