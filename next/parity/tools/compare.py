"""Compare both sides: `compare.py old.jsonl new.jsonl`. Differences on purpose are masked here, by name."""

# ruff: noqa: T201  # a script beside both editions, no part of either
from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any


def whole(run: dict[str, Any]) -> dict[str, Any]:
    """Messages that no question brought belong to the conversation of the first edition."""
    unheard = [
        {"role": "user", "content": text, "tool_calls": [], "tool_call_id": None} for text in run["held"]
    ]
    run = {**run, "conversation": [*run["conversation"], *unheard]}
    del run["held"]
    run["spent"] = {name: amount for name, amount in run["spent"].items() if amount}
    for view in run["seen"]:
        if isinstance(view, dict):
            # A person's message is in the conversation when the next question brings it, not before.
            view["history"] = [text for text in view["history"] if not text.startswith("note ")]
    return run


def masked(run: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(whole(run))
    text = text.replace("tool calls in it are ignored", "tool calls in the answer are ignored")
    run = json.loads(text)
    exit_ = run["exit"]
    if exit_["reason"] == "limit":
        # The machine no longer writes how it was closed; the limit's words are the kernel's.
        run["context"]["finish"] = exit_["error"] = ""
        run["moves"] = [move for move in run["moves"] if move[1] != "Closed"]
    if old["empty_at"] is not None:
        # An empty reply was a success without an answer; now it is asked for again.
        calls = [n for n, effect in enumerate(run["effects"]) if effect["kind"] == "ask_model"]
        end = calls[old["empty_at"] - 1] + 1
        return {"effects": run["effects"][:end], "seed": run["seed"]}
    return run


seen: Counter[str] = Counter()
bad = 0
with open(sys.argv[1]) as olds, open(sys.argv[2]) as news:
    for line, other in zip(olds, news, strict=True):
        old, new = json.loads(line), json.loads(other)
        a, b = masked(old, old), masked(new, old)
        seen["empty reply" if old["empty_at"] else old["exit"]["reason"]] += 1
        if a != b:
            bad += 1
            if bad <= 3:
                for key in a:
                    if a[key] != b.get(key):
                        print(f"seed {old['seed']} {key}:\n  old {a[key]}\n  new {b.get(key)}")
print("differ:", bad, "of", sum(seen.values()), dict(seen))
sys.exit(bool(bad))
