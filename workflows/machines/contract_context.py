"""What the contract machine remembers, and its knobs (spec 5.4, 5.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from activities.contracts import Artifact, Frozen, JsonObject, Strict, ToolRun
from activities.transcript import Transcript
from workflows.kernel.fields import ADD, APPEND, COUNT, MERGE
from workflows.kernel.ledger import Ledger
from workflows.machines.contract_budget import CHARGE, Caps, derived
from workflows.machines.contract_reply import Decision

__all__ = ["Context", "FilledSlot", "KeptArtifact", "Options", "RoundTiming", "S", "SlotSpec", "missing_of"]


class S(Enum):
    """The nodes of spec 5.1."""

    DECISION = "decision"
    PROTOCOL_VERIFY = "protocol_verify"
    TOOL_EXECUTION = "tool_execution"
    EXIT = "exit"


class SlotSpec(Strict):
    """One named slot of the output contract."""

    name: str = Field(min_length=1, max_length=100, description="what the model and the result call it")
    description: str = Field(default="", description="what belongs there, for the model")
    type: Literal["inline", "file"] = Field(
        default="inline", description="file: takes an artifact of type `file`, or a draft text [5.10]"
    )
    budget: dict[str, JsonValue] = Field(
        default_factory=dict, description="rounds: explore 2, exploit 3, render 0, ctx_reads 0 [5.5]"
    )


class Options(Strict):
    """The knobs of the contract machine."""

    slots: tuple[SlotSpec, ...] = Field(default=(), description="the output contract [5.1]")
    skills: dict[str, str] = Field(
        default_factory=dict, description="name -> text that the model may ask to see [5.3]"
    )
    caps: Caps = Field(default=Caps(), description="global budgets, instead of the slots' sums [R-004-1]")
    exhausted_round: Literal["map_only", "skip"] = Field(
        default="map_only",
        description="when the budget is used up: one more call whose mapping counts, or none [R-004-2]",
    )
    write_tools: tuple[str, ...] = Field(
        default=(), description="tools whose rounds are charged as render too [5.6]"
    )
    generator_tools: tuple[str, ...] = Field(
        default=(), description="code generators: `output_contract` in the parameters is enough [5.11]"
    )
    spec_in_params_tools: tuple[str, ...] = Field(
        default=(), description="may carry `out_artifacts_spec` among their parameters [5.11]"
    )
    max_tool_attempts: int = Field(default=1, ge=1, le=20, description="per tool call, in all [6.1]")
    max_model_attempts: int = Field(default=3, ge=1, le=20, description="per model call, in all [6.1]")
    shown_chars: int = Field(
        default=8000, ge=100, le=200_000, description="characters of an artifact that is shown"
    )
    slot_chars: int = Field(
        default=100_000, ge=100, le=1_000_000, description="characters of a slot in the result"
    )

    @field_validator("slots")
    @classmethod
    def _plain_names(cls, slots: tuple[SlotSpec, ...]) -> tuple[SlotSpec, ...]:
        blank = [slot.name for slot in slots if slot.name != slot.name.strip()]
        if blank:
            raise ValueError(
                f"slot names with blanks around them can never be filled: {blank}; take them off"
            )
        return slots

    @field_validator("slots")
    @classmethod
    def _one_of_each(cls, slots: tuple[SlotSpec, ...]) -> tuple[SlotSpec, ...]:
        names = [slot.name for slot in slots]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"slots are named twice: {', '.join(twice)}; give each a name of its own")
        return slots

    def ledger(self) -> Ledger:
        """The budgets of a run (spec 5.5)."""
        return derived({slot.name: slot.budget for slot in self.slots}, self.caps)


class KeptArtifact(Frozen):
    """An artifact with where it comes from; its body is in the durable store."""

    artifact: Artifact
    tool: str
    round: int

    @property
    def mappable(self) -> bool:
        """Could a slot be filled from it? (spec 5.9)"""
        a = self.artifact
        return a.kind != "search" and a.error is None and a.digest is not None


class FilledSlot(Frozen):
    """What fills a slot: an artifact, and where in it."""

    artifact_id: str
    path: str = ""
    """Behind the artifact's id; empty: the artifact itself."""
    digest: str
    """Of the artifact's body."""
    text: str | None = None
    """None for a long text until the run ends, and for a file that is no text."""
    preview: str = ""
    chars: int = 0
    binary: bool = False
    draft: bool = False
    gaps: str = ""
    cut: int = 0
    """Characters that the text leaves out; it says so at its end."""
    problem: str | None = None
    """Why its text is lost; such a slot is not filled."""


def missing_of(contract: Iterable[SlotSpec], slots: Mapping[str, FilledSlot]) -> tuple[str, ...]:
    """The declared slots that nothing fills, or whose text is lost."""
    there = {name for name, slot in slots.items() if slot.problem is None}
    return tuple(slot.name for slot in contract if slot.name not in there)


class RoundTiming(Frozen):
    """When a round began and ended, in seconds since 1970 (spec 5.15)."""

    round: int
    started: float
    ended: float
    end_reason: Literal["decision", "complete", "exit", "clarify", "protocol_violation", "call_tool"]


class Context(Frozen):
    """All that a run remembers between states (spec 5.4)."""

    goal: str
    output_contract: tuple[SlotSpec, ...] = ()
    tools: dict[str, JsonObject] = {}
    """Name -> JSON schema of the parameters."""
    budget: Annotated[Ledger, CHARGE] = Ledger()
    stage: str | None = None
    """The slot that the budget line and the charges go by."""
    transcript: Annotated[Transcript, APPEND] = Transcript()
    artifacts: Annotated[dict[str, KeptArtifact], MERGE] = {}
    slots: Annotated[dict[str, FilledSlot], MERGE] = {}

    iteration: Annotated[int, COUNT] = 0
    """Decisions that came back from the model."""
    round_index: Annotated[int, COUNT] = 1
    round_started: float | None = None
    round_snapshot_artifact_ids: Annotated[tuple[str, ...], ADD] = ()
    """Artifacts that were there when the round's decision was asked for."""
    mapped_round_index: int = 0
    last_decision: Decision | None = None
    last_strategy: str = ""
    completion_summary: str = ""
    """The newest one that a decision gave."""
    clarification_questions: tuple[str, ...] = ()
    """Of the newest decision to clarify; they outlive a wrap-up round."""
    call: ToolRun | None = None
    """The tool call that was verified."""
    shown_artifacts: tuple[str, ...] = ()
    """Paths that the next decision is shown."""
    shown_skills: tuple[str, ...] = ()

    exit_reason: str | None = None
    pending_exit_reason: str | None = None
    wrapup_round_used: bool = False
    is_wrapup_round: bool = False
    wrapup_trigger_reason: str | None = None
    """Why the run was to end when the wrap-up round began."""
    allow_exploit_overdraft: bool = False
    exploit_overdraft_used: int = 0
    exploit_overdraft_total: int = 0

    protocol_verify_ok: bool | None = None
    protocol_violation_count: Annotated[int, COUNT] = 0
    last_protocol_violation: JsonObject | None = None
    error: JsonObject | None = None
    """The managed error: `code` and `message`."""
    round_timings: Annotated[tuple[RoundTiming, ...], APPEND] = ()
    session_log: Annotated[tuple[JsonObject, ...], APPEND] = ()
    """What happened, each with `event` and `round` (spec 5.15)."""

    @property
    def pending_slots(self) -> tuple[str, ...]:
        """Declared slots that nothing fills, in the contract's order."""
        return missing_of(self.output_contract, self.slots)

    @property
    def unmapped_artifacts(self) -> tuple[str, ...]:
        """Ids of mappable artifacts that fill no slot."""
        mapped = {slot.artifact_id for slot in self.slots.values()}
        return tuple(id for id, kept in self.artifacts.items() if kept.mappable and id not in mapped)
