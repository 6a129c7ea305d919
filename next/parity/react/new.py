"""This edition's side; run with PYTHONPATH=/work/main/next. Prints one JSON line per seed."""

# ruff: noqa: T201, PLR0402  # a script beside both editions, no part of either
from __future__ import annotations

import json
import sys
from typing import Any

from feed import TOOLS, Feed

import activities.contracts as contracts
from workflows.kernel import errors
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, RunInput
from workflows.kernel.snapshot import Program, dump
from workflows.kernel.step import advance, load, refuse, start, steer
from workflows.machines.react import MACHINE, Rule

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "person_decided": contracts.PersonDecided,
    "effect_failed": contracts.EffectFailed,
}


def messages(conversation: Any) -> list[Any]:
    return [[m.role, m.content] for m in conversation]


def shown(step: Any) -> dict[str, Any]:
    effect = step.effect
    if effect.kind == "ask_model":
        whole = [*step.snapshot.conversation, *effect.say]
        return {"kind": "ask_model", "messages": messages(whole), "attempts": effect.attempts,
                "schema": effect.response_schema, "label": effect.label}  # fmt: skip
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
    options = feed.options()
    parts = Extensions(rules={
        "probe": lambda spec: Rule("probe", "retryable", feed.probe),
        "raises": lambda spec: Rule("raises", "terminal", lambda step, c: feed.raises(errors)),
    })  # fmt: skip
    tools = tuple(contracts.ToolSpec(name=n, description="d", parameters={}) for n in TOOLS)
    program = Program(
        MACHINE, RunInput("find out", "t1", "Be brief.", tools, values=feed.values()), options, parts
    )
    step = start(program, now=1.0, ledger=Ledger(caps=feed.caps()))
    effects, records, now = [], list(step.records), 2.0
    while step.effect is not None:
        if step.breach is not None:
            step = refuse(step, now=now)
            records += step.records
            break
        if text := (feed.person() if step.effect.kind == "ask_model" else None):
            step = steer(step, contracts.Message(role="user", content=text), now=now, by="ann")
            records += step.records
        if seed % 2:
            step = load(program, json.loads(json.dumps(dump(step))))
        effect: Any = step.effect
        effects.append(shown(step))
        if effect.kind == "ask_model":
            given = feed.model()
        elif effect.kind == "ask_person":
            given = feed.decided()
        else:
            given = feed.tools([(r.id, r.tool) for r in effect.runs])
        step = advance(step, ANSWERS[given["kind"]].model_validate(given), now=now)
        records += step.records
        now += 1
    c: Any = step.snapshot.context
    assert step.exit is not None
    return {
        "seed": seed, "effects": effects, "seen": feed.seen, "lost_reminder": feed.lost_reminder,
        "moves": [[r.state, r.event, r.to] for r in records[1:] if r.to],
        "reasons": [r.reason for r in records[1:] if r.to],
        "exit": json.loads(step.exit.model_dump_json()), "meta": dict(c.metadata),
        "steps": [json.loads(s.model_dump_json()) for s in c.steps], "terminated": c.terminated,
        "cache": [reply.text for reply in c.cache.values()],
        "conversation": messages(step.snapshot.conversation), "held": messages(step.snapshot.inbox),
        "spent": step.ledger.spent,
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
