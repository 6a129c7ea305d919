"""The options of the staged machine, and what its stages may declare (spec 3.8, 3.11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from activities.contracts import MODEL_ATTEMPTS, InnerLimits, JsonObject, Strict
from workflows.machines.common.named_parts import suggestion
from workflows.machines.common.options import ModelAttempts, NamesMachine, ToolAttempts
from workflows.machines.staged.context import (
    ACTING,
    CEILINGS,
    FAILED,
    FIELDS,
    FINISHED,
    GENERAL,
    INITIALIZED,
    OBSERVING,
    ORCHESTRATOR,
    STAGES_WRITE,
    THINKING,
)

__all__ = ["FAILING", "ROLES", "STANDARD", "Options", "Stage"]

ROLES = ("default", "think", "act", "observe", "custom")
"""Roles that models may have; one that the agent does not give has `default`'s model."""
FAILING = "Failing"
"""The state in which an error handler runs; its lifecycle is Failed already."""

Role = Literal["default", "think", "act", "observe", "custom"]
FlowType = Literal["think", "act", "observe", "error_handler", "model", "machine", "hook"]
StageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]
Lifecycle = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]{0,31}$")]
"""Part of activity ids and of the names of events, so it is short and plain."""
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
Intent = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=40)]

ASKING = frozenset({"think", "act", "observe", "model"})
INNER = frozenset({"machine"})
TAKEN_BY: dict[str, frozenset[str]] = {
    "role": ASKING,
    "prompt": ASKING | INNER,
    "tools": frozenset({"think", "act"}) | INNER,
    "extension": frozenset({"model"}),
    "hook": frozenset({"hook", "error_handler"}),
    "machine": INNER,
    "machine_version": INNER,
    "options": INNER,
    "instructions": INNER,
    "roles": INNER,
    "limits": INNER,
    "merge": INNER,
}
"""Key of a stage -> the flow types that have it."""


class Stage(NamesMachine):
    """One stage: when it runs, what it may see and change, and how it does its work (spec 3.11)."""

    name: StageName = Field(description="a word by which the log names the stage")
    flow_type: FlowType = Field(description="how the stage works; see `ratchet docs stages`")
    enters: Lifecycle = Field(description="the lifecycle in which it runs")
    exits: tuple[Lifecycle, ...] = Field(
        default=(), description="where it may lead; Failed is always allowed"
    )
    reads: tuple[str, ...] | None = Field(default=None, description="null: all that its flow type may")
    writes: tuple[str, ...] | None = Field(default=None, description="null: all that its flow type may")
    enforce: bool = Field(default=True, description="false: undeclared reads and writes are only recorded")
    role: Role | None = Field(default=None, description="model role; null: the flow type's")
    prompt: str = Field(default="", max_length=100_000, description="replaces the shipped words")
    tools: tuple[Word, ...] | None = Field(
        default=None, description="some of the agent's tools; null: all, but none for an inner machine"
    )
    extension: dict[Word, str] = Field(
        default_factory=dict, description="texts that a model stage writes into `extensions`: name -> meaning"
    )
    check: Word | None = Field(default=None, description="hook (view) -> true, or what is wrong")
    hook: Word | None = Field(default=None, description="hook (view) -> patch, or (patch, lifecycle)")
    machine: Word | None = Field(default=None, description="the machine that is the stage")
    machine_version: str | None = Field(
        default=None, description="of that machine; null: the oldest that the worker has"
    )
    options: JsonObject = Field(default_factory=dict, description="options of the inner machine")
    instructions: str = Field(
        default="", max_length=100_000, description="instructions for the inner machine"
    )
    roles: dict[str, str] = Field(
        default_factory=dict, description="model role of the inner machine -> a role of this agent"
    )
    limits: InnerLimits = Field(default=InnerLimits(), description="limits of the inner run")
    merge: Literal["extensions", "observation", "action"] = Field(
        default="extensions", description="the field that gets the inner machine's answer"
    )

    @property
    def model_role(self) -> str:
        """The role whose model it asks."""
        return self.role or (self.flow_type if self.flow_type in ROLES else "custom")

    @property
    def acts(self) -> bool:
        """It writes an action each time it runs."""
        return self.flow_type == "act" or self.merge == "action"

    @property
    def may_read(self) -> frozenset[str]:
        """What it declared, or all that its flow type may read."""
        default = CEILINGS[self.flow_type].reads if self.flow_type in CEILINGS else ()
        return frozenset(default if self.reads is None else self.reads)

    @property
    def may_write(self) -> frozenset[str]:
        """What it declared, or all that its flow type may write; each may write `lifecycle` (spec 3.4)."""
        default = CEILINGS[self.flow_type].writes if self.flow_type in CEILINGS else ()
        return frozenset(default if self.writes is None else self.writes) | {"lifecycle"}

    @property
    def targets(self) -> tuple[str, ...]:
        """Its exits without Failed, which is open to every stage."""
        return tuple(exit_ for exit_ in self.exits if exit_ != FAILED)

    @model_validator(mode="after")
    def _fits(self) -> Stage:
        if faults := [*self._rights(), *self._ways(), *self._keys()]:
            raise ValueError(f"stage {self.name}: {'; '.join(faults)}")
        return self

    def _rights(self) -> Iterator[str]:
        """The ownership matrix (R-002-2, R-002-3)."""
        ceiling = CEILINGS.get(self.flow_type)
        reads = ceiling.reads if ceiling else frozenset(FIELDS)
        writes = ceiling.writes if ceiling else STAGES_WRITE
        for key, names, allowed in (("reads", self.reads, reads), ("writes", self.writes, writes)):
            for name in names or ():
                if name not in FIELDS:
                    yield f"{key}: unknown field {name!r}; {_near(name, FIELDS)}"
                elif name not in allowed:
                    yield (
                        f"{key}: a stage of type {self.flow_type} may not have {name!r}; "
                        f"it may have {_list(allowed)}"
                    )

    def _ways(self) -> Iterator[str]:
        handles = self.flow_type == "error_handler"
        if handles != (self.enters == FAILED):
            yield f"enters: {self.enters!r}; an error_handler enters Failed, and no other stage does"
        elif self.enters in (INITIALIZED, FINISHED, FAILING):
            yield f"enters: no stage runs in {self.enters}"
        if handles and self.exits:
            yield "exits: Failed is terminal, so an error_handler has none"
        if not handles and not self.targets:
            yield "exits: none are named, so the run could not go on"
        if INITIALIZED in self.exits:
            yield "exits: nothing leads back to Initialized"
        if self.flow_type == "machine" and len(self.targets) > 1:
            yield "exits: a machine stage has one; its answer does not choose"

    def _keys(self) -> Iterator[str]:
        for key, takers in TAKEN_BY.items():
            default = Stage.model_fields[key].get_default(call_default_factory=True)
            if self.flow_type not in takers and getattr(self, key) != default:
                yield f"{key}: a stage of type {self.flow_type} has no such key; only {_list(takers)} have it"
        if self.flow_type in TAKEN_BY["hook"] and not self.hook:
            yield "hook: is missing; name a function that the worker has loaded"
        if self.flow_type == "machine" and self.machine is None:
            yield "machine: is missing; name the machine to run"
        if self.flow_type == "machine" and self.merge not in self.may_write:
            yield f"merge: {self.merge!r} is not among its writes"
        if self.flow_type == "error_handler" and "last_error" not in self.may_write:
            yield "writes: 'last_error' is missing, and an error_handler writes nothing else"
        if self.flow_type == "model":
            yield from self._reply()

    def _reply(self) -> Iterator[str]:
        """What a model stage's reply could hold."""
        if self.extension and "extensions" not in self.may_write:
            yield "extension: 'extensions' is not among its writes"
        if "extensions" in self.may_write and not self.extension:
            yield "extension: is missing; name the texts that it writes into `extensions`"
        if "action" in self.may_write:
            yield "writes: an 'action' is written by stages of type act, machine or hook"
        if self.may_write == {"lifecycle"} and len(self.targets) == 1:
            yield "writes: none are named, and there is one exit, so its reply could say nothing"


STANDARD = (
    Stage(name="think", flow_type="think", enters=THINKING, exits=(ACTING, OBSERVING)),
    Stage(name="act", flow_type="act", enters=ACTING, exits=(OBSERVING,)),
    Stage(name="observe", flow_type="observe", enters=OBSERVING, exits=(FINISHED, THINKING)),
)
"""The stages as shipped (spec 3.9)."""


class Options(Strict):
    """The options of the staged machine."""

    max_iterations: int = Field(default=10, gt=0, le=1000, description="passes through the stages [3.8]")
    on_max_iterations: Literal["force_answer", "fail", "last_observation"] = Field(
        default="force_answer",
        description="force_answer: the last pass uses no tools and must answer; fail: it is a normal pass, "
        "and the run fails if it asks for another one; last_observation: it is a normal pass, and its "
        "summary is the answer if it gives none [3.8]",
    )
    fallback_text: str = Field(
        default="I found no answer within the passes that I was allowed.",
        min_length=1,
        max_length=2000,
        description="the answer when the last pass gives none [3.8]",
    )
    intents: tuple[Intent, ...] = Field(
        default=(GENERAL, "information_retrieval", "diagnosis", "calculation", "change"),
        description="what a thought's intent may be; one is general_inquiry [3.9]",
    )
    raise_on_failure: bool = Field(
        default=False, description="true: a failed run raises its last_error [R-002-8]"
    )
    max_model_attempts: ModelAttempts = MODEL_ATTEMPTS
    max_tool_attempts: ToolAttempts = 1
    max_format_attempts: int = Field(
        default=1, ge=1, le=20, description="model calls in one visit until a thought can be read [3.7]"
    )
    stages: tuple[Stage, ...] | None = Field(
        default=None, description="null: think, act, observe; see `ratchet docs stages` [3.11]"
    )

    @property
    def declared(self) -> tuple[Stage, ...]:
        """All stages; the first begins a pass."""
        return STANDARD if self.stages is None else self.stages

    @property
    def running(self) -> tuple[Stage, ...]:
        """The stages between Initialized and the end."""
        return tuple(stage for stage in self.declared if stage.enters != FAILED)

    @property
    def entry(self) -> str:
        """The lifecycle in which a pass begins."""
        return self.declared[0].enters

    def is_last(self, number: int) -> bool:
        """No pass may follow this one; the first has the number 1."""
        return number >= self.max_iterations

    def must_answer(self, number: int) -> bool:
        """This pass has to answer, without tools (spec 3.8)."""
        return self.on_max_iterations == "force_answer" and self.is_last(number)

    def open_exits(self, stage: Stage, number: int) -> tuple[str, ...]:
        """Where a stage can lead in this pass. In the last one no stage may go back to the first, and one
        that can do nothing else ends the run; with `fail` wanting to go back fails the run. Where the last
        pass must answer, what acts is no exit if there is another one (design 8.4)."""
        if self.on_max_iterations == "fail" or not self.is_last(number):
            return stage.targets
        exits = tuple(target for target in stage.targets if target != self.entry) or (FINISHED,)
        if not self.must_answer(number):
            return exits
        acting = {ACTING, *(one.enters for one in self.running if one.acts)}
        return tuple(target for target in exits if target not in acting) or exits

    @field_validator("fallback_text")
    @classmethod
    def _not_blank(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("it is blank, and an answer must not be empty")
        return text

    @field_validator("intents")
    @classmethod
    def _with_general(cls, intents: tuple[str, ...]) -> tuple[str, ...]:
        if GENERAL not in intents:
            raise ValueError(f"the list must contain {GENERAL}")
        return intents

    @field_validator("stages")
    @classmethod
    def _fit_together(cls, stages: tuple[Stage, ...] | None) -> tuple[Stage, ...] | None:
        if stages is not None and (faults := [*_clashes(stages), *_lost_exits(stages)]):
            raise ValueError("; ".join(faults))
        return stages


def _clashes(stages: tuple[Stage, ...]) -> Iterator[str]:
    """What must be there, and only once."""
    running = [stage for stage in stages if stage.enters != FAILED]
    if not running or running[0] is not stages[0]:
        yield "declare at least one stage; the first begins a pass, so it cannot be an error_handler"
    names: dict[str, Stage] = {}
    entered: dict[str, Stage] = {}
    for stage in stages:
        if stage.name in names or stage.name == ORCHESTRATOR:
            yield f"stage {stage.name}: name: it is taken"
        first = entered.setdefault(stage.enters, stage)
        if first is not stage:
            yield f"stage {stage.name}: enters: {first.name} runs in {stage.enters} already"
        names[stage.name] = stage
    if running and running[0].flow_type == "act":
        yield f"stage {running[0].name}: flow_type: act needs a thought, so it cannot be the first stage"
    if running and not any(stage.enforce for stage in running):
        yield "enforce: it may be switched off for a named stage, not for all"


def _lost_exits(stages: tuple[Stage, ...]) -> Iterator[str]:
    known = {FINISHED, *(stage.enters for stage in stages if stage.enters != FAILED)}
    for stage in stages:
        for target in stage.targets:
            if target not in known and target != INITIALIZED:
                yield f"stage {stage.name}: exits: no stage enters {target!r}; {_near(target, known)}"
    if stages and not any(FINISHED in stage.exits for stage in stages):
        yield "exits: no stage leads to Finished, so no run could end with an answer"


def _near(word: str, known: Iterable[str]) -> str:
    return suggestion(word, known) or f"there are {_list(known)}"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
