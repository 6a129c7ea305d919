"""A run between two effects: its program, its snapshot, the step that a host holds; and both as JSON."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import TypeAdapter, ValidationError

from activities.contracts import (
    Answer,
    AskModel,
    Conversation,
    Effect,
    JsonObject,
    LabelSource,
    Message,
    ToolSpec,
    read_only,
)
from workflows.kernel.context import Context, Patch, View, patched, to_json
from workflows.kernel.errors import AgentError, InputRefused, restoring
from workflows.kernel.labels import Labels
from workflows.kernel.ledger import Breach, Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import AnswerForm, Exit, Extensions, Machine, Run, RunInput, RunTools, VisitEnd

__all__ = [
    "Lens", "Live", "Moment", "Observer", "Program", "RunFacts", "Snapshot", "Suspension", "changed", "dump",
    "suspension_from",
]  # fmt: skip

if TYPE_CHECKING:
    from dataclasses import replace as changed
else:

    def changed(one: Any, **values: Any) -> Any:
        """`dataclasses.replace` of a moment, a snapshot or a suspension, seven times as fast: each step of a
        run makes twenty of them. They have neither slots nor checks of their own."""
        other = object.__new__(type(one))
        other.__dict__.update(one.__dict__)
        other.__dict__.update(values)
        return other


@dataclass(frozen=True)
class Program:
    """All that does not change in a run: a machine with its options, extensions and input.

    Raises ValueError for options or an input that cannot be run.
    """

    machine: Machine
    input: RunInput
    options: Any = None
    extensions: Extensions = field(default_factory=Extensions)
    max_transitions: int | None = None
    """The run's own limit; the machine's is one, too."""
    interrupts: Callable[[Snapshot, Program], bool] | None = field(default=None, compare=False)
    """Asked before each state is entered, except after a rollback; true: the run is paused there."""
    observer: Observer | None = field(default=None, compare=False)
    """Sees what the visits ask for and come to."""
    lens: Lens | None = field(default=None, compare=False)
    """Sees what the machine's functions read and write."""
    labels: Labels = field(default_factory=Labels)
    """Where the run's labels come from."""
    labels_above: tuple[LabelSource, ...] = ()
    """Those of the run above this one when it began it."""
    form: AnswerForm | None = field(default=None, compare=False)
    """What the answer must be."""
    prepared: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        machine, options = self.machine, self.options
        options = read_only(machine.read_options({} if options is None else options), "`run.options`")
        read_only(self.input, "`run.input`")
        prepared = machine.prepare(options, self.extensions) if machine.prepare else None
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "prepared", prepared)

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Those of the run's tools that are known, by name."""
        tools = self.input.tools
        return tools.specs if isinstance(tools, RunTools) else {spec.name: spec for spec in tools}

    @property
    def input_labels(self) -> tuple[LabelSource, ...]:
        """Labels of what the run begins with."""
        return self.labels.of_input(self.labels_above)

    def transition_limit(self, refused: int = 0) -> int:
        """Transitions that a run may make with so many refused answers: each is one more way through the
        machine's states, which its own limit knows nothing of."""
        own = self.machine.max_transitions
        limit = (own(self.options) if callable(own) else own) + refused * len(self.machine.rows)
        return limit if self.max_transitions is None else min(limit, self.max_transitions)

    @property
    def effect_limit(self) -> int:
        """Effects that one visit may ask for."""
        own = self.machine.max_effects
        return own(self.options) if callable(own) else own

    def entry_limit(self, counter: str) -> int | None:
        """The most entries of states with this counter."""
        return dict(self.machine.caps(self.options)).get(counter) if self.machine.caps else None

    def begin(self) -> tuple[Context, tuple[Message, ...]]:
        """The first context and the opening messages. Raises InputRefused; any other error, a ValidationError
        too, is a bug of the machine."""
        try:
            begun = self.machine.begin(self.input, self.options)
        except ValidationError:
            raise
        except ValueError as error:
            raise InputRefused(str(error)) from error
        context, opening = begun if isinstance(begun, tuple) else (begun, ())
        return context, tuple(opening)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What `run` shows from one moment on."""

    now: float
    said: int
    """Messages of the conversation."""
    notes: int
    """Messages from people so far."""
    heard: int
    """How many of them are in the conversation."""
    ledger: Ledger


@dataclass(frozen=True)
class Moment:
    """One answer of the current visit."""

    asked: str
    """`kind:label` of the effect; a visit that is run again must ask for the same."""
    answer: Any
    """None for a `Say`."""
    facts: RunFacts
    keep: Patch = field(default_factory=dict)
    """What a `Say` kept."""


@dataclass(frozen=True)
class Snapshot:
    """A run between two effects: everything it needs to continue."""

    state: str
    context: Context
    conversation: Conversation
    entered: RunFacts
    """What `run` showed when the visit began."""
    entry_context: Context
    """The context when the visit began; `context` differs by what the visit kept."""
    began: float
    """When the run began, in seconds since 1970."""
    opening: int
    """Messages of the conversation that the run began with."""
    moments: tuple[Moment, ...] = ()
    calls: int = 0
    """Effects of the visit that were answered, without what it said."""
    notes: tuple[Message, ...] = ()
    """Messages from people."""
    heard: int = 0
    """How many of them are in the conversation."""
    counts: Mapping[str, int] = field(default_factory=dict)
    visit: int = 0
    step: int = 0
    transitions: int = 0
    seq: int = 0
    branch: int = 0
    interrupted: bool = False
    """The run is paused before this state."""
    refused: int = 0
    """Answers that did not fit."""
    labels: tuple[LabelSource, ...] = ()
    """What is in conversation or context: the first source of each label, in the order in which they came."""

    @property
    def inbox(self) -> tuple[Message, ...]:
        """Messages from people that no question has brought yet."""
        return self.notes[self.heard :]

    @property
    def place(self) -> str:
        """The pending effect: `<state>#<visit>:<number of the effect in the visit>`."""
        return f"{self.state}#{self.visit}:{self.calls}"


Observer = Callable[[Snapshot, Effect[Any] | VisitEnd | AgentError | None], None]
"""Called with None before a visit begins, then with what it asks for, what it returns, or the error that
leaves it. It may raise."""


class Lens(Protocol):
    """Stands between a machine's functions and what they are given, so that verification knows what a state
    depends on (`workflows/verify/runs/lens.py`)."""

    def context(self, context: Context, state: str, *, ends: bool = False) -> Context:
        """The same context, for a function that is called in this state; `ends`: for `result`."""

    def run(self, run: Run, state: str) -> Run:
        """The same run, for a function that is called in this state."""

    def wrote(self, patch: Patch, state: str) -> None:
        """A function called in this state has written this."""

    def dropped(self, state: str) -> None:
        """A rule was broken in this state: what was written since it was entered is not kept."""


ENDED = -1
ANSWER = "the answer"
"""What an author's code that changes an answer in place is told it is."""


@dataclass(slots=True)
class Live:
    """The generator of a visit, kept in the process. It can go on once from each point."""

    visit: Generator[Effect[Any], Any, VisitEnd]
    view: View
    run: Run
    fed: int = 0
    """How many moments it was given; `ENDED` once it has returned or raised."""
    effect: Effect[Any] | None = None
    """What it asks for."""


@dataclass(frozen=True)
class Suspension:
    """Where a run is, what it wants done, and what is new in its log."""

    program: Program
    snapshot: Snapshot
    ledger: Ledger
    asked: Effect[Any] | None = None
    """The pending effect as the visit yielded it."""
    exit: Exit | None = None
    records: tuple[Record, ...] = ()
    """What happened since the step before."""
    breach: Breach | None = None
    """The limit that the pending effect would pass. It is not reserved: `refuse` it, or raise the cap and
    `resume`."""
    live: Live | None = field(default=None, compare=False, repr=False)
    author_line: str = field(default="", compare=False)
    """The author's line that broke a rule, where this step led to the fail state: for the worker's log."""

    @property
    def reserved(self) -> dict[str, float]:
        """What of the ledger stands for the pending effect, by counter."""
        return {} if self.breach or self.asked is None else self.asked.price

    @property
    def effect(self) -> Effect[Any] | None:
        """What to perform next; None when the run is over. A question to the conversation brings the
        messages from people, after leading tool results."""
        asked, inbox = self.asked, self.snapshot.inbox
        if not isinstance(asked, AskModel) or asked.beside or not inbox:
            return asked
        results = next((n for n, m in enumerate(asked.say) if m.role != "tool"), len(asked.say))
        return asked.model_copy(update={"say": (*asked.say[:results], *inbox, *asked.say[results:])})


# -- as JSON --------------------------------------------------------------------------------------

_ANSWER: TypeAdapter[Any] = TypeAdapter(Answer | None)


def dump(suspension: Suspension) -> JsonObject:
    """The step's snapshot and ledger as JSON, for `load` in another process. Records are not in it."""
    s = suspension.snapshot
    ledger = s.entered.ledger
    moments: list[Any] = []
    for moment in s.moments:
        moments.append({
            "asked": moment.asked,
            "answer": moment.answer.model_dump(mode="json") if moment.answer is not None else None,
            "keep": to_json(type(s.context), moment.keep),
            "shown": _dump_facts(moment.facts, ledger),
        })  # fmt: skip
        ledger = moment.facts.ledger
    plain = {name: getattr(s, name) for name in _PLAIN}
    return {
        **plain,
        "counts": dict(s.counts),
        "context": s.entry_context.model_dump(mode="json"),
        "conversation": [message.model_dump(mode="json") for message in s.conversation],
        "notes": [message.model_dump(mode="json") for message in s.notes],
        "labels": [one.model_dump(mode="json") for one in s.labels],
        **({"refused": s.refused} if s.refused else {}),
        "entered": _dump_facts(s.entered, Ledger()),
        "moments": moments,
        "ledger": suspension.ledger.model_dump(mode="json"),
        "reserved": suspension.reserved,
        "breach": suspension.breach.model_dump(mode="json") if suspension.breach else None,
    }


_PLAIN = (
    "state", "began", "opening", "calls", "heard", "visit", "step", "transitions", "seq", "branch",
    "interrupted",
)  # fmt: skip


@restoring()
def suspension_from(program: Program, data: Mapping[str, Any]) -> Suspension:
    """The step of a `dump`, without its pending effect: `step.load` runs the visit again to find it.

    Raises NotRestored for what is not a dump of a live run of this program."""
    machine = program.machine
    context = machine.context.model_validate(data["context"])
    entered = _load_facts(data["entered"], Ledger())
    current, ledger, moments = context, entered.ledger, []
    for item in data["moments"]:
        keep = patched(current, item["keep"]) if item["keep"] else current
        kept = {name: getattr(keep, name) for name in item["keep"]}
        facts = _load_facts(item["shown"], ledger)
        answer = read_only(_ANSWER.validate_python(item["answer"]), ANSWER)
        moments.append(Moment(item["asked"], answer, facts, kept))
        current, ledger = keep, facts.ledger
    snapshot = Snapshot(
        context=current, entry_context=context, entered=entered, moments=tuple(moments),
        conversation=Conversation(Message.model_validate(m) for m in data["conversation"]),
        notes=tuple(Message.model_validate(m) for m in data["notes"]),
        labels=tuple(LabelSource.model_validate(one) for one in data["labels"]),
        counts=dict(data["counts"]), refused=data.get("refused", 0), **{name: data[name] for name in _PLAIN},
    )  # fmt: skip
    if snapshot.state not in machine.by_name:
        raise ValueError(f"the machine {machine.name} has no state {snapshot.state!r}")
    breach = Breach.model_validate(data["breach"]) if data["breach"] else None
    if snapshot.state in machine.final:
        raise ValueError(f"the run is over: {snapshot.state} is a final state of {machine.name}")
    return Suspension(program, snapshot, Ledger.model_validate(data["ledger"]), breach=breach)


def _dump_facts(facts: RunFacts, before: Ledger) -> dict[str, Any]:
    spent = {name: value for name, value in facts.ledger.spent.items() if before.spent.get(name) != value}
    caps = dict(facts.ledger.caps) if facts.ledger.caps != before.caps else None
    return {
        "now": facts.now, "said": facts.said, "notes": facts.notes, "heard": facts.heard, "spent": spent,
        "caps": caps, "advice": list(facts.ledger.advice) if caps is not None else None,
    }  # fmt: skip


def _load_facts(data: Mapping[str, Any], before: Ledger) -> RunFacts:
    ledger = Ledger(
        spent={**before.spent, **data["spent"]},
        caps=before.caps if data["caps"] is None else data["caps"],
        advice=before.advice if data["advice"] is None else tuple(data["advice"]),
    )
    return RunFacts(data["now"], data["said"], data["notes"], data["heard"], ledger)
