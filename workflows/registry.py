"""Which machines, rules, policies and hooks there are: the shipped ones, and what the worker has loaded.

A task names them; it never brings them. `add_module` is called by the worker before
it polls, with modules of its own configuration.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import PurePath
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from workflows import machines
from workflows.kernel.design import Design, Parts
from workflows.kernel.errors import DefinitionError

__all__ = ["add_module", "design", "designs", "parts", "shipped"]

_KINDS = {"rules": ("RULE_TYPES", "RULES"), "policies": ("POLICY_TYPES", "POLICIES"), "hooks": ("", "HOOKS")}
"""Kind of part -> the constant of our modules that holds shipped ones, and that of users' modules."""
_designs: dict[tuple[str, str], Design] = {}
_shipped: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
_loaded: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}


def _add(found: Design, origin: str) -> None:
    key = (found.name, found.version)
    if _designs.get(key, found) is not found:
        raise ValueError(f"{origin}: a machine {found.name} of version {found.version} is there already")
    _designs[key] = found


for _info in sorted(pkgutil.iter_modules(machines.__path__), key=lambda info: info.name):
    _module = importlib.import_module(f"{machines.__name__}.{_info.name}")
    if hasattr(_module, "DESIGN"):
        _add(_module.DESIGN, _module.__name__)
    for _kind, (_ours, _) in _KINDS.items():
        _shipped[_kind].update(getattr(_module, _ours, {}) if _ours else {})


_from_us = frozenset(_designs)


def add_module(module: ModuleType) -> None:
    """Take a user's machines (`DESIGN` or `DESIGNS`), `RULES`, `POLICIES` and `HOOKS` (by name) in.

    A part is known by its name and by `module.name`; a file's name counts as its module's. A machine
    is built once with its default options, so that a wrong declaration is found before any run.
    Raises ValueError or TypeError for what is none, is there already, or cannot be built.
    """
    found = {kind: _parts_of(module, kind) for kind in _KINDS}
    given = getattr(module, "DESIGNS", ()) or ((module.DESIGN,) if hasattr(module, "DESIGN") else ())
    there = Parts(**{kind: {**_loaded[kind], **found[kind]} for kind in _KINDS})
    place = getattr(module, "__file__", None) or module.__name__
    for design in given:
        if not isinstance(design, Design):
            raise TypeError(f"{place}: {design!r} is not a Design")
        _verify(design, there, place)
    for design in given:
        _add(design, place)
    for kind, parts_found in found.items():
        _loaded[kind].update(parts_found)


def _verify(design: Design, parts: Parts, place: str) -> None:
    """Build it once; a machine whose options have no defaults is verified with those of a task."""
    try:
        options = design.options()
    except ValidationError:
        return
    try:
        built = design.build(options, parts)
    except DefinitionError as error:
        raise ValueError(f"{place}: {error}") from error
    except Exception as error:
        what = f"the machine {design.name} cannot be built: {type(error).__name__}: {error}"
        raise ValueError(f"{place}: {what}") from error
    if (built.name, built.version) != (design.name, design.version):
        says = f"{built.name} of version {built.version}"
        raise ValueError(f"{place}: design {design.name} of version {design.version} builds {says}")


def _parts_of(module: ModuleType, kind: str) -> dict[str, Any]:
    """The parts of one kind that a module brings, each under all its names."""
    file = getattr(module, "__file__", None)
    places = (module.__name__, *([PurePath(file).stem] if file else []))
    one = {"rules": "rule", "policies": "policy", "hooks": "hook"}[kind]
    found: dict[str, Any] = {}
    for name, part in getattr(module, _KINDS[kind][1], {}).items():
        if not callable(part):
            raise TypeError(f"{module.__name__}: the {one} {name!r} is not callable")
        for known_as in (name, *(f"{place}.{name}" for place in places)):
            if (_shipped[kind] | _loaded[kind]).get(known_as, part) is not part:
                raise ValueError(f"{module.__name__}: a {one} {known_as} is there already; rename it")
            found[known_as] = part
    return found


def shipped() -> tuple[Design, ...]:
    """The machines that come with the product, by name and version."""
    return tuple(_designs[key] for key in sorted(_from_us))


def designs() -> tuple[Design, ...]:
    """All machines, by name and version."""
    return tuple(_designs[key] for key in sorted(_designs))


def design(name: str, version: str | None = None, *, newest: bool = True) -> Design:
    """The machine of this name; without a version the newest, or else the oldest that there is.

    Raises ValueError with what there is. A run must ask for the oldest: a version that is loaded
    beside it later must not change its way.
    """
    found = [d for d in designs() if d.name == name and version in (None, d.version)]
    if found:
        return sorted(found, key=_age)[-1 if newest else 0]
    same = [d for d in designs() if d.name == name]
    there = ", ".join(f"{d.name} (version {d.version})" for d in same or designs())
    close = difflib.get_close_matches(name, [d.name for d in designs()], 1)
    hint = f"; did you mean {close[0]}?" if close and close[0] != name else ""
    wanted = f"{name} of version {version}" if version else name
    raise ValueError(f"unknown machine {wanted}{hint}; there is {there}")


def _age(design: Design) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in design.version.split(".")]


def parts() -> Parts:
    """Users' named parts that were loaded."""
    return Parts(**{kind: dict(found) for kind, found in _loaded.items()})
