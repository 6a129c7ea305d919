# ruff: noqa  # a harness that is deleted together with the first edition
"""PYTHONPATH=/work/main python old.py COUNT: one line of JSON per seed, from the first edition."""

from __future__ import annotations

import json
import sys
from typing import Any

from script import Script

from activities.contracts import EffectFailed, ModelReplied, ToolsReturned, ToolSpec
from activities.contracts_artifacts import ArtifactsRead
from workflows.kernel.design import Brief, Parts
from workflows.kernel.step import advance, start
from workflows.machines.contract import DESIGN

ANSWERS = {"model_replied": ModelReplied, "tools_returned": ToolsReturned, "artifacts_read": ArtifactsRead,
           "effect_failed": EffectFailed}  # fmt: skip


def plain(value: Any) -> Any:
    def more(v: Any) -> Any:
        return v.model_dump(mode="json") if hasattr(v, "model_dump") else dict(v)

    return json.loads(json.dumps(value, default=more))


def shown(effect: Any) -> dict[str, Any]:
    if effect.kind == "call_model":
        said = [[m.role, m.content] for m in effect.transcript.messages]
        return {"kind": "ask_model", "length": len(said), "last": said[-1], "role": effect.role, "attempts": effect.attempts}
    if effect.kind == "call_tools":
        return {"kind": "call_tools", "runs": plain(effect.runs), "attempts": effect.attempts}
    return {"kind": "read_artifacts", "reads": plain(effect.reads), "chars": effect.chars}


def run(seed: int) -> dict[str, Any]:
    script = Script(seed)
    options = DESIGN.options.model_validate(script.options)
    machine = DESIGN.build(options, Parts())
    tools = tuple(ToolSpec(**one, effect="read") for one in script.tools)  # type: ignore[arg-type]
    brief = Brief("find out", "t", instructions="Be exact.", tools=tools)
    step, now = start(machine, DESIGN.begin(brief, options), now=1000.0), 1001.0
    effects, events = [], []
    records = list(step.records)
    while step.effect is not None:
        effects.append(shown(step.effect))
        kind = "model" if step.effect.kind == "call_model" else step.effect.kind
        answer = script.answer(kind, step.effect)
        step = advance(machine, step, ANSWERS[answer["kind"]].model_validate(answer), now=now)
        records += step.records
        now += 1
    events = [[r.event, r.to, r.reason] for r in records[1:] if r.to]
    c, exit = step.snapshot.context, step.exit
    assert exit is not None
    return {
        "seed": seed, "effects": effects, "events": events, "exit": plain(exit),
        "said": [[m.role, m.content] for m in c.transcript.messages],
        "context": plain({
            "slots": dict(c.slots), "artifacts": dict(c.artifacts), "iteration": c.iteration,
            "index": c.round_index, "stage": c.stage, "strategy": c.last_strategy,
            "summary": c.completion_summary, "questions": c.clarification_questions,
            "overdraft": [c.allow_exploit_overdraft, c.exploit_overdraft_used, c.exploit_overdraft_total],
            "violations": [c.protocol_violation_count, c.last_protocol_violation],
            "wrapup": [c.is_wrapup_round, c.wrapup_trigger_reason], "error": c.error,
            "exit_reason": c.exit_reason, "timings": c.round_timings, "log": c.session_log,
            "spent": {k: v for k, v in c.budget.spent.items() if v}, "caps": dict(c.budget.caps),
            "decision": c.last_decision, "call": c.call, "show": [c.shown_artifacts, c.shown_skills],
        }),
    }  # fmt: skip


for seed in range(int(sys.argv[1])):
    print(json.dumps(run(seed)))
