"""What the scripted provider does without a script: look around with the tools, then report.

It understands nothing. It lists the files, searches them for the longest word of the goal, and
repeats what came back, so that every part around a model can be tried without one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from activities.contracts import Setup, ToolCall
from activities.transcript import Transcript

__all__ = ["improvised"]

PLAN = ("list_files", "search_files")
WORD = re.compile(r"[^\W\d_][\w-]{2,}")
PARAMETERS = ("pattern", "query", "text", "regex", "word", "search")
SHOWN_LINES = 5
SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class _Step:
    """One tool to use."""

    thought: str
    tool: str
    arguments: dict[str, str]


def improvised(setup: Setup, transcript: Transcript) -> tuple[str, tuple[ToolCall, ...]]:
    """Text and native calls of the next reply.

    Tools that are offered natively are called natively; those that the system message describes
    are named in the JSON form `{"thought", "action", "action_input"}`.
    """
    turn = sum(message.role == "assistant" for message in transcript)
    steps = _steps(setup, transcript)
    if turn >= len(steps):
        thought = _report(transcript)
        if setup.tools:
            return thought, ()
        return _json(thought, None, {}), ()
    step = steps[turn]
    if setup.tools:
        arguments = json.dumps(step.arguments, ensure_ascii=False)
        return step.thought, (ToolCall(id=f"call_{turn}", name=step.tool, arguments=arguments),)
    return _json(step.thought, step.tool, step.arguments), ()


def _steps(setup: Setup, transcript: Transcript) -> list[_Step]:
    goal = next((m.content for m in transcript if m.role == "user"), "")
    words = sorted(dict.fromkeys(WORD.findall(goal)), key=len, reverse=True)
    offered = {tool.name: json.dumps(tool.parameters) for tool in setup.tools}
    described = "\n".join(m.content for m in transcript if m.role == "system")
    steps = []
    for tool in PLAN:
        text = offered.get(tool) if offered else _behind(tool, described)
        if text is None:
            continue
        if tool == "list_files":
            steps.append(_Step("I am a script, no language model. I list the files.", tool, {}))
        elif words:
            thought = f"The longest word of the goal is {words[0]!r}. I search for it."
            steps.append(_Step(thought, tool, {_parameter(text): words[0]}))
    return steps


def _behind(tool: str, text: str) -> str | None:
    """What follows the tool's name in the description; None if it is not described."""
    found = re.search(rf"(?<!\w){tool}(?!\w)", text)
    return text[found.end() :] if found else None


def _parameter(described: str) -> str:
    """The name of the parameter that takes what to look for."""
    places = {name: described.find(f'"{name}"') for name in PARAMETERS}
    there = {name: place for name, place in places.items() if place >= 0}
    return min(there, key=lambda name: there[name]) if there else PARAMETERS[0]


def _report(transcript: Transcript) -> str:
    """The answer: what it is not, and what the tools returned."""
    answer = "FINAL ANSWER: I am Ratchet's scripted stand-in, no language model, so I cannot answer this."
    results, spoken = [], False
    for message in transcript:
        if message.role == "assistant":
            spoken = True
        elif spoken:
            results.append(_cut(message.content))
    if not results:
        return f"{answer} No tool was at hand."
    return f"{answer} The tools returned:\n" + "\n".join(results)


def _cut(text: str) -> str:
    lines = [line[:SHOWN_CHARACTERS] for line in text.strip().splitlines()]
    more = [f"(and {len(lines) - SHOWN_LINES} more lines)"] if len(lines) > SHOWN_LINES else []
    return "\n".join(lines[:SHOWN_LINES] + more)


def _json(thought: str, action: str | None, action_input: dict[str, str]) -> str:
    reply = {"thought": thought, "action": action, "action_input": action_input}
    return json.dumps(reply, ensure_ascii=False)
