"""Arguments of a tool call as people write them, in their editor or on the command line: JSON or YAML."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from activities.contracts import JsonObject
from client.agents.yaml import parse
from client.cli.render import notes
from client.errors import UsageError
from client.runs.words import plain
from workflows.kernel.canonical import canonical

__all__ = ["Draft", "arguments_from"]

_OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


class Draft:
    """Arguments in a file that a person edits. What they wrote is never lost.

        arguments = draft.edit()
        with draft.sending():
            ...

    After an error the file is kept, and named on standard error. `click.edit` gets a file of ours: of a text
    it would delete what a person wrote when the editor fails.
    """

    def __init__(self, arguments: JsonObject) -> None:
        self._arguments = arguments
        self._first = (json.dumps(arguments, ensure_ascii=False, indent=2) + "\n").encode()
        self._path: Path | None = None

    def edit(self) -> JsonObject | None:
        """The arguments as the person leaves them; None when they are the same, or the file is empty.

        Raises:
            UsageError: the editor cannot be run or failed, or the text is not a JSON or YAML object.
        """
        with self._kept_after_an_error():
            handle, name = tempfile.mkstemp(prefix="ratchet-", suffix=".json")  # for this user alone
            self._path = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(self._first)
            _in_editor(name)
            text = self._path.read_bytes().decode()
            found = arguments_from(text, name) if text.strip() else None
        if found is None or canonical(found) == canonical(self._arguments):
            self._path.unlink(missing_ok=True)
            return None
        return found

    @contextmanager
    def sending(self) -> Iterator[None]:
        """The body sends what was edited; without an error the file is removed."""
        with self._kept_after_an_error():
            yield
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _kept_after_an_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._keep()
            if isinstance(error, OSError | UnicodeError):
                problem = f"the file of the editor cannot be used, so nothing was decided: {error}"
                raise UsageError(f"{problem}; save it as UTF-8, or use --args") from error
            raise

    def _keep(self) -> None:
        """Say where a changed file is; an unchanged one is removed."""
        with suppress(OSError):
            if self._path is not None and self._path.read_bytes() != self._first:
                notes().print(f"your text is kept in {plain(str(self._path))}", soft_wrap=True)
            elif self._path is not None:
                self._path.unlink()


def arguments_from(text: str, source: str) -> JsonObject:
    """A JSON or YAML object; `source` names it in messages.

    Raises:
        UsageError: it is something else, or has a key twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"{source}: duplicate key `{twice[:80]}` in one object")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        value, _ = parse(text, source)
    try:
        return _OBJECT.validate_python(value, strict=True)
    except ValidationError as error:
        raise UsageError(
            f"{source}: expected an object of arguments as JSON or YAML, such as "
            f'\'{{"account": "17", "cents": 4800}}\', got {value!r:.80}'
        ) from error


# -- the editor --------------------


def _in_editor(path: str) -> None:
    """Run the person's editor until they close it; nothing else goes on in this process meanwhile."""
    with _interrupts_ignored(), _terminal_restored():
        try:
            click.edit(filename=path)
        except (click.ClickException, ValueError) as error:
            reason = error.message if isinstance(error, click.ClickException) else str(error)
            raise UsageError(
                f"{reason}: nothing was decided; name another editor with EDITOR, or use --args"
            ) from error


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C in the editor is meant for the editor. A handler is not inherited by it; SIG_IGN would be."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _terminal_restored() -> Iterator[None]:
    """An editor that dies leaves the terminal in its own mode."""
    terminal = sys.stdin is not None and sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin.fileno()) if terminal else None
    try:
        yield
    finally:
        if before is not None:
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
