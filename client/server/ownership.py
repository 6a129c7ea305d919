"""Which data directories are the user's own.

The embedded server continues the runs in a directory's database, so a directory that came with somebody
else's files (a cloned repository, an archive) would bring runs of theirs. Each directory has a random id in
its file `id`; those of the user's own are kept in the user's state folder. A moved or copied directory keeps
its id. What git keeps is never the user's own: a pull replaces ignored files without a word.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from client.errors import UsageError
from client.server.environment import state_folder, write_private

__all__ = ["DATABASE", "adopt", "claim", "is_own"]

DATABASE = "temporal.db"
ID = re.compile(r"[0-9a-f]{32}")
OURS = (":(glob)*.db*", "store.secret", "id", "blobs")
"""As git names them from within the directory."""
ACCEPTED = "open to others, accepted"
"""In the user's record of a directory whose mode `chmod` does not change."""


def claim(home: Path) -> None:
    """Make sure that the database of a directory is the user's own; one without a database becomes theirs.

    Hold `start.lock`: of several first starts one makes the id.

    Raises:
        UsageError: the database is a stranger's, or others may have changed it; or the id cannot be kept.
    """
    if kept := _kept_by_git(home):
        raise UsageError(
            f"git keeps {kept} of {home}: a pull may replace it, and the runs of others would continue here "
            "with your tools and keys. Use another directory with --data-dir; or, if it came with the "
            f"repository, delete {home}, and if it is yours, take it out by `git rm --cached` there"
        )
    database = list(home.glob(f"{DATABASE}*"))
    if database and (reason := _doubt(home)):
        newest = max(path.lstat().st_mtime for path in database)
        size = sum(path.lstat().st_size for path in database)
        raise UsageError(
            f"{home} holds a Temporal database ({size / 1e6:.1f} MB, last written "
            f"{datetime.fromtimestamp(newest, UTC):%Y-%m-%d %H:%M} UTC), and {reason}. Runs in it would "
            "continue here with your tools and keys. If it came with somebody else's files, delete it, or "
            "use another directory with --data-dir. If it is yours, `ratchet doctor --adopt` makes it known"
        )
    _make_known(home)


def is_own(home: Path) -> bool:
    """The database of a directory is the user's own: `claim` would not refuse it."""
    return not _doubt(home) and not _kept_by_git(home)


def adopt(home: Path) -> None:
    """Record that the directory is the user's own, and close it to others; a mount that fixes its mode keeps
    that mode. Raises UsageError."""
    _make_known(home, as_it_is=True)


def _make_known(home: Path, *, as_it_is: bool = False) -> None:
    with suppress(OSError):  # mounts that fix modes refuse it, or do nothing
        home.chmod(0o700)
    known = _known_name(home)
    accepted = as_it_is and _is_open(home)
    if known and not accepted:
        return
    folder, name = _known_folder(), known or secrets.token_hex(16)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folder / name, f"{home}\n{ACCEPTED}" if accepted else str(home))
        if not known:
            write_private(home / "id", name)
    except OSError as error:
        raise UsageError(
            f"the id of {home} cannot be kept in {_known_folder()}: {error.strerror or error}; make it "
            "writable, or name another folder with XDG_STATE_HOME"
        ) from error


def _doubt(home: Path) -> str:
    """Why the directory may not be the user's own; empty when it is."""
    name = _known_name(home)
    if not name:
        return f"no earlier command of yours has made it (its id is not in {_known_folder()})"
    if _is_open(home) and not (_known_folder() / name).read_text().endswith(f"\n{ACCEPTED}\n"):
        return "other users may write there (some mounts, as of WSL and SMB, show that of every folder)"
    return ""


def _is_open(home: Path) -> bool:
    return bool(home.stat().st_mode & 0o022)


def _kept_by_git(home: Path) -> str:
    """Names of our files in the index of the repository around the directory, the first ones; mostly none."""
    # the settings of a repository may have come with it, and name programs: to watch files, to fetch some
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(home), "ls-files", "-z", "--", *OURS]
    harmless = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        found = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **harmless},
            check=False,
        )
    except OSError:  # no git, so no pull
        return ""
    return ", ".join(os.fsdecode(found.stdout).split("\0")[:-1][:3])


def _known_name(home: Path) -> str:
    """The directory's id where the user's state folder has it, else empty."""
    try:
        # a link could lead to the id of another directory of the user
        with open(home / "id", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            name = file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if ID.fullmatch(name) and (_known_folder() / name).is_file() else ""


def _known_folder() -> Path:
    return state_folder() / "directories"
