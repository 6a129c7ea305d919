"""What the world answers to an effect.

Each answer says in `spent` what it cost beyond the effect's own price, by counter of the ledger.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue

from activities.contracts.base import Frozen, JsonObject, added
from activities.contracts.conversation import Message, NativeCall
from activities.contracts.labels import LabelSource
from activities.contracts.specs import Artifact, ToolSpec

__all__ = [
    "MODEL_REFUSED",
    "REFUSAL",
    "SHARED_COUNTERS",
    "Answer",
    "Answers",
    "ArtifactText",
    "ArtifactsRead",
    "CodeCall",
    "CodeStepped",
    "EarlyReply",
    "EffectFailed",
    "ErrorClass",
    "MachineEnded",
    "ModelReplied",
    "NotBegun",
    "PersonDecided",
    "SingleAnswer",
    "ToolError",
    "ToolResult",
    "ToolsReturned",
    "Usage",
    "cost_of_tools",
]

REFUSAL = "refusal"
"""A reply's `finish_reason` if its text is the model's refusal to answer."""
MODEL_REFUSED = "model_refused"
"""Type of the failure of a question that the model refused to answer, and exit reason of its run."""
SHARED_COUNTERS = (
    "model_calls", "tool_calls", "input_tokens", "output_tokens", "tokens", "cost_usd", "unpriced_calls",
)  # fmt: skip
"""Counters that a run adds to the run around it, once, when it has ended."""


class BaseAnswer(Frozen):
    """What every answer has."""

    @property
    def cost(self) -> dict[str, float]:
        """What was spent beyond the effect's own price, by counter."""
        return {}

    def superseded(self) -> Self:
        """The form in which it is carried once a newer answer of its kind came: what only the newest
        answer is read for is left out."""
        return self


class Usage(Frozen):
    """Tokens of one or more model calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """How many of the input tokens the provider had cached."""
    reasoning_tokens: int = 0
    """How many of the output tokens were reasoning."""


class ModelReplied(BaseAnswer):
    """A model's reply. Ids of its tool calls are unique in the conversation (the activity sees to it)."""

    kind: Literal["model_replied"] = "model_replied"
    text: str
    tool_calls: tuple[NativeCall, ...] = ()
    kept: str = Field(default="", exclude_if=lambda kept: not kept)
    """What the provider wants back with the message (`Message.kept`)."""
    finish_reason: str = "stop"
    model: str = ""
    """The provider's name for the model that answered."""
    requested: str = ""
    """Provider and model that were asked, such as `openai/gpt-5-mini`; empty in a run without Temporal."""
    usage: Usage = Usage()
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    cost_known: bool = True
    """False when neither the price library nor the task knows the model's price."""
    attempt: int = 1
    requests: int = Field(default=1, ge=1)
    """How many its provider was sent, over all attempts and ways to ask."""
    seconds: float = 0.0
    conversation: str = ""
    """Digest of the conversation with this reply at its end; the store holds it."""
    tools: tuple[ToolSpec, ...] = ()
    """The specs of the run's tools, where the question asked for them."""

    @property
    def message(self) -> Message:
        """The reply as a message; must equal what the activity stored."""
        return Message(role="assistant", content=self.text, tool_calls=self.tool_calls, kept=self.kept)

    @property
    def cost(self) -> dict[str, float]:
        """Tokens, USD and the requests beyond the first; once more for the model that was asked, as
        `model:<provider>/<name>/<counter>`, with all requests."""
        used = self.usage
        amounts: dict[str, float] = {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cost_usd": self.cost_usd,
        }
        if not self.cost_known:
            amounts["unpriced_calls"] = 1
        of_model = {"model_calls": self.requests, **amounts} if self.requested else {}
        amounts["tokens"] = used.input_tokens + used.output_tokens
        if self.requests > 1:
            amounts["model_calls"] = self.requests - 1
        return {**amounts, **{f"model:{self.requested}/{name}": n for name, n in of_model.items() if n}}


class EarlyReply(Frozen):
    """A reply to a question that the machine was expected to ask."""

    question: str
    """Digest of the question."""
    reply: ModelReplied

    @property
    def cost(self) -> dict[str, float]:
        """What it cost if the machine asks something else."""
        return added({"model_calls": 1}, self.reply.cost)


ToolError = Literal[
    "unknown_tool", "bad_arguments", "failed", "transient", "timeout", "unknown_outcome", "rejected",
    "expired",
]  # fmt: skip
"""rejected: a person said no. expired: nobody decided in time. Neither was run."""


class NotBegun(Frozen):
    """A call's worker could not begin it, because it could not read or write down what it needs. Nothing has
    happened: the call is given out again until a worker can."""

    reason: str
    """In words for people."""
    at: float | None = None
    """When the worker tried to note the call's beginning, in seconds since 1970. The call store may have that
    note all the same."""


class ToolResult(Frozen):
    """What one tool returned: its output as text, or an error in words for the model."""

    id: str
    tool: str
    output: str
    """What the model is shown, capped."""
    error: ToolError | None = None
    attempts: int = 1
    seconds: float = 0.0
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    bytes: int = 0
    """Size of the whole output in UTF-8."""
    whole: str | None = None
    """Digest of the whole output in the durable store, when `output` was cut."""
    marks: tuple[str, ...] = ()
    """Progress marks that the tool reports (spec 4.14)."""
    artifacts: tuple[Artifact, ...] = ()
    """The named results that the call asked to keep."""
    acts_for: float | None = None
    """Of a call whose outcome is unknown: for so many seconds from now on, a worker that was taken for dead
    may go on with it. No point in time, since each worker has a clock of its own. None: it cannot."""
    early: EarlyReply | None = None
    """What a model replied to the machine's next question, asked in the same activity."""
    unanswered: int = 0
    """Requests that a model was sent for that question, where no reply came: it failed or was stopped."""

    @property
    def ok(self) -> bool:
        """The tool ran and returned."""
        return self.error is None


def cost_of_tools(*costs: tuple[str, float]) -> dict[str, float]:
    """USD by name of the tool, as amounts by counter: in all, and as `tool:<name>/cost_usd`."""
    by_tool = added(*({f"tool:{tool}/cost_usd": usd} for tool, usd in costs if usd))
    return {"cost_usd": sum(usd for _, usd in costs), **by_tool}


class ToolsReturned(BaseAnswer):
    """The results of a `CallTools`, in the order of its runs; shorter if it was cut off."""

    kind: Literal["tools_returned"] = "tools_returned"
    results: tuple[ToolResult, ...]

    @property
    def cost(self) -> dict[str, float]:
        """USD."""
        return cost_of_tools(*((result.tool, result.cost_usd) for result in self.results))


class PersonDecided(BaseAnswer):
    """What a person decided; `unavailable` when nobody can be asked."""

    kind: Literal["person_decided"] = "person_decided"
    decision: Literal["approve", "reject", "resume", "abort", "answer", "unavailable"]
    text: str = ""
    by: str = ""


class MachineEnded(BaseAnswer):
    """How an inner machine ended."""

    kind: Literal["machine_ended"] = "machine_ended"
    machine: str
    ok: bool
    exit_reason: str
    answer: str | None = None
    error: str | None = None
    outcome: JsonObject = {}
    spent: dict[str, float] = {}
    """Its ledger; added to the outer one, once."""
    workflow_id: str = ""
    """Of the child workflow; empty in a run without Temporal."""
    brought: tuple[LabelSource, ...] = Field(default=(), exclude_if=lambda brought: not brought)
    """Labels of the inner run when it ended."""

    @property
    def cost(self) -> dict[str, float]:
        """What the inner run spent of what both count."""
        return {name: amount for name, amount in self.spent.items() if name in SHARED_COUNTERS}

    def merged_into(self, metadata: JsonObject) -> JsonObject:
        """Metadata of the outer machine with the inner run's outcome, which wins on equal keys. How the
        inner run ended stays out of it (R-000-15)."""
        ends = {"exit_reason", "terminated"}
        return {**metadata, **{key: value for key, value in self.outcome.items() if key not in ends}}


class CodeCall(Frozen):
    """A call that a block of code waits for."""

    name: str
    args: tuple[JsonValue, ...] = ()
    named: JsonObject = {}
    """Keyword arguments."""


class CodeStepped(BaseAnswer):
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
    seconds: float = 0.0
    """What it took by the clock, without waiting for a free interpreter."""

    def superseded(self) -> CodeStepped:
        """Without the session: only the newest one is needed to go on (sketch notes, code C)."""
        return self.model_copy(update={"session": ""}) if self.session else self


class ArtifactText(Frozen):
    """The text at one path; `problem` says why there is none."""

    text: str = ""
    """The text itself, or the value as JSON; cut to the requested length."""
    chars: int = 0
    """Of the whole text."""
    binary: bool = False
    """The body exists, but it is not text."""
    problem: str | None = None


class ArtifactsRead(BaseAnswer):
    """The texts, in the order of the request."""

    kind: Literal["artifacts_read"] = "artifacts_read"
    texts: tuple[ArtifactText, ...]


ErrorClass = Literal["transient", "recoverable", "fatal", "unknown_outcome"]
"""transient: retried without success; recoverable: the machine may go on; fatal: it must not."""


class EffectFailed(BaseAnswer):
    """An effect that could not be performed; raised inside the visit as an `EffectError`."""

    kind: Literal["effect_failed"] = "effect_failed"
    error: ErrorClass
    type: str
    """The cause by name, such as `context_too_long`, `HTTP401`."""
    message: str
    attempts: int = 1
    spent: dict[str, float] = {}
    """What it cost all the same, by counter: an inner machine that broke a rule, a question that sent more
    than one request."""
    brought: tuple[LabelSource, ...] = Field(default=(), exclude_if=lambda brought: not brought)
    """Labels of an inner run that failed: its text may be in the message."""

    @property
    def cost(self) -> dict[str, float]:
        """What it cost all the same."""
        return {name: amount for name, amount in self.spent.items() if name in SHARED_COUNTERS}


SingleAnswer = Annotated[
    ModelReplied | ToolsReturned | PersonDecided | MachineEnded | CodeStepped | ArtifactsRead | EffectFailed,
    Field(discriminator="kind"),
]


class Answers(BaseAnswer):
    """The answers to a `Together`, in its order; a member that failed is an `EffectFailed` here."""

    kind: Literal["answers"] = "answers"
    answers: tuple[SingleAnswer, ...]

    @property
    def cost(self) -> dict[str, float]:
        """The sum of theirs."""
        return added(*(answer.cost for answer in self.answers))


Answer = Annotated[SingleAnswer | Answers, Field(discriminator="kind")]
