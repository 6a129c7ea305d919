"""What makes a YAML file an agent file: tools write none, and lists of agents show no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["AGENT_KEYS", "FILE_BYTES", "agent_keys", "is_agent"]

FILE_BYTES = 256_000
"""A larger file is no agent file. To read more would take YAML's parser many seconds."""
AGENT_KEYS = frozenset((
    "name", "description", "machine", "machine_version", "options", "models", "instructions", "tools",
    "modules", "limits", "compaction", "stuck", "visibility", "heartbeat_seconds", "fuse", "on_end",
    "approvals", "people",
))  # fmt: skip
"""What may stand at the top of an agent file."""
MOST_DEPTH, MOST_EVENTS = 50, 60_000
"""Of values in each other, and of values with the ends of those that hold some. An agent file has fewer."""
TELLING = frozenset(("machine", "models", "modules", "tools"))
_HINT = re.compile(r"machine|models|modules|tools|\\")
"""One of those is in every agent file; behind a backslash any letter may be meant."""


def agent_keys(text: str) -> frozenset[str]:
    """Which of an agent file's keys are at the top of a YAML text, as far as it is YAML.

    A key that is merged in, or is no plain text, may be any.
    """
    if len(text) > FILE_BYTES or not _HINT.search(text):
        return frozenset()
    from ruamel.yaml.error import YAMLError

    found: set[str] = set()
    try:
        for key in _top_keys(text):
            found |= {key} if key not in ("", "<<") else AGENT_KEYS
    except (YAMLError, ArithmeticError, LookupError, ValueError):
        pass  # what is wrong with it says whoever loads it
    return AGENT_KEYS & found


def _top_keys(text: str) -> Iterator[str]:
    """The keys of the first document; empty: not known without its values. All that there are where there is
    too much to read. Raises what YAML's parser does."""
    from ruamel.yaml import YAML
    from ruamel.yaml import events as of

    depth = nodes = 0
    for number, event in enumerate(YAML(typ="safe", pure=True).parse(text)):
        if depth > MOST_DEPTH or number > MOST_EVENTS:  # each level makes the parser slower
            yield from AGENT_KEYS
            return
        if isinstance(event, of.NodeEvent):
            if depth == 0 and not isinstance(event, of.MappingStartEvent):
                return
            if depth == 1:
                if nodes % 2 == 0:
                    yield getattr(event, "value", "")
                nodes += 1
        depth += isinstance(event, of.CollectionStartEvent) - isinstance(event, of.CollectionEndEvent)
        if isinstance(event, of.DocumentEndEvent):
            return


def is_agent(keys: frozenset[str]) -> bool:
    """A file with these keys says something about an agent, right or wrong."""
    return len(keys) > 1 and bool(keys & TELLING)
