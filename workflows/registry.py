"""Which machines and rules there are: the shipped ones, and what the worker has loaded.

A task names machines and rules; it never brings them. `add_module` is called by the worker before
it polls, with modules of its own configuration.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import PurePath
from types import ModuleType

from workflows import machines
from workflows.kernel.design import Design, Parts
from workflows.kernel.rules import RuleType

__all__ = ["add_module", "design", "designs", "parts"]

_designs: dict[tuple[str, str], Design] = {}
_rules: dict[str, RuleType] = {}
_shipped_rules: dict[str, RuleType] = {}


def _add(found: Design, origin: str) -> None:
    key = (found.name, found.version)
    if _designs.get(key, found) is not found:
        raise ValueError(f"{origin}: a machine {found.name} of version {found.version} is there already")
    _designs[key] = found


for _info in sorted(pkgutil.iter_modules(machines.__path__), key=lambda info: info.name):
    _module = importlib.import_module(f"{machines.__name__}.{_info.name}")
    if hasattr(_module, "DESIGN"):
        _add(_module.DESIGN, _module.__name__)
    _shipped_rules.update(getattr(_module, "RULE_TYPES", {}))


def add_module(module: ModuleType) -> None:
    """Take a user's machines (`DESIGN` or `DESIGNS`) and rules (`RULES`: name -> maker) in.

    A rule is known by its name and by `module.name`; a file's name counts as its module's. Raises
    ValueError or TypeError for what is none, or is there already.
    """
    rules = _rules_of(module)
    given = getattr(module, "DESIGNS", ()) or ((module.DESIGN,) if hasattr(module, "DESIGN") else ())
    for found in given:
        if not isinstance(found, Design):
            raise TypeError(f"{module.__name__}: {found!r} is not a Design")
        _add(found, module.__name__)
    _rules.update(rules)


def _rules_of(module: ModuleType) -> dict[str, RuleType]:
    """The rules that a module brings, each under all its names."""
    file = getattr(module, "__file__", None)
    places = (module.__name__, *([PurePath(file).stem] if file else []))
    rules: dict[str, RuleType] = {}
    for name, maker in getattr(module, "RULES", {}).items():
        if not callable(maker):
            raise TypeError(f"{module.__name__}: the rule {name!r} is not callable")
        for known_as in (name, *(f"{place}.{name}" for place in places)):
            if (_shipped_rules | _rules).get(known_as, maker) is not maker:
                raise ValueError(f"{module.__name__}: a rule {known_as} is there already; rename it")
            rules[known_as] = maker
    return rules


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
    there = ", ".join(f"{d.name} (version {d.version})" for d in designs())
    close = difflib.get_close_matches(name, [d.name for d in designs()], 1)
    hint = f"; did you mean {close[0]}?" if close and close[0] != name else ""
    wanted = f"{name} of version {version}" if version else name
    raise ValueError(f"unknown machine {wanted}{hint}; there is {there}")


def _age(design: Design) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in design.version.split(".")]


def parts() -> Parts:
    """Users' named parts that were loaded."""
    return Parts(rules=dict(_rules))
