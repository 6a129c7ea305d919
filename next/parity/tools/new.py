"""This edition's side; run with PYTHONPATH=/work/main/next. Prints one JSON line per seed."""

# ruff: noqa: T201, PLR0402, E501  # a script beside both editions, no part of either
from __future__ import annotations

import json
import sys
from typing import Any

from feed import TOOLS, Feed

import activities.contracts as contracts
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, RunInput
from workflows.kernel.snapshot import Program, dump
from workflows.kernel.step import advance, load, refuse, start, steer
from workflows.machines.tools import MACHINE

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "effect_failed": contracts.EffectFailed,
}


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


def messages(conversation: Any) -> list[Any]:
    return [m.model_dump(mode="json") for m in conversation]


def shown(step: Any) -> dict[str, Any]:
    effect = step.effect
    if effect.kind == "ask_model":
        whole = [*step.snapshot.conversation, *effect.say]
        return {
            "kind": "ask_model", "messages": messages(whole), "offer": list(effect.offer),
            "tool_choice": effect.tool_choice, "attempts": effect.attempts, "label": effect.label,
        }  # fmt: skip
    runs = [json.loads(run.model_dump_json()) for run in effect.runs]
    return {"kind": "call_tools", "runs": runs, "parallel": effect.parallel, "attempts": effect.attempts}


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    options = feed.options()
    parts = Extensions(policies={"probe": lambda spec: Probe(feed), "raises": lambda spec: Raises()})
    tools = tuple(contracts.ToolSpec(name=n, description="d", parameters={}) for n in TOOLS)
    given_input = RunInput("find out", "t1", "Be brief.", tools, values=feed.values())
    program = Program(MACHINE, given_input, options, parts)
    step = start(program, now=1.0, ledger=Ledger(caps=feed.caps()))
    effects, records, now = [], list(step.records), 2.0
    # A probe draws from the feed, so its visits must not run twice.
    again = seed % 2 and not {"probe"} & {p for p in options["policies"] if isinstance(p, str)}
    while step.effect is not None:
        if step.breach is not None:
            step = refuse(step, now=now)
            records += step.records
            break
        if text := feed.person():
            step = steer(step, contracts.Message(role="user", content=text), now=now, by="ann")
            records += step.records
        if again:
            step = load(program, json.loads(json.dumps(dump(step))))
        effect: Any = step.effect
        effects.append(shown(step))
        given = (
            feed.model() if effect.kind == "ask_model" else feed.tools([(r.id, r.tool) for r in effect.runs])
        )
        step = advance(step, ANSWERS[given["kind"]].model_validate(given), now=now)
        records += step.records
        now += 1
    c: Any = step.snapshot.context
    assert step.exit is not None
    return {
        "seed": seed, "effects": effects, "empty_at": feed.empty_at, "seen": feed.seen,
        "moves": [[r.state, r.event, r.to, r.reason] for r in records[1:] if r.to],
        "exit": json.loads(step.exit.model_dump_json()),
        "context": {"iteration": c.iteration, "policy_memory": c.policy_memory, "finish": c.finish,
                    "policy": c.policy, "error": c.error, "raises": c.raises},
        "conversation": messages(step.snapshot.conversation), "held": [m.content for m in step.snapshot.inbox],
        "spent": {k: v for k, v in step.ledger.spent.items() if k not in {"seconds", "iterations"}},
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
