"""The four nodes of the contract machine (spec 5.7, 5.10 to 5.13). Everything here is pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from activities.contracts import (
    CallModel,
    CallTools,
    EffectFailed,
    JsonObject,
    ModelReplied,
    ToolResult,
    ToolRun,
    ToolsReturned,
    Transcript,
)
from activities.contracts_artifacts import ArtifactRead, ArtifactsRead, ArtifactText, ReadArtifacts
from workflows.kernel.machine import At, Said
from workflows.machines.contract_artifacts import registered
from workflows.machines.contract_budget import Spent, added, strategy_of
from workflows.machines.contract_context import Options, RoundTiming
from workflows.machines.contract_events import (
    ExitAsked,
    ForcedRerun,
    GraphFailed,
    Rerun,
    ToolFinished,
    ToolWanted,
    Verified,
    Violated,
)
from workflows.machines.contract_exit import by_reference, ended, resolved, with_texts
from workflows.machines.contract_journal import heading, journal, shown_reads
from workflows.machines.contract_mapping import KEPT_CHARS, Mapped, filled, reads_of, wishes_of
from workflows.machines.contract_reply import Decision, WantedCall, decision_of
from workflows.machines.contract_round import Gate, Round, end_reason, gate_of, judged, settled
from workflows.machines.contract_verify import Verdict, verified
from workflows.machines.declined import declined

__all__ = ["Nodes"]

Changes = dict[str, Any]


def _logged(c: Any, *events: JsonObject) -> tuple[JsonObject, ...]:
    return tuple({"event": event["event"], "round": c.round_index, **event} for event in events)


def _timed(c: Any, at: At, reason: str) -> tuple[RoundTiming, ...]:
    started = at.now if c.round_started is None else c.round_started
    return (
        RoundTiming.model_validate(
            {"round": c.round_index, "started": started, "ended": at.now, "end_reason": reason}
        ),
    )


def _is_told(c: Any) -> bool:
    """Has the model got this round's journal, and not answered it yet? Then the state was entered again."""
    if c.round_started is None:
        return False
    unanswered = takewhile(lambda sent: sent.role != "assistant", reversed(c.transcript.messages))
    return any(sent.content.startswith(heading(c.round_index)) for sent in unanswered)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes, with the knobs they go by."""

    options: Options

    # -- decision: show, ask, map, route (5.7) --------------------

    def decide(self, c: Any, at: At) -> Said:
        """Steps 1 to 3: the gate, what is shown, and the question to the model."""
        if c.exit_reason or (c.pending_exit_reason and not c.is_wrapup_round):
            return ExitAsked(reason=resolved(c) or "")
        gate = gate_of(c)
        if gate.state == "exhausted" and self.options.exhausted_round == "skip":
            pending = {"pending_exit_reason": "max_iterations", "allow_exploit_overdraft": False}
            return {**pending, **_exhausted()}, ExitAsked(reason="max_iterations")
        if _is_told(c):
            return self._call(c, c.transcript)
        reads = shown_reads(c)
        if reads:
            return {"round_started": at.now}, self._read(reads, "read what the model asked to see")
        return self._ask(c, at, gate, ())

    def _read(self, reads: tuple[ArtifactRead, ...], label: str, chars: int | None = None) -> ReadArtifacts:
        return ReadArtifacts(reads=reads, chars=chars or self.options.shown_chars, label=label)

    def _ask(self, c: Any, at: At, gate: Gate, texts: Sequence[ArtifactText]) -> Said:
        message = journal(c, self.options, gate, texts)
        there = [id for id in c.artifacts if id not in c.round_snapshot_artifact_ids]
        patch: Changes = {"transcript": (message,), "round_snapshot_artifact_ids": tuple(there)}
        if c.round_started is None:
            patch["round_started"] = at.now
        return patch, self._call(c, c.transcript.add(message))

    def _call(self, c: Any, transcript: Transcript) -> CallModel:
        model = c.last_decision.next_decision_model if c.last_decision else "strong"
        return CallModel(
            role=model,
            transcript=transcript,
            attempts=self.options.max_model_attempts,
            label=f"decide #{c.round_index}",
        )

    def decided(self, c: Any, answer: Any, at: At) -> Said:
        """The journal's texts, then the reply, then the texts of its mapping."""
        if isinstance(answer, ModelReplied):
            return self._heard(c, answer, at)
        if at.call == 1:
            return self._ask(c, at, gate_of(c), answer.texts)
        return self._closed(c, c.last_decision, answer, at)

    def _heard(self, c: Any, reply: ModelReplied, at: At) -> Said:
        """The decision came back; what it wants mapped is looked up before it counts.

        Entered again during that look-up, the state asks the model again in the same round, with its answer
        before it: nothing was charged or mapped for what it had said.
        """
        decision = decision_of(reply)
        patch: Changes = {"last_decision": decision, "iteration": 1, "transcript": (reply.message,)}
        reads = reads_of(wishes_of(c, decision))
        if reads:
            return patch, self._read(reads, "read what is to be mapped", KEPT_CHARS)
        more, event = self._closed(c, decision, ArtifactsRead(texts=()), at)
        return {**patch, **more}, event

    def _closed(self, c: Any, decision: Decision, read: ArtifactsRead, at: At) -> tuple[Changes, object]:
        """Steps 4 to 13 on what is known now."""
        wishes = wishes_of(c, decision)
        mapped = filled(wishes, read.texts)
        done = settled(c, judged(c, decision))
        patch: Changes = {
            "session_log": _logged(c, *self._events(decision, done, mapped if wishes else None)),
            **_new(c, stage=done.stage, **_shows(done)),
            **_remembered(decision),
            **_overdraft(c, done),
        }
        if done.spent:
            patch["budget"] = done.spent
        if wishes:
            patch |= {"slots": mapped.slots, "mapped_round_index": c.round_index}
        if done.gate.state == "exhausted":
            patch |= _exhausted()
        if done.forced:
            patch |= _violated(done.events[0])
        return self._routed(c, patch, done, at)

    def _events(self, decision: Decision, done: Round, mapped: Mapped | None) -> list[JsonObject]:
        call = decision.tool_call
        made: JsonObject = {
            "event": "decision",
            "action": decision.action,
            "becomes": done.action if done.action != decision.action else None,
            "strategy": decision.strategy,
            "tool_id": call.tool_id if call and decision.action == "call_tool" else None,
            "focus_slot": decision.focus_slot,
            "notes": decision.notes[:500],
            "left_out": dict(decision.left_out) or None,
        }
        events = [made, *done.events]
        if mapped is not None:
            report: JsonObject = {"applied": list(mapped.slots), "dropped": list(mapped.dropped)}
            events.append({"event": "best_effort_mapping", **report, "errors": list(mapped.errors)})
        return events

    def _routed(self, c: Any, patch: Changes, done: Round, at: At) -> tuple[Changes, object]:
        """5.9: on to the tool, around again, or to an exit that is still to be granted."""
        notes = done.decision.notes
        if done.action == "call_tool":
            call = done.decision.tool_call
            wanted = call.tool_id if call else "no tool"
            return patch, ToolWanted(reason=f"{notes} -> {wanted}" if notes else wanted)
        timings = _timed(c, at, end_reason(done.action))
        if done.action == "decision":
            patch |= {"round_timings": timings, "round_index": 1}
            again = ForcedRerun(done.decision.problem) if done.forced else Rerun(notes)
            return patch, again
        patch |= {"round_timings": timings, "pending_exit_reason": done.pending}
        return patch, ExitAsked(reason=done.pending or "")

    # -- protocol_verify (5.11) --------------------

    def verify(self, c: Any, at: At) -> Said:
        """Hold the call against the protocol; a violation costs the round and goes back."""
        verdict = verified(c.last_decision.tool_call or WantedCall(), c.tools, self.options)
        event: JsonObject = {
            "event": "protocol_verify",
            "ok": not verdict.violations,
            "tool_id": verdict.tool,
            "warnings": list(verdict.warnings),
        }
        if verdict.violations:
            return self._refused(c, verdict, event, at)
        run = ToolRun(
            id=f"round-{c.round_index}",
            tool=verdict.tool,
            arguments=verdict.arguments or {},
            artifacts=verdict.artifacts,
        )
        patch = {"call": run, "protocol_verify_ok": True, "session_log": _logged(c, event)}
        return patch, Verified(reason=run.title)

    def _refused(self, c: Any, verdict: Verdict, event: JsonObject, at: At) -> Said:
        found: list[JsonObject] = [
            {"event": "protocol_violation", "code": v.code, "message": v.message} for v in verdict.violations
        ]
        codes = [str(one["code"]) for one in found]
        invalid: JsonObject = {"event": "tool_call_invalid", "tool_id": verdict.tool, "codes": list(codes)}
        render: Spent = {"render": 1} if c.last_strategy == "render" else {}
        patch = {
            "protocol_verify_ok": False,
            "protocol_violation_count": len(found),
            "last_protocol_violation": {k: v for k, v in found[-1].items() if k != "event"},
            "budget": added({}, {"decisions": 1, **strategy_of(c.last_strategy), **render}, c.stage),
            "round_timings": _timed(c, at, "protocol_violation"),
            "round_index": 1,
            "session_log": _logged(c, event, *found, invalid),
        }
        return patch, Violated(reason="; ".join(v.message for v in verdict.violations))

    # -- tool_execution (5.12) --------------------

    def execute(self, c: Any, at: At) -> Said:
        """Run the one tool."""
        started: JsonObject = {"event": "tool_started", "tool_id": c.call.tool}
        patch = {"session_log": _logged(c, started)}
        return patch, CallTools(runs=(c.call,), attempts=self.options.max_tool_attempts)

    def executed(self, c: Any, answer: ToolsReturned, at: At) -> Said:
        """Register the artifacts, also those of a tool that failed; the round is charged."""
        if not answer.results:
            return _failed(f"{c.call.tool}: no result came back")
        result: ToolResult = answer.results[0]
        if result.error == "unknown_outcome":
            return _failed(f"{result.tool}: {result.output}")
        ran = not declined(result)
        new = registered(c, result) if ran else {}
        writes = c.last_strategy == "render" or (ran and result.tool in self.options.write_tools)
        render: Spent = {"render": 1} if writes else {}
        # A call that a person did not let through costs the round, as one that breaks the protocol (5.6).
        tools: Spent = {"tools": 1} if ran else {}
        amounts = {"decisions": 1, **tools, **strategy_of(c.last_strategy), **render}
        event: JsonObject = {
            "event": "tool_finished" if result.ok else "tool_error" if ran else "tool_not_run",
            "tool_id": result.tool,
            "artifacts": list(new),
            "error": None if result.ok else result.output[:500],
        }
        patch = {
            "artifacts": new,
            "budget": added({}, amounts, c.stage),
            "round_timings": _timed(c, at, "call_tool"),
            "round_index": 1,
            "session_log": _logged(c, event),
        }
        return patch, ToolFinished(reason=f"{result.tool}: {', '.join(new) if ran else result.output}")

    # -- exit (5.13) --------------------

    def leave(self, c: Any, at: At) -> Said:
        """The texts that slots hold by reference, then the last override and the last event."""
        held = by_reference(c).values()
        reads = tuple(ArtifactRead(digest=slot.digest, path=slot.path) for slot in held)
        if reads:
            return {}, self._read(reads, "read the texts of the slots", self.options.slot_chars)
        return ended(c, {}), None

    def left(self, c: Any, answer: ArtifactsRead, at: At) -> Said:
        """Slots get their texts; one whose text is lost is not filled."""
        return ended(c, with_texts(by_reference(c), answer.texts)), None

    def unread(self, c: Any, failure: EffectFailed, at: At) -> Said:
        """The store could not be asked: the slots' texts are lost, the run ends nevertheless."""
        lost = ArtifactText(problem=f"{failure.type}: {failure.message}")
        held = by_reference(c)
        return ended(c, with_texts(held, [lost] * len(held))), None

    # -- failures --------------------

    def failed(self, c: Any, failure: EffectFailed, at: At) -> tuple[Changes, object]:
        """What no round can mend ends the run; nothing is raised."""
        return _failed(f"{failure.type}: {failure.message}")


def _failed(text: str) -> tuple[Changes, GraphFailed]:
    error: JsonObject = {"code": "graph_error", "message": text}
    return {"exit_reason": "error", "error": error}, GraphFailed(reason=text)


def _new(c: Any, **values: Any) -> Changes:
    """Those of the values that are not there already."""
    return {name: value for name, value in values.items() if getattr(c, name) != value}


def _shows(done: Round) -> Changes:
    """What the next round is shown."""
    wanted = done.decision if done.show else Decision()
    return {"shown_artifacts": wanted.show_artifacts, "shown_skills": wanted.show_skills}


def _exhausted() -> Changes:
    text = "the budget is used up: no decision rounds or no tool calls are left"
    return {"error": {"code": "budget_exhausted", "message": text}}


def _violated(event: JsonObject) -> Changes:
    """A decision without a valid strategy is a violation of the protocol too (5.7, 4)."""
    found = {key: value for key, value in event.items() if key != "event"}
    return {"protocol_violation_count": 1, "last_protocol_violation": found}


def _remembered(decision: Decision) -> Changes:
    """What outlives the decision."""
    patch: Changes = {}
    if decision.strategy in ("explore", "exploit", "render"):
        patch["last_strategy"] = decision.strategy
    if decision.completion_summary:
        patch["completion_summary"] = decision.completion_summary
    if decision.action == "clarify":
        patch["clarification_questions"] = decision.clarification_questions
    return patch


def _overdraft(c: Any, done: Round) -> Changes:
    """The flag is dropped in any other round and at a block; what was used stays (5.8)."""
    if done.gate.state != "overdraft":
        return {"allow_exploit_overdraft": False} if c.allow_exploit_overdraft else {}
    return {
        "allow_exploit_overdraft": done.pending != "exploit_overdraft_blocked",
        "exploit_overdraft_used": done.gate.used,
        "exploit_overdraft_total": done.gate.total,
    }
