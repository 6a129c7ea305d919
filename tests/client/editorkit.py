"""An editor for tests: a script, and the drafts that it was given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Editor", "editor_in"]


class Editor:
    """What EDITOR names in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._given = folder / "given"

    def does(self, script: str) -> None:
        """From now on it does this with the file `$1`."""
        path = self.folder / "editor.sh"
        path.write_text(f'#!/bin/sh\necho "$1" >> {self._given}\n{script}\n')
        path.chmod(0o700)
        os.environ["EDITOR"] = str(path)

    def drafts(self) -> list[Path]:
        """The files that it was given and that are still there."""
        given = self._given.read_text().split() if self._given.exists() else []
        return [path for path in map(Path, dict.fromkeys(given)) if path.exists()]

    def kept(self) -> list[str]:
        """What they hold, as far as UTF-8 goes."""
        return [path.read_text(errors="replace") for path in self.drafts()]

    def done(self, sign: str) -> bool:
        """A script has left this sign in the folder."""
        return (self.folder / sign).exists()


@contextmanager
def editor_in(folder: Path, **more: str) -> Iterator[Editor]:
    """Meanwhile these variables are set, and no other editor is named; drafts are removed afterwards."""
    before = dict(os.environ)
    for name in ("VISUAL", "EDITOR", "RATCHET_KEY"):
        os.environ.pop(name, None)
    os.environ.update(more)
    editor = Editor(folder)
    try:
        yield editor
    finally:
        os.environ.clear()
        os.environ.update(before)
        for path in editor.drafts():
            path.unlink()
