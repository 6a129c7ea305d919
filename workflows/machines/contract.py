"""Contract: decide with a budget, check the tool call, run it, and fill named slots (spec 5).

The task is an output contract. Tools make artifacts; the model maps artifacts to slots and sees what
it may still spend. It only ever wishes for an exit; the machine grants it when it leaves `decision`,
and may hold it back once for a round that maps what is there. What happens in each state is in
`contract_nodes`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from activities.contracts import ErrorClass
from activities.transcript import Message
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine, Row, State
from workflows.machines.contract_context import Context, Options, S
from workflows.machines.contract_events import (
    ExitAsked,
    ForcedRerun,
    GraphFailed,
    Rerun,
    ToolFinished,
    ToolWanted,
    Verified,
    Violated,
    WrapUpStarted,
)
from workflows.machines.contract_exit import EXITS, closed, granted, result_of, wrap_up
from workflows.machines.contract_journal import opening
from workflows.machines.contract_nodes import Nodes

__all__ = ["DESIGN"]

ANEW = ("round_started",)
"""Forgotten on the way to the next round."""

FAILURES: tuple[ErrorClass, ...] = ("transient", "recoverable", "fatal", "unknown_outcome")

TABLE = (
    Row(S.DECISION, ToolWanted, S.PROTOCOL_VERIFY),
    Row(S.DECISION, Rerun, S.DECISION, reset=ANEW),
    Row(S.DECISION, ForcedRerun, S.DECISION, reset=ANEW),
    Row(S.DECISION, WrapUpStarted, S.DECISION, reset=ANEW),
    Row(S.DECISION, ExitAsked, S.EXIT, action=granted, writes={"exit_reason", "pending_exit_reason"}),
    Row(S.DECISION, GraphFailed, S.EXIT),
    Row(S.PROTOCOL_VERIFY, Verified, S.TOOL_EXECUTION),
    Row(S.PROTOCOL_VERIFY, Violated, S.DECISION, reset=ANEW),
    Row(S.TOOL_EXECUTION, ToolFinished, S.DECISION, reset=(*ANEW, "call")),
    Row(S.TOOL_EXECUTION, GraphFailed, S.EXIT),
)


def _wrapped_up_once(c: Context, last: Record | None) -> str:
    """There is one wrap-up round per run (spec 5.9)."""
    return "" if c.wrapup_round_used or not c.is_wrapup_round else "a wrap-up round is not marked as used"


def _to_be_verified(c: Any, last: Record | None) -> str:
    wants = c.last_decision is not None and c.last_decision.action == "call_tool"
    return "" if wants and c.exit_reason is None else "no tool call was decided"


def _has_reason(c: Context, last: Record | None) -> str:
    return "" if c.exit_reason else "no exit reason was granted"


ROUND = frozenset({"round_index", "round_started", "stage", "last_strategy"})
"""What charging and timing a round reads."""
CHARGED = frozenset({"budget", "round_index", "round_timings", "session_log"})
VIOLATIONS = frozenset({"protocol_violation_count", "last_protocol_violation"})
DECIDED = VIOLATIONS | frozenset(
    {
        *("last_decision", "iteration", "transcript", "round_snapshot_artifact_ids", "round_started"),
        *("slots", "mapped_round_index", "stage", "shown_artifacts", "shown_skills", "last_strategy"),
        *("completion_summary", "clarification_questions", "pending_exit_reason", "exit_reason", "error"),
        *("allow_exploit_overdraft", "exploit_overdraft_used", "exploit_overdraft_total"),
    }
)


def _states(nodes: Nodes) -> dict[Enum, State]:
    """What happens in each state, and what it may see, change and ask for."""
    known = frozenset(Context.model_fields)
    return {
        S.DECISION: State(
            enter=nodes.decide,
            resume=nodes.decided,
            grants={"call_model", "read_artifacts"},
            again=True,
            spends="rounds",
            max_effects=3,
            holds=_wrapped_up_once,
            reads=known - {"goal", "tools", "call", "round_timings"},
            writes=CHARGED | DECIDED,
        ),
        S.PROTOCOL_VERIFY: State(
            enter=nodes.verify,
            requires=_to_be_verified,
            reads=ROUND | {"last_decision", "exit_reason", "tools"},
            writes=CHARGED | VIOLATIONS | {"call", "protocol_verify_ok"},
        ),
        S.TOOL_EXECUTION: State(
            enter=nodes.execute,
            resume=nodes.executed,
            grants={"call_tools"},
            max_effects=1,
            holds=lambda c, last: c.call is not None,
            reads=ROUND | {"call", "artifacts"},
            writes=CHARGED | {"artifacts", "exit_reason", "error"},
        ),
        S.EXIT: State(
            enter=nodes.leave,
            resume=nodes.left,
            grants={"read_artifacts"},
            max_effects=1,
            holds=_has_reason,
            on_error=dict.fromkeys(FAILURES, nodes.unread),
            reads={"exit_reason", "output_contract", "slots", "round_index", "wrapup_trigger_reason"},
            writes={"exit_reason", "session_log", "slots"},
        ),
    }


def _build(options: Options, parts: Parts) -> Machine[Context]:
    nodes = Nodes(options)
    rounds = options.ledger().caps["decisions"]
    return Machine(
        name="contract",
        context=Context,
        initial=S.DECISION,
        final={S.EXIT},
        table=TABLE,
        states=_states(nodes),
        result=result_of,
        step_state=S.DECISION,
        on_error=dict.fromkeys(FAILURES, nodes.failed),
        # Node visits (5.13); the first visit needs no transition.
        max_transitions=max(25, 4 * int(rounds) + 10) - 1,
        hold_back=wrap_up,
        on_close=closed,
        fold_steer=lambda c, text: {"transcript": (Message(role="user", content=text),)},
    )


def _begin(brief: Brief, options: Options) -> Context:
    return Context(
        goal=brief.goal,
        output_contract=options.slots,
        tools={spec.name: spec.parameters for spec in brief.tools},
        budget=options.ledger(),
        stage=options.slots[0].name if options.slots else None,
        transcript=opening(brief, options),
    )


DESIGN = Design(
    name="contract",
    stand_in=False,
    description="Fill named slots from what tools make, within budgets, and wrap up before the end.",
    options=Options,
    build=_build,
    begin=_begin,
    roles=("default", "strong", "regular"),
    exits=EXITS,
)
