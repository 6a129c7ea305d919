"""The hardest visits of the machines to come, as small real declarations.

What they need must be slots of the kernel; the loop has no branch for any of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest

from activities.contracts import (
    CallModel,
    CallTools,
    Effect,
    EffectFailed,
    Frozen,
    Message,
    ModelReplied,
    ToolCall,
    ToolResult,
    ToolRun,
    ToolsReturned,
    Transcript,
)
from workflows.kernel.errors import RecoverableError
from workflows.kernel.fields import APPEND, COUNT, FIRST
from workflows.kernel.machine import At, Exit, Machine, Row, State
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import Step
from workflows.kernel.step import advance, start


def play(machine: Machine[Any], context: Any, *answers: Any) -> tuple[Step[Any], list[Any], list[str]]:
    """The last step, the effects asked for, and the log as `state: event`; the log rebuilds the state."""
    step = start(machine, context, now=0)
    records, effects = list(step.records), [step.effect]
    for answer in answers:
        step = advance(machine, step, answer, now=1)
        records += step.records
        effects.append(step.effect)
    assert rebuild(machine, records) == (step.snapshot.state, step.snapshot.context)
    return step, effects, [f"{r.state}: {r.event}" for r in records[1:]]


def _event(name: str) -> type:
    return dataclass(frozen=True)(type(name, (), {"__annotations__": {"reason": str}, "reason": ""}))


Received, NoToolCalls, ToolCallsFound = _event("Received"), _event("NoToolCalls"), _event("ToolCallsFound")
PolicyStop, ToolsExecuted, MaxReached = _event("PolicyStop"), _event("ToolsExecuted"), _event("MaxReached")

# -- tools: several calls in order, then the model in the same visit ------------------------------------


class T(Enum):
    """Spec 2.5."""

    INIT = "INIT"
    PROMPTING = "PROMPTING"
    EXECUTING_TOOLS = "EXECUTING_TOOLS"
    DONE = "DONE"


class Talk(Frozen):
    """What a run with native tool calls remembers."""

    transcript: Annotated[Transcript, APPEND] = Transcript()
    pending: tuple[ToolCall, ...] = ()
    iteration: Annotated[int, COUNT] = 0
    response: str = ""
    finish: Annotated[str | None, FIRST] = None


def _took(reply: ModelReplied) -> dict[str, Any]:
    return {"transcript": (reply.message,), "pending": reply.tool_calls, "response": reply.text}


def _tools_machine(max_iterations: int, stop_at: int = 99) -> Machine[Any]:
    stopped = {"response": "[Stopped by custom policy]", "finish": "policy_stop"}

    def look(c: Any, at: At) -> Any:
        if c.iteration >= stop_at:
            return stopped, PolicyStop()
        return ToolCallsFound() if c.pending else ({"finish": "stop"}, NoToolCalls())

    def run(c: Any, at: At) -> CallTools:
        calls = [ToolRun(id=p.id, tool=p.name, arguments=json.loads(p.arguments)) for p in c.pending]
        return CallTools(runs=tuple(calls))

    def ran(c: Any, answer: Any, at: At) -> Any:
        if isinstance(answer, ModelReplied):
            if c.iteration < max_iterations:
                return _took(answer), ToolsExecuted()
            return {"response": answer.text, "finish": "max_iterations"}, MaxReached()
        said = tuple(Message(role="tool", content=r.output, tool_call_id=r.id) for r in answer.results)
        patch: dict[str, Any] = {"transcript": said, "iteration": 1}
        if c.iteration + 1 >= stop_at:
            return patch | stopped, PolicyStop()
        forced = c.iteration + 1 >= max_iterations
        return patch, CallModel(transcript=c.transcript.add(*said), tool_choice="none" if forced else "auto")

    fields = set(Talk.model_fields)
    asks: dict[str, Any] = {"reads": fields, "writes": fields}
    return Machine(
        name="tools", context=Talk, initial=T.INIT, final={T.DONE}, step_state=T.PROMPTING,
        table=[
            Row(T.INIT, Received, T.PROMPTING),
            Row(T.PROMPTING, NoToolCalls, T.DONE), Row(T.PROMPTING, PolicyStop, T.DONE),
            Row(T.PROMPTING, ToolCallsFound, T.EXECUTING_TOOLS),
            Row(T.EXECUTING_TOOLS, ToolsExecuted, T.PROMPTING),
            Row(T.EXECUTING_TOOLS, PolicyStop, T.DONE), Row(T.EXECUTING_TOOLS, MaxReached, T.DONE),
        ],
        states={
            T.INIT: State(
                enter=lambda c, at: CallModel(transcript=c.transcript),
                resume=lambda c, reply, at: (_took(reply), Received()), grants={"call_model"}, **asks,
            ),
            T.PROMPTING: State(enter=look, spends="rounds", **asks),
            T.EXECUTING_TOOLS: State(enter=run, resume=ran, grants={"call_tools", "call_model"}, **asks),
            T.DONE: State(),
        },
        result=lambda c, s: Exit(reason=c.finish or "running", ok=c.finish == "stop", answer=c.response),
    )  # fmt: skip


CALLS = (ToolCall(id="1", name="ls", arguments="{}"), ToolCall(id="2", name="cat", arguments='{"f": 1}'))
ASKS = ModelReplied(text="", tool_calls=CALLS)
RESULTS = ToolsReturned(
    results=(ToolResult(id="1", tool="ls", output="a"), ToolResult(id="2", tool="cat", output="b"))
)
SAYS = ModelReplied(text="forty-two")


def test_tools_run_in_order_and_the_model_is_asked_in_the_same_visit() -> None:
    step, effects, log = play(_tools_machine(5), Talk(), ASKS, RESULTS, SAYS)
    assert [e.kind for e in effects if e] == ["call_model", "call_tools", "call_model"]
    assert effects[1].tools == ("ls", "cat")
    assert [m.role for m in step.snapshot.context.transcript] == ["assistant", "tool", "tool", "assistant"]
    assert step.exit == Exit(reason="stop", ok=True, answer="forty-two")
    assert log[2:4] == ["EXECUTING_TOOLS: call_model", "EXECUTING_TOOLS: ToolsExecuted"]


def test_the_limit_forces_one_extra_call_that_may_not_use_tools() -> None:
    """N tool iterations, N+1 model calls; the extra reply's calls are ignored."""
    extra = ASKS.model_copy(update={"text": "enough"})
    step, effects, _ = play(_tools_machine(2), Talk(), ASKS, RESULTS, ASKS, RESULTS, extra)
    assert [e.tool_choice for e in effects if isinstance(e, CallModel)] == ["auto", "auto", "none"]
    assert (step.exit.reason, step.exit.answer) == ("max_iterations", "enough")  # type: ignore[union-attr]  # the run is over


def test_the_policy_stops_before_the_limit_and_without_another_call() -> None:
    step, effects, log = play(_tools_machine(1, stop_at=1), Talk(), ASKS, RESULTS)
    assert (effects[-1], log[-1]) == (None, "EXECUTING_TOOLS: PolicyStop")
    assert step.exit == Exit(reason="policy_stop", answer="[Stopped by custom policy]")


# -- code: a block asks for sub-queries while it runs ---------------------------------------------------


class RunCode(Effect):
    """Run a block from the start, or go on behind the answers to its sub-queries."""

    kind: Literal["run_code"] = "run_code"
    block: str
    answers: tuple[str, ...] = ()


class CodePaused(Frozen):
    """The block waits for the answer to a sub-query."""

    kind: Literal["code_paused"] = "code_paused"
    prompt: str


class CodeRan(Frozen):
    """The block is done."""

    kind: Literal["code_ran"] = "code_ran"
    output: str


class Code(Frozen):
    """What the code machine remembers."""

    blocks: tuple[str, ...]
    outputs: Annotated[tuple[str, ...], APPEND] = ()
    answers: Annotated[tuple[str, ...], APPEND] = ()
    """To the sub-queries of the block that runs now."""


CodeExecuted = _event("CodeExecuted")


class X(Enum):
    """Two of the states of spec 2.2."""

    EXECUTING = "EXECUTING"
    DONE = "DONE"


def _code_machine() -> Machine[Any]:
    def go(c: Any, at: At) -> RunCode:
        return RunCode(block=c.blocks[len(c.outputs)])

    def hear(c: Any, answer: Any, at: At) -> Any:
        if isinstance(answer, CodePaused):
            return CallModel(transcript=Transcript([Message(role="user", content=answer.prompt)]), role="sub")
        block = c.blocks[len(c.outputs)]
        if isinstance(answer, ModelReplied):
            return {"answers": (answer.text,)}, RunCode(block=block, answers=(*c.answers, answer.text))
        done = len(c.outputs) + 1
        # A second field is emptied by a row's reset, for the next block the answers of this one count out.
        patch = {"outputs": (answer.output,)}
        return (patch, RunCode(block=c.blocks[done])) if done < len(c.blocks) else (patch, CodeExecuted())

    return Machine(
        name="code", context=Code, initial=X.EXECUTING, final={X.DONE},
        table=[Row(X.EXECUTING, CodeExecuted, X.DONE, reset=("answers",))],
        states={
            X.EXECUTING: State(
                enter=go, resume=hear, grants={"run_code", "call_model"}, max_effects=50,
                reads={"blocks", "outputs", "answers"}, writes={"outputs", "answers"},
            ),
            X.DONE: State(),
        },
        result=lambda c, s: Exit(reason="stop", ok=True, answer=c.outputs[-1] if c.outputs else None),
    )  # fmt: skip


def test_a_code_block_pauses_for_sub_queries_and_goes_on_within_one_visit() -> None:
    replies = [ModelReplied(text="red"), ModelReplied(text="blue")]
    step, effects, log = play(
        _code_machine(), Code(blocks=("one", "two")),
        CodePaused(prompt="which?"), replies[0], CodePaused(prompt="and?"), replies[1],
        CodeRan(output="red blue"), CodeRan(output="two done"),
    )  # fmt: skip
    runs = [e for e in effects if isinstance(e, RunCode)]
    assert [(run.block, run.answers) for run in runs] == [
        ("one", ()), ("one", ("red",)), ("one", ("red", "blue")), ("two", ()),
    ]  # fmt: skip
    assert (step.snapshot.visit, step.snapshot.context.answers) == (2, ())
    assert step.snapshot.context.outputs == ("red blue", "two done")
    assert log == [*["EXECUTING: run_code"] * 3, "EXECUTING: CodeExecuted"]


# -- the planner: one tool at a time, halt at LOOP_CHECK, a summary in the final state -------------------


class P(Enum):
    """The states of spec 4.2 behind the decision."""

    EXECUTE = "EXECUTE"
    OBSERVE = "OBSERVE"
    LOOP_CHECK = "LOOP_CHECK"
    FINALIZE = "FINALIZE"
    HALT = "HALT"


class Plan(Frozen):
    """What the planner remembers."""

    pending: tuple[ToolCall, ...] = ()
    observations: Annotated[tuple[str, ...], APPEND] = ()
    iteration: Annotated[int, COUNT] = 0
    halt_reason: Annotated[str | None, FIRST] = None
    final_message: str = ""


Called, Answered, Failed = _event("Called"), _event("Answered"), _event("Failed")
Observed, Halted, Again, Stopped = _event("Observed"), _event("Halted"), _event("Again"), _event("Stopped")
ASK = CallModel(transcript=Transcript(), attempts=1)


def _executed(c: Any, answer: Any, at: At) -> Any:
    if isinstance(answer, EffectFailed):
        reason = f"Execution failed: {answer.message}"
        return {"halt_reason": reason}, Failed(reason)
    patch = {"iteration": 1, "pending": answer.tool_calls, "final_message": answer.text}
    return patch, Called() if answer.tool_calls else Answered()


def _next_call(pending: tuple[ToolCall, ...], done: int) -> Any:
    """The next call, or the event; a call that policy or parser refuse asks for the halt."""
    if done == len(pending):
        return Observed()
    call = pending[done]
    if call.name == "forbidden":
        raise RecoverableError("forbidden is not allowed")
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return {"halt_reason": f"Invalid tool call arguments {call.arguments}"}, Observed()
    return CallTools(runs=(ToolRun(id=call.id, tool=call.name, arguments=arguments),), attempts=1)


def _observe(c: Any, at: At) -> Any:
    return _next_call(c.pending, 0)


def _observed(c: Any, answer: ToolsReturned, at: At) -> Any:
    """Keep the record first: what comes next may be refused, and this result must not be lost."""
    (result,) = answer.results
    if not result.ok:
        return {"halt_reason": f"Tool failure: {result.tool}: {result.output}"}, Observed()
    said = _next_call(c.pending, len(c.observations) + 1)
    more, what = said if isinstance(said, tuple) else ({}, said)
    return {"observations": (result.output,), **more}, what


def _loop_check(c: Any, at: At) -> Any:
    if c.halt_reason:
        return Halted(c.halt_reason)
    if c.iteration >= 3:
        return {"halt_reason": "Max iterations exceeded"}, Halted("Max iterations exceeded")
    return Again() if c.observations else Stopped()


def _refused(c: Any, failure: EffectFailed, at: At) -> Any:
    return {"halt_reason": f"Policy violation: {failure.message}"}, Observed()


def _ended(c: Plan, state: Enum) -> Exit:
    ok = state is P.FINALIZE
    return Exit(reason="done" if ok else "halted", ok=ok, answer=c.final_message, error=c.halt_reason)


def _planner() -> Machine[Any]:
    fields = set(Plan.model_fields)
    rights: dict[str, Any] = {"reads": fields, "writes": fields}
    asks: dict[str, Any] = {"enter": lambda c, at: ASK, "grants": {"call_model"}, **rights}
    return Machine(
        name="planner", context=Plan, initial=P.EXECUTE, final={P.FINALIZE, P.HALT},
        table=[
            Row(P.EXECUTE, Called, P.OBSERVE), Row(P.EXECUTE, Answered, P.FINALIZE),
            Row(P.EXECUTE, Failed, P.HALT), Row(P.OBSERVE, Observed, P.LOOP_CHECK),
            Row(P.LOOP_CHECK, Halted, P.HALT), Row(P.LOOP_CHECK, Stopped, P.FINALIZE),
            Row(P.LOOP_CHECK, Again, P.EXECUTE, reset=("pending", "observations")),
        ],
        states={
            P.EXECUTE: State(resume=_executed, spends="n", **asks),
            P.OBSERVE: State(enter=_observe, resume=_observed, grants={"call_tools"}, **rights),
            P.LOOP_CHECK: State(enter=_loop_check, **rights),
            P.FINALIZE: State(resume=lambda c, r, at: ({"final_message": r.text}, None), **asks),
            P.HALT: State(holds=lambda c, last: "" if c.halt_reason else "no reason was given"),
        },
        on_error={"recoverable": _refused}, result=_ended,
    )  # fmt: skip


def _calls(*calls: tuple[str, str]) -> ModelReplied:
    made = tuple(ToolCall(id=str(n), name=name, arguments=text) for n, (name, text) in enumerate(calls))
    return ModelReplied(text="", tool_calls=made)


def _result(name: str, error: Any = None) -> ToolsReturned:
    return ToolsReturned(results=(ToolResult(id="0", tool=name, output=f"{name}!", error=error),))


def test_the_planner_runs_one_call_at_a_time_and_ends_with_a_summary_in_its_final_state() -> None:
    step, effects, log = play(
        _planner(), Plan(), _calls(("a", "{}"), ("b", "{}")), _result("a"), _result("b"), SAYS,
        ModelReplied(text="summary"),
    )  # fmt: skip
    assert [e.tools for e in effects if isinstance(e, CallTools)] == [("a",), ("b",)]
    assert step.exit == Exit(reason="done", ok=True, answer="summary")
    assert log[-2:] == ["EXECUTE: Answered", "FINALIZE: Finished"]


@pytest.mark.parametrize(
    ("answers", "error", "kept"),
    [
        (
            [_calls(("a", "{}"), ("b", "{}")), _result("a"), _result("b", "failed")],
            "Tool failure: b: b!",
            ("a!",),
        ),
        ([_calls(("a", "{}"), ("b", "oops")), _result("a")], "Invalid tool call arguments oops", ("a!",)),
        ([_calls(("forbidden", "{}"))], "Policy violation: forbidden is not allowed", ()),
    ],
)
def test_a_halt_is_decided_in_loop_check_and_earlier_results_are_kept(
    answers: Any, error: str, kept: tuple[str, ...]
) -> None:
    step, _, log = play(_planner(), Plan(), *answers)
    assert (step.exit.error, step.snapshot.context.observations) == (error, kept)  # type: ignore[union-attr]  # the run is over
    assert log[-2:] == ["OBSERVE: Observed", "LOOP_CHECK: Halted"]


def test_a_failed_model_call_leads_from_execute_to_halt_through_resume() -> None:
    failed = EffectFailed(error="fatal", type="HTTP401", message="bad key")
    step, _, log = play(_planner(), Plan(), failed)
    assert (step.exit.error, log) == ("Execution failed: bad key", ["EXECUTE: Failed"])  # type: ignore[union-attr]  # the run is over


def test_with_three_iterations_and_a_model_that_always_asks_there_are_three_calls() -> None:
    answers = [answer for _ in range(3) for answer in (_calls(("a", "{}")), _result("a"))]
    step, effects, _ = play(_planner(), Plan(), *answers)
    assert sum(isinstance(e, CallModel) for e in effects) == 3
    assert step.exit.error == "Max iterations exceeded"  # type: ignore[union-attr]  # the run is over
