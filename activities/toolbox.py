"""What a tool is, and the registry of those that a worker has.

A tool is one file: a pydantic model of its arguments whose docstring the model reads, a function,
a declared effect, and the constant `TOOL`; it may also find out whether a call took effect, and
undo one. The folder `activities/tools` is the registry; users' modules (constant `TOOL` or `TOOLS`)
add to it and may replace a shipped tool.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from activities.contracts import JsonObject, ToolEffect, ToolSpec
from activities.extensions import ExtensionError, load_extensions
from activities.settings import Settings

__all__ = [
    "Happened", "NotHappened", "Tool", "ToolCallContext", "ToolReturn", "Toolbox", "TransientError",
]  # fmt: skip

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers accept as the name of a function."""


class TransientError(Exception):
    """Raise it in a tool for a failure that goes away by itself; it is tried again if it may be."""


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """What a tool may know of its call, as the last parameter of its functions."""

    key: str
    """Idempotency key: the same for every attempt of this call, different for every other call."""
    files_root: Path
    """File tools stay below this folder."""
    settings: Settings
    attempt: int
    """1 at the first attempt."""
    heartbeat: Callable[[str], None]
    """Tell people in a few words how far the work is; at most the newest is shown each second."""
    cancelled: Callable[[], bool]
    """True once nobody waits for the answer: a long-running synchronous tool should then stop."""
    undoes: str = ""
    """For `compensate`: the key of the call that is undone; `key` is the undoing's own."""


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """What a tool may return when there is more to say than its output."""

    output: object
    cost_usd: float = 0
    marks: tuple[str, ...] = ()
    """Progress marks (spec 4.14)."""

    def __post_init__(self) -> None:
        """Refuse a cost that nothing can be added to; raises `ValueError`."""
        if not 0 <= self.cost_usd < math.inf:
            raise ValueError(f"cost_usd must be 0 or more, not {self.cost_usd}")


@dataclass(frozen=True, slots=True)
class Happened:
    """`reconcile` says: the call took effect."""

    output: object
    """What `run` would have returned: text, something with a JSON form, or a `ToolReturn`."""


@dataclass(frozen=True, slots=True)
class NotHappened:
    """`reconcile` says: the call took no effect, and will take none any more. It may be made again."""

    why: str = ""
    """For people."""


P = TypeVar("P", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Tool(Generic[P]):
    """A tool: its arguments, what it does, and what a second run of it would do.

    `run(params)` or `run(params, call)`, synchronous (it gets a thread of its own) or asynchronous
    (it must not block). It returns text, anything that can be written as JSON, bytes, or a
    `ToolReturn`; it raises what went wrong, `TransientError` when it is worth another try.
    `reconcile` and `compensate` are functions of the same kind.
    """

    name: str
    params: type[P]
    """Its docstring is the tool's description, its fields are the arguments."""
    run: Callable[[P], object] | Callable[[P, ToolCallContext], object]
    effect: ToolEffect = "unsafe"
    timeout_seconds: float = 60
    """For one attempt."""
    cache: Literal["none", "run"] = "none"
    reconcile: Callable[[str, P], object] | Callable[[str, P, ToolCallContext], object] | None = None
    """`(key, params)`: whether the call with this key took effect, when its worker died in the middle.
    Returns `Happened`, `NotHappened`, or None when it cannot tell. It only looks: it may be run again."""
    compensate: Callable[[P, str], object] | Callable[[P, str, ToolCallContext], object] | None = None
    """`(params, output)`: undo the call with this output; returns what it did, in words for people."""

    def __post_init__(self) -> None:
        """Refuse a tool that could not be offered or called; raises `ValueError`."""
        problem = self._problem() or self._problem_of_functions()
        if problem:
            raise ValueError(f"tool {self.name!r}: {problem}")

    def _problem(self) -> str | None:
        if not NAME.fullmatch(self.name):
            return "a name is 1 to 64 letters, digits, `_` or `-`; providers refuse others"
        if not (isinstance(self.params, type) and issubclass(self.params, BaseModel)):
            return f"params must be a pydantic model class, not {self.params!r}"
        if not self.description:
            return f"{self.params.__name__} needs a docstring: it is what the model reads"
        if self.effect not in get_args(ToolEffect):
            return f"effect {self.effect!r} is none of {', '.join(get_args(ToolEffect))}"
        if not self.timeout_seconds > 0:
            return f"timeout_seconds must be more than 0, not {self.timeout_seconds}"
        if self.cache == "run" and self.effect not in ("pure", "read"):
            return f"only a pure or read tool may be cached, not one that is {self.effect}"
        return None

    def _problem_of_functions(self) -> str | None:
        if _arity(self.run) not in (1, 2):
            return _misshapen("run", "params", self.run)
        if self.reconcile is not None:
            if _arity(self.reconcile) not in (2, 3):
                return _misshapen("reconcile", "key, params", self.reconcile)
            if self.repeatable:
                return f"reconcile is for unsafe tools; one that is {self.effect} is run again instead"
        if self.compensate is not None:
            if _arity(self.compensate) not in (2, 3):
                return _misshapen("compensate", "params, output", self.compensate)
            if self.effect in ("pure", "read"):
                return f"there is nothing to undo of a tool that is {self.effect}; it has no compensate"
        return None

    @property
    def description(self) -> str:
        """What the model reads."""
        return inspect.cleandoc(self.params.__doc__ or "")

    @property
    def repeatable(self) -> bool:
        """May be run again when nobody knows whether the first run took effect."""
        return self.effect != "unsafe"

    def call(self, params: P, call: ToolCallContext) -> object:
        """Run the tool, with as many parameters as it takes; may answer an awaitable."""
        return _called(self.run, (params,), call)

    def find_out(self, params: P, call: ToolCallContext) -> object:
        """Ask `reconcile`, which there must be; may answer an awaitable."""
        assert self.reconcile is not None
        return _called(self.reconcile, (call.key, params), call)

    def undo(self, params: P, output: str, call: ToolCallContext) -> object:
        """Run `compensate`, which there must be; may answer an awaitable."""
        assert self.compensate is not None
        return _called(self.compensate, (params, output), call)

    def spec(self) -> ToolSpec:
        """The declaration as it travels with a run."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=_schema(self.params),
            effect=self.effect,
            timeout_seconds=self.timeout_seconds,
            cache=self.cache,
            reconciles=self.reconcile is not None,
            compensates=self.compensate is not None,
        )


def _arity(function: Callable[..., object]) -> int:
    """How many parameters a function takes; 0 for something that does not say."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(parameter.kind in kinds for parameter in parameters)


def _misshapen(name: str, parameters: str, function: object) -> str:
    return f"{name} must be a function of ({parameters}) or ({parameters}, call), not {function!r}"


def _called(function: Callable[..., object], given: tuple[object, ...], call: ToolCallContext) -> object:
    """The function's value, called with the context too if it takes it."""
    return function(*given, call) if _arity(function) > len(given) else function(*given)


class _Untitled(GenerateJsonSchema):
    """Leaves out titles that only repeat field names: the model pays for every token."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema(params: type[BaseModel]) -> JsonObject:
    schema = params.model_json_schema(schema_generator=_Untitled)
    return {key: part for key, part in schema.items() if key not in ("title", "description")}


class Toolbox:
    """The tools that a worker has, sorted by name."""

    __slots__ = ("_tools",)

    def __init__(self, tools: Iterable[Tool[Any]]) -> None:
        """Raises `ExtensionError` when two tools have one name."""
        self._tools: dict[str, Tool[Any]] = {}
        for tool in sorted(tools, key=lambda tool: tool.name):
            if tool.name in self._tools:
                raise ExtensionError(f"two tools have the name {tool.name}; rename one")
            self._tools[tool.name] = tool

    @classmethod
    def load(cls, settings: Settings) -> Toolbox:
        """The shipped tools, and those of the worker's modules and of installed packages.

        A user's tool replaces the shipped one of its name. Raises `ExtensionError` for a module
        that cannot be loaded and for two users' tools of one name.
        """
        users = _users_tools(load_extensions(settings.modules))
        return cls(({tool.name: tool for tool in _shipped_tools()} | users).values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tools, sorted."""
        return tuple(self._tools)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The declarations of all tools, sorted by name."""
        return tuple(tool.spec() for tool in self._tools.values())

    def get(self, name: str) -> Tool[Any] | None:
        """The tool of this name, or None."""
        return self._tools.get(name)


def _shipped_tools() -> tuple[Tool[Any], ...]:
    from activities import tools

    names = sorted(module.name for module in pkgutil.iter_modules(tools.__path__))
    return tuple(importlib.import_module(f"{tools.__name__}.{name}").TOOL for name in names)


def _users_tools(modules: Iterable[ModuleType]) -> dict[str, Tool[Any]]:
    tools: dict[str, Tool[Any]] = {}
    origin: dict[str, str] = {}
    for module in modules:
        place = module.__file__ or module.__name__
        for tool in _declared(module, place):
            if tool.name in tools:
                raise ExtensionError(
                    f"two tools have the name {tool.name}: one in {origin[tool.name]}, "
                    f"one in {place}; rename one of them"
                )
            tools[tool.name], origin[tool.name] = tool, place
    return tools


def _declared(module: ModuleType, place: str) -> tuple[Tool[Any], ...]:
    """What `TOOL` and `TOOLS` hold; a module may have neither, since it may be there for rules."""
    several = getattr(module, "TOOLS", ())
    if not isinstance(several, (tuple, list)):
        raise ExtensionError(f"{place}: TOOLS must be a tuple of tools, not {several!r}")
    one = (module.TOOL,) if hasattr(module, "TOOL") else ()
    for tool in (*one, *several):
        if not isinstance(tool, Tool):
            raise ExtensionError(f"{place}: TOOL and TOOLS hold `Tool` objects, not {tool!r}")
    return (*one, *several)
