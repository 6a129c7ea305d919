"""What a machine declares: states, one table, and how a run begins and ends. Checked when it is made.

A machine never does anything. A state is a function of the context; it *yields* what it wants done
(effects), receives the answers, and returns a patch and the event that happened. Only events move
the table.

Rules for a visit: it may be run again over the same answers, so it must ask for the same again. It
keeps no state outside itself, reads no clock but `run.now`, yields nothing in `finally` and nothing
after `Closed`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ValidationError

from activities.contracts import (
    Conversation,
    Effect,
    Frozen,
    JsonObject,
    MaterialRef,
    Message,
    Say,
    ToolSpec,
    changeable,
)
from activities.contracts.record_events import RESERVED_EVENTS
from activities.text import problems_text
from workflows.kernel.context import RESERVED, Context, Patch
from workflows.kernel.errors import AgentError, DefinitionError, MachineError
from workflows.kernel.ledger import Ledger
from workflows.kernel.properties import Property, Scenario

__all__ = [
    "COMMON_EXITS",
    "INVALID_ANSWER",
    "AnswerForm",
    "Event",
    "Exit",
    "Extensions",
    "Interrupt",
    "Machine",
    "PlainEvent",
    "VisitEnd",
    "reachable",
    "Run",
    "RunInput",
    "State",
    "Visit",
    "state",
    "state_name",
]


@dataclass(frozen=True)
class Event:
    """Something that happened; an event of one's own is a subclass."""

    reason: str = ""
    """For people: why, in words, beyond the thought and the calls, which the log has by themselves: it leaves
    out words that are those of the thought or of what came of a call."""
    thought: str | None = None
    """What the model said, as the machine read it. None: the text of the reply since the event before, if it
    was asked for in the conversation and without a schema."""
    refused_by: tuple[str, ...] = ()
    """Names of the machine's own rules that refused what the model wanted; the log cuts long ones."""

    def __post_init__(self) -> None:
        names = self.refused_by
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"refused_by: expected a tuple of names, got {names!r:.100}")


class PlainEvent(Event):
    """One of a plain machine (`workflows/kernel/plain.py`): only its caller reads its log, and names it."""


VisitEnd = tuple[Patch, Event]
"""What a visit returns: the patch, and the event that moves the table."""
Visit = Generator[Effect[Any], Any, VisitEnd]
"""A state's function with effects. Without effects it just returns a `VisitEnd`."""


class Exit(Frozen):
    """How a run ended."""

    reason: str
    ok: bool = False
    """The goal was achieved, as the machine understands it."""
    answer: str | None = None
    error: str | None = None
    """What went wrong, for a person."""
    outcome: JsonObject = {}
    """What the machine adds to its result."""
    output: JsonObject | None = None
    """The answer as data, where it fits the agent's `output`; the kernel writes it."""
    raises: str | None = None
    """The machine's way to fail: the run raises the error of this name (`errors.error_named`)."""


INVALID_ANSWER = "invalid_answer"
"""Exit reason of a run whose answer does not fit the agent's `output`."""
COMMON_EXITS: Mapping[str, str] = {
    "limit": "a limit of the agent is reached: calls, tokens, money or time; the error names it",
    "stuck": "the run went round in circles, also after the model was told (`stuck` of the agent)",
    "max_transitions": "the machine made as many transitions as allowed",
    "failed": "an effect failed and the machine has no `on_error`",
    "model_refused": "the model refused to answer; the error has its words",
    INVALID_ANSWER: "the answer does not fit the agent's `output`, and it is not asked for again; the error "
    "says what is wrong with it",
    "aborted": "a person ended the run with `abort`",
    "expired": "a request expired, and its deadline ends the run",
    "cancelled": "the run was cancelled through Temporal or `ratchet cancel`",
    "broken_rule": "the machine broke a rule that it declared; the run fails with the rule's name",
    "refused": "the task cannot be run; the run fails before it begins and says why",
    "bug": "the run failed by a fault of Ratchet itself",
}
"""Exit reasons of every machine: the kernel or the workflow ends a run so, whatever its state."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """Users' named functions that the worker has loaded. A task names them, it never brings them."""

    rules: Mapping[str, Any] = field(default_factory=dict)
    policies: Mapping[str, Any] = field(default_factory=dict)
    """Stopping policies (spec 2.6)."""
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Pure functions that a machine's options may name, such as a planner's decide hook."""


class ToolsUnknown(LookupError):
    """A machine looks at its tools before the run knows more than their names."""


class RunTools(Sequence[ToolSpec]):
    """The specs of a run's tools, in the order of their names.

    The names are known from the beginning. The specs come with the first model's reply, unless a machine
    looks at them earlier: reading them then raises `ToolsUnknown`, and the run begins once they are known.
    """

    def __init__(self, names: Sequence[str], specs: Mapping[str, ToolSpec]) -> None:
        """`specs` by name, filled when they are known."""
        self.names, self.specs = tuple(names), specs

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: Any) -> Any:
        names = self.names[at]
        try:
            return self.specs[names] if isinstance(names, str) else tuple(self.specs[n] for n in names)
        except KeyError as error:
            raise ToolsUnknown(f"nothing is known yet of the tool {error}") from None


@dataclass(frozen=True, slots=True)
class RunInput:
    """What a run begins with."""

    goal: str
    trace_id: str = ""
    """The workflow id."""
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    depth: int = 0
    """How deep the run is nested in others; 0: it is not."""
    material: str | MaterialRef | None = None
    """What the run is about, for machines that take it."""
    values: JsonObject = field(default_factory=dict)
    """What of an outer machine's context it begins with, for machines that take it (spec 1.9)."""
    output: JsonObject | None = None
    """JSON schema that the answer must fit. `instructions` tell the model of it, and the kernel checks it: a
    machine may use it as the schema of a reply that is the answer itself."""

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the run's tools, in their order."""
        tools = self.tools
        return tools.names if isinstance(tools, RunTools) else tuple(spec.name for spec in tools)


@dataclass(slots=True)
class Run:
    """What a state may know besides the context. It goes forward with each answer of the visit, and
    shows the same again when the visit is run again."""

    options: Any
    prepared: Any
    """What the machine's `prepare` made of options and extensions."""
    input: RunInput
    state: Enum
    """Where the run is; in `on_error` the state that the error has left, in `result` the last one."""
    step: int
    """How many steps have begun."""
    visit: int
    counts: Mapping[str, int]
    """How often states were entered, by their `counts`."""
    now: float = 0.0
    """Seconds since 1970."""
    ledger: Ledger = field(default_factory=Ledger)
    conversation: Conversation = field(default_factory=Conversation)
    notes: tuple[Message, ...] = ()
    """All messages from people so far, for machines that ask beside the conversation."""
    inbox: tuple[Message, ...] = ()
    """Those that the next question to the conversation will bring."""
    refused: int = 0
    """Answers so far that did not fit `input.output`."""

    @property
    def now_utc(self) -> datetime:
        """The same as a time in UTC: the same on every worker, as a local time is not."""
        return datetime.fromtimestamp(self.now, UTC)

    @property
    def reply(self) -> Message | None:
        """The model's newest reply in the conversation."""
        messages = reversed(self.conversation.messages)
        return next((message for message in messages if message.role == "assistant"), None)

    @property
    def tail(self) -> tuple[Message, ...]:
        """The newest reply and what was said since; without a reply, everything that was said."""
        messages = self.conversation.messages
        newest = next((n for n in range(len(messages) - 1, 0, -1) if messages[n].role == "assistant"), 0)
        return messages[newest:]


class Interrupt(Effect[None]):
    """The run is paused before it enters a state, because its options say so; `leave_interrupt` enters."""

    kind: Literal["interrupt"] = "interrupt"
    state: str
    step: int


Rights = frozenset[str]


@dataclass(frozen=True, slots=True)
class State:
    """A state: its function, what it may read, write and ask for, and what must hold in it."""

    name: Enum
    visit: Callable[[Any, Run], Any] | None = None
    """(context, run) -> a `VisitEnd`, or a generator of effects that returns one."""
    reads: Rights = frozenset()
    writes: Rights = frozenset()
    asks: frozenset[type[Effect[Any]]] = frozenset()
    tools: frozenset[str] | None = None
    """Names of the tools that its effects may use; None: all tools of the run."""
    holds: Callable[[Any, str], str] | None = None
    """The invariant, checked before the state is entered: (context, state left) -> what is wrong, or ""."""
    entry: Callable[[Any, str], Patch] | None = None
    """What entering writes: (context, state left) -> patch; checked against the machine's own `writes`."""
    counts: str = ""
    """Name of a counter that each entry raises. Every cycle passes such a state, so every run ends."""
    enforce: bool = True
    """False: undeclared reads and writes of this state are let through; its records say so."""


def state(
    name: Enum,
    *,
    asks: Iterable[type[Effect[Any]]] = (),
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    tools: Iterable[str] | None = None,
    **more: Any,
) -> Callable[[Callable[[Any, Run], Any]], State]:
    """Declare the decorated function as the state `name`; `more` are the other fields of `State`."""
    rights: dict[str, Any] = {
        "asks": frozenset(asks),
        "reads": frozenset(reads),
        "writes": frozenset(writes),
        "tools": None if tools is None else frozenset(tools),
    }
    return lambda visit: State(name, visit, **rights, **more)


def state_name(state: Enum | str) -> str:
    """A state as people and snapshots name it: an Enum's value when that is text, else its name."""
    if isinstance(state, str) and not isinstance(state, Enum):
        return state
    return state.value if isinstance(state.value, str) else state.name


class AnswerForm(Protocol):
    """What a run's answer must be (`workflows/gate/output.py`)."""

    @property
    def schema(self) -> JsonObject:
        """JSON schema of an object."""

    def read(self, answer: str | None) -> JsonObject:
        """The object that an answer holds. Raises ValueError that says what is wrong with it."""

    def again(self, problem: str) -> str:
        """What the model is told about an answer that cannot be used."""


Begin = Callable[[RunInput, Any], Context | tuple[Context, Sequence[Message]]]
Migration = Callable[[str, JsonObject], tuple[str, JsonObject]]
"""(state, context as JSON) of a run, in an older version's form -> both in the form of the machine's own."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An agent machine. Raises DefinitionError naming all that is wrong with it.

    States without a row in the table are final. A machine made of data is a function that returns one.
    """

    name: str
    version: str = "1"
    description: str = ""
    """One line, for lists."""
    options: type[BaseModel]
    context: type[Context]
    begin: Begin
    """(input, options) -> first context, with the opening messages of the conversation if there are any.
    Raises ValueError for an input that cannot be run."""
    initial: Enum
    table: Mapping[Enum, Mapping[type[Event], Enum]]
    states: Sequence[State]
    step: Enum | None = None
    """The state whose entry begins a step; a rollback goes to a step's beginning."""
    result: Callable[[Any, Run], Exit]
    """(context, run) -> how the run ended; also asked when a run is closed in the middle."""
    on_error: Callable[[Any, AgentError, Run], VisitEnd] | None = None
    """What an error that leaves a visit means: (context, error, run) -> outcome; `run.state` is the visit's
    state. None: the run ends."""
    on_close: Callable[[Any, str], Patch] | None = None
    """(context, exit reason) -> what a run closed in the middle writes."""
    on_rollback: Callable[[Any, Any], Patch] | None = None
    """(restored context, context before) -> what a rollback writes."""
    on_reopen: Callable[[Any], tuple[Enum, Patch]] | None = None
    """(context at the end) -> the state that continues after the last step, and what that writes, such as an
    exit reason that no longer holds; None: the end of a run is no place to go back to."""
    on_refused: Callable[[Any], tuple[Enum, Patch] | None] | None = None
    """(context at the end) -> where an answer is asked for again that does not fit the agent's `output`, and
    what that writes; None: this end is not one that gives an answer. Without it, as `on_reopen`."""
    answer_attempts: Callable[[Any], int] = lambda options: 3
    """options -> answers that a run may give in all until one fits."""
    on_violation: Callable[[Any, MachineError], Patch] | None = None
    fail: Enum | None = None
    """A broken rule leads to this state, after `on_violation` (spec 3.7); None: it fails the run."""
    writes: Rights | None = None
    """What the machine itself may write: `entry`, `on_error`, `on_close`, `on_rollback`, `on_reopen`,
    `on_refused`, `on_violation`; None: every field."""
    prepare: Callable[[Any, Extensions], Any] | None = None
    """(options, extensions) -> `run.prepared`, made once. Raises ValueError for a name that is not loaded."""
    max_transitions: int | Callable[[Any], int] = 10_000
    max_effects: int | Callable[[Any], int] = 1_000
    """Effects in one visit."""
    caps: Callable[[Any], Mapping[str, int]] | None = None
    """options -> counter of `counts` -> most entries; others have `max_transitions`."""
    most_calls: Callable[[Any, float], float] | None = None
    """(options, replies) -> the most tool calls of one run, inner runs included, when models reply so often.
    Infinite is allowed. If answers are asked for again, it counts each attempt at an answer. None: unknown.
    `ratchet verify agent` uses it."""
    roles: tuple[str, ...] = ("default",)
    """Model roles that the machine uses; only `default` must be given."""
    plain_replies: bool = True
    """A model that only looks around and answers in plain words can take part (provider `scripted` without
    a script); false where replies have a form of their own."""
    takes_material: bool = False
    needs_tools: bool = False
    """An agent without tools is refused."""
    exits: Mapping[str, str] = field(default_factory=dict)
    """Exit reason -> what it means, beyond `COMMON_EXITS`."""
    properties: Sequence[Property] = ()
    """What must hold of every run; `ratchet verify machine` tries them."""
    scenarios: Sequence[Scenario] = ()
    """In which settings they are tried, where the derived domain is not enough."""
    migrations: Mapping[str, Migration] = field(default_factory=dict)
    """Older version -> how its runs go on with this one, at the beginning of a visit. A worker that has both
    versions leaves each run its own."""

    rows: Mapping[str, Mapping[type[Event], str]] = field(init=False, repr=False)
    """The table by names."""
    by_name: Mapping[str, State] = field(init=False, repr=False)
    final: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        rows = {
            state_name(source): {event: state_name(target) for event, target in row.items()}
            for source, row in self.table.items()
        }
        by_name = {state_name(one.name): one for one in self.states}
        targets = [target for row in self.table.values() for target in row.values()]
        for target in [*targets, *([self.fail] if self.fail else [])]:
            by_name.setdefault(state_name(target), State(target))
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "by_name", by_name)
        object.__setattr__(self, "final", frozenset(by_name) - rows.keys())
        _verify(self)

    def migrated(self, version: str, state: str, context: JsonObject) -> tuple[str, Context]:
        """State and context of a run of an older version, as this one has them. Raises ValueError."""
        migration, name = self.migrations.get(version), f"machine {self.name}"
        if migration is None:
            raise ValueError(f"{name} of version {self.version} has no migration from version {version}")
        new_state, values = migration(state, dict(context))
        if new_state not in self.rows:
            raise ValueError(
                f"{name}: the migration from version {version} leads from {state} to {new_state}, which is "
                f"no state to go on from; there are: {_names(self.rows)}"
            )
        try:
            return new_state, self.context.model_validate(values)
        except ValidationError as error:
            raise ValueError(
                f"{name}: the migration from version {version} gives no context of version {self.version}: "
                f"{problems_text(error)}"
            ) from error

    def read_options(self, values: Any) -> Any:
        """The options, validated. Raises ValidationError, also for a name that the machine does not have: a
        misspelt option must not be dropped in silence."""
        if isinstance(values, Mapping) and self.options.model_config.get("extra", "ignore") == "ignore":
            fields = self.options.model_fields
            known = {*fields, *(field.alias for field in fields.values() if field.alias)}
            if unknown := sorted(set(values) - known):
                raise ValidationError.from_exception_data(
                    self.name,
                    [{"type": "extra_forbidden", "loc": (one,), "input": values[one]} for one in unknown],
                )
        return self.options.model_validate(values)


def _verify(m: Machine) -> None:
    states = [*_wrong_names(m), *_wrong_states(m)]
    # where a state is missing, every path through it would be wrong, too
    problems = [
        *_taken_names(m),
        *states,
        *(() if states else _wrong_paths(m)),
        *_wrong_fields(m),
        *_changeable_fields(m),
    ]
    if problems:
        said = problems if len(problems) == 1 else [f"{len(problems)} faults", *problems]
        raise DefinitionError(f"machine {m.name}: " + "\n  ".join(said))


def _wrong_names(m: Machine) -> Iterator[str]:
    if m.version in m.migrations:
        yield f"`migrations` names its own version {m.version}"
    names = [state_name(one.name) for one in m.states]
    if twice := {name for name in names if names.count(name) > 1}:
        yield f"two functions for state {_names(twice)}"


def _taken_names(m: Machine) -> Iterator[str]:
    events = {kind for row in m.rows.values() for kind in row if not issubclass(kind, PlainEvent)}
    for name in sorted({kind.__name__ for kind in events} & RESERVED_EVENTS):
        yield f"the event `{name}` has the name of a record that Ratchet writes by itself; rename it"


def _wrong_states(m: Machine) -> Iterator[str]:
    known, rows, initial = set(m.by_name), m.rows, state_name(m.initial)
    if isinstance(m.initial, Enum):
        there_are = [state_name(one) for one in type(m.initial)]
        texts = {str(one) for row in m.table.values() for one in row.values() if not isinstance(one, Enum)}
        for name in sorted(texts - set(there_are)):
            close = difflib.get_close_matches(name, there_are, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"{type(m.initial).__name__} has no state {name}{hint}"
    if unknown := ({initial} | set(rows)) - known:
        yield f"no function is declared for state {_names(unknown)}"
    if missing := [name for name, one in m.by_name.items() if name in rows and one.visit is None]:
        yield f"state {_names(missing)} has no function"
    if not m.final:
        yield "every state has a row, so the run could never end; a final state has none"
    if m.step is not None and state_name(m.step) not in rows:
        yield f"`step` names {state_name(m.step)}, which is not a state with a row"


def _wrong_paths(m: Machine) -> Iterator[str]:
    known, rows, initial = set(m.by_name), m.rows, state_name(m.initial)
    roots = {initial, state_name(m.fail)} if m.fail else {initial}
    if lost := known - reachable(roots, rows):
        yield f"unreachable from {initial}: {_names(lost)}"
    back: dict[str, dict[Any, str]] = {}
    for source, row in rows.items():
        for target in row.values():
            back.setdefault(target, {})[source] = source
    if stuck := known - reachable(set(m.final), back):
        yield f"no path to a final state from: {_names(stuck)}"
    free = {
        source: {e: t for e, t in row.items() if not m.by_name[t].counts}
        for source, row in rows.items()
        if not m.by_name[source].counts
    }
    behind = {source: reachable(set(row.values()), free) for source, row in free.items()}
    named = set[str]()
    for source, found in behind.items():
        if source in found and source not in named:
            named |= {other for other in found if source in behind.get(other, ())}
            yield f"a cycle through {source} passes no state with `counts`: it might never end"


def _wrong_fields(m: Machine) -> Iterator[str]:
    fields = m.context.model_fields
    if hidden := RESERVED & fields.keys():
        yield f"the context's field {_names(hidden)} has a reserved name; rename it"
    if unknown := (m.writes or frozenset()) - fields.keys():
        yield f"`writes` names the unknown field {_names(unknown)}"
    for name, one in m.by_name.items():
        if unknown := (one.reads | one.writes) - fields.keys():
            yield f"state {name} declares the unknown field {_names(unknown)}"
        for kind in one.asks:
            if not (isinstance(kind, type) and issubclass(kind, Effect)) or kind is Say:
                yield f"state {name}: `asks` takes classes of effects (not Say), not {kind!r}"


def _changeable_fields(m: Machine) -> Iterator[str]:
    for what, model in (("context", m.context), ("options", m.options)):
        if not model.model_config.get("frozen"):
            yield f"the {what} `{model.__name__}` is not frozen; declare it with `frozen=True`"
        for name, one in model.model_fields.items():
            if problem := changeable(one.annotation):
                yield f"the field {name} of the {what} holds {problem}"


def _names(found: Iterable[str]) -> str:
    return ", ".join(sorted(found))


def reachable(start: set[str], table: Mapping[str, Mapping[Any, str]]) -> set[str]:
    """These states, and all that the table leads to from them."""
    seen, todo = set(start), list(start)
    while todo:
        for target in table.get(todo.pop(), {}).values():
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen
