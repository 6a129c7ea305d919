"""YAML of people, parsed so that nothing in it can hang or break the program that reads it."""

from __future__ import annotations

from typing import Any

import yaml

from client.errors import UsageError

__all__ = ["parse"]

MOST_VALUES = 100_000
"""With aliases counted as often as they are used: a small text can stand for billions of values."""
MOST_LEVELS = 100
MOST_BITS = 10_000
"""Of an integer: Python refuses to print much longer ones."""
MOST_DIGITS = 4_000
"""Of anything but text: reading `1:1:1:...` takes the square of its length."""
TEXT = "tag:yaml.org,2002:str"
UNFIT = (ArithmeticError, AttributeError, LookupError, ValueError)
"""What PyYAML raises for a text that is no value of its type, such as the day 2024-99-99."""


def parse(text: str, source: str) -> tuple[yaml.Node | None, Any]:
    """The tree with the places, and the value; of an empty text two times None.

    Args:
        text: a YAML document.
        source: where it comes from, for messages.

    Raises:
        UsageError: it is no YAML, or larger, deeper or longer than any sensible value.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, None
            _Expanse().measure(node)
            return node, loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise UsageError(f"{source}: no valid YAML at {place}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: no valid YAML: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{source}: nested too deeply; at most {MOST_LEVELS} levels are read") from error


class _Loader(yaml.SafeLoader):
    """Says where a text stands that is no value of its type."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag != TEXT and isinstance(node, yaml.ScalarNode) and len(node.value) > MOST_DIGITS:
            raise _unfit(node)
        try:
            value = super().construct_object(node, deep)
        except UNFIT as error:
            raise _unfit(node) from error
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise _unfit(node)
        return value


class _Expanse:
    """Measures a tree as it is with every alias written out, without writing it out."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def measure(self, node: yaml.Node) -> tuple[int, int]:
        """How many values a node stands for, and how many levels of them."""
        if id(node) in self._open:
            raise _wrong(node, "holds itself")
        if id(node) not in self._known:
            self._open.add(id(node))
            below = [self.measure(child) for child in _children(node)]
            self._open.remove(id(node))
            values = 1 + sum(size for size, _ in below)
            levels = 1 + max((height for _, height in below), default=0)
            if values > MOST_VALUES:
                raise _wrong(node, f"stands for more than {MOST_VALUES:,} values")
            if levels > MOST_LEVELS:
                raise _wrong(node, f"nested too deeply; at most {MOST_LEVELS} levels are read")
            self._known[id(node)] = values, levels
        return self._known[id(node)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _wrong(node: yaml.Node, what: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)


def _unfit(node: yaml.Node) -> yaml.MarkedYAMLError:
    text = str(node.value)
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return _wrong(node, f"`{shown}` is no value of type {node.tag.rpartition(':')[2]}")
