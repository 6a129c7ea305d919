"""Where a run is, and what came out of it.

`workflows/api.py` and `workflows/people.py` have these names, too. Commands that only show a run import this
module: it does without all that an agent can be, which takes twice as long.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, PlainSerializer

from activities.contracts.base import Frozen, JsonObject
from activities.contracts.labels import LabelSource, ToolEffect
from workflows.kernel.errors import error_named
from workflows.temporal_names import Kind

__all__ = [
    "ASKING", "MAX_PLAIN", "Amount", "AtDeadline", "Bound", "Decided", "DoneCall", "Origin",
    "RequestOutcome", "RunResult", "RunStatus", "RunSummary", "bound_text",
]  # fmt: skip

M = TypeVar("M", bound=BaseModel)
AtDeadline = Literal["approve", "reject", "abort", "escalate"]
"""What an expired request leads to. For kinds other than approval, approve means to go on, and reject means
to do without: a question is answered `unavailable`, a limit ends the run, an outcome stays unknown."""
RequestOutcome = Literal[
    "open", "approved", "rejected", "edited", "answered", "resumed", "retried", "topped_up", "finished",
    "aborted", "expired", "withdrawn",
]  # fmt: skip
"""expired: nobody decided in time. withdrawn: a rollback, an abort or the end of the run came first."""
ASKING = "asking the model"
"""What a run does while a model answers."""
MAX_PLAIN = 10**15
"""The largest sum that a bound may name: a float has all its digits."""


def _json_number(amount: Decimal) -> int | float | str:
    """As JSON writes it: a text where a float would be another number."""
    if amount == amount.to_integral_value():
        return int(amount)
    return float(amount) if Decimal(repr(float(amount))) == amount else str(amount)


Amount = Annotated[Decimal, PlainSerializer(_json_number, when_used="json")]
"""An exact number. A sum of floats would drift: 0.1 + 0.2 is more than 0.3."""


class Bound(Frozen):
    """A bound of an approval rule, and how far a run has used it."""

    rule: str
    """Such as `rules.0`."""
    of: str
    """`calls`, or `sum.` and the name of an argument."""
    most: Amount
    """That may pass unasked."""
    used: Amount
    """Of that: made, or about to be made."""
    is_share: bool = False
    """`most` is what an inner run was given of what the run above it had left."""
    wanted: Amount | None = None
    """What a call that would pass the bound adds; None: that cannot be counted."""

    @property
    def text(self) -> str:
        """How much is used: `3 of 5 calls`, `3,750 of 5,000 cents`."""
        return f"{_plain(self.used)} of {bound_text(self.most, self.of)}"

    @property
    def left_text(self) -> str:
        """How much is left."""
        return _plain(self.most - self.used)

    @property
    def passed_text(self) -> str:
        """Why a call passes it, for people."""
        counted = self.of.removeprefix("sum.")
        whom = " this inner run" if self.is_share else ""
        allowed = f"{self.rule} allows{whom} at most {bound_text(self.most, self.of)} unasked"
        if counted == self.of:
            return f"{allowed}; {_plain(self.used)} made"
        if self.wanted is None:
            return f"{allowed}; of this call {counted} cannot be counted: it is no number, or below 0"
        return f"{allowed}; {_plain(self.used)} used, and this call has {_plain(self.wanted)}"


def bound_text(most: Decimal, of: str) -> str:
    """`5 calls`, `5,000 cents`."""
    return f"{_plain(most)} {'call' if of == 'calls' and most == 1 else of.removeprefix('sum.')}"


def _plain(amount: Decimal) -> str:
    if amount > MAX_PLAIN:
        return f"{amount:.3e}"
    return f"{amount:,f}".rstrip("0").rstrip(".") if "." in f"{amount:f}" else f"{amount:,f}"


class Decided(Frozen):
    """The state of a request after a decision; in the run's result: how it was closed."""

    request: str
    """Its id."""
    kind: Kind
    """Why the run asked."""
    outcome: RequestOutcome
    """Whether it is open, and else how it was closed."""
    text: str = ""
    """Comment of the deciding vote, cut."""
    tool: str | None = None
    """Of the call that it is about; None: it is about none."""
    by: tuple[str, ...] = ()
    """Who decided."""
    verified: bool = False
    """All who decided have signed."""
    digest: str = ""
    """Of what was decided; while it is open: the request's."""
    at: float = 0
    """When it was closed; 0: it is open."""
    votes: int = 0
    """How many people have decided the same."""
    needed: int = 1
    """The quorum."""
    at_deadline: AtDeadline | None = None
    """expired: what it led to."""


class DoneCall(Frozen):
    """A call that changed something outside, or may have; for the report before a rollback."""

    step: int
    """In which it was made."""
    branch: int
    """How often the run had been rolled back by then."""
    activity_id: str
    """Of its activity."""
    tool: str
    """Its name."""
    arguments: JsonObject
    """As they were sent."""
    effect: ToolEffect
    """What a second call would do."""
    output: str = ""
    """Cut."""
    error: str | None = None
    """Why it failed; None: it did not."""
    key: str = ""
    """Its idempotency key."""
    undoable: bool = False
    """The tool declares a compensation."""
    undone: str | None = None
    """What the compensation did."""


class Origin(Frozen):
    """Where a forked run comes from."""

    workflow_id: str
    """Of the source."""
    run_id: str
    """Of the first execution of its chain."""
    step: int
    """The step that the fork begins again; 0: the start."""


class RunSummary(Frozen):
    """What status and result both say of a run."""

    agent: str
    """Its name."""
    machine: str
    """Its name."""
    machine_version: str
    """The version that the run has."""
    state: str
    """Where the machine is."""
    step: int
    """How many steps have begun."""
    branch: int = 0
    """How often the run was rolled back."""
    exit_reason: str | None = None
    """How it ended; None: it is live."""
    answer: str | None = None
    """What the machine answers; None: nothing, or not yet."""
    error: str | None = None
    """What went wrong, for a person; where a person ended the run, who."""
    counters: dict[str, float] = {}
    """Spent so far: model_calls, tool_calls, input_tokens, output_tokens, tokens, cost_usd, seconds. What the
    run's own calls have spent of it, without inner runs, is there by model and tool, too:
    `model:openai/gpt-5-mini/cost_usd`, `tool:search/cost_usd`."""
    bounds: tuple[Bound, ...] = ()
    """The bounds of the approval rules, and how far they are used, inner runs included."""
    labels: tuple[LabelSource, ...] = Field(default=(), exclude_if=lambda labels: not labels)
    """What the run has read that is untrusted or private, and what brought it first."""
    records: int = 0
    """How many records the log has."""
    origin: Origin | None = None
    """The run that this one was forked from."""
    was_reset: bool = False
    """By Temporal: it, or a run above it, began again from an earlier event of its history."""


class RunStatus(RunSummary):
    """Where a run is: answer of the query `status`. Long texts are cut."""

    visit: int = 0
    """Number of the visit under way."""
    doing: str = ""
    """What is under way, in words; where nothing is, the title of what comes next."""
    doing_since: float | None = None
    """When it began, in seconds since 1970; null: nothing is under way."""
    failing: str | None = None
    """What failed last of it and is tried again, in one line. The run itself knows of calls that no worker
    could begin; the client adds what Temporal tries again."""
    attempt: int = 0
    """Of what fails: the attempt that is under way or comes next."""
    next_try: float | None = None
    """When it comes, in seconds since 1970; null: it is under way."""
    paused_calls: tuple[str, ...] = ()
    """Calls that an operator has paused in Temporal, each in one line. The client adds them."""
    children: tuple[str, ...] = ()
    """Workflow ids of the inner runs under way; `pause` and `resume` go to them, too."""
    caps: dict[str, float] = {}
    """Limits, by the counter that they bound."""
    waiting: str = ""
    """Kind of the oldest open request, or `paused`; empty: the run waits for nobody."""
    paused: bool = False
    """A person has paused it."""
    requests: int = 0
    """Open requests; the query `requests` has them."""
    inbox: int = 0
    """Messages from people that no question has brought yet."""
    unusable_messages: tuple[str, ...] = ()
    """Names of signals that could not be understood; the log has each."""
    finished: float | None = None
    """When the run ended, in seconds since 1970; null: it is not over."""


class RunResult(RunSummary):
    """What came out of a run, also of one that was ended early."""

    read_by_others: ClassVar[bool] = True
    """By programs without access to the store: it stays in Temporal's history, see `RESULT_BYTES`. An inner
    run's result is whole, for the outer run."""
    ok: bool
    """The goal was achieved, as the machine understands it."""
    exit_reason: str
    """How it ended: one of the machine's, or of every machine's."""
    outcome: dict[str, Any] = {}
    """What the machine adds to its result."""
    output: JsonObject | None = Field(default=None, exclude_if=lambda output: output is None)
    """The answer as data that fits the agent's `output`; null: the agent has none, no answer fits, or it is
    among `cut_fields`. A run that is `ok` has it."""
    workflow_id: str
    """The run's id."""
    run_id: str
    """Of the first execution of the chain."""
    log_head: str = ""
    """Hash of the last record; the archive's chain must end in it."""
    calls: tuple[DoneCall, ...] = ()
    """What was done outside, oldest first, on all branches and in inner runs: the newest 1,000 calls that are
    neither `pure` nor `read`."""
    decisions: tuple[Decided, ...] = ()
    """The newest 100 requests that were closed, oldest first."""
    unheard: tuple[str, ...] = ()
    """Messages from people that no question has brought."""
    archived: bool = True
    """False: the log could not be written to the archive when the run ended; the worker's log says why, and a
    worker writes it when the archive is back."""
    raises: str | None = None
    """The error that the machine ended with, for machines that raise instead of returning: `raise_if_failed`
    raises it. Temporal shows such a run as `on_end` says, like any other. A workflow that fails has this
    type, else the exit reason, and this result in the error's details."""
    cut: str = ""
    """For people: which fields are cut in Temporal's history, how to get the whole, and why the SDK could
    not. Empty: it is the whole, as what the SDK gives is wherever it reaches the archive or a worker."""
    cut_fields: tuple[str, ...] = Field(default=(), exclude_if=lambda fields: not fields)
    """Names of the fields that are cut."""

    def output_as(self, model: type[M]) -> M:
        """The answer as an instance of this model. Raises ValueError where there is no `output`, with why the
        run ended, or where it was cut; and where the model does not take it: validators of its own are asked
        here for the first time."""
        if self.output is None:
            why = f": {self.error}" if self.error else "; its agent names none"
            if "output" in self.cut_fields:
                why = f"; {self.cut}"
            raise ValueError(
                f"the run {self.workflow_id} ended as `{self.exit_reason}` without an output{why}"
            )
        return model.model_validate(self.output)

    def raise_if_failed(self) -> None:
        """Raise what the machine ended with, such as `MaxIterationsExceeded`, if it does so."""
        if self.raises is not None:
            raise error_named(self.raises, self.machine, self.state, self.error or self.exit_reason)
