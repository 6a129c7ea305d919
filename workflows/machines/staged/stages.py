"""What each type of stage does (spec 3.9): a generator of effects that returns how the stage ends.

Reading order: think, act, observe as shipped; then stages of users' own: a model call, a whole machine, a
pure function. What may be written and where a run may go is checked outside, in `machine.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from workflows.machines.authoring import (
    AgentError,
    AskModel,
    BadPatch,
    CallTools,
    Effect,
    EmptyVisit,
    FatalError,
    ModelReplied,
    Patch,
    Run,
    RunMachine,
    Say,
    ToolCall,
    ToolResult,
    UndeclaredAccess,
    do,
)
from workflows.machines.common.json_text import (
    NotJson,
    as_text,
    call_arguments,
    clean,
    merged,
    object_in,
    shown_name,
    unread,
    was_cut,
)
from workflows.machines.common.named_parts import call_user_function
from workflows.machines.staged.context import (
    ACTING,
    FIELDS,
    FINISHED,
    GENERAL,
    OBSERVING,
    Action,
    Observation,
    RequestedTool,
    Thought,
    ToolOutput,
)
from workflows.machines.staged.options import Stage
from workflows.machines.staged.prompt import (
    OBSERVATION,
    offered,
    prompt,
    reminder,
    reply_schema,
    sections,
    thought_schema,
)
from workflows.machines.staged.reply import read_observation, read_thought

__all__ = ["FLOWS", "MOST_CALLS", "StageEnd", "StageFailure", "StageView", "check_precondition"]

T = TypeVar("T")
Doing = Generator[Effect[Any], Any, T]

NO_TOOL = ToolOutput(tool="none", output="no tool needed")
"""The synthetic output of a stage that had nothing to do."""
MOST_CALLS = 50
"""Tool calls of one reply that are run; a thought may suggest as many."""
NOT_RUN = "not run, because a call before it could not be performed"


@dataclass(frozen=True, slots=True)
class StageEnd:
    """How one run of a stage ends."""

    patch: Patch
    target: object = None
    """The lifecycle that it asks for; None: the one that the patch sets, or else the only exit."""
    reason: str = ""
    """For people."""
    thought: str = ""
    """What a model said."""


class StageFailure(AgentError):
    """A stage could not do its work; `code` is that of spec 3.7."""

    def __init__(self, problem: str, code: str = "StageError", **details: Any) -> None:
        super().__init__(clean(problem))
        self.code, self.details = code, details


def ask(stage: Stage, run: Run, attempt: int = 1, **question: Any) -> Doing[ModelReplied]:
    """The reply of the stage's model. The prompt is no part of the conversation: each call has its own."""
    label = f"{stage.name} #{run.step}" + (f", attempt {attempt}" if attempt > 1 else "")
    effect = AskModel(
        beside=True,
        with_notes=True,
        role=stage.model_role,
        attempts=run.options.max_model_attempts,
        label=label,
        **question,
    )
    return (yield from do(effect))


def pick(stage: Stage, wanted: str, *avoid: str) -> str:
    """The exit that is wanted, or else the first that is not to be avoided."""
    exits = stage.targets
    others = [target for target in exits if target not in avoid]
    return wanted if wanted in exits else (others or exits)[0]


# -- think ----------------------------------------------------------------------------------------


def think(stage: Stage, c: Any, run: Run) -> Doing[StageEnd]:
    """One structured model call gives the thought, and another one while it cannot be read. In a pass that
    must answer it suggests no tools."""
    options, must_answer = run.options, run.options.must_answer(run.step)
    schema = thought_schema(options, () if must_answer else offered(stage, run.input.tools))
    say = prompt(stage, c, run)
    for attempt in range(1, options.max_format_attempts + 1):
        reply = yield from ask(stage, run, attempt, say=say, response_schema=schema)
        thought = read_thought(reply.text, options.intents)
        if isinstance(thought, Thought):
            thought = thought.model_copy(update={"suggested_tools": ()}) if must_answer else thought
            return _thought(stage, thought)
        problem = unread(reply, thought.problem)
        say = (*prompt(stage, c, run), reply.message, reminder(problem, options))
    problem = f"the reply is no thought: {problem}"
    raise StageFailure(problem, reply=clean(reply.text[:500]), finish_reason=reply.finish_reason)


def _thought(stage: Stage, thought: Thought) -> StageEnd:
    tools = thought.suggested_tools
    target = pick(stage, ACTING, OBSERVING) if tools else pick(stage, OBSERVING, ACTING)
    return StageEnd({"thought": thought}, target, thought=f"{thought.intent}: {thought.reasoning}")


# -- act ------------------------------------------------------------------------------------------


Planned = tuple[RequestedTool, ToolOutput | None]
"""A tool call as the model asked for it; and for one that is not run, its output."""


def act(stage: Stage, c: Any, run: Run) -> Doing[StageEnd]:
    """The suggested tools are offered to a model; those that it asks for are run in order."""
    if c.thought is None:
        raise StageFailure("`thought` is not set: a stage that writes it must run before this one")
    suggested = c.thought.suggested_tools
    if c.thought.intent == GENERAL or not suggested or run.options.must_answer(run.step):
        return _acted(stage, Action(tool_outputs=(NO_TOOL,)))
    known = {tool.name for tool in offered(stage, run.input.tools)}
    offer = tuple(name for name in suggested if name in known)
    plan = [_unknown(name, offer) for name in suggested if name not in known]
    if offer:
        reply = yield from ask(stage, run, say=prompt(stage, c, run), offer=offer, tool_choice="required")
        if not reply.tool_calls:
            problem = f"the tools {', '.join(offer)} were suggested, but the model asks for none"
            raise StageFailure(unread(reply, problem), reply=clean(reply.text[:500]))
        plan += _planned(reply, offer)

    wanted = [requested for requested, refused in plan if refused is None]
    runs = tuple(
        ToolCall(id=f"{run.step}.{number}", tool=one.tool, arguments=one.arguments)
        for number, one in enumerate(wanted)
    )
    results: tuple[ToolResult, ...] = ()
    if runs:
        effect = CallTools(calls=runs, attempts=run.options.max_tool_attempts)
        results = (yield from do(effect)).results
    action = Action(
        requested_tools=tuple(requested for requested, _ in plan), tool_outputs=tuple(_outputs(plan, results))
    )
    if lost := next((result for result in results if result.error == "unknown_outcome"), None):
        yield Say(keep={"action": action})
        raise StageFailure(lost.output, tool=lost.tool, error="unknown_outcome")
    return _acted(stage, action, results)


def _planned(reply: ModelReplied, offer: Sequence[str]) -> list[Planned]:
    """The calls of a reply; all beyond the most that are run share one refusal."""
    plan: list[Planned] = []
    calls = reply.tool_calls
    for call in calls[:MOST_CALLS]:
        given = call_arguments(call)
        if call.name not in offer:
            plan.append(_unknown(call.name, offer))
        elif isinstance(given, NotJson):
            plan.append(_refused(call.name, "bad_arguments", unread(reply, given.problem)))
        else:
            plan.append((RequestedTool(tool=call.name, arguments=given), None))
    if rest := calls[MOST_CALLS:]:
        why = f"{len(rest)} calls are not run: one reply may make {MOST_CALLS}, and it makes {len(calls)}"
        plan.append(_refused(clean(rest[0].name), "too_many_calls", why))
    return plan


def _unknown(name: str, offer: Sequence[str]) -> Planned:
    shown = shown_name(clean(name))
    why = f"Unknown tool: {shown}" + (f"; offered were {', '.join(offer)}" if offer else "")
    return _refused(shown, "unknown_tool", why)


def _refused(name: str, error: str, why: str) -> Planned:
    tool = shown_name(name)
    return RequestedTool(tool=tool), ToolOutput(tool=tool, output=why, error=error)


def _outputs(plan: Sequence[Planned], results: Sequence[ToolResult]) -> Iterator[ToolOutput]:
    """An output for each call, in order. Runs that were cut off have no result (6.1)."""
    waiting = iter(results)
    for requested, refused in plan:
        if refused is not None:
            yield refused
        elif (result := next(waiting, None)) is None:
            yield ToolOutput(tool=requested.tool, output=NOT_RUN, error="not_run")
        else:
            yield ToolOutput(
                tool=requested.tool, output=result.output, error=result.error, whole=result.whole
            )


def _acted(stage: Stage, action: Action, results: Sequence[ToolResult] = ()) -> StageEnd:
    """The way on. The reason has what was not run; the log tells of the results by itself."""
    told = {(result.tool, result.output) for result in results}
    reason = "; ".join(
        f"{one.tool}: {one.output[:200]}" for one in action.tool_outputs if (one.tool, one.output) not in told
    )
    return StageEnd({"action": action}, pick(stage, OBSERVING), reason)


# -- observe --------------------------------------------------------------------------------------


def observe(stage: Stage, c: Any, run: Run) -> Doing[StageEnd]:
    """One structured model call sums up, and says whether another pass is needed."""
    reply = yield from ask(stage, run, say=prompt(stage, c, run), response_schema=OBSERVATION)
    seen = read_observation(reply.text, cut=was_cut(reply))
    done, entry = seen.final_answer and not seen.need_loop, run.options.entry
    target = pick(stage, FINISHED, entry) if done else pick(stage, entry, FINISHED)
    return StageEnd({"observation": seen}, target, thought=seen.summary)


# -- a model of users' own ------------------------------------------------------------------------


def model(stage: Stage, c: Any, run: Run) -> Doing[StageEnd]:
    """One structured model call whose JSON fields are the patch."""
    reply = yield from ask(stage, run, say=prompt(stage, c, run), response_schema=reply_schema(stage, run))
    patch: Any = object_in(reply.text)
    if isinstance(patch, NotJson):
        raise StageFailure(unread(reply, "the reply is not a JSON object"), reply=clean(reply.text[:500]))
    if isinstance(patch.get("extensions"), Mapping):
        texts = {name: as_text(value) for name, value in patch["extensions"].items()}
        patch = {**patch, "extensions": texts}
        undeclared = sorted(set(texts) - set(stage.extension))
        if undeclared and stage.enforce:
            declared = ", ".join(stage.extension) or "none"
            problem = f"the undeclared extension {undeclared[0][:100]!r} was written; declared are {declared}"
            raise UndeclaredAccess("staged", stage.enters, problem)
    fields = {name: value for name, value in patch.items() if name != "lifecycle"}
    return StageEnd(_own(stage, c, patch), None, json.dumps(fields, ensure_ascii=False) if fields else "")


def _own(stage: Stage, c: Any, patch: Patch) -> Patch:
    """The patch with what the stage keeps in `extensions` under the stage's own name (R-002-1)."""
    kept = patch.get("extensions")
    if not isinstance(kept, Mapping) or (stage.enforce and "extensions" not in stage.may_write):
        return patch
    return {**patch, "extensions": merged(c.extensions, {stage.name: kept})}


# -- a machine ------------------------------------------------------------------------------------


def machine(stage: Stage, c: Any, run: Run) -> Doing[StageEnd]:
    """A whole machine is the stage. Its goal is the stage's prompt and what the stage sees; its answer goes
    into one field. A run without success is a failed tool if it takes the place of tools, else a failure.

    In a pass that must answer it has no tools, and is not run if it takes their place."""
    must_answer = run.options.must_answer(run.step)
    if stage.acts and must_answer:
        return _acted(stage, Action(tool_outputs=(NO_TOOL,)))
    goal = "\n\n".join(part for part in (stage.prompt.strip(), *sections(stage, c, run)) if part)
    ended = yield from do(
        RunMachine(
            machine=stage.machine or "",
            machine_version=stage.machine_version,
            goal=goal or stage.name,
            options=stage.options,
            instructions=stage.instructions,
            give=() if must_answer else stage.tools or (),
            roles=stage.roles,
            limits=stage.limits,
            label=f"{stage.name} #{run.step}",
        )
    )
    answer = ended.answer or ""
    error = "" if ended.ok else f"{ended.machine} ended with {ended.exit_reason}: {ended.error}"
    if stage.acts:
        output = ToolOutput(tool=ended.machine, output=error or answer, error="failed" if error else None)
        requested = (RequestedTool(tool=ended.machine),)
        return StageEnd(
            {"action": Action(requested_tools=requested, tool_outputs=(output,))}, None, output.output
        )
    if error:
        raise StageFailure(error, exit_reason=ended.exit_reason, workflow_id=ended.workflow_id)
    if stage.merge == "observation":
        seen = Observation(summary=answer, final_answer=answer, need_loop=not answer)
        return StageEnd({"observation": seen}, None, answer)
    return StageEnd(_own(stage, c, {"extensions": {"answer": answer}}), None, answer)


# -- a function of users' own ---------------------------------------------------------------------


class StageView:
    """What a user's function sees: the fields that its stage reads."""

    __slots__ = ("_c", "_stage")

    def __init__(self, c: Any, stage: Stage) -> None:
        self._c, self._stage = c, stage

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS or (self._stage.enforce and name not in self._stage.may_read):
            problem = f"the undeclared field {name[:100]!r} was read"
            raise UndeclaredAccess("staged", self._stage.enters, problem)
        return getattr(self._c, name)


def hook(stage: Stage, c: Any, run: Run) -> Doing[StageEnd]:
    """A pure function gives the patch: (view) -> patch, or (patch, lifecycle)."""
    yield from ()  # a flow is a generator; this one needs no effects
    given = call_user_function(f"hook of stage {stage.name}", run.prepared[stage.hook], StageView(c, stage))
    patch, target = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if patch is None:
        raise EmptyVisit("staged", stage.enters, f"the stage {stage.name} returned nothing")
    if not isinstance(patch, Mapping):
        problem = f"the hook returned a {type(patch).__name__}; expected a patch or (patch, lifecycle)"
        raise BadPatch("staged", stage.enters, problem)
    return StageEnd(_own(stage, c, patch), target)


def check_precondition(stage: Stage, c: Any, run: Run) -> None:
    """Ask the stage's `check`, if it has one: true or an empty text lets the stage run (R-002-7, step 3)."""
    if stage.check is None:
        return
    answer = call_user_function(
        f"check of stage {stage.name}", run.prepared[stage.check], StageView(c, stage)
    )
    if not isinstance(answer, bool | str):
        raise FatalError(
            f"the check of stage {stage.name} returned a {type(answer).__name__}; expected true, false or "
            "what is wrong"
        )
    if answer is False or (isinstance(answer, str) and answer):
        problem = f"the precondition does not hold: {answer or 'the check says no'}"
        raise StageFailure(problem, code="PreconditionFailed")


Flow = tuple[Callable[[Stage, Any, Run], Doing[StageEnd]], set[type[Effect[Any]]]]
FLOWS: Mapping[str, Flow] = {
    "think": (think, {AskModel}),
    "act": (act, {AskModel, CallTools}),
    "observe": (observe, {AskModel}),
    "model": (model, {AskModel}),
    "machine": (machine, {RunMachine}),
    "hook": (hook, set()),
}
"""Flow type -> what such a stage does, and the effects that it may ask for."""
