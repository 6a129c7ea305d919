"""Every run of a machine in a domain: breadth first over the answers, with the kernel's own `start` and
`advance`. The code is the model.

Two runs are in the same place when nothing that may still be read tells them apart. Which facts those are is
found by exploring (`lens.py`): a state needs what its functions and the properties read in it, and what the
states behind it need and it does not overwrite itself. A fact that turns out to be needed begins the
exploration again with it, so that in the last pass no merge was made without it. The argument: a visit that
reads the same values asks for the same, writes the same and takes the same row; so merged runs go on alike.

How a run ends is looked at for each end that is reached. A list that states at most append to and that
`result` alone reads does not tell runs apart; the exit must be the same where that list is empty.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from activities.contracts import PersonDecided, ReadOnlyDict
from activities.contracts.read_only import ReadOnlyList
from workflows.kernel.context import Context
from workflows.kernel.errors import InputRefused, MachineError, author_line_of, error_text
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Exit, state_name
from workflows.kernel.properties import Moment, Property
from workflows.kernel.snapshot import Program, Snapshot, Suspension
from workflows.kernel.transition import Transition, advance, start
from workflows.verify.runs.domain import Domain
from workflows.verify.runs.lens import FACTS, TESTED, RecordingLens, fact_of
from workflows.verify.runs.moments import (
    ENDS,
    Exchange,
    PropertyBug,
    bug_of,
    exit_problem,
    moment_text,
    moments_of,
)

__all__ = ["Explored", "Violation", "explore"]

NOW = 0.0
"""What the clock shows."""
MAX_STATES = 400_000
"""States kept at once."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must hold, and a shortest run in which it does not."""

    name: str
    """The property, or what is built in."""
    built_in: bool
    detail: str
    exchanges: tuple[Exchange, ...]
    author_line: str = ""
    """The author's file and line, where there is one."""
    shown: str = ""
    """What was asked or has happened when it broke, in words."""
    rounds: int = 0
    """So many answers at the end lead back to where they began."""


@dataclass
class Explored:
    """What came of exploring one scenario."""

    complete: bool = True
    """Every answer of the domain was tried in every state."""
    states: int = 0
    answers: int = 0
    depth: int = 0
    """Answers on the longest way that was tried."""
    waiting: int = 0
    """States whose answers were not tried."""
    seconds: float = 0.0
    arrows: set[tuple[str, str, str]] = field(default_factory=set)
    """(state, event, state) of the rows that were taken."""
    ends: Counter[str] = field(default_factory=Counter)
    """Exit reason -> how often."""
    violations: dict[str, Violation] = field(default_factory=dict)
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """State -> what tells its runs apart."""
    transitions: int | None = None
    """At most so many transitions a run makes; None: people can lead it round."""
    limit: int = 0
    """So many transitions a run may make."""
    came_up: set[str] = field(default_factory=set)
    """Properties that say something of a run that was explored."""
    fixed: tuple[str, ...] = ()
    """What of `run` was read and never changes."""
    compared: int = 0
    """Answers that merged runs were given beside those that they were merged with."""
    conflicts: list[str] = field(default_factory=list)
    """Where they went on otherwise: a fault of Ratchet."""


@dataclass(slots=True)
class _Node:
    """A place where runs wait for an answer."""

    key: bytes
    suspension: Suspension
    memories: tuple[Any, ...]
    depth: int
    overwritten: frozenset[str]
    """Facts that the visit has overwritten since it began."""


def explore(  # noqa: PLR0913  # what is explored, and how long
    program: Program,
    domain: Domain,
    properties: Sequence[Property] = (),
    *,
    seconds: float = 60.0,
    clock: Callable[[], float],
    merge: bool = True,
    compare: int = 0,
    progress: Callable[[Explored], None] = lambda found: None,
    until: Callable[[Explored], bool] = lambda found: False,
) -> Explored:
    """Try every answer of the domain in every state, for at most so many seconds by the clock, or
    `until` this is true of what was found.

    Without `merge`, runs are told apart by everything that they hold. `compare`: so many runs that were
    merged with another are advanced beside it by every answer; what differs then is a fault of the merge.

    Raises PropertyBug, and ValueError for a program that cannot begin.
    """
    began, needs, known = clock(), _Needs(program), dict[str, Violation]()
    while True:
        one = _Exploration(program, domain, properties, needs, merge=merge, compare=compare)
        one.found.violations = known  # each is a run, whatever was merged when it was found
        if one.run(lambda found: clock() - began < seconds and not until(found), progress):
            break
    found = one.found
    found.seconds = clock() - began
    found.needs = {state: tuple(sorted(facts)) for state, facts in needs.of.items()}
    found.fixed = tuple(sorted(needs.fixed))
    return found


# -- which facts tell runs apart --------------------


class _Needs:
    """Of each state, the facts that may still be read when a run has entered it. It only grows."""

    def __init__(self, program: Program) -> None:
        self.of: dict[str, set[str]] = {}
        self.fixed: set[str] = set()
        self.overwritten: set[str] = set()
        self.of_results: set[tuple[str, str]] = set()
        """Final state and field: lists that are only appended to, and that `result` reads."""
        self._limited = {
            name: f"count:{one.counts}"
            for name, one in program.machine.by_name.items()
            if one.counts and program.entry_limit(one.counts) is not None
        }
        """State -> the counter that the kernel compares when it is entered."""

    def add(self, state: str, fact: str) -> bool:
        """A read in this state; true: that is new."""
        known = self.of.setdefault(state, set())
        if fact in known or fact.removeprefix(TESTED) in known:  # what a field holds says whether it is empty
            return False
        known.add(fact)
        return True

    def read(self, state: str, fact: str) -> bool:
        """A read that was noted; true: it tells runs apart, and is new."""
        if fact.removeprefix("run.") in ("now", "ledger", "notes", "inbox") and fact.startswith("run."):
            self.fixed.add(fact)
            return False
        return self.add(state, fact)

    def is_log(self, fact: str) -> bool:
        """A field that is at most appended to, as far as it is known."""
        return not fact.startswith("run.") and fact not in self.overwritten

    def overwrote(self, fields: frozenset[str]) -> bool:
        """Fields that were written as a whole; true: one of them was taken for a log."""
        self.overwritten |= fields
        logs = {one for one in self.of_results if one[1] in fields}
        self.of_results -= logs
        return any([self.add(*one) for one in logs])

    def entered(self, left: str, state: str, overwritten: frozenset[str]) -> bool:
        """A row was taken: what the next state needs and was not overwritten, this one needs as well."""
        wanted = {fact for fact in self.of.get(state, set()) if fact.removeprefix(TESTED) not in overwritten}
        if state in self._limited:
            wanted = wanted | {self._limited[state]}
        return any([self.add(left, fact) for fact in wanted])


# -- one pass --------------------


class _Exploration:
    def __init__(
        self,
        program: Program,
        domain: Domain,
        properties: Sequence[Property],
        needs: _Needs,
        *,
        merge: bool,
        compare: int,
    ) -> None:
        self.merge, self.compare = merge, compare
        self.waits: dict[bytes, Suspension] = {}
        """Of each place the run that was explored, where merges are compared."""
        self.merged: list[_Node] = []
        self.lens, self.needs, self.plain = RecordingLens(), needs, program
        self.entered: list[Snapshot] = []
        self.moved: list[tuple[str, str]] = []
        """States that were left, and the events."""
        self.program = replace(program, lens=self.lens, observer=self._observe)
        self.machine, self.domain, self.properties = program.machine, domain, tuple(properties)
        self.found = Explored()
        self.came_from: dict[bytes, tuple[bytes, Exchange] | None] = {}
        self.leads: dict[bytes, list[tuple[bytes, Exchange, int]]] = {}
        """Place -> the places that it leads to, by which answer, in how many transitions."""
        self.dirty = False
        self.prints = _Prints()
        self.first: Context | None = None

    def run(self, goes_on: Callable[[Explored], bool], progress: Callable[[Explored], None]) -> bool:
        """Explore; false: a fact turned out to be needed, and all begins again."""
        first = self._started()
        waiting = deque([first] if first else [])
        while waiting:
            if not goes_on(self.found) or len(self.came_from) > MAX_STATES:
                self.found.complete = False
                break
            node = waiting.popleft()
            self.found.depth = node.depth + 1
            for tried in self.domain.answers(node.suspension.effect):  # type: ignore[arg-type]  # it waits for one
                exchange = Exchange(
                    node.suspension.snapshot.state,
                    node.suspension.effect,  # type: ignore[arg-type]  # a node here waits for one
                    tried.text,
                    tried.answer,
                )
                if later := self._advanced(node, exchange):
                    waiting.append(later)
            if self.dirty:
                return False
            if self.found.answers % 500 < 20:
                self.found.waiting = len(waiting)
                progress(self.found)
        self.found.waiting, self.found.states = len(waiting), len(self.came_from)
        self._find_round()
        self._measure()
        self._compare_merged()
        return True

    def _started(self) -> _Node | None:
        try:
            suspension = start(self.program, now=NOW, ledger=Ledger())
        except InputRefused:
            raise
        except Exception as error:  # noqa: BLE001  # a bug of the author's is what is looked for
            self._raised(error, None, None)
            return None
        self.first = self.entered[0].context if self.entered else suspension.snapshot.context
        return self._arrived(None, None, suspension, tuple(one.first for one in self.properties), 0)

    def _observe(self, snapshot: Snapshot, what: Any) -> None:
        if isinstance(what, tuple) and len(what) == 2:
            self.moved.append((snapshot.state, type(what[1]).__name__))
        if what is None and not snapshot.moments:
            self.lens.happened.append(("entered", snapshot.state, snapshot))
            self.entered.append(snapshot)

    # -- one answer --------------------

    def _advanced(self, node: _Node, exchange: Exchange) -> _Node | None:
        self.found.answers += 1
        self.lens.happened.clear()
        self.entered.clear()
        self.moved.clear()
        try:
            after = advance(node.suspension, exchange.answer, now=NOW)
        except Exception as error:  # noqa: BLE001  # a bug of the author's is what is looked for
            self._raised(error, node, exchange)
            return None
        return self._arrived(node, exchange, after, node.memories, node.depth + 1)

    def _raised(self, error: Exception, node: _Node | None, exchange: Exchange | None) -> None:
        self._follow(node, None)  # before the properties look: what was read on the way is needed, too
        if node is not None and exchange is not None:
            self._watched_until_raised(node, exchange)
        if isinstance(error, MachineError):
            self._violated(type(error).__name__, str(error), node, exchange, author_line=error.author_line)
        else:
            author_line = author_line_of(error, None, None)
            self._violated("no exception", error_text(error), node, exchange, author_line=author_line)

    def _arrived(
        self,
        node: _Node | None,
        exchange: Exchange | None,
        after: Suspension,
        memories: tuple[Any, ...],
        depth: int,
    ) -> _Node | None:
        """The place to which an answer has led, if it is new and waits for another one."""
        overwritten = self._follow(node, after)
        self._check_records(node, exchange, after)
        memories = self._watched(node, exchange, after, memories)
        if after.exit is not None:
            self._check_exit(node, exchange, after)
            return None
        key = self._key(after, memories)
        if node is not None and exchange is not None:
            made = after.snapshot.transitions - node.suspension.snapshot.transitions
            self.leads.setdefault(node.key, []).append((key, exchange, made))
        later = _Node(key, after, memories, depth, overwritten)
        if key in self.came_from:
            if len(self.merged) < self.compare:
                self.merged.append(later)
            return None
        self.came_from[key] = (node.key, exchange) if node and exchange else None
        if self.compare:
            self.waits[key] = after
        return later

    def _follow(self, node: _Node | None, after: Suspension | None) -> frozenset[str]:
        """Learn from what was read and written on the way; what the present visit has overwritten."""
        before = node.suspension.snapshot if node else None
        state = before.state if before else state_name(self.machine.initial)
        overwritten = kept = node.overwritten if node else frozenset()
        said = before.entered.said if before else 0
        for what, where, fact in self.lens.happened:
            if what == "read":
                self.dirty |= self.needs.read(where, fact)
            elif what == "ended":
                self.dirty |= self._reads_at_the_end(where, fact)
            elif what == "wrote":
                overwritten |= fact
                self.dirty |= self.needs.overwrote(fact)
            elif what == "dropped":  # a rule was broken: nothing of it was kept
                overwritten = kept
            elif before is not None or where != state:
                overwritten |= _said_since(fact, said)
                self.dirty |= self.needs.entered(state, where, overwritten)
                state, overwritten, kept, said = where, frozenset(), frozenset(), fact.entered.said
                before = before or fact
            else:
                before = fact
        if after is not None and after.exit is not None and after.snapshot.state != state:
            overwritten |= _said_since(after.snapshot, said)
            self.dirty |= self.needs.entered(state, after.snapshot.state, overwritten)
        self.lens.happened.clear()
        return overwritten

    def _reads_at_the_end(self, state: str, fact: str) -> bool:
        """`result` has read this. A list that is at most appended to does not tell runs apart for that: see
        `_check_exit`."""
        fact = fact.removeprefix(TESTED)
        if not self.needs.is_log(fact):
            return self.needs.read(state, fact)
        self.needs.of_results.add((state, fact))
        return False

    # -- what is looked at --------------------

    def _check_records(self, node: _Node | None, exchange: Exchange | None, after: Suspension) -> None:
        for record in after.records:
            if record.error and record.event not in ("Closed",):
                self._violated(record.event, record.error, node, exchange, author_line=after.author_line)
            if record.to and record.event in {
                kind.__name__ for kind in self.machine.rows.get(record.state, {})
            }:
                self.found.arrows.add((record.state, record.event, record.to))

    def _check_exit(self, node: _Node | None, exchange: Exchange | None, after: Suspension) -> None:
        assert after.exit is not None
        self.found.ends[after.exit.reason] += 1
        name, detail = exit_problem(after)
        if name:
            self._violated(name, detail, node, exchange)
        state = after.snapshot.state
        logs = {fact for final, fact in self.needs.of_results if final == state} - self.needs.of.get(
            state, set()
        )
        if logs and self._end_depends(after, logs):
            for fact in logs:
                if self._end_depends(after, {fact}):
                    self.dirty |= self.needs.add(state, fact)

    def _end_depends(self, after: Suspension, unread: set[str]) -> bool:
        """`result` would say something else if these fields were as they were in the beginning. That is no
        matter of the exit: a run that was closed in the middle ends otherwise than `result` says."""
        context, first = after.snapshot.context, self.first
        bare = context.model_copy(update={name: getattr(first, name) for name in unread})
        try:
            return _gist(self._result(after, bare)) != _gist(self._result(after, context))
        except Exception:  # noqa: BLE001  # then it depends on them
            return True

    def _result(self, after: Suspension, context: Context) -> Exit:
        """What `result` says where this run has ended, if the context is this one."""
        run = replace(after, program=self.plain, snapshot=replace(after.snapshot, context=context))
        return self.machine.result(context, Transition.of(run, NOW).run_view())

    def _watched_until_raised(self, node: _Node, exchange: Exchange) -> None:
        """Let the properties see what came before the run broke: the answer, and the rows that were taken."""
        context = self.lens.context(node.suspension.snapshot.context, exchange.state)
        moments = [
            Moment("answered", exchange.state, context, effect=exchange.effect, answer=exchange.answer)
        ]
        moments += [
            Moment("moved", left, self.lens.context(to.context, to.state), event=event, to=to.state)
            for (left, event), to in zip(self.moved, self.entered, strict=False)
        ]
        options = self.program.options
        self._stepped([replace(one, options=options) for one in moments], node.memories, node, exchange)

    def _watched(
        self, node: _Node | None, exchange: Exchange | None, after: Suspension, memories: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """The properties' memories behind what has happened."""
        if not self.properties:
            return ()
        before = (node.suspension, exchange) if node and exchange else None
        moments = list(moments_of(before, after, self.entered, self.lens.context))
        return self._stepped(moments, memories, node, exchange)

    def _stepped(
        self, moments: list[Moment], memories: tuple[Any, ...], node: _Node | None, exchange: Exchange | None
    ) -> tuple[Any, ...]:
        later = []
        for one, before_all in zip(self.properties, memories, strict=True):
            memory = before_all
            for moment in moments:
                try:
                    memory, broken = one.step(memory, moment)
                    if one.name not in self.found.came_up and (one.trigger is None or one.trigger(moment)):
                        self.found.came_up.add(one.name)
                except Exception as error:
                    raise PropertyBug(bug_of(one, moment, error)) from error
                if broken:
                    self._violated(one.name, "", node, exchange, shown=moment_text(moment))
            later.append(memory)
        for what, where, fact in self.lens.happened:
            if what == "read":
                self.dirty |= self.needs.read(where, fact)
        self.lens.happened.clear()
        return tuple(later)

    def _violated(
        self, name: str, detail: str, node: _Node | None, exchange: Exchange | None, **where: Any
    ) -> None:
        """Keep the first, and so a shortest, way to it."""
        known = f"{name}: {where.get('author_line') or detail}"
        if known not in self.found.violations:
            exchanges = (*self._way(node.key), exchange) if node and exchange else ()
            built_in = name not in {one.name for one in self.properties}
            self.found.violations[known] = Violation(name, built_in, detail, exchanges, **where)

    def _way(self, key: bytes) -> tuple[Exchange, ...]:
        exchanges: list[Exchange] = []
        while (came := self.came_from[key]) is not None:
            key, exchange = came
            exchanges.append(exchange)
        return tuple(reversed(exchanges))

    # -- where a run is --------------------

    def _key(self, suspension: Suspension, memories: tuple[Any, ...]) -> bytes:
        s = suspension.snapshot
        everything = {*self.machine.context.model_fields, *(f"run.{fact}" for fact in FACTS)}
        needed = sorted(self.needs.of.get(s.state, set()) if self.merge else everything)
        parts = [s.state, *(self._value(fact, s) for fact in needed)]
        parts += [f"{moment.asked}={self.prints.of(moment.answer)}" for moment in s.moments]
        parts.append(self.prints.text(memories))
        return hashlib.blake2b("\x00".join(parts).encode(errors="surrogatepass"), digest_size=16).digest()

    def _value(self, fact: str, s: Snapshot) -> str:
        """The fact as it was when the state was entered; what came since follows from the answers."""
        if fact.startswith("count:"):
            return str(s.counts.get(fact.removeprefix("count:"), 0))
        if fact.startswith(TESTED):
            return self.prints.truth(getattr(s.entry_context, fact.removeprefix(TESTED)))
        if not fact.startswith("run."):
            return self.prints.of(getattr(s.entry_context, fact))
        name = fact.removeprefix("run.")
        if name in ("step", "visit"):
            return str(getattr(s, name))
        if name == "counts":
            return repr(sorted(s.counts.items()))
        if name == "conversation":
            return s.conversation.digests[s.entered.said]
        return self.prints.of(fact_of(s.conversation.messages[: s.entered.said], name))

    def _compare_merged(self) -> None:
        """Advance each merged run, and the one that it was merged with, by every answer."""
        for node in self.merged:
            other = replace(node, suspension=self.waits[node.key])
            for tried in self.domain.answers(node.suspension.effect):  # type: ignore[arg-type]  # it waits for one
                self.found.compared += 1
                if self._led_to(node, tried.answer) != self._led_to(other, tried.answer):
                    where = f"{node.suspension.snapshot.state}: {tried.text}"
                    self.found.conflicts.append(where)

    def _led_to(self, node: _Node, answer: Any) -> Any:
        """All that can be told apart behind this answer."""
        try:
            after = advance(node.suspension, answer, now=NOW)
        except Exception as error:  # noqa: BLE001  # a broken rule is what is compared, too
            return type(error).__name__
        rows = tuple((record.state, record.event, record.to) for record in after.records if record.to)
        if after.exit is not None:
            return rows, _gist(after.exit)
        return rows, after.effect, self._key(after, node.memories)

    def _find_round(self) -> None:
        """A way round that no person leads: on it a run goes on until `max_transitions`."""
        alone = {
            key: [(to, exchange) for to, exchange, _ in behind if not _is_led(exchange)]
            for key, behind in self.leads.items()
        }
        done: set[bytes] = set()
        for root, first in alone.items():
            path: dict[bytes, Iterator[tuple[bytes, Exchange]]] = {root: iter(first)}
            exchanges: list[Exchange] = []
            while path and root not in done:
                key = next(reversed(path))
                following = next((one for one in path[key] if one[0] not in done), None)
                if following is None:
                    done.add(key)
                    del path[key]
                    del exchanges[-1:]
                elif following[0] in path:
                    start = [*path].index(following[0])
                    self._goes_round(following[0], (*exchanges[start:], following[1]))
                    return
                else:
                    path[following[0]] = iter(alone.get(following[0], ()))
                    exchanges.append(following[1])

    def _measure(self) -> None:
        """The most transitions of a run, over all that were merged; None where people can lead it round."""
        longest: dict[bytes, int] = {}
        missing = Counter(to for behind in self.leads.values() for to, _, _ in behind)
        ready = [key for key in self.came_from if not missing[key]]
        longest.update(dict.fromkeys(ready, 0))
        for key in ready:
            for to, _, made in self.leads.get(key, ()):
                longest[to] = max(longest.get(to, 0), longest[key] + made)
                missing[to] -= 1
                if not missing[to]:
                    ready.append(to)
        is_round = len(ready) < len(self.came_from)
        # what a last answer makes beyond its place is at most one transition for each state
        most = max(longest.values(), default=0) + len(self.machine.by_name)
        self.found.transitions, self.found.limit = None if is_round else most, self.program.transition_limit()

    def _goes_round(self, key: bytes, exchanges: tuple[Exchange, ...]) -> None:
        way = self._way(key)
        violation = Violation(
            ENDS, True, "it can go round for ever", (*way, *exchanges), rounds=len(exchanges)
        )
        self.found.violations.setdefault(ENDS, violation)


def _gist(exit: Exit) -> tuple[Any, ...]:
    """What is compared of an exit: not the words of its answer and its error, but whether there are any."""
    return exit.reason, exit.ok, bool((exit.answer or "").strip()), bool((exit.error or "").strip())


def _is_led(exchange: Exchange) -> bool:
    """A person has decided; that nobody is there is no decision."""
    return isinstance(exchange.answer, PersonDecided) and exchange.answer.decision != "unavailable"


def _said_since(snapshot: Snapshot, said: int) -> frozenset[str]:
    """Facts that follow from what the visit itself has said and heard, when the next state is entered."""
    new = snapshot.conversation.messages[said : snapshot.entered.said]
    heard = any(message.role == "assistant" for message in new)
    return frozenset({"run.reply", "run.tail"} if heard else ())


LEAVES = frozenset({
    str, int, float, bool, complex, type(None), bytes, Decimal, date, datetime, time, timedelta, UUID,
})  # fmt: skip
"""Types whose `repr` shows all that they hold."""
TESTABLE = LEAVES | {tuple, frozenset, list, dict, ReadOnlyDict, ReadOnlyList}
"""Types of which Python itself says whether a value is true."""


class _Prints:
    """Values as text that is equal only where they are: types, and all that they hold. An object of a type
    that is not known here is equal to itself alone."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}
        self._alive: dict[int, Any] = {}
        """What is told apart by its identity, so that no other object gets it."""

    def of(self, value: Any) -> str:
        """The text; values do not change, so it is made once for each object."""
        known = self._known.get(id(value))
        if known is None or known[0] is not value:
            text = self.text(value)
            short = (
                text if len(text) < 64 else hashlib.blake2b(text.encode(errors="surrogatepass")).hexdigest()
            )
            self._known[id(value)] = known = (value, short)
        return known[1]

    def truth(self, value: Any) -> str:
        """Whether it is true; of a value whose own code says that, the text."""
        return str(bool(value)) if type(value) in TESTABLE else self.of(value)

    def text(self, value: Any) -> str:
        """The whole text, made now."""
        return repr(self._bare(value))

    def _bare(self, value: Any) -> Any:
        if type(value) in LEAVES:
            return value
        if isinstance(value, Enum):
            return (self._kind(value), value.name)
        if isinstance(value, PurePath):
            return (self._kind(value), str(value))
        return (self._kind(value), *self._parts(value))

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, BaseModel):
            yield from self._of_model(value)
        elif isinstance(value, Mapping):
            yield from ((self._bare(name), self._bare(one)) for name, one in value.items())
        elif isinstance(value, tuple | list):
            yield from map(self._bare, value)
        elif isinstance(value, frozenset | set):
            yield from sorted(repr(self._bare(one)) for one in value)
        elif is_dataclass(value) and not isinstance(value, type):
            names = {one.name for one in fields(value)} | getattr(value, "__dict__", {}).keys()
            yield from ((name, self._bare(getattr(value, name, None))) for name in sorted(names))
        else:
            self._alive[id(value)] = value
            yield id(value)

    def _of_model(self, value: BaseModel) -> Iterator[Any]:
        """Its fields, what was given beside them, and what it keeps to itself."""
        held = value.__dict__
        yield from ((name, self._bare(held[name])) for name in type(value).model_fields if name in held)
        for more in (value.__pydantic_extra__, value.__pydantic_private__):
            if more:
                yield self._bare(more)

    def _kind(self, value: Any) -> Any:
        """The type; two that are made in a function have one name."""
        kind = type(value)
        self._alive[id(kind)] = kind
        return kind.__qualname__, id(kind)
