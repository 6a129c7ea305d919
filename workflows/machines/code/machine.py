"""Code mode: the model answers a question about a context by writing blocks of code (spec 2.2).

The blocks run in a sandbox. They look into the context and ask models about pieces of it; the model sees
only what they print. Reading order: `table.py`, then the states in its order. How one block runs is in
`block.py`, options and context are in `context.py`.

A block is a visit of its own, so that what a run carries, and what it loses when the model fails, is one
block. In the spec EXECUTING also looks for the answer beside the blocks and asks for the next reply. Here
CONCLUDING does so; a reply without blocks goes there at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workflows.machines.authoring import (
    AgentError,
    AskModel,
    CallTools,
    EffectError,
    Exit,
    Extensions,
    JsonObject,
    Machine,
    Message,
    ModelReplied,
    Patch,
    Run,
    RunCode,
    RunInput,
    RunMachine,
    Say,
    Visit,
    VisitEnd,
    do,
    state,
)
from workflows.machines.code.block import Block, OutcomeUnknown, look_up
from workflows.machines.code.block_calls import ROLES
from workflows.machines.code.context import Code, Options
from workflows.machines.code.prompt import (
    FINAL_REQUEST,
    observed,
    opening,
    output_in,
    remarks,
    shallow_prompt,
)
from workflows.machines.code.proof import PROPERTIES, SCENARIOS
from workflows.machines.code.reply import MAX_BLOCKS, read_reply
from workflows.machines.code.table import (
    TABLE,
    AllRan,
    BlockRan,
    CodeBlocksFound,
    CodeExecuted,
    DepthExceeded,
    Failed,
    FinalAnswerFound,
    LLMResponseReceived,
    MaxIterationsReached,
    NothingToRun,
    PolicyStop,
    S,
)
from workflows.machines.common.json_text import was_cut
from workflows.machines.common.named_parts import find_named
from workflows.machines.common.options import reset_fields
from workflows.machines.common.stopping import STOPPED, Policies, SeenCall, policy_view

__all__ = ["MACHINE", "S"]

NESTED_POLICIES: Mapping[str, Callable[..., Any]] = {
    "never": lambda prompt, depth: False,
    "always": lambda prompt, depth: True,
}
"""Nested policies that need no hook (R-001-6)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run's options name."""

    policies: Policies
    nests: Callable[..., Any]
    """The nested policy: (prompt, depth of the run that asks) -> it becomes a run of its own."""
    nested_options: JsonObject


def prepare(options: Options, extensions: Extensions) -> Prepared:
    """The stopping policies and the nested policy. Raises ValueError for a name that is not loaded."""
    nested, known = options.nested, {**extensions.hooks, **NESTED_POLICIES}
    # A run of the same machine has the same options, so that it ends by the same rules.
    base = options.model_dump(mode="json", exclude_unset=True) if nested.machine == "code" else {}
    policies = Policies.of(options.policies, extensions)
    nests = find_named("nested.policy: unknown hook", nested.policy, known)
    return Prepared(policies, nests, {**base, **nested.options})


def begin(input: RunInput, options: Options) -> tuple[Code, list[Message]]:
    """The opening messages; a run that is nested too deep for code has other ones."""
    if not input.goal.strip():
        raise ValueError("the goal is empty: write the question that is to be answered")
    if missing := [name for name in options.nested.tools or () if name not in input.tool_names]:
        raise ValueError(
            f"nested.tools: the run has no tool {', '.join(missing)}; name it under `tools`, too"
        )
    if input.depth >= options.max_depth:
        return Code(), shallow_prompt(input, options.shallow_chars)
    compressed = options.compression is not None
    return Code(), opening(input, options.block, options.max_iterations, compressed=compressed)


# -- INIT, SHALLOW_CALL ---------------------------------------------------------------------------

REPLY = {"cut", "tokens", "reaches"}
ENDS = {"answer", "finish", "policy"}
POLICY_VIEW = {"iteration", "policy_memory", "last_result", "blocks", "outputs"}
SANDBOX = {"session", "reaches", "reply_bytes", "run_bytes"}


@state(S.INIT, asks={AskModel}, reads={"reaches"}, writes=REPLY)
def first_reply(c: Code, run: Run) -> Visit:
    """Look at the depth first; then ask the model. No policy is asked before it (2.6)."""
    if run.input.depth >= run.options.max_depth:
        reason = f"nested {run.input.depth} deep; `max_depth` is {run.options.max_depth}"
        return {}, DepthExceeded(reason)
    reply = yield from do(AskModel(label="think #1", attempts=run.options.max_model_attempts))
    return _facts(c, reply), LLMResponseReceived()


@state(S.SHALLOW_CALL, asks={AskModel}, reads={"reaches"}, writes={*REPLY, *ENDS})
def shallow(c: Code, run: Run) -> Visit:
    """One call with the bare prompt. `FINAL(...)` is unwrapped; `FINAL_VAR(...)` stays text, for there are
    no variables."""
    reply = yield from do(AskModel(label="think #1", attempts=run.options.max_model_attempts))
    ended = {"answer": read_reply(reply.text).final, "finish": "shallow"}
    return {**_facts(c, reply), **ended}, LLMResponseReceived()


def _facts(c: Code, reply: ModelReplied) -> Patch:
    """What a run remembers of a reply besides its text."""
    return {
        "cut": was_cut(reply),
        "tokens": reply.usage.input_tokens + reply.usage.output_tokens,
        "reaches": c.reaches or "context_" in reply.text,
    }


# -- PROMPTING: a look at the newest reply, without a model call ----------------------------------


@state(
    S.PROMPTING,
    counts="iterations",
    reads=POLICY_VIEW,
    writes={"blocks", "next", "outputs", "reply_bytes", "policy_memory", *ENDS},
)
def look(c: Code, run: Run) -> VisitEnd:
    """Policies first (R-001-8); then blocks, even if there is an answer, too; then the answer."""
    read = read_reply(_text(run))
    wanted = [SeenCall("repl", block) for block in read.blocks]
    if policy := run.prepared.policies.stop(policy_view("code", c, run, wanted, c.last_result)):
        return _stopped(policy)
    if read.final is not None and not read.blocks:
        return _found(c, run, read.final)
    fresh = {"blocks": read.blocks, "next": 0, "outputs": (), "reply_bytes": 0}
    return fresh, CodeBlocksFound() if read.blocks else NothingToRun()


# -- EXECUTING: the next block --------------------------------------------------------------------


@state(
    S.EXECUTING,
    asks={RunCode, AskModel, CallTools, RunMachine},
    counts="blocks",
    reads={"next", *SANDBOX, *POLICY_VIEW},
    writes={"next", "outputs", "policy_memory", *SANDBOX, *ENDS},
)
def execute(c: Code, run: Run) -> Visit:
    """Run the next block with all its calls, and tell the model what it printed."""
    block = Block(c, run)
    yield from block.run_to_end()
    after = {
        "next": c.next + 1,
        "outputs": (*c.outputs, len(run.conversation)),
        "session": block.session,
        "reply_bytes": c.reply_bytes + block.sent,
        "run_bytes": c.run_bytes + block.sent,
    }
    yield Say(say=(observed(block.source, block.output),), keep=after)
    answer = block.answer
    if block.variable is not None:
        answer = yield from look_up(c, run, block.variable)
    if answer is not None:
        return _found(c, run, answer, _ran(c, run))
    return {}, BlockRan() if c.next < len(c.blocks) else AllRan()


# -- CONCLUDING: the answer beside the blocks, or the next reply ----------------------------------


@state(
    S.CONCLUDING,
    asks={RunCode, AskModel},
    reads={"session", "cut", "tokens", "reaches", "dropped", *POLICY_VIEW},
    writes={"session", "iteration", "last_result", "policy_memory", "dropped", *REPLY, *ENDS},
)
def conclude(c: Code, run: Run) -> Visit:
    """The answer in the reply itself, or what the model must know about its reply, and the next one."""
    read = read_reply(_text(run))
    answer = read.final
    if read.final_var is not None:
        answer = yield from look_up(c, run, read.final_var)
    if answer is not None:
        return _found(c, run, answer, _ran(c, run))
    if said := remarks(read, cut=c.cut, nothing=not c.blocks and read.final_var is None):
        yield Say(say=said)
    return (yield from _next_reply(c, run))


def _next_reply(c: Code, run: Run) -> Visit:
    """Count the iteration, ask the policies, then ask for the next reply, or for the answer (2.2, 2.6)."""
    policies, calls = run.prepared.policies, _ran(c, run)
    result = "\n".join(str(call.result) for call in calls)
    memory = policies.notify(policy_view("code", c, run, calls, result), result)
    complete = {"iteration": c.iteration + 1, "policy_memory": memory}
    # Only policies read the result; without them the log need not have the output twice.
    yield Say(keep={**complete, "last_result": result if policies.named else ""})
    if policy := policies.stop(policy_view("code", c, run, calls, c.last_result)):
        return _stopped(policy)

    question = _question(c, run)
    reply = yield from do(question)
    patch = {**_facts(c, reply), "dropped": question.skip[1]}
    if not question.say:
        return patch, CodeExecuted()
    final = read_reply(reply.text).final
    ended = {**patch, "answer": final, "finish": "max_iterations"}
    if final is None:
        return ended, MaxIterationsReached()
    return ended, FinalAnswerFound()


def _question(c: Code, run: Run) -> AskModel:
    """The next question; after the last iteration it asks for the answer."""
    options, forced = run.options, c.iteration >= run.options.max_iterations
    dropped = c.dropped
    if options.compression is not None:
        dropped = options.compression.first_sent(len(run.conversation) + forced, c.tokens, dropped)
    return AskModel(
        say=(FINAL_REQUEST,) if forced else (),
        skip=(2, dropped) if dropped > 2 else (0, 0),
        attempts=options.max_model_attempts,
        label="ask for the answer" if forced else f"think #{c.iteration + 1}",
    )


# -- what the states share ------------------------------------------------------------------------


def _text(run: Run) -> str:
    """The newest reply."""
    return run.reply.content if run.reply else ""


def _ran(c: Code, run: Run) -> list[SeenCall]:
    """The blocks of the reply that have run, with their output, as policies see them."""
    messages = run.conversation.messages
    return [
        SeenCall("repl", block, output_in(messages[place], block))
        for block, place in zip(c.blocks, c.outputs, strict=False)
    ]


def _found(c: Code, run: Run, answer: str, ran: Sequence[SeenCall] = ()) -> VisitEnd:
    """The answer is there; policies are told about the reply that gave it. Raises what they raise."""
    text = answer or _text(run)
    memory = run.prepared.policies.notify(policy_view("code", c, run, ran, c.last_result), text)
    return {"answer": answer, "finish": "stop", "policy_memory": memory}, FinalAnswerFound()


def _stopped(policy: str) -> VisitEnd:
    reason = f"the policy {policy} stops the run"
    return {"finish": "policy_stop", "policy": policy}, PolicyStop(reason)


# -- errors and the end ---------------------------------------------------------------------------


def on_error(c: Code, error: AgentError, run: Run) -> VisitEnd:
    """A model or a sandbox that fails leaves the run (2.2), and so does what a policy or a hook raises
    (R-001-9), and an unsafe tool whose outcome is unknown."""
    unknown = isinstance(error, OutcomeUnknown)
    raises = "ExecutionError" if unknown else type(error).__name__
    if isinstance(error, EffectError):
        raises = "ModelError" if isinstance(error.effect, AskModel) else "ExecutionError"
    ended = {"finish": "failed", "raises": raises, "error": str(error), "outcome_unknown": unknown}
    return ended, Failed(str(error))


EXITS: Mapping[str, str] = {
    "stop": "the model gave its answer, by FINAL or FINAL_VAR",
    "max_iterations": "`max_iterations` replies were looked at; the answer is what the model said when it "
    "was asked once more",
    "shallow": "the run is nested `max_depth` deep, so the model was asked once, without code; an answer "
    "that was cut off at the limit of the model's output is not ok, and neither is an empty one",
    "policy_stop": "a stopping policy ended the run; the outcome names it",
    "failed": "an error ended the run: a model, the sandbox, a policy or a hook that failed, or an unsafe "
    "tool whose outcome is unknown",
}


def result(c: Code, run: Run) -> Exit:
    """How a run ended, for people and programs (R-001-2)."""
    answer = None
    if c.finish in {"stop", "max_iterations", "shallow"}:
        answer = c.answer or _text(run)  # an empty answer counts as none (2.2)
    stopped = c.finish == "policy_stop"
    unknown = {"unknown_outcome": True} if c.outcome_unknown else {}
    return Exit(
        reason=c.finish or "running",
        ok=c.finish == "stop" or (c.finish == "shallow" and not _fault(c, answer)),
        answer=STOPPED if stopped else answer,
        error=_error(c, run, answer),
        outcome={
            "policy_stop": stopped,
            "policy": c.policy,
            "iterations": c.iteration,
            "depth": run.input.depth,
            **unknown,
        },
        raises=c.raises,
    )


def _fault(c: Code, answer: str | None) -> str:
    """What is wrong with a whole reply as the answer, or nothing."""
    if c.cut and c.answer is None:
        return "the reply was cut off at the limit of the model's output (`max_output_tokens`)"
    return "" if answer and answer.strip() else "the reply was empty"


def _error(c: Code, run: Run, answer: str | None) -> str | None:
    if c.finish == "shallow":
        return _fault(c, answer) or None
    if c.finish == "max_iterations":
        asked = (
            f"no answer within {run.options.max_iterations} replies (`max_iterations`); the model was asked"
        )
        return "; ".join(part for part in (f"{asked} for one then", _fault(c, answer)) if part)
    if c.finish == "policy_stop":
        return f"the stopping policy {c.policy} ended the run after {c.iteration} iterations"
    return c.error


def on_reopen(c: Code) -> tuple[S, Patch]:
    """The next reply, which is one more iteration."""
    ended = reset_fields(Code, {*ENDS, "error", "raises", "outcome_unknown"})
    return S.INIT, {**ended, "iteration": c.iteration + 1}


MACHINE = Machine(
    name="code",
    description="Write blocks of code about a long context, run them in a sandbox, query models from within.",
    options=Options,
    context=Code,
    begin=begin,
    initial=S.INIT,
    table=TABLE,
    states=[first_reply, shallow, look, execute, conclude],
    step=S.PROMPTING,
    on_reopen=on_reopen,
    on_error=on_error,
    on_rollback=lambda c, before: {"run_bytes": before.run_bytes},  # it bounds the log, which only grows
    result=result,
    writes=frozenset({*ENDS, "raises", "error", "outcome_unknown", "run_bytes", "iteration"}),
    prepare=prepare,
    # For each iteration a look, its blocks and their end; and one before the first.
    max_transitions=lambda options: (MAX_BLOCKS + 2) * options.max_iterations + 1,
    # For each call of a block the call and a step after it; the first step, and a variable to look up.
    max_effects=lambda options: 2 * options.block.calls + 2,
    caps=lambda options: {
        "iterations": options.max_iterations,
        "blocks": MAX_BLOCKS * options.max_iterations,
    },
    # Each call is made between two steps of its block.
    most_calls=lambda options, replies: (
        MAX_BLOCKS * min(options.max_iterations, replies) * (options.block.calls + 1)
        if options.nested.policy == "never"
        else math.inf
    ),
    roles=ROLES,
    plain_replies=False,
    takes_material=True,
    exits=EXITS,
    properties=PROPERTIES,
    scenarios=SCENARIOS,
)
