"""Paths in the arguments of tools: one form, in which they are judged, shown, logged and opened. Pure."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import WithJsonSchema

__all__ = ["PATH_FORMATS", "RELATIVE", "RelativePath", "normal_path"]

PATH_BYTES = 2048
"""Longer paths could be made part by part, but other programs could not use them."""
RELATIVE = "relative-path"
PATH_FORMATS = (RELATIVE, "path", "file-path", "directory-path")
"""Values of `format` in a tool's JSON schema that mark a path: ours, and pydantic's for `pathlib.Path`."""

RelativePath = Annotated[str, WithJsonSchema({"type": "string", "format": RELATIVE})]
"""A path below a folder that the tool knows; the gate brings it to its normal form."""


def normal_path(path: str, form: str = RELATIVE) -> str:
    """`./a//b/` becomes `a/b`, the folder itself `.`, and letters Unicode's composed form (NFC): some file
    systems open the same file for both forms.

    Raises:
        ValueError: it has a `..`, a backslash or a control character, is too long, or is absolute where
            `form` is `relative-path`; the text is for a model.
    """
    shown, path = repr(path[:200]), unicodedata.normalize("NFC", path[: PATH_BYTES + 1])
    if len(path.encode(errors="replace")) > PATH_BYTES:
        raise ValueError(f"{shown} is longer than a path may be ({PATH_BYTES:,} bytes)")
    if "\\" in path or any(unicodedata.category(character) == "Cc" for character in path):
        raise ValueError(f"{shown} has a backslash or a control character; write folders with /")
    if path.startswith("/") and form == RELATIVE:
        raise ValueError(f"{shown} is absolute; give a path relative to the working folder")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{shown} has a part `..`; name the folder itself")
    return "/" * path.startswith("/") + "/".join(parts) or "."
