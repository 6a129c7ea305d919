"""What a machine may ask of the sandbox in which a model's code runs, and what it answers.

A block runs to its next call of something outside. The answer names that call and gives the
session as it stands there; the machine has the call performed and goes on with `RunCode(answer=...)`.
So a worker that dies inside a block loses nothing but the time since the last call.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from activities.contracts import ContextRef, Effect, Frozen, JsonObject, Strict

__all__ = ["CodeAnswer", "CodeCall", "CodeLimits", "CodeStepped", "RunCode"]


class CodeLimits(Strict):
    """What a block may use; always set (an interpreter without limits burns a core for ever)."""

    seconds: float = Field(
        default=300,
        gt=0,
        le=3600,
        description="that a block may run, by the clock, without its outside calls [2.4]",
    )
    memory_bytes: int = Field(default=256 * 2**20, ge=2**20, le=4 * 2**30, description="of the interpreter")
    output_chars: int = Field(default=20_000, ge=100, le=1_000_000, description="shown to the model [2.4]")
    recursion: int = Field(default=200, ge=10, le=1000, description="depth of calls inside a block")
    state_bytes: int = Field(
        default=8 * 2**20,
        ge=2**16,
        le=2**30,
        description="of the variables kept from step to step; each outside call keeps them once more",
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


class RunCode(Effect):
    """Begin a block, or go on with one behind the answer to its call; input of the activity `run_code`."""

    kind: Literal["run_code"] = "run_code"
    block: str | None = None
    """Source of the block to begin; None: go on."""
    session: str = ""
    """What the last `CodeStepped` gave; empty: a fresh one."""
    before: str = ""
    """The session as it was before this block: restored after a timeout, a lack of memory, a crash."""
    answer: CodeAnswer | None = None
    names: tuple[str, ...] = ()
    """What a block may call outside; any other unknown name is a NameError inside."""
    constants: JsonObject = {}
    """Variables that a fresh session begins with."""
    context: str | ContextRef | None = None
    """A text is also the plain variable `context`. Either kind is reached through `context_len()`,
    `context_slice(start, end)` and `context_search(pattern, start=0)`, which do not suspend the block
    and count as no calls. A search gives a list of {start, end, text}; see `activities/context.py`."""
    limits: CodeLimits = CodeLimits()
    label: str = "run code"

    @property
    def title(self) -> str:
        """What the machine calls this step."""
        return self.label

    @property
    def inputs(self) -> JsonObject:
        """The variables that a fresh session begins with: the constants, and a short context."""
        return (
            {**self.constants, "context": self.context} if isinstance(self.context, str) else self.constants
        )


class CodeCall(Frozen):
    """A call that a block waits for."""

    name: str
    args: tuple[JsonValue, ...] = ()
    named: JsonObject = {}
    """Keyword arguments."""


class CodeStepped(Frozen):
    """How far a block came: to a call, to its end, or to an error."""

    kind: Literal["code_stepped"] = "code_stepped"
    session: str
    """To go on with: `digest:<sha256>` in the durable store, or `inline:<base64>` when it is small."""
    call: CodeCall | None = None
    """The block waits for this; None: it has ended."""
    printed: str = ""
    """What it printed since the last step, cut at the output limit."""
    left_out: int = 0
    """Characters that were cut."""
    error: str | None = None
    """Type and message of what the block raised, with line and caret where there is one."""
    fatal: bool = False
    """Out of time or memory, or the interpreter died: `session` is the one before the block."""
    seconds: float = 0
    """What it took by the clock, without waiting for a free interpreter."""
