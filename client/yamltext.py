"""A YAML file with the line of every key, and its errors in words of its writer."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from client.errors import UsageError
from client.knobs import allowed_at
from client.yamlparse import parse

__all__ = ["KeyPath", "YamlText", "dotted", "nearest", "problems"]

KeyPath = tuple[str | int, ...]
FILE_BYTES = 1_000_000
SHOWN_PROBLEMS = 6
_RANGED = ("_equal", "_than", "_type", "_parsing", "_short", "_long", "_mismatch", "_from_float")
"""Ends of the names of errors that say one bound at most, where there is more to know."""


class YamlText:
    """A mapping read from a file: `values`, and on which line each key stands."""

    def __init__(self, path: Path) -> None:
        """Read and parse.

        Raises:
            UsageError: the file is missing, unreadable, too large, no YAML or no mapping.
        """
        self.path = path
        node, values = parse(_read(path), str(path))
        if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
            got = "nothing" if values is None else type(values).__name__
            raise UsageError(f"{path}: holds {got}; expected keys such as `machine:` and `tools:`")
        self.values: dict[str, Any] = values
        self.lines: dict[KeyPath, int] = {}
        self._seen: set[int] = set()
        self._note(node, ())

    def place(self, where: KeyPath) -> str:
        """File and line of a key, or of the nearest one around it."""
        for end in range(len(where), 0, -1):
            if where[:end] in self.lines:
                return f"{self.path}:{self.lines[where[:end]]}"
        return str(self.path)

    def _note(self, node: yaml.Node, above: KeyPath) -> None:
        if id(node) in self._seen:
            return  # an alias: its keys have their lines already
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*above, index)] = item.start_mark.line + 1
                self._note(item, (*above, index))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                line = key.start_mark.line + 1
                where = (*above, str(key.value))
                if where in self.lines:
                    raise UsageError(
                        f"{self.path}:{line}: {dotted(where)} stands twice; it was given on line "
                        f"{self.lines[where]} already"
                    )
                self.lines[where] = line
                self._note(value, where)


def problems(error: ValidationError, model: type[BaseModel]) -> list[tuple[KeyPath, str]]:
    """Each error of a validation as (where, what is wrong and what was expected)."""
    return [_problem(detail, model) for detail in error.errors(include_url=False)[:SHOWN_PROBLEMS]]


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` or what there is; for the end of a message."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"there is {', '.join(f'`{name}`' for name in names)}" if names else "there is none"


def dotted(where: KeyPath) -> str:
    """A key's path as a person writes it: `models.default.name`, `tools[2]`."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> tuple[KeyPath, str]:
    where = tuple(detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, where[:-1])
        return where, f"unknown key; {nearest(str(where[-1]), known)}"
    if detail["type"] == "missing":
        return where, "is missing"
    said = detail["msg"].removeprefix("Value error, ")
    if where[-1:] == ("[key]",):  # as Pydantic says that a mapping's key is no key of it
        where, said = where[:-1], said.replace("Input should", "The key should", 1)
    got = repr(detail["input"])
    got = got if len(got) <= 80 else f"{got[:77]}..."
    allowed = allowed_at(model, where) if detail["type"].endswith(_RANGED) else None
    told = f"; allowed is {allowed}" if allowed else ""
    return where, f"{said[:1].lower()}{said[1:]}, got {got}{told}"


def _fields_at(model: type[BaseModel], where: KeyPath) -> list[str]:
    """Names of the fields of the model at `where` below `model`."""
    kind: Any = model
    for part in where:
        kind = _below(kind, part)
    return list(kind.model_fields) if _is_model(kind) else []


def _below(kind: Any, part: str | int) -> Any:
    if _is_model(kind):
        field = kind.model_fields.get(str(part))
        return _plain(field.annotation) if field else None
    arguments = [a for a in get_args(kind) if a is not Ellipsis]
    return _plain(arguments[-1]) if arguments else None


def _plain(annotation: Any) -> Any:
    """The annotation without `Annotated` and `None`."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return next((_plain(a) for a in get_args(annotation) if a is not type(None)), None)
    return annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _read(path: Path) -> str:
    try:
        # a FIFO would be waited for: what it is, is looked at first
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: is no regular file; an agent is named by its YAML file")
            content = file.read(FILE_BYTES + 1)
        if len(content) > FILE_BYTES:
            raise UsageError(f"{path}: larger than {FILE_BYTES:,} bytes; this is no agent file")
        return content.decode()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
