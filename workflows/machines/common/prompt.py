"""Parts of prompts that machines share. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from activities.contracts import Message, ToolSpec

__all__ = ["parameters", "system_message", "tool_list"]

NEEDLESS_KEYS = {"type", "title", "description", "additionalProperties"}
"""Keys of a tool's schema that tell a model nothing beyond the words around it."""


def system_message(*parts: str) -> list[Message]:
    """The system message of these parts with a blank line between them; none when all are blank."""
    text = "\n\n".join(part.strip() for part in parts if part.strip())
    return [Message(role="system", content=text)] if text else []


def tool_list(specs: Iterable[ToolSpec], word: str, none: str) -> str:
    """The tools for a model that does not call them natively; `word` is its field for the parameters."""
    lines = (f"- {spec.name}: {spec.description}\n  {word}: {parameters(spec)}" for spec in specs)
    return "Tools:\n" + ("\n".join(lines) or f"- {none}")


def parameters(spec: ToolSpec) -> str:
    """A tool's parameters as a JSON schema."""
    schema = {key: value for key, value in spec.parameters.items() if key not in NEEDLESS_KEYS}
    return json.dumps(schema, ensure_ascii=False)
