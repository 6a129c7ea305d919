"""How a run in code mode ends, for people and programs (spec 2.2, R-001-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workflows.kernel.errors import AgentError
from workflows.kernel.machine import Exit
from workflows.machines.code_context import Context, Options
from workflows.machines.code_events import Failed, PolicyStop
from workflows.machines.stopping import STOPPED

__all__ = ["EXITS", "failed", "raised", "result_of", "stopped", "unsure"]

Changes = dict[str, Any]

EXITS: Mapping[str, str] = {
    "stop": "the model gave its answer, by FINAL or FINAL_VAR",
    "max_iterations": "`max_iterations` replies were looked at; the answer is what the model said when it "
    "was asked once more",
    "shallow": "the run is nested `max_depth` deep, so the model was asked once, without code; an answer "
    "that was cut at its length limit is not ok",
    "policy_stop": "a stopping policy ended the run; the outcome names it",
    "failed": "an error left the run: a model, the sandbox, a policy or a hook that failed, or an unsafe "
    "tool of which nobody knows what it did",
}
_ANSWERED = {"stop", "max_iterations", "shallow"}


def failed(raises: str, text: str) -> tuple[Changes, Failed]:
    """An error leaves the run: its class by name, and what happened."""
    return {"finish": "failed", "raises": raises, "error": text}, Failed(text)


def unsure(text: str) -> tuple[Changes, Failed]:
    """Nobody knows what an unsafe tool did: nothing is run again, and the outcome says so."""
    changes, event = failed("ExecutionError", text)
    return {**changes, "unsure": True}, event


def raised(error: AgentError) -> tuple[Changes, Failed]:
    """What a policy or a hook raises leaves the run (R-001-9)."""
    return failed(type(error).__name__, str(error))


def stopped(policy: str) -> tuple[Changes, PolicyStop]:
    """A policy ends the run (R-001-8)."""
    return {"finish": "policy_stop", "policy": policy}, PolicyStop(f"the policy {policy} stops the run")


def result_of(options: Options) -> Callable[[Context, Any], Exit]:
    """The machine's `result` under these knobs."""

    def result(c: Context, state: Any) -> Exit:
        reason = c.finish or "running"
        stop = reason == "policy_stop"
        lost = {"unknown_outcome": True} if c.unsure else {}
        # An empty answer is none: then the whole reply counts (2.2).
        said = (c.answer or c.reply) if reason in _ANSWERED else None
        return Exit(
            reason=reason,
            ok=reason == "stop" or (reason == "shallow" and not _half(c)),
            answer=STOPPED if stop else said,
            error=_error(c, options),
            outcome={
                "policy_stop": stop,
                "policy": c.policy,
                "iterations": c.iteration,
                "depth": c.depth,
                **lost,
            },
            raises=c.raises,
        )

    return result


def _half(c: Context) -> bool:
    """Is the answer a whole reply that was cut?"""
    return c.cut and c.answer is None


def _error(c: Context, options: Options) -> str | None:
    cut = "the reply was cut at its length limit (`max_output_tokens`)" if _half(c) else None
    if c.finish == "shallow":
        return cut
    if c.finish == "max_iterations":
        most = options.max_iterations
        asked = f"no answer within {most} replies (`max_iterations`); the model was asked for one then"
        return f"{asked}; {cut}" if cut else asked
    if c.finish == "policy_stop":
        return f"the stopping policy {c.policy} ended the run after {c.iteration} iterations"
    return c.error
