"""The first edition's side; run with PYTHONPATH=/work/main. Prints one JSON line per seed."""

from __future__ import annotations

import json
import sys
from typing import Any

from activities.contracts_code import CodeStepped
from feed import TOOLS, Feed
from workflows.kernel.design import Brief, Parts

import activities.contracts as contracts
from workflows.kernel import step as engine
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.ledger import Ledger
from workflows.machines.code import DESIGN

ANSWERS: dict[str, Any] = {
    "model_replied": contracts.ModelReplied,
    "tools_returned": contracts.ToolsReturned,
    "machine_ended": contracts.MachineEnded,
    "code_stepped": CodeStepped,
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
    return [[m.role, m.content] for m in transcript]


def plain(call: Any) -> dict[str, Any]:
    return {"ask": messages(call.transcript), "role": call.role, "attempts": call.attempts}


def shown(effect: Any, main: bool) -> list[dict[str, Any]]:
    """The effect, or its members."""
    if effect.kind == "call_model":
        return [{**plain(effect), "main": main}]
    if effect.kind == "call_models":
        return [{**plain(call), "main": False} for call in effect.calls]
    given = json.loads(effect.model_dump_json())
    if effect.kind == "run_machine":
        given["give"] = given.pop("tools_given")
        given = {name: given[name] for name in ("kind", "machine", "goal", "options", "give", "roles", "limits")}
    if effect.kind == "run_code":
        given["material"] = given.pop("context")
        del given["label"]
    if effect.kind == "call_tools":
        given = {"runs": given["runs"], "attempts": given["attempts"]}
    return [given]


def answer(effect: Any, main: bool, feed: Feed) -> Any:
    if effect.kind == "call_models":
        replies = [feed.sub_query(False) for _ in effect.calls]
        return contracts.ModelsReplied(replies=tuple(ANSWERS[r["kind"]].model_validate(r) for r in replies))
    if effect.kind == "call_model":
        given = feed.model() if main else feed.sub_query(False)
    elif effect.kind == "run_machine":
        given = feed.sub_query(True)
    elif effect.kind == "run_code":
        given = feed.code(effect)
    else:
        given = feed.tool(effect.runs[0].id, effect.runs[0].tool)
    return ANSWERS[given["kind"]].model_validate(given)


def run(seed: int) -> dict[str, Any]:
    feed = Feed(seed)
    options = DESIGN.options.model_validate(feed.given)
    parts = Parts(
        policies={"probe": lambda spec: Probe(feed), "raises": lambda spec: Raises()}, hooks={"some": feed.nests}
    )
    machine = DESIGN.build(options, parts)
    tools = tuple(
        contracts.ToolSpec(name=n, description="d", parameters={"type": "object", "properties": p})
        for n, p in TOOLS.items()
    )
    given = feed.input()
    material = given.pop("material")
    material = contracts.ContextRef(**material) if isinstance(material, dict) else material
    brief = Brief("Which one?", "t1", tools=tools, context=material, **given)
    step = engine.start(machine, DESIGN.begin(brief, options), now=1.0, ledger=Ledger(caps=feed.caps()))
    effects: list[Any] = []
    records, now = list(step.records), 2.0
    while step.effect is not None:
        c: Any = step.snapshot.context
        where = step.snapshot.state.value
        stage = c.place.stage if where == "EXECUTING" else ""
        main = where in ("INIT", "SHALLOW_CALL") or stage in ("reply", "forced")
        effect: Any = step.effect
        asks = effect.kind == "call_model" and main
        if where != "PROMPTING" and (asks or effect.kind == "run_code") and (text := feed.person()):
            assert machine.fold_steer
            patch = machine.fold_steer(c, text)
            step = engine.reenter(machine, step, engine.Cause("Steered", "ann"), now=now, patch=patch)
            records += step.records
            effect = step.effect
        effects += shown(effect, main)
        step = engine.advance(machine, step, answer(effect, main, feed), now=now)
        records += step.records
        now += 1
    c = step.snapshot.context
    assert step.exit is not None
    return {
        "seed": seed, "effects": effects, "seen": feed.seen, "options": feed.given,
        "moves": [[r.state, r.event, r.to, r.reason] for r in records if r.to and r.event in EVENTS],
        "exit": json.loads(step.exit.model_dump_json()),
        "context": {
            "iteration": c.iteration, "policy_memory": json.loads(json.dumps(c.policy_memory)), "cut": c.cut,
            "finish": c.finish or "", "policy": c.policy, "error": c.error, "raises": c.raises,
            "answer": c.answer, "outcome_unknown": c.unsure, "tokens": c.tokens, "reaches": c.reaches,
            "last_result": c.last_result, "run_bytes": c.run_bytes, "dropped": c.dropped,
        },
        "conversation": messages(c.transcript),
        "spent": {k: round(v, 6) for k, v in step.ledger.spent.items() if v and k not in {"seconds", "iterations"}},
    }  # fmt: skip


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)))
