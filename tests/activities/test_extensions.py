"""Users' modules: loaded once, named when broken, and what they declare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from activities.extensions import ExtensionError, declared, load_modules

ROOT = Path(__file__).parents[2]


def write(folder: Path, name: str, source: str = "") -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return str(path)


def test_same_module_named_twice_is_loaded_once(tmp_path: Path) -> None:
    path = write(tmp_path, "once.py")
    write(tmp_path / "x", "other.py")
    around = str(tmp_path / "x" / ".." / "once.py")
    (module,) = load_modules([path, path, around])
    assert load_modules([path]) == (module,)


def test_file_module_has_a_stable_name_that_can_be_imported(tmp_path: Path) -> None:
    """Also a second time, as the workflow sandbox does."""
    (module,) = load_modules([write(tmp_path, "my-tool v2.py", "X = 1")])
    assert module.__name__.startswith("ratchet_user.my_tool_v2_")
    del sys.modules[module.__name__]
    (again,) = load_modules([str(tmp_path / "my-tool v2.py")])
    assert (again is not module, again.__name__) == (True, module.__name__)


def test_file_changed_twice_within_a_second_is_read_again(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for source in ("X = 1", "X = 2"):
        path = write(tmp_path, "quick.py", source)
        os.utime(path, (1, 1))
        program = f"from activities.extensions import load_modules as l; print('X =', l([{path!r}])[0].X)"
        command = (sys.executable, "-c", program)
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == source


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    one, two = load_modules([write(tmp_path / "a", "t.py", "X = 1"), write(tmp_path / "b", "t.py", "X = 2")])
    assert (one.X, two.X) == (1, 2)


def test_dotted_name_is_imported() -> None:
    assert load_modules(["json.decoder"])[0].__name__ == "json.decoder"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("x = 1\ny = (\n", r"broken\.py: line 2: SyntaxError: ", id="syntax"),
        pytest.param("\n\nboom\n", r"broken\.py: line 3: NameError: name 'boom'", id="name"),
        pytest.param("import no_such_module\n", r"line 1: ModuleNotFoundError: .*no_such", id="import"),
        pytest.param(
            "from ratchet import Tool\nTool(modle=1)\n",
            r"line 2: TypeError: .*'modle'; it takes name, params, run, effect",
            id="unknown argument",
        ),
        pytest.param(
            "from ratchet import state\n@state(1, read={'goal'})\ndef f(c, run): ...\n",
            r"line 2: TypeError: .*'read'; did you mean `reads`\?",
            id="misspelt argument",
        ),
        pytest.param("raise SystemExit(2)\n", r"line 1: SystemExit: 2", id="exit"),
        pytest.param(
            "def f():\n    import json\n    json.loads('{')\nf()\n",
            r"broken\.py: line 3: JSONDecodeError",
            id="deeper",
        ),
    ],
)
def test_broken_module_is_named_with_line_and_cause(tmp_path: Path, source: str, words: str) -> None:
    path = write(tmp_path, "broken.py", source)
    with pytest.raises(ExtensionError, match=words):
        load_modules([path])
    write(tmp_path, "broken.py", "fixed = True  # and a different length, so that no cache fits")
    assert load_modules([path])[0].fixed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/tool.py", r"nowhere/tool\.py: no such file; correct RATCHET_MODULES, or `modules` of"),
        ("no_such_package.tools", "there is no module no_such_package.tools"),
        ("json.no_such_part", "there is no module json.no_such_part"),
        (" ", "blank"),
        ("./README", "no such file"),
        (f"{ROOT}/pyproject.toml", r"must end in \.py"),
    ],
)
def test_missing_module_is_named(name: str, words: str) -> None:
    with pytest.raises(ExtensionError, match=words):
        load_modules([name])


def test_constants_are_collected_with_their_files(tmp_path: Path) -> None:
    one = write(tmp_path, "one.py", "MACHINE = 1\nMACHINES = [2]")
    two = write(tmp_path, "two.py", "MACHINES = (3,)")
    modules = load_modules([one, two, "json"])
    assert list(declared(modules, "MACHINE")) == [(1, one), (2, one), (3, two)]
