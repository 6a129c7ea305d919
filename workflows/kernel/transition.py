"""The pure step function: `start` a program, `advance` it by one answer, never do anything.

A visit is a generator. The snapshot keeps the *moments* of the current visit: each answer, and what
the visit saw with it. To go on anywhere (after continue-as-new, in another process, in a test that
advances one step twice) the visit is run again over them, as Temporal does with a whole workflow. In
one process the live generator is kept, so that an answer costs one `send`.

One transition is all or nothing: the patch is checked against the state's rights and merged into a
candidate, the new state's `entry` is added, its invariant is checked; only then is it kept and
recorded. A broken rule keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from activities.contracts import (
    MODEL_REFUSED,
    AskModel,
    Conversation,
    Doing,
    Effect,
    EffectFailed,
    JsonObject,
    LabelSource,
    Message,
    ReadOnlyDict,
    Say,
    Together,
    read_only,
)
from activities.text import readable
from workflows.kernel.context import (
    Context,
    Misfit,
    Patch,
    View,
    differences,
    move,
    nearest_field,
    patched,
    seal,
    whole,
)
from workflows.kernel.errors import (
    AgentError,
    BadPatch,
    Closed,
    Drifted,
    EffectError,
    EmptyVisit,
    InvariantViolated,
    LimitExceeded,
    MachineError,
    NoTransition,
    UndeclaredAccess,
    author_line_of,
)
from workflows.kernel.labels import brought, first_of_each, holds_text
from workflows.kernel.ledger import Breach, Ledger
from workflows.kernel.log import (
    CLOSED,
    EXIT_REASON,
    FORKED,
    REFUSED,
    ROLLED_BACK,
    STARTED,
    STEERED,
    VERSION,
    LoggedCall,
    Record,
)
from workflows.kernel.logged_calls import answered, wanted_calls
from workflows.kernel.machine import (
    INVALID_ANSWER,
    Event,
    Exit,
    Interrupt,
    Run,
    State,
    VisitEnd,
    reachable,
    state_name,
)
from workflows.kernel.snapshot import (
    ANSWER,
    ENDED,
    Live,
    Moment,
    Program,
    RunFacts,
    Snapshot,
    Suspension,
    changed,
    suspension_from,
)

__all__ = [
    "Transition", "advance", "close", "closed_before_start", "ended_by_violation", "leave_interrupt", "load",
    "log_event", "refuse", "resume", "start", "steer", "visit_again", "with_caps", "with_credit",
]  # fmt: skip

REASON_CHARS = 2_000
"""Characters of a record's reason; what a model or a tool said in full is among the messages."""
NAME_CHARS, MOST_NAMES = 100, 20
"""Characters of a rule's name, and the most names of one record."""
BESIDE_CHARS = 4_000
"""Characters of a message beside the conversation in the log."""


# -- what a host calls ----------------------------------------------------------------------------


def start(
    program: Program, *, now: float, ledger: Ledger | None = None, reason: str = "",
    about: JsonObject | None = None,
) -> Suspension:  # fmt: skip
    """Enter the initial state. `now` in seconds since 1970; `reason` and `about` are for the first record.
    Raises MachineError for a broken rule, and InputRefused for an input that the machine refuses."""
    machine = program.machine
    context, opening = program.begin()
    state = state_name(machine.initial)
    if type(context) is not machine.context:
        expected = machine.context.__name__
        wrong = BadPatch(
            machine.name, state, f"`begin` gave a {type(context).__name__}; expected a {expected}"
        )
        wrong.author_line = author_line_of(wrong, None, machine.begin)
        raise wrong
    seal(context)  # a copy that was made with other values was not validated
    conversation = Conversation(opening)
    facts = RunFacts(float(now), len(conversation), 0, 0, ledger or Ledger())
    snapshot = Snapshot(
        state,
        context,
        conversation,
        facts,
        context,
        float(now),
        len(conversation),
        labels=program.input_labels,
    )
    transition = Transition(program, snapshot, ledger or Ledger(), now)
    transition.write(Record(
        seq=0, machine=machine.name, state=state, event=STARTED, to=state, patch=whole(context),
        messages=opening, by="kernel", started=now, at=now, counters=transition.ledger.spent,
        reason=reason, about={VERSION: machine.version, **(about or {})},
        begins=transition.begins_step(state), brought=snapshot.labels,
    ))  # fmt: skip
    return transition.run(lambda: transition.enter(state, interrupt=True))


def load(program: Program, data: Mapping[str, Any]) -> Suspension:
    """A step from `dump`, in another process: the visit is run again over its answers.

    Raises MachineError, and NotRestored for what is not a dump of a live run of this program."""
    step = suspension_from(program, data)
    if step.snapshot.interrupted:
        return changed(step, asked=Interrupt(state=step.snapshot.state, step=step.snapshot.step))
    transition = Transition.of(step, step.snapshot.began)
    return changed(step, asked=transition.next_effect(), live=transition.live)


def visit_again(suspension: Suspension) -> Iterator[Any]:
    """What the visit asks for over its answers, one after the other, and what it returns in the end, or the
    error that leaves it. Raises MachineError, as a visit does that asks for something else than before."""
    snapshot = suspension.snapshot
    transition = Transition(suspension.program, snapshot, suspension.ledger, snapshot.began)
    moments = snapshot.moments
    for number in range(len(moments) + 1):
        transition.snapshot = changed(snapshot, moments=moments[:number])
        try:
            yield transition.next_effect()
        except StopIteration as ended:
            yield ended.value
            return
        except AgentError as error:
            yield error
            return


def advance(
    suspension: Suspension, answer: Any, *, now: float, effect: Effect[Any] | None = None
) -> Suspension:
    """Feed the answer to the effect that `suspension` asked for. Raises MachineError for a broken rule.

    `effect` is what was performed, where a message from a person has changed `step.effect` meanwhile.
    One step may be advanced several times: each gives the same for the same answer.
    """
    effect, s = effect or suspension.effect, suspension.snapshot
    if effect is None or isinstance(effect, Interrupt):
        why = "the run is over" if effect is None else "the run is paused; `leave_interrupt` enters the state"
        raise MachineError(suspension.program.machine.name, s.state, f"an answer came, but {why}")
    if suspension.breach is not None:
        raise MachineError(
            suspension.program.machine.name, s.state, f"an answer came beyond the limit {suspension.breach}"
        )
    answer = read_only(answer, ANSWER)
    transition = Transition.of(suspension, now)
    transition.ledger = transition.ledger.charge(answer.cost)
    transition.answered += answered(effect, answer, s.place)
    transition.label(brought(effect, answer, s.place, s.step, suspension.program.specs))
    failed = isinstance(answer, EffectFailed)
    if failed and answer.type == MODEL_REFUSED and isinstance(effect, AskModel) and effect.refusal == "ends":
        return _closed(transition, MODEL_REFUSED, answer.message, "kernel")
    asked = suspension.asked
    if isinstance(effect, AskModel) and isinstance(asked, AskModel) and not effect.beside and not failed:
        # `Suspension.effect` has put people's messages into what the visit says: so many more were heard.
        heard = s.heard + len(effect.say) - len(asked.say)
        transition.snapshot = changed(transition.snapshot, heard=heard)
        transition.say((*effect.say, answer.message))
        transition.thought = "" if effect.response_schema else answer.text
    elif isinstance(effect, AskModel) and effect.with_notes and not failed:
        facts = s.moments[-1].facts if s.moments else s.entered
        transition.snapshot = changed(transition.snapshot, heard=max(s.heard, facts.notes))
    transition.beside += _beside(effect, answer)
    transition.remember(effect, answer)
    return transition.run(transition.run_visit)


def leave_interrupt(suspension: Suspension, *, now: float) -> Suspension:
    """Enter the state that the run is paused before. Raises MachineError when it is not paused."""
    if not suspension.snapshot.interrupted:
        problem = "the run is not paused before this state"
        raise MachineError(suspension.program.machine.name, suspension.snapshot.state, problem)
    transition = Transition.of(suspension, now)
    transition.snapshot = changed(transition.snapshot, interrupted=False, entered=transition.facts())
    return transition.run(transition.run_visit)


def resume(suspension: Suspension, *, now: float) -> Suspension:
    """Ask for the pending effect again, as the ledger is now: after a top-up, or in another process."""
    if suspension.exit is not None or suspension.snapshot.interrupted:
        return changed(suspension, records=())
    transition = Transition.of(suspension, now)
    transition.ledger = transition.ledger.refund(suspension.reserved)
    return transition.run(transition.run_visit)


def with_credit(suspension: Suspension, amounts: Mapping[str, float], *, now: float) -> Suspension:
    """A top-up: caps raised by these amounts; the pending effect is checked against them again."""
    return resume(changed(suspension, ledger=suspension.ledger.credit(amounts)), now=now)


def with_caps(suspension: Suspension, caps: Mapping[str, float | None], *, now: float) -> Suspension:
    """New caps; None removes one. The pending effect is checked against them again."""
    return resume(changed(suspension, ledger=suspension.ledger.capped(caps)), now=now)


def steer(
    suspension: Suspension,
    message: Message,
    *,
    now: float,
    by: str,
    about: JsonObject | None = None,
    not_begun: Mapping[str, float] | None = None,
) -> Suspension:
    """A person's message: the next question brings it, also the pending one. No state is entered again.
    `not_begun` as in `log_event`."""
    transition = Transition.of(suspension, now)
    transition.snapshot = changed(transition.snapshot, notes=(*transition.snapshot.notes, message))
    if not message.from_run:
        transition.label(suspension.program.labels.of_people(by, suspension.snapshot.step))
    transition.log_event(
        STEERED, not_begun or {}, by=by, reason=message.content, about=about or {}, notes=(message,)
    )
    return transition.only_logged(suspension)


def log_event(  # noqa: PLR0913  # the parts of a record that a host may set
    suspension: Suspension,
    event: str,
    *,
    now: float,
    by: str,
    reason: str = "",
    about: JsonObject | None = None,
    error: str | None = None,
    not_begun: Mapping[str, float] | None = None,
    brings: Iterable[LabelSource] = (),
) -> Suspension:
    """Write something into the log; the pending effect stays. `not_begun`: what the ledger holds for calls
    that were not begun, and so are not spent. `brings`: labels that the run has from now on."""
    transition = Transition.of(suspension, now)
    transition.label(brings)
    transition.log_event(event, not_begun or {}, by=by, reason=reason, about=about or {}, error=error)
    return transition.only_logged(suspension)


def refuse(suspension: Suspension, *, now: float) -> Suspension:
    """End the run because of the limit that the pending effect would pass."""
    return close(suspension, "limit", now=now, error=str(suspension.breach or "a limit is reached"))


def close(
    suspension: Suspension, reason: str, *, now: float, error: str | None = None, by: str = "kernel"
) -> Suspension:
    """End the run where it is: abort, cancellation and limits need no row. `reason` is the exit reason.

    `Closed` is raised inside the visit; what it returns is the last patch. What was reserved for the
    pending effect stays spent.
    """
    return _closed(Transition.of(suspension, now), reason, error, by)


def _closed(transition: Transition, reason: str, error: str | None, by: str) -> Suspension:
    try:
        transition.close(reason, error, by)
    except MachineError as broken:
        transition.record_violation(broken)
        raise
    return transition.suspension()


def closed_before_start(  # noqa: PLR0913  # as `start` and `close` together
    program: Program, reason: str, *, now: float, error: str, by: str, ledger: Ledger, seq: int
) -> Suspension:
    """End a run that has no context yet; `seq` is the number of its one record."""
    nothing = Context()
    facts = RunFacts(float(now), 0, 0, 0, ledger)
    state = state_name(program.machine.initial)
    snapshot = Snapshot(state, nothing, Conversation(), facts, nothing, float(now), 0, seq=seq)
    transition = Transition(program, snapshot, ledger, now)
    transition.log_event(CLOSED, {}, by=by, reason=error, about={EXIT_REASON: reason})
    return changed(transition.suspension(), exit=Exit(reason=reason, error=error))


def ended_by_violation(error: MachineError) -> Suspension:
    """The run as it ends because its machine broke a rule. Raises the error when nothing had begun."""
    if error.suspension is None:
        raise error
    suspension: Suspension = error.suspension
    exit_ = Exit(reason="broken_rule", error=str(error), raises=type(error).__name__)
    return changed(suspension, asked=None, breach=None, live=None, exit=exit_)


# -- one move -------------------------------------------------------------------------------------


class Transition:
    """The run while it moves from one host call to the next: what is known, and what is to be recorded."""

    def __init__(self, program: Program, snapshot: Snapshot, ledger: Ledger, now: float) -> None:
        self.program, self.machine = program, program.machine
        self.snapshot, self.now = snapshot, float(now)
        self.ledger = ledger.with_seconds(now - snapshot.began)
        self.records: list[Record] = []
        self.live: Live | None = None
        self.asked: Effect[Any] | None = None
        self.exit: Exit | None = None
        self.breach: Breach | None = None
        self.logged = snapshot
        """The snapshot as of the last record."""
        self.answered: tuple[LoggedCall, ...] = ()
        self.thought = ""
        """What a model said since the last record."""
        self.beside: tuple[Message, ...] = ()
        self.progress = ""
        """Event of the next `record_progress`: the kind of the newest answer."""
        self.effect_started = snapshot.entered.now
        self.called: Callable[..., Any] | None = None
        """The author's function that was called last: what is wrong then came from it."""
        self.author_line = ""
        self.not_again = ""
        """Why no further answer is asked for. Empty if too many were given, or the end gives none."""

    @classmethod
    def of(cls, suspension: Suspension, now: float) -> Transition:
        transition = cls(suspension.program, suspension.snapshot, suspension.ledger, now)
        transition.asked, transition.exit = suspension.asked, suspension.exit
        transition.breach = suspension.breach
        if suspension.live is not None and suspension.live.fed == len(suspension.snapshot.moments):
            transition.live = suspension.live  # it has gone on from exactly here, so it can go on now
        return transition

    def suspension(self) -> Suspension:
        """What came of it."""
        return Suspension(
            self.program, self.snapshot, self.ledger, self.asked, self.exit, tuple(self.records), self.breach,
            self.live, self.author_line,
        )  # fmt: skip

    def only_logged(self, suspension: Suspension) -> Suspension:
        """The step as it was, with what was noted."""
        records = tuple(self.records)
        return changed(
            suspension, snapshot=self.snapshot, ledger=self.ledger, records=records, author_line=""
        )

    # moving

    def run(self, move: Callable[[], None]) -> Suspension:
        """Make the move, and every other one that needs no effect. A broken rule leads to the machine's
        fail state, or is raised."""
        self.asked = self.breach = None
        while True:
            try:
                move()
            except MachineError as error:
                self.enter_fail_state(error)
            if self.asked is not None or self.exit is not None:
                return self.suspension()
            move = self.run_visit

    def run_visit(self) -> None:
        """Run the visit to its next effect, or follow the table after it."""
        s, declared = self.snapshot, self.declared
        if s.state in self.machine.final:
            self.live = None
            self.exit = self.with_output(self.call(self.machine.result, s.context, self.run_view()))
            return
        self.called = declared.visit
        try:
            effect = self.next_effect()
        except StopIteration as ended:
            self.observe(ended.value)
            self.move_by(ended.value)
            return
        except AgentError as error:
            self.observe(error)
            self.handle_error(error)
            return
        self.observe(effect)
        self.check_effect(effect, declared)
        if isinstance(effect, Say):
            self.keep(effect)
            return
        if s.calls >= self.program.effect_limit:
            raise self.rule_error(LimitExceeded, f"one visit asked for more than {s.calls} effects")
        self.record_progress()
        self.breach = self.ledger.breach(effect.price)
        if self.breach is None:
            self.ledger = self.ledger.charge(effect.price)
        self.asked = effect
        self.log_wanted_calls(effect)

    def log_wanted_calls(self, effect: Effect[Any]) -> None:
        """The record that has led to it names the calls."""
        if self.records and (calls := wanted_calls(effect, self.snapshot.place)):
            self.records[-1] = self.records[-1].model_copy(update={"asked": calls})

    def observe(self, found: Any) -> None:
        """Show what the visit asks for or comes to; None: it begins."""
        if self.program.observer is not None:
            self.program.observer(self.snapshot, found)

    def record_progress(self) -> None:
        """Record what the visit did so far, before the host performs its next effect."""
        s, logged = self.snapshot, self.logged
        if self.answered or s.conversation is not logged.conversation or s.context is not logged.context:
            self.record(self.progress or "Kept", reads=self.live.view.fields_read if self.live else ())

    def move_by(self, outcome: Any) -> None:
        """Follow the table: everything is kept, or nothing."""
        if not (isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], Event)):
            shown = type(outcome).__name__ if outcome is not None else "nothing"
            if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], type):
                shown = (
                    f"the class {outcome[1].__name__} where an event is due; write `{outcome[1].__name__}()`"
                )
            if isinstance(outcome, Doing):
                shown = f"`{outcome!r}`; write `return (yield from {outcome!r})`"
            such = f", such as `{{}}, {shown}()`" if isinstance(outcome, Event) else ""
            raise self.rule_error(
                EmptyVisit, f"the visit returned {shown}; expected a patch and an event{such}"
            )
        patch, event = outcome
        self.check_writes(patch)
        self.follow(patch, event, self.live.view.fields_read if self.live else ())

    def follow(self, patch: Patch, event: Event, reads: tuple[str, ...] = (), by: str = "machine") -> None:
        """Apply a patch and enter the state that the event leads to."""
        s, row = self.snapshot, self.machine.rows[self.snapshot.state]
        target = row.get(type(event))
        if target is None:
            expected = " or ".join(sorted(kind.__name__ for kind in row))
            raise self.rule_error(
                NoTransition,
                f"{type(event).__name__} came; expected {expected}, or a row of the table for it",
            )
        limit = self.program.transition_limit(s.refused)
        if s.transitions >= limit and target not in self.machine.final:
            self.close(
                "max_transitions", f"{limit} transitions were made; `max_transitions` is {limit}", "kernel"
            )
            return
        self.check_entries(target)
        context = self.entered_context(self.candidate(s.context, patch), target)
        self.check_invariant(context, target)
        self.thought = self.thought if event.thought is None else event.thought
        if target in self.machine.final and self.ask_again(context, target, reads):
            return
        self.snapshot = changed(s, context=context, transitions=s.transitions + 1)
        self.record(
            type(event).__name__, to=target, reason=event.reason, reads=reads, by=by,
            refused_by=tuple(_cut_text(name, NAME_CHARS) for name in event.refused_by[:MOST_NAMES]),
        )  # fmt: skip
        self.enter(target, interrupt=True)

    # the answer

    def ask_again(self, context: Context, target: str, reads: tuple[str, ...]) -> bool:
        """Go on instead of ending in `target` if the answer does not fit. A note tells the model. False: the
        run ends."""
        s, form = self.snapshot, self.program.form
        if form is None:
            return False
        self.snapshot = changed(s, context=context, state=target)
        exit_ = self.call(self.machine.result, context, self.run_view())
        self.snapshot = s
        problem = self.read_answer(exit_)[1] if exit_.ok else ""
        again = self.where_to_ask_again(context) if problem else None
        if again is None:
            return False
        to, context = again
        context = self.entered_context(context, to)
        self.check_invariant(context, to)
        note = Message(role="user", content=form.again(problem), from_run=True)
        self.snapshot = changed(
            s, context=context, transitions=s.transitions + 1, notes=(*s.notes, note), refused=s.refused + 1
        )
        self.record(REFUSED, to=to, reason=problem, reads=reads, by="kernel")
        self.enter(to, interrupt=True)
        return True

    def where_to_ask_again(self, context: Context) -> tuple[str, Context] | None:
        """The state in which an answer is asked for again after this end, and the context there. None: this
        end gives no answer, enough were given, or `not_again` says why not."""
        s, machine = self.snapshot, self.machine
        find = machine.on_refused or machine.on_reopen
        if s.refused + 1 >= machine.answer_attempts(self.program.options):
            return None
        if find is None:
            self.not_again = f"the machine {machine.name} has neither `on_refused` nor `on_reopen`"
            return None
        limit = self.program.transition_limit(s.refused + 1)
        if s.transitions >= limit:
            self.not_again = f"{s.transitions} transitions were made; `max_transitions` is {limit}"
            return None
        found = self.call(find, context)
        if found is None:
            return None
        again = self.after_end("on_refused" if machine.on_refused else "on_reopen", context, *found)
        self.not_again = self.used_up_from(again[0])
        return None if self.not_again else again

    def used_up_from(self, state: str) -> str:
        """The counters without an entry left, of this state or one after it. Empty: the run can go on."""
        counts, machine = self.snapshot.counts, self.machine
        caps = machine.caps(self.program.options) if machine.caps else {}
        ahead = {machine.by_name[name].counts for name in reachable({state}, machine.rows)}
        full = [
            counter for counter, most in caps.items() if counter in ahead and counts.get(counter, 0) >= most
        ]
        return ", ".join(f"`{counter}` is used up ({caps[counter]})" for counter in full)

    def after_end(self, by: str, context: Context, state: Any, patch: Patch) -> tuple[str, Context]:
        """The state and the context in which a run continues after its end."""
        target = state_name(state)
        if target not in self.machine.rows:
            raise self.rule_error(NoTransition, f"`{by}` leads to {target}, which is no state to go on from")
        return target, self.own_patch(context, patch)

    def read_answer(self, exit_: Exit) -> tuple[JsonObject | None, str]:
        """The answer as data, or what is wrong with it."""
        assert self.program.form is not None
        try:
            return self.program.form.read(exit_.answer), ""
        except ValueError as error:
            return None, str(error)

    def with_output(self, exit_: Exit) -> Exit:
        """The exit with the answer as data. Without that no run is ok whose agent wants it."""
        if self.program.form is None:
            return exit_
        output, problem = self.read_answer(exit_)
        if output is not None or not exit_.ok:
            return exit_.model_copy(update={"output": output})
        on_refused, number = self.machine.on_refused, self.snapshot.refused + 1
        gives_none = on_refused is not None and self.call(on_refused, self.snapshot.context) is None
        given = f" ({number} answers were given)" if number > 1 else ""
        why = f"; it is not asked for again: {self.not_again}" if self.not_again else ""
        error = f"the answer does not fit `output`: {problem}{given}{why}"
        reason = exit_.reason if gives_none else INVALID_ANSWER
        return exit_.model_copy(update={"reason": reason, "ok": False, "error": error})

    def check_entries(self, target: str) -> None:
        """A state is entered no more often than its counter allows."""
        counter = self.machine.by_name[target].counts
        limit = self.program.entry_limit(counter) if counter else None
        if limit is not None and self.snapshot.counts.get(counter, 0) >= limit:
            raise self.rule_error(
                LimitExceeded, f"{target} was entered {limit} times; `{counter}` allows no more"
            )

    def check_invariant(self, context: Context, target: str, left: str | None = None) -> None:
        """A state is entered with a context that its invariant allows; `left`: from a state other than the
        present one."""
        holds = self.machine.by_name[target].holds
        if holds and (wrong := self.call(holds, context, self.snapshot.state if left is None else left)):
            raise self.rule_error(InvariantViolated, f"the invariant of {target} does not hold: {wrong}")

    def entered_context(self, context: Context, target: str) -> Context:
        """The candidate with what entering the target writes."""
        entry = self.machine.by_name[target].entry
        return self.own_patch(context, self.call(entry, context, self.snapshot.state)) if entry else context

    def begins_step(self, target: str) -> bool:
        """Entering it begins a step."""
        return self.machine.step is not None and target == state_name(self.machine.step)

    def record_step(self, to: str | None = None) -> int:
        """The step that the next record tells of."""
        replied = any(one.kind == "ask_model" for one in self.answered)
        leads = to is not None and self.begins_step(to) and AskModel not in self.machine.by_name[to].asks
        return max(self.snapshot.step + (replied and leads), 1)

    def enter(self, target: str, *, interrupt: bool = False) -> None:
        """Begin the visit of a state; with `interrupt`, the run may be paused before it."""
        s, counter = self.snapshot, self.machine.by_name[target].counts
        counts = {**s.counts, counter: s.counts.get(counter, 0) + 1} if counter else s.counts
        begins = self.begins_step(target)
        self.live = None
        self.snapshot = changed(
            s, state=target, entry_context=s.context, moments=(), calls=0, counts=counts, visit=s.visit + 1,
            step=s.step + begins, entered=self.facts(),
        )  # fmt: skip
        self.logged, self.effect_started = self.snapshot, self.now
        asks = self.program.interrupts
        if interrupt and asks and target not in self.machine.final and asks(self.snapshot, self.program):
            self.snapshot = changed(self.snapshot, interrupted=True)
            self.asked = Interrupt(state=target, step=self.snapshot.step)
            with suppress(Exception):  # what is wrong with the visit shows when the state is entered
                self.log_wanted_calls(self.next_effect())
            self.live = None

    def go_back(  # noqa: PLR0913  # who, when and why beside where
        self,
        event: str,
        then: Snapshot,
        point: Record | None,
        left: Snapshot,
        *,
        by: str,
        reason: str,
        about: JsonObject,
        migrated: bool,
    ) -> Suspension:
        """Enter the state of an earlier snapshot again, or continue after its end: a rollback, a fork, a
        migration. Nobody is asked before it. `point` is the record that led there; none of a migration.
        `migrated`: the snapshot comes from a log of another version of the machine.

        The state was entered before, so `entry` and the invariant are not applied again. They apply after an
        end, which also counts as a new entry beyond any cap. What `on_rollback` writes must keep the
        invariant.
        """
        machine, context, target = self.machine, then.context, then.state
        begins = self.begins_step(target)
        counts = dict(then.counts)
        if target in machine.final:  # the end of a run, which goes on
            assert machine.on_reopen is not None, "else it is no checkpoint"
            target, context = self.after_end("on_reopen", context, *self.call(machine.on_reopen, context))
            context = self.entered_context(context, target)
            self.check_invariant(context, target)
            begins = False
        elif counter := machine.by_name[target].counts:
            # it is counted again; of a state that an older version named otherwise, no entry is known
            counts[counter] = counts.get(counter, 1) - 1
        if event == ROLLED_BACK and machine.on_rollback:
            taken_over = self.own_patch(context, self.call(machine.on_rollback, context, left.context))
            if holds_text(differences(context, taken_over)):
                self.label(left.labels)
            context = taken_over
            self.check_invariant(context, target, point.state if point and target == then.state else None)
        if event == FORKED:
            self.label(self.program.input_labels)
        if notes := self.snapshot.notes[len(then.notes) :]:
            self.label(self.program.labels.of_people("a message from before the rollback", then.step))
        self.snapshot = changed(self.snapshot, context=context, counts=counts, step=then.step - begins)
        s = self.snapshot
        self.write(Record(
            seq=s.seq, branch=s.branch, machine=machine.name, state=left.state, event=event, to=target,
            step=s.step, visit=s.visit, counters=self.ledger.spent,
            patch=whole(context) if migrated else differences(then.context, context),
            notes=notes, started=self.now, at=self.now, back_to=point.seq if point else None, by=by,
            brought=s.labels[len(then.labels) :],
            begins=self.begins_step(target), of_step=self.record_step(), reason=reason,
            about={**about, VERSION: machine.version} if migrated else about,
        ))  # fmt: skip
        return self.run(lambda: self.enter(target))

    def handle_error(self, error: AgentError) -> None:
        """An error left the visit: the machine says what that means, or the run ends. The author's line goes
        to the worker's log alone: the run's own has the same hashes wherever the file lies."""
        self.author_line = author_line_of(error.__cause__ or error, None, None)
        if self.machine.on_error is None:
            self.close("failed", str(error), "kernel")
            return
        s = self.snapshot
        patch, event = self.call(self.machine.on_error, s.context, error, self.run_view())
        self.check_own(patch)
        self.follow(patch, event)

    def enter_fail_state(self, error: MachineError) -> None:
        """A broken rule leads to the fail state (spec 3.7). Without one, or in it, it is recorded and raised;
        so is a rule that the machine breaks on the way there."""
        s, machine, line = self.snapshot, self.machine, self.line_of(error)
        if self.program.lens:
            self.program.lens.dropped(s.state)
        target = state_name(machine.fail) if machine.fail else s.state
        try:
            if target == s.state:
                raise error
            own = self.call(machine.on_violation, s.context, error) if machine.on_violation else {}
            context = self.entered_context(self.own_patch(s.context, own), target)
        except MachineError as last:
            self.record_violation(last)
            raise
        self.snapshot, self.author_line = changed(s, context=context), line
        self.record(type(error).__name__, to=target, by="kernel", error=error.problem)
        self.snapshot = changed(self.snapshot, transitions=s.transitions + 1)
        self.enter(target)

    def record_violation(self, error: MachineError) -> None:
        """Write the broken rule down; the error gets the run as it was then, and the author's line."""
        self.record(type(error).__name__, by="kernel", error=error.problem)
        error.author_line = self.line_of(error)
        error.suspension = self.suspension()

    def line_of(self, error: MachineError) -> str:
        """The author's line that broke the rule; empty: there is none."""
        visit = self.live.visit if self.live and self.called is self.declared.visit else None
        return author_line_of(error, visit, self.called)

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call an author's function, and remember that it was the last."""
        self.called = function
        if self.program.lens is not None:
            ends = function is self.machine.result
            given = tuple(
                self.through_lens(one, ends=ends) if isinstance(one, Context) else one for one in given
            )
        return function(*given)

    def through_lens(self, context: Context, *, ends: bool = False) -> Context:
        """The context as an author's function is given it; `ends`: for `result`."""
        lens = self.program.lens
        return lens.context(context, self.snapshot.state, ends=ends) if lens else context

    def close(self, reason: str, error: str | None, by: str) -> None:
        """End the run where it is."""
        patch, reads = self.last_words(reason)
        s = self.snapshot
        context = self.candidate(s.context, patch)
        if self.machine.on_close:
            context = self.own_patch(context, self.call(self.machine.on_close, context, reason))
        self.snapshot = changed(s, context=context)
        self.record(CLOSED, reason=error or "", reads=reads, by=by, about={EXIT_REASON: reason})
        result = self.call(self.machine.result, context, self.run_view())
        self.exit = result.model_copy(update={"reason": reason, "ok": False, "error": error or result.error})
        self.asked = self.live = self.breach = None

    def last_words(self, reason: str) -> tuple[Patch, tuple[str, ...]]:
        """What the visit writes when it is told that the run ends."""
        if self.asked is None or self.snapshot.interrupted:
            return {}, ()
        self.called = self.declared.visit
        try:
            self.next_effect()
            assert self.live is not None
            self.live.fed = ENDED
            self.live.visit.throw(Closed(reason))
        except StopIteration as ended:
            patch = ended.value[0] if isinstance(ended.value, tuple) else {}
            self.check_writes(patch)
            return patch, self.live.view.fields_read if self.live else ()
        except (Closed, AgentError):
            return {}, ()
        self.live.visit.close()
        return {}, ()

    # the visit

    @property
    def declared(self) -> State:
        return self.machine.by_name[self.snapshot.state]

    def facts(self) -> RunFacts:
        s = self.snapshot
        return RunFacts(self.now, len(s.conversation), len(s.notes), s.heard, self.ledger)

    def run_view(self) -> Run:
        """What `run` shows now."""
        run = self.run_at(self.snapshot.entered)
        _set_facts(run, self.facts(), self.snapshot)
        return run

    def run_at(self, facts: RunFacts) -> Run:
        p, s = self.program, self.snapshot
        counts = ReadOnlyDict(s.counts, "`run.counts`")
        # the ledger comes with the facts, too; a default one would be made for nothing
        run = Run(
            p.options, p.prepared, p.input, self.declared.name, s.step, s.visit, counts, ledger=facts.ledger
        )
        if p.lens:
            run = p.lens.run(run, s.state)
        _set_facts(run, facts, s)
        return run

    def live_visit(self) -> Live:
        """The live visit, else one that runs from its start."""
        if self.live is not None and self.live.fed != ENDED:
            return self.live
        s, declared = self.snapshot, self.declared
        allowed = declared.reads if declared.enforce else frozenset(self.machine.context.model_fields)

        def refused(name: str) -> Exception:
            problem = f"the undeclared field {name!r} was read; declare it in the state's `reads`"
            return self.rule_error(UndeclaredAccess, problem)

        view = View(self.through_lens(s.entry_context), allowed, refused)
        run = self.run_at(s.entered)
        assert declared.visit is not None
        self.observe(None)
        visit = declared.visit(view, run)
        if not isinstance(visit, Generator):
            visit = _as_generator(visit)
        return Live(visit, view, run)

    def next_effect(self) -> Effect[Any]:
        """What the visit asks for after all its answers. Raises StopIteration with its outcome."""
        s = self.snapshot
        self.live = live = self.live_visit()
        try:
            if live.effect is None:
                live.effect = next(live.visit)
            while live.fed < len(s.moments):
                moment = s.moments[live.fed]
                if _signature(live.effect) != moment.asked:
                    raise self.rule_error(
                        Drifted,
                        f"effect {live.fed + 1} of the visit is {_signature(live.effect)}; "
                        f"the first time it was {moment.asked}",
                    )
                live.fed += 1
                _set_facts(live.run, moment.facts, s)
                if moment.keep:
                    move(live.view, live.view._context.after(moment.keep))
                if isinstance(moment.answer, EffectFailed):
                    failure, effect = moment.answer, live.effect
                    live.effect = live.visit.throw(
                        EffectError(failure.error, failure.type, failure.message, effect)
                    )
                else:
                    live.effect = live.visit.send(moment.answer)
        except BaseException as error:
            fed, live.fed = live.fed, ENDED
            if fed < len(s.moments) and isinstance(error, StopIteration | AgentError):
                asked, ended = s.moments[fed].asked, f"the visit ended after {fed} effects"
                raise self.rule_error(
                    Drifted, f"{ended}; the first time it asked for {asked} next"
                ) from error
            raise
        return live.effect

    def check_effect(self, effect: Any, declared: State) -> None:
        """A state asks only for what it declares."""
        if not isinstance(effect, Effect):
            shown = f"`{effect!r}`" if isinstance(effect, Doing) else type(effect).__name__
            how = f"; write `yield from {effect!r}`" if isinstance(effect, Doing) else ""
            raise self.rule_error(EmptyVisit, f"the visit yielded {shown}; expected an effect{how}")
        members: tuple[Effect[Any], ...] = effect.effects if isinstance(effect, Together) else (effect,)
        if isinstance(effect, Together) and any(isinstance(m, AskModel) and not m.beside for m in members):
            raise self.rule_error(
                UndeclaredAccess, "questions side by side must be `beside` the conversation"
            )
        if isinstance(effect, Say):
            return
        for one in members:
            if not isinstance(one, tuple(declared.asks)):
                name, where = type(one).__name__, "declare it in the state's `asks`"
                raise self.rule_error(
                    UndeclaredAccess, f"the undeclared effect {name} was asked for; {where}"
                )
            if declared.tools is not None and (extra := set(one.tools) - declared.tools):
                problem = (
                    f"the undeclared tool {min(extra)!r} was asked for; declare it in the state's `tools`"
                )
                raise self.rule_error(UndeclaredAccess, problem)

    def keep(self, effect: Say) -> None:
        """Take what a visit says and keeps."""
        self.check_writes(effect.keep)
        s = self.snapshot
        if len(s.moments) - s.calls >= self.program.effect_limit:
            raise self.rule_error(
                LimitExceeded, f"one visit said something more than {len(s.moments) - s.calls} times"
            )
        context = self.candidate(s.context, effect.keep)
        self.snapshot = changed(s, context=context)
        self.say(effect.say)
        self.thought = self.thought if effect.thought is None else effect.thought
        kept = {name: getattr(context, name) for name in effect.keep}
        self.remember(effect, None, kept)

    def remember(self, effect: Effect[Any], answer: Any, keep: Patch | None = None) -> None:
        """Add a moment; an older answer of the same kind keeps only what may still be read."""
        s = self.snapshot
        moments = s.moments
        if answer is not None:
            self.progress = type(answer).__name__
            for number in range(len(moments) - 1, -1, -1):
                older = moments[number].answer
                if type(older) is type(answer):
                    if (thin := older.superseded()) is not older:
                        moments = (
                            *moments[:number],
                            changed(moments[number], answer=thin),
                            *moments[number + 1 :],
                        )
                    break
            self.effect_started = s.moments[-1].facts.now if s.moments else s.entered.now
        moment = Moment(_signature(effect), answer, self.facts(), keep or {})
        self.snapshot = changed(s, moments=(*moments, moment), calls=s.calls + (answer is not None))

    def label(self, sources: Iterable[LabelSource]) -> None:
        """The run has these labels from now on."""
        s = self.snapshot
        if len(labels := first_of_each((*s.labels, *sources))) > len(s.labels):
            self.snapshot = changed(s, labels=labels)

    def say(self, messages: tuple[Message, ...]) -> None:
        s = self.snapshot
        if messages:
            self.snapshot = changed(s, conversation=s.conversation.add(*messages))

    # writing

    def candidate(self, context: Context, patch: Patch) -> Context:
        if not patch:
            return context
        if self.program.lens:
            self.program.lens.wrote(patch, self.snapshot.state)
        try:
            return patched(context, patch)
        except Misfit as error:
            raise self.rule_error(BadPatch, f"the patch does not fit: {error}") from error

    def check_writes(self, patch: Patch) -> None:
        """A visit writes only what its state declares."""
        if self.declared.enforce and (extra := set(patch) - self.declared.writes):
            name, kind = min(extra), self.machine.context
            problem = f"the undeclared field {name!r} was written; declare it in the state's `writes`"
            if name not in kind.model_fields:
                problem = f"{name!r} was written, which is no field of the context{nearest_field(kind, name)}"
            raise self.rule_error(UndeclaredAccess, problem)

    def check_own(self, patch: Patch) -> None:
        own = self.machine.writes
        if own is not None and (extra := set(patch) - own):
            problem = f"the machine itself may not write the field {min(extra)!r}; declare it in its `writes`"
            raise self.rule_error(UndeclaredAccess, problem)

    def own_patch(self, context: Context, patch: Patch) -> Context:
        """A patch of the machine itself, checked against the machine's own rights."""
        self.check_own(patch)
        return self.candidate(context, patch)

    def record(  # noqa: PLR0913  # the parts of a record that differ
        self,
        event: str,
        *,
        to: str | None = None,
        reason: str = "",
        reads: tuple[str, ...] = (),
        by: str = "machine",
        error: str | None = None,
        refused_by: tuple[str, ...] = (),
        about: JsonObject | None = None,
    ) -> None:
        """Write down everything since the last record."""
        s, before = self.snapshot, self.logged
        about = {**({} if self.declared.enforce else {"enforce": False}), **(about or {})}
        self.write(Record(
            seq=s.seq, branch=s.branch, machine=self.machine.name, state=s.state, event=event, to=to,
            reason="" if self.is_told(reason.strip()) else _cut_text(reason, REASON_CHARS),
            step=s.step, visit=s.visit, reads=reads,
            thought=_cut_text(self.thought, REASON_CHARS), refused_by=refused_by,
            begins=to is not None and self.begins_step(to), of_step=self.record_step(to),
            reopens=to in self.machine.final and s.step > 0 and self.machine.on_reopen is not None,
            patch=differences(before.context, s.context),
            messages=s.conversation.messages[len(before.conversation) :], beside=self.beside,
            heard=s.heard - before.heard, answered=self.answered, counters=self.ledger.spent,
            started=s.entered.now if to else self.effect_started, at=self.now, by=by, error=error,
            about=about, brought=s.labels[len(before.labels) :],
            notes=s.notes[len(before.notes) :],
        ))  # fmt: skip
        self.answered, self.beside, self.progress, self.thought = (), (), "", ""

    def is_told(self, reason: str) -> bool:
        """The thought, or what came of a call, has these words already, and nothing else."""
        texts = (text for one in self.answered for text in (one.output, f"{one.error}: {one.output}"))
        return reason == self.thought.strip() or (bool(reason) and reason in texts)

    def log_event(self, event: str, not_begun: Mapping[str, float], **more: Any) -> None:
        """A record that changes nothing else."""
        s, spent = self.snapshot, self.ledger.refund(not_begun).spent
        self.write(Record(
            seq=s.seq, branch=s.branch, machine=self.machine.name, state=s.state, event=event, step=s.step,
            of_step=self.record_step(), visit=s.visit, counters=spent, started=self.now, at=self.now,
            brought=s.labels[len(self.logged.labels) :], **more,
        ))  # fmt: skip

    def write(self, record: Record) -> None:
        self.records.append(record)
        self.snapshot = changed(self.snapshot, seq=self.snapshot.seq + 1)
        self.logged = self.snapshot

    def rule_error(self, kind: type[MachineError], problem: str) -> MachineError:
        return kind(self.machine.name, self.snapshot.state, problem)


def _set_facts(run: Run, facts: RunFacts, s: Snapshot) -> None:
    run.now, run.ledger = facts.now, facts.ledger
    run.conversation = s.conversation.until(facts.said)
    run.notes, run.inbox = s.notes[: facts.notes], s.notes[facts.heard : facts.notes]
    run.refused = s.refused


def _signature(effect: Effect[Any]) -> str:
    return f"{effect.kind}:{effect.label}"


def _as_generator(outcome: Any) -> Generator[Effect[Any], Any, VisitEnd]:
    return outcome  # type: ignore[no-any-return]  # checked by whoever receives it
    yield


def _beside(effect: Effect[Any], answer: Any) -> tuple[Message, ...]:
    """What was asked and answered beside the conversation, for the log."""
    if isinstance(effect, Together):
        pairs = zip(effect.effects, getattr(answer, "answers", ()), strict=False)
        return tuple(message for one, reply in pairs for message in _beside(one, reply))
    if not isinstance(effect, AskModel) or not effect.beside or isinstance(answer, EffectFailed):
        return ()
    return tuple(_cut(message) for message in (*effect.say, answer.message))


def _cut(message: Message) -> Message:
    text = _cut_text(message.content, BESIDE_CHARS)
    return message if text is message.content else message.model_copy(update={"content": text})


def _cut_text(text: str, limit: int) -> str:
    text = readable(text)
    return text if len(text) <= limit else f"{text[:limit]} [... {len(text):,} characters]"
