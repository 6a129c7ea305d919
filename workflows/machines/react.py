"""ReAct: think, check the thought, act, observe, commit (spec 1).

The node's name is the state; all else is the context. Reasoning steps form a log that only grows:
the newest step is completed in place until it is committed or failed, then it never changes.
What happens in each state is in `react_nodes`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import partial

from activities.contracts import JsonObject
from activities.transcript import Message
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine, Row, State
from workflows.kernel.rules import build_rules
from workflows.machines.react_context import Context, Options, S
from workflows.machines.react_events import (
    Aborted,
    Accepted,
    Acted,
    CostLimitExceeded,
    Drafted,
    Flagged,
    GoalAchieved,
    NobodyToAsk,
    NodeFailed,
    Observed,
    Rejected,
    Resumed,
    RetriesExhausted,
    RuleBroken,
    StepLimitReached,
    StepTaken,
)
from workflows.machines.react_nodes import Nodes
from workflows.machines.react_prompt import JSON_OR_LABELS, ReplyFormat, opening
from workflows.machines.react_result import result_of
from workflows.machines.react_rollback import rollback_to_step, went_back
from workflows.machines.react_rules import RULE_TYPES

__all__ = ["DESIGN", "design"]

TABLE = (
    Row(S.THOUGHT, Drafted, S.VALIDATE),
    Row(S.THOUGHT, NodeFailed, S.END),
    Row(S.VALIDATE, Accepted, S.ACTION),
    Row(S.VALIDATE, RuleBroken, S.END),
    Row(S.VALIDATE, RetriesExhausted, S.HUMAN_APPROVAL),
    Row(S.VALIDATE, Rejected, S.THOUGHT),
    Row(S.VALIDATE, NodeFailed, S.END),
    Row(S.ACTION, Acted, S.OBSERVATION),
    Row(S.ACTION, NodeFailed, S.END),
    Row(S.OBSERVATION, Observed, S.COMMIT),
    Row(S.COMMIT, GoalAchieved, S.END),
    Row(S.COMMIT, StepLimitReached, S.END),
    Row(S.COMMIT, Flagged, S.END),
    Row(S.COMMIT, CostLimitExceeded, S.END),
    Row(S.COMMIT, RetriesExhausted, S.HUMAN_APPROVAL),
    Row(S.COMMIT, StepTaken, S.THOUGHT),
    Row(S.HUMAN_APPROVAL, Resumed, S.THOUGHT),
    Row(S.HUMAN_APPROVAL, Aborted, S.END),
    Row(S.HUMAN_APPROVAL, NobodyToAsk, S.END),
)


def _closed_before(c: Context, last: Record | None) -> str:
    """Only the newest step may be open (R-000-3)."""
    if not c.steps:
        return "there is no step"
    is_open = [step.id for step in c.steps[-2:-1] if not step.closed]
    return f"step {is_open[0]} is still open" if is_open else ""


def _is_terminated(c: Context, last: Record | None) -> str:
    return "" if c.terminated else "`terminated` is not set"


def _states(nodes: Nodes) -> dict[Enum, State]:
    """What happens in each state, and what it may see, change and ask for."""
    known = {"steps", "metadata"}
    checked = State(holds=_closed_before, writes={*known, "terminated"})
    return {
        S.THOUGHT: State(
            enter=nodes.think,
            resume=nodes.thought,
            grants={"call_model"},
            again=True,
            spends="steps",
            reads={*known, "transcript", "cache", "tools"},
            writes={*known, "transcript", "cache", "terminated"},
        ),
        S.VALIDATE: replace(checked, enter=nodes.validate, reads={*known, "trace_id", "tools", "terminated"}),
        S.ACTION: replace(
            checked,
            enter=nodes.act,
            resume=nodes.acted,
            grants={"call_tools"},
            reads={*known, "tools"},
        ),
        S.OBSERVATION: replace(checked, enter=nodes.observe, reads={"steps", "tools"}, writes={"transcript"}),
        S.COMMIT: replace(checked, enter=nodes.commit, reads={*known, "tools", "terminated"}),
        S.HUMAN_APPROVAL: State(
            enter=nodes.ask,
            resume=nodes.decided,
            grants={"ask_person"},
            reads={"metadata"},
            writes={"metadata", "transcript", "terminated"},
        ),
        S.END: State(holds=_is_terminated),
    }


def _build(name: str, reply_format: ReplyFormat, options: Options, parts: Parts) -> Machine[Context]:
    if options.reply_format == "json_schema" and reply_format.schema is None:
        raise ValueError(f"{name}: its reply format has no JSON schema; set `reply_format: text`")
    nodes = Nodes(options, build_rules(options.rule_specs(), {**RULE_TYPES, **parts.rules}), reply_format)
    return Machine(
        name=name,
        context=Context,
        initial=S.THOUGHT,
        final={S.END},
        table=TABLE,
        states=_states(nodes),
        result=result_of(options),
        step_state=S.THOUGHT,
        on_error={
            "transient": nodes.recover,
            "recoverable": nodes.recover,
            "fatal": nodes.halt,
            "unknown_outcome": nodes.halt,
        },
        on_unmatched="end",
        # The knob counts node visits (R-000-11); the first visit needs no transition.
        max_transitions=(options.max_transitions or 10 * options.max_steps) - 1,
        on_close=lambda c, reason: {"metadata": {"exit_reason": reason}, "terminated": True},
        limit_reasons={"cost_usd": "cost_limit"},
        steps_done=lambda c: len(c.steps),
        on_rollback=went_back,
        rewind=rollback_to_step,
        fold_steer=lambda c, text: {"transcript": (Message(role="user", content=text),)},
    )


def _begin(reply_format: ReplyFormat, brief: Brief, options: Options) -> Context:
    own: JsonObject = {"goal": brief.goal, "retry_count": 0, "total_cost": 0, "tool_history": []}
    own |= {"retry_reason": None, "exit_reason": None} if brief.values else {}
    return Context(
        trace_id=brief.trace_id,
        tools=tuple(spec.name for spec in brief.tools),
        metadata={**brief.values, **own},
        transcript=opening(brief, reply_format),
    )


EXITS = {
    "goal_achieved": "the model gave its final answer",
    "max_steps": "`max_steps` steps were taken, the last one without a final answer",
    "cost_limit": "the run spent more than `cost_limit`, or reached the agent's limit `cost_usd`",
    "rule_violation": "a thought broke a terminal rule",
    "retries_exhausted": "more thoughts were rejected than allowed, and no person could be asked",
    "fatal_error": "a model, a rule or a parser failed for good, or nobody knows what an unsafe tool did",
    "flagged": "something set `terminated` in the run's state, and the step was closed after that",
}


def design(name: str = "react", reply_format: ReplyFormat = JSON_OR_LABELS) -> Design:
    """A ReAct machine; with a reply format of one's own it needs a name of its own (R-000-7)."""
    return Design(
        name=name,
        description="Think, check the thought against rules, act with one tool, observe, commit.",
        options=Options,
        build=partial(_build, name, reply_format),
        begin=partial(_begin, reply_format),
        exits=EXITS,
    )


DESIGN = design()
