"""Declaring a tool, and the tools that a worker loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from activities.contracts import JsonObject
from activities.extensions import ExtensionError
from activities.settings import Settings
from activities.tools import NOT_TOOLS, Tool, ToolReturn, load_tools
from activities.tools.run import ToolRunner
from tests.activities.toolkit import NoParams, request_for

ROOT = Path(__file__).parents[2]
SOURCE = '''
from __future__ import annotations
from pydantic import BaseModel
from activities.tools import Tool

class Params(BaseModel):
    """{description}"""
    text: str = ""

async def run(params: Params) -> str:
    return params.text.upper()

{constant}
'''


def write_tool(folder: Path, file: str, name: str, constant: str = "TOOL = {tool}") -> str:
    tool = f'Tool("{name}", Params, run, effect="pure")'
    path = folder / file
    path.write_text(SOURCE.format(description=name, constant=constant.format(tool=tool)))
    return str(path)


def load(*modules: str) -> dict[str, Tool[Any]]:
    return load_tools(Settings(modules=modules))


class Undescribed(BaseModel):
    text: str = ""


def one(params: NoParams) -> str:
    return "x"


def two(key: str, params: NoParams) -> None: ...


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "1 to 64"),
        ({"name": "x" * 65}, "1 to 64"),
        ({"name": "tool.x"}, "1 to 64"),
        ({"name": "tool\n"}, "1 to 64"),
        ({"params": dict}, "params must be a pydantic model class"),
        ({"params": Undescribed}, "Undescribed needs a docstring"),
        ({"effect": "harmless"}, "'harmless'; expected one of pure, read"),
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0"),
        ({"news": "sometimes"}, "unknown news 'sometimes'; expected result, always, never"),
        ({"brings": "private"}, r"write brings=\('private',\)"),
        ({"brings": ("secret",)}, "unknown label 'secret' in brings; expected untrusted, private"),
        ({"sends": "mars"}, "unknown sends 'mars'; expected one of nowhere, internal, external"),
        ({"cache": "run"}, "only a pure or read tool can be cached"),
        ({"run": lambda: "x"}, r"run must be a function of \(params\) or \(params, call\)"),
        ({"run": 3}, "run must be a function of"),
        ({"reconcile": one}, r"reconcile must be a function of \(key, params\) or"),
        ({"reconcile": 5}, "reconcile must be a function"),
        ({"compensate": one}, r"compensate must be a function of \(params, output\) or"),
        ({"compensate": lambda a, b, c, d: None}, "compensate must be a function"),
        ({"reconcile": two, "effect": "keyed"}, "reconcile is for unsafe tools"),
        ({"compensate": two, "effect": "read"}, "nothing to undo"),
    ],
)
def test_tool_that_could_not_be_offered_is_refused(change: dict[str, Any], words: str) -> None:
    right: dict[str, Any] = {"name": "probe", "params": NoParams, "run": one}
    assert Tool(**right).effect == "unsafe"
    with pytest.raises(ValueError, match=f"^tool .*{words}"):
        Tool(**(right | change))


@pytest.mark.parametrize(
    ("said", "brings", "sends"),
    [
        ({"effect": "read"}, ("untrusted",), "external"),
        ({"effect": "pure"}, (), "nowhere"),
        ({"effect": "read", "brings": (), "sends": "nowhere"}, (), "nowhere"),
        ({"effect": "pure", "brings": ("private",), "sends": "internal"}, ("private",), "internal"),
    ],
)
def test_tool_that_says_nothing_counts_as_the_worst(
    said: dict[str, Any], brings: tuple[str, ...], sends: str
) -> None:
    spec = Tool(name="tool", params=NoParams, run=one, **said).spec()
    assert (spec.brings, spec.sends) == (brings, sends)


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf")])
def test_cost_that_cannot_be_added_up_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="cost_usd"):
        ToolReturn("x", cost_usd=cost)


def test_every_file_in_folder_is_tool_under_its_own_name() -> None:
    files = {path.stem for path in (ROOT / "activities" / "tools").glob("*.py")}
    assert list(load()) == sorted(files - {"__init__", *NOT_TOOLS})


def test_shipped_tools_declare_what_a_second_run_would_do() -> None:
    assert {name: tool.effect for name, tool in load().items()} == {
        "calculator": "pure",
        "current_time": "read",
        "http_get": "read",
        "list_files": "read",
        "read_file": "read",
        "search_files": "read",
        "write_file": "idempotent",
    }


def test_specs_hold_what_a_model_needs_and_no_titles() -> None:
    for spec in (tool.spec() for tool in load().values()):
        assert spec.description
        assert spec.parameters["type"] == "object"
        assert "title" not in str(spec.parameters)
        assert spec.parameters["additionalProperties"] is False
    both = Tool("probe", NoParams, one, reconcile=two, compensate=lambda params, output: None).spec()
    assert (both.reconciles, both.compensates) == (True, True)


def test_schema_says_that_there_are_no_other_names() -> None:
    class Inner(BaseModel):
        at: int

    class Open(BaseModel, extra="allow"):
        """Holds anything."""

    class Params(BaseModel):
        """Add."""

        inner: Inner
        other: Open

    schema = Tool(name="add", params=Params, run=lambda params: "").spec().parameters
    definitions = cast(dict[str, JsonObject], schema["$defs"])
    assert schema["additionalProperties"] is definitions["Inner"]["additionalProperties"] is False
    assert definitions["Open"]["additionalProperties"] is True


async def test_users_file_adds_its_tool(tmp_path: Path) -> None:
    tools = load(write_tool(tmp_path, "shout.py", "shout"))
    result = await ToolRunner(tools, Settings()).run_tool(request_for("shout", text="hey"))
    assert result.output == "HEY"


def test_users_tool_with_shipped_name_is_refused_with_line(tmp_path: Path) -> None:
    file = write_tool(tmp_path, "mine.py", "calculator")
    with pytest.raises(
        ExtensionError, match=r"mine\.py: line \d+: a tool calculator, and .* rename this one"
    ):
        load(file)
    (tmp_path / "same.py").write_text("from activities.tools.calculator import TOOL\n")
    assert list(load(str(tmp_path / "same.py"))) == list(load()), "to import it is no harm"


def test_two_users_tools_of_one_name_are_refused_naming_both(tmp_path: Path) -> None:
    one, two = write_tool(tmp_path, "one.py", "same"), write_tool(tmp_path, "two.py", "same")
    with pytest.raises(ExtensionError, match=r"two\.py: a tool same is in .*one\.py, too"):
        load(one, two)


def test_module_may_hold_several_tools_or_none(tmp_path: Path) -> None:
    several = write_tool(tmp_path, "several.py", "first", "TOOLS = ({tool},)")
    (tmp_path / "rules.py").write_text("RULES = {}\n")
    assert "first" in load(several, str(tmp_path / "rules.py"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("TOOL = 3\n", r"broken\.py: TOOL must be a Tool.*not 3"),
        ("TOOLS = 3\n", r"broken\.py: TOOLS must be a tuple"),
        (
            "from activities.tools import Tool\nTOOL = Tool('a b', int, print)\n",
            r"broken\.py: line 2: ValueError: tool 'a b': ",
        ),
    ],
)
def test_wrong_declaration_is_refused_with_its_file(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(ExtensionError, match=words):
        load(str(tmp_path / "broken.py"))


def test_installed_packages_announce_modules_by_entry_point(tmp_path: Path) -> None:
    """A real package on the path of a process of its own, as pip would have left it there."""
    write_tool(tmp_path, "announced_tools.py", "announced")
    meta = tmp_path / "announced-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[ratchet.modules]\nmine = announced_tools\n")
    program = (
        "from activities.tools import load_tools; from activities.settings import Settings;"
        "print(list(load_tools(Settings())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'announced'" in done.stdout, done.stderr
