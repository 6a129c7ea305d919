# ruff: noqa  # a harness that is deleted together with the first edition
"""What both editions are given: options, hooks and answers, drawn from one seed."""

from __future__ import annotations

import json
import random
from typing import Any

TOOLS = ("tool", "search")
OUTPUTS = ["found", "", "l1\nl2", '{"x": 1}', "ü", "z" * 300]
ARGUMENTS = ['{"q": 1}', '{"q": "x"}', "{bad", "", "null", "[1]", '{"a": NaN}', "```\n{}\n```"]
BASE = {
    "think": {"flow_type": "think", "enters": "Thinking", "exits": ["Acting", "Observing"]},
    "act": {"flow_type": "act", "enters": "Acting", "exits": ["Observing"]},
    "observe": {"flow_type": "observe", "enters": "Observing", "exits": ["Finished", "Thinking"]},
}
CHECK = {
    "flow_type": "model", "enters": "Checking", "exits": ["Finished", "Thinking"], "reads": ["observation", "extensions"],
    "writes": ["extensions"], "extension": {"verdict": "is it so?"},
}  # fmt: skip


def stages(**changed: Any) -> list[dict[str, Any]]:
    declared = {name: dict(keys) for name, keys in BASE.items()}
    for name, keys in changed.items():
        declared[name] = {**declared.get(name, {}), **(keys or {})}
    return [{"name": name, **keys} for name, keys in declared.items() if changed.get(name, keys) is not None]


class Feed:
    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.hooks: dict[str, Any] = {}
        self.layout, self.stages = self._stages()

    def hook(self, name: str, *choices: Any) -> str:
        """A pure function: what it returns hangs on the pass alone."""
        by_pass = [self.r.choice(choices) for _ in range(4)]

        def called(view: Any) -> Any:
            made = by_pass[min(view.iteration, 3)]
            return made(view) if callable(made) else made

        self.hooks[name] = called
        return name

    def _stages(self) -> tuple[str, Any]:
        r = self.r
        layout = r.choice(["shipped"] * 4 + ["review", "hook", "inner", "own", "odd", "handler", "free"])
        done = {"summary": "s", "final_answer": "42", "need_loop": False}
        half = {"summary": "s", "final_answer": "", "need_loop": True}
        if layout == "review":
            more = {"writes": ["observation", "extensions"]} if r.random() < 0.5 else {}
            return layout, stages(observe={"exits": ["Checking", "Thinking"]}, check={**CHECK, **more})
        if layout == "hook":
            name = self.hook(
                "observe", ({"observation": done}, "Finished"), ({"observation": half}, "Thinking"),
                {"observation": half, "lifecycle": "Thinking"}, ({"observation": done}, "Failed"),
                ({"observation": done, "lifecycle": "Thinking"}, "Finished"), {"observation": done},
                ({"observation": 7}, "Finished"), ({"thought": None}, "Thinking"), None, {}, 7, ({}, "Acting"),
                ({"observation": half}, "Finished"), lambda view: 1 / 0, lambda view: view.user_input,
                ({"extensions": {"a": {"b": [1]}}, "observation": half}, "Thinking"),
                lambda view: ({"extensions": {f"p{view.iteration}": {"n": view.iteration}}}, "Thinking"),
                lambda view: ({"extensions": {"deep": {str(view.iteration): True}}}, "Thinking"),
            )  # fmt: skip
            check = self.hook("check", True, True, True, True, "", False, "not now", 7)
            keys = {"flow_type": "hook", "hook": name, "check": check, "reads": ["thought", "iteration"], "writes": ["observation", "extensions"]}
            return layout, stages(observe=keys)
        if layout == "inner":
            merge = r.choice(["action", "observation", "extensions"])
            inner = {"flow_type": "machine", "reads": ["thought", "user_input"], "writes": [merge], "prompt": "Look."}
            inner["inner"] = {"name": "react", "options": {"max_steps": 3}, "merge": merge, "instructions": "i"}
            if merge == "action":
                return layout, stages(act={**inner, "tools": ["tool"]})
            if merge == "observation":
                return layout, stages(observe={**inner, "exits": [r.choice(["Finished", "Checking"])]}, **({"check": CHECK} if False else {})) if False else stages(observe={**inner, "exits": ["Finished"]})
            return layout, stages(
                think={"exits": ["Looking"]}, act=None, observe={"reads": ["thought", "extensions"]},
                look={**inner, "enters": "Looking", "exits": ["Observing"]},
            )  # fmt: skip
        if layout == "own":
            draft = self.hook("draft", {"observation": done}, {"observation": half}, {"observation": {**half, "summary": ""}})
            check = self.hook("own", {"lifecycle": "Finished"}, {"lifecycle": "Drafting"}, {"lifecycle": "Drafting"})
            return layout, [
                {"name": "draft", "flow_type": "hook", "hook": draft, "enters": "Drafting", "exits": ["Checking"], "writes": ["observation"], "reads": ["iteration"]},
                {"name": "check", "flow_type": "hook", "hook": check, "enters": "Checking", "exits": ["Finished", "Drafting"], "reads": ["iteration"]},
            ]
        if layout == "odd":
            changed = r.choice([
                {"think": {"exits": ["Acting"]}}, {"act": {"tools": ["search"]}}, {"think": {"tools": ["tool"], "role": "custom"}},
                {"think": {"writes": []}}, {"act": {"reads": ["iteration"]}}, {"observe": {"prompt": "Sum up."}},
                {"observe": {"exits": ["Finished"]}}, {"think": {"exits": ["Observing", "Acting"]}},
            ])  # fmt: skip
            return layout, stages(**changed)
        if layout == "handler":
            name = self.hook("rescue", {"message": "sorry"}, {"details": {"t": 1}}, None, {"code": None}, 7, lambda v: 1 / 0, {"stage": "x"})
            return layout, stages(rescue={"flow_type": "error_handler", "enters": "Failed", "hook": name})
        if layout == "free":
            name = self.hook("free", ({"observation": done, "thought": None}, "Finished"), ({"observation": half, "action": None}, "Thinking"))
            keys = {"flow_type": "hook", "hook": name, "writes": ["observation"], "enforce": False}
            return layout, stages(observe=keys)
        return layout, None

    def options(self) -> dict[str, Any]:
        r = self.r
        given = {
            "max_iterations": r.choice([1, 2, 3, 10]),
            "on_max_iterations": r.choice(["force_answer", "fail", "last_observation"]),
            "raise_on_failure": r.random() < 0.3,
            "max_model_attempts": r.randint(1, 6),
            "max_tool_attempts": r.randint(1, 3),
            "max_format_attempts": r.choice([1, 1, 2, 3]),
        }
        return {**given, **({"stages": self.stages} if self.stages else {})}

    def caps(self) -> dict[str, float]:
        return {"model_calls": self.r.choice([1, 2, 3])} if self.r.random() < 0.05 else {}

    def failed(self) -> dict[str, Any]:
        error = self.r.choice(["transient", "recoverable", "fatal", "unknown_outcome"])
        return {"kind": "effect_failed", "error": error, "type": "HTTP500", "message": "no", "attempts": 1}

    def model(self, role: str, schema: Any) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.03:
            return self.failed()
        calls: list[Any] = []
        odd = ["", "?", "{}", "[1]", '{"x": 1}', '{"summary": NaN}', "so {it} is", '{"final_answer": "\\ud800"}']
        if role == "act":
            for n in range(r.choice([1, 1, 1, 2, 3]) if r.random() < 0.9 else r.choice([0, 60])):
                name = r.choice([*["tool"] * 6, "search", "nope", "x" * 80])
                calls.append({"id": f"c{n}", "name": name, "arguments": r.choice(ARGUMENTS)})
            text = r.choice(["", "I call"])
        elif r.random() < 0.06:
            text = r.choice(odd)
        elif schema and "intent" in schema["properties"]:
            names = r.choice([[], ["tool"], ["tool"], ["tool", "search"], ["nope"], ["nope", "tool"], "tool", [1], None, ["z" * 80]] if r.random() < 0.5 else [["tool"], []])
            intent = r.choice([*["diagnosis"] * 12, *["Information retrieval"] * 4, *["general_inquiry"] * 3, "fishing", None])
            text = json.dumps({"intent": intent, "suggested_tools": names, "reasoning": r.choice(["find x", "", None, 7])})
        elif schema and "summary" in schema["properties"]:
            answer = r.choice(["", "", "42", {"n": 1}, None])
            text = json.dumps({"summary": r.choice(["so far", "", "nearly"]), "final_answer": answer, "need_loop": r.choice([True, True, False, "no", 1])})
        else:
            fields = {"lifecycle": r.choice(["Finished", "Thinking", "Thinking", "Acting", 7, None]), "extensions": r.choice([{"verdict": "yes"}, {"verdict": ["a"]}, {}, 7, {"other": "x"}])}
            if r.random() < 0.3:
                fields["observation"] = {"summary": "r", "final_answer": r.choice(["43", ""]), "need_loop": False}
            if r.random() < 0.05:
                fields["thought"] = None
            text = json.dumps({k: v for k, v in fields.items() if v is not None})
        if r.random() < 0.1:
            text = f"Here: ```json\n{text}\n```"
        finish = "length" if r.random() < 0.08 else "stop"
        return {"kind": "model_replied", "text": text, "tool_calls": calls, "cost_usd": 0.01, "finish_reason": finish}

    def tools(self, runs: list[tuple[str, str]]) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.03:
            return self.failed()
        results = []
        for id_, name in runs:
            error = r.choice([*[None] * 30, "failed", "timeout", "bad_arguments", "rejected", "expired", "unknown_tool", "unknown_outcome"])
            results.append({"id": id_, "tool": name, "output": r.choice(OUTPUTS), "error": error})
            if error in {"unknown_outcome", "unknown_tool"}:
                break
        return {"kind": "tools_returned", "results": results}

    def inner(self) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.1:
            return self.failed()
        ok = r.random() < 0.8
        return {
            "kind": "machine_ended", "machine": "react", "ok": ok, "exit_reason": "max_steps",
            "answer": r.choice(["found it", "", None]), "error": None if ok else "no luck", "spent": {"model_calls": 1},
        }  # fmt: skip
