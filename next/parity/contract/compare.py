# ruff: noqa  # a harness that is deleted together with the first edition
"""python compare.py OLD.jsonl NEW.jsonl: where the two editions differ beyond what is intended.

Intended, and masked here:
1. Wording: see WORDS (prompts and messages).
2. A question that failed was not said: the first edition's conversation ends with it.
3. In a `map_only` round only the mapping counts: summary, questions and strategy of that decision are not
   kept (R-004-2).
4. `ExitAsked` and `ToolWanted` are `ExitGranted` and `ToolChosen`; `exit` is followed by `end`.
5. How many entries of a list are beyond its cap is not counted: the protocol says how many are read.
6. At the limit of transitions the visit of `exit` counts as a state, as spec 5.13 says.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

WORDS = {
    "What an artifact holds is shown between <<< and >>>; the marks are longer if it holds such marks itself.":
        "The content of an artifact is shown between <<< and >>>; the marks are longer if it contains such marks.",
    "It can only use artifacts that the journal lists, not those of\n  the tool call beside it. `source_path` is "
    "an artifact's id, and behind it a path into a JSON value.\n  A file slot":
        "It can only use artifacts that the journal lists, not those that the\n  tool call in the same answer "
        "will make. `source_path` is an artifact's id, and behind it a path into a\n  JSON value. A file slot",
    "Map the artifacts that are there, and complete.": "Map the artifacts that exist, and complete.",
    "Of this answer only `map_slots` counts.": "Only `map_slots` of this answer counts.",
    "the reply holds no JSON object": "the reply has no JSON object",
    "the reply is no JSON object: ": "the reply cannot be used: it is not JSON: ",
    "is none of call_tool": "; use one of call_tool", "is none of explore": "; use one of explore",
    "the action '": "unknown action '", "the strategy '": "unknown strategy '",
    "the tool call of this round is to make it": "this round's tool call is to make it",
    "the slot takes files and this is none (or a draft)": "the slot takes a file and this is not one",
    "it is no text": "it is not text", "a file that is no text": "a file that is not text",
    "its body is no text any more": "its body is not text any more",
    "cannot be used; it must have letters, digits, blanks and _.@/-, at most 100, and begin":
        "is not valid; use letters, digits, blanks and _.@/-, at most 100; begin",
    "is no word of at most 40 characters": "is not valid; use one word of at most 40 characters",
    "a model or a tool failed for good, or nobody knows what an unsafe tool did":
        "the model or a tool failed for good, or the outcome of an unsafe tool is unknown",
    "the model wanted a tool other than for exploit in an overdraft round":
        "the model wanted a tool in an overdraft round, but not for exploit",
    "; there is tool, open": "; the tools are: tool, open",
}  # fmt: skip
EVENTS = {"ExitAsked": "ExitGranted", "ToolWanted": "ToolChosen"}


def reworded(text: str) -> str:
    for old, new in WORDS.items():
        text = text.replace(old, new).replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    return text.replace("' ; use one of", "'; use one of")


def every(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: every(item, change) for key, item in value.items()}
    return [every(item, change) for item in value] if isinstance(value, list) else value


def uncounted(value: Any) -> None:
    if isinstance(value, dict):
        for name in ("left_out", "more_artifacts"):
            if not value.get(name) or name == "more_artifacts":
                value.pop(name, None)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        uncounted(item)


def masked(one: dict[str, Any], old: bool) -> dict[str, Any]:
    one = every(one, reworded) if old else one
    uncounted(one)
    # A cut event line may end elsewhere once it is reworded.
    one = every(one, lambda text: re.sub(r"(?m)^.{590,} \[\.\.\.\]$", "(cut)", text))
    one["events"] = [[EVENTS.get(event, event), to, why] for event, to, why in one["events"] if to != "end"]
    if one["exit"]["reason"] == "error":
        while one["said"] and one["said"][-1][0] == "user":
            one["said"].pop()
    if one["exit"]["reason"] == "max_transitions":
        del one["exit"]["error"]  # the kernel's wording
    map_only = any("Only `map_slots` of" in e.get("last", ["", ""])[1] for e in one["effects"])
    if map_only:
        for name in ("summary", "questions", "strategy"):
            del one["context"][name]
        for name in ("completion_summary", "clarification_questions", "answer"):
            one["exit"].pop(name, None)
            one["exit"]["outcome"].pop(name, None)
    return one


def first_difference(a: Any, b: Any, path: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
        return first_difference(a.get(keys[0]), b.get(keys[0]), f"{path}.{keys[0]}")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        n = next(n for n in range(len(a)) if a[n] != b[n])
        return first_difference(a[n], b[n], f"{path}[{n}]")
    return f"{path}:\n  old {str(a)[-900:]}\n  new {str(b)[-900:]}"


def main() -> None:
    seen: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    with open(sys.argv[1]) as old_file, open(sys.argv[2]) as new_file:
        for old_line, new_line in zip(old_file, new_file, strict=True):
            old, new = masked(json.loads(old_line), True), masked(json.loads(new_line), False)
            for event, to, _ in new["events"]:
                rows[f"{event} -> {to}"] += 1
            if new["exit"]["reason"] == "max_transitions" != old["exit"]["reason"]:
                seen["masked: at the limit of transitions"] += 1
                continue
            if old != new:
                seen["DIFFERENT"] += 1
                if seen["DIFFERENT"] <= 3:
                    print(old["seed"], first_difference(old, new))
            else:
                seen[new["exit"]["reason"]] += 1
    print(dict(seen), dict(rows), sep="\n")
    sys.exit(bool(seen["DIFFERENT"]))


main()
