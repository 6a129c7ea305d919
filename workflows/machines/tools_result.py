"""How a tools run ended, for people and programs (spec 2.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workflows.kernel.machine import Exit
from workflows.machines.stopping import STOPPED
from workflows.machines.tools_context import Context, Options

__all__ = ["EXITS", "result_of"]

EXITS: Mapping[str, str] = {
    "stop": "the model answered without asking for a tool",
    "max_iterations": "`max_iterations` tool turns were used; the answer is what the model said when it "
    "was asked once more, without tools",
    "cut_off": "the model's output came to its limit, `max_output_tokens` or the server's own; the answer is "
    "kept as far as it came",
    "policy_stop": "a stopping policy ended the run; the outcome names it",
    "failed": "an error left the run: an unknown tool, a model or a policy that failed (a server without "
    "native tool calls refuses the first request), or an unsafe tool of which nobody knows what it did",
}


def result_of(options: Options) -> Callable[[Context, Any], Exit]:
    """The machine's `result` under these knobs."""

    def result(c: Context, state: Any) -> Exit:
        reason = c.finish or "running"
        stopped = reason == "policy_stop"
        answers = {"stop", "max_iterations", "cut_off"}
        return Exit(
            reason=reason,
            ok=reason == "stop",
            answer=STOPPED if stopped else c.reply if reason in answers else None,
            error=_error(c, options),
            outcome={"policy_stop": stopped, "policy": c.policy, "iterations": c.iteration},
            raises=c.raises,
        )

    return result


def _error(c: Context, options: Options) -> str | None:
    if c.finish == "max_iterations":
        most = options.max_iterations
        return f"no answer within {most} tool turns (`max_iterations`); the model was made to give one then"
    if c.finish == "cut_off":
        forced = c.iteration >= options.max_iterations
        asked = f", which was asked for after {c.iteration} tool turns (`max_iterations`)," if forced else ""
        return (
            f"the answer{asked} was cut off at the limit of the model's output; "
            "raise the model's `max_output_tokens`, or ask for a shorter answer"
        )
    if c.finish == "policy_stop":
        return f"the stopping policy {c.policy} ended the run after {c.iteration} tool turns"
    return c.error
