"""The house: imports run one way and never in a circle; authors import from one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ratchet
from client import errors as client_errors
from client.errors import RatchetError
from workflows.kernel import errors as kernel_errors
from workflows.kernel.errors import KernelError

ROOT = Path(__file__).parents[1]
PACKAGES = ("ratchet", "workflows", "activities", "client")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str]) -> set[str]:
    """Modules of ours that a file imports when it is imported: not inside functions, not for types only."""
    found: set[str] = set()
    todo: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= names or {node.module}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found & modules


def test_no_circle_of_imports() -> None:
    files = {module_name(p): p for name in PACKAGES for p in (ROOT / name).rglob("*.py")}
    graph = {name: imports(path, set(files)) - {name} for name, path in files.items()}
    while leaves := [name for name, wanted in graph.items() if not wanted & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"these import each other in a circle: {sorted(graph)}"


def test_every_name_for_authors_exists() -> None:
    assert all(getattr(ratchet, name) is not None for name in ratchet.__all__)
    source = ast.parse((ROOT / "ratchet" / "__init__.py").read_text())
    typed = {
        one.asname for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for one in node.names
    }
    assert typed - {None} == set(ratchet.__all__)


def test_every_error_that_users_meet_comes_from_ratchet() -> None:
    """What `raise_if_failed` raises, and what `AgentClient` and `Local` raise."""
    found = [*vars(kernel_errors).values(), *vars(client_errors).values()]
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, KernelError | RatchetError)]
    of_the_command_line = {"NotConfirmed"}
    assert {one.__name__ for one in kinds} - of_the_command_line <= set(ratchet.__all__)


def test_one_import_loads_no_library() -> None:
    """`import ratchet` costs nothing, and a machine loads neither Temporal nor a model's library."""
    program = (
        "import sys, ratchet; first = len(sys.modules); from ratchet import Machine, AskModel, Tool;"
        "print(first, [n for n in ('temporalio', 'openai', 'structlog') if n in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert int(shown.split()[0]) < 120
    assert "[]" in shown
