"""What the contract machine remembers, and its options (spec 5.4, 5.5)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from activities.contracts import MODEL_ATTEMPTS, Artifact, ArtifactRead, Frozen, Strict
from workflows.kernel.ledger import Ledger
from workflows.machines.authoring import Context, JsonObject, ToolCall
from workflows.machines.common.options import ModelAttempts, ToolAttempts
from workflows.machines.contract.reply import ModelDecision

__all__ = [
    "Caps",
    "Contract",
    "FilledSlot",
    "KeptArtifact",
    "Options",
    "Overdraft",
    "Round",
    "RoundTiming",
    "SlotSpec",
    "log_entry",
]

Cap = Annotated[int | None, Field(ge=0, le=10_000)]


class SlotSpec(Strict):
    """One named slot of the output contract."""

    name: str = Field(min_length=1, max_length=100, description="what the model and the result call it")
    description: str = Field(default="", description="what belongs there, for the model")
    type: Literal["inline", "file"] = Field(
        default="inline", description="file: takes an artifact of type `file`, or a draft text [5.10]"
    )
    budget: JsonObject = Field(
        default={}, description="rounds; if left out: explore 2, exploit 3, render 0, ctx_reads 0 [5.5]"
    )


class Caps(Strict):
    """Global caps; null: from the slots (spec 5.5, R-004-1)."""

    decision_rounds: Cap = Field(
        default=None, description="rounds; null: explore, exploit and render of all slots, or else 12 [5.5]"
    )
    tool_calls: Cap = Field(default=None, description="calls; null: as many as decision rounds [5.5]")
    explore: Cap = Field(default=None, description="rounds; null: the sum of the slots [5.5]")
    exploit: Cap = Field(default=None, description="rounds; null: the sum of the slots [5.5]")
    render: Cap = Field(default=None, description="rounds; null: the sum of the slots [5.5]")
    context_reads: Cap = Field(
        default=None, description="rounds that show something; null: the sum of the slots, at least 3 [5.5]"
    )
    decision_reruns: Cap = Field(default=None, description="rounds that only ask again; null: 2 [5.5]")


class Options(Strict):
    """The options of the contract machine."""

    slots: tuple[SlotSpec, ...] = Field(default=(), description="the output contract [5.1]")
    skills: dict[str, str] = Field(default={}, description="name -> text that the model may ask to see [5.3]")
    caps: Caps = Field(default=Caps(), description="global budgets, instead of the slots' sums [R-004-1]")
    exhausted_round: Literal["map_only", "skip"] = Field(
        default="map_only",
        description="when the budget is used up: ask once more, and only the mapping counts; or do not ask "
        "[R-004-2]",
    )
    write_tools: tuple[str, ...] = Field(
        default=(), description="tools whose rounds also count as render [5.6]"
    )
    generator_tools: tuple[str, ...] = Field(
        default=(),
        description="tools that generate code: `output_contract` in the parameters is enough [5.11]",
    )
    spec_in_params_tools: tuple[str, ...] = Field(
        default=(), description="tools that may have `out_artifacts_spec` among their parameters [5.11]"
    )
    max_tool_attempts: ToolAttempts = 1
    max_model_attempts: ModelAttempts = MODEL_ATTEMPTS
    shown_chars: int = Field(
        default=8000, ge=100, le=200_000, description="characters of an artifact that the model is shown"
    )
    slot_chars: int = Field(
        default=100_000, ge=100, le=1_000_000, description="characters of a slot in the result"
    )

    @field_validator("slots")
    @classmethod
    def _usable_names(cls, slots: tuple[SlotSpec, ...]) -> tuple[SlotSpec, ...]:
        names = [slot.name for slot in slots]
        if blank := [name for name in names if name != name.strip()]:
            raise ValueError(f"slot names with blanks around them can never be filled: {blank}; remove those")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"duplicate slot names: {', '.join(twice)}; give each slot its own name")
        return slots


class KeptArtifact(Frozen):
    """An artifact and its origin; its body is in the durable store."""

    artifact: Artifact
    tool: str
    round: int


class FilledSlot(Frozen):
    """What fills a slot: an artifact, and where in it."""

    artifact_id: str
    path: str = ""
    """Behind the artifact's id; empty: the artifact itself."""
    digest: str
    """Of the artifact's body."""
    text: str | None = None
    """None for a long text until the run ends, and for a file that is not text."""
    preview: str = ""
    chars: int = 0
    binary: bool = False
    draft: bool = False
    gaps: str = ""
    cut: int = 0
    """Characters that the text leaves out; it says so at its end."""
    problem: str | None = None
    """Why its text is lost; such a slot is not filled."""

    @property
    def read(self) -> ArtifactRead:
        """Reads its text."""
        return ArtifactRead(digest=self.digest, path=self.path)


def log_entry(event: str, **more: Any) -> JsonObject:
    """Something that happened, for the session log (spec 5.15)."""
    return {"event": event, **more}


class RoundTiming(Frozen):
    """When a round began and ended, in seconds since 1970 (spec 5.15)."""

    round: int
    started: float
    ended: float
    end_reason: str
    """The action that was taken, or `protocol_violation`."""


class Round(Frozen):
    """The current round."""

    index: int = 1
    started: float = 0
    """In seconds since 1970."""
    stage: str | None = None
    """The slot whose budget is shown and charged."""
    strategy: str = ""
    """The last valid one of any round: explore, exploit or render."""

    @property
    def next(self) -> Round:
        """The round that follows."""
        return self.model_copy(update={"index": self.index + 1})


class Overdraft(Frozen):
    """Exploit rounds beyond the budget (spec 5.8)."""

    allowed: bool = False
    used: int = 0
    total: int = 0
    """Used before, plus what was available in the newest such round (R-004-5)."""


class Contract(Context):
    """All that a run remembers between its states (spec 5.4)."""

    output_contract: tuple[SlotSpec, ...] = ()
    artifacts: dict[str, KeptArtifact] = {}
    slots: dict[str, FilledSlot] = {}

    budget: Ledger = Ledger()
    round: Round = Round()
    overdraft: Overdraft = Overdraft()
    iteration: int = 0
    """Decisions that came back from the model."""

    last_decision: ModelDecision = ModelDecision()
    call: ToolCall | None = None
    """The verified tool call."""
    show: bool = False
    """The next journal shows what the last decision asked to see."""
    completion_summary: str = ""
    """The newest one."""
    clarification_questions: tuple[str, ...] = ()
    """Of the newest decision to clarify; they outlive a wrap-up round."""

    exit_reason: str | None = None
    wrapup_trigger_reason: str | None = None
    """Why the run was about to end when its wrap-up round began; None: there was no such round."""
    error: JsonObject | None = None
    """The managed error: `code` and `message`."""

    round_timings: tuple[RoundTiming, ...] = ()
    session_log: tuple[JsonObject, ...] = ()
    """What happened, each with `event` and `round` (spec 5.15)."""

    @property
    def violations(self) -> tuple[JsonObject, ...]:
        """Violations of the protocol, counted one by one (spec 5.11)."""
        return tuple(event for event in self.session_log if event["event"] == "protocol_violation")

    @property
    def is_wrapup_round(self) -> bool:
        """The wrap-up round has begun. It is the last one, so there is one per run."""
        return self.wrapup_trigger_reason is not None

    @property
    def slot_types(self) -> dict[str, str]:
        """Declared slot -> `inline` or `file`."""
        return {slot.name: slot.type for slot in self.output_contract}

    @property
    def pending_slots(self) -> tuple[str, ...]:
        """Declared slots that nothing fills, or whose text is lost, in the contract's order."""
        filled = {name for name, slot in self.slots.items() if slot.problem is None}
        return tuple(name for name in self.slot_types if name not in filled)

    @property
    def unmapped_artifacts(self) -> tuple[str, ...]:
        """Ids of artifacts that fill no slot and could; they start a wrap-up round (spec 5.9)."""
        mapped = {slot.artifact_id for slot in self.slots.values()}
        left = {id: kept.artifact for id, kept in self.artifacts.items() if id not in mapped}
        return tuple(id for id, a in left.items() if a.kind != "search" and a.error is None and a.digest)
