"""`ratchet verify`: what can happen is known before it runs, and what a run did can be shown afterwards."""

from __future__ import annotations

import difflib
from typing import Any

import typer
from typer.core import TyperGroup

from client.cli.evidence import evidence
from client.cli.options import command
from client.cli.plain_params import no_such_command
from client.cli.verify_agent import agent
from client.cli.verify_machine import machine

__all__ = ["app"]

EVIDENCE = "evidence"
"""The subcommand that is meant where none is named."""


class _Verify(TyperGroup):
    """A first word that is no subcommand is a run or a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            close = difflib.get_close_matches(args[0], self.commands, n=1)
            if close and any(not one.startswith("-") for one in args[1:2]):  # after a run no word follows
                ctx.fail(no_such_command(args[0], close))
            args = [EVIDENCE, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["RUN|FILE|COMMAND ..."]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each with all of its first sentence."""
        rows = [
            ("RUN|FILE" if name == EVIDENCE else name, str(one.help).split("\n\n")[0].replace("\n", " "))
            for name, one in self.commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = typer.Typer(
    name="verify",
    cls=_Verify,
    help="Verify a machine or an agent before it runs, or what a run did. `ratchet verify evidence --help` "
    "has the options of RUN|FILE.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command(app)(machine)
command(app)(agent)
command(app)(evidence)
