"""The toolbox: which tools there are, and users' modules that add to them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from activities.extensions import ExtensionError, load_modules
from activities.settings import Settings
from activities.tool import ToolActivities
from activities.toolbox import Tool, Toolbox
from tests.activities.toolkit import NoParams, called, settings_on

ROOT = Path(__file__).parents[2]

SOURCE = '''
from __future__ import annotations
from pydantic import BaseModel
from activities.toolbox import Tool

class Params(BaseModel):
    """{description}"""
    text: str = ""

def run(params: Params) -> str:
    return params.text.upper()

{constant}
'''


def write_tool(folder: Path, file: str, name: str, constant: str = "TOOL = {tool}") -> str:
    tool = f'Tool("{name}", Params, run, effect="pure")'
    path = folder / file
    path.write_text(SOURCE.format(description=name, constant=constant.format(tool=tool)))
    return str(path)


def load(*modules: str) -> Toolbox:
    return Toolbox.load(Settings(modules=modules))


def test_every_file_in_the_folder_is_a_tool_under_its_own_name() -> None:
    files = {path.stem for path in (ROOT / "activities" / "tools").glob("*.py")} - {"__init__"}
    assert set(load().names) == files
    assert load().names == tuple(sorted(files))


def test_shipped_tools_declare_what_a_second_run_would_do() -> None:
    effects = {spec.name: spec.effect for spec in load().specs}
    assert effects == {
        "calculator": "pure",
        "current_time": "read",
        "http_get": "read",
        "list_files": "read",
        "read_file": "read",
        "search_files": "read",
        "write_file": "idempotent",
    }


def test_specs_hold_what_a_model_needs_and_no_titles() -> None:
    for spec in load().specs:
        assert spec.description
        assert spec.parameters["type"] == "object"
        assert "title" not in str(spec.parameters)
        assert spec.parameters["additionalProperties"] is False


async def test_a_users_file_adds_its_tool(tmp_path: Path) -> None:
    path = write_tool(tmp_path, "shout.py", "shout")
    settings = settings_on(tmp_path, modules=(path,))
    result = await called(ToolActivities(Toolbox.load(settings), settings), "shout", text="hey")
    assert result.output == "HEY"


def test_a_users_tool_replaces_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    found = load(write_tool(tmp_path, "mine.py", "calculator")).get("calculator")
    assert found is not None
    assert found.description == "calculator"
    assert len(load().names) == len(load(str(tmp_path / "mine.py")).names)


def test_two_users_tools_of_one_name_are_refused_naming_both_files(tmp_path: Path) -> None:
    one, two = write_tool(tmp_path, "one.py", "same"), write_tool(tmp_path, "two.py", "same")
    with pytest.raises(ExtensionError, match=r"name same: one in .*one\.py, one in .*two\.py"):
        load(one, two)


def test_a_module_may_hold_several_tools_or_none(tmp_path: Path) -> None:
    several = write_tool(tmp_path, "several.py", "first", "TOOLS = ({tool},)")
    (tmp_path / "rules.py").write_text("RULE = 1\n")
    assert "first" in load(several, str(tmp_path / "rules.py")).names


def test_the_same_module_named_twice_is_loaded_once(tmp_path: Path) -> None:
    path = write_tool(tmp_path, "once.py", "once")
    around = str(tmp_path / "." / "x" / ".." / "once.py")
    (tmp_path / "x").mkdir()
    assert "once" in load(path, path, around).names
    (first,), (second,) = load_modules([path]), load_modules([path])
    assert first is second


def test_a_file_module_has_a_stable_name_below_one_package(tmp_path: Path) -> None:
    (module,) = load_modules([write_tool(tmp_path, "my-tool v2.py", "named")])
    assert module.__name__.startswith("ratchet_user.my_tool_v2_")
    assert sys.modules[module.__name__] is module
    assert "ratchet_user" in sys.modules


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = write_tool(tmp_path / "a", "tool.py", "one")
    two = write_tool(tmp_path / "b", "tool.py", "two")
    assert {"one", "two"} <= set(load(one, two).names)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("x = 1\ny = (\n", r"broken\.py: line 2: SyntaxError: ", id="syntax"),
        pytest.param("\n\nboom\n", r"broken\.py: line 3: NameError: name 'boom'", id="name"),
        pytest.param("import no_such_module\n", r"line 1: ModuleNotFoundError: .*no_such", id="import"),
        pytest.param("raise SystemExit(2)\n", r"line 1: SystemExit: 2", id="exit"),
        pytest.param("TOOL = 3\n", r"broken\.py: TOOL and TOOLS hold `Tool` objects, not 3", id="type"),
        pytest.param("TOOLS = 3\n", r"broken\.py: TOOLS must be a tuple", id="types"),
        pytest.param(
            "def f():\n    import json\n    json.loads('{')\nf()\n",
            r"broken\.py: line 3: JSONDecodeError",
            id="deeper",
        ),
        pytest.param(
            "from activities.toolbox import Tool\nTOOL = Tool('a b', int, print)\n",
            r"broken\.py: line 2: ValueError: tool 'a b': a name is 1 to 64",
            id="tool",
        ),
    ],
)
def test_a_broken_module_is_named_with_line_and_cause(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(ExtensionError, match=words):
        load(str(tmp_path / "broken.py"))


def test_a_broken_file_can_be_loaded_once_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "mended.py"
    path.write_text("boom\n")
    with pytest.raises(ExtensionError):
        load_modules([str(path)])
    path.write_text("boom = 1  # mended\n")
    assert load_modules([str(path)])[0].boom == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/tool.py", r"nowhere/tool\.py: there is no such file"),
        ("no_such_package.tools", "there is no module no_such_package.tools"),
        ("json.no_such_part", "there is no module json.no_such_part"),
        (" ", "a module name is blank"),
        ("./README", "there is no such file"),
    ],
)
def test_a_missing_module_is_named(name: str, words: str) -> None:
    with pytest.raises(ExtensionError, match=words):
        load(name)


def test_a_file_that_is_no_python_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tool.txt").write_text("")
    with pytest.raises(ExtensionError, match=r"its name must end in \.py"):
        load(f"{tmp_path}/tool.txt")


def test_a_dotted_name_is_imported() -> None:
    assert load_modules(["json.decoder"])[0].__name__ == "json.decoder"


def test_installed_packages_announce_modules_by_entry_point(tmp_path: Path) -> None:
    """A real package on the path of a process of its own, as pip would have left it there."""
    write_tool(tmp_path, "announced_tools.py", "announced")
    meta = tmp_path / "announced-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[ratchet.modules]\nmine = announced_tools\n")
    program = (
        "from activities.toolbox import Toolbox; from activities.settings import Settings;"
        "print(Toolbox.load(Settings()).names)"
    )
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'announced'" in done.stdout, done.stderr


class Undescribed(BaseModel):
    text: str = ""


def answer(params: NoParams) -> str:
    return "x"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "a name is 1 to 64"),
        ({"name": "x" * 65}, "a name is 1 to 64"),
        ({"name": "tool.x"}, "a name is 1 to 64"),
        ({"name": "tool\n"}, "a name is 1 to 64"),
        ({"params": dict}, "params must be a pydantic model class"),
        ({"params": Undescribed}, "Undescribed needs a docstring"),
        ({"effect": "harmless"}, "effect 'harmless' is none of pure, read"),
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0"),
        ({"cache": "run"}, "only a pure or read tool may be cached, not one that is unsafe"),
        ({"run": lambda: "x"}, "run must be a function of"),
        ({"run": 3}, "run must be a function of"),
    ],
)
def test_a_tool_that_could_not_be_offered_is_refused(change: dict[str, Any], words: str) -> None:
    right: dict[str, Any] = {"name": "probe", "params": NoParams, "run": answer}
    assert Tool(**right).effect == "unsafe"
    with pytest.raises(ValueError, match=words):
        Tool(**(right | change))
