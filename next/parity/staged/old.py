# ruff: noqa  # a harness that is deleted together with the first edition
"""The first edition's side; run with PYTHONPATH=/work/main. Prints one JSON line per seed."""

from __future__ import annotations

import json
import sys
from typing import Any

import activities.contracts as contracts
from feed import TOOLS, Feed
from workflows.kernel import step as engine
from workflows.kernel.design import Brief, Parts
from workflows.kernel.errors import name_of
from workflows.kernel.ledger import Ledger
from workflows.machines.staged import DESIGN

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied, "tools_returned": contracts.ToolsReturned,
    "effect_failed": contracts.EffectFailed, "machine_ended": contracts.MachineEnded,
}  # fmt: skip


def shown(effect: Any, step: int) -> dict[str, Any]:
    made = {"kind": effect.kind, "label": getattr(effect, "label", ""), "pass": step}
    if effect.kind == "call_model":
        messages = [[m.role, m.content] for m in effect.transcript]
        return {
            **made, "messages": messages, "role": effect.role, "offer": list(effect.offer), "tool_choice": effect.tool_choice,
            "schema": effect.response_schema, "attempts": effect.attempts,
        }  # fmt: skip
    if effect.kind == "call_tools":
        return {**made, "runs": [[r.tool, r.arguments] for r in effect.runs], "attempts": effect.attempts, "parallel": effect.parallel}
    return {**made, "machine": effect.machine, "goal": effect.goal, "options": effect.options, "give": list(effect.tools_given), "instructions": effect.instructions}


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    given = feed.options()
    for stage in given.get("stages", ()):
        if "inner" in stage:
            stage["machine"] = stage.pop("inner")
    options = DESIGN.options.model_validate(given)
    machine = DESIGN.build(options, Parts(hooks=feed.hooks))
    tools = tuple(contracts.ToolSpec(name=n, description=f"does {n}", parameters={}) for n in TOOLS)
    begun = DESIGN.begin(Brief("find out", "t1", "Be brief.", tools), options)
    step = engine.start(machine, begun, now=1.0, ledger=Ledger(caps=feed.caps()))
    effects, records, now = [], list(step.records), 2.0
    while step.effect is not None:
        effect: Any = step.effect
        effects.append(shown(effect, step.snapshot.step))
        if effect.kind == "call_model":
            answer = feed.model(effect.role, effect.response_schema)
        elif effect.kind == "call_tools":
            answer = feed.tools([(r.id, r.tool) for r in effect.runs])
        else:
            answer = feed.inner()
        step = engine.advance(machine, step, ANSWERS[answer["kind"]].model_validate(answer), now=now)
        records += step.records
        now += 1
    return {
        "seed": seed, "layout": feed.layout, "mode": options.on_max_iterations, "most": options.max_iterations, "effects": effects,
        "moves": [[r.state, r.to, r.reason, r.step] for r in records if r.to],
        "exit": json.loads(step.exit.model_dump_json()), "context": json.loads(step.snapshot.context.model_dump_json()),
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
