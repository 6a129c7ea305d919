"""What a machine and its tools are here, in digests that can be compared.

The digest of a file is that of its bytes on the disk, by `sha256sum`: a changed comment is another file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from activities import contracts
from activities.contracts import Digests, MachineNamed, ToolSpec
from activities.extensions import USER_PACKAGE
from workflows import registry
from workflows.kernel.canonical import digest_of
from workflows.kernel.machine import Machine
from workflows.verify.code.sources import is_own

__all__ = ["code_of", "digests_of", "ratchet_code", "spec_digest", "table_digest"]

ROOT = Path(str(contracts.__file__)).parents[2]
OURS = ("activities", "client", "workflows")
CHANGED = Path(__file__).with_name("changed.json")
"""Made where a wheel is built: SHA-256 of a file that it changes -> of that file in the checkout."""


def digests_of(named: MachineNamed, specs: Sequence[ToolSpec]) -> Digests | None:
    """What the machine is in this process, with these options and tools. None: it is not here, or the
    options do not fit it."""
    try:
        machine = registry.machine(named.name, named.version, newest=False)
        _, options = registry.machine_for(named.name, named.version, named.options)
        return Digests(
            machine=machine.name,
            version=machine.version,
            ratchet=ratchet_code(),
            code=code_of(machine, named.options),
            table=table_digest(machine),
            options_schema=digest_of(machine.options.model_json_schema()),
            options=digest_of(options.model_dump(mode="json")),
            tools={spec.name: spec_digest(spec) for spec in specs},
        )
    except ValueError:
        return None


@cache
def ratchet_code() -> str:
    """SHA-256 over the files of Ratchet's packages: all that runs and verifies machines. The wheel of a
    checkout has that of the checkout."""
    files = sorted(file for name in OURS for file in (ROOT / name).rglob("*.py"))
    digests = ((_sha256(file.read_bytes()), file.relative_to(ROOT).as_posix()) for file in files)
    changed: dict[str, str] = json.loads(CHANGED.read_text()) if CHANGED.is_file() else {}
    return _sha256("".join(f"{changed.get(one, one)}  {place}\n" for one, place in digests).encode())


def code_of(machine: Machine, options: Any) -> dict[str, str]:
    """Module -> SHA-256 of its file: the machine's own module, those of the rules, policies and hooks that
    its options name, defaults included, or that it reads otherwise, and what these import of their author's.
    Ratchet itself and installed libraries are not among them. Raises ValueError for options that do not
    fit."""
    modules = [one.__name__ for one in registry.modules_of(machine, options)]
    homes = frozenset(name.partition(".")[0] for name in modules)
    found: dict[str, str] = {}
    waiting, seen = [*modules], set[str]()
    while waiting:
        name = waiting.pop()
        file = None if name in seen else _file(name)
        seen.add(name)
        if file is None or not is_own(name, str(file), homes) or _is_ours(file):
            continue
        text = file.read_bytes()
        found[_shown(name, file, found)] = _sha256(text)
        with suppress(SyntaxError, ValueError):  # what cannot be parsed cannot be imported
            waiting += _imports(ast.parse(text), name, is_package=file.name == "__init__.py")
    return dict(sorted(found.items()))


def _file(name: str) -> Path | None:
    """The source of a module; None: it has none, or is not there."""
    spec = None
    with suppress(ImportError, ValueError):
        spec = _spec(name)
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") and Path(origin).is_file() else None


def _spec(name: str) -> ModuleSpec | None:
    """What an import would find, without one: a visit may import what is not loaded yet."""
    package, _, last = name.rpartition(".")
    if not package or name in sys.modules:
        return importlib.util.find_spec(name)
    above = _spec(package)
    places = above.submodule_search_locations if above else None
    # by its last part: a folder without `__init__.py` asks for its package by name, which is not loaded
    return PathFinder.find_spec(last, list(places)) if places is not None else None


def _is_ours(file: Path) -> bool:
    return any(ROOT / name in file.parents for name in (*OURS, "ratchet"))


def _shown(name: str, file: Path, taken: Iterable[str]) -> str:
    """The name that a module has on every machine; a file of a user is known by its own."""
    shown = file.name if name.startswith(f"{USER_PACKAGE}.") else name
    while shown in taken:
        shown += "'"
    return shown


def _imports(tree: ast.Module, name: str, *, is_package: bool) -> Iterator[str]:
    """The modules that a module may import, wherever in it."""
    package = (name if is_package else name.rpartition(".")[0]).split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield from _with_parents(one.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, (node.module,))])
            yield from _with_parents(origin)
            yield from (f"{origin}.{one.name}" for one in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def table_digest(machine: Machine) -> str:
    """Of the rows, as the machine's default options make them."""
    rows = {
        source: {event.__name__: target for event, target in row.items()}
        for source, row in machine.rows.items()
    }
    return digest_of(rows)


def spec_digest(spec: ToolSpec) -> str:
    """Of all that a spec says of a tool."""
    return digest_of(spec.model_dump(mode="json"))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
