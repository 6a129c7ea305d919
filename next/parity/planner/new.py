"""This edition's side; run with PYTHONPATH=/work/main/next. Prints one JSON line per seed."""

from __future__ import annotations

import json
import sys
from typing import Any

from feed import HOOKS, TOOLS, Feed

import activities.contracts as contracts
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, RunInput
from workflows.kernel.snapshot import Program, dump
from workflows.kernel.step import advance, load, refuse, start, steer
from workflows.machines.planner import MACHINE

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "effect_failed": contracts.EffectFailed,
}


def messages(conversation: Any) -> list[Any]:
    return [m.model_dump(mode="json") for m in conversation]


def shown(step: Any) -> dict[str, Any]:
    effect = step.effect
    if effect.kind == "ask_model":
        assert effect.attempts == contracts.MODEL_ATTEMPTS
        whole = effect.say if effect.beside else [*step.snapshot.conversation, *effect.say]
        return {
            "kind": "ask_model", "role": effect.role, "messages": messages(whole),
            "offer": list(effect.offer), "label": effect.label, "schema": effect.response_schema,
        }  # fmt: skip
    return {"kind": "call_tools", "runs": [json.loads(run.model_dump_json()) for run in effect.runs], "attempts": effect.attempts}


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    options = {**feed.options(), "mode": feed.mode}
    tools = tuple(contracts.ToolSpec(name=n, description=f"does {n}", parameters={"properties": {"q": {}}}) for n in TOOLS)
    program = Program(MACHINE, RunInput(feed.goal, "t1", feed.instructions, tools), options, Extensions(hooks=HOOKS))
    step = start(program, now=1.0, ledger=Ledger(caps=feed.caps()))
    effects, records, now = [], list(step.records), 2.0
    while step.effect is not None:
        if step.breach is not None:
            step = refuse(step, now=now)
            records += step.records
            break
        if text := feed.person():
            step = steer(step, contracts.Message(role="user", content=text), now=now, by="ann")
            records += step.records
        if seed % 2:
            step = load(program, json.loads(json.dumps(dump(step))))
        effect: Any = step.effect
        effects.append(shown(step))
        answer = feed.model(effect.role) if effect.kind == "ask_model" else feed.tool(effect.runs[0].id, effect.runs[0].tool)
        step = advance(step, ANSWERS[answer["kind"]].model_validate(answer), now=now)
        records += step.records
        now += 1
    c: Any = step.snapshot.context
    assert step.exit is not None
    context = {"marks": list(c.marks), "iteration": c.iteration, "state": c.state, "observations": list(c.observations)}
    context |= {"history": list(c.history), "summary_error": c.summary_error} if feed.mode == "plan" else {"given": c.given}
    return {
        "seed": seed, "mode": feed.mode, "effects": effects, "exit": json.loads(step.exit.model_dump_json()),
        "context": context, "conversation": messages(step.snapshot.conversation),
        "unheard": messages(step.snapshot.inbox), "closed": records[-1].event == "Closed",
        "spent": {k: v for k, v in step.ledger.spent.items() if k not in {"seconds"} and v},
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
