"""What makes a YAML file an agent file: tools write none, and lists of agents show no other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

__all__ = ["AGENT_KEYS", "FILE_BYTES", "agent_keys", "is_agent", "may_run"]

FILE_BYTES = 256_000
"""A larger file is no agent file. To read more would take YAML's parser many seconds."""
AGENT_KEYS = frozenset((
    "name", "description", "machine", "machine_version", "options", "models", "instructions", "tools",
    "modules", "limits", "compaction", "stuck", "visibility", "heartbeat_seconds", "fuse", "on_end",
    "approvals", "people", "labels", "certificate", "output",
))  # fmt: skip
"""What may stand at the top of an agent file."""
MOST_DEPTH, MOST_EVENTS = 50, 60_000
"""Of values in each other, and of values with the ends of those that hold some. An agent file has fewer."""
TELLING = frozenset(("machine", "models", "modules", "tools"))
Kind = Literal["one", "list", "keys", "any"]
"""What a key holds; "any": it has a tag or is an alias, so only who loads it knows."""
ANY: tuple[Kind, str] = "any", ""
ALONE: Mapping[str, frozenset[Kind]] = {
    "machine": frozenset(("one", "list", "keys", "any")),
    "modules": frozenset(("one", "list", "keys", "any")),
    "models": frozenset(("one", "keys", "any")),
    "tools": frozenset(("list", "any")),
    "approvals": frozenset(("keys", "any")),
}
"""Keys that name code, models or tools, or say what is asked for; and what each holds in an agent file: one
is enough for a file to be run as an agent. `models` with a list is of other programs."""
_HINT = re.compile(r"machine|models|modules|tools|approvals|\\")
"""One of those is in every file that tells of an agent; behind a backslash any letter may be meant."""


def agent_keys(text: str) -> frozenset[str]:
    """Which of an agent file's keys are at the top of a YAML text, as far as it is YAML.

    A key that is merged in, or is no plain text, may be any; so may all keys of what has a tag.
    """
    return frozenset(key for key, _ in _top(text))


def is_agent(keys: frozenset[str]) -> bool:
    """A file with these keys says something about an agent, right or wrong."""
    return len(keys) > 1 and bool(keys & TELLING)


def may_run(text: str) -> bool:
    """Whoever starts an agent with this file starts what the file names. More files than `is_agent` has:
    one key may be enough."""
    found = _top(text)
    return is_agent(frozenset(key for key, _ in found)) or any(
        kind in ALONE.get(key, ()) for key, kind in found
    )


def _top(text: str) -> list[tuple[str, Kind]]:
    """The agent's keys at the top and what they hold, as far as the text is YAML."""
    if len(text) > FILE_BYTES or not _HINT.search(text):
        return []
    from ruamel.yaml.error import YAMLError

    found: list[tuple[str, Kind]] = []
    with suppress(YAMLError, ArithmeticError, LookupError, ValueError):  # that says whoever loads it
        nodes = _nodes(text)
        whole, _ = next(nodes, ("one", ""))
        if whole == "any":  # a list with a tag may become a mapping
            return [(name, "any") for name in AGENT_KEYS]
        if whole != "keys":
            return []
        for kind, key in nodes:
            held, _ = next(nodes, ANY)
            names = AGENT_KEYS if kind != "one" or key == "<<" else AGENT_KEYS & {key}
            found += [(name, held) for name in names]
    return found


def _nodes(text: str) -> Iterator[tuple[Kind, str]]:
    """What the first document is, then what is directly in it, keys and values in turn; text where it has
    some. Two that may be anything end it where there is too much to read. Raises what YAML's parser does."""
    from ruamel.yaml import YAML
    from ruamel.yaml import events as of

    depth = 0
    for number, event in enumerate(YAML(typ="rt").parse(text)):  # as agent files are loaded
        if depth > MOST_DEPTH or number > MOST_EVENTS:  # each level makes the parser slower
            yield ANY
            yield ANY
            return
        if isinstance(event, of.NodeEvent) and depth < 2:
            yield _kind(event), getattr(event, "value", "")
        depth += isinstance(event, of.CollectionStartEvent) - isinstance(event, of.CollectionEndEvent)
        if isinstance(event, of.DocumentEndEvent):
            return


def _kind(event: Any) -> Kind:
    from ruamel.yaml import events as of

    if isinstance(event, of.AliasEvent) or event.tag is not None:
        return "any"
    if isinstance(event, of.ScalarEvent):
        return "one"
    return "list" if isinstance(event, of.SequenceStartEvent) else "keys"
