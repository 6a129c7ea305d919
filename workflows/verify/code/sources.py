"""The source of an author's functions: which are followed, and where each stands."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import sysconfig
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from workflows.verify.code.values import Place, Value, exactly

__all__ = ["Source", "is_followed", "is_own", "parts_of", "place_of", "row_places", "source_of", "tree_of"]

ROOT = Path(__file__).parents[1]
OURS = ROOT / "machines"
TRUSTED = (ROOT, ROOT.parent / "activities")
"""Folders whose functions do what their names say; a machine is judged by what it gives them."""
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A function's text, and what its names mean."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    file: str
    names: Mapping[str, Any]
    """The globals of its module, and what the functions around it have."""
    defaults: Mapping[str, Value]
    """What a parameter is that nothing is given for."""


@lru_cache(maxsize=256)
def _tree(file: str, text: str) -> ast.Module | None:
    try:
        return ast.parse(text, file)
    except SyntaxError:
        return None


def tree_of(file: str) -> ast.Module | None:
    """The file's syntax tree; None: it has no text."""
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    return _tree(file, text) if text else None


@lru_cache(maxsize=1024)
def _functions(tree: ast.Module) -> Mapping[tuple[str, int], tuple[Any, ...]]:
    """(name, first line) -> the functions there."""
    found: dict[tuple[str, int], tuple[Any, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min(node.lineno, *(one.lineno for one in node.decorator_list), node.lineno)
            key = node.name, first
        elif isinstance(node, ast.Lambda):
            key = "<lambda>", node.lineno
        else:
            continue
        found[key] = (*found.get(key, ()), node)
    return found


@lru_cache(maxsize=65536)
def parts_of(node: ast.AST) -> tuple[ast.AST, ...]:
    """The node and all in it."""
    return tuple(ast.walk(node))


def _node_of(code: CodeType) -> Any:
    tree = tree_of(code.co_filename)
    nodes = _functions(tree).get((code.co_name, code.co_firstlineno), ()) if tree else ()
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    spans = [place for place in code.co_positions() if None not in place]
    columns = [start for line, _, start, _ in spans if line == code.co_firstlineno]
    inside = [one for one in nodes if one.body.col_offset in columns]
    return inside[0] if len(inside) == 1 else None


@lru_cache(maxsize=4096)
def source_of(function: FunctionType) -> Source | None:
    """The source of a function; None: there is none, as of one that was made by `exec`."""
    node = _node_of(function.__code__)
    if node is None:
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    names = ChainMap(around, function.__globals__)
    places = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    given = function.__defaults__ or ()
    defaults = dict(zip(places[len(places) - len(given) :], given, strict=True))
    defaults |= function.__kwdefaults__ or {}
    values = {name: exactly(one) for name, one in defaults.items()}
    return Source(node, function.__code__.co_filename, names, values)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # an empty cell raises
    except ValueError:
        return False
    return True


def is_followed(what: Any, homes: frozenset[str]) -> bool:
    """Whether this function or class is the author's own, or a shipped machine's. `homes`: the packages of
    the machine's own functions, which may be installed ones."""
    module, code = getattr(what, "__module__", None) or "", getattr(what, "__code__", None)
    file = code.co_filename if code else getattr(sys.modules.get(module), "__file__", None)
    return file is not None and is_own(module, file, homes)


@lru_cache(maxsize=4096)
def is_own(module: str, file: str, homes: frozenset[str]) -> bool:
    """Whether a module is of the author, or a shipped machine's. `homes` as in `is_followed`."""
    around = Path(file).parents
    if OURS in around or any(one in around for one in TRUSTED):
        return OURS in around
    return module.partition(".")[0] in homes or not any(one in around for one in INSTALLED)


def place_of(what: Any) -> Place | None:
    """Where a function, a class or a module begins."""
    if isinstance(what, ModuleType):
        return Place(what.__file__ or "?", 1)
    what = inspect.unwrap(what)
    for name in ("func", "__func__"):
        what = getattr(what, name, what)
    code = getattr(what, "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code else None


def row_places(file: str, names: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Place]]:
    """(state, event, place) of each row of a table that a file writes down."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.Dict):
            continue
        for key, row in zip(node.keys, node.values, strict=True):
            if key is not None and isinstance(row, ast.Dict):
                for event in row.keys:
                    if event is not None:
                        yield _named(key, names), _named(event, names), Place(file, event.lineno)


def _named(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a plain name such as `S.DONE` means; None: it is no plain name, or nothing has it."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    return getattr(_named(node.value, names), node.attr, None) if isinstance(node, ast.Attribute) else None
