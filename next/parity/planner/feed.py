"""What both editions are given: options and answers as plain data, drawn from one seed."""

from __future__ import annotations

import json
import random
from typing import Any

TOOLS = ("look", "write")
OUTPUTS = [
    "found", '{"n": 1}', '{"n": 2, "deep": {"a": 1}}', '{"deep": {"b": [1]}}', "", "[1, 2]", '"text"', "null",
    '{"done": true, "sum": 3}', '{"done": "yes"}', "ü\n2", "{broken", '{"n": NaN}', '{"l": [1]}',
]  # fmt: skip
ARGUMENTS = ['{"q": "x"}', '{"q": "bad"}', "{}", "", "null", *['{"q": "y"}'] * 6]
BAD_ARGUMENTS = ["{oops", "[1]", '"q"', '{"a": NaN}', '{"a": 1} more']
PLANS = [
    {"goal": "know it"}, {"goal": "know it", "initial_steps": ["a", "b"]}, {"goal": ""},
    {"goal": "see", "required_capabilities": ["look"], "initial_steps": ["a"]},
]  # fmt: skip
BAD_PLANS: list[Any] = [
    {"goal": None}, {}, [1], "no plan", "", {"goal": 3}, {"goal": "a", "more": 1}, {"goal": "a", "confidence": 0.2},
    {"goal": "a", "initial_steps": "b"}, {"goal": "a", "initial_steps": [1]}, {"goal": "a", "confidence": 7},
    '```json\n{"goal": "fenced"}\n```', '{"goal": NaN}', {"initial_steps": ["x"]}, {"goal": "a", "confidence": 0.5},
]  # fmt: skip
SCHEMAS: list[Any] = [
    None, None, None, None, None, None, {}, {}, {}, {"type": "object"},
    {"properties": {"goal": {"maxLength": 5}}}, {"required": ["goal", "initial_steps"]},
    {"properties": {"goal": {"$ref": "#/$defs/g"}}, "$defs": {"g": {"pattern": "^k"}}},
]  # fmt: skip


def forbid(decision: Any, state: Any) -> str | None:
    return "bad is not allowed" if decision.params.get("q") == "bad" else None


def forbid_plan(decision: Any, state: Any) -> str | None:
    return "not that" if decision.action == "plan" and decision.params["goal"] == "see" else None


def forbid_execute(decision: Any, state: Any) -> str | None:
    return "" if decision.action != "execute" else "not today"


def few(decision: Any, state: Any) -> str | None:
    many = "plan" in state and len(state["observations"]) > 3
    return "n is 2" if state.get("n") == 2 or many else None


def broken(*_: Any) -> Any:
    raise ValueError("oops")


def build(text: Any, state: Any) -> str:
    return f"Plan for {text}, {state['started_at'][:4]}"


HOOKS: dict[str, Any] = {
    "forbid": forbid, "forbid_plan": forbid_plan, "forbid_execute": forbid_execute, "few": few, "broken": broken,
    "yes": lambda *_: True, "never": lambda *_: False, "three": lambda *_: 3,
    "two": lambda state, progress: state.get("n") == 2 and progress.includes("tool_called"),
    "found": lambda state, progress: progress.includes("found"),
    "build": build, "stop": lambda plan, state: {"continue": False, "reason": "enough"},
    "steps": lambda plan, state: {"continue": len(plan["initial_steps"]) > 0}, "empty": lambda plan, state: {},
    "input": lambda result, iteration: f"{iteration}: {json.dumps(result, default=dict)}",
}  # fmt: skip


class Feed:
    """Answers in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.ids = 0
        self.mode = self.r.choice(["plan", "plan", "simple"])
        self.goal = "" if self.r.random() < 0.05 else "find out"
        self.instructions = self.r.choice(["", "Be brief. "])

    def options(self) -> dict[str, Any]:
        r = self.r
        common = {
            "max_iterations": r.choice([0, 1, 2, 3, 3, 3, 50, 50, 50, 50]),
            "min_confidence": r.choice([0.5, 0.5, 0.5, 0.5, 0, 0.9]),
            "policy": r.choice([*["forbid"] * 4, *["few"] * 4, "broken", "yes"]) if r.random() < 0.4 else None,
            "converged": r.choice([["tool_called"], ["found", "extra"], "two", "two", "found", "never", "broken", "three"])
            if r.random() < 0.4
            else None,
            "reply_format": r.choice(["text", "json_schema"]),
        }  # fmt: skip
        if self.mode == "simple":
            return {**common, "input_builder": r.choice([*[None] * 6, *["input"] * 4, "broken", "three"])}
        if r.random() < 0.05:
            common["policy"] = r.choice(["forbid_plan", "forbid_execute"])
        return {
            **common,
            "plan_schema": r.choice(SCHEMAS),
            "prompt_builder": r.choice([*[None] * 12, *["build"] * 4, "broken", "three"]),
            "decide": r.choice([*[None] * 10, *["model"] * 8, "stop", "steps", "steps", "empty", "broken", "three"]),
            "finalize_summary": r.random() < 0.4,
            "on_tool_error": r.choice(["halt", "record"]),
            "on_policy_violation": r.choice(["halt", "record"]),
            "time_limit": r.choice([*[None] * 6, 4.5, 8]),
            "budgets": r.choice([{}, {}, {}, {"tool_calls": 2}, {"cost_usd": 0.03}, {"tokens": 60, "model_calls": 5}]),
        }

    def caps(self) -> dict[str, float]:
        return {"model_calls": self.r.choice([1, 2, 3, 4])} if self.r.random() < 0.1 else {}

    def person(self) -> str | None:
        return f"note {self.r.randint(1, 99)}" if self.r.random() < 0.08 else None

    def model(self, role: str) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.04:
            return self.failed()
        calls: list[dict[str, str]] = []
        if role == "planner":
            value = r.choice(PLANS) if r.random() < 0.93 else r.choice(BAD_PLANS)
        elif role == "decide":
            good = {"continue": r.random() < 0.8, "reason": r.choice(["because", "", "x" * 2000])}
            value = r.choice([*[good] * 5, {"continue": "yes"}, "go", {"continue": True, "confidence": 0.1}, {}])
        elif role == "summary":
            value = "in short: 42"
        elif self.mode == "simple":
            value = self.action()
        else:
            value = r.choice(["", "t", "I look"])
            calls = self.calls() if r.random() < 0.8 else []
            value = value if calls else r.choice(["forty-two", "", "42"])
        return {
            "kind": "model_replied", "text": value if isinstance(value, str) else json.dumps(value),
            "tool_calls": calls, "cost_usd": r.choice([0, 0.01]),
            "finish_reason": "length" if r.random() < 0.05 else "stop",
            "usage": {"input_tokens": r.randint(1, 20), "output_tokens": 2},
        }  # fmt: skip

    def calls(self) -> list[dict[str, str]]:
        r, made = self.r, []
        for _ in range(r.choice([1, 1, 1, 2, 3])):
            self.ids += 1
            name = r.choice([*["look"] * 30, *["write"] * 10, "nosuch", ""])
            arguments = r.choice(ARGUMENTS) if r.random() < 0.97 else r.choice(BAD_ARGUMENTS)
            made.append({"id": f"c{self.ids}", "name": name, "arguments": arguments})
        return made

    def action(self) -> Any:
        r = self.r
        if r.random() < 0.1:
            return r.choice([
                "I look", "[]", {"action": 3}, {"action": "look", "params": []}, {"action": "look", "confidence": "high"},
                {"params": {}}, {"action": "", "params": {}}, {"action": "nosuch", "params": {}}, "x" * 300,
                {"action": "y" * 101}, {"action": "look", "params": {":q": 1, "q": 2}}, {"action": "look", "confidence": 7},
            ])  # fmt: skip
        sure = r.choice([{}, {}, {"confidence": 0.95}, {"confidence": 0.6}, {"confidence": 0.5}])
        if r.random() < 0.15:
            return {"action": "finish", "params": r.choice([{}, {"answer": "42"}, {"answer": {"a": [1]}}, {"answer": 3}]), **sure}
        params = r.choice([{"q": "x"}, {":q ": "x"}, {"q": "bad"}, {}, {"l": [1], "d": {":x": 1}}])
        return {"action": r.choice(["look", "look", " write "]), "params": params, **sure}

    def failed(self) -> dict[str, Any]:
        error = self.r.choice(["transient", "recoverable", "fatal", "unknown_outcome"])
        return {
            "kind": "effect_failed", "error": error, "type": "HTTP500", "message": self.r.choice(["no", ""]), "attempts": 1,
        }  # fmt: skip

    def tool(self, id_: str, name: str) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.03:
            return self.failed()
        error = r.choice([*[None] * 30, "failed", "transient", "bad_arguments", "rejected", "expired", "unknown_outcome"])
        output = r.choice(OUTPUTS) if error is None else r.choice(["broken", ""])
        if error in {"rejected", "expired"}:
            output = "ann rejected it"
        result = {
            "id": id_, "tool": name, "output": output, "error": error, "cost_usd": r.choice([0, 0, 0.01]),
            "marks": r.choice([[], [], ["found"], ["found", "tool_called"], ["extra"]]),
        }  # fmt: skip
        return {"kind": "tools_returned", "results": [result]}
