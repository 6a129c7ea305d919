"""The command `ratchet`: all commands in one table, standard streams, errors and exit codes.

A command's module is imported when the command is called, so that `--help` and completion answer at once.
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
from typer._click.exceptions import MissingParameter, NoSuchOption  # public nowhere else
from typer.core import CompletionItem  # type: ignore[attr-defined]  # public nowhere else

from activities.installed import EXTRAS, installed_version, missing_extra
from client.cli.plain_params import PlainGroup, no_such_command
from client.errors import RatchetError, UsageError
from client.runs.words import plain

__all__ = ["COMMANDS", "EXIT_CODES", "GROUPS", "app", "execute", "main"]

INTERRUPTED = 130
EXIT_CODES = {
    0: "done, or sent",
    1: "it failed, or there is no such thing",
    2: "wrong usage",
    3: "the run refuses it and says why",
    4: "nobody confirmed it",
    5: "a bug in the machine stops the run until it is fixed",
    INTERRUPTED: "interrupted",
}
BEGIN = (
    "New here? `ratchet init` writes an agent that runs without a key, and names the `ratchet run` for it; "
    "then `ratchet docs tutorial`."
)
COMMANDS = {
    "init": ("new", "Write an agent, a tool, a test and a `.gitignore` to begin with."),
    "new": ("new", "Write a tool or a machine with a test, to be changed."),
    "run": ("run", "Run an agent and show what it does as it happens."),
    "dev": ("run", "Run the embedded server, a worker and the console until Ctrl-C."),
    "console": ("console", "Serve a web page to decide what runs ask, to follow and to command them."),
    "down": ("run", "Stop the embedded server of this directory; its runs are kept."),
    "task": ("run", "Print the input of a run, for `temporal workflow start --input-file`."),
    "list": ("lists", "List runs, newest first."),
    "show": ("inspect", "Show where a run is, and its steps; with --step its state then."),
    "log": ("inspect", "Print every record of a run: what happened, why, and what it changed."),
    "watch": ("inspect", "Follow a run as it happens, to its result."),
    "result": ("inspect", "Print what came out of a run that is over."),
    "cancel": ("inspect", "Stop a run; it ends with the exit reason `cancelled`."),
    "inbox": ("lists", "List the runs that wait for people, those that have waited longest first."),
    "approve": ("decide", "Let a tool be called, or say yes to what a machine asks."),
    "reject": ("decide", "Do not let a tool be called, or say no; the model or the machine is told why."),
    "edit": ("decide", "Change the arguments of a tool's call, then let it be called."),
    "answer": ("decide", "Answer a question; of a call with an unknown outcome: what it returned."),
    "retry": ("decide", "Make a call again: the cause is fixed, or the call did not take effect."),
    "topup": ("decide", "Give a run that has reached a limit more of it."),
    "finish": ("decide", "Let a run that has reached a limit, or is stuck, end so."),
    "resume": ("decide", "Let a run continue: take a pause back, or answer what it asks."),
    "pause": ("decide", "Begin nothing new until `ratchet resume`."),
    "steer": ("decide", "Send the model a message before its next call."),
    "abort": ("decide", "End a run where it is; its result has the exit reason `aborted`."),
    "limits": ("decide", "Set limits of a run that is not over."),
    "rollback": ("decide", "Take a run back to the beginning of a step; shows what was done since."),
    "codec": ("codec", "Decode for Temporal's UI, CLI and other SDKs what is encrypted or large."),
    "key": (
        "key",
        "Make a key that signs decisions, show its public half, or make one that encrypts.",
    ),
    "steps": ("inspect", "List a run's steps: what each did, and which of them it can go back to."),
    "fork": ("history", "Start a new run from a step of another one."),
    "replay": ("history", "Run it again from its history: would today's code do the same?"),
    "check": ("history", "Before a deploy: would today's code break a run that is not over?"),
    "export": ("cassette", "Write a run as one file that `ratchet test` plays."),
    "verify": ("verify", "Prove what machines and agents can do; check the evidence of a run that is over."),
    "test": ("cassette", "Play runs from files, offline; name the first difference."),
    "compare": ("history", "Show two runs side by side by step, and where they differ first."),
    "agents": ("agents", "List agents: those of the current folder, and those that come with Ratchet."),
    "tools": ("catalog", "List tools: what they do, their arguments, what a second call would do."),
    "machines": ("catalog", "List machines; with a NAME its options, states and exit reasons."),
    "modules": ("catalog", "List or forget the modules that earlier commands in this directory named."),
    "schema": ("catalog", "Print the JSON schema of an agent file, for editors, or of a message to a run."),
    "docs": ("docs", "List the pages of the documentation, or print one."),
    "diagram": ("catalog", "Print a machine as a Mermaid state diagram or as a table."),
    "costs": ("costs", "Show what runs have cost, by agent, model or day."),
    "mcp": ("mcp", "Serve runs to an MCP client on standard input and output."),
    "gc": ("gc", "Delete stored data that no run needs any more."),
    "doctor": ("doctor", "Check server, namespace, search attributes, worker, provider, tools, store."),
}
"""Command -> its module, and what it does."""

GROUPS = {
    "Run": "run fork dev down task cancel",
    "People": "inbox approve reject edit answer retry topup finish pause resume steer abort limits rollback",
    "Look": "list show steps log watch result compare verify console costs",
    "Build": "init new docs agents tools machines modules diagram schema test export replay",
    "Operate": "doctor check gc key codec mcp",
}
"""How `--help` groups the commands; one that is in no group comes last."""


SYNONYMS = {
    word: command
    for command, words in {
        "approve": "accept allow yes",
        "cancel": "delete kill rm stop terminate",
        "console": "ui web",
        "dev": "serve server up worker",
        "inbox": "pending requests",
        "list": "ls ps runs",
        "log": "history logs",
        "reject": "deny no refuse",
        "run": "exec start",
        "show": "describe get inspect status",
        "watch": "attach follow tail",
        "--help": "help",
        "--version": "version",
    }.items()
    for word in words.split()
}
"""Names that other tools have for a command."""


def _with_metavars(*commands: Any) -> Any:
    """The first of the commands; each option is shown with its name in capitals."""
    for one in (param for command in commands for param in command.params):
        if one.metavar is None and not one.type_descriptor.is_choice:
            one.metavar = max(one.opts, key=len).lstrip("-").upper()
    return commands[0]


def _expected(param: Any, ctx: Any) -> str:
    """What a parameter that was left out is, and which command shows what it may be."""
    what = f"Expected: {getattr(param, 'help', None) or 'see --help'}"
    if param is None or param.metavar != "RUN":
        return what
    if any("REQUEST" in (one.metavar or "") for one in ctx.command.params):
        return f"{what} `ratchet inbox` shows the runs that ask"
    return f"{what} `ratchet list` shows the runs"


def _options_of(error: NoSuchOption) -> Sequence[Any]:
    return error.ctx.command.params if error.ctx is not None else ()


class _LazyGroup(PlainGroup):
    """Imports the module of a command when that command is called, and makes no other one of it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            known = SYNONYMS.get(cmd_name)
            close = [known] if known else difflib.get_close_matches(cmd_name, COMMANDS, n=2)
            ctx.fail(no_such_command(cmd_name, close, "`ratchet --help` lists the commands"))
        app: typer.Typer = import_module(f"{__package__}.{COMMANDS[cmd_name][0]}").app
        named = {one.name: one for one in app.registered_commands}
        if cmd_name not in named:  # a module that is a command of its own, with others below it
            group: Any = typer.main.get_group(app)
            return _with_metavars(group, *group.commands.values())
        command: Any = typer.main.get_command_from_info(
            named[cmd_name], pretty_exceptions_short=False, rich_markup_mode=None
        )
        return _with_metavars(command)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NoSuchOption as error:
            if error.option_name == "--message" and any(
                "--comment" in one.opts for one in _options_of(error)
            ):
                error.possibilities = ["-m/--comment"]
            raise
        except typer.BadParameter as error:
            if details := getattr(error.__cause__, "errors", None):
                from activities.text import problem_of  # pydantic is loaded: the cause is its error

                error.message = plain(problem_of(details()[0]))
            if isinstance(error, MissingParameter):
                error.message = error.message or _expected(error.param, error.ctx)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        grouped = {title: names.split() for title, names in GROUPS.items()}
        known = {name for names in grouped.values() for name in names}
        grouped["Other"] = [name for name in COMMANDS if name not in known]
        for title, names in grouped.items():
            if rows := [(f"{name:10}", COMMANDS[name][1]) for name in names if name in COMMANDS]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]


app = typer.Typer(
    cls=_LazyGroup,
    help="Durable LLM agents as verified finite state machines on Temporal.",
    epilog=f"{BEGIN}\n\nExit codes: {'; '.join(f'{code} {text}' for code, text in EXIT_CODES.items())}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        found = installed_version()
        typer.echo(f"ratchet {found}" if found else "ratchet, run from a checkout that is not installed")
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
        _command(arguments)
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


def _command(arguments: Sequence[str]) -> None:
    """Run it. Commands import what an extra brings where they use it: raises UsageError for one that is not
    there."""
    try:
        app(list(arguments), prog_name="ratchet")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise UsageError(missing_extra(package)) from error


def _report(error: Exception, text: str, *, debug: bool = False) -> int:

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
        with _clear_output_errors():
            return super().write(text)

    def flush(self) -> None:
        with _clear_output_errors():
            super().flush()


@contextmanager
def _clear_output_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RatchetError(f"standard output cannot be written: {error.strerror or error}") from error
