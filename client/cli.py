"""The command `ratchet`: a thin layer over `AgentClient`.

Heavy imports stay inside the commands, so that `--help` and completion answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from client.errors import RatchetError
from client.place import INTERRUPTED, command
from client.streams import open_streams

__all__ = ["app", "execute", "main"]

EXIT_CODES = (
    "Exit codes: 0 done; 1 it failed, or there is no such thing; 2 what was asked for makes no sense; "
    "3 the run refused it, and said why; 4 nobody confirmed it; 130 interrupted."
)

app = typer.Typer(
    help="Durable LLM agents as verified finite state machines on Temporal.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ratchet {version('ratchet')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_tell_version, is_eager=True),
    ] = False,
) -> None:
    pass


def _register() -> None:
    from client import cli_catalog, cli_doctor, cli_orders, cli_people, cli_read, cli_run, cli_time

    for name, work in {
        **cli_run.COMMANDS,
        **cli_read.COMMANDS,
        **cli_people.COMMANDS,
        **cli_orders.COMMANDS,
        **cli_time.COMMANDS,
        **cli_catalog.COMMANDS,
        **cli_doctor.COMMANDS,
    }.items():
        command(app, name)(work)


_register()


def main() -> NoReturn:
    """Run the command line and leave with its exit code.

    Leaves without the interpreter's own end: the Temporal core's threads sometimes abort it.
    """
    open_streams()
    code = execute()
    try:
        sys.stdout.flush()
    except RatchetError as error:
        code = code or _failed(error)
    except OSError:
        pass  # the reader of a pipe went away
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run a command; whatever goes wrong becomes one paragraph and an exit code.

    Args:
        arguments: what follows the program's name; None: those of this process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app(list(arguments), prog_name="ratchet")
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            return 0  # Click and Rich leave with 1 when the reader of a pipe went away
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except RatchetError as error:
        return _failed(error, debug="--debug" in arguments)
    except Exception as error:  # noqa: BLE001  # a bug of ours is no reason to show a traceback
        said = f"{type(error).__name__}: {error}".strip()
        text = f"something unexpected went wrong: {said} (--debug shows where)"
        _say(error, text, debug="--debug" in arguments)
        return 1
    return 0


def _failed(error: RatchetError, *, debug: bool = False) -> int:
    _say(error, str(error), debug=debug)
    return error.exit_code


def _say(error: Exception, text: str, *, debug: bool) -> None:
    from client.view import plain

    if debug:
        traceback.print_exception(error)
    sys.stderr.write(f"ratchet: {plain(text)}\n")
