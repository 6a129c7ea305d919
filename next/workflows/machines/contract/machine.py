"""Contract: decide within a budget, check the tool call, run it, and fill named slots (spec 5).

The task is an output contract. Tools make artifacts; the model maps artifacts to slots and sees what
budget is left. A decision only asks for an exit: leaving `decision`, the machine grants it, or holds it
back once for a wrap-up round that maps what exists.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from enum import Enum
from typing import Any

from activities.contracts import (
    ArtifactRead,
    ArtifactText,
    AskModel,
    CallTools,
    Effect,
    JsonObject,
    Message,
    ReadArtifacts,
    Say,
    ToolRun,
    do,
)
from workflows.kernel.context import Patch
from workflows.kernel.errors import AgentError, EffectError
from workflows.kernel.machine import Event, Machine, Outcome, Run, RunInput, Visit, state
from workflows.machines.contract.artifacts import new_artifacts
from workflows.machines.contract.budget import charge, strategy_charge
from workflows.machines.contract.context import (
    Contract,
    Options,
    Overdraft,
    Round,
    RoundTiming,
    Violations,
    missing_slots,
)
from workflows.machines.contract.ending import (
    EXITS,
    result,
    slot_events,
    slots_by_reference,
    slots_with_texts,
)
from workflows.machines.contract.journal import DECIDE_AGAIN, journal, opening, reads_to_show
from workflows.machines.contract.mapping import (
    KEPT_CHARS,
    MappingReport,
    lookups_of,
    mapping_report,
    reads_of,
)
from workflows.machines.contract.reply import Decision, WantedCall, decision_of
from workflows.machines.contract.round import Allowance, Judgement, allowance_of, judgement_on
from workflows.machines.contract.verify import verdict_on

__all__ = ["MACHINE", "S"]


class S(Enum):
    """The nodes of spec 5.1, and the end."""

    DECISION = "decision"
    PROTOCOL_VERIFY = "protocol_verify"
    TOOL_EXECUTION = "tool_execution"
    EXIT = "exit"
    END = "end"


class ToolChosen(Event):
    """The decision is to call a tool."""


class Rerun(Event):
    """The decision asked to see artifacts or skills."""


class ForcedRerun(Event):
    """The decision had no valid strategy; the model is asked again."""


class WrapUpStarted(Event):
    """The exit is held back for one round that maps what exists."""


class ExitGranted(Event):
    """The run ends; `reason` is the exit reason."""


class Verified(Event):
    """The tool call keeps to the protocol."""


class Violated(Event):
    """The tool call breaks the protocol; nothing was run."""


class ToolFinished(Event):
    """The tool has run, or failed; its artifacts are registered."""


class GraphFailed(Event):
    """Something failed that no other round can repair."""


class Finished(Event):
    """The slots have their texts."""


TABLE: Mapping[Enum, Mapping[type[Event], Enum]] = {
    S.DECISION: {
        ToolChosen: S.PROTOCOL_VERIFY,
        Rerun: S.DECISION,
        ForcedRerun: S.DECISION,
        WrapUpStarted: S.DECISION,
        ExitGranted: S.EXIT,
        GraphFailed: S.EXIT,
    },
    S.PROTOCOL_VERIFY: {Verified: S.TOOL_EXECUTION, Violated: S.DECISION},
    S.TOOL_EXECUTION: {ToolFinished: S.DECISION, GraphFailed: S.EXIT},
    S.EXIT: {Finished: S.END},
}

ROUND = {"budget", "round", "round_timings", "session_log"}
"""What charging, timing and logging a round reads and writes."""

BUDGET_EXHAUSTED: JsonObject = {
    "code": "budget_exhausted",
    "message": "the budget is used up: no decision rounds or no tool calls are left",
}


# -- decision (5.7) -------------------------------------------------------------------------------


@state(
    S.DECISION,
    asks={AskModel, ReadArtifacts},
    reads=ROUND
    | {"output_contract", "artifacts", "slots", "overdraft", "violations", "iteration", "last_decision"}
    | {"show", "wrapup_trigger_reason"},
    writes=ROUND
    | {"slots", "overdraft", "violations", "iteration", "last_decision", "show", "completion_summary"}
    | {"clarification_questions", "exit_reason", "wrapup_trigger_reason", "error"},
    counts="rounds",
)
def decide(c: Contract, run: Run) -> Visit:
    """One round: check the budget, ask the model, map, judge the decision, and route (spec 5.7, 5.9)."""
    allowance = allowance_of(c)
    exhausted = allowance.kind == "exhausted"
    if exhausted and run.options.exhausted_round == "skip":
        overdraft = c.overdraft.model_copy(update={"allowed": False})
        return exit_or_wrap_up(c, {"error": BUDGET_EXHAUSTED, "overdraft": overdraft}, "max_iterations")
    decision, mapping = yield from ask(c, run, allowance)
    judgement = judgement_on(c, decision, allowance)
    mapping_events = [mapping.event] if decision.map_slots else []
    patch: dict[str, Any] = {
        "slots": {**c.slots, **mapping.slots},
        "budget": judgement.budget,
        "show": judgement.show,
        "overdraft": judgement.overdraft,
        **log_patch(c, judgement.event, *judgement.events, *mapping_events),
    }
    if exhausted:
        patch["error"] = BUDGET_EXHAUSTED  # and nothing of the decision is kept but its mapping (R-004-2)
    else:
        patch |= decision_patch(c, decision, judgement)
    if judgement.forced:
        patch["violations"] = violations_with(c, judgement.events[:1])
    return route(c.after(patch), run, patch, judgement)


def ask(
    c: Contract, run: Run, allowance: Allowance
) -> Generator[Effect[Any], Any, tuple[Decision, MappingReport]]:
    """Ask the model for its decision, and read what it maps.

    A person's message that comes before the decision takes effect replaces it: the model hears the
    message and decides again, in the same round. Nothing of the first decision was charged or mapped.
    """
    round = c.round.model_copy(update={"started": run.now})
    texts = yield from read(reads_to_show(c), run.options.shown_chars, "read what the model asked to see")
    say: Message = journal(c, run.options, allowance, texts)
    while True:
        number = c.iteration + 1
        reply = yield from do(
            AskModel(
                say=(say,),
                role=c.last_decision.next_decision_model if c.last_decision else "strong",
                attempts=run.options.max_model_attempts,
                label=f"decide #{number}",
            )
        )
        decision = decision_of(reply)
        keep = {"iteration": number, "last_decision": decision, "round": round}
        yield Say(keep=keep, label=f"decision #{number}")
        lookups = lookups_of(c, decision)
        texts = yield from read(reads_of(lookups), KEPT_CHARS, f"read what decision #{number} maps")
        if not run.inbox:
            return decision, mapping_report(lookups, texts)
        say = DECIDE_AGAIN


def read(
    reads: tuple[ArtifactRead, ...], chars: int, label: str
) -> Generator[Effect[Any], Any, tuple[ArtifactText, ...]]:
    """The texts. A store that fails gives a problem in place of each: reading never ends a run (5.10)."""
    if not reads:
        return ()
    try:
        found = yield from do(ReadArtifacts(reads=reads, chars=chars, label=label))
    except EffectError as error:
        return (ArtifactText(problem=str(error)),) * len(reads)
    return found.texts


def route(c: Contract, run: Run, patch: dict[str, Any], judgement: Judgement) -> Outcome:
    """On to the tool, around again, or to an exit. `c` is the context after the patch."""
    decision = judgement.decision
    if judgement.action == "call_tool":
        tool = decision.tool_call.tool_id if decision.tool_call else "no tool"
        return patch, ToolChosen(f"{decision.notes} -> {tool}" if decision.notes else tool)
    patch |= timing_patch(c, run, judgement.action)
    if judgement.action == "decision":
        patch["round"] = next_round(c)
        return patch, ForcedRerun(decision.problem) if judgement.forced else Rerun(decision.notes)
    return exit_or_wrap_up(c, patch, judgement.exit_reason or "complete")


def exit_or_wrap_up(c: Contract, patch: Patch, reason: str) -> Outcome:
    """Grant the exit, or hold it back once for a round that maps what exists (spec 5.9)."""
    c = c.after(patch)
    if c.is_wrapup_round or not (c.pending_slots and c.unmapped_artifacts):
        return {**patch, "exit_reason": reason}, ExitGranted(reason)
    event = {
        "event": "wrapup_activated",
        "trigger": reason,
        "pending_slots": list(c.pending_slots),
        "unmapped_artifacts": list(c.unmapped_artifacts),
    }
    wrapup = {
        "wrapup_trigger_reason": reason,
        "overdraft": Overdraft(),
        "error": None,
        "round": next_round(c),
        **log_patch(c, event),
    }
    return {**patch, **wrapup}, WrapUpStarted(f"{reason}; pending: {', '.join(c.pending_slots)}")


def decision_patch(c: Contract, decision: Decision, judgement: Judgement) -> Patch:
    """What outlives a decision: stage, strategy, summary and questions."""
    update = {"stage": judgement.stage}
    if decision.strategy in ("explore", "exploit", "render"):
        update["strategy"] = decision.strategy
    patch: dict[str, Any] = {"round": c.round.model_copy(update=update)}
    if decision.completion_summary:
        patch["completion_summary"] = decision.completion_summary
    if decision.action == "clarify":
        patch["clarification_questions"] = decision.clarification_questions
    return patch


# -- protocol_verify (5.11) -----------------------------------------------------------------------


@state(
    S.PROTOCOL_VERIFY,
    reads=ROUND | {"last_decision", "violations"},
    writes=ROUND | {"call", "violations"},
    holds=lambda c, came_from: (
        "" if c.last_decision and c.last_decision.action == "call_tool" else "no tool call was decided"
    ),
)
def verify(c: Contract, run: Run) -> Outcome:
    """Check the call against the protocol. A violation costs the round, and the model decides again."""
    wanted = (c.last_decision and c.last_decision.tool_call) or WantedCall()
    verdict = verdict_on(wanted, {tool.name: tool.parameters for tool in run.input.tools}, run.options)
    event: JsonObject = {
        "event": "protocol_verify",
        "ok": not verdict.violations,
        "tool_id": wanted.tool_id,
        "warnings": list(verdict.warnings),
    }
    if not verdict.violations:
        call = ToolRun(
            id=f"round-{c.round.index}",
            tool=wanted.tool_id,
            arguments=verdict.arguments,
            artifacts=verdict.artifacts,
        )
        return {"call": call, **log_patch(c, event)}, Verified(call.title)
    found: list[JsonObject] = [
        {"event": "protocol_violation", "code": v.code, "message": v.message} for v in verdict.violations
    ]
    invalid: JsonObject = {
        "event": "tool_call_invalid",
        "tool_id": wanted.tool_id,
        "codes": [v.code for v in verdict.violations],
    }
    render = {"render": 1} if c.round.strategy == "render" else {}
    patch = {
        "violations": violations_with(c, found),
        **log_patch(c, event, *found, invalid),
        **round_end(c, run, "protocol_violation", render),
    }
    return patch, Violated("; ".join(v.message for v in verdict.violations))


# -- tool_execution (5.12) ------------------------------------------------------------------------


@state(
    S.TOOL_EXECUTION,
    asks={CallTools},
    reads=ROUND | {"call", "artifacts"},
    writes=ROUND | {"call", "artifacts", "exit_reason", "error"},
    holds=lambda c, came_from: "" if c.call else "no call was verified",
)
def execute(c: Contract, run: Run) -> Visit:
    """Run the tool, register its artifacts (also those of a tool that failed), and charge the round."""
    call = c.call
    assert call is not None
    yield Say(keep=log_patch(c, {"event": "tool_started", "tool_id": call.tool}))
    returned = yield from do(CallTools(runs=(call,), attempts=run.options.max_tool_attempts))
    if not returned.results:
        return failure(f"{call.tool}: no result came back")
    result = returned.results[0]
    if result.error == "unknown_outcome":
        return failure(f"{result.tool}: {result.output}")
    # A call that people did not let through costs the round, as a violation does (spec 5.6).
    ran = result.error not in ("rejected", "expired")
    new = new_artifacts(c, call.artifacts, result) if ran else {}
    writes = c.round.strategy == "render" or (ran and result.tool in run.options.write_tools)
    event: JsonObject = {
        "event": "tool_finished" if result.ok else "tool_error" if ran else "tool_not_run",
        "tool_id": result.tool,
        "artifacts": list(new),
        "error": None if result.ok else result.output[:500],
    }
    amounts = {**({"tools": 1} if ran else {}), **({"render": 1} if writes else {})}
    patch = {
        "artifacts": {**c.artifacts, **new},
        "call": None,
        **log_patch(c, event),
        **round_end(c, run, "call_tool", amounts),
    }
    return patch, ToolFinished(f"{result.tool}: {', '.join(new) if ran else result.output}")


# -- exit (5.13) ----------------------------------------------------------------------------------


@state(
    S.EXIT,
    asks={ReadArtifacts},
    reads={"exit_reason", "output_contract", "slots", "round", "wrapup_trigger_reason", "session_log"},
    writes={"exit_reason", "slots", "session_log"},
    holds=lambda c, came_from: "" if c.exit_reason else "no exit reason was granted",
)
def leave(c: Contract, run: Run) -> Visit:
    """Read the texts that slots hold by reference, then decide whether the contract is fulfilled."""
    unread = slots_by_reference(c.slots)
    reads = tuple(ArtifactRead(digest=slot.digest, path=slot.path) for slot in unread.values())
    texts = yield from read(reads, run.options.slot_chars, "read the texts of the slots")
    loaded = slots_with_texts(unread, texts)
    slots, reason = {**c.slots, **loaded}, c.exit_reason
    events = list(slot_events(loaded))
    missing = missing_slots(c.output_contract, slots)
    if reason == "complete" and missing:
        reason = "incomplete_contract"
        declared = [slot.name for slot in c.output_contract]
        filled = [name for name in slots if name not in missing]
        report: JsonObject = {"declared": [*declared], "missing": [*missing], "filled": [*filled]}
        events.append({"event": "contract_validation_failed", **report})
    events.append({"event": "exit", "reason": reason, "trigger": c.wrapup_trigger_reason})
    return {"slots": slots, "exit_reason": reason, **log_patch(c, *events)}, Finished(reason or "")


# -- parts of patches -----------------------------------------------------------------------------


def log_patch(c: Contract, *events: Mapping[str, Any]) -> Patch:
    """The session log with these events of the current round."""
    new = ({"event": event["event"], "round": c.round.index, **event} for event in events)
    return {"session_log": (*c.session_log, *new)}


def violations_with(c: Contract, found: list[JsonObject]) -> Violations:
    """The violations with these events added."""
    last = {name: value for name, value in found[-1].items() if name != "event"}
    return Violations(count=c.violations.count + len(found), last=last)


def timing_patch(c: Contract, run: Run, end_reason: str) -> Patch:
    """The round timings with the round that ends now."""
    timing = RoundTiming.model_validate(
        {"round": c.round.index, "started": c.round.started, "ended": run.now, "end_reason": end_reason}
    )
    return {"round_timings": (*c.round_timings, timing)}


def next_round(c: Contract) -> Round:
    """The round that follows."""
    return c.round.model_copy(update={"index": c.round.index + 1})


def round_end(c: Contract, run: Run, end_reason: str, more: Mapping[str, float]) -> Patch:
    """The end of a round behind `decision`: its time, the next number, and its charge (spec 5.6)."""
    amounts = {"decisions": 1, **strategy_charge(c.round.strategy), **more}
    budget = charge(c.budget, amounts, c.round.stage)
    return {**timing_patch(c, run, end_reason), "round": next_round(c), "budget": budget}


def failure(text: str) -> Outcome:
    """The end of a run that no other round can repair. Nothing is raised (spec 5.13)."""
    return {"exit_reason": "error", "error": {"code": "graph_error", "message": text}}, GraphFailed(text)


# -- the machine ----------------------------------------------------------------------------------


def begin(input: RunInput, options: Options) -> tuple[Contract, tuple[Message, ...]]:
    """An empty contract, with the first slot as stage."""
    first = Round(stage=options.slots[0].name if options.slots else None)
    context = Contract(output_contract=options.slots, budget=options.budget, round=first)
    return context, opening(input, options)


def on_error(c: Contract, error: AgentError, run: Run) -> Outcome:
    """A model or a tool that fails for good ends the run."""
    return failure(str(error))


def on_close(c: Contract, reason: str) -> Patch:
    """A run that is closed in the middle says why."""
    return {"exit_reason": reason, **log_patch(c, {"event": "exit", "reason": reason})}


def max_transitions(options: Options) -> int:
    """At most max(25, 4 * rounds + 10) states are visited; the first needs no transition (spec 5.13)."""
    return max(25, 4 * int(options.budget.caps["decisions"]) + 10) - 1


MACHINE = Machine(
    name="contract",
    description="Fill named slots from what tools make, within budgets, and wrap up before the end.",
    options=Options,
    context=Contract,
    begin=begin,
    initial=S.DECISION,
    table=TABLE,
    states=(decide, verify, execute, leave),
    step=S.DECISION,
    result=result,
    on_error=on_error,
    on_close=on_close,
    writes=frozenset({"exit_reason", "error", "session_log"}),
    max_transitions=max_transitions,
    roles=("default", "strong", "regular"),
    plain_replies=False,
    exits=EXITS,
)
