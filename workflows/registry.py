"""Which machines, rules, policies and hooks there are: the shipped ones, and what the worker has loaded.

A task names them, it never brings them. Before it polls, the worker calls `add_module` with the modules of
its own configuration. A machine's module has a constant `MACHINE` (or `MACHINES`). Where the machine is made
of its options, as the staged one is of its stages, `MACHINE` is what the default options make, and the
module's function `build_machine(options)` makes the others.
"""

from __future__ import annotations

import difflib
import importlib
import linecache
import pkgutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import ModuleType
from typing import Any

from workflows import machines as shipped_machines
from workflows.kernel.errors import NotLoaded
from workflows.kernel.machine import Extensions, Machine
from workflows.machines.common.stopping import POLICY_TYPES

__all__ = [
    "add_module",
    "extensions",
    "has_users_code",
    "is_loaded",
    "is_shipped",
    "machine",
    "machine_for",
    "made_of",
    "machines",
    "modules_of",
    "other_extensions",
    "shipped",
    "users_modules",
]

KINDS = {"rules": ("rule", "RULES"), "policies": ("policy", "POLICIES"), "hooks": ("hook", "HOOKS")}
"""Kind of extension -> its word in messages, and the constant of users' modules that names them."""


@dataclass(frozen=True, slots=True)
class _Registered:
    machine: Machine
    module: str
    """Name of the module that declares it."""

    def here(self) -> tuple[Machine, Callable[[Any], Machine] | None]:
        """The machine and its `build_machine`, as the calling code imports them.

        In a workflow, Temporal's sandbox imports a user's module again, under its restrictions: a machine
        that reads a clock, a file or the environment is refused there.
        """
        module = importlib.import_module(self.module)
        key = (self.machine.name, self.machine.version)
        found = next(one for one in _declared(module) if (one.name, one.version) == key)
        return found, getattr(module, "build_machine", None)


_machines: dict[tuple[str, str], _Registered] = {}
_shipped_names: set[str] = set()
"""No user's machine has one of these: agents mean the shipped machine, and take the newest version."""
_loaded: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
_extending: dict[str, None] = {}
"""Names of the users' modules with extensions, in the order of loading."""
_reserved: dict[str, dict[str, Any]] = {"rules": {}, "policies": dict(POLICY_TYPES), "hooks": {}}
"""Names that the shipped machines know already."""


def _declared(module: ModuleType) -> tuple[Any, ...]:
    single = (module.MACHINE,) if hasattr(module, "MACHINE") else ()
    return tuple(getattr(module, "MACHINES", single))


def _machines_of(module: ModuleType, place: str) -> list[_Registered]:
    found = _declared(module)
    for one in found:
        if not isinstance(one, Machine):
            raise TypeError(f"{place}: {one!r} is not a Machine")
        known = _machines.get((one.name, one.version))
        if known and known.machine is one:
            continue
        if one.name in _shipped_names:
            raise ValueError(
                f"{place}:{_line_of(module)} a machine {one.name} (version {one.version}), and a machine of "
                "that name comes with Ratchet: agents that mean that one would run this one; rename this one"
            )
        if known:
            file = getattr(sys.modules[known.module], "__file__", None) or known.module
            raise ValueError(
                f"{place}: a machine {one.name} of version {one.version} is in {file}, too; rename one"
            )
    return [_Registered(one, module.__name__) for one in found if (one.name, one.version) not in _machines]


def _line_of(module: ModuleType) -> str:
    """The line where the module's machines are declared, for a message; empty: it is not in a file."""
    file = getattr(module, "__file__", None) or ""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    numbers = [number for number, line in enumerate(lines, 1) if line.startswith("MACHINE")]
    return f" line {numbers[-1]}:" if numbers else ""


def _add(found: list[_Registered]) -> None:
    _machines.update({(one.machine.name, one.machine.version): one for one in found})


def _load_shipped() -> frozenset[tuple[str, str]]:
    for info in sorted(pkgutil.iter_modules(shipped_machines.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{shipped_machines.__name__}.{info.name}")
        _add(_machines_of(module, module.__name__))
        _reserved["rules"].update(getattr(module, "RULE_TYPES", {}))
    _shipped_names.update(name for name, _ in _machines)
    return frozenset(_machines)


_SHIPPED = _load_shipped()


def add_module(module: ModuleType) -> None:
    """Register a user's machines (`MACHINE` or `MACHINES`), and `RULES`, `POLICIES`, `HOOKS` by name.

    An extension is known by its name and by `<module>.<name>`; a file's name counts as its module's. Raises
    TypeError or ValueError for what cannot be used or has the name of another, a machine also that of a
    shipped one; nothing is kept then. A machine that it imports stays that of its own module.
    """
    place = getattr(module, "__file__", None) or module.__name__
    found, named = _machines_of(module, place), {kind: _extensions_of(module, kind) for kind in KINDS}
    _add(found)
    for kind, functions in named.items():
        _loaded[kind].update(functions)
    if any(named.values()):
        _extending[module.__name__] = None


def _extensions_of(module: ModuleType, kind: str) -> dict[str, Any]:
    word, found = KINDS[kind][0], _named(module, kind)
    for name, function in found.items():
        if not callable(function):
            raise TypeError(f"{module.__name__}: the {word} {name!r} is not callable")
        if (_reserved[kind] | _loaded[kind]).get(name, function) is not function:
            raise ValueError(f"{module.__name__}: there is a {word} {name} already; rename this one")
    return found


def _named(module: ModuleType, kind: str) -> dict[str, Any]:
    """A module's extensions of one kind, each by all its names."""
    file = getattr(module, "__file__", None)
    prefixes = ("", f"{module.__name__}.", *([f"{PurePath(file).stem}."] if file else ()))
    named: dict[str, Any] = getattr(module, KINDS[kind][1], {})
    return {f"{prefix}{name}": function for name, function in named.items() for prefix in prefixes}


def shipped() -> tuple[Machine, ...]:
    """The machines that come with Ratchet, by name and version."""
    return tuple(_machines[key].machine for key in sorted(_SHIPPED))


def users_modules() -> tuple[ModuleType, ...]:
    """The modules of users that were registered."""
    declaring = (one.module for key, one in _machines.items() if key not in _SHIPPED)
    return tuple(sys.modules[name] for name in dict.fromkeys((*declaring, *_extending)))


def has_users_code() -> bool:
    """Whether a run may run more than shipped machines: machines, rules, policies or hooks of users."""
    return bool(_extending) or set(_machines) != _SHIPPED


def is_shipped(name: str, options: Any) -> bool:
    """Whether runs of this machine with these options run shipped code alone: they name no rule, policy or
    hook of a user."""
    known = {extension for named in _loaded.values() for extension in named}
    is_extended = not known.isdisjoint(_words(options))
    return not is_extended and all(key in _SHIPPED for key in _machines if key[0] == name)


def _words(value: Any) -> Iterator[str]:
    """The texts in a JSON value, keys included: where an extension can be named."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        for item in value.values():
            yield from _words(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _words(item)


def machines() -> tuple[Machine, ...]:
    """All machines, by name and version."""
    return tuple(_machines[key].machine for key in sorted(_machines))


def machine(name: str, version: str | None = None, *, newest: bool = True) -> Machine:
    """The machine of this name, as its default options make it; without a version the newest or the oldest.

    A version that is not loaded is served by the newest one that has a migration from it. A run must take the
    oldest: a version that is loaded beside it later must not change its course. Raises NotLoaded, which names
    what there is.
    """
    named = [one for one in machines() if one.name == name]
    found = [one for one in named if version in (None, one.version)]
    if not found and (later := [one for one in named if version in one.migrations]):
        return max(later, key=_age)
    if found:
        return sorted(found, key=_age)[-1 if newest else 0]
    known = named or machines()
    listed = ", ".join(f"{one.name} (version {one.version})" for one in known)
    close = difflib.get_close_matches(name, [one.name for one in machines()], 1)
    hint = f"; did you mean {close[0]}?" if close and close[0] != name else ""
    wanted = f"{name} of version {version}" if version else name
    raise NotLoaded(f"unknown machine {wanted}{hint}; there are: {listed}")


def _age(one: Machine) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in one.version.split(".")]


def machine_for(name: str, version: str | None, options: Any, *, newest: bool = False) -> tuple[Machine, Any]:
    """The machine as these options make it, and the validated options.

    Raises ValueError; for options that do not fit it is pydantic's ValidationError or a DefinitionError.
    """
    named = machine(name, version, newest=newest)
    found, build = _machines[(named.name, named.version)].here()
    values = found.read_options(options)
    return (build(values) if build else found), values


def made_of(given: Machine, options: Any) -> Machine:
    """The machine as its module makes it of these options; any other machine as it is.

    Raises ValueError, as `machine_for` does."""
    known = _machines.get((given.name, given.version))
    return machine_for(given.name, given.version, options)[0] if known and known.machine is given else given


def is_loaded(given: Machine) -> bool:
    """It is the machine of a module that was loaded, and no other one of its name."""
    known = _machines.get((given.name, given.version))
    return known is not None and known.machine is given


def modules_of(given: Machine, options: Any) -> tuple[ModuleType, ...]:
    """The modules whose code runs of this machine run: its own, and those of the rules, policies and hooks
    that the options name, or that a user's machine reads otherwise. Empty: it was not loaded from a module.

    Raises ValueError for options that do not fit."""
    if not is_loaded(given):
        return ()
    known = _machines[(given.name, given.version)]
    words = set(_words(given.read_options(options).model_dump(mode="json")))
    read = _names_read(given, options) if (given.name, given.version) not in _SHIPPED else frozenset[str]()
    named = [
        name
        for name in _extending
        if read is None
        or any(not (words | read).isdisjoint(_named(sys.modules[name], kind)) for kind in KINDS)
    ]
    return tuple(sys.modules[name] for name in dict.fromkeys((known.module, *named)))


class _Watched(Mapping[str, Any]):
    """Extensions of one kind, and which of them were asked for."""

    def __init__(self, known: Mapping[str, Any], names: set[str | None]) -> None:
        self._known, self._names = known, names

    def __getitem__(self, name: str) -> Any:
        self._names.add(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        self._names.add(None)  # all of them
        return iter(self._known)

    def __len__(self) -> int:
        self._names.add(None)
        return len(self._known)


def _names_read(given: Machine, options: Any) -> frozenset[str] | None:
    """The extensions that the machine asks for when a run of it is prepared; None: it may ask for any, then
    or in its visits. Raises ValueError for options that do not fit."""
    names, known = set[str | None](), extensions()
    made = made_of(given, options)
    if made.prepare is None:
        return frozenset()
    watched = [_Watched(getattr(known, kind), names) for kind in KINDS]
    kept = [weakref.ref(one) for one in watched]
    handed = Extensions(**dict(zip(KINDS, watched, strict=True)))
    try:
        prepared = made.prepare(made.read_options(options), handed)
    except Exception:  # noqa: BLE001  # no run of it begins
        return None
    del watched, handed
    if None in names or any(one() is not None for one in kept):  # what it prepared can ask for more
        return None
    del prepared
    return frozenset(name for name in names if name is not None)


def extensions() -> Extensions:
    """Users' rules, policies and hooks that were loaded, as the calling code imports them."""
    found: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for module in map(importlib.import_module, _extending):
        for kind, named in found.items():
            named.update(_named(module, kind))
    return Extensions(**found)


def other_extensions(used: Extensions) -> list[str]:
    """Where these are not the loaded ones: `rule again`."""
    loaded = extensions()
    pairs = [(word, getattr(used, kind), getattr(loaded, kind)) for kind, (word, _) in KINDS.items()]
    return [
        f"{word} {name}"
        for word, mine, theirs in pairs
        for name in dict.fromkeys((*mine, *theirs))
        if name not in mine or name not in theirs or mine[name] is not theirs[name]
    ]
