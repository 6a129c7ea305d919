"""Code mode: the model writes blocks of code about a context and queries it in pieces (spec 2.2).

The table is the spec's, with two events more: `PolicyStop` (R-001-8), and `Failed`, so that a run
which an error leaves has its place in the log. What happens in EXECUTING is in `code_execute`, in the
other states in `code_nodes`.
"""

from __future__ import annotations

from enum import Enum

from activities.transcript import Message
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine, Row, State
from workflows.machines.code_calls import ROLES, offered
from workflows.machines.code_context import Context, Options, S
from workflows.machines.code_effects import Effects
from workflows.machines.code_events import (
    CodeBlocksFound,
    CodeExecuted,
    DepthExceeded,
    Failed,
    FinalAnswerFound,
    LLMResponseReceived,
    MaxIterationsReached,
    PolicyStop,
)
from workflows.machines.code_execute import Blocks
from workflows.machines.code_nested import Nesting
from workflows.machines.code_nodes import Nodes
from workflows.machines.code_policies import Watch
from workflows.machines.code_prompt import opening, shallow
from workflows.machines.code_reply import MOST_BLOCKS
from workflows.machines.code_result import EXITS, result_of
from workflows.machines.stopping import Policies

__all__ = ["DESIGN"]

_VISIT = ("place", "printed", "asked", "answers", "visit_bytes")
"""What a visit of EXECUTING begins without."""

TABLE = (
    Row(S.INIT, DepthExceeded, S.SHALLOW_CALL),
    Row(S.INIT, LLMResponseReceived, S.PROMPTING),
    Row(S.INIT, Failed, S.DONE),
    Row(S.SHALLOW_CALL, LLMResponseReceived, S.DONE),
    Row(S.SHALLOW_CALL, Failed, S.DONE),
    Row(S.PROMPTING, PolicyStop, S.DONE),
    Row(S.PROMPTING, FinalAnswerFound, S.DONE),
    Row(S.PROMPTING, CodeBlocksFound, S.EXECUTING, reset=_VISIT),
    Row(S.PROMPTING, Failed, S.DONE),
    Row(S.EXECUTING, FinalAnswerFound, S.DONE),
    Row(S.EXECUTING, PolicyStop, S.DONE),
    Row(S.EXECUTING, MaxIterationsReached, S.DONE),
    Row(S.EXECUTING, CodeExecuted, S.PROMPTING, reset=("missing",)),
    Row(S.EXECUTING, Failed, S.DONE),
)


def _most_effects(options: Options) -> int:
    """In one visit of EXECUTING: each call of a block with the step behind it, the block's first step and a
    look-up; then the next reply. The sandbox ends a block with more calls."""
    return MOST_BLOCKS * (2 * options.block.calls + 2) + 2


def _is_finished(c: Context, last: Record | None) -> str:
    return "" if c.finish else "`finish` is not set"


def _states(nodes: Nodes, most_effects: int) -> dict[Enum, State]:
    """What happens in each state, and what it may see, change and ask for."""
    sent = {"transcript", "dropped", "iteration", "depth"}
    boxed = {"session", "goal", "material", "tools", "trace_id", "place", "reaches"}
    reply, end = {"transcript", "tokens", "cut", "reaches"}, {"finish", "error", "raises"}
    judged = {"policy", "policy_memory", "answer"}
    shown = {"policy_memory", "last_result", "answer", "blocks"}
    kept = {"session", "iteration", "dropped", "last_result", "unsure"}
    visit = {"place", "printed", "asked", "answers", "missing", "visit_bytes", "run_bytes"}
    return {
        S.INIT: State(
            enter=nodes.begin, resume=nodes.begun, grants={"call_model"}, reads=sent, writes=reply | end
        ),
        S.SHALLOW_CALL: State(
            enter=nodes.shallow,
            resume=nodes.shallow_answer,
            grants={"call_model"},
            reads=sent,
            writes={*reply, *end, "answer"},
        ),
        S.PROMPTING: State(
            enter=nodes.look,
            resume=nodes.looked_up,
            grants={"run_code"},
            spends="iterations",
            reads=sent | boxed | shown,
            writes={"blocks", "missing", "session", "transcript"} | judged | end,
        ),
        S.EXECUTING: State(
            enter=nodes.blocks.execute,
            resume=nodes.blocks.executed,
            grants={"run_code", "call_model", "call_models", "call_tools", "run_machine"},
            max_effects=most_effects,
            again=lambda c: c.place.stage in ("reply", "forced"),
            reads={"tokens", "cut"} | sent | boxed | shown | visit,
            writes=kept | visit | reply | judged | end,
        ),
        S.DONE: State(holds=_is_finished),
    }


def _build(options: Options, parts: Parts) -> Machine[Context]:
    effects = Effects(options, Nesting.of(options, parts))
    watch = Watch(Policies.of(options.policies, parts), options.max_iterations)
    nodes = Nodes(options, effects, watch, Blocks(options, effects, watch))
    return Machine(
        name="code",
        context=Context,
        initial=S.INIT,
        final={S.DONE},
        table=TABLE,
        states=_states(nodes, _most_effects(options)),
        result=result_of(options),
        step_state=S.PROMPTING,
        on_error=dict.fromkeys(("transient", "recoverable", "fatal", "unknown_outcome"), nodes.fail),
        on_unmatched="stay",
        # Two for each iteration, and one before the first.
        max_transitions=2 * options.max_iterations + 1,
        on_close=lambda c, reason: {"finish": reason},
        fold_steer=lambda c, text: {"transcript": (Message(role="user", content=text),)},
    )


def _begin(brief: Brief, options: Options) -> Context:
    if not brief.goal.strip():
        raise ValueError("the prompt is missing; say what shall be found out")
    has = {spec.name for spec in brief.tools}
    lacking = [name for name in options.nested.tools or () if name not in has]
    if lacking:
        raise ValueError(f"nested.tools: the run has no tool {', '.join(lacking)}; name it under `tools` too")
    deep = brief.depth >= options.max_depth
    return Context(
        goal=brief.goal,
        trace_id=brief.trace_id,
        depth=brief.depth,
        material=brief.context,
        tools=offered(brief.tools),
        transcript=shallow(brief, options) if deep else opening(brief, options),
    )


DESIGN = Design(
    name="code",
    stand_in=False,
    description="Write blocks of code about a long context, run them in a sandbox, query models from within.",
    options=Options,
    build=_build,
    begin=_begin,
    roles=ROLES,
    takes_context=True,
    exits=EXITS,
)
