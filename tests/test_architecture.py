"""Rules of the tree: imports run one way and never in a circle; authors import from one place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import ratchet
from client import errors as client_errors
from client.errors import RatchetError
from workflows.kernel import errors as kernel_errors
from workflows.kernel.errors import KernelError
from workflows.machines import authoring

ROOT = Path(__file__).parents[1]
PACKAGES = ("ratchet", "workflows", "activities", "client")
BESIDE = ("benchmarks", "deploy", "docs", "examples", "tests")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str]) -> set[str]:
    """Modules of ours that a file imports anywhere: also inside functions, and for types only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= names or {node.module}
    return found & modules


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or through others."""
    reached = {name: set(wanted) for name, wanted in graph.items()}
    for middle in graph:
        for wanted in reached.values():
            if middle in wanted:
                wanted.update(reached[middle])
    found = {tuple(sorted(n for n in reached[name] if name in reached[n])) for name in graph}
    return sorted(list(one) for one in found if one)


ALLOWED = {
    # for types only: a reader hands questions about a live run to a connected one, which is a reader itself
    ("client.runs.reader", "client.runs.connected"),
}
"""Imports that may close a circle; each with its reason."""


def test_no_circle_of_imports() -> None:
    files = {module_name(p): p for name in PACKAGES for p in (ROOT / name).rglob("*.py")}
    files["worker"] = ROOT / "worker.py"
    graph = {name: imports(path, set(files)) - {name} for name, path in files.items()}
    for importer, imported in ALLOWED:
        graph[importer].discard(imported)
    assert not circles(graph), "these import each other, some perhaps inside functions"


def test_page_on_the_architecture_names_what_exists() -> None:
    """Each `Class.name` in it, of a class of ours."""
    known: dict[str, set[str]] = {}
    for tree in (ast.parse(p.read_text()) for name in PACKAGES for p in (ROOT / name).rglob("*.py")):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                inside = {name for one in node.body for name in names_of(one)}
                known.setdefault(node.name, set()).update(inside)
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = [found for found in re.findall(r"`([A-Z]\w+)\.(\w+)[`(]", page) if found[0] in known]
    assert named
    assert [found for found in named if found[1] not in known[found[0]]] == []


def names_of(node: ast.AST) -> list[str]:
    """What a statement of a class defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    return [ast.unparse(one) for one in node.targets] if isinstance(node, ast.Assign) else []


def test_every_exception_from_a_check_has_its_reason() -> None:
    exceptions = re.compile(r"# (noqa|type: ignore)\b(?!(: [A-Z0-9, ]+|\[[a-z, -]+\])  # \S)")
    files = [
        ROOT / "worker.py",
        *(path for name in (*PACKAGES, *BESIDE) for path in (ROOT / name).rglob("*.py")),
    ]
    lines = [(path, line) for path in files for line in path.read_text().splitlines()]
    assert [(path.name, line.strip()) for path, line in lines if exceptions.search(line)] == []


def test_circles_inside_functions_and_types_are_seen(tmp_path: Path) -> None:
    code = {
        "a": "import b",
        "b": "def f():\n    from c import g",
        "c": "if TYPE_CHECKING:\n    from a import T",
        "d": "import a",
    }
    for name, text in code.items():
        (tmp_path / name).write_text(text)
    assert circles({name: imports(tmp_path / name, set(code)) for name in code}) == [["a", "b", "c"]]


def test_every_name_for_authors_exists() -> None:
    assert all(getattr(ratchet, name) is not None for name in ratchet.__all__)
    source = ast.parse((ROOT / "ratchet" / "__init__.py").read_text())
    typed = {
        one.asname for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for one in node.names
    }
    # of the authoring module it takes all
    assert (typed - {None}) | set(authoring.__all__) == set(ratchet.__all__)


def test_shipped_machines_import_what_authors_import() -> None:
    """Nothing of ours that `ratchet` has comes to a shipped machine from anywhere else."""
    assert all(getattr(ratchet, name) is getattr(authoring, name) for name in authoring.__all__)
    for path in sorted((ROOT / "workflows" / "machines").glob("*/machine.py")):
        imported = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
        own = f"workflows.machines.{path.parent.name}"
        elsewhere = {
            one.name
            for node in imported
            if node.module != authoring.__name__ and not str(node.module).startswith(own)
            for one in node.names
        }
        assert not elsewhere & set(authoring.__all__), path.parent.name


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


def test_name_of_a_test_has_at_most_ten_words() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if len(node.name.removeprefix("test_").split("_")) > 10
    ]
    assert not too_long, "shorten the names of\n" + "\n".join(too_long)
