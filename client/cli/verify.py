"""`ratchet verify`: what can be shown of a run, and before it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from client.cli.evidence import evidence
from client.cli.options import command

__all__ = ["app"]


class _Verify(TyperGroup):
    """A first word that is no subcommand, and no option of the group, is a run or a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["evidence", *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [f"RUN|FILE | {' | '.join(self.commands)}", "..."]


app = typer.Typer(
    name="verify",
    cls=_Verify,
    help="`ratchet verify RUN` or `ratchet verify FILE` checks what a run that is over did: see `ratchet "
    "verify evidence --help`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
command(app)(evidence)
