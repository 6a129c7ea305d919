"""Commands that write files to begin with: init, new. They overwrite nothing.

They copy from `examples/new`; in `my_tool` and `my_machine` only the name changes. A schema that editors read
comes with each agent file.
"""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from client.agents.files import EXAMPLES
from client.cli.options import command
from client.errors import UsageError

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)
TEMPLATES = EXAMPLES / "new"
GITIGNORE = Path(".gitignore")
IGNORED = ".ratchet/"
FILES = {
    "tool": ("my_tool.py", "test_my_tool.py"),
    "machine": ("my_machine.py", "my_machine.yaml", "test_my_machine.py"),
}
SCHEMA = Path("agent.schema.json")
"""What editors check an agent file by; the file's first line names it. Made by `make docs`."""
DETECTIVE = "examples/agents/log_detective.yaml"


@command(app)
async def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.")] = Path(),
    examples: Annotated[
        bool, typer.Option("--examples", help="The shipped examples and their data instead.")
    ] = False,
) -> None:
    """Write an agent, a tool, a test and a `.gitignore` to begin with."""
    goal = "How many words does agent.yaml have?"
    files = {Path(name): TEMPLATES / name for name in ("agent.yaml", "count_words.py", "test_agent.py")}
    next_lines = {
        f'ratchet run --agent agent.yaml "{goal}"': "its model is a script: no key",
        f'OPENAI_API_KEY=... ratchet run --agent agent.yaml --model gpt-5-mini "{goal}"': "",
        "pytest test_agent.py": "after `pip install pytest`; then `ratchet new tool NAME`",
        "ratchet docs tutorial": "all by hand in ten minutes; for coding agents: `ratchet docs agents`",
    }
    if examples:
        files = {"examples" / file.relative_to(EXAMPLES): file for file in _example_files()}
        next_lines = {
            f'ratchet run --agent {DETECTIVE} "Which service fails most?"': "no key, as for most of them",
            "ratchet agents": "lists them",
        }
    texts = {path: file.read_bytes() for path, file in files.items()}
    if not examples:
        texts |= _schema(folder)
    if not (folder / GITIGNORE).exists():
        texts[GITIGNORE] = f"{IGNORED}\n__pycache__/\n".encode()
    elif IGNORED not in (folder / GITIGNORE).read_text(encoding="utf-8", errors="replace"):
        typer.echo(f"{folder / GITIGNORE} is left as it is; add the line {IGNORED} to it")
    _write(folder, texts)
    _say_next(next_lines, folder)


@command(app)
async def new(
    kind: Annotated[Literal["tool", "machine"], typer.Argument(help="What to write.")],
    name: Annotated[str, typer.Argument(help="Of the tool or machine, and of its file.")],
) -> None:
    """Write a tool or a machine with a test, to be changed."""
    _check_name(kind, name)
    texts = {
        Path(one.replace(f"my_{kind}", name)): (TEMPLATES / one)
        .read_bytes()
        .replace(f"my_{kind}".encode(), name.encode())
        for one in FILES[kind]
    }
    _write(Path(), texts | (_schema(Path()) if kind == "machine" else {}))
    if kind == "tool":
        _say_next(
            {
                f"pytest test_{name}.py": "",
                f"modules: [{name}.py]": f"in an agent file, and {name} in its list of tools",
            }
        )
    else:
        _say_next(
            {
                f'ratchet run --agent {name}.yaml "Why do ships float?"': "its model is a script: no key",
                f"ratchet diagram {name} --agent {name}.yaml": "",
                f"pytest test_{name}.py": "",
            }
        )


def _example_files() -> list[Path]:
    return sorted(
        path
        for path in EXAMPLES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and TEMPLATES not in path.parents
    )


def _schema(folder: Path) -> dict[Path, bytes]:
    """The schema of agent files, unless the folder has one: it may know machines of its own."""
    return {} if (folder / SCHEMA).exists() else {SCHEMA: (TEMPLATES / SCHEMA).read_bytes()}


def _check_name(kind: str, name: str) -> None:
    """Raise a UsageError for a name that its file, or what is in it, cannot have."""
    from activities.settings import Settings
    from activities.tools import load_tools
    from workflows import registry

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a Python file; write it like `send_reply`")
    if name in sys.stdlib_module_names or find_spec(name) is not None:
        raise UsageError(f"{name}.py would hide the Python module {name}; choose another name")
    if kind == "machine" and name in {machine.name for machine in registry.shipped()}:
        raise UsageError(f"there is a machine {name} already; choose another name")
    if kind == "tool" and name in load_tools(Settings()):
        raise UsageError(f"a tool {name} comes with Ratchet; choose another name")


def _write(folder: Path, texts: Mapping[Path, bytes]) -> None:
    """Write all files or, when one is there already, none. Raises UsageError."""
    if there := [str(folder / path) for path in texts if (folder / path).exists()]:
        raise UsageError(f"nothing was written, because there is already {', '.join(there)}")
    for path, text in texts.items():
        file = folder / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as opened:
                opened.write(text)
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error
    names = ", ".join(map(str, texts)) if len(texts) < 10 else f"{len(texts)} files in examples/"
    typer.echo(f"wrote {names}")


def _say_next(lines: Mapping[str, str], folder: Path = Path()) -> None:
    typer.echo("next:" if folder == Path() else f"next:\n  cd {shlex.quote(str(folder))}")
    for line, why in lines.items():
        typer.echo(f"  {line}{f'    # {why}' if why else ''}")
