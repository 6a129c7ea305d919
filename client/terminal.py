"""A person at the terminal of this process: lines that they type, and texts that they edit."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from activities.contracts import JsonObject
from client.errors import NotConfirmed, UsageError
from client.yamlparse import parse

__all__ = ["arguments_from", "confirm", "edited", "person_here", "read_line"]

EDITORS = ("sensible-editor", "editor", "nano", "vi")
"""What is tried when neither VISUAL nor EDITOR is set."""
_OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


def person_here() -> bool:
    """Somebody can read what we print and type an answer: a terminal, and we are in its foreground."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


async def read_line() -> str | None:
    """The next line that is typed, None for the end of input (Ctrl-D). What was typed before is dropped:
    it was no answer to what is asked now. May be cancelled."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    termios.tcflush(fd, termios.TCIFLUSH)
    typed: asyncio.Future[bytes] = loop.create_future()

    def ready() -> None:
        if not typed.done():
            typed.set_result(os.read(fd, 65536))

    loop.add_reader(fd, ready)
    try:
        line = await typed
    finally:
        loop.remove_reader(fd)
    return line.decode(errors="replace").strip() if line else None


async def confirm(question: str) -> None:
    """Ask for a yes on the terminal.

    Raises:
        NotConfirmed: anything else was said, or there is no terminal.
    """
    if not person_here():
        raise NotConfirmed("nobody can be asked here, so nothing was done; say --yes to do it all the same")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if (await read_line() or "").lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was done")


async def edited(arguments: JsonObject) -> JsonObject | None:
    """The arguments as a person changes them in their editor; None when they left them, or emptied the file.

    Raises:
        UsageError: there is no editor, it failed, or what was written is no JSON or YAML object; the
            file is kept then, and named.
    """
    path = _draft(arguments)
    command = [*_editor(), str(path)]
    with _interrupts_are_the_editors():
        code = await _run(command)
    if code != 0:
        raise UsageError(f"{shlex.join(command)} ended with {code}, so nothing was decided; the file is kept")
    text = await asyncio.to_thread(path.read_text, encoding="utf-8", errors="replace")
    if not text.strip():
        found = None
    else:
        try:
            found = arguments_from(text, str(path))
        except UsageError as error:
            raise UsageError(f"{error}; nothing was decided, and what you wrote is kept there") from error
    path.unlink()
    return None if found == arguments else found


def arguments_from(text: str, source: str) -> JsonObject:
    """A JSON or YAML object; `source` names it in messages.

    Raises:
        UsageError: it is none.
    """
    try:
        value = json.loads(text)
    except ValueError:
        _, value = parse(text, source)
    try:
        return _OBJECT.validate_python(value, strict=True)
    except ValidationError as error:
        raise UsageError(
            f"{source}: expected an object of arguments as JSON or YAML, got {value!r:.80}"
        ) from error


def _draft(arguments: JsonObject) -> Path:
    """A file that only this user may read (mode 0600)."""
    handle, name = tempfile.mkstemp(prefix="ratchet-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(arguments, file, ensure_ascii=False, indent=2)
        file.write("\n")
    return Path(name)


def _editor() -> list[str]:
    named = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    if named:
        return shlex.split(named)
    for name in EDITORS:
        if found := shutil.which(name):
            return [found]
    raise UsageError("there is no editor: name one with EDITOR, or give the arguments with --args")


async def _run(command: list[str]) -> int:
    try:
        process = await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        raise UsageError(f"the editor {command[0]} cannot be run: {error.strerror or error}") from error
    return await process.wait()


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Ctrl-C in the editor means the editor: a handler of ours is not inherited, ignoring would be."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
