"""Tools mode: the model asks for tools in its own format until it answers in plain text (spec 2.5).

The table is the spec's, with one event more: `Failed` leads to DONE, so that a run which an error
leaves has its place in the log. What happens in each state is in `tools_nodes`.
"""

from __future__ import annotations

from enum import Enum

from activities.transcript import Message
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.fields import Patch
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine, Row, State
from workflows.machines.stopping import Policies
from workflows.machines.tools_context import Context, Options, S
from workflows.machines.tools_events import (
    Failed,
    LLMResponseReceived,
    MaxIterationsReached,
    NoToolCalls,
    PolicyStop,
    ToolCallsFound,
    ToolsExecuted,
)
from workflows.machines.tools_nodes import Nodes
from workflows.machines.tools_prompt import opening
from workflows.machines.tools_result import EXITS, result_of

__all__ = ["DESIGN"]

TABLE = (
    Row(S.INIT, LLMResponseReceived, S.PROMPTING),
    Row(S.INIT, Failed, S.DONE),
    Row(S.PROMPTING, NoToolCalls, S.DONE),
    Row(S.PROMPTING, PolicyStop, S.DONE),
    Row(S.PROMPTING, ToolCallsFound, S.EXECUTING_TOOLS),
    Row(S.PROMPTING, Failed, S.DONE),
    Row(S.EXECUTING_TOOLS, ToolsExecuted, S.PROMPTING),
    Row(S.EXECUTING_TOOLS, PolicyStop, S.DONE),
    Row(S.EXECUTING_TOOLS, MaxIterationsReached, S.DONE),
    Row(S.EXECUTING_TOOLS, Failed, S.DONE),
)


def _calls_are_answered(c: Context, last: Record | None) -> str:
    """Nothing may come between calls and their results: servers refuse such a conversation."""
    return "" if not c.open_calls or c.calls else "`open_calls` is set, but the newest message has none"


def _is_finished(c: Context, last: Record | None) -> str:
    return "" if c.finish else "`finish` is not set"


def _states(nodes: Nodes) -> dict[Enum, State]:
    """What happens in each state, and what it may see, change and ask for."""
    reply, end = {"transcript", "open_calls", "cut"}, {"finish", "error", "raises"}
    shown = {"transcript", "open_calls", "cut", "iteration", "depth", "policy_memory"}
    return {
        S.INIT: State(
            enter=nodes.begin,
            resume=nodes.begun,
            grants={"call_model"},
            reads={"transcript", "tools", "open_calls"},
            writes={*reply, *end},
        ),
        S.PROMPTING: State(
            enter=nodes.look,
            holds=_calls_are_answered,
            reads=shown,
            writes={*end, "policy", "policy_memory"},
        ),
        S.EXECUTING_TOOLS: State(
            enter=nodes.execute,
            resume=nodes.executed,
            holds=_calls_are_answered,
            grants={"call_tools", "call_model"},
            again=lambda c: not c.open_calls,
            spends="iterations",
            reads={*shown, "tools", "held"},
            writes={*reply, *end, "held", "iteration", "policy", "policy_memory"},
        ),
        S.DONE: State(holds=_is_finished),
    }


def _steered(c: Context, text: str) -> Patch:
    """A person's message; it waits for the results of open calls."""
    if c.open_calls:
        return {"held": (*c.held, text)}
    return {"transcript": (Message(role="user", content=text),)}


def _build(options: Options, parts: Parts) -> Machine[Context]:
    nodes = Nodes(options, Policies.of(options.policies, parts))
    return Machine(
        name="tools",
        context=Context,
        initial=S.INIT,
        final={S.DONE},
        table=TABLE,
        states=_states(nodes),
        result=result_of(options),
        step_state=S.PROMPTING,
        on_error=dict.fromkeys(("transient", "recoverable", "fatal", "unknown_outcome"), nodes.fail),
        on_unmatched="stay",
        # Two for each turn, and one before the first.
        max_transitions=2 * options.max_iterations + 1,
        on_close=lambda c, reason: {"finish": reason},
        fold_steer=_steered,
    )


def _begin(brief: Brief, options: Options) -> Context:
    names = tuple(spec.name for spec in brief.tools)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tools: named twice: {', '.join(twice)}")
    if not names:
        raise ValueError(
            "tools: the machine `tools` needs at least one; name some under `tools`, or take another machine"
        )
    return Context(tools=names, depth=brief.depth, transcript=opening(brief))


DESIGN = Design(
    name="tools",
    description="Ask the model, run the tools it calls (several at once), until it answers in plain text.",
    options=Options,
    build=_build,
    begin=_begin,
    exits=EXITS,
)
