"""The first edition's side; run with PYTHONPATH=/work/main. Prints one JSON line per seed."""

from __future__ import annotations

import json
import sys
from typing import Any

from feed import HOOKS, TOOLS, Feed
from workflows.kernel.design import Brief, Parts

import activities.contracts as contracts
from workflows.kernel import step as engine
from workflows.kernel.ledger import Ledger
from workflows.machines import planner, simple

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "effect_failed": contracts.EffectFailed,
}


def messages(transcript: Any) -> list[Any]:
    return [m.model_dump(mode="json") for m in transcript]


def shown(effect: Any) -> dict[str, Any]:
    if effect.kind == "call_model":
        return {
            "kind": "ask_model", "role": effect.role, "messages": messages(effect.transcript),
            "offer": list(effect.offer), "label": effect.label, "schema": effect.response_schema,
        }  # fmt: skip
    return {"kind": "call_tools", "runs": [json.loads(run.model_dump_json()) for run in effect.runs], "attempts": effect.attempts}


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    given = feed.options()
    design = planner.DESIGN if feed.mode == "plan" else simple.DESIGN
    if feed.mode == "plan":
        given["plan_format"] = given.pop("reply_format")
    options = design.options.model_validate(given)
    machine = design.build(options, Parts(hooks=HOOKS))
    tools = tuple(contracts.ToolSpec(name=n, description=f"does {n}", parameters={"properties": {"q": {}}}) for n in TOOLS)
    brief = Brief(feed.goal, "t1", feed.instructions, tools)
    step = engine.start(machine, design.begin(brief, options), now=1.0, ledger=Ledger(caps=feed.caps()))
    effects, records, now = [], list(step.records), 2.0
    while step.effect is not None:
        if text := feed.person():
            assert machine.fold_steer
            patch = machine.fold_steer(step.snapshot.context, text)
            step = engine.reenter(machine, step, engine.Cause("Steered", "ann"), now=now, patch=patch)
            records += step.records
            if step.effect is None:
                break
        effect = step.effect
        effects.append(shown(effect))
        answer = feed.model(effect.role) if effect.kind == "call_model" else feed.tool(effect.runs[0].id, effect.runs[0].tool)
        step = engine.advance(machine, step, ANSWERS[answer["kind"]].model_validate(answer), now=now)
        records += step.records
        now += 1
    c, exit_ = step.snapshot.context, json.loads(step.exit.model_dump_json())
    context = {"marks": list(c.marks), "iteration": c.iteration, "state": json.loads(json.dumps(c.state))}
    if feed.mode == "plan":
        context |= {"history": list(c.history), "observations": json.loads(json.dumps(c.observations))}
        context["summary_error"] = c.summary_error or ""
    else:
        context |= {"observations": json.loads(json.dumps(c.audit)), "given": c.given}
    return {
        "seed": seed, "mode": feed.mode, "effects": effects, "exit": exit_, "context": context,
        "conversation": messages(c.transcript), "unheard": [], "closed": records[-1].event == "Closed",
        "spent": {k: v for k, v in step.ledger.spent.items() if k not in {"seconds", "iterations"} and v},
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
