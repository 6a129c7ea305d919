"""Reading the values of options and arguments without pydantic, where nothing has to be looked at.

Typer reads every value with pydantic, also one that was left out. To import that takes as long as all that
`ratchet list` does.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer import BadParameter
from typer._param_types import coerce_cli_path  # public nowhere: Typer's own checks of a path
from typer.core import TyperCommand, TyperGroup

from client.runs.words import plain

__all__ = ["PlainCommand", "PlainGroup", "agent_file_text", "is_agent_file", "no_such_command"]

NUMBERS = {int: "a whole number, such as 3", float: "a number, such as 0.5"}


class _Value:
    """Reads what is plain as it is, and everything else as Typer does."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value in the type of its parameter. Raises BadParameter."""
        kind = param.type_descriptor
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        has_parser = kind.parameter_info.parser is not None
        if kind.annotation is Path and not has_parser:
            path: Any = coerce_cli_path(value, kind.parameter_info, path_type=None, param=param, ctx=ctx)
            return Path(path)
        if (kind.annotation is str and not has_parser) or value in (kind.choices or (param.default,)):
            return value
        if kind.annotation in NUMBERS:
            try:
                kind.annotation(value)
            except (TypeError, ValueError):
                raise BadParameter(f"{value!r} is not {NUMBERS[kind.annotation]}", ctx, param) from None
        return type(param).get_runtime_param(param).coerce(value, param, ctx)


def no_such_command(word: str, close: Sequence[str], otherwise: str = "") -> str:
    """The message for an unknown command; `close`: commands that may be meant."""
    meant = f"did you mean {' or '.join(map(repr, close))}?"
    return f"No such command {word!r}; {meant if close else otherwise}"


class PlainGroup(TyperGroup):
    """A group of commands that reads its own options so."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters."""
        return _plain(super().get_params(ctx))


class PlainCommand(TyperCommand):
    """A command that reads its options and arguments so."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters."""
        return _plain(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is left of the arguments: nothing. Raises UsageError."""
        allowed, ctx.allow_extra_args = ctx.allow_extra_args, True
        left = super().parse_args(ctx, args)
        if left and not allowed and not ctx.resilient_parsing:
            words = " ".join(map(plain, left))
            if is_agent_file(goal := ctx.params.get("goal")) and not ctx.params.get("agent"):
                ctx.fail(agent_file_text(ctx.info_name, goal, words))
            ctx.fail(f"too many arguments: {words}. A text of several words needs quotes")
        return left


def is_agent_file(goal: str | None) -> bool:
    """What stands in the place of a goal names an agent file."""
    return goal is not None and goal.endswith((".yaml", ".yml")) and Path(goal).is_file()


def agent_file_text(command: str, file: str, goal: str = "GOAL") -> str:
    """How a command takes this agent file."""
    return f'{plain(file)} is an agent file: ratchet {command} --agent {shlex.quote(plain(file))} "{goal}"'


def _plain(params: list[Any]) -> list[Any]:
    for one in params:
        one.get_runtime_param = _Value
    return params
