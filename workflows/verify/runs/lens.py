"""What a machine's functions read and write, recorded while they run.

A state of a run is told from another one by what may still be read of it: fields of the context, and facts of
the run such as the newest reply. Nobody declares these reads, and nothing is guessed: the functions run on
stand-ins of the context and the run that note each read. Reads of the whole (`model_dump()`, `==`, `repr`)
count as reads of every field. A field that is only tested, as in `if not c.log`, tells runs apart by whether
it is empty, not by what it holds.

Time, money and messages from people never change: `run.now`, `run.ledger`, `run.notes` and `run.inbox` show
the same throughout. A digest of the conversation equals no earlier one, as in a run without rollback.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import count
from types import CodeType, FrameType
from typing import Any, get_args, get_origin

from activities.contracts import Conversation, Message
from workflows.kernel.context import Append, Context, Patch, View
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Run

__all__ = ["FACTS", "FIXED", "TESTED", "RecordingLens", "fact_of"]

FACTS = ("reply", "tail", "conversation", "step", "visit", "counts")
"""What `run` shows that moves within a domain."""
FIXED = ("now", "ledger", "notes", "inbox")
"""What `run` shows that never changes."""
TESTED = "bool:"
"""Before the name of a field of which only `bool(value)` was read."""
WHOLE = {
    "__dict__", "__iter__", "model_dump", "model_dump_json", "model_copy", "model_fields_set", "copy", "dict",
    "json",
}  # fmt: skip
"""Attributes of a context that hand out all of it."""
Read = Callable[[str], None]


class RecordingLens:
    """Notes reads and writes by state, in the order in which they happen; see `Lens` of the kernel."""

    def __init__(self) -> None:
        self.happened: list[tuple[str, str, Any]] = []
        """`("read", state, fact)`, `("ended", state, fact)` for what `result` reads, `("wrote", state,
        fields)` and `("dropped", state, None)`, since it was emptied. Whoever watches adds `entered`."""
        self._kinds: dict[tuple[type[Context], str, str], Any] = {}
        self._readers: dict[tuple[str, str], Read] = {}
        self._digests = count(1)
        self._written: type[Context] | None = None
        """The class whose fields are written."""

    def context(self, context: Context, state: str, *, ends: bool = False) -> Context:
        """The same context; what is read of it is noted."""
        self._written = type(context)
        shown: Context = _stand_in(context, self.kind(type(context), state, "ended" if ends else "read"))
        return shown

    def run(self, run: Run, state: str) -> Run:
        """The same run; what is read of it is noted."""
        shown = SeenRun(run.options, run.prepared, run.input, run.state, run.step, run.visit, run.counts)
        shown.begin(self.reader(state), self._digests)
        return shown

    def wrote(self, patch: Patch, state: str) -> None:
        """Fields that are overwritten; what is appended to a field leaves it as it was. Whether the field
        takes it can depend on what it holds, as in a tuple with a largest length: then it counts as read."""
        appended = {name for name, value in patch.items() if isinstance(value, Append)}
        plain = _plain_tuples(self._written) if self._written else frozenset()
        for name in sorted(appended - plain):
            self.reader(state)(name)
        fields = frozenset(patch.keys() - appended)
        self.happened.append(("wrote", state, fields))

    def dropped(self, state: str) -> None:
        """What was written is not kept."""
        self.happened.append(("dropped", state, None))

    def kind(self, kind: type[Context], state: str, word: str) -> Any:
        """The class of stand-ins for contexts of this class in this state."""
        if (kind, state, word) not in self._kinds:
            self._kinds[kind, state, word] = _recording(kind, self.reader(state, word))
        return self._kinds[kind, state, word]

    def reader(self, state: str, word: str = "read") -> Read:
        """What notes a read in this state; `ended`: one of `result`."""
        if (state, word) not in self._readers:
            self._readers[state, word] = lambda fact: self.happened.append((word, state, fact))
        return self._readers[state, word]


@cache
def _plain_tuples(kind: type[Context]) -> frozenset[str]:
    """Fields that take any number of items, each by itself."""
    plain = set()
    for name, field in kind.model_fields.items():
        annotation = field.rebuild_annotation()
        if get_origin(annotation) is tuple and get_args(annotation)[1:] == (Ellipsis,):
            plain.add(name)
    return frozenset(plain)


# -- the context --------------------


def _stand_in(context: Any, kind: Any) -> Any:
    """It shares the values of the fields with the context. What else an instance keeps, such as a
    `cached_property`, is made again, so that its reads are noted."""
    made = object.__new__(kind)
    held = object.__getattribute__(context, "__dict__")
    object.__setattr__(made, "__dict__", {name: held[name] for name in kind.model_fields if name in held})
    for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(made, name, object.__getattribute__(context, name))
    return made


class _Recording:
    """Mixed into a context's class: its instances note what is read of them."""

    _bare: type[Any]
    """The context's own class."""
    _fields: frozenset[str]
    _read: Callable[[str], None]

    def __getattribute__(self, name: str) -> Any:
        mine = object.__getattribute__(self, "__class__")
        if name in mine._fields:
            mine._read(f"{TESTED}{name}" if _is_only_tested(self, name, sys._getframe(1)) else name)
        elif name in WHOLE:
            _read_all(mine)
        return object.__getattribute__(self, name)

    def after(self, patch: Patch) -> Any:
        mine = object.__getattribute__(self, "__class__")
        return _stand_in(mine._bare.after(_stand_in(self, mine._bare), patch), mine)


def _read_all(mine: Any) -> None:
    for name in mine._fields:
        mine._read(name)


def _whole(method: str) -> Callable[..., Any]:
    """The method of the context itself, which reads all of it."""

    def called(self: Any, *given: Any) -> Any:
        mine = object.__getattribute__(self, "__class__")
        _read_all(mine)
        bare = (_stand_in(one, mine._bare) if type(one) is mine else one for one in (self, *given))
        return getattr(mine._bare, method)(*bare)

    return called


METHODS = {name: _whole(name) for name in ("__eq__", "__iter__", "__repr__", "__str__", "__hash__")}


def _recording(kind: type[Context], read: Read) -> Any:
    """A class like this one whose instances note what is read of them."""
    make: Any = type(Context)
    made = make(kind.__name__, (_Recording, kind), {**METHODS, "__module__": kind.__module__})
    for name, value in (
        ("_bare", kind),
        ("_fields", frozenset(kind.model_fields)),
        ("_read", staticmethod(read)),
    ):
        type.__setattr__(made, name, value)
    return made


# -- what is only tested --------------------

TAKES_ITS_TRUTH = frozenset({
    "UNARY_NOT", "TO_BOOL", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE",
    "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
})  # fmt: skip
"""Instructions that take a value away and leave no more of it than whether it is true."""


def _is_only_tested(context: Any, name: str, frame: FrameType) -> bool:
    """The function that reads the field does nothing with it but ask whether it is true: what it runs is
    `VARIABLE.name`, and next what takes the value away. Any other way of reading it, and any instruction
    that is not known here, counts as a read of the content."""
    if frame.f_code is View.__getattr__.__code__ and frame.f_back is not None:
        frame = frame.f_back
    variable = _tested_variables(frame.f_code, name).get(frame.f_lasti)
    if variable is None:
        return False
    holder = frame.f_locals.get(variable)
    return holder is context or (type(holder) is View and holder._context is context)


@cache
def _tested_variables(code: CodeType, name: str) -> dict[int, str]:
    """Where the code reads the field `name` of a variable only to test it -> the variable. The places are all
    that `f_lasti` can be meanwhile."""
    found = dict[int, str]()
    instructions = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for loads, reads, tests in zip(instructions, instructions[1:], instructions[2:], strict=False):
        is_read = reads.opname == "LOAD_ATTR" and reads.argval == name and not reads.is_jump_target
        is_variable = loads.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
        if is_variable and is_read and tests.opname in TAKES_ITS_TRUTH:
            found.update(dict.fromkeys(range(reads.offset, tests.offset), loads.argval))
    return found


# -- the run --------------------


class SeenRun(Run):
    """A `Run` that notes what is read of it."""

    __slots__ = ("_digests", "_read")

    def begin(self, read: Read, digests: Iterator[int]) -> None:
        """Note reads from here on."""
        object.__setattr__(self, "_read", read)
        object.__setattr__(self, "_digests", digests)

    def __getattribute__(self, name: str) -> Any:
        if name in _MOVING or name in FIXED:
            read = object.__getattribute__(self, "_read")
            if name == "conversation":
                said = object.__getattribute__(self, "conversation")
                return _SeenConversation(said, read, object.__getattribute__(self, "_digests"))
            if name == "counts":
                return _SeenCounts(object.__getattribute__(self, "counts"), read)
            read(f"run.{name}")
            if name in _SAID:
                return fact_of(object.__getattribute__(self, "conversation").messages, name)
            if name == "ledger":
                return _NOTHING_SPENT
        return object.__getattribute__(self, name)


_SAID = frozenset({"reply", "tail"})
_MOVING = frozenset(FACTS)
_NOTHING_SPENT = Ledger()


def fact_of(messages: tuple[Message, ...], name: str) -> Any:
    """`run.reply` or `run.tail` behind these messages."""
    newest = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "assistant"), None)
    if name == "tail":
        return messages[newest or 0 :]
    return None if newest is None else messages[newest]


class _SeenCounts(Mapping[str, int]):
    """Stands in for `run.counts`: it notes which counter is read."""

    __slots__ = ("_counts", "_read")

    def __init__(self, counts: Mapping[str, int], read: Read) -> None:
        self._counts, self._read = counts, read

    def __getitem__(self, name: str) -> int:
        self._read(f"count:{name}")
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        self._read("run.counts")
        return iter(self._counts)

    def __len__(self) -> int:
        self._read("run.counts")
        return len(self._counts)


class _SeenConversation:
    """Stands in for a conversation: it notes when the messages are read, and hands out digests that nothing
    equals."""

    __slots__ = ("_made", "_read", "_said")

    def __init__(self, said: Conversation, read: Read, digests: Iterator[int]) -> None:
        self._said, self._read, self._made = said, read, digests

    def __getattr__(self, name: str) -> Any:
        self._read("run.conversation")
        return getattr(self._said, name)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        return self.messages == tuple(other) if isinstance(other, Conversation | _SeenConversation) else False

    def __hash__(self) -> int:
        return hash(self.messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages."""
        self._read("run.conversation")
        return self._said.messages

    @property
    def digests(self) -> Any:
        """As many digests as there are, each of them new."""
        return _Digests(self._made)

    @property
    def digest(self) -> str:
        """A digest that nothing equals."""
        return f"digest {next(self._made)}"

    def add(self, *messages: Message) -> _SeenConversation:
        """See `Conversation`."""
        return _SeenConversation(self._said.add(*messages), self._read, self._made)

    def until(self, length: int) -> _SeenConversation:
        """See `Conversation`."""
        return _SeenConversation(self._said.until(length), self._read, self._made)


class _Digests:
    def __init__(self, made: Iterator[int]) -> None:
        self._made = made

    def __getitem__(self, at: int) -> str:
        return f"digest {next(self._made)}"
