"""This edition's side; run with PYTHONPATH=/work/main/next. Prints one JSON line per seed."""

from __future__ import annotations

import json
import sys
from typing import Any

from feed import TOOLS, Feed

import activities.contracts as contracts
from activities.provider import ModelCall
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, RunInput
from workflows.kernel.snapshot import Program, dump
from workflows.kernel.step import advance, load, refuse, start, steer
from workflows.machines.code import MACHINE

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "machine_ended": contracts.MachineEnded,
    "code_stepped": contracts.CodeStepped,
    "effect_failed": contracts.EffectFailed,
}
SETUP = contracts.Setup(model=contracts.ModelSpec())


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
    return [[m.role, m.content] for m in conversation]


def shown(step: Any, effect: Any) -> list[dict[str, Any]]:
    """The effect, or its members."""
    if effect.kind == "together":
        return [one for member in effect.effects for one in shown(step, member)]
    if effect.kind == "ask_model":
        whole = effect.say if effect.beside else (*step.snapshot.conversation, *effect.say)
        sent = ModelCall(setup=SETUP, conversation=contracts.Conversation(whole), skip=effect.skip).messages
        more = {"role": effect.role, "attempts": effect.attempts, "main": not effect.beside}
        return [{"ask": messages(sent), **more}]
    given = json.loads(effect.model_dump_json())
    if effect.kind == "run_machine":
        given = {name: given[name] for name in ("kind", "machine", "goal", "options", "give", "roles", "limits")}
    if effect.kind == "run_code":
        del given["label"]
    if effect.kind == "call_tools":
        given = {"runs": given["runs"], "attempts": given["attempts"]}
    return [given]


def answer(effect: Any, feed: Feed) -> Any:
    if effect.kind == "together":
        return contracts.Answers(answers=tuple(answer(member, feed) for member in effect.effects))
    if effect.kind == "ask_model":
        given = feed.sub_query(False) if effect.beside else feed.model()
    elif effect.kind == "run_machine":
        given = feed.sub_query(True)
    elif effect.kind == "run_code":
        given = feed.code(effect)
    else:
        given = feed.tool(effect.runs[0].id, effect.runs[0].tool)
    return ANSWERS[given["kind"]].model_validate(given)


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    parts = Extensions(
        policies={"probe": lambda spec: Probe(feed), "raises": lambda spec: Raises()}, hooks={"some": feed.nests}
    )
    tools = tuple(
        contracts.ToolSpec(name=n, description="d", parameters={"type": "object", "properties": p})
        for n, p in TOOLS.items()
    )
    given = feed.input()
    material = given.pop("material")
    material = contracts.MaterialRef(**material) if isinstance(material, dict) else material
    program = Program(
        MACHINE, RunInput("Which one?", "t1", tools=tools, material=material, **given), feed.given, parts
    )
    step = start(program, now=1.0, ledger=Ledger(caps=feed.caps()))
    effects: list[Any] = []
    records, now = list(step.records), 2.0
    # A probe draws from the feed, so its visits must not run twice.
    again = seed % 2 and "probe" not in feed.given["policies"]
    while step.effect is not None:
        if step.breach is not None:
            step = refuse(step, now=now)
            records += step.records
            break
        effect: Any = step.effect
        asks = effect.kind == "ask_model" and not effect.beside
        where = step.snapshot.state
        if where != "PROMPTING" and (asks or effect.kind == "run_code") and (text := feed.person()):
            step = steer(step, contracts.Message(role="user", content=text), now=now, by="ann")
            records += step.records
        if again:
            step = load(program, json.loads(json.dumps(dump(step))))
        effect = step.effect
        effects += shown(step, effect)
        step = advance(step, answer(effect, feed), now=now)
        records += step.records
        now += 1
    c: Any = step.snapshot.context
    assert step.exit is not None
    fields = (
        "iteration", "policy_memory", "cut", "finish", "policy", "error", "raises", "answer", "outcome_unknown",
        "tokens", "reaches", "last_result", "run_bytes", "dropped",
    )  # fmt: skip
    return {
        "seed": seed, "effects": effects, "seen": feed.seen, "options": feed.given,
        "moves": [[r.state, r.event, r.to, r.reason] for r in records[1:] if r.to],
        "exit": json.loads(step.exit.model_dump_json()),
        "context": {name: getattr(c, name) for name in fields},
        "conversation": messages(step.snapshot.conversation),
        "spent": {k: round(v, 6) for k, v in step.ledger.spent.items() if v and k not in {"seconds", "iterations"}},
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
