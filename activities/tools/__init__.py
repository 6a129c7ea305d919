"""What a tool is, and the registry of those that a worker has.

A tool is one file: a pydantic model of its arguments whose docstring the model reads, a function,
a declared effect, and the constant `TOOL`. It may also find out whether a call took effect, and
undo a call. Users' modules (constant `TOOL` or `TOOLS`) add to the shipped tools of this folder.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePath
from pkgutil import iter_modules
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from activities.contracts import JsonObject, Label, Sink, ToolEffect, ToolSpec, TransientError, model_schema
from activities.extensions import ExtensionError, declared, line_of, load_extensions
from activities.settings import Settings

__all__ = [
    "Happened",
    "NotHappened",
    "OutcomeUnknown",
    "Resource",
    "Tool",
    "ToolCallContext",
    "ToolReturn",
    "TransientError",
    "load_tools",
]

NOT_TOOLS = ("artifacts", "resources", "run")
"""Every other file of this folder holds one tool."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers accept as the name of a function."""


class OutcomeUnknown(Exception):
    """Raise it in a tool when the call may have taken effect, as when a connection was cut in its middle. The
    call is repeated if it may be; otherwise `reconcile` or a person says what happened."""


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """What a tool may know about its call: the optional last parameter of its functions."""

    key: str
    """Idempotency key: the same for every attempt of this call, different for every other call."""
    settings: Settings
    attempt: int
    """1 at the first attempt."""
    heartbeat: Callable[[str], None]
    """Tell people in a few words how far the work is; each second they see the newest."""
    cancelled: Callable[[], bool]
    """True once nobody waits for the answer: a long synchronous tool should then stop."""
    undoes: str = ""
    """For `compensate`: the key of the call to undo; `key` is that of the compensation."""

    @property
    def files_root(self) -> Path:
        """File tools stay below this folder."""
        return self.settings.files_root


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """What a tool may return when there is more to say than its output."""

    output: object
    cost_usd: float = 0
    marks: tuple[str, ...] = ()
    """Progress marks (spec 4.14)."""
    failed: bool = False
    """The output says what went wrong."""
    whole: bytes | None = None
    """Kept in the durable store in the place of the output, which says less."""
    images: tuple[bytes, ...] = ()
    """PNG, JPEG, GIF or WebP that the model is shown with the output."""

    def __post_init__(self) -> None:
        """Refuse a cost that cannot be added up; raises `ValueError`."""
        if not 0 <= self.cost_usd < math.inf:
            raise ValueError(f"cost_usd must be 0 or more, not {self.cost_usd}")


@dataclass(frozen=True, slots=True)
class Happened:
    """`reconcile` found that the call took effect."""

    output: object
    """What `run` would have returned: text, something with a JSON form, or a `ToolReturn`."""


@dataclass(frozen=True, slots=True)
class NotHappened:
    """`reconcile` found that the call took no effect and cannot take effect later: it may be made again."""

    why: str = ""
    """For people."""


Open = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Resource:
    """Marks a parameter of a tool's functions: `database: Annotated[Database, Resource(open_database)]`. It
    is given what this function opens, and no model sees it."""

    open: Open
    """Takes nothing and returns an async context manager, as a function with `@asynccontextmanager` does."""

    @property
    def place(self) -> str:
        """Name, file and line of the function."""
        function: Any = inspect.unwrap(self.open)
        name, code = getattr(function, "__qualname__", repr(function)), getattr(function, "__code__", None)
        return (
            f"{name} ({PurePath(code.co_filename).name}, line {code.co_firstlineno})" if code else str(name)
        )


P = TypeVar("P", bound=BaseModel)
V = TypeVar("V")
Function = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Tool(Generic[P]):
    """A tool: its arguments, its function, and what a second run would do.

    `run(params)` or `run(params, call)`; behind these come parameters that are a `Resource`. An `async`
    function must not block; any other one runs in a thread of its own. It returns text, a value that can be
    written as JSON, bytes, or a `ToolReturn`. It raises what went wrong: `TransientError` when another
    attempt may help. `reconcile` and `compensate` are functions of the same kind.
    """

    name: str
    params: type[P]
    """Its docstring is the tool's description, its fields are the arguments."""
    run: (
        Callable[[P], object] | Callable[[P, ToolCallContext], object] | Callable[Concatenate[P, ...], object]
    )
    effect: ToolEffect = "unsafe"
    timeout_seconds: float = 60
    """For one attempt."""
    cache: Literal["none", "run"] = "none"
    """`run`: an equal call in the same run is answered from memory; for pure and read tools."""
    reconcile: (
        Callable[[str, P], object]
        | Callable[[str, P, ToolCallContext], object]
        | Callable[Concatenate[str, P, ...], object]
        | None
    ) = None
    """`(key, params)`: did the call with this key take effect, when its worker died in the middle?
    Returns `Happened`, `NotHappened`, or None when it cannot tell. It only looks: it may be repeated."""
    compensate: (
        Callable[[P, str], object]
        | Callable[[P, str, ToolCallContext], object]
        | Callable[Concatenate[P, str, ...], object]
        | None
    ) = None
    """`(params, output)`: undo the call with this output; returns what it did, for people."""
    news: Literal["result", "always", "never"] = "result"
    """When a call shows that the run is not stuck: if it or its result is new; `always`: it is asked until
    something has happened; `never`: its results differ by themselves, as a clock's do."""
    brings: tuple[Label, ...] | None = None
    """Labels of what it returns: `untrusted`, where strangers may have written some of it, `private`, where
    not everybody may read it; `()`: neither. None: `untrusted`, unless it is pure."""
    sends: Sink | None = None
    """How far what it is given goes: `nowhere`, `internal` (your own people and other runs may find it) or
    `external`. None: `external`, unless it is pure."""

    def __post_init__(self) -> None:
        """Refuse a tool that could not be offered or called; raises `ValueError`."""
        problem = self._problem() or self._problem_of_functions() or self._problem_of_labels()
        if problem:
            raise ValueError(f"tool {self.name!r}: {problem}")

    def _problem(self) -> str | None:
        if not NAME.fullmatch(self.name):
            return "the name must be 1 to 64 letters, digits, `_` or `-`; providers refuse others"
        if not (isinstance(self.params, type) and issubclass(self.params, BaseModel)):
            return f"params must be a pydantic model class, not {self.params!r}"
        if not self.description:
            return f"{self.params.__name__} needs a docstring: it is what the model reads"
        if self.effect not in get_args(ToolEffect):
            return f"unknown effect {self.effect!r}; expected one of {', '.join(get_args(ToolEffect))}"
        if self.news not in ("result", "always", "never"):
            return f"unknown news {self.news!r}; expected result, always, never"
        if not self.timeout_seconds > 0:
            return f"timeout_seconds must be more than 0, not {self.timeout_seconds}"
        if self.cache == "run" and self.effect not in ("pure", "read"):
            return f"only a pure or read tool can be cached, and this one is {self.effect}"
        return None

    def _problem_of_labels(self) -> str | None:
        if isinstance(self.brings, str):
            return f"brings must be a tuple: write brings=({self.brings!r},)"
        if wrong := [label for label in self.brings or () if label not in get_args(Label)]:
            return f"unknown label {wrong[0]!r} in brings; expected {', '.join(get_args(Label))}"
        if self.sends not in (None, *get_args(Sink)):
            return f"unknown sends {self.sends!r}; expected one of {', '.join(get_args(Sink))}"
        return None

    def _problem_of_functions(self) -> str | None:
        if self.reconcile is not None and self.effect != "unsafe":
            return f"reconcile is for unsafe tools; a tool that is {self.effect} is run again instead"
        if self.compensate is not None and self.effect in ("pure", "read"):
            return f"a tool that is {self.effect} has nothing to undo; remove compensate"
        functions: tuple[tuple[str, Function | None, str], ...] = (
            ("run", self.run, "params"),
            ("reconcile", self.reconcile, "key, params"),
            ("compensate", self.compensate, "params, output"),
        )
        for name, function, parameters in functions:
            least = parameters.count(",") + 1
            if function is None:
                continue
            marks = list(_marks_of(function).values())
            if problems := [mark for mark in marks[least:] if isinstance(mark, str)]:
                return f"{name}: {problems[0]}"
            if parameter_count(function) not in (least, least + 1):
                return (
                    f"{name} must be a function of ({parameters}) or ({parameters}, call), with nothing "
                    "behind these but resources"
                )
        return None

    @property
    def description(self) -> str:
        """What the model reads."""
        return inspect.cleandoc(self.params.__doc__ or "")

    @property
    def repeatable(self) -> bool:
        """The tool may run again when the outcome of the first run is unknown."""
        return self.effect != "unsafe"

    def spec(self) -> ToolSpec:
        """The declaration that travels with a run."""
        schema = model_schema(self.params)
        parameters: JsonObject = {
            key: part for key, part in schema.items() if key not in ("title", "description")
        }
        # A tool that does not say it counts as the worst, unless it only computes.
        brings: tuple[Label, ...] = () if self.effect == "pure" else ("untrusted",)
        sends: Sink = "nowhere" if self.effect == "pure" else "external"
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=parameters,
            effect=self.effect,
            timeout_seconds=self.timeout_seconds,
            cache=self.cache,
            reconciles=self.reconcile is not None,
            compensates=self.compensate is not None,
            news=self.news,
            brings=brings if self.brings is None else self.brings,
            sends=self.sends or sends,
        )


def _remembered(read: Callable[[Any], V]) -> Callable[[Any], V]:
    """What is read of a function's signature: once for each function, and not at each call."""
    known: WeakKeyDictionary[Any, V] = WeakKeyDictionary()

    @functools.wraps(read)
    def remember(function: Any) -> V:
        try:
            return known[function]
        except KeyError:
            found = known[function] = read(function)
            return found
        except TypeError:  # an object with `__call__` that has no hash
            return read(function)

    return remember


@_remembered
def parameter_count(function: Function) -> int:
    """How many positional parameters a function takes before its resources; -1 when that cannot be known, or
    more come behind those."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return -1
    resources = resources_of(function)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    own = [name for name in names if name not in resources]
    return len(own) if names[: len(own)] == own else -1


@_remembered
def resources_of(function: Function) -> Mapping[str, Resource]:
    """The resources that a function is given, by parameter."""
    return {name: one for name, one in _marks_of(function).items() if isinstance(one, Resource)}


def _marks_of(function: Function) -> dict[str, Resource | str | None]:
    """What each parameter of a function is: a resource, none, or why that cannot be said."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    bound = function.keywords if isinstance(function, functools.partial) else {}
    names = _names_around(function)
    return {
        name: _mark(name, parameter.annotation, names)
        for name, parameter in parameters.items()
        if name not in bound
    }


def _names_around(function: Any) -> dict[str, Any]:
    """What the names in a function's annotations stand for: those of its module."""
    while inspect.unwrap(function) is not function or isinstance(function, functools.partial):
        function = function.func if isinstance(function, functools.partial) else inspect.unwrap(function)
    if not hasattr(function, "__globals__"):  # an object with `__call__`
        function = inspect.unwrap(function.__call__)
    return getattr(function, "__globals__", {})


def _mark(name: str, hint: Any, names: dict[str, Any]) -> Resource | str | None:
    """As in `_marks_of`, for one parameter: what cannot be read in one hint says nothing of the others."""

    def alone() -> None: ...

    alone.__annotations__ = {name: hint}
    try:
        if not _outermost(hint):  # beside a mark, a name may be known to type checkers alone
            hint = get_type_hints(alone, names, include_extras=True)[name]
        parts = _parts(hint)
    except Exception as error:  # noqa: BLE001  # evaluating may raise anything
        if re.search(rf"\b{ToolCallContext.__name__}\b", str(hint)):
            return None
        return (
            f"its annotations cannot be read ({error}): import what they name for more than type checking, "
            "and define it at the top of the module"
        )
    mark = _outermost(hint)
    if mark is None and any(isinstance(part, Resource) for part in parts):
        return (
            f"`{name}` has a Resource inside of its annotation: write Annotated[..., Resource(...)] around it"
        )
    return mark


def _outermost(hint: Any) -> Resource | None:
    """The resource that a hint is marked with."""
    while type(hint).__name__ == "TypeAliasType":
        hint = hint.__value__
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((one for one in marks if isinstance(one, Resource)), None)


def _parts(hint: Any) -> list[Any]:
    """A hint and all that is written in it."""
    found = [hint]
    for part in found:  # it grows meanwhile
        inner = [*part] if isinstance(part, list) else [get_origin(part), *get_args(part)]
        if type(part).__name__ == "TypeAliasType":  # it may name itself
            inner.append(part.__value__)
        found += [one for one in inner if all(one is not known for known in found)]
    return found


def load_tools(settings: Settings) -> dict[str, Tool[Any]]:
    """The shipped tools, and those of the worker's modules and of installed packages, sorted by name.

    Raises `ExtensionError` for a module that cannot be loaded, for a user's tool with the name of a shipped
    one, which agents of others mean, and for two users' tools of one name.
    """
    shipped = {module.name for module in iter_modules(__path__)}.difference(NOT_TOOLS)
    tools = {name: importlib.import_module(f"{__name__}.{name}").TOOL for name in shipped}
    files: dict[str, str] = {}
    for tool, file in declared(load_extensions(settings.modules), "TOOL"):
        if not isinstance(tool, Tool):
            raise ExtensionError(
                f"{file}: TOOL must be a Tool, and TOOLS a tuple of them, not {tool!r}; "
                "write TOOL = Tool(name=..., params=..., run=...)"
            )
        if tool.name in shipped and tool is not tools[tool.name]:
            raise ExtensionError(
                f"{file}:{line_of(file, 'TOOL')} a tool {tool.name}, and a tool of that name comes with "
                "Ratchet: agents that mean that one would call this one; rename this one"
            )
        if tool.name in files:
            raise ExtensionError(f"{file}: a tool {tool.name} is in {files[tool.name]}, too; rename one")
        tools[tool.name], files[tool.name] = tool, file
    return dict(sorted(tools.items()))
