"""YAML files with the place of every key, and what is wrong with them in their writer's words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from activities.agentfiles import FILE_BYTES
from activities.configuration import read_configuration
from activities.text import KEY_ITSELF, problem_of, problems_of
from client.errors import UsageError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["KeyPath", "FileProblem", "YamlFile", "dotted", "nearest", "parse", "problem_text", "problems"]

KeyPath = tuple[str | int, ...]
FileProblem = tuple[KeyPath, str]
"""Where, from the top of the file; what is wrong, and what was expected."""
Places = dict[KeyPath, tuple[int, int]]

MOST_VALUES = 50_000
"""Aliases count as often as they are used: a small text can mean billions of values."""
MOST_MERGES = 100
"""What they take grows with their square."""
MAX_SHOWN_PROBLEMS = 12
PASTED_KEY = re.compile(r': *"[^"\n]*": *[A-Za-z0-9+/]{43}=')
LINE_ENDS = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
"""As marks count lines."""
PASTED_HINT = "; of the line that `ratchet key show FILE` prints, the part after the name is the key"
"""Where that whole line stands behind a name, and the error is there."""


class YamlFile:
    """A mapping read from a file: its `values`, and where each key is."""

    def __init__(self, path: Path) -> None:
        """Read and parse.

        Raises:
            UsageError: the file is missing, unreadable, too large, or not a YAML mapping.
        """
        self.path = path
        self.values, self.places = _parsed_file(path)

    def place(self, where: KeyPath) -> str:
        """`file:line:column` of a key, or of the nearest one around it."""
        for end in range(len(where), 0, -1):
            if found := self.places.get(where[:end]):
                return f"{self.path}:{found[0]}:{found[1]}"
        return str(self.path)


def parse(text: str, source: str) -> tuple[Any, Places]:
    """The value that a YAML document means, and line and column (from 1) of every key and list item.

    Args:
        text: a YAML 1.2 document.
        source: where it comes from, for messages.

    Raises:
        UsageError: it is not YAML, a key is given twice, or it means more values than is sensible.
    """
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    places: Places = {}
    try:
        return _plain(_bounded_yaml().load(text), (), places), places
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        is_pasted = mark and PASTED_KEY.search(LINE_ENDS.split(text)[mark.line])
        hint = PASTED_HINT if is_pasted else ""
        raise UsageError(f"{place}: not valid YAML: {_first_line(error.problem or error)}{hint}") from error
    except (YAMLError, ArithmeticError, LookupError, ValueError) as error:
        raise UsageError(f"{source}: not valid YAML: {_first_line(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{source}: nested too deeply") from error


def problems(error: ValidationError, model: type[BaseModel]) -> list[FileProblem]:
    """Each error of a validation in plain words."""
    return [_problem(detail, model) for detail in problems_of(error)[:MAX_SHOWN_PROBLEMS]]


def problem_text(error: ValidationError, model: type[BaseModel]) -> str:
    """All errors of a validation in one line, each with its key."""
    return "; ".join(f"{dotted(where)}: {what}" for where, what in problems(error, model))


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?`, or all that is known; for the end of a message."""
    names = sorted(known)
    if close := difflib.get_close_matches(word, names, n=1, cutoff=0.6):
        return f"did you mean `{close[0]}`?"
    return f"known: {', '.join(f'`{name}`' for name in names) or 'none'}"


def dotted(where: KeyPath) -> str:
    """A key's path as a person writes it: `models.default.name`, `tools[2]`."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _parsed_file(path: Path) -> tuple[dict[str, Any], Places]:
    if not path.exists():
        beside = [str(found) for kind in ("*.yaml", "*.yml") for found in path.parent.glob(kind)]
        close = difflib.get_close_matches(str(path), beside, n=1)
        raise UsageError(f"{path}: no such file{f'; did you mean {close[0]}?' if close else ''}")
    if not path.is_file():  # a pipe would be waited for
        raise UsageError(f"{path}: not a regular file; expected a YAML file")
    try:
        content = read_configuration(path, FILE_BYTES + 1)
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES:
        raise UsageError(f"{path}: larger than {FILE_BYTES:,} bytes; this is not an agent file")
    values, places = parse(text, str(path))
    if not isinstance(values, dict):
        kind = "nothing" if values is None else type(values).__name__
        raise UsageError(f"{path}: contains {kind}; expected keys such as `machine:` and `tools:`")
    return values, places


def _bounded_yaml() -> Any:
    """A parser that ends in time, whatever the text says, and refuses tags that nobody knows."""
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer
    from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor
    from ruamel.yaml.events import AliasEvent

    class Bounded(Composer):
        """Counts values before they are made; keys are values, too."""

        values = merges = 0

        def __init__(self, loader: Any) -> None:
            super().__init__(loader)
            self.meant: dict[int, int] = {}
            """Values in each node that aliases may name."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias, before = self.parser.check_event(AliasEvent), self.values
            self.values += 1
            node = super().compose_node(parent, index)
            if is_alias:  # one that holds itself means endlessly many
                self.values += self.meant.get(id(node), MOST_VALUES)
            elif node.anchor:
                self.meant[id(node)] = self.values - before
            self.merges += index is None and node.value == "<<"
            if self.values > MOST_VALUES:
                raise ValueError(f"it means more than {MOST_VALUES:,} values")
            if self.merges > MOST_MERGES:
                raise ValueError(f"it has more than {MOST_MERGES} merge keys (<<)")
            return node

    class Known(RoundTripConstructor):
        """What the library makes of an unknown tag, and of `!!str`, is no plain value."""

    def refuse(_: Any, node: Any) -> None:
        raise ConstructorError(None, None, f"unknown tag {node.tag}; remove it", node.start_mark)

    Known.add_constructor(None, refuse)
    Known.add_constructor("tag:yaml.org,2002:str", Known.construct_scalar)
    yaml: Any = YAML(typ="rt")
    yaml.Composer, yaml.Constructor = Bounded, Known
    return yaml


def _plain(value: Any, where: KeyPath, places: Places) -> Any:
    """The value without ruamel's own types; notes the places of its keys."""
    if isinstance(value, Mapping | list):
        inside: dict[Any, Any] = {}
        known = getattr(getattr(value, "lc", None), "data", None) or {}  # `!!pairs` makes a plain list
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            below = (*where, key if isinstance(value, list) else str(key))
            if (mark := known.get(key)) is not None:
                places[below] = (mark[0] + 1, mark[1] + 1)
            inside[_plain_scalar(key)] = _plain(item, below, places)
        return inside if isinstance(value, Mapping) else list(inside.values())
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    from ruamel.yaml.scalarbool import ScalarBoolean

    if isinstance(value, ScalarBoolean):  # a bool with an anchor: as a class, it is an int
        return bool(value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return datetime.fromisoformat(value.isoformat()) if isinstance(value, datetime) else value


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> FileProblem:
    where = tuple(detail["loc"])
    if detail["type"] == "extra_forbidden":
        return where, f"unknown key; {_meant_key(model, where)}"
    message, given = problem_of(detail), detail["input"]
    if detail["type"] == "missing":
        return where, message
    if where[-1:] == (KEY_ITSELF,):
        where, message = where[:-1], f"its key: {message}"
    if detail["type"] in ("tuple_type", "list_type"):
        message = f"expected a list{f', such as `[{given}]`' if isinstance(given, str) else ''}"
    elif detail["type"] in ("dict_type", "model_type", "model_attributes_type"):
        message = f"expected a mapping, such as `{_example(model, where, given)}`"
    elif (seconds := _seconds(given)) and detail["type"] in ("float_parsing", "int_parsing"):
        message = f"expected a number of seconds, such as {seconds}"
    got = repr(given)
    is_named = isinstance(given, str) and got in message
    if is_named or (isinstance(given, dict | list) and detail["type"] == "value_error"):
        return where, message  # a rule about the whole says what is wrong in it
    got = got if len(got) <= 80 else f"{got[:77]}..."
    return where, f"{message[:1].lower()}{message[1:]}, got {got}"


def _example(model: type[BaseModel], where: KeyPath, given: object) -> str:
    """A mapping that the key may have, with the given value if that is what was meant."""
    if not where:
        return "{key: value}"
    fields = [
        one.model_fields[where[-1]] for one in _objects_at(model, where[:-1]) if where[-1] in one.model_fields
    ]
    examples = [one for field in fields for one in field.examples or () if isinstance(one, dict)]
    for example in examples:
        ((name, value), *more) = example.items()
        if not more and isinstance(value, int | str):
            if isinstance(given, str) and ": " in given:  # it is what should stand in the braces
                return f"{{{given}}}"
            return f"{{{name}: {given if type(given) is type(value) else value}}}"
    return "{key: value}"


SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _seconds(given: object) -> int:
    """What a person may have meant by `90min`; 0: it is no duration."""
    read = re.fullmatch(r"(\d{1,6})\s*([a-z]+)", given) if isinstance(given, str) else None
    return int(read[1]) * SECONDS.get(read[2], 0) if read else 0


def _meant_key(model: type[BaseModel], where: KeyPath) -> str:
    """The key that was meant by an unknown one: one with nearly its name, or the same key elsewhere."""
    name, keys = str(where[-1]), _keys_at(model, where[:-1])
    if difflib.get_close_matches(name, keys, n=1, cutoff=0.8):
        return nearest(name, keys)
    if name in model.model_fields:
        return "it belongs to the top level"
    homes = sorted({dotted(home) for home in _homes(model, name)}, key=lambda home: (home.count("."), home))
    if not homes:
        return nearest(name, keys)
    return f"it belongs under {' or '.join(f'`{home}`' for home in homes[:2])}"


def _homes(model: type[BaseModel], name: str, above: tuple[type[BaseModel], ...] = ()) -> Iterator[KeyPath]:
    """Paths to the objects below a model that have this key; `NAME` stands for any key of a mapping."""
    for key, field in model.model_fields.items():
        path = (key, "NAME") if get_origin(field.annotation) in (dict, Mapping) else (key,)
        for inner in {*_models_in(field.annotation)} - {model, *above}:
            if name in inner.model_fields:
                yield path
            yield from ((*path, *home) for home in _homes(inner, name, (*above, model)))


def _keys_at(model: type[BaseModel], where: KeyPath) -> list[str]:
    """The keys of the object at a path below a model."""
    return [name for one in _objects_at(model, where) for name in one.model_fields]


def _objects_at(model: type[BaseModel], where: KeyPath) -> list[type[BaseModel]]:
    """What the object at a path below a model may be."""
    found = [model]
    for part in where:  # indexes and keys of mappings are no fields: what they hold is there already
        fields = [one.model_fields[part] for one in found if part in one.model_fields]
        found = [inner for field in fields for inner in _models_in(field.annotation)] or found
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
