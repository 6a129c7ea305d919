"""The command `ratchet`: which module has which command, standard streams, errors and exit codes.

A command's module is imported when the command is called; heavy imports stay inside the commands. So
`--help` and completion answer at once.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from client.errors import RatchetError

__all__ = ["COMMANDS", "app", "execute", "main"]

INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 done, or sent; 1 it failed, or there is no such thing; 2 wrong usage; 3 the run refuses "
    "it and says why; 4 nobody confirmed it; 130 interrupted."
)
MODULES = {
    "run": ("run", "dev", "down", "task"),
    "inspect": ("list", "show", "log", "watch", "result", "cancel"),
    "inbox": ("inbox",),
    "decide": (
        "approve", "reject", "edit", "answer", "retry", "topup", "finish", "resume",
        "pause", "steer", "abort", "limits", "rollback", "key",
    ),
    "history": ("steps", "fork", "replay", "compare"),
    "catalog": ("agents", "tools", "machines", "diagram"),
    "doctor": ("doctor",),
}  # fmt: skip
COMMANDS = {command: module for module, commands in MODULES.items() for command in commands}


class _LazyGroup(TyperGroup):
    """Imports a command's module when the command is wanted."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            close = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "`ratchet --help` lists the commands"
            ctx.fail(f"No such command {cmd_name!r}; {hint}")
        module = import_module(f"client.cli.{COMMANDS[cmd_name]}")
        return typer.main.get_group(module.app).commands[cmd_name]


app = typer.Typer(
    cls=_LazyGroup,
    help="Durable LLM agents as verified finite state machines on Temporal.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"ratchet {version('ratchet')}")
        except PackageNotFoundError:
            typer.echo("ratchet, run from a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line and leave with its exit code.

    It leaves without the interpreter's own end: the threads of Temporal's core can abort that.
    """
    _open_streams()
    code = execute()
    try:
        sys.stdout.flush()
    except RatchetError as error:
        code = code or _report(error, str(error))
    except OSError:
        pass  # the reader of a pipe went away
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run one command; whatever goes wrong becomes one paragraph on standard error.

    Args:
        arguments: what follows the program's name; default: those of this process.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        app(list(arguments), prog_name="ratchet")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return 0  # Click leaves with 1 when the reader of a pipe went away
        return end.code if isinstance(end.code, int) else 1 if end.code else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except RatchetError as error:
        return _report(error, str(error), debug=debug)
    except Exception as error:  # noqa: BLE001  # a bug of ours is no reason to show a traceback
        text = f"unexpected error: {type(error).__name__}: {error} (--debug shows where)"
        return _report(error, text, debug=debug)
    return 0


def _report(error: Exception, text: str, *, debug: bool = False) -> int:
    from client.cli.render import plain

    if debug:
        traceback.print_exception(error)
    sys.stderr.write(f"ratchet: {plain(text)}\n")
    return error.exit_code if isinstance(error, RatchetError) else 1


# -- standard streams --------------------


def _open_streams() -> None:
    """Make standard output and error take any text.

    A closed one takes everything; a terminal that lacks a character gets `?` for it. Writing to standard
    output raises RatchetError when its disk is full, and BrokenPipeError when its reader went away.
    """
    nowhere = Path(os.devnull)
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")  # stays open to the end
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
    if isinstance(sys.stdout, TextIOWrapper):
        before = sys.stdout
        sys.stdout = _Output(
            before.detach(),
            encoding=before.encoding,
            errors="replace",
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )


class _Output(TextIOWrapper):
    def write(self, text: str, /) -> int:
        with _explained():
            return super().write(text)

    def flush(self) -> None:
        with _explained():
            super().flush()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RatchetError(f"standard output cannot be written: {error.strerror or error}") from error
