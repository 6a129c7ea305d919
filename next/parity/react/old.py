"""The first edition's side; run with PYTHONPATH=/work/main. Prints one JSON line per seed."""

# ruff: noqa: T201, PLR0402, E501  # a script beside both editions, no part of either
from __future__ import annotations

import json
import sys
from typing import Any

from feed import TOOLS, Feed
from workflows.kernel.design import Brief, Parts
from workflows.kernel.rules import Rule

import activities.contracts as contracts
from workflows.kernel import errors
from workflows.kernel import step as engine
from workflows.kernel.ledger import Ledger
from workflows.machines.react import DESIGN

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "person_decided": contracts.PersonDecided,
    "effect_failed": contracts.EffectFailed,
}
EVENTS = {row.event.__name__ for row in DESIGN.build(DESIGN.options(), Parts()).rows}
ENDED = {"NodeFailed", "RuleBroken", "GoalAchieved", "StepLimitReached", "Flagged", "CostLimitExceeded",
         "Aborted", "NobodyToAsk"}  # fmt: skip
NAMES = {**dict.fromkeys(ENDED, "Ended"), "RetriesExhausted": "Escalated"}


def messages(transcript: Any) -> list[Any]:
    return [[m.role, m.content] for m in transcript]


def shown(effect: Any) -> dict[str, Any]:
    if effect.kind == "call_model":
        return {"kind": "ask_model", "messages": messages(effect.transcript), "attempts": effect.attempts,
                "schema": json.loads(json.dumps(effect.response_schema)), "label": effect.label}  # fmt: skip
    if effect.kind == "ask_person":
        return {
            "kind": effect.kind,
            "about": effect.about,
            "text": effect.text,
            "options": list(effect.options),
        }
    return {"kind": effect.kind, "runs": [json.loads(r.model_dump_json()) for r in effect.runs],
            "attempts": effect.attempts}  # fmt: skip


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    options = DESIGN.options.model_validate(feed.options())
    parts = Parts(rules={
        "probe": lambda spec: Rule("probe", "retryable", feed.probe),
        "raises": lambda spec: Rule("raises", "terminal", lambda step, c: feed.raises(errors)),
    })  # fmt: skip
    machine = DESIGN.build(options, parts)
    tools = tuple(contracts.ToolSpec(name=n, description="d", parameters={}) for n in TOOLS)
    brief = Brief("find out", "t1", "Be brief.", tools, values=feed.values())
    step = engine.start(machine, DESIGN.begin(brief, options), now=1.0, ledger=Ledger(caps=feed.caps()))
    effects, records, now = [], list(step.records), 2.0
    while step.effect is not None:
        if text := (feed.person() if step.effect.kind == "call_model" else None):
            assert machine.fold_steer
            patch = machine.fold_steer(step.snapshot.context, text)
            step = engine.reenter(machine, step, engine.Cause("Steered", "ann"), now=now, patch=patch)
            records += step.records
            if step.effect is None:
                break
        effect = step.effect
        effects.append(shown(effect))
        if effect.kind == "call_model":
            given = feed.model()
        elif effect.kind == "ask_person":
            given = feed.decided()
        else:
            given = feed.tools([(r.id, r.tool) for r in effect.runs])
        step = engine.advance(machine, step, ANSWERS[given["kind"]].model_validate(given), now=now)
        records += step.records
        now += 1
    c = step.snapshot.context
    meta = json.loads(json.dumps(c.metadata))
    steps = [json.loads(s.model_dump_json(exclude={"messages"})) for s in c.steps]
    return {
        "seed": seed, "effects": effects, "seen": feed.seen, "lost_reminder": feed.lost_reminder,
        "moves": [[r.state, NAMES.get(r.event, r.event), r.to] for r in records if r.to and r.event in EVENTS],
        "reasons": [r.reason for r in records if r.to and r.event in EVENTS],
        "exit": json.loads(step.exit.model_dump_json()), "meta": meta, "steps": steps,
        "terminated": c.terminated, "cache": list(c.cache.values()), "conversation": messages(c.transcript),
        "held": [], "spent": step.ledger.spent,
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
