"""Plain frozen data that a task carries: models, tools, artifacts and material."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

from activities.contracts.base import Frozen, JsonObject, Strict
from activities.contracts.conversation import NativeCall
from activities.contracts.labels import Label, Sink, ToolEffect
from activities.contracts.patterns import PATTERN_STEPS, compiled
from activities.contracts.read_only import read_only

__all__ = [
    "Artifact",
    "ArtifactSpec",
    "InnerLimits",
    "MaterialRef",
    "ModelSpec",
    "Price",
    "ScriptedReply",
    "ToolSpec",
    "as_tuple",
    "bare_name_too",
]


def as_tuple(given: object) -> object:
    """A text as the only one of a list: a file may leave the brackets out."""
    return (given,) if isinstance(given, str) else given


def bare_name_too(schema: JsonObject) -> None:
    """For `json_schema_extra` of a model that a bare name may stand for."""
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string"}, whole]


class Price(Strict):
    """A price that overrides the price library, in USD per million tokens."""

    input_per_million: float = Field(ge=0, le=1e6, description="USD", examples=[0.25])
    output_per_million: float = Field(ge=0, le=1e6, description="USD", examples=[2])


class ScriptedReply(Strict):
    """One reply of the `scripted` provider.

    `expect` is a regular expression (RE2; `^` and `$` match at each line) that must match in the newest
    message that is not the assistant's, nor a note of the run itself. Its named groups, and those of earlier
    replies, fill `{name}` in `reply`. Without a match, `otherwise` is the reply if given; else the script
    fails.
    """

    reply: JsonValue = Field(
        description="text, or what is sent as JSON; `{name}` is a group of `expect`",
        examples=["I count.", "{words} words"],
    )
    expect: str | None = Field(
        default=None,
        max_length=1000,
        description="regular expression (RE2) that the newest message must match",
        examples=[r"(?P<words>\d+) words"],
    )
    otherwise: JsonValue = Field(
        default=None,
        description="the reply without a match; null: the script fails",
        examples=["I found nothing."],
    )
    tool_calls: tuple[NativeCall, ...] = Field(
        default=(), max_length=100, description="native calls, for machines that offer tools so"
    )
    delay_seconds: float = Field(default=0.0, ge=0, le=3600, description="before the reply comes")

    @field_validator("expect")
    @classmethod
    def _can_be_searched(cls, expect: str | None) -> str | None:
        if expect is not None:
            compiled(expect, lines=True, steps=PATTERN_STEPS)
        return expect

    def match(self, text: str) -> Any:
        """What `expect` finds in the text; None if nothing, or if nothing is expected."""
        if self.expect is None:
            return None
        return compiled(self.expect, lines=True, steps=PATTERN_STEPS).search(text)


Fallbacks = Annotated[tuple[Annotated[str, StringConstraints(max_length=64)], ...], Field(max_length=10)]
OneOrMoreFallbacks = Annotated[Fallbacks, BeforeValidator(as_tuple, json_schema_input_type=str | Fallbacks)]


class ModelSpec(Strict):
    """The model of one role, as the agent file resolves it."""

    provider: str | None = Field(
        default=None,
        max_length=100,
        description="a provider that the worker has; null: the one whose models have such names",
        examples=["openai", "anthropic", "google", "scripted"],
    )
    name: str = Field(
        default="gpt-5-mini", min_length=1, max_length=300, description="the provider's model name"
    )
    base_url: str | None = Field(
        default=None,
        max_length=2000,
        description="an OpenAI-compatible server without a key; null: that of its provider",
        examples=["http://localhost:11434/v1"],
    )
    api: Literal["chat", "responses"] = Field(
        default="chat", description="of the server: chat completions, or OpenAI's Responses API"
    )
    reasoning: str | None = Field(
        default=None,
        max_length=20,
        description="effort of a reasoning model; a server may have words of its own",
        examples=["none", "minimal", "low", "medium", "high", "xhigh", "max", "default"],
    )
    temperature: float | None = Field(
        default=0.0, ge=0, le=2, description="null: leave it to the model (some refuse the field)"
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**63,
        description="of chat completions; the Responses API has none",
        examples=[1],
    )
    max_output_tokens: int | None = Field(
        default=None, gt=0, le=10**9, description="of one reply; null: the server's choice", examples=[4000]
    )
    window_tokens: int | None = Field(
        default=None,
        ge=1000,
        le=10**9,
        description="what the model can take in; older messages are summarised in time, see `compaction`; "
        "null: every message is sent each time",
        examples=[128_000],
    )
    price: Price | None = Field(default=None, description="overrides the price list; null: as that says")
    stream: bool = Field(default=True, description="false for servers that cannot stream")
    timeout_seconds: float = Field(default=120.0, gt=0, le=86_400, description="for one attempt")
    attempts: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="in all, for transient failures; null: the machine's choice",
        examples=[6],
    )
    fallback: OneOrMoreFallbacks = Field(
        default=(),
        description="names of other models of the agent, asked in this order when this one is unavailable",
        examples=["backup", ["backup", "local"]],
    )
    script: tuple[ScriptedReply, ...] = Field(
        default=(), max_length=10_000, description="for the provider `scripted`"
    )

    @model_validator(mode="after")
    def _leaves_room(self) -> ModelSpec:
        output, window = self.max_output_tokens, self.window_tokens
        if output is not None and window is not None and output >= window:
            raise ValueError(
                f"max_output_tokens: must be less than `window_tokens`, {window}; got {output}: the longest "
                "reply would leave no room for a question"
            )
        return self


class ToolSpec(Frozen):
    """A tool as the worker declares it: what the model reads, and what a second run would do."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments."""
    effect: ToolEffect = "unsafe"
    timeout_seconds: float = 60.0
    """For one attempt."""
    cache: Literal["none", "run"] = "none"
    """`run`: an equal call in the same run is answered from memory (design 9, 10)."""
    reconciles: bool = False
    """The tool can find out whether a call took effect after its worker died."""
    compensates: bool = False
    """The tool can undo a call."""
    news: Literal["result", "always", "never"] = "result"
    """When a call counts as new. `result`: when the call or its result differs from earlier ones. `always`:
    for a tool that is called until something happens. `never`: for a clock."""
    brings: tuple[Label, ...] = Field(default=(), exclude_if=lambda brings: not brings)
    """Labels of what it returns, errors too."""
    sends: Sink = Field(default="nowhere", exclude_if=lambda sends: sends == "nowhere")
    """How far what it is given goes."""

    @field_validator("parameters")
    @classmethod
    def _is_read_only(cls, schema: JsonObject) -> Any:
        return read_only(schema, "the schema of a tool")

    @property
    def repeatable(self) -> bool:
        """The tool may run again when the outcome of the first run is unknown."""
        return self.effect != "unsafe"


class ArtifactSpec(Frozen):
    """A named result that a tool call should produce (spec 5.3)."""

    name: str
    type: str = "text"
    kind: str = "data"


class Artifact(Frozen):
    """A named result. Its body is in the durable store; this is what the context keeps."""

    name: str
    type: str = "text"
    kind: str = "data"
    digest: str | None = None
    """Of the body in the durable store; None: there is no value."""
    bytes: int = 0
    preview: str = ""
    """The first 200 characters."""
    error: str | None = None


class MaterialRef(Frozen):
    """A long text in the durable store, by reference."""

    digest: str = Field(max_length=64)
    """Of the text in UTF-8."""
    chars: int = Field(ge=0)
    bytes: int = Field(ge=0)


class InnerLimits(Strict):
    """What an inner machine may spend; null: what the outer run has left."""

    model_calls: int | None = Field(
        default=None, ge=0, le=10**12, description="requests to model providers, retries included"
    )
    tool_calls: int | None = Field(default=None, ge=0, le=10**12, description="calls of tools", examples=[50])
    tokens: int | None = Field(
        default=None, ge=0, le=10**12, description="input and output together", examples=[200_000]
    )
    cost_usd: float | None = Field(
        default=None, ge=0, le=10**12, description="USD, of replies whose price is known", examples=[0.5]
    )
    seconds: float | None = Field(
        default=None, gt=0, le=10**12, description="since the run began", examples=[3600]
    )
    max_transitions: int | None = Field(
        default=None,
        gt=0,
        le=10**12,
        description="visits of states; null: the machine's own bound",
        examples=[100],
    )
