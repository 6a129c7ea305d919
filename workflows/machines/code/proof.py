"""What must hold of every run in code mode, and in which runs that is tried (docs/verification.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from activities.contracts import CodeStepped, ModelReplied, RunCode, ToolSpec
from workflows.kernel.machine import Extensions
from workflows.kernel.properties import (
    Moment,
    Property,
    Scenario,
    asks_model,
    before,
    between,
    calls,
    ends,
    event,
    is_unknown,
    last,
    never,
)
from workflows.machines.code.table import (
    CodeBlocksFound,
    DepthExceeded,
    Failed,
    FinalAnswerFound,
    MaxIterationsReached,
    PolicyStop,
    S,
)

__all__ = ["PROPERTIES", "SCENARIOS"]


def runs_code(x: Moment) -> bool:
    """Code is to run in the sandbox."""
    return x.kind == "asked" and isinstance(x.effect, RunCode)


def runs_a_block(x: Moment) -> bool:
    """A block of a reply begins."""
    return runs_code(x) and x.state == S.EXECUTING.name


def wants_a_call(x: Moment) -> bool:
    """The code waits for what it has called."""
    return isinstance(x.answer, CodeStepped) and x.answer.call is not None


def thinks(x: Moment) -> bool:
    """The model is asked in the conversation."""
    return asks_model(x) and not x.effect.beside  # type: ignore[union-attr]  # a question


def only_called(wanted: str, x: Moment) -> tuple[str, bool]:
    """Remembers what the code waits for; a tool runs once for each call that the code makes of it."""
    if isinstance(x.answer, CodeStepped):
        return (x.answer.call.name if x.answer.call else ""), False
    if not calls()(x):
        return wanted, False
    return "", [one.tool for one in x.calls] != [wanted]


PROPERTIES: tuple[Property, ...] = (
    Property("only what the code calls is called, and once", only_called, ""),
    before("a tool runs only when code calls it", first=wants_a_call, then=calls()),
    before(
        "code runs only when blocks were found in a reply", first=event(CodeBlocksFound), then=runs_a_block
    ),
    before(
        "nothing runs before the model has replied",
        first=lambda x: isinstance(x.answer, ModelReplied),
        then=runs_code,
    ),
    never(
        "no question beyond `max_iterations` but for the answer",
        lambda x: thinks(x) and x.context.iteration > x.options.max_iterations,
    ),
    never(
        "no block runs beyond `max_iterations`",
        lambda x: runs_a_block(x) and x.context.iteration >= x.options.max_iterations,
    ),
    between(
        "a run that is nested too deep runs no code", event(DepthExceeded), lambda x: False, never=runs_code
    ),
    last("nothing is asked after an unknown outcome", is_unknown),
    last("nothing is asked after the answer", event(FinalAnswerFound)),
    last("nothing is asked once a policy has stopped the run", event(PolicyStop)),
    last("nothing is asked after the last answer", event(MaxIterationsReached)),
    last("nothing is asked after a failure", event(Failed)),
    never("a run that is ok has an answer", ends(lambda exit, c: exit.ok and exit.answer is None)),
    never("a run that failed says why", ends(lambda exit, c: not exit.ok and not exit.error)),
    never(
        "a policy that stopped a run is named",
        ends(lambda exit, c: exit.reason == "policy_stop" and not c.policy),
    ),
)

QUERY = {"type": "object", "properties": {"q": {"type": "string", "enum": ["x"]}}, "required": ["q"]}
PAY = ToolSpec(name="pay", description="", effect="unsafe", parameters=QUERY)
BLOCK = "```repl\nx = 1\n```"
REPLIES = (BLOCK, "FINAL(42)", "FINAL_VAR(x)", f"{BLOCK}\nFINAL(42)")


ALIKE = frozenset({"transient", "timeout", "expired", "rejected"})
"""Failures that this machine takes as it takes others."""


class _Fails:
    """A policy that fails."""

    def __init__(self, spec: Any) -> None:
        pass

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        raise RuntimeError("the policy is broken")

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> None:
        return None


def _scenario(name: str, *replies: str, **more: Any) -> Scenario:
    options = {"max_iterations": 1, "block": {"calls": 1}, **more.pop("options", {})}
    return Scenario(name=name, options=options, tools=(PAY,), replies=replies or REPLIES, **more)


SCENARIOS = (
    _scenario("blocks"),
    _scenario("two blocks", f"{BLOCK}\n{BLOCK}", "FINAL(42)", without=ALIKE),
    _scenario("nested too deep", depth=1),
    *(
        _scenario(
            policy,
            BLOCK,
            "FINAL(42)",
            options={"max_iterations": 2, "policies": [{"type": policy, "value": most}]},
            without=ALIKE,
        )
        for policy, most in (("repeated_call", 2), ("no_progress", 1))
    ),
    _scenario(
        "policy that fails",
        options={"policies": [{"type": "fails"}]},
        extensions=Extensions(policies={"fails": _Fails}),
    ),
)
