"""Users' own modules: Python files, importable modules and installed entry points.

Tools, rules and machines of a user come from the same modules, so they are loaded in one place and
once only. A file becomes the module `ratchet_user.<stem>_<hash of its path>`: that name is the same
in every process on the machine, so the workflow sandbox can let `ratchet_user` pass through.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

__all__ = [
    "ENTRY_POINT_GROUP", "USER_PACKAGE", "ExtensionError",
    "load_entry_points", "load_extensions", "load_modules",
]  # fmt: skip

ENTRY_POINT_GROUP = "ratchet.modules"
USER_PACKAGE = "ratchet_user"


class ExtensionError(Exception):
    """A user's module cannot be loaded, or what it declares cannot be used."""


def load_extensions(names: Iterable[str]) -> tuple[ModuleType, ...]:
    """The modules of these names and those of installed packages, each once, in that order."""
    modules = (*load_modules(names), *load_entry_points())
    return tuple(dict.fromkeys(modules))


def load_modules(names: Iterable[str]) -> tuple[ModuleType, ...]:
    """Import each name, a path to a `.py` file or a dotted module name; loaded ones are reused.

    Raises `ExtensionError` with file, line and cause when one is missing or broken.
    """
    return tuple(dict.fromkeys(_load(name) for name in names))


def load_entry_points(group: str = ENTRY_POINT_GROUP) -> tuple[ModuleType, ...]:
    """The modules that installed packages announce under `group`, sorted by announced name."""
    found = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
    return tuple(dict.fromkeys(_import(point.value.partition(":")[0]) for point in found))


def _load(name: str) -> ModuleType:
    if not name.strip():
        raise ExtensionError("a module name is blank; give a path to a .py file or a module name")
    if name.endswith(".py") or "/" in name or "\\" in name:
        return _load_file(Path(name))
    return _import(name)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ExtensionError(
                f"there is no module {name}; install its package, or give the path of a .py file"
            ) from error
        raise ExtensionError(_broken(name, error)) from error
    except (Exception, SystemExit) as error:
        raise ExtensionError(_broken(name, error)) from error


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ExtensionError(f"{path}: there is no such file; `modules` names Python files")
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ExtensionError(f"{path}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    _user_package()
    # Before it is executed: dataclasses and pydantic look their own module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ExtensionError(_broken(str(path), error)) from error
    return module


def _module_name(path: Path) -> str:
    stem = re.sub(r"\W", "_", path.stem)
    digest = hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{USER_PACKAGE}.{stem}_{digest}"


def _user_package() -> None:
    if USER_PACKAGE not in sys.modules:
        package = ModuleType(USER_PACKAGE, "Modules that users load from files.")
        package.__path__ = []
        sys.modules[USER_PACKAGE] = package


def _broken(name: str, error: BaseException) -> str:
    """`tools.py: line 3: NameError: ...`: the deepest line of the module itself, and the cause."""
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return f"{error.filename or name}: line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == name] or [
        frame
        for frame in frames
        if not frame.filename.startswith("<frozen") and frame.filename not in _MACHINERY
    ]
    if not own:
        return f"{name}: {cause}"
    return f"{own[-1].filename}: line {own[-1].lineno}: {cause}"


_MACHINERY = (__file__, importlib.__file__)
"""Frames of these files are ours, not the user's."""
