"""Titles of calls, for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["THEN_THE_MODEL", "call_title", "edited_title"]

THEN_THE_MODEL = ", then the model"
"""Behind the title of an activity that also asks the question after its call."""
_as_json = json.JSONEncoder(ensure_ascii=False).encode
"""`json.dumps` would make an encoder for each value."""


def call_title(tool: str, arguments: Mapping[str, Any]) -> str:
    """A call as a person would write it, cut: `search_files(pattern="ERROR", limit=5)`."""
    words = [
        f'{name}="{v}"' if isinstance(v, str) else f"{name}={_as_json(v)}" for name, v in arguments.items()
    ]
    return f"{tool}({cut(', '.join(cut(word, 100) for word in words), 180)})"


def edited_title(title: str, edited_by: str) -> str:
    """The title, and who edited the call; empty: nobody."""
    return f"{title}, edited by {edited_by}" if edited_by else title


def cut(text: str, limit: int) -> str:
    """At most so many characters of the text; the last says that there were more."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
