"""Staged: stages work on one typed state, each with a declared view and patch (spec 3).

The stages are data: `build_machine(options)` makes lifecycle, events, table and states of them. The shipped
ones make this table, and a broken rule leads to Failed from each state (spec 3.2):

    Initialized: ToThinking -> Thinking
    Thinking: ToActing -> Acting, ToObserving -> Observing, StageFailed -> Failed
    Acting: ToObserving -> Observing, StageFailed -> Failed
    Observing: ToFinished -> Finished, ToThinking -> Thinking, StageFailed -> Failed

Reading order: how the table is made, the states, what the machine itself writes, errors and the end; and last
how one stage run ends. What a stage does is in `stages.py`.

A stage writes what it declared and nothing else. All that the machine itself writes (iteration, clearing,
notes, the fallback text, `last_error`) happens on entering a state, in `on_error`, `on_violation` and
`on_close`: a model's reply can never be the source of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any

from pydantic import ValidationError

from activities.text import problems_text
from workflows.kernel.errors import error_text
from workflows.machines.authoring import (
    AgentError,
    Append,
    BadPatch,
    DefinitionError,
    Effect,
    EffectError,
    EmptyVisit,
    Event,
    Exit,
    Extensions,
    FatalError,
    InvariantViolated,
    Machine,
    MachineError,
    NoTransition,
    Patch,
    Run,
    RunInput,
    Say,
    State,
    UndeclaredAccess,
    Visit,
    VisitEnd,
)
from workflows.machines.common.json_text import REPLY_CUT, clean
from workflows.machines.common.named_parts import call_user_function, find_named
from workflows.machines.staged.context import (
    ACTING,
    FAILED,
    FIELDS,
    FINISHED,
    INITIALIZED,
    OBSERVING,
    ORCHESTRATOR,
    STAGES_WRITE,
    THINKING,
    AgentState,
    Degradation,
    LastError,
    Observation,
)
from workflows.machines.staged.options import FAILING, ROLES, Options, Stage
from workflows.machines.staged.proof import PROPERTIES, SCENARIOS, STANDARD_PROPERTIES
from workflows.machines.staged.stages import (
    FLOWS,
    MOST_CALLS,
    StageEnd,
    StageFailure,
    StageView,
    check_precondition,
)

__all__ = ["MACHINE", "build_machine"]


class StageFailed(Event):
    """A stage could not do its work; the reason says why."""


class Handled(Event):
    """The error handler has completed the error."""


# -- codes and exit reasons (3.7) -----------------------------------------------------------------

CODES: Mapping[str, str] = {
    "NoTransition": "InvalidTransition",
    "UndeclaredAccess": "PermissionViolation",
    "InvariantViolated": "InvariantViolation",
    "EmptyVisit": "EmptyPatch",
    "BadPatch": "StageError",
}
"""The kernel's names of broken rules -> those of spec 3.7."""
PASSES = "MaxIterationsExceeded"

EXITS = {
    "answered": "there is a final answer",
    "no_answer": "the last pass gave no answer; the answer is the fallback text",
    "max_iterations": "another pass was wanted after `max_iterations` (with `on_max_iterations: fail`)",
    "failed": "a stage failed or broke its declaration; `last_error` in the outcome says which and how",
}


class Lifecycle:
    """The lifecycle that the declared stages make, and what the machine itself does in it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.handler = next((stage for stage in options.declared if stage.enters == FAILED), None)
        self.running = {stage.enters: stage for stage in options.running}
        self.names = {stage.enters: stage.name for stage in options.declared}
        names = (INITIALIZED, *self.running, FINISHED, FAILED, *((FAILING,) if self.handler else ()))
        self.states: Any = Enum("Lifecycle", {name: name for name in names})  # type: ignore[misc]  # names are data
        self.events: dict[str, type[Event]] = {
            name: type(f"To{name}", (Event,), {"__doc__": f"The run goes on to {name}."})
            for name in (*self.running, FINISHED)
        }
        """Lifecycle -> the class of the events that lead there: `ToReviewing` for `Reviewing`."""

    # the table

    def table(self) -> dict[Enum, dict[type[Event], Enum]]:
        """A row for each exit of each stage, and those to Failed (spec 3.2). A stage that can only go back
        has a way to Finished for the last pass, unless that one may fail."""
        options, states, events = self.options, self.states, self.events
        failed = states(FAILING if self.handler else FAILED)
        rows: dict[Enum, dict[type[Event], Enum]] = {
            states(INITIALIZED): {events[options.entry]: states(options.entry)}
        }
        for name, stage in self.running.items():
            ends = dict.fromkeys((*stage.targets, *options.open_exits(stage, options.max_iterations)))
            rows[states(name)] = {**{events[end]: states(end) for end in ends}, StageFailed: failed}
        if self.handler:
            rows[states(FAILING)] = {Handled: states(FAILED), StageFailed: states(FAILED)}
        return rows

    # the states

    def all_states(self) -> list[State]:
        """A state for each stage, and those around them."""
        ends = [State(self.states(name), **self.entered(name)) for name in (FINISHED, FAILED)]
        first = State(self.states(INITIALIZED), self.begin_pass, reads=frozenset({"user_input"}))
        return [first, *map(self.stage_state, self.options.declared), *ends]

    def stage_state(self, stage: Stage) -> State:
        """The state in which a stage runs, with the stage's rights."""
        if stage is self.handler:
            reads, writes = stage.may_read | {"last_error"}, frozenset({"last_error"})
            entry = partial(self.entry, FAILING)
            return State(self.states(FAILING), self.handle_error, reads=reads, writes=writes, entry=entry)
        writes = stage.may_write - {"lifecycle"}  # the patch only names it; entering writes it
        return State(
            self.states(stage.enters),
            partial(self.run_stage, stage),
            # A stage's extensions are merged with those of the others.
            reads=stage.may_read | (writes & {"extensions"}),
            writes=writes,
            asks=frozenset(FLOWS[stage.flow_type][1]),
            tools=None if stage.tools is None else frozenset(stage.tools),
            counts="passes" if stage.enters == self.options.entry else "",
            enforce=stage.enforce,
            **self.entered(stage.enters),
        )

    def begin_pass(self, c: Any, run: Run) -> VisitEnd:
        """Initialized: a run without user input fails before any stage runs (spec 3.7)."""
        if not c.user_input.strip():
            raise InvariantViolated("staged", INITIALIZED, "`user_input` is not set")
        return {}, self.events[self.options.entry]()

    def run_stage(self, stage: Stage, c: Any, run: Run) -> Visit:
        """One stage run, steps 3 to 7 (R-002-7); the kernel does the others."""
        check_precondition(stage, c, run)
        end = yield from FLOWS[stage.flow_type][0](stage, c, run)
        patch, target, reason = yield from checked_end(stage, end, run)
        return patch, self.events[target](reason, thought=end.thought)

    def handle_error(self, c: Any, run: Run) -> VisitEnd:
        """Failing: what the error handler's function returns completes `last_error`. A fault of the function
        is only noted, because the run has failed already; but an undeclared read or write is a violation
        (design 9.11)."""
        stage, error = self.handler, c.last_error
        assert stage is not None
        try:
            given = call_user_function(
                f"hook of stage {stage.name}", run.prepared[stage.hook], StageView(c, stage)
            )
            error = completed(error, {} if given is None else given)
        except MachineError as broken:
            code = CODES.get(type(broken).__name__, "StageError")
            raise StageFailure(broken.problem, code=code) from broken
        except (AgentError, ValueError) as fault:
            details = {**error.details, "error_handler": clean(error_text(fault))[:500]}
            error = error.model_copy(update={"details": details})
        return {"last_error": error}, Handled(error.message)

    # what entering a state writes, and what must hold in it (3.5)

    def entered(self, lifecycle: str) -> dict[str, Any]:
        """`entry` and `holds` of a state."""
        return {"entry": partial(self.entry, lifecycle), "holds": partial(self.wrong, lifecycle)}

    def entry(self, lifecycle: str, c: AgentState, source: str) -> Patch:
        """The machine's own part of a transition (R-002-7, step 8)."""
        if lifecycle in (FAILED, FAILING):
            return {"lifecycle": FAILED}
        patch: dict[str, Any] = {"lifecycle": lifecycle}
        left = self.running.get(source)
        notes = list(notes_of(left, c)) if left else []
        if left and lifecycle == self.options.entry:
            patch |= {"iteration": c.iteration + 1, "thought": None, "action": None}  # R-002-6
        if left and lifecycle == FINISHED and self.must_have_answer(c):
            seen = c.observation or Observation()
            answer = seen.final_answer if seen.final_answer.strip() else ""
            if not answer and self.options.on_max_iterations == "last_observation":
                answer = seen.summary.strip()
            changes = {"final_answer": answer or self.options.fallback_text, "need_loop": False}
            patch["observation"] = seen.model_copy(update=changes)
            patch["fallback_used"] = not answer
            if not answer:
                text = "the last pass gave no final answer"
                notes.append(Degradation(code="fallback_used", stage=left.name, message=text))
        return {**patch, "degraded": Append(*notes)} if notes else patch

    def must_have_answer(self, c: AgentState) -> bool:
        """The last pass ends with an answer, whatever kind of stage observes (design 9.4)."""
        return self.options.on_max_iterations != "fail" and self.options.is_last(c.iteration + 1)

    def wrong(self, lifecycle: str, c: AgentState, source: str) -> str:
        """What does not hold in a lifecycle, or ""; `source` is the state that was left."""
        intent, lost = c.thought and c.thought.intent, source == ACTING and c.action is None
        answer = c.observation.final_answer.strip() if c.observation else ""
        defined = "" if intent in self.options.intents else f"the intent {intent!r} is not defined"
        problems = {
            THINKING: "" if c.user_input.strip() else "`user_input` is not set",
            ACTING: defined if c.thought else "`thought` is not set",
            OBSERVING: "`action` is not set, although Acting came before" if lost else "",
            FINISHED: "" if answer else "`observation` has no final answer",
            FAILED: "" if c.last_error else "`last_error` is not set",  # R-002-4
        }
        return problems.get(lifecycle, "")

    # errors (3.7)

    def on_error(self, c: AgentState, error: AgentError, run: Run) -> VisitEnd:
        """A failed effect, a stage that could not do its work, or what a user's function raised: the stage
        has failed, and the cause is kept."""
        code, message, details = "StageError", clean(error_text(error)), dict[str, Any]()
        if isinstance(error, StageFailure):
            code, message, details = error.code, str(error), error.details
        elif isinstance(error, EffectError):
            message, details = clean(str(error)), {"error": error.error, "type": error.type}
        if c.last_error:  # of the stage that failed before the error handler did
            details = {**details, "cause": c.last_error.model_dump(mode="json")}
        return self.failed_in(c.lifecycle, c, code, message, details), StageFailed(message)

    def on_violation(self, c: AgentState, error: MachineError) -> Patch:
        """A broken rule is recorded on the way to Failed; the patch that broke it is dropped."""
        kind = type(error).__name__
        return self.failed_in(error.state, c, CODES.get(kind, kind), clean(error.problem), {})

    def failed_in(
        self, lifecycle: str, c: AgentState, code: str, message: str, details: Mapping[str, Any]
    ) -> Patch:
        """A new `last_error`."""
        where = {"lifecycle": lifecycle, "iteration": c.iteration}
        stage = self.names.get(lifecycle, ORCHESTRATOR)
        return {
            "last_error": LastError(code=code, stage=stage, message=message, details={**where, **details})
        }

    def on_close(self, c: AgentState, reason: str) -> Patch:
        """A run that is ended from outside keeps a record, too; the lifecycle stays where it was."""
        stage = self.names.get(c.lifecycle, ORCHESTRATOR)
        return {
            "last_error": LastError(code=reason, stage=stage, message=f"the run was ended during {stage}")
        }

    def on_reopen(self, c: AgentState) -> tuple[Any, Patch]:
        """Another pass."""
        first = self.options.entry
        again = {"lifecycle": first, "iteration": c.iteration + 1, "last_error": None, "fallback_used": False}
        return self.states(first), {**again, "thought": None, "action": None}  # R-002-6

    # the beginning

    def begin(self, given: RunInput, options: Options) -> AgentState:
        """The state before any stage. Raises ValueError when a stage names a tool that the agent lacks."""
        if options != self.options:
            raise ValueError("this machine is made of other options; make one with `build_machine(options)`")
        known = given.tool_names
        for stage in options.running:
            if unknown := [name for name in stage.tools or () if name not in known]:
                there = ", ".join(known) or "none"
                raise ValueError(
                    f"stage {stage.name}: tools: the agent has no tool {unknown[0]!r}; it has {there}"
                )
        return AgentState(session_id=given.trace_id, user_input=given.goal)


def notes_of(stage: Stage, c: AgentState) -> Iterator[Degradation]:
    """What went wrong in a stage that the run goes on after."""
    if stage.acts and c.action:
        for output in c.action.tool_outputs:
            if output.error:
                message = f"{output.tool}: {output.output}"[:500]
                yield Degradation(code=output.error, stage=stage.name, message=message)
    if stage.flow_type == "observe" and c.observation and c.observation.cut:
        yield Degradation(code="reply_cut", stage=stage.name, message=REPLY_CUT)


def completed(error: LastError, given: object) -> LastError:
    """Raises UndeclaredAccess for a key that is no part of `last_error`, and ValueError for what the log
    cannot hold."""
    if not isinstance(given, Mapping):
        raise FatalError(f"the error handler returned a {type(given).__name__}; expected parts of last_error")
    parts = dict(given)
    if parts.get("lifecycle") == FAILED:
        del parts["lifecycle"]
    if extra := sorted(set(map(str, parts)) - LastError.model_fields.keys()):
        raise UndeclaredAccess("staged", FAILING, f"the undeclared field {extra[0][:100]!r} was written")
    completed = LastError.model_validate({**error.model_dump(), **parts})
    return LastError.model_validate_json(completed.model_dump_json())


# -- how a stage ends (R-002-7, steps 5 to 7) -----------------------------------------------------


def checked_end(stage: Stage, end: StageEnd, run: Run) -> Generator[Effect[Any], Any, tuple[Patch, str, str]]:
    """The stage's patch, the lifecycle that it leads to, and the reason. The patch is checked here before the
    exit, as R-002-7 says; the kernel looks at it after that. Raises StageFailure for a stage that asks for
    Failed, or for another pass where none is left; its patch is kept."""
    options: Options = run.options
    exits = options.open_exits(stage, run.step)
    patch = dict(end.patch)
    if not patch and end.target is None:
        raise EmptyVisit("staged", stage.enters, f"the stage {stage.name} returned an empty patch")
    reason = _check_writes(stage, patch) + end.reason
    _check_fit(stage, patch)
    said = patch.get("lifecycle", end.target)
    chosen = end.target if end.target is not None else said
    if chosen is None and len(exits) == 1:
        chosen = said = exits[0]
    if not isinstance(chosen, str) or said != chosen or chosen not in (*stage.targets, *exits, FAILED):
        raise _wrong_exit(stage, chosen, said)
    patch.pop("lifecycle", None)
    if chosen == FAILED:
        yield Say(keep=patch)
        raise StageFailure(f"the stage {stage.name} asks for {FAILED}")
    if chosen == options.entry and options.is_last(run.step) and options.on_max_iterations == "fail":
        yield Say(keep=patch)
        most = options.max_iterations
        raise StageFailure(
            f"{stage.name} asks for another pass after {most}, the most that are allowed; raise "
            "max_iterations, or let the last pass answer: on_max_iterations: force_answer",
            code=PASSES,
            max_iterations=most,
        )
    return patch, chosen if chosen in exits else exits[0], reason


def _check_writes(stage: Stage, patch: Patch) -> str:
    """Step 5. Without enforcement the undeclared writes are the result, in words; but what is the machine's
    own no stage may ever write."""
    allowed = stage.may_write if stage.enforce else STAGES_WRITE
    if extra := sorted(set(map(str, patch)) - allowed):
        raise UndeclaredAccess("staged", stage.enters, f"the undeclared field {extra[0][:100]!r} was written")
    undeclared = sorted(set(patch) - stage.may_write)
    return f"(written without a right, enforcement is off: {', '.join(undeclared)}) " if undeclared else ""


def _check_fit(stage: Stage, patch: Patch) -> None:
    """Step 6: every value fits its field, and the log can hold it."""
    try:
        AgentState.model_validate({"session_id": "", "user_input": "", **patch}).model_dump_json()
    except ValidationError as error:
        problem = problems_text(error, 1)
    except ValueError as error:  # half a character pair
        problem = error_text(error)
    else:
        return
    raise BadPatch("staged", stage.enters, clean(f"the patch does not fit: {problem}"))


def _wrong_exit(stage: Stage, chosen: object, said: object) -> NoTransition:
    what = f"asks for {chosen[:100]!r}" if isinstance(chosen, str) else "does not say where the run goes"
    if isinstance(chosen, str) and said != chosen:
        what += f", but its patch sets the lifecycle {said!r}"
    allowed = " or ".join(stage.targets)
    problem = f"the stage {stage.name} {what}; by its exits it may lead to {allowed}, or to {FAILED}"
    return NoTransition("staged", stage.enters, problem)


# -- the whole ------------------------------------------------------------------------------------


def result(c: AgentState, run: Run) -> Exit:
    """How a run ended; the outcome is the final state and the machine's notes."""
    notes: list[Any] = [note.model_dump(mode="json") for note in c.degraded]
    fallback = c.fallback_used
    outcome = {
        **c.model_dump(mode="json", include=set(FIELDS)),
        "degraded": bool(notes),
        "fallback_used": fallback,
        "degrade_events": notes,
    }
    if c.lifecycle == FINISHED and c.observation:
        text = f"no answer within {c.iteration + 1} passes" if fallback else None
        reason, answer = "no_answer" if fallback else "answered", c.observation.final_answer
        return Exit(reason=reason, ok=not fallback, answer=answer, error=text, outcome=outcome)
    error, failed = c.last_error, c.lifecycle == FAILED
    reason = "max_iterations" if error and error.code == PASSES else "failed"
    return Exit(
        reason=reason if failed else "running",
        error=f"{error.code} in {error.stage}: {error.message}" if error else None,
        outcome=outcome,
        raises=error.code if error and failed and run.options.raise_on_failure else None,
    )


def hooks_of(options: Options, extensions: Extensions) -> Mapping[str, Callable[..., Any]]:
    """The functions that the stages name. Raises ValueError for one that is not loaded."""
    found = {}
    for stage in options.declared:
        for key, name in (("hook", stage.hook), ("check", stage.check)):
            if name is not None:
                found[name] = find_named(f"stage {stage.name}: {key}: unknown hook", name, extensions.hooks)
    return found


def most_calls(options: Options, replies: float) -> float:
    """The most calls of tools in one run: no stage runs twice in a pass, and a stage that acts asks once."""
    if any(stage.flow_type == "machine" and stage.tools for stage in options.running):
        return math.inf
    acting = sum(stage.flow_type == "act" for stage in options.running)
    return MOST_CALLS * min(acting * options.max_iterations, replies)


def build_machine(options: Options) -> Machine:
    """The machine of these stages. Raises DefinitionError where their lifecycle is not sound."""
    made = Lifecycle(options)
    try:
        return Machine(
            name="staged",
            description="Think, act, observe in passes: declared stages over one typed state.",
            options=Options,
            context=AgentState,
            begin=made.begin,
            prepare=hooks_of,
            initial=made.states(INITIALIZED),
            table=made.table(),
            states=made.all_states(),
            step=made.states(options.entry),
            fail=made.states(FAILING if made.handler else FAILED),
            on_error=made.on_error,
            on_violation=made.on_violation,
            on_close=made.on_close,
            on_reopen=made.on_reopen,
            writes=frozenset(
                {"lifecycle", "iteration", "thought", "action", "observation", "last_error", "degraded"}
                | {"fallback_used"}
            ),
            result=result,
            # Every loop leads through the first stage; one more for the error handler.
            max_transitions=options.max_iterations * len(made.running) + 1,
            caps=lambda options: {"passes": options.max_iterations},
            most_calls=most_calls,
            roles=ROLES,
            plain_replies=False,
            exits=EXITS,
            properties=PROPERTIES if options.stages else (*PROPERTIES, *STANDARD_PROPERTIES),
            scenarios=() if options.stages else SCENARIOS,
        )
    except DefinitionError as error:
        entered = "; ".join(f"{stage.enters} is entered by {stage.name}" for stage in options.running)
        hint = f"each must be reached, lead on to Finished, and loop only through {options.entry}"
        raise DefinitionError(f"stages: {error}; {entered}; {hint}, where passes are counted") from error


MACHINE = build_machine(Options())
