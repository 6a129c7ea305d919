"""What an author's code can do, read off its source: nothing is run.

A function is gone through way by way: a branch whose condition is known is taken or left, any other makes
two ways. What a function calls is gone through with what it is given, unless a library has it: then what it
gives is data. What the code asks for, reads, writes and raises meanwhile is kept in `Seen`.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import FunctionType
from typing import Any

from activities.contracts import AskModel, CallTools, Doing, Effect, RunMachine, Say, Together
from workflows.kernel.context import Context as ContextBase
from workflows.kernel.errors import AgentError, EffectError
from workflows.verify.code import evaluation, known
from workflows.verify.code.one_way import Args, Read, Seen, Store, Way, note
from workflows.verify.code.sources import Source, is_followed, parts_of, source_of
from workflows.verify.code.values import (
    ANY,
    EITHER,
    NEVER,
    NOTHING,
    Context,
    Data,
    Dict,
    DictEntry,
    Function,
    Generated,
    Is,
    Made,
    Many,
    Place,
    Seq,
    Value,
    dicts_of,
    elements,
    exactly,
    items_of,
    joined,
    lasting,
    one_dict,
    pieces,
    truths,
)

__all__ = ["Reader"]

MAX_WAYS = 24
"""Ways through one function that are kept apart."""
MAX_STATEMENTS = 10_000
"""Statements of one visit with all that it calls; the largest of the shipped machines has 2,000. Beyond them
one way is kept of each function, beyond twice as many no call is followed."""
MAX_CALL_DEPTH = 40
"""Functions that call each other."""
MAX_UNROLLED_ITEMS = 12
"""Items of a loop that are gone through one by one."""
FELL_OFF: Value = frozenset({Is(None, guess=True)})
"""What a function gives that ends without `return`."""
MAX_LOOP_PASSES = 6
"""Times that a loop's body is gone through until nothing new comes of it."""


@dataclass(slots=True)
class Frame:
    """A function that is being gone through."""

    source: Source
    line: int = 0
    returns: list[tuple[Value, Store]] = field(default_factory=list)
    yields: Value = NEVER
    unclear: Place | None = None
    given: set[str] = field(default_factory=set)
    """Names that mean what the caller has given."""
    aliases: list[set[str]] = field(default_factory=list)
    """Names that mean the same object."""
    breaks: list[list[Way]] = field(default_factory=list)
    """Ways that have left each loop around by `break`."""
    continues: list[list[Way]] = field(default_factory=list)
    """And those by `continue`."""
    handled: set[type] = field(default_factory=set)
    """What the `except` around has caught."""


class Reader(ast.NodeVisitor):
    """Goes through code. `visit` gives what an expression may be."""

    def __init__(
        self,
        context: type[ContextBase],
        homes: frozenset[str],
        run: Mapping[str, Value],
        store: Store,
        start: Place | None,
    ) -> None:
        """`run`: what is known of the visit's `run`, by attribute; `store`: the context; `start`: where the
        function begins that is gone through."""
        self.start = start or Place("?", 0)
        self.context, self.homes, self.run = context, homes, run
        self.seen = Seen()
        self.frames: list[Frame] = []
        self.raised: list[set[type]] = [set()]
        """What may be raised: in the function that was called, and in each `try` around."""
        self.way = Way({}, store)
        self.statements = 0
        self.guessing = 0
        """Calls around that may be of another function."""
        self.changed = False
        """The function that was called has changed in place what it was given."""

    # -- where, and what is seen there --------------------

    def place(self) -> Place:
        """The author's line that is gone through, not one of what all machines share."""
        for frame in reversed(self.frames):
            if "/machines/common/" not in frame.source.file.replace("\\", "/"):
                return Place(frame.source.file, frame.line)
        return self.start

    def unclear(self, what: str) -> None:
        """Something cannot be seen here."""
        note(self.seen.unclear, what, self.place())

    def wrong(self, text: str) -> None:
        """Something is wrong here, whatever comes."""
        note(self.seen.wrong, text, self.place())

    def strange(self) -> None:
        """A function is called here that data brings."""
        self.seen.strange = self.seen.strange or self.place()

    def may_raise(self, kind: type) -> None:
        """An error of this class may be raised here."""
        self.raised[-1].add(kind)

    def handed_on(self, value: Value, depth: int = 3) -> None:
        """The value goes where nobody looks: of a context there, nobody knows which fields are read."""
        for atom in value:
            if isinstance(atom, Context):
                self.unclear("reads")
            elif depth and isinstance(atom, Seq | Dict | Many):
                self.handed_on(pieces(frozenset({atom})), depth - 1)
                if isinstance(atom, Dict):
                    self.handed_on(joined(*(entry.value for _, entry in atom.entries), atom.rest), depth - 1)

    def field(self, name: str) -> Value:
        """A field of the context, which is read here."""
        if self.guessing:
            self.unclear("reads")
            return self.way.store.values.get(name, ANY)
        written = name in self.way.store.written
        old = self.seen.reads.get(name) or Read(self.place(), written)
        self.seen.reads[name] = Read(min(self.place(), old.place), written or old.written)
        return self.way.store.values.get(name, ANY)

    # -- functions --------------------

    def made_by(self, kind: type, init: FunctionType, args: Args) -> Value:
        """An object of a class with an `__init__` of its own."""
        source = source_of(init)
        places = (*source.node.args.posonlyargs, *source.node.args.args) if source else ()
        if source is None or not places:
            self.handed_on(args.all)
            return frozenset({Data(kind)})
        name = places[0].arg
        first: Value = frozenset({Made(kind, (), place=self.place())})
        return self.go_through(source, args.prepended(first), made=name)

    def called(self, function: Any, *given: Value) -> Value:
        """What a function of the machine's gives; `way` has the context then."""
        self.frames, self.way.dead = [], False
        return evaluation.call(self, Is(function), Args(list(given)))

    def guessed(self, atom: Any, args: Args) -> Value:
        """What a call gives of one of several functions, where data decides which it is."""
        self.guessing += 1
        value = evaluation.call(self, atom, args)
        self.guessing -= 1
        return frozenset(known.guessed(one) for one in value)

    def follow(self, function: Any, args: Args) -> Value:
        """What a function gives. One of a library gives data."""
        own = isinstance(function, FunctionType) and is_followed(function, self.homes)
        source = source_of(function) if own else None
        if source is None:
            self.handed_on(args.all)
            return known.hinted(ANY, function)
        return known.hinted(self.go_through(source, args), function)

    def go_through(
        self, source: Source, args: Args, names: Mapping[str, Value] | None = None, made: str = ""
    ) -> Value:
        """What a function gives, read off its source. `names`: those of the functions around it; `made`: the
        name of what an `__init__` makes."""
        nested = [frame.source.node for frame in self.frames]
        too_much = len(nested) > MAX_CALL_DEPTH or self.statements > 2 * MAX_STATEMENTS
        if too_much or nested.count(source.node) > 1:
            self.handed_on(args.all)
            return ANY
        outer, frame = self.way, Frame(source, source.node.lineno)
        self.frames.append(frame)
        bound = known.bound(source, args)
        frame.given = set(bound)
        self.way = Way({**(names or {}), **bound}, outer.store)
        if isinstance(source.node, ast.Lambda):
            frame.returns = [(self.visit(source.node.body), self.way.store)] * (not self.way.dead)
        else:
            ways = self.block(source.node.body, [self.way])
            # where all cases that can come have returned, nobody comes to the end
            frame.returns += [(way.names[made] if made else FELL_OFF, way.store) for way in ways]
        self.frames.pop()
        self.way = outer
        if not frame.returns:
            outer.dead = True
            return NEVER
        value = joined(*(one for one, _ in frame.returns))
        outer.store = frame.returns[0][1].joined(*(store for _, store in frame.returns[1:]))
        return frozenset({Generated(frame.yields, value, frame.unclear)}) if _yields(source.node) else value

    # -- statements: each gives the ways on --------------------

    def block(self, body: Sequence[ast.stmt], ways: list[Way], before: list[Way] | None = None) -> list[Way]:
        """The ways behind these statements; `before` gets those in front of each."""
        for statement in body:
            if before is not None:
                before += [way.copy() for way in ways]
            ways = [after for way in ways for after in self.statement(statement, way)]
            if len(ways) > (MAX_WAYS if self.statements < MAX_STATEMENTS else 1):
                ways = [ways[0].joined(*ways[1:])]
        return ways

    def statement(self, node: ast.stmt, way: Way) -> list[Way]:
        """The ways behind one."""
        self.statements += 1
        self.way, self.frames[-1].line = way, node.lineno
        does: Callable[[Any, Way], list[Way]] | None = getattr(self, f"do_{type(node).__name__}", None)
        if does is not None:
            return does(node, way)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.visit(child)
        return [] if way.dead else [way]

    def do_Return(self, node: ast.Return, way: Way) -> list[Way]:
        value = self.visit(node.value) if node.value else NOTHING
        if not way.dead:
            self.frames[-1].returns.append((value, way.store))
        return []

    def do_Assign(self, node: ast.Assign, way: Way) -> list[Way]:
        value = self.visit(node.value)
        if way.dead:
            return []
        self.note_alias(node)
        parts = [value]
        if any(isinstance(one, ast.Tuple) for one in node.targets) and 1 < len(value) <= MAX_UNROLLED_ITEMS:
            parts = [frozenset({atom}) for atom in value]  # what came together stays together
        ways = [way.copy() for _ in parts] if len(parts) > 1 else [way]
        for one, part in zip(ways, parts, strict=True):
            self.way = one
            for target in node.targets:
                self.bind(target, part)
        return ways

    def note_alias(self, node: ast.Assign) -> None:
        """`one = other`: what is changed in place by one name is changed by the other."""
        for target in node.targets:
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Name):
                self.frames[-1].aliases.append({target.id, node.value.id})

    def do_AnnAssign(self, node: ast.AnnAssign, way: Way) -> list[Way]:
        if node.value is not None:
            self.bind(node.target, self.visit(node.value))
        return [] if way.dead else [way]

    def do_AugAssign(self, node: ast.AugAssign, way: Way) -> list[Way]:
        left = ast.copy_location(_loaded(node.target), node)
        self.bind(node.target, known.operated(node.op, self.visit(left), self.visit(node.value)))
        return [] if way.dead else [way]

    def do_If(self, node: ast.If, way: Way) -> list[Way]:
        yes, no = self.branches(node.test, way)
        return [*self.block(node.body, yes), *self.block(node.orelse, no)]

    def do_Assert(self, node: ast.Assert, way: Way) -> list[Way]:
        return self.branches(node.test, way)[0]

    def do_Raise(self, node: ast.Raise, way: Way) -> list[Way]:
        if node.exc is None:
            self.raised[-1].update(self.frames[-1].handled)
            return []
        for atom in self.visit(node.exc):
            kind = atom.kind if isinstance(atom, Made) else atom.it if isinstance(atom, Is) else None
            self.may_raise(kind if isinstance(kind, type) else AgentError)
        return []

    def do_FunctionDef(self, node: ast.FunctionDef, way: Way) -> list[Way]:
        way.names[node.name] = self.defined(node)
        return [way]

    def do_ImportFrom(self, node: ast.ImportFrom, way: Way) -> list[Way]:
        module = sys.modules.get(node.module or "")
        for one in node.names:
            found = getattr(module, one.name, None)
            way.names[one.asname or one.name] = ANY if found is None else exactly(found)
        return [way]

    def do_For(self, node: ast.For, way: Way) -> list[Way]:
        found = self.visit(node.iter)
        if way.dead:
            return []
        items = items_of(found)
        if items is None or len(items) > MAX_UNROLLED_ITEMS:
            return self.loop(
                way, lambda one: ([self.bind_in(one.copy(), node.target, pieces(found))], [one]), node
            )
        self.frames[-1].breaks.append([])
        ways = [way]
        for item in items:
            ways = [after for one in ways for after in self.turn(self.bind_in(one, node.target, item), node)]
        return [*self.block(node.orelse, ways), *self.frames[-1].breaks.pop()]

    def do_While(self, node: ast.While, way: Way) -> list[Way]:
        return self.loop(way, lambda one: self.branches(node.test, one), node)

    def loop(
        self, way: Way, enter: Callable[[Way], tuple[list[Way], list[Way]]], node: ast.For | ast.While
    ) -> list[Way]:
        """Go through a loop's body until nothing new comes of it; `enter`: the ways into it, and past it."""
        frame = self.frames[-1]
        for number in range(MAX_LOOP_PASSES):
            frame.breaks.append([])
            into, past = enter(way.copy())
            ways = [after for one in into for after in self.turn(one, node)]
            left = frame.breaks.pop()
            new = known.widened(way, way.joined(*ways), last=number >= MAX_LOOP_PASSES - 2)
            if new.names == way.names and new.store == way.store:
                break
            way = new
        return [*self.block(node.orelse, past), *left]

    def turn(self, way: Way, node: ast.For | ast.While) -> list[Way]:
        """One turn of a loop."""
        frame = self.frames[-1]
        frame.continues.append([])
        ways = self.block(node.body, [way])
        return [*ways, *frame.continues.pop()]

    def do_Break(self, node: ast.Break, way: Way) -> list[Way]:
        self.frames[-1].breaks[-1].append(way)
        return []

    def do_Continue(self, node: ast.Continue, way: Way) -> list[Way]:
        self.frames[-1].continues[-1].append(way)
        return []

    def do_Try(self, node: ast.Try, way: Way) -> list[Way]:
        before: list[Way] = [way.copy()]
        self.raised.append(set())
        ways = self.block(node.orelse, self.block(node.body, [way], before))
        raised, before = self.raised.pop(), [*before, *(one.copy() for one in ways)]
        for handler in node.handlers:
            start = before[0].joined(*before[1:])
            self.way, self.frames[-1].line = start, handler.lineno
            kinds = known.classes(self.visit(handler.type)) if handler.type else (BaseException,)
            caught = {one for one in raised if not kinds or _related(one, kinds)}
            raised = {one for one in raised if not issubclass(one, kinds or ())}
            if handler.name:
                found = frozenset(Made(one) for one in caught)
                start.names[handler.name] = found or frozenset({Data(true=True)})
            outer, self.frames[-1].handled = self.frames[-1].handled, caught
            ways = [*ways, *self.block(handler.body, [start])]
            self.frames[-1].handled = outer
        self.raised[-1] |= raised
        after = self.block(node.finalbody, ways or [before[0].joined(*before[1:])])
        return after if ways else []

    def do_With(self, node: ast.With, way: Way) -> list[Way]:
        found = NEVER
        for item in node.items:
            found = joined(found, self.visit(item.context_expr))
            if item.optional_vars is not None:
                self.bind(item.optional_vars, ANY)
        if not any(isinstance(atom, Data) and atom.kind is suppress for atom in found):
            return self.block(node.body, [way])
        before: list[Way] = [way.copy()]
        self.raised.append(set())
        ways = self.block(node.body, [way], before)
        self.raised.pop()
        return [*ways, before[0].joined(*before[1:])]

    def do_Match(self, node: ast.Match, way: Way) -> list[Way]:
        subject, value = node.subject, self.visit(node.subject)
        if not isinstance(subject, ast.Name):
            subject = ast.copy_location(ast.Name("(what is matched)", ast.Load()), subject)
            way.names[subject.id] = value
        ways, left = list[Way](), [way]
        for case in node.cases:
            test = _as_test(subject, case.pattern)
            split = [self.branches(test, one) if test else ([one.copy()], [one]) for one in left]
            into = [self.with_parts(case.pattern, one) for yes, _ in split for one in yes]
            into = [
                after
                for one in into
                for after in (self.branches(case.guard, one)[0] if case.guard else [one])
            ]
            ways += self.block(case.body, into)
            all_of_it = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            if case.guard is None:
                left = [] if all_of_it else [one for _, no in split for one in no]
        return [*ways, *left]

    def with_parts(self, pattern: ast.pattern, way: Way) -> Way:
        """The way with the names that a pattern gives to parts of what fits it."""
        for part in parts_of(pattern):
            if isinstance(name := getattr(part, "name", None) or getattr(part, "rest", None), str):
                way.names[name] = ANY
        return way

    # -- conditions --------------------

    def branches(self, test: ast.expr, way: Way) -> tuple[list[Way], list[Way]]:
        """The ways on where the test holds, and where it does not."""
        self.way = way
        found = truths(self.visit(test))
        if way.dead:
            return [], []
        yes = [self.narrowed(test, way.copy(), True)] if True in found else []
        no = [self.narrowed(test, way.copy(), False)] if False in found else []
        return yes, no

    def narrowed(self, test: ast.expr, way: Way, holds: bool) -> Way:
        """The way with what the test's outcome says of the names and fields in it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.narrowed(test.operand, way, not holds)
        if isinstance(test, ast.BoolOp) and holds is isinstance(test.op, ast.And):
            for part in test.values:
                way = self.narrowed(part, way, holds)
            return way
        if isinstance(test, ast.NamedExpr):
            return self.narrowed(test.target, way, holds)
        return self.narrowed_plain(test, way, holds) if _is_plain(test) else way

    def narrowed_plain(self, test: ast.expr, way: Way, holds: bool) -> Way:
        """The same of a test that can be tried with each alternative alone."""
        for name in {node.id for node in parts_of(test) if isinstance(node, ast.Name)}:
            if len(value := way.names.get(name, NEVER)) > 1:
                kept = [
                    atom
                    for atom in value
                    if holds in self.possible_truths(test, way, {name: frozenset({atom})})
                ]
                way.names[name] = frozenset(kept) or value
        self.narrow_fields(test, way, holds)
        if isinstance(test, ast.Name) and test.id in way.names:
            way.names[test.id] = _value_if(way.names[test.id], holds) or way.names[test.id]
        return way

    def narrow_fields(self, test: ast.expr, way: Way, holds: bool) -> None:
        """The same for fields of the context."""
        for node in parts_of(test):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            value = way.store.values.get(node.attr, NEVER)
            if len(value) < 2 or way.names.get(node.value.id) != frozenset({Context()}):
                continue
            alone = ((atom, way.store.where(node.attr, frozenset({atom}))) for atom in value)
            kept = [
                atom
                for atom, store in alone
                if holds in self.possible_truths(test, Way(way.names, store), {})
            ]
            way.store = way.store.where(node.attr, frozenset(kept) or value)

    def possible_truths(self, test: ast.expr, way: Way, names: Mapping[str, Value]) -> set[bool]:
        """Whether the test may hold, and may not, with these names."""
        before = self.way
        self.way = Way({**way.names, **names}, way.store)
        found = truths(self.visit(test))
        self.way = before
        return found

    # -- names and parts --------------------

    def bind_in(self, way: Way, target: ast.expr, value: Value) -> Way:
        self.way = way
        self.bind(target, value)
        return way

    def bind(self, target: ast.expr, value: Value) -> None:
        """Give the value to a name, to the names of a tuple, to a part of what a name means."""
        if isinstance(target, ast.Name):
            self.way.names[target.id] = value
            self.frames[-1].given.discard(target.id)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, frozenset({Many(pieces(value))}))
        elif isinstance(target, ast.Tuple | ast.List):
            for part, item in zip(target.elts, known.unpacked(value, target.elts), strict=True):
                self.bind(part, item)
        elif isinstance(target, ast.Subscript | ast.Attribute) and isinstance(target.value, ast.Name):
            key = self.visit(target.slice) if isinstance(target, ast.Subscript) else exactly(target.attr)
            old = self.visit(target.value)
            changed = (known.with_part(atom, key, value, self.place()) for atom in old)
            self.change(target.value.id, frozenset(changed))

    def change(self, name: str, value: Value) -> None:
        """What a name means is changed in place."""
        old = self.way.names.get(name)
        others = {other for names in self.frames[-1].aliases if name in names for other in names}
        for one in {name} | {other for other in others if self.way.names.get(other) == old}:
            self.way.names[one] = value
        shared = name in self.frames[-1].given and any(isinstance(atom, Seq | Many | Dict) for atom in value)
        self.changed = self.changed or shared

    def visit(self, node: ast.AST) -> Value:
        """What the expression may be."""
        if isinstance(node, ast.expr) and self.frames:
            self.frames[-1].line = node.lineno
        found: Value = super().visit(node)
        return found

    def generic_visit(self, node: ast.AST) -> Value:
        for child in ast.iter_child_nodes(node):
            self.visit(child)
        return ANY

    def visit_Constant(self, node: ast.Constant) -> Value:
        return exactly(node.value)

    def visit_Name(self, node: ast.Name) -> Value:
        if node.id in self.way.names:
            return self.way.names[node.id]
        names = self.frames[-1].source.names
        if node.id in names:
            return exactly(names[node.id])
        return exactly(getattr(builtins, node.id)) if hasattr(builtins, node.id) else ANY

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        found = self.visit(node.value)
        self.frames[-1].line = node.lineno
        return joined(*(evaluation.attribute(self, atom, node.attr) for atom in found))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            self.visit(part)
        return frozenset({Data(str, any(isinstance(one, ast.Constant) and one.value for one in node.values))})

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Value:
        self.handed_on(self.visit(node.value))
        return ANY

    def visit_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items, more = list[Value](), NEVER
        for part in node.elts:
            value = self.visit(part.value if isinstance(part, ast.Starred) else part)
            inner = items_of(value) if isinstance(part, ast.Starred) else [value]
            items += inner or []
            more = joined(more, pieces(value)) if inner is None else more
        return frozenset({Many(joined(more, *items)) if more else Seq(tuple(items))})

    visit_List = visit_Tuple
    visit_Set = visit_Tuple

    def visit_Dict(self, node: ast.Dict) -> Value:
        found: list[Dict] = [Dict()]
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                parts = dicts_of(self.visit(value))
            else:
                keys, inner = self.visit(key), self.visit(value)
                self.frames[-1].line = key.lineno
                parts = [known.entry(keys, inner, self.place())]
            found = [known.merged(one, part) for one in found for part in parts]
            if len(found) > MAX_WAYS:
                found = [one_dict(found)]
        return joined(frozenset(found))

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        way = self.way
        yes, no = self.branches(node.test, way)
        found = []
        for branch, ways in ((node.body, yes), (node.orelse, no)):
            for one in ways:
                self.way = one
                value = self.visit(branch)
                if not one.dead:
                    found.append((value, one))
        self.way = way
        if not found:
            way.dead = True
            return NEVER
        way.store = found[0][1].store.joined(*(one.store for _, one in found[1:]))
        return joined(*(value for value, _ in found))

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        way, stops, found = self.way, isinstance(node.op, ast.Or), NEVER
        inner, after = way.copy(), way.store
        for number, part in enumerate(node.values):
            self.way, before, last = inner, inner.store, number == len(node.values) - 1
            value = self.visit(part)
            if inner.store is not before:  # something was written there
                after = after.joined(inner.store) if number else inner.store
            if last and stops:
                value = frozenset(replace(one, guess=True) if known.is_word(one) else one for one in value)
            found = joined(found, value if last else _value_if(value, stops))
            if last or inner.dead or (not stops) not in truths(value):
                break
            inner = self.narrowed(part, inner, not stops)  # holds for the parts behind alone
        self.way, way.store, way.dead = way, after, inner.dead
        for one in parts_of(node):
            if (
                isinstance(one, ast.NamedExpr)
                and isinstance(one.target, ast.Name)
                and one.target.id in inner.names
            ):
                way.names[one.target.id] = inner.names[one.target.id]
        return found

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return frozenset(Is(not one) for one in truths(value))
        negative = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        return exactly(ast.literal_eval(node)) if negative else ANY

    def visit_Compare(self, node: ast.Compare) -> Value:
        values = [self.visit(one) for one in (node.left, *node.comparators)]
        if len(node.ops) > 1:
            return EITHER
        return known.compared(node.ops[0], values[0], values[1])

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        return known.operated(node.op, self.visit(node.left), self.visit(node.right))

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        value, key = self.visit(node.value), self.visit(node.slice)
        return joined(*(known.item(atom, key) for atom in value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.visit(node.value)
        self.bind(node.target, value)
        return value

    def visit_Lambda(self, node: ast.Lambda) -> Value:
        return self.defined(node)

    def defined(self, node: ast.FunctionDef | ast.Lambda) -> Value:
        """A function that the code defines."""
        spec, around = node.args, self.frames[-1].source
        places = [one.arg for one in (*spec.posonlyargs, *spec.args)]
        defaults = dict(zip(places[len(places) - len(spec.defaults) :], spec.defaults, strict=True))
        named = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        defaults |= {one.arg: default for one, default in named if default is not None}
        values = {name: self.visit(default) for name, default in defaults.items()}
        return frozenset({Function(Source(node, around.file, around.names, values), self.way.names)})

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        items = self.comprehension_items(node.generators, lambda: self.visit(node.elt))
        return frozenset({Seq(tuple(items)) if isinstance(items, list) else Many(items)})

    visit_SetComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> Value:
        entries = self.comprehension_items(
            node.generators,
            lambda: frozenset({known.entry(self.visit(node.key), self.visit(node.value), self.place())}),
        )
        if not isinstance(entries, list):
            return frozenset({Dict((), joined(*(one.rest for one in entries), ANY))})
        found = Dict()
        for one in entries:
            for part in one:
                found = known.merged(found, part)
        return frozenset({found})

    def comprehension_items(
        self, parts: list[ast.comprehension], what: Callable[[], Value]
    ) -> Value | list[Value]:
        """What a comprehension makes: one by one where its items are known, else what each may be."""
        outer = self.way
        self.way = outer.copy()
        first = self.visit(parts[0].iter)
        items = items_of(first)
        if len(parts) == 1 and not parts[0].ifs and items is not None and len(items) <= MAX_UNROLLED_ITEMS:
            found: Value | list[Value] = [self.with_item(parts[0], item, what) for item in items]
        else:
            found = self.joined_items(parts, what)
        self.way = outer
        return found

    def with_item(self, part: ast.comprehension, item: Value, what: Callable[[], Value]) -> Value:
        self.bind(part.target, item)
        return what()

    def joined_items(self, parts: list[ast.comprehension], what: Callable[[], Value]) -> Value:
        if not parts:
            return what()
        self.bind(parts[0].target, pieces(self.visit(parts[0].iter)))
        for test in parts[0].ifs:
            yes, _ = self.branches(test, self.way)
            if not yes:
                return NEVER
            self.way = yes[0]
        return self.joined_items(parts[1:], what)

    def visit_Call(self, node: ast.Call) -> Value:
        if (found := self.changed_in_place(node)) is not None:
            return found
        function, way = self.visit(node.func), self.way
        args = self.arguments(node)
        if way.dead:
            return NEVER
        found, stores, before = NEVER, list[Store](), way.store
        for atom in function:
            self.frames[-1].line, way.store = node.lineno, before
            found = joined(found, evaluation.call(self, atom, args))
            stores += [] if way.dead else [way.store]
            way.dead = False
        way.dead = not stores
        way.store = stores[0].joined(*stores[1:]) if stores else before
        for one in node.args if self.changed else ():
            if isinstance(one, ast.Name) and one.id in way.names:
                self.change(one.id, frozenset(known.opened(atom) for atom in way.names[one.id]))
        self.changed = False
        return found

    def changed_in_place(self, node: ast.Call) -> Value | None:
        """`name.append(...)` and its like change what the name means; None: the call is none of them."""
        function = node.func
        if not isinstance(function, ast.Attribute) or function.attr not in evaluation.CHANGING:
            return None
        name = function.value.id if isinstance(function.value, ast.Name) else ""
        old = self.way.names.get(name)
        if not old or not all(isinstance(atom, Seq | Many | Dict) for atom in old):
            return None
        args = self.arguments(node)
        self.change(name, joined(*(evaluation.in_place(atom, function.attr, args) for atom in old)))
        got = function.attr == "pop" and args.given
        return joined(*(evaluation.of_mapping(atom, "pop", args) for atom in old)) if got else ANY

    def arguments(self, node: ast.Call) -> Args:
        """What a call gives."""
        args = Args([])
        for one in node.args:
            value = self.visit(one.value if isinstance(one, ast.Starred) else one)
            if not isinstance(one, ast.Starred):
                args.given.append(value)
                continue
            inner = items_of(value)
            args.given += inner or []
            args.more = joined(args.more, pieces(value)) if inner is None else args.more
        for keyword in node.keywords:
            value = self.visit(keyword.value)
            if keyword.arg is not None:
                args.named[keyword.arg] = DictEntry(value)
            else:
                given = one_dict(dicts_of(value)) if value else Dict()
                args.named |= {str(name): entry for name, entry in given.entries}
                args.rest = joined(args.rest, given.rest)
        return args

    # -- effects --------------------

    def visit_Yield(self, node: ast.Yield) -> Value:
        value = self.visit(node.value) if node.value else NOTHING
        self.frames[-1].line = node.lineno
        return self.performed(value)

    def performed(self, value: Value) -> Value:
        """Ask for what is an effect; the rest is what a generator yields."""
        answers: list[Value] = []
        for atom in value:
            if isinstance(atom, Data):
                self.frames[-1].unclear = self.place()
            if isinstance(atom, Made) and atom.kind is Doing:
                self.wrong("yields `do(...)`; write `yield from do(...)`")
            kind = atom.kind if isinstance(atom, Made) else type(atom.it) if isinstance(atom, Is) else object
            if issubclass(kind, Effect):
                self.ask(atom, kind)
                answers.append(known.answer_to(kind))
            else:
                self.frames[-1].yields = joined(self.frames[-1].yields, frozenset({atom}))
                answers.append(ANY)
        return joined(*answers)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> Value:
        found: list[Value] = []
        value = self.visit(node.value)
        self.frames[-1].line = node.lineno
        for atom in value:
            if isinstance(atom, Made) and atom.kind is Doing:
                found.append(self.performed(atom.get("effect") or ANY))
            elif isinstance(atom, Generated):
                frame = self.frames[-1]
                frame.yields, frame.unclear = joined(frame.yields, atom.yields), frame.unclear or atom.unclear
                found.append(atom.returns)
            elif (items := elements(atom)) is not None:
                found += [NOTHING, *(self.performed(one) for one in items)]
            else:
                self.frames[-1].unclear = self.place()
                found.append(ANY)
        return joined(*found)

    def ask(self, effect: Any, kind: type[Effect[Any]]) -> None:
        """An effect is asked for."""
        if issubclass(kind, Say):
            self.write(evaluation.attribute(self, effect, "keep"))
            return
        self.may_raise(EffectError)
        self.seen.stores.append(self.way.store)
        if issubclass(kind, Together):
            for one in pieces(evaluation.attribute(self, effect, "effects")):
                inner = one.kind if isinstance(one, Made) else None
                if isinstance(inner, type) and issubclass(inner, Effect):
                    self.ask(one, inner)
                else:
                    self.unclear("asks")
            return
        if self.guessing:
            self.unclear("asks")
            self.unclear("tools")
            return
        note(self.seen.asks, kind, self.place())
        for name in self.tools_of(effect, kind):
            if isinstance(name, Is) and isinstance(name.it, str):
                note(self.seen.tools, name.it, self.place())
            else:
                self.unclear("tools")

    def tools_of(self, effect: Any, kind: type[Effect[Any]]) -> Iterable[Any]:
        """The names of the tools that an effect would use."""
        if isinstance(effect, Is):
            return [Is(name) for name in effect.it.tools]
        if issubclass(kind, CallTools):
            wanted = pieces(evaluation.attribute(self, effect, "calls"))
            return joined(*(evaluation.attribute(self, one, "tool") for one in wanted))
        names = {AskModel: "offer", RunMachine: "give"}
        return pieces(evaluation.attribute(self, effect, names[kind])) if kind in names else ()

    def write(self, patch: Value) -> None:
        """The code writes this patch here."""
        patches = [Dict((), ANY)] if self.guessing else dicts_of(patch)
        for one in patches:
            if one.rest:  # perhaps a check of its keys, which data decides, lets none through
                self.unclear("writes")
                continue
            for name, entry in one.entries:
                note(self.seen.writes, str(name), entry.place or self.place())
        if patches:
            store = self.way.store.after(one_dict(patches))
            for name, value in store.values.items():
                if Data() in value:  # the kernel checks what is written against the field's type
                    typed = lasting(known.typed(self.context.model_fields[name].annotation))
                    store = store.where(name, joined(value - ANY, typed))
            self.way.store = store
            self.seen.stores.append(store)


def _as_test(subject: ast.expr, pattern: ast.pattern) -> ast.expr | None:
    """The condition that a pattern is; None: it is more than one."""
    test: ast.expr | None = None
    if isinstance(pattern, ast.MatchValue):
        test = ast.Compare(subject, [ast.Eq()], [pattern.value])
    elif isinstance(pattern, ast.MatchSingleton):
        test = ast.Compare(subject, [ast.Is()], [ast.copy_location(ast.Constant(pattern.value), pattern)])
    elif isinstance(pattern, ast.MatchClass) and not pattern.patterns and not pattern.kwd_patterns:
        name = ast.copy_location(ast.Name("isinstance", ast.Load()), pattern)
        test = ast.Call(name, [subject, pattern.cls], [])
    elif isinstance(pattern, ast.MatchOr):
        parts = [part for one in pattern.patterns if (part := _as_test(subject, one)) is not None]
        test = ast.BoolOp(ast.Or(), parts) if len(parts) == len(pattern.patterns) else None
    return ast.copy_location(test, pattern) if test is not None else None


def _related(kind: type, kinds: tuple[type, ...]) -> bool:
    return issubclass(kind, kinds) or any(issubclass(one, kind) for one in kinds)


@lru_cache(maxsize=4096)
def _yields(node: Any) -> bool:
    """Whether the function is a generator."""
    todo = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while todo:
        one = todo.pop()
        if isinstance(one, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(one)
    return False


@lru_cache(maxsize=4096)
def _is_plain(test: ast.expr) -> bool:
    """Whether it can be tried again and again: it calls nothing but `isinstance`."""
    calls = [
        node for node in parts_of(test) if isinstance(node, ast.Call | ast.NamedExpr | ast.comprehension)
    ]
    return all(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "isinstance"
        for one in calls
    ) and not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in parts_of(test))


def _value_if(value: Value, holds: bool) -> Value:
    """What of the value is true, or false."""
    kept = frozenset(atom for atom in value if holds in truths(frozenset({atom})))
    if holds:
        kept = frozenset(replace(atom, true=True) if isinstance(atom, Data) else atom for atom in kept)
    return kept


@lru_cache(maxsize=4096)
def _loaded(target: ast.expr) -> ast.expr:
    """The same expression, to be read."""
    copied: ast.expr = ast.parse(ast.unparse(target), mode="eval").body
    for node in ast.walk(copied):
        if isinstance(node, ast.expr):
            node.lineno = target.lineno
    return copied
