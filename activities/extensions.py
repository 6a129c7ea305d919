"""Users' own modules: Python files, importable modules and installed entry points.

Tools, machines, rules, policies, hooks and providers of a user come from the same modules, and only
the worker's configuration names these (design 6): whoever may start a run must not be able to run code.
A file becomes the module `ratchet_user.<stem>_<hash of its path>`. That name is the same in every
process, and Temporal's workflow sandbox can import it too.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

__all__ = ["ExtensionError", "declared", "line_of", "load_extensions", "load_modules"]

ENTRY_POINT_GROUP = "ratchet.modules"
USER_PACKAGE = "ratchet_user"
NAMED_BY = "RATCHET_MODULES, or `modules` of the agent file or of the program"
"""Who can have named a module."""
UNKNOWN_ARGUMENT = re.compile(
    r"(?P<called>\w+)(\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'"
)
"""What Python says of it."""


class ExtensionError(Exception):
    """A user's module cannot be loaded, or what it declares cannot be used."""


def load_extensions(names: Iterable[str]) -> tuple[ModuleType, ...]:
    """The modules of these names and those of installed packages, each once, in that order."""
    announced = [_import(name) for name in _announced()]
    return tuple(dict.fromkeys((*load_modules(names), *announced)))


def load_modules(names: Iterable[str]) -> tuple[ModuleType, ...]:
    """Import each name, a path to a `.py` file or a dotted module name; a loaded module is reused.

    Raises `ExtensionError` with file, line and cause when one is missing or broken.
    """
    return tuple(dict.fromkeys(_load(name) for name in names))


def declared(modules: Iterable[ModuleType], constant: str) -> Iterator[tuple[Any, str]]:
    """The values of a constant such as `TOOL`, and those in the tuple `TOOLS`, each with its file.

    A module may have neither. Raises `ExtensionError` when the plural is not a tuple or a list.
    """
    for module in modules:
        file = module.__file__ or module.__name__
        if hasattr(module, constant):
            yield getattr(module, constant), file
        several = getattr(module, f"{constant}S", ())
        if not isinstance(several, (tuple, list)):
            raise ExtensionError(f"{file}: {constant}S must be a tuple, not {several!r}")
        for one in several:
            yield one, file


def line_of(file: str, constant: str) -> str:
    """Where a file declares a constant or its plural, for a message: ` line 3:`; empty: that is not known."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    numbers = [number for number, line in enumerate(lines, 1) if re.match(rf"{constant}S?\s*[:=]", line)]
    return f" line {numbers[-1]}:" if numbers else ""


@cache
def _announced() -> tuple[str, ...]:
    """The modules of installed packages; to look for them, all packages are read."""
    points = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value))
    return tuple(point.value.partition(":")[0] for point in points)


def _load(name: str) -> ModuleType:
    if not name.strip():
        raise ExtensionError("a module name is blank; give a path to a .py file or a module name")
    if not (name.endswith(".py") or "/" in name or "\\" in name):
        return _import(name)
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise ExtensionError(f"{path}: no such file; correct {NAMED_BY}")
    if path.suffix != ".py":
        raise ExtensionError(f"{path}: not a Python file; its name must end in .py: correct {NAMED_BY}")
    return _import(_user_files.add(path), str(path))


def _import(name: str, file: str | None = None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise ExtensionError(
                f"there is no module {name}; install its package, or name the path of a .py file; correct "
                f"{NAMED_BY}"
            ) from error
        raise ExtensionError(_failure(file or name, error)) from error


class _Source(SourceFileLoader):
    """Compiles a file as it is now. Python's bytecode cache compares only time, in seconds, and size, so it
    may hold an older version. Temporal's sandbox, which imports the module again for each run, gets what the
    worker has loaded: a file that is being edited changes no run of a worker that did not load it."""

    loaded: ClassVar[dict[str, CodeType]] = {}

    def get_code(self, fullname: str) -> CodeType:
        temporal = sys.modules.get("temporalio.workflow")
        if temporal is None or not temporal.unsafe.in_sandbox() or fullname not in self.loaded:
            self.loaded[fullname] = _compile(self.get_data(self.path), self.path)
        return self.loaded[fullname]


@lru_cache(maxsize=256)
def _compile(source: bytes, path: str) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


class _UserFiles(MetaPathFinder):
    """Finds `ratchet_user.<name>` for Python's import, also for the one in Temporal's sandbox."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}

    def add(self, path: Path) -> str:
        """The name under which the file can be imported from now on."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        digest = hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:12]
        stem = re.sub(r"\W", "_", path.stem)
        name = f"{USER_PACKAGE}.{stem}_{digest}"
        self._paths[name] = path
        return name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Where the module is; None for all that are not users' files."""
        if fullname == USER_PACKAGE:
            return ModuleSpec(fullname, None, is_package=True)
        found = self._paths.get(fullname)
        if found is None:
            return None
        return importlib.util.spec_from_file_location(fullname, found, loader=_Source(fullname, str(found)))


_user_files = _UserFiles()


def _failure(name: str, error: BaseException) -> str:
    """Such as `tools.py: line 3: NameError: ...`: the deepest line of the module itself, and the cause."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or name}: line {error.lineno}: {type(error).__name__}: {error.msg}"
    cause = f"{type(error).__name__}: {error}{_meant_argument(error)}"
    ours = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen")
    ]
    own = [frame for frame in frames if frame.filename == name] or frames
    return f"{own[-1].filename}: line {own[-1].lineno}: {cause}" if own else f"{name}: {cause}"


def _meant_argument(error: BaseException) -> str:
    """For a call with an argument that there is not, such as `Tool(model=...)`: those that there are."""
    said = UNKNOWN_ARGUMENT.match(str(error)) if isinstance(error, TypeError) else None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if said is None or not frames:
        return ""
    called = {**frames[-1].f_globals, **frames[-1].f_locals}.get(said["called"])
    try:
        names = list(inspect.signature(called).parameters)  # type: ignore[arg-type]  # TypeError: it is not callable
    except (TypeError, ValueError):
        return ""
    close = difflib.get_close_matches(said["name"], names, 1, 0.7)
    return f"; did you mean `{close[0]}`?" if close else f"; it takes {', '.join(names)}"
