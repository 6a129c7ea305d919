"""What a machine wants done. A visit yields an effect; the host performs it; the answer comes back.

`Effect[A]` is answered by an `A`, so that `reply = yield from do(AskModel(...))` has a type.
`price` is what an effect costs before it is performed, by counter of the ledger; an amount of 0 only
asks whether the limit is reached already.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Generic, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from activities.contracts.answers import (
    Answers,
    ArtifactsRead,
    CodeStepped,
    MachineEnded,
    ModelReplied,
    PersonDecided,
    ToolsReturned,
)
from activities.contracts.base import Frozen, JsonObject, Strict, added
from activities.contracts.conversation import Message
from activities.contracts.specs import ArtifactSpec, InnerLimits, MaterialRef
from activities.contracts.titles import call_title, cut

__all__ = [
    "GOAL_BYTES",
    "MODEL_ATTEMPTS",
    "ArtifactRead",
    "AskModel",
    "AskPerson",
    "CallTools",
    "CodeAnswer",
    "CodeLimits",
    "Doing",
    "Effect",
    "ReadArtifacts",
    "RunCode",
    "RunMachine",
    "Say",
    "Together",
    "ToolCall",
    "do",
]

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")

GOAL_BYTES = 200_000
"""The longest goal of a run, in UTF-8."""
MODEL_ATTEMPTS = 6
"""Attempts of a model call in all, for transient failures; waits of 1, 2, 4, 8, 16 s, or `Retry-After`."""


class Effect(BaseModel, Generic[A_co]):
    """What a machine wants done."""

    model_config = ConfigDict(frozen=True)

    kind: str
    label: str = ""
    """What the machine calls it, such as `think #3`; unique within a visit."""

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools that the effect would run, offer or hand on."""
        return ()

    @property
    def title(self) -> str:
        """A few words for people: the activity's summary in Temporal's UI."""
        return self.label or self.kind.replace("_", " ")

    @property
    def price(self) -> dict[str, float]:
        """What it costs before it is performed, by counter."""
        return {}


def do(effect: Effect[A]) -> Doing[A]:
    """`yield from do(effect)` yields the effect and is its answer, with the answer's type."""
    return Doing(effect)


class Doing(Generic[A]):
    """An effect, for `yield from`, which performs it. Where that is forgotten, using the answer says so."""

    __slots__ = ("_effect",)

    def __init__(self, effect: Effect[A]) -> None:
        self._effect = effect

    def __iter__(self) -> Generator[Effect[Any], Any, A]:
        answer: A = yield self._effect
        return answer

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"`{self!r}` is not the answer yet, so it has no `{name}`: write `yield from {self!r}`"
        )

    def __repr__(self) -> str:
        return f"do({type(self._effect).__name__}(...))"


class AskModel(Effect[ModelReplied]):
    """Say something to the model in `role` and ask for its reply.

    `say` and the reply are appended to the run's conversation. With `beside`, `say` is all that is
    sent, and the conversation does not change. A question that failed was not said.
    """

    kind: Literal["ask_model"] = "ask_model"
    say: tuple[Message, ...] = ()
    beside: bool = False
    with_notes: bool = False
    """`say` of a question beside the conversation holds `run.notes`: those messages from people are heard."""
    skip: tuple[int, int] = (0, 0)
    """Compaction: messages of the conversation from the first number up to the second are not sent; the
    model gets a note in their place."""
    role: str = "default"
    offer: tuple[str, ...] = ()
    """Names of the tools offered natively; empty where the prompt describes them."""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    response_schema: JsonObject | None = None
    attempts: int = Field(default=MODEL_ATTEMPTS, ge=1)
    """In all, for transient failures; the model's own setting wins."""
    form: Any = Field(default=None, exclude=True, repr=False)
    """What the visit reads the reply as: a pydantic type or a JSON schema. It is not sent; verification
    makes replies from it."""
    refusal: Literal["ends", "raises"] = Field(default="ends", exclude_if=lambda refusal: refusal == "ends")
    """What a model's refusal to answer does: it ends the run as `model_refused`, or is raised in the visit as
    an `EffectError` of the type `model_refused`. Side by side with others it is a value."""

    @property
    def brings_notes(self) -> bool:
        """The model hears messages from people with it."""
        return not self.beside or self.with_notes

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are offered to the model."""
        return self.offer

    @property
    def price(self) -> dict[str, float]:
        """One model call."""
        return {"model_calls": 1, "tokens": 0, "cost_usd": 0, "seconds": 0}


class ToolCall(Frozen):
    """One tool with its arguments; `id` names the call within the run."""

    id: str
    tool: str
    arguments: JsonObject = {}
    artifacts: tuple[ArtifactSpec, ...] = ()
    """The whole result is kept under these names: an object's keys by name, else as the first one."""
    filled: tuple[str, ...] = Field(default=(), exclude=True)
    """Arguments that the call left out, with the defaults of the tool's schema; not in the title."""
    form: Any = Field(default=None, exclude=True, repr=False)
    """What the visit reads the output as: a pydantic type or a JSON schema, for verification."""
    edited_by: str = Field(default="", exclude=True)
    """Who gave these arguments in place of those that were asked for."""

    @property
    def title(self) -> str:
        """See `call_title`."""
        return call_title(self.tool, {k: v for k, v in self.arguments.items() if k not in self.filled})


class CallTools(Effect[ToolsReturned]):
    """Run tools in order, or side by side (at most ten at a time) when `parallel` and every one may be
    repeated."""

    kind: Literal["call_tools"] = "call_tools"
    calls: tuple[ToolCall, ...] = Field(min_length=1)
    parallel: bool = False
    attempts: int = Field(default=3, ge=1)
    """Per tool, for transient failures of tools that may be repeated; waits of 1 s, 2 s, ..."""

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are run, in order."""
        return tuple(call.tool for call in self.calls)

    @property
    def title(self) -> str:
        """The calls, cut to one line."""
        return cut("; ".join(call.title for call in self.calls), 200)

    @property
    def price(self) -> dict[str, float]:
        """The calls."""
        return {"tool_calls": len(self.calls), "cost_usd": 0, "seconds": 0}


class AskPerson(Effect[PersonDecided]):
    """Ask a person and wait; `options` are the decisions that make sense here."""

    kind: Literal["ask_person"] = "ask_person"
    about: Literal["escalation", "question"]
    text: str
    options: tuple[Literal["approve", "reject", "resume", "abort", "answer"], ...] = ("resume", "abort")

    @property
    def title(self) -> str:
        """What is asked."""
        return f"ask a person: {cut(self.text, 120)}"


class RunMachine(Effect[MachineEnded]):
    """Run another machine to its end, as a child run (spec 1.9)."""

    kind: Literal["run_machine"] = "run_machine"
    machine: str
    machine_version: str | None = None
    goal: str
    options: JsonObject = {}
    instructions: str = ""
    give: tuple[str, ...] = ()
    """Names of this run's tools that the inner machine gets; it has no others."""
    roles: dict[str, str] = {}
    """Model role of the inner machine -> role of this run; others keep their names."""
    limits: InnerLimits = InnerLimits()
    """Its own caps; what the run has left is a cap too."""
    values: JsonObject = {}
    """Values it begins with, for machines that take them (ReAct's metadata)."""
    material: str | MaterialRef | None = None

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are handed on."""
        return self.give

    @property
    def title(self) -> str:
        """What the machine calls this effect."""
        return self.label or f"run {self.machine}: {self.goal[:100]}"

    @property
    def price(self) -> dict[str, float]:
        """Nothing before it runs; a reached limit counts."""
        return {"cost_usd": 0, "seconds": 0}


class CodeLimits(Strict):
    """What a block may use; always set (an interpreter without limits burns a core for ever)."""

    seconds: float = Field(
        default=300,
        gt=0,
        le=3600,
        description="processor time that a block itself may use [2.4]",
    )
    memory_bytes: int = Field(
        default=256 * 2**20, ge=2**20, le=4 * 2**30, description="memory of the interpreter"
    )
    output_chars: int = Field(
        default=20_000,
        ge=100,
        le=1_000_000,
        description="characters of a block's output that the model sees [2.4]",
    )
    recursion: int = Field(default=200, ge=10, le=1000, description="depth of calls inside a block")
    state_bytes: int = Field(
        default=8 * 2**20,
        ge=2**16,
        le=2**30,
        description="all variables of a block together; each outside call stores them once more",
    )
    calls: int = Field(default=1000, ge=1, le=100_000, description="outside calls per block")


class CodeAnswer(Frozen):
    """The answer to the call that a block waits for."""

    value: JsonValue = None
    whole: str | None = None
    """Digest of a text in the durable store that takes the place of `value`: a tool's whole output."""
    parse: bool = False
    """The text is handed over as the JSON value it holds, if it is JSON."""
    error: str | None = None
    """Raised inside the block as a RuntimeError with this text."""
    stop: bool = False
    """The block ends here, as by `FINAL(...)`; its variables are kept."""


class RunCode(Effect[CodeStepped]):
    """Begin a block, or go on with one after the answer to its call; input of the activity `run_code`."""

    kind: Literal["run_code"] = "run_code"
    block: str | None = None
    """Source of the block to begin; None: go on."""
    session: str = ""
    """From the last `CodeStepped`; empty: a fresh one."""
    before: str = ""
    """The session as it was before this block: restored after a timeout, a lack of memory, a crash."""
    answer: CodeAnswer | None = None
    names: tuple[str, ...] = ()
    """What a block may call outside; any other unknown name is a NameError inside."""
    constants: JsonObject = {}
    """Variables that a fresh session begins with."""
    material: str | MaterialRef | None = None
    """A text is also the plain variable `context`. Either kind is reached through `context_len()`,
    `context_slice(start, end)` and `context_search(pattern, start=0)`, which do not suspend the block
    and count as no calls. A search gives a list of {start, end, text}; see `activities/material.py`."""
    limits: CodeLimits = CodeLimits()

    @property
    def inputs(self) -> JsonObject:
        """The variables that a fresh session begins with: the constants, and a short material."""
        if isinstance(self.material, str):
            return {**self.constants, "context": self.material}
        return self.constants

    @property
    def price(self) -> dict[str, float]:
        """Time alone."""
        return {"seconds": 0}


class ArtifactRead(Frozen):
    """One text to read."""

    digest: str
    """Of the body in the durable store."""
    path: str = ""
    """Into a body that is JSON, such as `.rows[0].name` or `["a key"]`; empty: the body itself."""


class ReadArtifacts(Effect[ArtifactsRead]):
    """Read texts out of artifacts; input of the activity `read_artifacts`. Reading never fails a run."""

    kind: Literal["read_artifacts"] = "read_artifacts"
    reads: tuple[ArtifactRead, ...] = Field(min_length=1)
    chars: int = Field(default=4000, ge=1)
    """The most characters of each text."""


class Together(Effect[Answers]):
    """Effects side by side, at most ten at a time. A member that fails is a value, it is not raised."""

    kind: Literal["together"] = "together"
    effects: tuple[Any, ...] = Field(min_length=1)
    """Single effects; each is checked against the state's `asks`."""

    @property
    def tools(self) -> tuple[str, ...]:
        """Those of its members."""
        return tuple(sorted({name for effect in self.effects for name in effect.tools}))

    @property
    def title(self) -> str:
        """What the machine calls it, with the number of members."""
        return f"{self.label or self.effects[0].kind.replace('_', ' ')} ({len(self.effects)})"

    @property
    def price(self) -> dict[str, float]:
        """The sum of theirs."""
        return added(*(effect.price for effect in self.effects))


class Say(Effect[None]):
    """Tell the conversation something, or keep a part of the patch from here on. Nothing is performed:
    the kernel answers it itself and writes a record."""

    kind: Literal["say"] = "say"
    say: tuple[Message, ...] = ()
    keep: Mapping[str, Any] = {}
    """Field -> new value; holds even if the visit ends by an error or a person."""
    thought: str | None = Field(default=None, exclude=True, repr=False)
    """What the model said in its newest reply, as the visit reads it, for the log; None: the reply's text."""
