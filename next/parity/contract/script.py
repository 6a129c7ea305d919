# ruff: noqa  # a harness that is deleted together with the first edition
"""Random answers for a run, as plain data: both editions draw the same ones for the same seed."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

JSON = dict[str, Any]
DONE = {"action": "complete", "strategy": "exit", "completion_summary": "all done"}
BODIES: list[Any] = ["text", "4\n2", {"x": 1, "rows": [{"n": "a"}]}, "z" * 5000, "a <<<< b", None, [1, 2]]


def digest_of(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


class Script:
    """The options, tools and answers of one run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.wild = self.random.choice([0.1, 0.4, 1])
        """How odd the answers are."""
        self.world: dict[str, str] = {}
        self.replies = 0
        self.options = self._options()
        count = self.random.choice([1, 3, 6, 10, 14, 30])
        self.decisions = [self._decision() for _ in range(count)]

    def _options(self) -> JSON:
        r = self.random
        hints: list[JSON] = [{}, {"explore": 1, "exploit": 2, "render": 1, "ctx_reads": 1}, {"exploit": 0}, {"exploit": 40}]
        slots = [
            {"name": "answer", "description": r.choice(["", "the sum"]), "budget": r.choice(hints)},
            {"name": "b", "type": r.choice(["inline", "file"]), "budget": {"explore": 1, "exploit": 1}},
        ][: r.randint(0, 2)]
        caps = {}
        for name in ("decision_rounds", "tool_calls", "exploit", "context_reads", "decision_reruns"):
            if r.random() < 0.2:
                caps[name] = r.randint(0, 3)
        return {
            "slots": slots,
            "caps": caps,
            "skills": {"style": "Be brief."},
            "exhausted_round": r.choice(["map_only", "skip"]),
            "write_tools": r.choice([[], ["tool"]]),
            "generator_tools": r.choice([[], ["open"]]),
            "spec_in_params_tools": r.choice([[], ["open"]]),
            "max_model_attempts": r.randint(1, 6),
            "shown_chars": r.choice([100, 8000]),
            "slot_chars": r.choice([1000, 100_000]),
        }

    tools = (
        {
            "name": "tool",
            "description": "does it",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        },
        {"name": "open", "description": "takes all", "parameters": {}},
    )

    def _decision(self) -> JSON:
        """An answer to a model call."""
        r = self.random
        if r.random() < 0.03 * self.wild:
            return failure(r)
        if r.random() < 0.08 * self.wild:
            odd = ["", "?", "{}", "no {", '{"action": "fly"}', '{"strategy": NaN}', "words " + json.dumps(DONE)]
            odd += ['{"strategy": "explore", "params": {"action": "exit", "strategy": "exit"}, "out', "[1]"]
            text = r.choice(odd)
            return {"kind": "model_replied", "text": text, "finish_reason": r.choice(["stop", "length"])}
        paths = ["found", "found.x", "big", "x", "found@2", "", "nope", "found.rows[0].n", "big[1]", "found.x["]
        more: JSON = {"notes": r.choice(["", "why not"])}
        if r.random() < 0.4:
            more["map_slots"] = [
                {
                    "slot_name": r.choice(["answer", "answer", "b", "nope", ""]),
                    "source_path": r.choice(paths),
                    "draft": r.random() < 0.3,
                    "gaps": r.choice(["", "the end"]),
                }
                for _ in range(r.randint(1, 3))
            ]
        if r.random() < 0.3:
            more["focus_slot"] = r.choice(["answer", "b", "zzz"])
        if r.random() < 0.25:
            more["show_artifacts"] = r.sample(paths, r.randint(1, 3))
        if r.random() < 0.15:
            more["show_skills"] = r.choice([["style"], ["nosuch"], [f"s{n}" for n in range(23)]])
        if r.random() < 0.3:
            more["next_decision_model"] = r.choice(["regular", "strong", "weak"])
        if r.random() < 0.3:
            more["completion_summary"] = "it is done"
        if r.random() < 0.2:
            more["clarification_questions"] = ["which year?", "which land?"]
        action = r.choice(["call_tool"] * int(6 / self.wild) + ["decision"] * 3 + ["complete", "clarify", "exit", None])
        if action == "call_tool" or r.random() < 0.1:
            more["tool_call"] = self._call()
        strategy = r.choice(["explore", "exploit", "exploit"] * int(4 / self.wild) + ["render", "render", "exit", None, "odd"])
        text = json.dumps({"action": action, "strategy": strategy, **more})
        return {"kind": "model_replied", "text": text if r.random() < 0.8 else f"```json\n{text}\n```"}

    def _call(self) -> Any:
        r = self.random
        if r.random() < 0.05 * self.wild:
            return r.choice([None, {}, "tool"])
        spec = [{"name": n} for n in r.sample(["found", "big", "x", "a b"], r.randint(1, 2))]
        if r.random() < 0.2 * self.wild:
            spec = r.choice([[], [{"name": "a\n- b"}], ["found"], [{"name": "found", "type": "t)"}], {"name": "big"}])  # fmt: skip
        for one in spec if isinstance(spec, list) else ():
            if isinstance(one, dict) and r.random() < 0.3:
                one |= {"type": r.choice(["file", "json", "TEXT"]), "kind": r.choice(["search", "data"])}
        params = r.choice([{"q": "x"}] * int(6 / self.wild) + [7, None, {}, {"q": "x", "z": 1}, {"out_artifacts_spec": ["p"]}])
        if r.random() < 0.1:
            params = {"output_contract": r.choice([["code"], {"text": "any"}, []])}
        return {
            "tool_id": r.choice(["tool"] * int(7 / self.wild) + ["open", "open", "nope", ""]),
            "params": params,
            "out_artifacts_spec": spec,
        }

    # -- answering --

    def answer(self, kind: str, effect: Any) -> JSON:
        """The answer to an effect, as JSON."""
        if kind == "model":
            self.replies += 1
            left = self.decisions[self.replies - 1 : self.replies]
            return left[0] if left else {"kind": "model_replied", "text": json.dumps(DONE)}
        return self._ran(effect.runs[0]) if kind == "call_tools" else self._read(effect)

    def _ran(self, run: Any) -> JSON:
        r, result = self.random, {"id": run.id, "tool": run.tool, "output": "ran"}
        if r.random() < 0.02:
            return failure(r)
        if r.random() < 0.02:
            return {"kind": "tools_returned", "results": []}
        if r.random() < 0.12:
            errors = ["failed", "failed", "bad_arguments", "rejected", "expired", "unknown_outcome", "timeout"]
            return {"kind": "tools_returned", "results": [{**result, "output": "boom", "error": r.choice(errors)}]}
        artifacts = []
        for spec in run.artifacts[: 1 if r.random() < 0.1 else 9]:
            body = r.choice(BODIES)
            text = body if isinstance(body, str) or body is None else json.dumps(body)
            made: JSON = {"name": spec.name, "type": spec.type, "kind": spec.kind}
            if text is not None:
                self.world[digest_of(text)] = text
                made |= {"digest": digest_of(text), "bytes": len(text.encode()), "preview": text[:200]}
            if r.random() < 0.05:
                made["error"] = "half of it"
            artifacts.append(made)
        return {"kind": "tools_returned", "results": [{**result, "artifacts": artifacts}]}

    def _read(self, effect: Any) -> JSON:
        r = self.random
        if r.random() < 0.1 and effect.label == "read the texts of the slots":
            return failure(r)
        texts = [self._text(one.digest, one.path, effect.chars) for one in effect.reads]
        return {"kind": "artifacts_read", "texts": texts[: 0 if r.random() < 0.03 else 99]}

    def _text(self, digest: str, path: str, chars: int) -> JSON:
        if self.random.random() < 0.06:
            return self.random.choice([{"problem": "gone\nfor good"}, {"binary": True}])
        value: Any = self.world[digest]
        if path:
            try:
                value = {".x": lambda v: v["x"], "[1]": lambda v: v[1], ".rows[0].n": lambda v: v["rows"][0]["n"]}[
                    path
                ](json.loads(value))
            except (KeyError, ValueError, TypeError, IndexError):
                return {"problem": f"there is nothing at {path}"}
        text = value if isinstance(value, str) else json.dumps(value)
        return {"text": text[:chars], "chars": len(text)}


def failure(r: random.Random) -> JSON:
    kind = r.choice(["transient", "recoverable", "fatal", "unknown_outcome"])
    return {"kind": "effect_failed", "error": kind, "type": "HTTP500", "message": "no"}
