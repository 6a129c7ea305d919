"""What a task carries of models and tools: plain frozen data, checked where it enters.

The bases of all our data are here too; `activities/contracts.py` gives everything on.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from activities.transcript import ToolCall

__all__ = [
    "Artifact", "ArtifactSpec", "ContextRef", "Frozen", "InnerLimits", "JsonObject", "ModelSpec", "Price",
    "ScriptedReply", "Strict", "ToolEffect", "ToolSpec",
]  # fmt: skip

JsonObject = dict[str, JsonValue]


class Frozen(BaseModel):
    """Data that our own code writes; unknown fields are ignored, so that versions may be mixed."""

    model_config = ConfigDict(frozen=True)


class Strict(BaseModel):
    """Data that a person writes; an unknown field is an error, so that a misspelling is found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# -- configuration that travels with a task --------------------


class Price(Strict):
    """A price that overrides the price library, in USD per million tokens."""

    input_per_million: float = Field(ge=0, le=1e6)
    output_per_million: float = Field(ge=0, le=1e6)


class ScriptedReply(Strict):
    """One reply of the `scripted` provider.

    `expect` is a regular expression that must be found in the last message that is not the
    assistant's; its named groups, and those of the replies before, fill `{name}` in the texts of
    `reply`. When it is not found, `otherwise` is said instead if given, else the script fails.
    """

    reply: JsonValue
    expect: str | None = None
    otherwise: JsonValue = None
    tool_calls: tuple[ToolCall, ...] = ()
    delay_seconds: float = Field(default=0, ge=0, le=3600)


class ModelSpec(Strict):
    """A model in one role, resolved: what the agent file says of it."""

    provider: str = Field(default="openai", description="a provider that the worker has")
    name: str = Field(default="gpt-5-mini", min_length=1, description="the provider's model name")
    base_url: str | None = Field(default=None, description="an OpenAI-compatible server")
    temperature: float | None = Field(
        default=0, ge=0, le=2, description="null: leave it to the model (some refuse the field)"
    )
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    max_output_tokens: int | None = Field(default=None, gt=0, le=10**9)
    price: Price | None = None
    stream: bool = Field(default=True, description="false for servers that cannot stream")
    timeout_seconds: float = Field(default=120, gt=0, le=86_400, description="for one attempt")
    attempts: int | None = Field(
        default=None, ge=1, le=100, description="in all, for transient failures; null: as the machine says"
    )
    script: tuple[ScriptedReply, ...] = Field(default=(), description="for provider `scripted`")


ToolEffect = Literal["pure", "read", "idempotent", "keyed", "unsafe"]
"""What a second run of a tool would do (design section 8)."""


class ToolSpec(Frozen):
    """A tool as the worker declares it: what the model reads, and what a second run would do."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments."""
    effect: ToolEffect = "unsafe"
    timeout_seconds: float = 60
    """For one attempt."""
    cache: Literal["none", "run"] = "none"
    """`run`: an equal call in the same run is answered from memory (design section 13, 9)."""
    reconciles: bool = False
    """It can find out whether a call took effect whose worker died."""
    compensates: bool = False
    """It can undo a call that was made."""

    @property
    def repeatable(self) -> bool:
        """May be run again when nobody knows whether the first run took effect."""
        return self.effect != "unsafe"


class ArtifactSpec(Frozen):
    """A named result that a tool call is to produce (spec 5.3)."""

    name: str
    type: str = "text"
    kind: str = "data"


class Artifact(Frozen):
    """A named result: its body is in the durable store, this is what the state keeps."""

    name: str
    type: str = "text"
    kind: str = "data"
    digest: str | None = None
    """Of the body in the durable store; None: there is no value."""
    bytes: int = 0
    preview: str = ""
    """The first 200 characters."""
    error: str | None = None


class ContextRef(Frozen):
    """A long text in the durable store, by reference."""

    digest: str
    """Of its table of parts."""
    chars: int = Field(ge=0)
    bytes: int = Field(ge=0)


class InnerLimits(Strict):
    """What an inner machine may spend of its own; null: what the run has left."""

    model_calls: int | None = Field(default=None, ge=0, le=10**12)
    tool_calls: int | None = Field(default=None, ge=0, le=10**12)
    tokens: int | None = Field(default=None, ge=0, le=10**12, description="input and output together")
    cost_usd: float | None = Field(default=None, ge=0, le=10**12)
    seconds: float | None = Field(default=None, gt=0, le=10**12)
    max_transitions: int | None = Field(default=None, gt=0, le=10**12)
