"""Simple mode: one decision `{action, params, confidence}` at a time, until it is `finish` (spec 4.10).

The machine's loop is the same; here is what differs: how a decision is read, and what a step leaves behind.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any

from workflows.machines.authoring import JsonObject, Run
from workflows.machines.common.json_text import NotJson, as_text, cut, merged, read_object, shown_value
from workflows.machines.planner import prompt
from workflows.machines.planner.calls import CallFailure, forbidden, marked, ran
from workflows.machines.planner.context import Planner
from workflows.machines.planner.decisions import Decision, text_from
from workflows.machines.planner.prompt import FINISH

__all__ = ["act", "audited", "decision_schema", "input_after", "read_decision"]

NAME_CHARS = 100
"""Characters of an action."""


def decision_schema(tools: Sequence[str]) -> JsonObject:
    """A decision on one action, for providers that enforce a schema: with other names than those of tools, a
    small model fills in words of the prompt."""
    return {
        "type": "object",
        "properties": {
            "action": {"enum": list(dict.fromkeys((*tools, FINISH)))},
            "params": {"type": "object"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["action", "params"],
    }


def read_decision(text: str) -> Decision | NotJson:
    """The decision `{action, params, confidence}` that a reply is (spec 4.10). One without an action is left
    to the policy. What is read here is what the policy is asked about, what runs, and what is audited."""
    given = read_object(text)
    if isinstance(given, NotJson):
        return given
    action, params, sure = given.get("action"), given.get("params"), given.get("confidence")
    if not isinstance(action, str | None):
        return NotJson(f"`action` must be a text, not {json.dumps(action)[:NAME_CHARS]}")
    name = (action or "").strip()
    if len(name) > NAME_CHARS:
        return NotJson(f"`action` must have at most {NAME_CHARS} characters, not {len(name)}: {cut(name)}")
    if isinstance(sure, bool) or not isinstance(sure, int | float | None):
        return NotJson(f"`confidence` must be a number from 0 to 1, not {json.dumps(sure)[:NAME_CHARS]}")
    if not isinstance(params, dict | None):
        return NotJson(f"`params` must be an object, not {json.dumps(params)[:NAME_CHARS]}")
    # Plain names: models write `:path` for a symbol, or a space too many.
    plain = {key.strip().removeprefix(":").strip(): value for key, value in (params or {}).items()}
    if len(plain) < len(params or {}):
        return NotJson("`params` names one parameter twice (spaces and a colon in front do not count)")
    return Decision(name or None, plain, sure)


def audited(c: Planner, decision: Decision | None, result: Any) -> dict[str, Any]:
    """The patch with the record of a step."""
    record = {"input": c.given, "decision": decision.to_json() if decision else None, "result": result}
    return {"observations": (*c.observations, record)}


def act(c: Planner, run: Run) -> Generator[Any, Any, tuple[dict[str, Any], str, bool]]:
    """Do the one action of a step: the patch, what happened, and whether the log has it anyway. What a tool
    returns is merged into the shared state (4.9)."""
    assert run.reply is not None
    decision = read_decision(run.reply.content)
    assert isinstance(decision, Decision)  # else EXECUTE would have halted
    problem = forbidden(c, run, decision)
    if problem is None and decision.action == FINISH:
        return _finished(c, decision), FINISH, True
    outcome = problem or (yield from ran(run, decision, str(c.iteration), 1))
    if isinstance(outcome, CallFailure):
        patch = audited(c, decision, {"error": outcome.error})
        if outcome.halts:
            patch |= {"exit_reason": outcome.reason, "error": outcome.halts}
        return patch, outcome.halts or outcome.error, False
    value = shown_value(outcome.output)
    patch = {**audited(c, decision, value), "marks": marked(c, outcome), "answer": outcome.output}
    if isinstance(value, dict):
        patch["state"] = merged(c.state, value)
        if value.get("done") is True:
            patch["exit_reason"] = "done"
    return patch, "Tools executed: 1", True


def _finished(c: Planner, decision: Decision) -> dict[str, Any]:
    """The action `finish`. Without an answer of its own, the newest result is the answer."""
    patch = {
        **audited(c, decision, {"done": True}),
        "state": {**c.state, "done": True},
        "exit_reason": "finished",
    }
    if (answer := decision.params.get("answer")) is not None:
        patch["answer"] = as_text(answer)
    return patch


def input_after(c: Planner, run: Run) -> str:
    """The input of the step after the newest one. Raises AgentError when the hook fails."""
    newest: Any = c.observations[-1]
    if builder := run.prepared.input_builder:
        return text_from("input builder", builder, newest["result"], c.iteration)
    return prompt.next_input(str(newest["decision"]["action"]), newest["result"])
