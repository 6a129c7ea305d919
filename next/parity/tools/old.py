"""The first edition's side; run with PYTHONPATH=/work/main. Prints one JSON line per seed."""

# ruff: noqa: T201, PLR0402  # a script beside both editions, no part of either
from __future__ import annotations

import json
import sys
from typing import Any

from feed import TOOLS, Feed
from workflows.kernel.design import Brief, Parts

import activities.contracts as contracts
from workflows.kernel import step as engine
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.ledger import Ledger
from workflows.machines.tools import DESIGN

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "effect_failed": contracts.EffectFailed,
}
EVENTS = {row.event.__name__ for row in DESIGN.build(DESIGN.options(), Parts()).rows}


class Probe:
    def __init__(self, feed: Feed) -> None:
        self.should_stop, self.on_iteration_complete = feed.probe, feed.memory


class Raises:
    def should_stop(self, context: Any) -> bool:
        if context["iteration"] >= 1:
            raise PolicyViolation("no more")
        return False

    def on_iteration_complete(self, context: Any, result: str) -> None:
        return None


def messages(transcript: Any) -> list[Any]:
    return [m.model_dump(mode="json") for m in transcript]


def shown(effect: Any) -> dict[str, Any]:
    if effect.kind == "call_model":
        return {
            "kind": "ask_model", "messages": messages(effect.transcript), "offer": list(effect.offer),
            "tool_choice": effect.tool_choice, "attempts": effect.attempts, "label": effect.label,
        }  # fmt: skip
    runs = [json.loads(run.model_dump_json()) for run in effect.runs]
    return {"kind": "call_tools", "runs": runs, "parallel": effect.parallel, "attempts": effect.attempts}


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    options = DESIGN.options.model_validate(feed.options())
    parts = Parts(policies={"probe": lambda spec: Probe(feed), "raises": lambda spec: Raises()})
    machine = DESIGN.build(options, parts)
    tools = tuple(contracts.ToolSpec(name=n, description="d", parameters={}) for n in TOOLS)
    brief = Brief("find out", "t1", "Be brief.", tools, values=feed.values())
    step = engine.start(machine, DESIGN.begin(brief, options), now=1.0, ledger=Ledger(caps=feed.caps()))
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
        given = (
            feed.model() if effect.kind == "call_model" else feed.tools([(r.id, r.tool) for r in effect.runs])
        )
        step = engine.advance(machine, step, ANSWERS[given["kind"]].model_validate(given), now=now)
        records += step.records
        now += 1
    c = step.snapshot.context
    return {
        "seed": seed, "effects": effects, "empty_at": feed.empty_at, "seen": feed.seen,
        "moves": [[r.state, r.event, r.to, r.reason] for r in records if r.to and r.event in EVENTS],
        "exit": json.loads(step.exit.model_dump_json()),
        "context": {"iteration": c.iteration, "policy_memory": json.loads(json.dumps(c.policy_memory)),
                    "finish": c.finish or "", "policy": c.policy, "error": c.error, "raises": c.raises},
        "conversation": messages(c.transcript), "held": list(c.held),
        "spent": {k: v for k, v in step.ledger.spent.items() if k not in {"seconds", "iterations"}},
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
