"""Compare both sides: `compare.py old.jsonl new.jsonl`. Differences on purpose are masked here, by name."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

WORDS = {
    # prompts
    "The clock stands still, and\nchance has a fixed seed. Code that computes longer than":
        "The clock does not move, and\nrandom numbers have a fixed seed. A block that computes longer than",
    " s by the clock, or takes too much\nmemory, is stopped, and so is a block with more than ":
        " s by the clock, takes too\nmuch memory, or makes more than ",
    " calls of what is outside: models and tools.\n": " calls of models and tools is stopped.\n",
    "with what a variable holds.": "with the value of a variable.",
    "in order from the character start on": "in order, from the character start on",
    "characters; search on from behind the last one for more.":
        "characters; for more, search again from the end of the last one.",
    # nested ones are asked side by side, too
    "Those that become runs of their own are asked one after the other.":
        "They are asked side by side, so it is quicker than a loop.",
    "The iterations are used up.": "All replies are used.",
    "The last repl block is not closed, so it was not run": "The last repl block has no end, so it was not run",
    "; the variables of your blocks are still there]": "]",
    # errors
    "the reply was cut at its length limit (`max_output_tokens`)":
        "the reply was cut off at the limit of the model's output (`max_output_tokens`)",
    "nobody knows what a tool of code did": "the outcome of a tool of code is unknown",
}  # fmt: skip
COMPRESSED = "\n\nWhen the conversation gets long, you are no longer shown its older messages; variables stay."
FINAL_REQUEST = "All replies are used. Answer now"
rows: Counter[str] = Counter()


def lean(value: Any) -> Any:
    """Without people's messages (they join the conversation with the next question now, not at once)."""
    if isinstance(value, list):
        return [lean(item) for item in value if not (isinstance(item, list) and str(item[-1]).startswith("note "))]
    return {name: lean(item) for name, item in value.items()} if isinstance(value, dict) else value


def every(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: every(item, change) for key, item in value.items()}
    return [every(item, change) for item in value] if isinstance(value, list) else value


def reworded(text: str) -> str:
    for old, new in WORDS.items():
        text = text.replace(old, new)
    return text


def masked(run: dict[str, Any], old: dict[str, Any], *, first: bool) -> dict[str, Any]:
    run = lean(every(run, reworded) if first else every(run, lambda text: text.replace(COMPRESSED, "")))
    # A block is a visit of its own. The first edition's kernel cut long reasons.
    run["moves"] = [[*move[:3], move[3][:500]] for move in run["moves"] if move[1] != "BlockRan"]
    context, exit_, conversation = run["context"], run["exit"], run["conversation"]
    # Up to the first two nothing is left out.
    context["dropped"] = max(context["dropped"], 2)
    if exit_["reason"] in ("failed", "limit"):
        # A question that failed was not said. What a block has sent is kept when it
        # ends, and what a complete iteration brought whatever comes next.
        if conversation[-1][1].startswith(FINAL_REQUEST):
            conversation.pop()
        del context["run_bytes"], context["dropped"], context["last_result"], context["answer"]
    if exit_["reason"] == "limit":
        # The machine no longer writes how it was closed; the limit's words are the kernel's.
        context["finish"] = exit_["error"] = ""
        run["moves"] = [move for move in run["moves"] if move[1] != "Closed"]
    if exit_["reason"] in ("shallow", "max_iterations") and not (exit_["answer"] or "").strip():
        # An empty reply is no success, and the error names it.
        exit_["ok"] = False
        exit_["error"] = None
    if exit_["reason"] == "failed" and exit_["outcome"].get("unknown_outcome"):
        # Questions side by side were one after the other when they are runs: those after the lost one.
        run["effects"] = run["effects"][: len(old["effects"])]
        del run["spent"]
    return run


def first_difference(a: Any, b: Any, path: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
        return first_difference(a.get(keys[0]), b.get(keys[0]), f"{path}.{keys[0]}")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        n = next(n for n in range(len(a)) if a[n] != b[n])
        return first_difference(a[n], b[n], f"{path}[{n}]")
    return f"{path}:\n  old {str(a)[-700:]}\n  new {str(b)[-700:]}"


def main() -> None:
    seen: Counter[str] = Counter()
    bad = 0
    with open(sys.argv[1]) as olds, open(sys.argv[2]) as news:
        for line, other in zip(olds, news, strict=True):
            old, new = json.loads(line), json.loads(other)
            a, b = masked(old, old, first=True), masked(new, old, first=False)
            seen[old["exit"]["reason"]] += 1
            for state, event, to, _ in new["moves"]:
                rows[f"{state} {event} {to}"] += 1
            if a != b:
                bad += 1
                if bad <= 4:
                    print(f"seed {old['seed']} {first_difference(a, b)}")
    print("differ:", bad, "of", sum(seen.values()), dict(seen), *sorted(rows), sep="\n")
    sys.exit(bool(bad))


main()
