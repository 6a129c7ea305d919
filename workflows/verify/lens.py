"""What a machine's functions read and write, recorded while they run.

A state of a run is told from another one by what may still be read of it: fields of the context, and facts of
the run such as the newest reply. Nobody declares these reads, and nothing is guessed: the functions run on
stand-ins of the context and the run that note each read. Reads of the whole (`model_dump()`, `==`, `repr`)
count as reads of every field.

Time, money and messages from people stand still: `run.now`, `run.ledger`, `run.notes` and `run.inbox` show the
same throughout. A digest of the conversation equals no earlier one, as in a run without rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from activities.contracts import Conversation, Message
from workflows.kernel.context import Append, Context, Patch
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Run

__all__ = ["FACTS", "STILL", "RecordingLens", "fact_of"]

FACTS = ("reply", "tail", "conversation", "step", "visit", "counts")
"""What `run` shows that moves within a domain."""
STILL = ("now", "ledger", "notes", "inbox")
"""What `run` shows that stands still."""
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
        """`("read", state, fact)` and `("wrote", state, fields)`, since it was emptied; `entered` is added by
        whoever watches the run."""
        self._kinds: dict[tuple[type[Context], str], type[Context]] = {}
        self._readers: dict[str, Read] = {}
        self._digests = count(1)

    def context(self, context: Context, state: str) -> Context:
        """The same context; what is read of it is noted."""
        return _stand_in(context, self.kind(type(context), state))

    def run(self, run: Run, state: str) -> Run:
        """The same run; what is read of it is noted."""
        shown = SeenRun(
            run.options, run.prepared, run.input, run.state, run.step, run.visit, run.counts
        )
        shown.begin(self.reader(state), self._digests)
        return shown

    def wrote(self, patch: Patch, state: str) -> None:
        """Fields that are overwritten; what is appended to a field leaves it as it was."""
        fields = frozenset(name for name, value in patch.items() if not isinstance(value, Append))
        self.happened.append(("wrote", state, fields))

    def kind(self, kind: type[Context], state: str) -> type[Context]:
        """The class of stand-ins for contexts of this class in this state."""
        if (kind, state) not in self._kinds:
            self._kinds[kind, state] = _recording(kind, self.reader(state))
        return self._kinds[kind, state]

    def reader(self, state: str) -> Read:
        """What notes a read in this state."""
        if state not in self._readers:
            self._readers[state] = lambda fact: self.happened.append(("read", state, fact))
        return self._readers[state]


# -- the context --------------------


def _stand_in(context: Context, kind: type[Context]) -> Context:
    """It shares the values with the context, so that it costs nothing to make."""
    made = object.__new__(kind)
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(made, name, object.__getattribute__(context, name))
    return made


def _recording(kind: type[Context], read: Read) -> type[Context]:
    """A class like this one whose instances note what is read of them."""
    fields = frozenset(kind.model_fields)

    def read_all() -> None:
        for name in fields:
            read(name)

    def attribute(self: Any, name: str) -> Any:
        if name in fields:
            read(name)
        elif name in WHOLE:
            read_all()
        return object.__getattribute__(self, name)

    def bare(self: Any) -> Any:
        return _stand_in(self, kind)

    def after(self: Any, patch: Patch) -> Any:
        return _stand_in(kind.after(bare(self), patch), type(self))

    def whole(method: str) -> Callable[..., Any]:
        def called(self: Any, *given: Any) -> Any:
            read_all()
            return getattr(kind, method)(bare(self), *given)

        return called

    methods = {name: whole(name) for name in ("__eq__", "__iter__", "__repr__", "__str__", "__hash__")}
    space = {"__getattribute__": attribute, "after": after, "__module__": kind.__module__, **methods}
    return type(kind)(kind.__name__, (kind,), space)


# -- the run --------------------


class SeenRun(Run):
    """A `Run` that notes what is read of it."""

    __slots__ = ("_digests", "_read")

    def begin(self, read: Read, digests: Iterator[int]) -> None:
        """Note reads from here on."""
        object.__setattr__(self, "_read", read)
        object.__setattr__(self, "_digests", digests)

    def __getattribute__(self, name: str) -> Any:
        if name in _MOVING or name in STILL:
            read = object.__getattribute__(self, "_read")
            if name == "conversation":
                said = object.__getattribute__(self, "conversation")
                return _SeenConversation(said, read, object.__getattribute__(self, "_digests"))
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


class _SeenConversation(Conversation):
    """A conversation that notes when its messages are read, and hands out digests that nothing equals."""

    __slots__ = ("_made", "_read", "_said")

    def __init__(self, said: Conversation, read: Read, digests: Iterator[int]) -> None:
        self._said, self._read, self._made = said, read, digests

    @property
    def messages(self) -> tuple[Message, ...]:  # type: ignore[override]  # the stand-in notes the read
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
        return self.digests[-1]  # type: ignore[no-any-return]  # of a sequence of our own

    def add(self, *messages: Message) -> Conversation:
        """See `Conversation`."""
        return _SeenConversation(self._said.add(*messages), self._read, self._made)

    def until(self, length: int) -> Conversation:
        """See `Conversation`."""
        return _SeenConversation(self._said.until(length), self._read, self._made)


class _Digests:
    def __init__(self, made: Iterator[int]) -> None:
        self._made = made

    def __getitem__(self, at: int) -> str:
        return f"digest {next(self._made)}"

