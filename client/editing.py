"""Arguments that a person edits in their editor: read strictly, and kept until they are in force."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from activities.contracts import JsonObject
from client.errors import UsageError
from client.terminal import person_here
from client.view import notes, plain
from client.yamlparse import parse
from workflows.gate.canonical import canonical

__all__ = ["Draft", "arguments_from"]

EDITORS = ("sensible-editor", "editor", "nano", "vi")
"""What is tried when neither VISUAL nor EDITOR is set."""
CLOSING_SECONDS = 3.0
"""How long an editor that is told to end has for it."""
_NO_NUMBER = re.compile(r"is not of type '(integer|number)'")
_OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


class Draft:
    """Arguments as a person edits them. What they wrote is lost in no way but by their own hand.

    `edit` gives them; then the draft is a context around their being sent: left without an error its file
    is removed, else the file is kept, named on standard error, and what the next `edit` begins with.
    """

    def __init__(self, arguments: JsonObject) -> None:
        self._arguments = arguments
        self._first = f"{json.dumps(arguments, ensure_ascii=False, indent=2)}\n"
        self._path: Path | None = None

    async def edit(self) -> JsonObject | None:
        """What the person makes of them; None when they left them as they were, or emptied the file.

        When it is cancelled the editor is told to end, and has ended.

        Raises:
            UsageError: there is no editor, it failed, or what was written is no JSON or YAML object.
        """
        editor = _editor()
        if self._path is None or not self._path.exists():
            self._path = _file_with(self._first)
        with self._kept():
            await _run([*editor, str(self._path)])
            text = await asyncio.to_thread(_read, self._path)
            found = arguments_from(text, str(self._path)) if text.strip() else None
        if found is None or canonical(found) == canonical(self._arguments):
            self._drop()
            return None
        return found

    def __enter__(self) -> None:
        """What is sent within is what was edited."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._drop()
        else:
            self._tell_kept()
            if found := _NO_NUMBER.search(str(error)):
                notes().print(f'an argument of type {found[1]} is written without quotes: 4800, not "4800"')

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._tell_kept()
            raise

    def _tell_kept(self) -> None:
        """Say where it is; nothing is kept of what was not changed."""
        path = self._path
        try:
            changed = path is not None and path.read_bytes() != self._first.encode()
        except OSError:
            changed = False
        if changed:
            notes().print(f"what you wrote is kept in {plain(str(path))}", soft_wrap=True)
        else:
            self._drop()

    def _drop(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        self._path = None


def arguments_from(text: str, source: str) -> JsonObject:
    """A JSON or YAML object; `source` names it in messages.

    Raises:
        UsageError: it is none, or has a key twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, source))
    except (ValueError, RecursionError):
        _, value = parse(text, source)
        # Read again: of what was parsed nobody can tell what `<<` has merged into it.
        _check_once(yaml.compose(text, yaml.SafeLoader), source)
    try:
        return _OBJECT.validate_python(value, strict=True)
    except ValidationError as error:
        raise UsageError(
            f"{source}: expected an object of arguments as JSON or YAML, got {value!r:.80}"
        ) from error


def _once(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _twice(next(name for name in names if names.count(name) > 1), source)
    return found


def _check_once(node: yaml.Node | None, source: str) -> None:
    """The same for YAML; a part that is named by an alias is looked at once."""
    todo, seen = [node] if node is not None else [], {id(node)}
    while todo:
        one = todo.pop()
        parts: list[yaml.Node] = []
        if isinstance(one, yaml.MappingNode):
            names = set()
            for key, value in one.value:
                # What YAML merges (`<<`) gives way to what is written there: no key stands twice by that.
                name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
                if name in names:
                    raise _twice(str(key.value), f"{source}, line {key.start_mark.line + 1}")
                names.add(name)
                parts.append(value)
        elif isinstance(one, yaml.SequenceNode):
            parts = one.value
        todo += [part for part in parts if id(part) not in seen]
        seen.update(map(id, parts))


def _twice(name: str, source: str) -> UsageError:
    return UsageError(f"{source}: `{name[:80]}` stands twice in one object; leave one")


def _file_with(text: str) -> Path:
    """A file that only this user may read (mode 0600)."""
    try:
        content = text.encode()
        handle, name = tempfile.mkstemp(prefix="ratchet-", suffix=".json")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"no file could be written for the editor: {error}; give the arguments with --args"
        ) from error
    return Path(name)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not written in UTF-8 (byte {error.start}), so nothing was decided; have your editor "
            "save it in UTF-8"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read any more: {error.strerror or error}; nothing was decided"
        ) from error


def _editor() -> list[str]:
    for name in ("VISUAL", "EDITOR"):
        if named := os.environ.get(name, "").strip():
            try:
                return shlex.split(named)
            except ValueError as error:
                raise UsageError(
                    f"{name} is {named!r}, which is no command: {error}; mend it, or give the arguments "
                    "to `ratchet edit` with --args"
                ) from error
    for name in EDITORS:
        if found := shutil.which(name):
            return [found]
    raise UsageError("there is no editor: name one with EDITOR, or give the arguments with --args")


async def _run(command: list[str]) -> None:
    with _interrupts_are_the_editors(), _terminal_as_it_was():
        try:
            process = await asyncio.create_subprocess_exec(*command)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the editor {command[0]} cannot be run: {error}; name another with EDITOR"
            ) from error
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _end(process)
            raise
    if code != 0:
        raise UsageError(f"{shlex.join(command)} ended with {code}, so nothing was decided")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of ours holds the terminal when we are gone."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(CLOSING_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextmanager
def _terminal_as_it_was() -> Iterator[None]:
    """An editor that ends before its time leaves the terminal as it used it."""
    before = termios.tcgetattr(sys.stdin.fileno()) if person_here() else None
    try:
        yield
    finally:
        if before is not None and person_here():  # in the background it would stop us
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Ctrl-C in the editor means the editor: a handler of ours is not inherited, ignoring would be."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
