"""A tool's arguments, checked, and what went wrong with a tool, in words that cannot fail themselves."""

from __future__ import annotations

from typing import Any

import httpx2
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from activities.contracts import JsonObject
from activities.tool_output import readable
from activities.toolbox import Tool, TransientError

__all__ = ["TRANSIENT_ERRORS", "message_of", "parsed", "words_of"]

TRANSIENT_ERRORS = (TransientError, ConnectionError, TimeoutError, httpx2.TransportError)
"""What a tool raises for a failure that goes away by itself."""


def parsed(tool: Tool[Any], arguments: JsonObject) -> BaseModel | str:
    """The arguments as the tool's model, or what is wrong with them."""
    try:
        # From JSON, so that strict fields accept dates and the like in their JSON form.
        params: BaseModel = tool.params.model_validate_json(to_json(arguments))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        problems = "; ".join(_problem(dict(one)) for one in found[:10])
        return f"The arguments do not fit {tool.name}: {problems}"
    except Exception as error:  # noqa: BLE001  # a validator of the tool's own may raise anything
        return f"The arguments do not fit {tool.name}: {words_of(error)}"
    return params


def _problem(found: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in found["loc"]) or "arguments"
    words = f"{field}: {found['msg']}"
    if found["type"] in ("missing", "extra_forbidden") or not found["loc"]:
        return words
    return f"{words}, got {repr(found['input'])[:60]}"


def words_of(error: BaseException) -> str:
    """Type and text of what a tool raised."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def message_of(error: BaseException) -> str:
    """Its text; empty when it has none."""
    try:
        return readable(str(error))
    except BaseException as broken:  # noqa: BLE001  # an exception of the tool's own, whose text fails
        return f"(its text cannot be read: {type(broken).__name__})"
