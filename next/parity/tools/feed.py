"""What both editions are given: options and answers as plain data, drawn from one seed."""

# a script beside both editions, no part of either
from __future__ import annotations

import json
import random
from typing import Any

TOOLS = ("add", "find")
OUTPUTS = ["1", '{"x": 1}', "words", "", "[1, 2", "1e400", '"text"', "NaN", "null", "ü\n2"]
ARGUMENTS = [
    '{"a": 1}',
    '{"a": 2}',
    "{bad",
    "",
    "null",
    "[1]",
    '"q"',
    '{"a": NaN}',
    '{"a": 1} more',
    "```\n{}\n```",
]


class Feed:
    """Answers in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.ids = 0
        self.empty_at: int | None = None
        """Number of the model call whose reply was empty: from there on the editions differ on purpose."""
        self.calls = 0
        self.seen: list[Any] = []
        """What the policy `probe` was shown."""

    def options(self) -> dict[str, Any]:
        r = self.r
        policies = [
            [], [], ["repeated_call"], ["no_progress"], [{"type": "max_cost", "value": 0.025}],
            [{"type": "max_tokens", "value": 50}], ["probe"], ["probe", "no_progress", "probe"],
            [{"type": "repeated_call", "value": 2}, "probe"], ["raises"],
        ]  # fmt: skip
        return {
            "max_iterations": r.choice([1, 2, 3, 10]),
            "unknown_tool": r.choice(["raise", "report"]),
            "max_calls_per_reply": r.choice([1, 2, 100]),
            "parallel_tools": r.random() < 0.3,
            "max_model_attempts": r.choice([1, 4]),
            "max_tool_attempts": r.choice([1, 2]),
            "policies": r.choice(policies),
        }

    def values(self) -> dict[str, Any]:
        earlier = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        return {"messages": earlier} if self.r.random() < 0.2 else {}

    def caps(self) -> dict[str, float]:
        return {"model_calls": self.r.choice([1, 2, 3])} if self.r.random() < 0.1 else {}

    def person(self) -> str | None:
        return f"note {self.r.randint(1, 99)}" if self.r.random() < 0.08 else None

    def model(self) -> dict[str, Any]:
        r = self.r
        self.calls += 1
        if r.random() < 0.06:
            return self.failed()
        count = r.choice([0, 0, 1, 1, 1, 2, 3])
        calls = []
        for _ in range(count):
            self.ids += 1
            name = r.choice([*["add"] * 6, *["find"] * 3, "nope", ""])
            calls.append({"id": f"c{self.ids}", "name": name, "arguments": r.choice(ARGUMENTS)})
        text = r.choice(["", "t", "I look"]) if count else r.choice(["answer", "42", ""])
        cut = r.random() < 0.1
        if not text and not calls and not cut and self.empty_at is None:
            self.empty_at = self.calls
        return {
            "kind": "model_replied", "text": text, "tool_calls": calls, "cost_usd": r.choice([0, 0.01]),
            "finish_reason": "length" if cut else "stop",
            "usage": {"input_tokens": r.randint(1, 20), "output_tokens": 2},
        }  # fmt: skip

    def failed(self) -> dict[str, Any]:
        error = self.r.choice(["transient", "recoverable", "fatal", "unknown_outcome"])
        return {"kind": "effect_failed", "error": error, "type": "HTTP500", "message": "no", "attempts": 1}

    def tools(self, runs: list[tuple[str, str]]) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.03:
            return self.failed()
        results = []
        for id_, name in runs:
            error = r.choice(
                [*[None] * 12, "failed", "bad_arguments", "rejected", "unknown_tool", "unknown_outcome"]
            )
            results.append({
                "id": id_, "tool": name, "output": r.choice(OUTPUTS), "error": error,
                "cost_usd": r.choice([0, 0, 0.01]),
            })  # fmt: skip
            if error in {"unknown_outcome", "unknown_tool"}:
                break
        return {"kind": "tools_returned", "results": results}

    def probe(self, context: Any) -> bool:
        """Note what the policy is shown; sometimes stop."""
        shown = {
            name: context[name]
            for name in ("mode", "iteration", "max_iterations", "depth", "last_result", "tokens", "cost_usd")
        }
        shown["calls"] = json.loads(json.dumps(list(context["calls"]), default=dict))
        shown["memory"] = json.loads(json.dumps(dict(context["memory"]), default=dict))
        shown["history"] = [m["content"] if isinstance(m, dict) else m.content for m in context["history"]]
        self.seen.append(shown)
        return self.r.random() < 0.05

    def memory(self, context: Any, result: str) -> dict[str, Any] | None:
        self.seen.append(result)
        n = context["iteration"]
        return self.r.choice([None, {"n": n}, {"deep": {str(n): True}}, {"deep": {"list": [n]}}, {}])
