"""Parts of the pages that are made from the code."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["anchor_of", "table_of"]


def anchor_of(title: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def table_of(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; each cell in one line."""
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]]) + "\n"
