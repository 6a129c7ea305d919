"""Every numbered ruling of the machines' specifications has a test that carries its number."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
RULINGS = {"000": 16, "001": 9, "002": 9, "003": 11, "004": 6}
"""Machine family -> how many rulings its specification numbers."""
NUMBER = re.compile(r"\bR[-_](\d{3})[-_](\d+)")


def _said(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return f"{node.name} {ast.get_docstring(node) or ''}".replace("test_R_", "R_")


def carried() -> dict[str, list[str]]:
    """Ruling -> the tests that carry its number in their name or docstring."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for family, number in NUMBER.findall(_said(node)):
                    found.setdefault(f"R-{family}-{number}", []).append(f"{path.name}::{node.name}")
    return found


def test_every_ruling_is_carried_by_a_test() -> None:
    wanted = {f"R-{family}-{n}" for family, count in RULINGS.items() for n in range(1, count + 1)}
    assert sorted(wanted - set(carried())) == []


def test_no_test_carries_a_number_that_there_is_not() -> None:
    known = {f"R-{family}-{n}" for family, count in RULINGS.items() for n in range(1, count + 1)}
    assert {number: tests for number, tests in carried().items() if number not in known} == {}
