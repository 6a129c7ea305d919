"""Compare both sides: `compare.py old.jsonl new.jsonl`. Differences on purpose are masked here, by name."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

SUM_UP = "Sum up in plain words"
PREFIXES = ("Agent halted: ", "Execution failed: ", "Policy violation: ", "Tool failure: look: ", "Tool failure: write: ")
REASONS = {"bad_decision": "invalid_decision", "model_failed": "execution_failed", "policy_failed": "hook_failed"}


def words(text: Any, simple: bool) -> Any:
    """Texts for people, as far as both editions say the same."""
    if not isinstance(text, str):
        return text
    text = text.replace("answered a value", "returned a value").replace("the plan does not fit: ", "")
    text = text.replace("; expected None or what is", "; expected None, or what is")
    text = re.sub(r"(must be [^;]*), not .*", r"\1", text)
    if not simple:
        # A call without a name is shown as such.
        return text.replace('requested: (', 'requested: ""(').replace("; (", '; ""(')
    for prefix in PREFIXES:  # without a plan errors are said as with one
        text = text.removeprefix(prefix)
    text = re.sub(r"Tool failure: (\w+): ", "", text)
    text = re.sub(r"Tool not found: (.*); there is .*", r"Unknown tool: \1", text)
    text = re.sub(r"look failed: |write failed: ", "", text)
    return text.split(": 0 are allowed")[0].split(": 1 are allowed")[0].split(": 2 are allowed")[0].split(": 3 are allowed")[0].split(": 50 are allowed")[0]


def everywhere(value: Any, simple: bool) -> Any:
    if isinstance(value, dict):
        return {key: everywhere(item, simple) for key, item in value.items()}
    return [everywhere(item, simple) for item in value] if isinstance(value, list) else words(value, simple)


def talk(messages: list[Any]) -> list[Any]:
    """What people say joins the next question to the conversation; where it is in it is not compared."""
    notes = sorted(m["content"] for m in messages if m["content"].startswith("note "))
    return [[m for m in messages if not m["content"].startswith("note ")], notes]


def masked(run: dict[str, Any], new: bool) -> dict[str, Any]:
    simple = run["mode"] == "simple"
    exit_, context = run["exit"], run["context"]
    outcome = exit_["outcome"]
    for effect in run["effects"]:
        if effect["kind"] != "ask_model":
            continue
        effect["messages"] = talk(effect["messages"])
        if effect["role"] in {"planner", "decide"}:
            effect["messages"] = effect["messages"][0]  # a question beside the conversation is not rewritten
            for message in effect["messages"]:
                message["content"] = message["content"].replace("that will be at hand when", "that will be available when")
        effect["label"] = effect["label"].replace("decide #", "execute #")
    # The question for a summary and its reply are in the conversation, whatever became of it.
    whole = [*run["conversation"], *run["unheard"]]
    cut = next((n for n, m in enumerate(whole) if m["content"].startswith(SUM_UP)), len(whole))
    rest = [m for m in whole[cut:] if m["content"].startswith("note ")]
    run["conversation"] = talk([*whole[:cut], *rest])
    del run["unheard"]
    exit_["reason"] = REASONS.get(exit_["reason"], exit_["reason"])
    if run["closed"]:
        outcome["error"] = exit_["reason"]
        exit_["error"] = ""
    if simple:
        for key in ("goal", "started_at", "fsm_history", "final_message"):
            for place in (context["state"], outcome["state"], outcome):
                place.pop(key, None)
        if exit_["error"]:  # the last step's error is its result
            outcome["result"] = None
        if exit_["reason"] == "hook_failed":  # what the tool returned is in the audit; the error is not
            if not new:
                context["observations"][-1]["result"] = None
                # Results were lost from the state.
                outcome["state"] = context["state"] = None
            else:
                context["observations"][-1]["result"] = outcome["state"] = context["state"] = None
        outcome["audit"] = context["observations"]
    else:
        if not new:
            outcome["audit"] = [outcome["audit"]]
        outcome["audit"] = [{**a, "result": None} for a in outcome["audit"]]
        outcome["state"]["pending_tool_calls"] = None
    run["exit"] = exit_
    return everywhere(run, simple)


def asked_after_refusal(new: dict[str, Any]) -> bool:
    """Convergence is asked after a step whose tool a person refused, too: a hook that fails ends the run there."""
    steps = new["context"]["observations"]
    return new["exit"]["reason"] == "hook_failed" and steps[-1].get("result") == {"error": "ann rejected it"}


seen: Counter[str] = Counter()
bad = 0
with open(sys.argv[1]) as olds, open(sys.argv[2]) as news:
    for line, other in zip(olds, news, strict=True):
        old, new = json.loads(line), json.loads(other)
        seen[f"{old['mode']} {new['exit']['reason']}"] += 1
        if new["mode"] == "simple" and asked_after_refusal(new):
            seen["(hook failed after a refusal)"] += 1
            if "converged" in new["exit"]["error"]:
                kinds = [effect["kind"] for effect in new["effects"]]
                assert kinds == [effect["kind"] for effect in old["effects"]][: len(kinds)]
                continue
        a, b = masked(old, False), masked(new, True)
        if a != b:
            bad += 1
            if bad <= 4:
                for key in a:
                    if a[key] != b.get(key):
                        print(f"seed {old['seed']} {old['mode']} {key}:\n  old {a[key]}\n  new {b.get(key)}")
print("differ:", bad, "of", sum(seen.values()))
for name, count in sorted(seen.items()):
    print(f"  {name}: {count}")
sys.exit(bool(bad))
