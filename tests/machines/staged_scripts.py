"""Runs of the staged machine: one list of answers is one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from activities.contracts import MachineEnded, ModelReplied
from tests.machines.answers import call, calls, replied
from tests.machines.play import Played, Reaction, play, program_of
from workflows.kernel.machine import Extensions
from workflows.machines.staged import Options, build_machine

__all__ = [
    "ANSWER",
    "CALL",
    "CHECK",
    "DONE",
    "HALF",
    "MORE",
    "NOTHING",
    "REVIEWED",
    "TOOLS",
    "ended",
    "error",
    "hooked",
    "judged",
    "observed",
    "run",
    "stages",
    "thinks",
]

Hook = Callable[[Any], Any]


def thinks(*tools: str, intent: str = "diagnosis", reasoning: str = "find x") -> ModelReplied:
    """A thought that suggests these tools."""
    return replied(json.dumps({"intent": intent, "suggested_tools": list(tools), "reasoning": reasoning}))


def observed(final_answer: str = "", *, summary: str = "so far", need_loop: bool = False) -> ModelReplied:
    """An observation."""
    return replied(json.dumps({"summary": summary, "final_answer": final_answer, "need_loop": need_loop}))


def judged(lifecycle: Any, verdict: Any = "yes", **more: Any) -> ModelReplied:
    """A reply of the stage `check`."""
    return replied(json.dumps({"lifecycle": lifecycle, "extensions": {"verdict": verdict}, **more}))


def ended(answer: str | None = "found it", *, ok: bool = True) -> MachineEnded:
    """How an inner machine ended."""
    failure = None if ok else "no luck"
    return MachineEnded(machine="react", ok=ok, exit_reason="max_steps", answer=answer, error=failure)


NOTHING = thinks(intent="general_inquiry")
TOOLS = thinks("tool")
CALL = calls(call("tool", q="x"))
MORE = observed(need_loop=True)
ANSWER = observed("42")
DONE = {"summary": "s", "final_answer": "42", "need_loop": False}
HALF = {"summary": "s", "final_answer": "", "need_loop": True}

SHIPPED: Mapping[str, Mapping[str, Any]] = {
    "think": {"flow_type": "think", "enters": "Thinking", "exits": ["Acting", "Observing"]},
    "act": {"flow_type": "act", "enters": "Acting", "exits": ["Observing"]},
    "observe": {"flow_type": "observe", "enters": "Observing", "exits": ["Finished", "Thinking"]},
}
CHECK: dict[str, Any] = {
    "flow_type": "model",
    "enters": "Checking",
    "exits": ["Finished", "Thinking"],
    "reads": ["observation"],
    "writes": ["extensions"],
    "extension": {"verdict": "is it so?"},
}


def stages(**changed: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The shipped stages as an agent file declares them, with some keys changed. A stage that is None is
    left out; one with another name is added."""
    declared: dict[str, dict[str, Any]] = {name: dict(keys) for name, keys in SHIPPED.items()}
    for name, keys in changed.items():
        declared[name] = {**declared.get(name, {}), **(keys or {})}
    return [{"name": name, **keys} for name, keys in declared.items() if changed.get(name, keys) is not None]


REVIEWED = stages(observe={"exits": ["Checking", "Thinking"]}, check=CHECK)


def run(
    *answers: Reaction,
    declared: list[dict[str, Any]] | None = None,
    hooks: Mapping[str, Hook] | None = None,
    given: Mapping[str, Any] | None = None,
    **options: Any,
) -> Played:
    """A run over these answers, with these stages, hooks and options; `given` are parts of its input."""
    options = {**options, **({"stages": declared} if declared else {})}
    machine = build_machine(Options.model_validate(options))
    extensions = Extensions(hooks=dict(hooks or {}))
    return play(program_of(machine, options, extensions=extensions, **(given or {})), answers)


def hooked(
    hook: Hook, *answers: Reaction, stage: str = "observe", check: Hook | None = None, **more: Any
) -> Played:
    """A run in which one stage is a function. What is no key of a stage is an option."""
    option_names = Options.model_fields.keys()
    options = {name: value for name, value in more.items() if name in option_names}
    keys = {name: value for name, value in more.items() if name not in option_names}
    written = {"think": "thought", "act": "action", "observe": "observation"}[stage]
    own = {"flow_type": "hook", "hook": "hook", "writes": [written], **keys}
    hooks = {"hook": hook, **({"check": check} if check else {})}
    declared = stages(**{stage: {**own, **({"check": "check"} if check else {})}})
    before = answers or ((NOTHING,) if stage == "observe" else (TOOLS,) if stage == "act" else ())
    return run(*before, declared=declared, hooks=hooks, **options)


def error(played: Played) -> tuple[str, str]:
    """Code and stage of the error that ended the run in Failed."""
    last = played.context.last_error
    assert played.states.split()[-1] == "Failed"
    assert (played.exit.ok, played.exit.outcome["last_error"]) == (False, last.model_dump(mode="json"))
    return last.code, last.stage
