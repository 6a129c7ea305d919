"""Contract: decide within a budget, check the tool call, run it, and fill named slots (spec 5).

The task is an output contract. Tools make artifacts; the model maps artifacts to slots and sees what
budget is left. A decision only asks for an exit: leaving `decision`, the machine grants it, or holds it
back once for a wrap-up round that maps what exists. The table is in `table.py`, what must hold in `proof.py`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from activities.contracts import ReadArtifacts
from workflows.machines.authoring import (
    AgentError,
    AskModel,
    CallTools,
    Effect,
    Event,
    Exit,
    JsonObject,
    Machine,
    Message,
    Patch,
    Run,
    RunInput,
    Say,
    ToolCall,
    Visit,
    VisitEnd,
    do,
    state,
)
from workflows.machines.common.options import reset_fields
from workflows.machines.contract.budget import charge, first_budget, must_finish, overdraft_of
from workflows.machines.contract.call_check import call_check
from workflows.machines.contract.context import (
    Contract,
    FilledSlot,
    Options,
    Overdraft,
    Round,
    RoundTiming,
    log_entry,
)
from workflows.machines.contract.judged_decision import JudgedDecision, judged
from workflows.machines.contract.mapping import Mapped, fill_slots, new_artifacts, read_texts, with_text
from workflows.machines.contract.prompt import DECIDE_AGAIN, journal, opening
from workflows.machines.contract.proof import PROPERTIES, SCENARIOS
from workflows.machines.contract.reply import ModelDecision, WantedCall, decision_of, decision_schema
from workflows.machines.contract.table import (
    TABLE,
    ExitGranted,
    Finished,
    ForcedRerun,
    GraphFailed,
    Rerun,
    S,
    ToolChosen,
    ToolFinished,
    Verified,
    Violated,
    WrapUpStarted,
)

__all__ = ["MACHINE", "S"]

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
    | {"output_contract", "artifacts", "slots", "overdraft", "iteration", "last_decision", "show"}
    | {"wrapup_trigger_reason"},
    writes=ROUND
    | {"slots", "overdraft", "iteration", "last_decision", "show", "completion_summary"}
    | {"clarification_questions", "exit_reason", "wrapup_trigger_reason", "error"},
    counts="rounds",
)
def decide(c: Contract, run: Run) -> Visit:
    """One round: check the budget, ask the model, map, judge the decision, and route (spec 5.7, 5.9)."""
    overdraft = overdraft_of(c)
    exhausted = must_finish(c) and not overdraft.allowed
    if exhausted and run.options.exhausted_round == "skip":
        return exit_or_wrap_up(c, {"error": BUDGET_EXHAUSTED, "overdraft": overdraft}, "max_iterations")
    decision, (slots, events) = yield from ask(c, run, overdraft)
    judgement = judged(c, decision, overdraft)
    # of a decision beyond the budget nothing is kept but its mapping (R-004-2)
    kept = {"error": BUDGET_EXHAUSTED} if judgement.exhausted else decision_patch(c, judgement)
    patch = {
        "slots": {**c.slots, **slots},
        "budget": judgement.budget,
        "show": judgement.show,
        "overdraft": judgement.overdraft,
        **log_patch(c, *judgement.events, *events),
        **kept,
    }
    return route(c, run, patch, judgement)


def ask(
    c: Contract, run: Run, overdraft: Overdraft
) -> Generator[Effect[Any], Any, tuple[ModelDecision, Mapped]]:
    """Ask the model for its decision, and read what it maps.

    A person's message that comes before the decision takes effect replaces it: the model hears the
    message and decides again, in the same round. Nothing of the first decision was charged or mapped.
    """
    round = c.round.model_copy(update={"started": run.now})
    say = yield from journal(c, run.options, overdraft)
    form = decision_schema(run.input.tool_names, tuple(slot.name for slot in run.options.slots))
    unread = bool(c.last_decision.problem)  # a model that missed the form is held to it
    while True:
        number = c.iteration + 1
        reply = yield from do(
            AskModel(
                say=(say,),
                role=c.last_decision.next_decision_model,
                attempts=run.options.max_model_attempts,
                response_schema=form if unread else None,
                form=form,
                label=f"decide #{number}",
            )
        )
        decision = decision_of(reply)
        keep = {"iteration": number, "last_decision": decision, "round": round}
        yield Say(
            keep=keep, label=f"decision #{number}", thought=decision.notes or decision.completion_summary
        )
        mapped = yield from fill_slots(c, decision)
        if not run.inbox:
            return decision, mapped
        say = DECIDE_AGAIN


def decision_patch(c: Contract, judgement: JudgedDecision) -> Patch:
    """What outlives a decision: stage, strategy, summary and questions."""
    decision, update = judgement.decision, {"stage": judgement.stage}
    if decision.strategy in ("explore", "exploit", "render"):
        update["strategy"] = decision.strategy
    patch: dict[str, Any] = {"round": c.round.model_copy(update=update)}
    if decision.completion_summary:
        patch["completion_summary"] = decision.completion_summary
    if decision.action == "clarify":
        patch["clarification_questions"] = decision.clarification_questions
    return patch


def route(c: Contract, run: Run, patch: Patch, judgement: JudgedDecision) -> VisitEnd:
    """On to the tool, around again, or to an exit, with this patch."""
    if judgement.action == "call_tool":
        return patch, ToolChosen()
    timed = {**patch, **timing_patch(c, run, judgement.action)}
    if judgement.action == "decision":
        event: Event = ForcedRerun(judgement.decision.problem) if judgement.forced else Rerun()
        return {**timed, "round": c.after(patch).round.next}, event
    return exit_or_wrap_up(c, timed, judgement.exit_reason)


def exit_or_wrap_up(c: Contract, patch: Patch, reason: str) -> VisitEnd:
    """Grant the exit, or hold it back once for a round that maps what exists (spec 5.9)."""
    c = c.after(patch)
    if c.is_wrapup_round or not (c.pending_slots and c.unmapped_artifacts):
        return {**patch, "exit_reason": reason}, ExitGranted(reason)
    pending, unmapped = list(c.pending_slots), list(c.unmapped_artifacts)
    event = log_entry("wrapup_activated", trigger=reason, pending_slots=pending, unmapped_artifacts=unmapped)
    wrapup = {
        "wrapup_trigger_reason": reason,
        "overdraft": Overdraft(),
        "error": None,
        "round": c.round.next,
        **log_patch(c, event),
    }
    return {**patch, **wrapup}, WrapUpStarted(f"{reason}; pending: {', '.join(pending)}")


# -- protocol_verify (5.11) -----------------------------------------------------------------------


@state(
    S.PROTOCOL_VERIFY,
    reads=ROUND | {"last_decision"},
    writes=ROUND | {"call"},
    holds=lambda c, came_from: "" if c.last_decision.action == "call_tool" else "no tool call was decided",
)
def verify(c: Contract, run: Run) -> VisitEnd:
    """Check the call against the protocol. A violation costs the round, and the model decides again."""
    wanted = c.last_decision.tool_call or WantedCall()
    check = call_check(wanted, {tool.name: tool.parameters for tool in run.input.tools}, run.options)
    found, name, warnings = check.violations, wanted.tool_id, list(check.warnings)
    event = log_entry("protocol_verify", ok=not found, tool_id=name, warnings=warnings)
    if not found:
        call = ToolCall(
            id=f"round-{c.round.index}", tool=name, arguments=check.arguments, artifacts=check.artifacts
        )
        return {"call": call, **log_patch(c, event)}, Verified()
    invalid = log_entry("tool_call_invalid", tool_id=name, codes=[one["code"] for one in found])
    patch = {
        **log_patch(c, event, *found, invalid),
        **round_end(c, run, "protocol_violation", render=int(c.round.strategy == "render")),
    }
    return patch, Violated("; ".join(str(one["message"]) for one in found))


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
    yield Say(keep=log_patch(c, log_entry("tool_started", tool_id=call.tool)))
    returned = yield from do(CallTools(calls=(call,), attempts=run.options.max_tool_attempts))
    if not returned.results:
        return failure(f"{call.tool}: no result came back")
    result = returned.results[0]
    if result.error == "unknown_outcome":
        return failure(f"{result.tool}: {result.output}")
    # A call that was not made costs the round, as a violation does (spec 5.6).
    ran = result.error not in ("rejected", "expired")
    new = new_artifacts(c, call.artifacts, result) if ran else {}
    writes = c.round.strategy == "render" or (ran and result.tool in run.options.write_tools)
    event = log_entry(
        "tool_finished" if result.ok else "tool_error" if ran else "tool_not_run",
        tool_id=result.tool,
        artifacts=list(new),
        error=None if result.ok else result.output[:500],
    )
    patch = {
        "artifacts": {**c.artifacts, **new},
        "call": None,
        **log_patch(c, event),
        **round_end(c, run, "call_tool", tools=int(ran), render=int(writes)),
    }
    return patch, ToolFinished(f"kept as {', '.join(new)}" if new else "")


# -- exit (5.13) ----------------------------------------------------------------------------------


@state(
    S.EXIT,
    asks={ReadArtifacts},
    reads={"exit_reason", "output_contract", "slots", "round", "wrapup_trigger_reason", "session_log"},
    writes={"exit_reason", "slots", "session_log"},
    holds=lambda c, came_from: "" if c.exit_reason else "no exit reason was granted",
)
def finish(c: Contract, run: Run) -> Visit:
    """Read the texts that slots hold by reference, then decide whether the contract is fulfilled."""
    unread = {name: slot for name, slot in c.slots.items() if slot.text is None and not slot.binary}
    reads = [slot.read for slot in unread.values()]
    texts = yield from read_texts(reads, run.options.slot_chars, "read the texts of the slots")
    slots, reason, events = dict(c.slots), c.exit_reason, []
    for name, text in zip(unread, texts, strict=True):
        slots[name] = slot = with_text(unread[name], text)
        if slot.problem is not None:
            events.append(log_entry("slot_lost", slot=name, problem=slot.problem[:500]))
        elif slot.cut:
            events.append(log_entry("slot_cut", slot=name, left_out=slot.cut, chars=slot.chars))
    missing = list(c.after({"slots": slots}).pending_slots)
    if reason == "complete" and missing:
        reason, filled = "incomplete_contract", [name for name in slots if name not in missing]
        names = {"declared": list(c.slot_types), "missing": missing, "filled": filled}
        events.append(log_entry("contract_validation_failed", **names))
    events.append(log_entry("exit", reason=reason, trigger=c.wrapup_trigger_reason))
    return {"slots": slots, "exit_reason": reason, **log_patch(c, *events)}, Finished()


# -- parts of patches -----------------------------------------------------------------------------


def log_patch(c: Contract, *events: JsonObject) -> Patch:
    """The session log with these events of the current round."""
    new = ({"event": event["event"], "round": c.round.index, **event} for event in events)
    return {"session_log": (*c.session_log, *new)}


def timing_patch(c: Contract, run: Run, end_reason: str) -> Patch:
    """The round timings with the round that ends now."""
    timing = RoundTiming(round=c.round.index, started=c.round.started, ended=run.now, end_reason=end_reason)
    return {"round_timings": (*c.round_timings, timing)}


def round_end(c: Contract, run: Run, end_reason: str, **amounts: int) -> Patch:
    """The end of a round after `decision`: its time, the next number, and its charge (spec 5.6)."""
    budget = charge(c.budget, c.round.stage, c.round.strategy, decisions=1, **amounts)
    return {**timing_patch(c, run, end_reason), "round": c.round.next, "budget": budget}


def failure(text: str) -> VisitEnd:
    """The end of a run that no other round can repair. Nothing is raised (spec 5.13)."""
    return {"exit_reason": "error", "error": {"code": "graph_error", "message": text}}, GraphFailed(text)


# -- the machine ----------------------------------------------------------------------------------


def begin(input: RunInput, options: Options) -> tuple[Contract, tuple[Message, ...]]:
    """An empty contract, with the first slot as stage."""
    first = Round(stage=options.slots[0].name if options.slots else None)
    context = Contract(output_contract=options.slots, budget=first_budget(options), round=first)
    return context, opening(input, options)


def on_error(c: Contract, error: AgentError, run: Run) -> VisitEnd:
    """A model or a tool that fails for good ends the run."""
    return failure(str(error))


def on_close(c: Contract, reason: str) -> Patch:
    """A run that is closed in the middle says why."""
    return {"exit_reason": reason, **log_patch(c, log_entry("exit", reason=reason))}


def on_reopen(c: Contract) -> tuple[S, Patch]:
    """A new round, which may have its wrap-up round, too."""
    ends = reset_fields(
        Contract, {"exit_reason", "error", "wrapup_trigger_reason", "overdraft", "call", "show"}
    )
    return S.DECISION, {**ends, "round": c.round.next}


def on_refused(c: Contract) -> tuple[S, Patch] | None:
    """The same, but where the model has questions instead of an answer, or nothing may be done any more."""
    return None if c.exit_reason in ("clarify", "error") else on_reopen(c)


def max_transitions(options: Options) -> int:
    """At most max(25, 4 * rounds + 10) states are visited; the first needs no transition (spec 5.13)."""
    return max(25, 4 * int(first_budget(options).caps["decisions"]) + 10) - 1


# -- the result (5.13) ----------------------------------------------------------------------------

EXITS: Mapping[str, str] = {
    "complete": "the model is done; every slot is filled, or none was declared",
    "incomplete_contract": "the model is done, but slots are open; the outcome names them",
    "clarify": "the model has questions to the person; the outcome has them",
    "max_iterations": "decision rounds or tool calls are used up",
    "context_reads_exhausted": "the model wanted to see something, but no context read is left",
    "decision_no_progress": "the model asked for another decision without anything to see",
    "decision_reruns_exhausted": "the model asked for another decision too often",
    "wrapup_no_decision_rerun": "the model asked for another decision in the wrap-up round",
    "exploit_overdraft_blocked": "the model wanted a tool in an overdraft round, but not for exploit",
    "error": "the model or a tool failed for good, or the outcome of an unsafe tool is unknown",
}


OUTCOME = {"slots", "artifacts", "completion_summary", "clarification_questions", "error"} | {
    "wrapup_trigger_reason",
    "round_timings",
    "session_log",
}
"""Fields of the context that the result shows as they are."""


def result(c: Contract, run: Run) -> Exit:
    """The slots and how they were filled. `ok`: all declared slots are filled, whatever the reason."""
    reason = c.exit_reason or "running"
    # A run without a contract that failed has achieved nothing.
    ok = not c.pending_slots and (bool(c.output_contract) or reason != "error")
    error = None if ok else _error(c, reason)
    answer = _answer(c, reason, as_object=run.input.output is not None)
    return Exit(reason=reason, ok=ok, answer=answer, error=error, outcome=_outcome(c))


def _answer(c: Contract, reason: str, *, as_object: bool) -> str | None:
    """The questions, or the slots' texts, or the summary of a run without slots. `as_object`: several slots
    are a JSON object, with their texts by name."""
    clarifies = "clarify" in (reason, c.wrapup_trigger_reason) and (c.pending_slots or not c.output_contract)
    if clarifies and c.clarification_questions:
        return "\n".join(c.clarification_questions)
    texts = {slot.name: _text(c.slots[slot.name]) for slot in c.output_contract if slot.name in c.slots}
    if len(c.output_contract) == 1:
        return next(iter(texts.values()), None)
    if texts and as_object:
        return json.dumps(texts, ensure_ascii=False)
    if texts:
        return "\n\n".join(f"{name}:\n{text}" for name, text in texts.items())
    return c.completion_summary or None


def _text(slot: FilledSlot) -> str:
    if slot.text is not None:
        return slot.text
    if slot.binary:
        return f"(a file that is not text: {slot.digest})"
    lost = f"the text is lost: {slot.problem}; " if slot.problem is not None else ""
    left = slot.chars - len(slot.preview)
    return f"{slot.preview}\n[{lost}{left} of {slot.chars} characters left out]"


def _error(c: Contract, reason: str) -> str:
    if c.error and reason in ("error", "max_iterations"):
        return str(c.error["message"])
    missing = f"these slots are not filled: {', '.join(c.pending_slots)}" if c.pending_slots else ""
    meaning = EXITS.get(reason, reason)
    return "; ".join(part for part in (meaning, missing) if part)


def _outcome(c: Contract) -> JsonObject:
    violations = [{"code": event["code"], "message": event["message"]} for event in c.violations]
    return {
        **c.model_dump(mode="json", include=OUTCOME),
        "missing": list(c.pending_slots),
        "iterations": c.iteration,
        "budget": {"spent": dict(c.budget.spent), "caps": dict(c.budget.caps)},
        "exploit_overdraft": [c.overdraft.used, c.overdraft.total],
        "protocol_violations": len(violations),
        "last_protocol_violation": violations[-1] if violations else None,
    }


MACHINE = Machine(
    name="contract",
    description="Fill named slots from what tools make, within budgets, and wrap up before the end.",
    options=Options,
    context=Contract,
    begin=begin,
    initial=S.DECISION,
    table=TABLE,
    states=(decide, verify, execute, finish),
    step=S.DECISION,
    result=result,
    on_error=on_error,
    on_close=on_close,
    on_reopen=on_reopen,
    on_refused=on_refused,
    writes=frozenset(
        {"exit_reason", "error", "session_log", "wrapup_trigger_reason", "overdraft", "call", "show", "round"}
    ),
    max_transitions=max_transitions,
    # A call comes after a decision and its check.
    most_calls=lambda options, replies: min((max_transitions(options) + 1) // 3, replies),
    roles=("default", "strong", "regular"),
    plain_replies=False,
    exits=EXITS,
    properties=PROPERTIES,
    scenarios=SCENARIOS,
)
