"""What an MCP server answers, as our tools' data: a tool's declaration, and the result of a call."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for
from pydantic import JsonValue, RootModel

from activities.contracts import RELATIVE, ToolEffect
from activities.text import readable
from activities.tools import ToolReturn

if TYPE_CHECKING:
    import mcp_types as types

__all__ = ["arguments_model", "effect_of", "path_problem", "returned", "schema_problem", "with_paths"]

DESCRIPTION_CHARS = 8_000
"""Of a tool, that a model is shown."""
SCHEMA_BYTES = 64 * 1024
SCHEMA_PARTS = 20_000
"""Of a schema, with each reference written out: what checking arguments against it may take."""
URI_CHARS = 500
NO_LIST = r"^\s*[^\s\[]"
"""Of a path where a list is taken, too: servers with MCP's SDK read `["../x"]` in a text as that list."""


def effect_of(tool: types.Tool) -> ToolEffect:
    """What the server says that a second call would do."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "read"
    return "idempotent" if hints is not None and hints.idempotent_hint else "unsafe"


def schema_problem(schema: dict[str, Any]) -> str:
    """Why this cannot be the schema of a tool's arguments; empty when it can."""
    try:
        if len(json.dumps(schema).encode()) > SCHEMA_BYTES:
            return f"its schema has more than {SCHEMA_BYTES:,} bytes"
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
        if _parts(schema, schema, {}) > SCHEMA_PARTS:
            return f"its schema has more than {SCHEMA_PARTS:,} parts, with its references written out"
    except SchemaError as error:
        return f"it is no JSON schema: {readable(error.message)[:200]}"
    except Exception:  # noqa: BLE001  # a malformed schema breaks the library in many ways
        return "its schema is malformed, or nested too deeply"
    return ""


def path_problem(schema: dict[str, Any], paths: Mapping[str, bool]) -> str:
    """Why these arguments cannot be checked as paths; empty when they can. `paths` as
    `McpConfig.path_arguments` gives them."""
    known = schema.get("properties", {})
    for name, must_be in paths.items():
        if name not in known and must_be:
            return f"`paths` names an argument {name!r} that it lacks; it has: {', '.join(known) or 'none'}"
        if name in known and _as_path(known[name]) is None:
            return (
                f"`paths` names its argument {name!r}, but its schema does not say that it is a text or a "
                "list of texts and nothing else"
            )
    return ""


def with_paths(schema: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The schema with these arguments marked, so that the gate checks them as `RelativePath`."""
    known = schema.get("properties", {})
    marked = {name: _as_path(known[name]) for name in paths if name in known}
    return {**schema, "properties": {**known, **marked}} if marked else schema


def _as_path(schema: Any) -> dict[str, Any] | None:
    """The schema of what is a text, a list of texts, or either, marked as a path; None: it takes more, or
    that cannot be told."""
    marked = _marked(schema)
    if marked is None or not _types(marked) & {"string", "array"}:
        return None
    if _types(marked) >= {"string", "array"}:
        if "pattern" in marked:
            marked = {"anyOf": [marked]}
        marked["pattern"] = NO_LIST
    return marked


def _marked(schema: Any) -> dict[str, Any] | None:
    """Every text in it marked; null needs no mark."""
    if not isinstance(schema, dict) or "$ref" in schema:  # older drafts ignore what stands beside a reference
        return None
    if "type" not in schema:
        for key in ("anyOf", "oneOf"):
            ways = [_marked(way) for way in schema.get(key) or ()]
            if ways and None not in ways:
                return {**schema, key: ways}
        return None
    types = _types(schema)
    if types - {"string", "array", "null"}:
        return None
    marked = {**schema, "format": RELATIVE} if "string" in types else dict(schema)
    if "array" in types:
        first, others = schema.get("prefixItems", []), schema.get("items")
        parts = [_marked(part) for part in first] if isinstance(first, list) else [None]
        rest = False if parts and others is False else _marked(others)
        if rest is None or None in parts:
            return None
        marked |= {"items": rest, "prefixItems": parts} if parts else {"items": rest}
    return marked


def _types(schema: Any) -> set[str]:
    """The JSON types that a schema names, at its top or in its alternatives."""
    if not isinstance(schema, dict):
        return set()
    if "type" in schema:
        named = schema["type"]
        return {str(one) for one in (named if isinstance(named, list) else [named])}
    return {one for key in ("anyOf", "oneOf") for way in schema.get(key) or () for one in _types(way)}


def _parts(schema: Any, root: dict[str, Any], known: dict[str, int]) -> int:
    """How large a schema is when references are written out. One inside itself counts once."""
    if isinstance(schema, list):
        return sum(_parts(item, root, known) for item in schema)
    if not isinstance(schema, dict):
        return 1
    size = 1 + sum(_parts(item, root, known) for item in schema.values())
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        if reference not in known:
            known[reference] = 0
            target: Any = root
            for part in reference.split("/")[1:]:
                target = (
                    target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else 0
                )
            known[reference] = _parts(target, root, known)
        size += known[reference]
    return size


def arguments_model(tool: types.Tool, paths: Iterable[str] = ()) -> type[RootModel[dict[str, JsonValue]]]:
    """A model whose JSON schema is the server's, with `paths` marked. The run has fitted its arguments."""
    schema = with_paths(tool.input_schema, paths)

    class Arguments(RootModel[dict[str, JsonValue]]):
        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return {"type": "object", "properties": {}, **schema}

    words = readable(tool.description or tool.title or "").strip()
    if len(words) > DESCRIPTION_CHARS:
        words = f"{words[:DESCRIPTION_CHARS]} [cut]"
    Arguments.__doc__ = words or f"{tool.name}: the server does not describe it."
    return Arguments


def returned(result: types.CallToolResult) -> ToolReturn:
    """The result as text for the model. What is no text is named there, and kept whole beside it."""
    texts = [_text(block) for block in result.content]
    output: object = "\n".join(texts)
    if not texts:
        output = "" if result.structured_content is None else result.structured_content
    elif result.structured_content is not None and not _says(texts, result.structured_content):
        output = f"{output}\n{json.dumps(result.structured_content, ensure_ascii=False)}"
    whole = None
    if any(_data(block) for block in result.content):
        whole = result.model_dump_json(by_alias=True, exclude_none=True).encode()
    return ToolReturn(output, failed=result.is_error, whole=whole)


def _says(texts: list[str], structured: Any) -> bool:
    """Servers repeat a structured result as text, for hosts that know only that."""
    if isinstance(structured, dict) and len(structured) == 1:
        (value,) = structured.values()
        if "\n".join(texts) == (value if isinstance(value, str) else json.dumps(value)):
            return True
        if isinstance(value, list) and len(value) == len(texts):
            return all(text == item or _json(text) == item for text, item in zip(texts, value, strict=True))
    if len(texts) != 1:
        return False
    said = _json(texts[0])
    return structured in (said, {"result": said})


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _data(block: types.ContentBlock) -> str:
    """Base 64 of what is no text; empty: it is text."""
    if block.type in ("image", "audio"):
        return block.data
    return str(getattr(block.resource, "blob", "")) if block.type == "resource" else ""


def _text(block: types.ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "image" or block.type == "audio":  # noqa: PLR1714  # so that mypy sees it
        return f"[{block.type}, {_size(block.data, block.mime_type)}]"
    if block.type == "resource_link":
        words = " ".join(word for word in (block.title or block.name, block.description or "") if word)
        return f"[link to {block.uri[:URI_CHARS]}: {words}]"
    resource = block.resource
    if hasattr(resource, "text"):
        return f"[resource {resource.uri[:URI_CHARS]}]\n{resource.text}"
    return f"[resource {resource.uri[:URI_CHARS]}, {_size(resource.blob, resource.mime_type)}]"


def _size(data: str, kind: str | None) -> str:
    try:
        size = f"{len(base64.b64decode(data, validate=True)):,} bytes"
    except ValueError:
        size = "damaged"
    return f"{(kind or 'of unknown kind')[:100]}, {size}; kept, not shown"
