"""What happens in each state of the planner machine but OBSERVE (spec 4.3, 4.5). Everything here is pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from activities.contracts import CallModel, EffectFailed, JsonObject, Message, ModelReplied
from workflows.kernel.errors import FatalError, MaxIterationsExceeded, failure_words, kind_words
from workflows.kernel.fields import freeze
from workflows.kernel.ledger import price_of
from workflows.kernel.machine import At, Said
from workflows.machines.decisions import (
    REASON_LIMIT,
    Decision,
    Hook,
    Policy,
    Progress,
    confidence_of,
)
from workflows.machines.json_text import CUT, NotJson, clean, cut, read_object, unread, was_cut
from workflows.machines.native_calls import with_own_ids
from workflows.machines.planner_context import Context, Options
from workflows.machines.planner_events import (
    Answered,
    Continued,
    ExecutionFailed,
    GoesOn,
    Halted,
    PlanFailed,
    Planned,
    StopDecided,
    Stopped,
    TakenIn,
    ToolsRequested,
    Undecided,
)
from workflows.machines.planner_fsm import MAX_ITERATIONS_EXCEEDED, Fsm, S
from workflows.machines.planner_prompt import (
    DECISION_SCHEMA,
    carry_out,
    decision_prompt,
    plan_prompt,
    summary_request,
)
from workflows.machines.planner_schema import PlanSchema

__all__ = ["Nodes", "halt"]

Changes = dict[str, Any]


def halt(exit_reason: str, error: str) -> Changes:
    """The patch that goes with the way to HALT; the first reason stays."""
    return {"exit_reason": exit_reason, "error": error}


def _plan_failed(message: str, exit_reason: str = "plan_failed") -> tuple[Changes, PlanFailed]:
    text = f"Plan failed: {message}"
    return halt(exit_reason, text), PlanFailed(text)


def _undecided(text: str, exit_reason: str = "invalid_decision") -> tuple[Changes, Undecided]:
    return halt(exit_reason, text), Undecided(text)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The states, with the knobs, the policy, the schema and the hooks that they go by."""

    options: Options
    policy: Policy
    schema: PlanSchema
    prompt_builder: Hook | None = None
    decider: Hook | None = None

    # -- INTAKE, PLAN --------------------

    def intake(self, c: Context, at: At) -> Said:
        """The input becomes a message and the goal. No model."""
        began = datetime.fromtimestamp(at.now, UTC).isoformat()
        said = Message(role="user", content=c.goal or "")
        return {"state": {"goal": c.goal, "started_at": began}, "transcript": (said,)}, TakenIn()

    def plan(self, c: Context, at: At) -> Said:
        """Ask for the plan, once."""
        said = _users(c)
        if self.prompt_builder is not None:
            said = (Message(role="user", content=self._built_prompt(c, self.prompt_builder)), *said[1:])
        return CallModel(
            role="planner",
            transcript=plan_prompt(c.instructions, self.schema.text, c.abilities, said),
            response_schema=self.schema.schema if self.options.plan_format == "json_schema" else None,
            attempts=1,
            label="plan",
        )

    def _built_prompt(self, c: Context, build: Hook) -> str:
        try:
            text = build(c.goal, freeze(c.shared))
        except Exception as error:
            raise FatalError(f"the prompt builder failed: {failure_words(error)}") from error
        if not isinstance(text, str):
            raise FatalError(f"the prompt builder answered {kind_words(text)}; expected a text")
        return clean(text)

    def planned(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """Hold the plan against the schema and the policy (R-003-11)."""
        given = read_object(reply.text)
        if isinstance(given, NotJson):
            return _plan_failed(f"the plan cannot be read: {unread(reply, given.problem)}")
        if problem := self.schema.problem(given):
            return _plan_failed(problem)
        plan = _completed(given, c.goal)
        decision = Decision("plan", plan, confidence_of(plan))
        if violation := self.policy.violation(decision, c.shared):
            return _plan_failed(f"Policy violation: {violation}", "policy_violation")
        said = Message(role="assistant", content=reply.text)
        return {"state": {"plan": plan}, "transcript": (said,)}, Planned()

    def plan_failed(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The model could not be asked, or the prompt builder failed."""
        return _plan_failed(failure.message or failure.type)

    # -- DECIDE --------------------

    def decide(self, c: Context, at: At) -> Said:
        """Shall the plan be carried out? By the default rule, a hook or a model (R-003-1)."""
        plan: Any = c.state.get("plan")
        if not plan or plan.get("goal") is None:
            return _undecided("Invalid plan", "invalid_plan")
        if self.options.decide == "model":
            return CallModel(
                role="decide",
                transcript=decision_prompt(c.instructions, c.goal or "", plan, _users(c)[1:]),
                response_schema=DECISION_SCHEMA if self.options.plan_format == "json_schema" else None,
                attempts=1,
                label="decide",
            )
        if self.decider is None:
            return self._decided(c, {"continue": True})
        shown = freeze(plan), freeze(c.shared)
        try:
            answer = self.decider(*shown)
            decision = dict(answer) if isinstance(answer, Mapping) else answer
        except Exception as error:  # noqa: BLE001  # a user's hook may raise anything
            return _undecided(f"Invalid decision: the hook failed: {failure_words(error)}")
        return self._decided(c, decision)

    def decided(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """What the model decided."""
        given = read_object(reply.text)
        return (
            _undecided(f"Invalid decision: {unread(reply, given.problem)}")
            if isinstance(given, NotJson)
            else self._decided(c, given)
        )

    def _decided(self, c: Context, answer: Any) -> Said:
        if not isinstance(answer, dict) or not isinstance(answer.get("continue"), bool):
            came = "a mapping without it" if isinstance(answer, dict) else kind_words(answer)
            expected = "expected a mapping with `continue`, true or false"
            return _undecided(f"Invalid decision: {came} came; {expected}")
        said = answer.get("reason")
        reason = cut(clean(said), REASON_LIMIT) if isinstance(said, str) else ""
        kept: JsonObject = {"continue": answer["continue"], "reason": reason}
        patch: Changes = {"state": {"decision": kept}}
        if not answer["continue"]:
            return {**patch, "exit_reason": "stopped"}, StopDecided(*([reason] if reason else []))
        decision = Decision("execute", _mapping(c.state.get("plan")), confidence_of(answer))
        if violation := self.policy.violation(decision, c.shared):
            return _undecided(f"Policy violation: {violation}", "policy_violation")
        return {**patch, "transcript": (carry_out(),)}, Continued(*([reason] if reason else []))

    def decide_failed(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The model that decides could not be asked."""
        return _undecided(f"Invalid decision: {failure.message or failure.type}")

    # -- EXECUTE --------------------

    def execute(self, c: Context, at: At) -> Said:
        """One call with the whole conversation and the tools; never repeated (R-003-2)."""
        counted = Fsm(S.EXECUTE.value, c.iteration, self.options.max_iterations)
        try:
            number = counted.increment_iteration().iteration_count
        except MaxIterationsExceeded as error:
            return halt("max_iterations", str(error)), ExecutionFailed(str(error))
        return CallModel(transcript=c.transcript, offer=c.tools, attempts=1, label=f"execute #{number}")

    def executed(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """Keep the reply with its calls (R-003-3); count the iteration."""
        # Names are cut where no tool's could be so long: they would go into every record.
        cut_short = tuple(call.model_copy(update={"name": cut(call.name)}) for call in reply.tool_calls)
        said = with_own_ids(reply.message.model_copy(update={"tool_calls": cut_short}), len(c.transcript))
        calls = said.tool_calls
        patch: Changes = {"transcript": (said,), "iteration": 1}
        if not calls and was_cut(reply):
            text = f"Execution failed: {CUT}"
            return {**patch, **halt("execution_failed", text)}, ExecutionFailed(text)
        if not calls:
            return {**patch, "exit_reason": "answered"}, Answered()
        names = "; ".join(f"{call.name}({call.arguments})" for call in calls)
        patch |= {"reply_cut": True} if was_cut(reply) else {}
        return {**patch, "pending": calls}, ToolsRequested(f"Tool calls requested: {names[:300]}")

    def execution_failed(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The model could not be asked; the call counts all the same."""
        text = f"Execution failed: {failure.message or failure.type}"
        return {**halt("execution_failed", text), "iteration": 1}, ExecutionFailed(text)

    # -- LOOP_CHECK --------------------

    def loop_check(self, c: Context, at: At) -> Said:
        """Go on, end or halt: in exactly this order (spec 4.5)."""
        if c.error is not None:
            return Halted(c.error)
        if c.iteration >= self.options.max_iterations:
            return halt("max_iterations", MAX_ITERATIONS_EXCEEDED), Halted(MAX_ITERATIONS_EXCEEDED)
        if used_up := self._used_up(at):
            return halt(*used_up), Halted(used_up[1])
        if self.policy.has_converged(c.shared, Progress(c.marks)):
            return {"exit_reason": "converged"}, Stopped("Policy indicates convergence")
        if c.observations:
            return GoesOn()
        return {"exit_reason": "no_observations"}, Stopped("No observations")

    def _used_up(self, at: At) -> tuple[str, str] | None:
        """Time first, then the budgets in their order (R-003-6)."""
        limit, spent = self.options.time_limit, at.ledger.used
        if limit is not None and spent("seconds") >= limit:
            return "time_limit", "Time limit exceeded"
        for counter, most in self.options.budgets.items():
            if spent(counter) >= most:
                return "budget", f"Budget exceeded: {counter}"
        return None

    def check_failed(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The hook `converged` failed."""
        return halt("policy_failed", failure.message), Halted(failure.message)

    # -- FINALIZE --------------------

    def finalize(self, c: Context, at: At) -> Said:
        """End, or ask for a summary first: no tools, once, and only if a limit leaves room for it."""
        if not self.options.finalize_summary:
            return None
        asked = CallModel(
            role="summary", transcript=c.transcript.add(summary_request()), attempts=1, label="summary"
        )
        breach = at.ledger.breach(price_of(asked))
        return ({"summary_error": f"the limit is reached, {breach}"}, None) if breach else asked

    def summed_up(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """The summary is the last message, if all of it is there."""
        if was_cut(reply):
            return {"summary_error": CUT}, None
        return {"transcript": (summary_request(), Message(role="assistant", content=reply.text))}, None

    def no_summary(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The work is done: a summary that fails takes nothing away from it."""
        return {"summary_error": failure.message or failure.type}, None


def _users(c: Context) -> tuple[Message, ...]:
    """What the user said: the input, and what came on the way."""
    return tuple(message for message in c.transcript if message.role == "user")


def _mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _completed(given: JsonObject, goal: str | None) -> JsonObject:
    """The plan with what it left out (spec 4.3)."""
    own = given.get("goal")
    lists: JsonObject = {key: given.get(key) or [] for key in ("required_capabilities", "initial_steps")}
    return {**given, "goal": goal if own is None else own, **lists}
