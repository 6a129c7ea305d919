# ruff: noqa  # a harness that is deleted together with the first edition
"""PYTHONPATH=/work/main/next python new.py COUNT: one line of JSON per seed, from the second edition.

Each third run also goes through JSON at every effect."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter
from script import Script

from activities.contracts import Answer, AskModel, ToolSpec
from workflows.kernel.machine import RunInput
from workflows.kernel.snapshot import Program, Step, dump
from workflows.kernel.step import advance, load, start
from workflows.machines.contract import MACHINE

ANSWER: TypeAdapter[Any] = TypeAdapter(Answer)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda v: v.model_dump(mode="json")))


def shown(step: Step) -> dict[str, Any]:
    effect: Any = step.effect
    if isinstance(effect, AskModel):
        said = [[m.role, m.content] for m in (*step.snapshot.conversation, *effect.say)]
        return {"kind": "ask_model", "length": len(said), "last": said[-1], "role": effect.role, "attempts": effect.attempts}
    if effect.kind == "call_tools":
        return {"kind": "call_tools", "runs": plain(effect.runs), "attempts": effect.attempts}
    return {"kind": "read_artifacts", "reads": plain(effect.reads), "chars": effect.chars}


def run(seed: int) -> dict[str, Any]:
    script = Script(seed)
    tools = tuple(ToolSpec(**one, effect="read") for one in script.tools)  # type: ignore[arg-type]
    given = RunInput("find out", "t", instructions="Be exact.", tools=tools)
    program = Program(MACHINE, given, script.options)
    step, now = start(program, now=1000.0), 1001.0
    effects, records = [], list(step.records)
    while step.effect is not None:
        effects.append(shown(step))
        kind = "model" if step.effect.kind == "ask_model" else step.effect.kind
        answer = ANSWER.validate_python(script.answer(kind, step.effect))
        if seed % 3 == 0:
            step = load(program, json.loads(json.dumps(dump(step))))
        step = advance(step, answer, now=now)
        records += step.records
        now += 1
    c, exit = step.snapshot.context, step.exit
    assert exit is not None
    return {
        "seed": seed, "effects": effects,
        "events": [[r.event, r.to, r.reason] for r in records[1:] if r.to],
        "exit": plain(exit),
        "said": [[m.role, m.content] for m in step.snapshot.conversation],
        "context": plain({
            "slots": c.slots, "artifacts": c.artifacts, "iteration": c.iteration,
            "index": c.round.index, "stage": c.round.stage, "strategy": c.round.strategy,
            "summary": c.completion_summary, "questions": c.clarification_questions,
            "overdraft": [c.overdraft.allowed, c.overdraft.used, c.overdraft.total],
            "violations": [len(c.violations), {k: v for k, v in c.violations[-1].items() if k in ("code", "message")} if c.violations else None],
            "wrapup": [c.is_wrapup_round, c.wrapup_trigger_reason], "error": c.error,
            "exit_reason": c.exit_reason, "timings": c.round_timings, "log": c.session_log,
            "spent": {k: v for k, v in c.budget.spent.items() if v}, "caps": c.budget.caps,
            "decision": c.last_decision if c.iteration else None, "call": c.call,
            "show": [c.last_decision.show_artifacts, c.last_decision.show_skills] if c.show else [[], []],
        }),
    }  # fmt: skip


for seed in range(int(sys.argv[1])):
    print(json.dumps(run(seed)))
