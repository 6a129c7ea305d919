"""What both editions are given: options and answers as plain data, drawn from one seed."""

# ruff: noqa: E501  # a script beside both editions, no part of either
from __future__ import annotations

import json
import random
from typing import Any

TOOLS = ("search", "file")
THOUGHTS = [
    "a", "I look", "probably so", "I guess", "it might be", "ü", "FINAL ANSWER: 42", "the FINAL ANSWER is 7",
    "final answer: no",
]  # fmt: skip
INPUTS: list[Any] = [
    {}, {"q": "x"}, {"q": "y" * 5000}, {"a": {"b": {"c": {"d": {"e": 1}}}}}, {"a": [[[[1]]]]}, None,
]  # fmt: skip
BAD = ["?", "", "{bad", '{"thought": ""}', '{"thought": 3}', "[1]", "Thought: a\nAction: search\nAction Input: [1]",
       "Thought: a\nAction: search\nAction Input: {bad", '{"thought": "x", "action_input": {"q": NaN}}',
       "Observation: 42"]  # fmt: skip


class Feed:
    """Answers in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.failures = 0
        self.last_bad = False
        self.lost_reminder = False
        """A question failed behind a malformed reply: its reminder of the format was not said."""
        self.seen: list[Any] = []

    def options(self) -> dict[str, Any]:
        r = self.r
        rules = r.choice([None, None, None, [], ["probe"], ["forbid_guessing", "probe"], ["raises"],
                          [{"type": "max_depth", "value": 3}, "forbid_guessing"], ["cost_limit"]])  # fmt: skip
        options: dict[str, Any] = {
            "max_steps": r.choice([1, 2, 3, 6, 12]),
            "max_format_attempts": r.choice([1, 2, 3]),
            "max_retries_before_human": r.choice([0, 1, 3]),
            "max_model_attempts": r.choice([1, 4]),
            "max_tool_attempts": r.choice([1, 3]),
            "rules": rules,
            "reply_format": r.choice(["text", "text", "json_schema"]),
        }
        if r.random() < 0.3:
            options["cost_limit"] = r.choice([0.05, 0.3, 2.0])
        if r.random() < 0.3:
            options["max_transitions"] = r.choice([1, 3, 7, 30])
        return options

    def values(self) -> dict[str, Any]:
        return self.r.choice([{}, {}, {"mine": {"deep": 1}}, {"goal": "other", "exit_reason": "x"}])

    def caps(self) -> dict[str, float]:
        return {"model_calls": self.r.choice([1, 3, 5])} if self.r.random() < 0.1 else {}

    def person(self) -> str | None:
        return f"note {self.r.randint(1, 99)}" if not self.last_bad and self.r.random() < 0.06 else None

    def model(self) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.06:
            self.lost_reminder |= self.last_bad
            self.last_bad = False
            return self.failed()
        self.last_bad = False
        kind = r.random()
        thought = r.choice(THOUGHTS)
        action = r.choice([None, "search", "search", "file", "nope", "finish", "None", "SEARCH"])
        given = (
            r.choice(INPUTS) if action != "finish" else r.choice([{}, {"answer": "f"}, {"answer": {"n": 1}}])
        )
        if kind < 0.15:
            text = r.choice(BAD)
            self.last_bad = True
        elif kind < 0.3:
            lines = f"Thought: {thought}\nAction: {action}\nAction Input: {json.dumps(given)}"
            text = r.choice([lines, f"```\n{lines}\n```", f"{lines}\nObservation: made up"])
        else:
            whole = json.dumps({"thought": thought, "action": action, "action_input": given})
            text = r.choice([whole, whole, f"Here:\n{whole}", f"```json\n{whole}\n```", f"{whole} done"])
        return {
            "kind": "model_replied", "text": text, "cost_usd": r.choice([0, 0.01, 0.02, 0.3]),
            "finish_reason": "length" if r.random() < 0.05 else "stop",
            "usage": {"input_tokens": 3, "output_tokens": 2},
        }  # fmt: skip

    def failed(self) -> dict[str, Any]:
        self.failures += 1
        error = self.r.choice(["transient", "recoverable", "recoverable", "fatal", "unknown_outcome"])
        return {"kind": "effect_failed", "error": error, "type": f"HTTP{self.failures}", "message": "no"}

    def tools(self, runs: list[tuple[str, str]]) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.05:
            return self.failed()
        error = r.choice([*[None] * 8, "failed", "bad_arguments", "rejected", "transient", "unknown_outcome"])
        outputs = ["lost"] if error == "unknown_outcome" else ["found", "", "x\ny"]
        return {"kind": "tools_returned", "results": [
            {"id": id_, "tool": name, "output": r.choice(outputs), "error": error,
             "cost_usd": r.choice([0, 0.1]), "whole": r.choice([None, "f" * 64])} for id_, name in runs
        ]}  # fmt: skip

    def decided(self) -> dict[str, Any]:
        r = self.r
        if r.random() < 0.1:
            return self.failed()
        return {"kind": "person_decided", "by": "ann", "text": r.choice(["", "look"]),
                "decision": r.choice(["resume", "resume", "answer", "abort", "unavailable"])}  # fmt: skip

    def probe(self, step: Any, context: Any) -> str | None:
        """A rule that notes what it is shown; sometimes it does not hold."""
        meta = context.metadata
        keys = ("goal", "retry_count", "total_cost", "mine")
        self.seen.append([step.id, step.thought, step.action, len(context.steps), context.terminated,
                          {k: json.loads(json.dumps(meta[k], default=dict)) for k in keys if k in meta},
                          list(meta["tool_history"])])  # fmt: skip
        return self.r.choice([None, None, None, "no", ""])

    def raises(self, errors: Any) -> Any:
        kind = self.r.choice(
            [None, None, errors.RecoverableError, errors.TransientError, errors.FatalError, KeyError]
        )
        if kind is not None:
            raise kind("away")
        return None
