# ruff: noqa  # a harness that is deleted together with the first edition
"""This edition's side; run with PYTHONPATH=/work/main/next. Prints one JSON line per seed."""

from __future__ import annotations

import json
import sys
from typing import Any

import activities.contracts as contracts
from feed import TOOLS, Feed
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, RunInput
from workflows.kernel.snapshot import Program, dump
from workflows.kernel.step import advance, load, refuse, start
from workflows.machines.staged import Options, build_machine

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied, "tools_returned": contracts.ToolsReturned,
    "effect_failed": contracts.EffectFailed, "machine_ended": contracts.MachineEnded,
}  # fmt: skip
KINDS = {"ask_model": "call_model"}


def shown(effect: Any, step: int) -> dict[str, Any]:
    made = {"kind": KINDS.get(effect.kind, effect.kind), "label": effect.label, "pass": step}
    if effect.kind == "ask_model":
        assert effect.beside
        messages = [[m.role, m.content] for m in effect.say]
        return {
            **made, "messages": messages, "role": effect.role, "offer": list(effect.offer), "tool_choice": effect.tool_choice,
            "schema": effect.response_schema, "attempts": effect.attempts,
        }  # fmt: skip
    if effect.kind == "call_tools":
        return {**made, "runs": [[r.tool, r.arguments] for r in effect.runs], "attempts": effect.attempts, "parallel": effect.parallel}
    return {**made, "machine": effect.machine, "goal": effect.goal, "options": effect.options, "give": list(effect.give), "instructions": effect.instructions}


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    given = feed.options()
    for stage in given.get("stages", ()):
        if "inner" in stage:
            inner = stage.pop("inner")
            stage |= {"machine": inner.pop("name"), **inner}
    options = Options.model_validate(given)
    tools = tuple(contracts.ToolSpec(name=n, description=f"does {n}", parameters={}) for n in TOOLS)

    def program() -> Program:
        return Program(build_machine(options), RunInput("find out", "t1", "Be brief.", tools), options, Extensions(hooks=feed.hooks))

    step = start(program(), now=1.0, ledger=Ledger(caps=feed.caps()))
    effects, records, now = [], list(step.records), 2.0
    while step.effect is not None:
        if step.breach is not None:
            step = refuse(step, now=now)
            records += step.records
            break
        if seed % 2:
            step = load(program(), json.loads(json.dumps(dump(step))))
        effect: Any = step.effect
        effects.append(shown(effect, step.snapshot.step))
        if effect.kind == "ask_model":
            answer = feed.model(effect.role, effect.response_schema)
        elif effect.kind == "call_tools":
            answer = feed.tools([(r.id, r.tool) for r in effect.runs])
        else:
            answer = feed.inner()
        step = advance(step, ANSWERS[answer["kind"]].model_validate(answer), now=now)
        records += step.records
        now += 1
    for record in records:
        record.model_dump_json()
    assert step.exit is not None
    return {
        "seed": seed, "layout": feed.layout, "mode": options.on_max_iterations, "most": options.max_iterations, "effects": effects,
        "moves": [[r.state, r.to, r.reason, r.step] for r in records if r.to],
        "exit": json.loads(step.exit.model_dump_json()), "context": json.loads(step.snapshot.context.model_dump_json()),
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
