"""Compare both sides: `compare.py old.jsonl new.jsonl`. Differences on purpose are masked here, by name."""

# ruff: noqa: T201, C901  # a script beside both editions, no part of either
from __future__ import annotations

import json
import re
import sys
from collections import Counter
from itertools import groupby
from typing import Any


def plain(text: str) -> str:
    """Words that were changed: problems of a reply's format, and the reason that a person is shown."""
    text = re.sub(r"(That reply cannot be read: ).*", r"\1...", text)
    text = re.sub(r"(invalid format: ).*", r"\1...", text)
    text = re.sub(r".*(\d+) thoughts were rejected.*", r"\1 thoughts were rejected", text, flags=re.DOTALL)
    return re.sub(r"cost_limit: .*are allowed", "cost_limit", text)


def blocks(messages: list[Any], reminders: bool) -> list[Any]:
    """A question that failed was not said, and a person's message comes before a reminder: so between two
    replies only what was said counts, not its order. Behind a lost reminder of the format none counts."""
    if not reminders:
        messages = [m for m in messages if not m[1].startswith(("That reply cannot", "Your last step was"))]
    found = []
    for assistant, group in groupby(messages, lambda m: m[0] == "assistant"):
        texts = [[role, plain(text)] for role, text in group]
        found.append(texts if assistant else sorted(texts))
    return found


def masked(run: dict[str, Any]) -> dict[str, Any]:
    reminders = not run.pop("lost_reminder")
    for effect in run["effects"]:
        if "messages" in effect:
            effect["messages"] = blocks(effect["messages"], reminders)
            effect["label"] = effect["label"].partition(",")[0]  # labels are unique in a visit now
        if "text" in effect:
            effect["text"] = plain(effect["text"])
    run["conversation"] = blocks([*run["conversation"], *run.pop("held")], reminders)
    if run["conversation"] and run["conversation"][-1][0][0] != "assistant":  # the last question failed
        last = [m for m in run["conversation"].pop() if not m[1].startswith(("That reply", "Your last step"))]
        run["conversation"] += [last] if last else []
    reason = run["exit"]["reason"]
    if reason == "max_transitions":
        del run["conversation"]  # the reply that nothing follows is kept in it now
    exit_ = {key: run["exit"][key] for key in ("reason", "ok", "answer", "raises")}
    if reason not in {"limit", "max_transitions", "cost_limit"}:  # said by the kernel, or as plain numbers
        exit_["error"] = plain(run["exit"]["error"] or "")
    run["exit"] = exit_
    run["reasons"] = [plain(text) for text in run["reasons"]]
    if reason in {"cost_limit", "retries_exhausted", "aborted", "flagged"}:
        run["reasons"][-1] = ""  # the log says the error now, where it said less
    run["reasons"] = ["" if "the step ha" in text else text for text in run["reasons"]]
    # The reason of a retry is kept until a thought passes, not until a step has failed.
    run["meta"] = {
        key: plain(value) if isinstance(value, str) else value
        for key, value in run["meta"].items()
        if value is not None and key != "retry_reason"
    }
    if reason in {"max_transitions", "limit"}:
        del run["meta"]["total_cost"]  # the move that was not made would have written it; the result has it
    run["spent"] = {k: v for k, v in run["spent"].items() if v and k not in {"steps", "seconds"}}
    return run


seen: Counter[str] = Counter()
bad = 0
with open(sys.argv[1]) as olds, open(sys.argv[2]) as news:
    for line, other in zip(olds, news, strict=True):
        a, b = masked(json.loads(line)), masked(json.loads(other))
        seen[a["exit"]["reason"]] += 1
        if a != b:
            bad += 1
            if bad <= 3:
                for key in a:
                    if a[key] != b.get(key):
                        print(f"seed {a['seed']} {key}:\n  old {a[key]}\n  new {b.get(key)}")
print("differ:", bad, "of", sum(seen.values()), dict(seen))
sys.exit(bool(bad))
