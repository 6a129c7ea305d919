"""What both editions are given: options and answers as plain data, drawn from one seed."""

from __future__ import annotations

import json
import random
from typing import Any

TOOLS = {
    "add": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "find-it": {"pattern": {"type": "string"}},
    "context": {},
}
POLICIES: list[list[Any]] = [
    [], [], [], ["repeated_call"], ["no_progress"], [{"type": "max_cost", "value": 0.03}],
    [{"type": "max_tokens", "value": 60}], ["probe"], ["probe", "no_progress", "probe"],
    [{"type": "repeated_call", "value": 2}, "probe"], ["raises"],
]  # fmt: skip
BLOCKS = ["print(1)", "x = 1", "", "context_slice(0, 9)", "print(1)", "a\n\nb"]
TAILS = [
    "", "", "", "FINAL(42)", "FINAL(it's 1)", "FINAL()", "FINAL_VAR(x)", "FINAL_VAR('y')", "FINAL_VAR(x + 1)",
    "FINAL(a\nFINAL(2)", "```repl\nopen", "FINAL_VAR(x)\nFINAL(1)",
]  # fmt: skip
CALLS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("llm_query", ["what?"], {}), ("llm_query", ["what x?", "default"], {}), ("llm_query", [], {"prompt": "a b\nc"}),
    ("llm_query", [1], {}), ("llm_query", ["a", "gpt"], {}), ("llm_query", ["y" * 400_001], {}),
    ("llm_query_batched", [["a", "bx", "c"]], {}), ("llm_query_batched", [["x", "xx"], "default"], {}),
    ("llm_query_batched", [["one"]], {}), ("llm_query_batched", [[]], {}), ("llm_query_batched", [["a", None]], {}),
    ("llm_query_batched", [[f"{n}" for n in range(130)]], {}),
    ("add", [1, 2], {}), ("add", [1], {"b": 2}), ("add", [1], {"a": 2}), ("add", [1, 2, 3], {}),
    ("find_it", [], {"pattern": "é"}), ("find_it", ["z" * 400_000], {}), ("context_", [], {}),
    ("FINAL", ["done"], {}), ("FINAL", [{"a": [1, None]}], {}), ("FINAL", [], {}), ("FINAL", [1, 2], {}),
    ("FINAL_VAR", ["x"], {}), ("FINAL_VAR", [" 'x' "], {}), ("FINAL_VAR", ["x y"], {}), ("FINAL_VAR", [7], {}),
]  # fmt: skip


class Feed:
    """Answers in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.seen: list[Any] = []
        """What the policy `probe` was shown."""
        self.sessions = self.calls_left = 0
        self.given = self.options()

    def options(self) -> dict[str, Any]:
        r = self.r
        compression = {"window_tokens": 1000, "at": r.choice([0.0001, 0.03]), "keep_last": r.choice([1, 2, 6]),
                       "least": r.choice([4, 8])}  # fmt: skip
        return {
            "max_iterations": r.choice([1, 2, 3, 3, 10]),
            "max_depth": r.choice([0, 1, 1, 1, 1, 2, 2, 2]),
            "final_var_missing": r.choice(["retry", "answer"]),
            "block": r.choice([{}, {}, {"calls": 3}, {"output_chars": 100}]),
            "policies": r.choice(POLICIES),
            "nested": r.choice(["never", "never", "always", "some", {"policy": "some", "tools": ["add"]}]),
            "compression": r.choice([None, None, compression]),
            "shallow_chars": r.choice([3, 1000]),
            "max_model_attempts": r.choice([1, 4]),
            "max_tool_attempts": r.choice([1, 2]),
        }

    def input(self) -> dict[str, Any]:
        r = self.r
        return {
            "depth": r.choice([0, 0, 0, 0, 0, 1]),
            "instructions": r.choice(["", " Be brief. "]),
            "material": r.choice([None, "short text", {"digest": "d", "chars": 12345, "bytes": 12345}]),
        }

    def caps(self) -> dict[str, float]:
        few = self.r.random() < 0.3 and self.given["nested"] == "never"
        return {"model_calls": self.r.choice([1, 2, 4])} if few else {}

    def person(self) -> str | None:
        said = self.r.random() < 0.06
        return f"note {self.r.randint(1, 99)}" if said and self.given["compression"] is None else None

    def model(self) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.05:
            return self.failed()
        count = r.choice([0, 0, 1, 1, 2, 3])
        if r.random() < 0.01:
            count = 53
        fences = [f"```repl\n{r.choice(BLOCKS)}\n```" for _ in range(count)]
        words = r.choice(["", "I look.", "hm", "context_len() is there"])
        return self.reply("\n".join(part for part in (words, *fences, r.choice(TAILS)) if part))

    def reply(self, text: str) -> dict[str, Any]:
        r = self.r
        return {
            "kind": "model_replied", "text": text, "cost_usd": r.choice([0, 0.01]),
            "finish_reason": "length" if r.random() < 0.1 else "stop",
            "usage": {"input_tokens": r.randint(1, 60), "output_tokens": 2},
        }  # fmt: skip

    def failed(self, *classes: str) -> dict[str, Any]:
        error = self.r.choice(classes or ("transient", "recoverable", "fatal", "unknown_outcome"))
        return {"kind": "effect_failed", "error": error, "type": "HTTP500", "message": "no", "attempts": 1}

    def sub_query(self, nested: bool) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.08:
            return self.failed("transient", "fatal", "fatal", "recoverable", "unknown_outcome")
        if not nested:
            return self.reply(r.choice(["b", "", "Error: x", "FINAL(1)", "é"]))
        ok = r.random() < 0.7
        return {
            "kind": "machine_ended", "machine": "code", "ok": ok, "answer": r.choice(["A", "", None]),
            "exit_reason": r.choice(["stop"] * 9 + ["unknown_outcome"]) if ok else r.choice(["failed", "limit"]),
            "error": None if ok else r.choice([None, "gone"]), "spent": {"cost_usd": 0.01, "model_calls": 2},
            "outcome": {"unknown_outcome": True} if r.random() < 0.03 else {},
        }  # fmt: skip

    def tool(self, id_: str, name: str) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.05:
            return self.failed()
        error = r.choice([*[None] * 8, "failed", "timeout", "rejected", "unknown_outcome"])
        result = {
            "id": id_, "tool": name, "output": r.choice(["[1]", "text", "é" * 9, ""]), "error": error,
            "cost_usd": r.choice([0, 0.01]), "whole": r.choice([None, None, "digest"]),
        }  # fmt: skip
        return {"kind": "tools_returned", "results": [result]}

    def code(self, effect: Any) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.02:
            return self.failed()
        self.sessions += 1
        stepped: dict[str, Any] = {"kind": "code_stepped", "session": f"s{self.sessions}"}
        stepped["printed"] = r.choice(["", "1\n", "two words \n", "long " * 30, "FINAL(no)", "\n"])
        stepped["left_out"] = r.choice([0, 0, 0, 5])
        if effect.block is not None:
            self.calls_left = self.given["block"].get("calls", 12)
        stops = effect.answer is not None and effect.answer.stop
        looks_up = effect.block is not None and not effect.names
        chance = 0.1 if looks_up else 0.6
        if self.calls_left and not stops and r.random() < chance:
            self.calls_left -= 1
            name, args, named = r.choice(CALLS)
            return {**stepped, "call": {"name": name, "args": args, "named": named}}
        if r.random() < 0.25:
            stepped["error"] = r.choice(["NameError: name 'x' is not defined", "ValueError: bad\n"])
            if r.random() < 0.3:
                stepped.update(fatal=True, session=effect.before)
        return stepped

    def nests(self, prompt: str, depth: int) -> bool:
        return "x" in prompt

    def probe(self, context: Any) -> bool:
        """Note what the policy is shown; sometimes stop."""
        shown = {
            name: context[name]
            for name in ("mode", "iteration", "max_iterations", "depth", "last_result", "tokens", "cost_usd")
        }
        shown["calls"] = json.loads(json.dumps(list(context["calls"]), default=dict))
        shown["memory"] = json.loads(json.dumps(dict(context["memory"]), default=dict))
        texts = [m["content"] if isinstance(m, dict) else m.content for m in context["history"]]
        shown["history"] = [text for text in texts[1:] if not text.startswith("note ")]
        self.seen.append(shown)
        return self.r.random() < 0.05

    def memory(self, context: Any, result: str) -> dict[str, Any] | None:
        self.seen.append(result)
        n = context["iteration"]
        return self.r.choice([None, {"n": n}, {"deep": {str(n): True}}, {"deep": {"list": [n]}}, {}])
