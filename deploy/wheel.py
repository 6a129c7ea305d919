"""How the wheel gets its one name: hatch calls this when it builds one.

Every Temporal project has folders `workflows` and `activities`, and LlamaIndex has a package `workflows`: an
installed Ratchet must not have them, too. `pyproject.toml` puts the checkout's packages below `ratchet`. Here
their imports follow, and strings that are the whole dotted name of one of their modules. No line moves, and
nothing else changes. A table says which file of the checkout each one was, so that a certificate from the
checkout is good for the wheel, too. An editable installation is the checkout as it is.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["CHANGED", "MOVED", "NAME", "Wheel", "module_names", "moved"]

NAME = "ratchet"
MOVED = ("workflows", "activities", "client", "worker")
"""The top-level names of the checkout that are below `ratchet` in the wheel."""
CHANGED = "client/proof/changed.json"
"""The table: SHA-256 of a file that changes, as it is in the wheel -> in the checkout."""
PAGES = ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
"""Pages that do not lie in the folder docs."""

Change = tuple[int, int, str, str]
"""Line, column in bytes, what stands there, what shall."""


class Wheel(BuildHookInterface[Any]):
    """The hook. Hatch takes a file that changes from a folder of ours, every other one from the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files that change, and say where they are. Raises ValueError for one that cannot."""
        if self.target_name != "wheel" or version == "editable":
            return
        self.made = TemporaryDirectory(prefix="ratchet-wheel-")
        root = Path(self.root)
        modules = module_names(root)
        selected = self.build_config.builder.recurse_selected_project_files()
        places = {Path(one.path): one.distribution_path for one in selected if one.path.endswith(".py")}
        changed, include = dict[str, str](), build_data["force_include"]
        for source, place in {**places, root / "worker.py": f"{NAME}/worker.py"}.items():
            before = source.read_bytes()
            after = moved(before.decode(), modules, str(source.relative_to(root))).encode()
            if after != before:
                include[self._written(place, after)] = place
                changed[hashlib.sha256(after).hexdigest()] = hashlib.sha256(before).hexdigest()
        for page in (*(root / name for name in PAGES), *root.glob("docs/*.md")):  # for `ratchet docs`
            include[str(page)] = f"{NAME}/{page.relative_to(root)}"
        table = json.dumps(changed, sort_keys=True, indent=1)
        include[self._written(CHANGED, table.encode())] = f"{NAME}/{CHANGED}"

    def _written(self, place: str, content: bytes) -> str:
        target = Path(self.made.name, place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return str(target)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if hasattr(self, "made"):
            self.made.cleanup()


def module_names(root: Path) -> frozenset[str]:
    """The dotted names of the modules and packages that move."""
    files = [file.relative_to(root) for top in MOVED for file in (root / top).rglob("*.py")]
    return frozenset(".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files)


def moved(text: str, modules: Collection[str], file: str) -> str:
    """A module's source as it stands in the wheel. Raises ValueError for an import that cannot be changed."""
    lines = text.encode().splitlines(keepends=True)
    for number, column, before, after in sorted(_changes(ast.parse(text, file), modules, file), reverse=True):
        line = lines[number - 1]
        at = line.index(before.encode(), column)
        lines[number - 1] = line[:at] + after.encode() + line[at + len(before.encode()) :]
    return b"".join(lines).decode()


def _changes(tree: ast.AST, modules: Collection[str], file: str) -> Iterator[Change]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(name), level=0) if name.partition(".")[0] in MOVED:
                yield node.lineno, node.col_offset, f"from {name} ", f"from {NAME}.{name} "
            case ast.Import(names=[ast.alias(name=name, asname=None)]) if name in MOVED:
                yield node.lineno, node.col_offset, f"import {name}", f"from {NAME} import {name}"
            case ast.Import(names=names) if any(one.name.partition(".")[0] in MOVED for one in names):
                raise ValueError(
                    f"{file}:{node.lineno}: `{ast.unparse(node)}` cannot be put below the name {NAME}; "
                    "write `from PACKAGE import MODULE`"
                )
            case ast.Constant(value=str(name)) if "." in name and name in modules:
                yield node.lineno, node.col_offset, name, f"{NAME}.{name}"
