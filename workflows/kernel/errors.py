"""What can go wrong in the kernel.

* KernelError
  x DefinitionError            a machine is declared wrongly; raised when it is made, so no worker starts
  x MachineError               a machine broke a rule that it declared; recorded, then fails the run
    + NoTransition             the table has no target for the event
    + UndeclaredAccess         a state read, wrote or asked for something that it did not declare
    + InvariantViolated        a state's invariant does not hold
    + BadPatch                 a value that does not fit its field
    + EmptyVisit               a visit returned nothing
    + LimitExceeded            more transitions, entries or effects than allowed
    + Drifted                  a visit that ran again asked for something else
  x InputRefused               a machine's `begin` refuses the input; the task is at fault
  x NotRestored                a log or a dump from which this machine cannot go on
  x Closed                     thrown into a visit when its run ends in the middle
  x AgentError                 raised inside a visit; the machine's `on_error` decides what follows
    + EffectError              an effect could not be performed
    + TransientError, RecoverableError, FatalError      what users' rules, policies and hooks may raise
    + RunError                 how a run ends when its machine raises instead of returning (`Exit.raises`)
      > ExecutionError > MaxIterationsExceeded
      > ModelError, ToolNotFound, UnknownAction, PolicyViolation, StageError, InvalidTransition

A bad reply, a failed tool or an empty budget is not here: each is an event.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import PurePath
from types import CodeType
from typing import Any

from pydantic import ValidationError

from activities.contracts.errors import AgentError, KernelError, TransientError
from activities.text import problems_text, readable

__all__ = [
    "AgentError",
    "BadPatch",
    "Closed",
    "DefinitionError",
    "Drifted",
    "EffectError",
    "EmptyVisit",
    "ExecutionError",
    "FatalError",
    "InputRefused",
    "InvalidTransition",
    "InvariantViolated",
    "KernelError",
    "LimitExceeded",
    "MachineError",
    "MaxIterationsExceeded",
    "ModelError",
    "NoTransition",
    "NotLoaded",
    "NotRestored",
    "PolicyViolation",
    "RecoverableError",
    "RunError",
    "StageError",
    "ToolNotFound",
    "TransientError",
    "UndeclaredAccess",
    "UnknownAction",
    "author_line_of",
    "bug_line",
    "bug_text",
    "error_named",
    "error_text",
    "error_words",
    "is_loading",
    "restoring",
]

ERROR_CHARS = 1000
"""Characters of what a user's error says."""
KERNEL = PurePath(__file__).parent
RATCHET = [KERNEL.parents[1] / name for name in ("activities", "client", "ratchet", "workflows")]
PYTHON = PurePath(traceback.__file__).parent
PASSED = ("/temporalio/worker/", str(KERNEL / "context.py"))
"""In files that are never the culprit: Temporal's sandbox calls a machine's file when it imports it, and a
machine reads its context."""


class DefinitionError(KernelError, ValueError):
    """The declaration of a machine is wrong; the message names machine and culprit."""


class MachineError(KernelError):
    """The machine broke a rule that it declared."""

    suspension: Any = None
    """The run as it was then (a `Suspension`), its last record naming the rule; None: nothing had begun."""
    author_line = ""
    """The author's line to look at, `FILE, line N, in FUNCTION`, once the rule ends the run; empty: there is
    none. `str` shows it. The log has `text` or `problem`: its hashes are the same on every worker, wherever
    the file lies there."""

    def __init__(self, machine: str, state: str, problem: str) -> None:
        super().__init__(f"{_prefix(machine, state)}{problem}")
        self.machine, self.state, self.problem = machine, state, problem

    @property
    def text(self) -> str:
        """Who, where and what, without the line."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.text} ({self.author_line})" if self.author_line else self.text


class NoTransition(MachineError):
    """The table has no target for the event."""


class UndeclaredAccess(MachineError):
    """A state read, wrote or asked for something that it did not declare."""


class InvariantViolated(MachineError):
    """A state's invariant does not hold."""


class BadPatch(MachineError):
    """A patch holds a value that does not fit its field."""


class EmptyVisit(MachineError):
    """A visit returned nothing; expected a patch and an event."""


class LimitExceeded(MachineError):
    """The machine moved, entered a state, or asked within one visit, more often than allowed."""


class Drifted(MachineError):
    """A visit that ran again asked for something else than the first time: it is not deterministic."""


class InputRefused(KernelError, ValueError):
    """A machine's `begin` has raised a ValueError: a run with this input cannot be."""


class NotRestored(KernelError, ValueError):
    """A log, or a dump, does not lead back to where the run was, or today's machine does not take it."""


class Closed(KernelError):
    """Thrown into a visit when its run ends in the middle. The visit may return a patch and any event;
    only the patch counts."""


class EffectError(AgentError):
    """An effect could not be performed. `error` is its class (`activities.contracts.ErrorClass`), `type`
    the cause by name, `effect` the effect itself."""

    def __init__(self, error: str, type: str, message: str, effect: Any = None) -> None:
        super().__init__(f"{type}: {message}")
        self.error, self.type, self.message, self.effect = error, type, message, effect


class RecoverableError(AgentError):
    """The run can go on without it."""


class FatalError(AgentError):
    """The run must stop."""


class RunError(AgentError):
    """How a run ends when its machine raises instead of returning; users' code may raise it, too."""


class ExecutionError(RunError):
    """The agent was halted (spec 4.7)."""


class MaxIterationsExceeded(ExecutionError):
    """More iterations were needed than allowed (R-003-9)."""


class ModelError(RunError):
    """The model could not be asked, or its reply cannot be used at all."""


class ToolNotFound(RunError):
    """The model called a tool that the agent does not have (R-001-7)."""


class UnknownAction(RunError):
    """A decision names an unknown action."""


class PolicyViolation(RunError):
    """A proposal is not allowed."""


class StageError(RunError):
    """A stage could not do its work (spec 3.7)."""


class InvalidTransition(RunError):
    """A stage named a target that it may not go to."""


@contextmanager
def restoring() -> Iterator[None]:
    """What a log or a dump does not fit is a NotRestored, whatever found it out."""
    try:
        yield
    except NotRestored:
        raise
    except ValidationError as error:
        raise NotRestored(problems_text(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise NotRestored(str(error)) from error


def error_named(name: str, machine: str, state: str, message: str) -> KernelError:
    """The error for an `Exit.raises`; a RunError that says the name when it is not a kernel error."""
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, MachineError):
        return found(machine, state, message.removeprefix(_prefix(machine, state)))
    if isinstance(found, type) and issubclass(found, KernelError) and found is not EffectError:
        return found(message)
    return RunError(f"{name}: {message}")


class NotLoaded(ValueError):
    """No module of this process has what is named; a worker's modules may have it."""


def error_text(error: BaseException) -> str:
    """A user's error with its type in front, cut; the type alone when the text cannot be shown."""
    name, text = type(error).__name__[:100], error_words(error)
    return f"{name}: {text}" if text else name


def error_words(error: BaseException) -> str:
    """The text of a user's error, cut; empty when it has none, or it cannot be shown."""
    text = ""
    with suppress(Exception):
        text = readable(str(error))
        if isinstance(error, ValidationError):
            text = f"{error.title}: {problems_text(error)}"
    if len(text) > ERROR_CHARS:
        text = f"{text[: ERROR_CHARS - 1]}…"
    return text


def _prefix(machine: str, state: str) -> str:
    return f"{machine}: in state {state}, "


def bug_text(error: BaseException) -> str:
    """A bug with the line to look at."""
    if isinstance(error, MachineError) and error.author_line:
        return error_text(error)
    return f"{error_text(error)} ({bug_line(error)})"


def bug_line(error: BaseException) -> str:
    """The line to look at: the deepest one of the author's own files; without any, the deepest one of the
    file that the kernel has called, else of all."""
    frames = _lines_passed(error)
    frames = [one for one in frames if not any(part in one[0].co_filename for part in PASSED)] or frames
    if own := _own_line(frames):
        return own
    kernel = [n for n, (code, _) in enumerate(frames) if PurePath(code.co_filename).parent == KERNEL]
    called = frames[kernel[-1] + 1 :] if kernel else frames[-1:]
    called = called or frames
    file = called[0][0].co_filename
    return _line_text(*[one for one in called if one[0].co_filename == file][-1])


def author_line_of(
    error: BaseException, visit: Generator[Any, Any, Any] | None, function: Callable[..., Any] | None
) -> str:
    """The author's line that broke a rule: the deepest one that the error has passed, else where the visit
    stands, else the first one of the function that gave what is wrong. Empty: none is in an author's file."""
    if passed := _own_line(_lines_passed(error)):
        return passed
    standing, inner = list[tuple[CodeType, int]](), visit
    while (frame := getattr(inner, "gi_frame", None)) is not None:
        standing.append((frame.f_code, frame.f_lineno))
        inner = getattr(inner, "gi_yieldfrom", None)
    code = _code_of(function) if function else None
    return _own_line(standing) or _own_line([(code, code.co_firstlineno)] if code else [])


def _lines_passed(error: BaseException) -> list[tuple[CodeType, int]]:
    return [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]


def _own_line(lines: Sequence[tuple[CodeType, int]]) -> str:
    own = [line for line in lines if _is_own(line[0])]
    return _line_text(*own[-1]) if own else ""


def _line_text(code: CodeType, line: int) -> str:
    return f"{code.co_filename}, line {line}, in {code.co_name}"


def _code_of(function: Any) -> CodeType | None:
    """The code of what an author gave as a function: also of a method, a partial, a decorated function."""
    names = "__wrapped__", "__func__", "func"
    while inner := next((found for name in names if (found := getattr(function, name, None))), None):
        function = inner
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def is_loading(error: BaseException) -> bool:
    """Whether the deepest line of the author's own files is at the top of a file."""
    own = [code for code, _ in _lines_passed(error) if _is_own(code)]
    return bool(own) and own[-1].co_name == "<module>"


def _is_own(code: CodeType) -> bool:
    return _is_own_file(code.co_filename)


@lru_cache(maxsize=1024)
def _is_own_file(name: str) -> bool:
    """Whether the file is neither Ratchet's nor Python's nor an installed package's."""
    file = PurePath(name)
    foreign = any(file.is_relative_to(folder) for folder in (*RATCHET, PYTHON))
    return file.is_absolute() and not foreign and not {"site-packages", "dist-packages"} & {*file.parts}
