# ruff: noqa  # a harness that is deleted together with the first edition
"""Compare both sides: `compare.py old.jsonl new.jsonl`. Differences on purpose are masked here, by name."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

KERNEL = {"PermissionViolation", "InvariantViolation", "InvalidTransition", "EmptyPatch"}
"""Codes whose text is the kernel's."""


def masked(run: dict[str, Any]) -> dict[str, Any]:
    context = run["context"]
    for name in ("material", "notes", "working"):
        context.pop(name, None)
    error_of(context["last_error"])
    error_of(run["exit"]["outcome"]["last_error"])
    run["exit"]["error"] = None if context["last_error"] else run["exit"]["error"]
    for state in (context, run["exit"]["outcome"]):
        # A call's refusal is kept in its output alone; a cut reply is known to the observation.
        for one in (state["action"] or {}).get("requested_tools", ()):
            one.pop("refused", None)
            one.pop("why", None)
        for note in state.get("degrade_events") or (state["degraded"] if isinstance(state["degraded"], list) else ()):
            note["message"] = note["message"].replace("react: react ended", "react ended")
        if state["observation"]:
            state["observation"].pop("cut", None)
    for effect in run["effects"]:
        # Attempts within one visit have labels of their own.
        effect["label"] = effect["label"].partition(", attempt")[0]
        if run["layout"] == "review" and effect.get("role") == "custom" and run["mode"] != "fail" and effect["pass"] == run["most"]:
            # In the last pass a model stage is not offered the way back, and is told that it is the last.
            effect["messages"], effect["schema"] = [], None
        if "messages" in effect:
            # The next stages see that an observation was cut.
            for message in effect["messages"]:
                message[1] = message[1].replace("\nobservation: the reply was cut at the limit of the model's output", "")
    # The error handler has a state of its own before Failed.
    moves = [[s, "Failed" if to == "Failing" else to, why, step] for s, to, why, step in run["moves"] if s != "Failing"]
    # The old log cuts long reasons; the fallback is written on entering Finished, not said by the stage.
    moves = [[s, to, "" if why.startswith("{") or (run["layout"] == "review" and s == "Observing" and step >= run["most"]) or to == "Finished" and context["observation"] and step >= run["most"] else why[:300], step] for s, to, why, step in moves]
    failed = context["lifecycle"] == "Failed" and bool(moves)
    run["moves"] = [m[:2] + m[3:] if failed and m is moves[-1] else m for m in moves]
    if run["layout"] == "free":
        run["moves"] = [[s, to] for s, to, *_ in moves]
    return run


def error_of(error: dict[str, Any] | None) -> None:
    if error is None:
        return
    error["details"].pop("attempts", None)
    if error["message"].startswith("FatalError: the check"):
        error["message"] = "the check of stage"
    error["message"] = error["message"].replace("a int came as a patch", "returned a")
    if error["code"] in KERNEL or "does not fit" in error["message"] or "returned a" in error["message"] and "check" not in error["message"]:
        error["message"] = ""
    if error["code"] == "PreconditionFailed":
        error["message"] = error["message"].partition(" hold")[0]
    if error["message"].startswith("FatalError") or "check of stage" in error["message"]:
        # What a user's function raised is in the message alone.
        error["message"] = "" if "check" in error["message"] else error["message"]
        error["details"].pop("error", None)
        error["details"].pop("type", None)
    if error["code"] in {"limit", "max_transitions"}:
        error["message"] = ""
    error["message"] = error["message"].replace(" wants another pass", " asks for another pass")
    if "handler" in str(error["details"].get("error_handler")) or error["details"].get("error_handler"):
        error["details"]["error_handler"] = "noted"


def first_difference(old: Any, new: Any, where: str = "") -> str:
    if type(old) is type(new) and isinstance(old, dict):
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                return first_difference(old.get(key), new.get(key), f"{where}.{key}")
    if type(old) is type(new) and isinstance(old, list):
        for n, (one, other) in enumerate(zip(old, new)):
            if one != other:
                return first_difference(one, other, f"{where}[{n}]")
        return f"{where}: {len(old)} and {len(new)} items: {str(old[len(new):] or new[len(old):])[:300]}"
    return f"{where}: {str(old)[-600:]!r} and {str(new)[-600:]!r}"


def before_last(run: dict[str, Any], after: int) -> dict[str, Any]:
    """Without the last pass."""
    return {
        "seed": run["seed"],
        "effects": [e for e in run["effects"] if e["pass"] < after],
        "moves": [m for m in run["moves"] if isinstance(m[-1], int) and m[-1] < after],
    }


OBSERVES = {"shipped", "odd", "handler"}
"""Layouts in which the shipped observe stage leads to the end."""
seen: Counter[str] = Counter()
bad = 0
with open(sys.argv[1]) as olds, open(sys.argv[2]) as news:
    for line, other in zip(olds, news, strict=True):
        old, new = masked(json.loads(line)), masked(json.loads(other))
        begun = max([m[-1] for m in old["moves"] if isinstance(m[-1], int)] + [0])
        last = old["mode"] != "fail" and old["context"]["iteration"] + 1 >= old["most"]
        seen[f"{old['layout']}: {old['exit']['reason']}"] += 1
        if last and old["layout"] not in OBSERVES and old["exit"]["reason"] != "answered":
            # Design 9.4: any kind of observer ends the last pass with an answer.
            seen["last pass left out"] += 1
            old, new = before_last(old, old["most"]), before_last(new, old["most"])
        codes = [(run.get("context", {}).get("last_error") or {}).get("code") for run in (old, new)]
        if codes == ["StageError", "PermissionViolation"]:
            # Rights are checked before values (R-002-7, steps 5 and 6).
            for run in (old, new):
                run["context"]["last_error"] = run["exit"]["outcome"]["last_error"] = run["exit"]["raises"] = None
        if old != new:
            bad += 1
            if bad <= 40:
                print("seed", old["seed"], old.get("layout"), first_difference(old, new))
print("differ:", bad, "of", sum(n for k, n in seen.items() if ":" in k), json.dumps(seen, indent=1))
sys.exit(bool(bad))
