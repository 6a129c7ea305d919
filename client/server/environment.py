"""The user's own folder for what Ratchet remembers, and variables that are no settings of a worker."""

from __future__ import annotations

import os
from pathlib import Path

from client.errors import UsageError

__all__ = ["OTHER_VARIABLES", "names_settings", "state_folder", "write_private"]

OTHER_VARIABLES = {
    f"RATCHET_{name}"
    for name in ("BY", "CONSOLE_PORT", "KEY", "KEY_PASSPHRASE", "PORT", "RETENTION", "UI_PORT")
}
"""Those that are no settings of a worker."""


def names_settings() -> bool:
    """The environment has settings of a worker, beside the data directory."""
    others = {*OTHER_VARIABLES, "RATCHET_DATA_DIR"}
    return any(name.startswith("RATCHET_") and name not in others for name in os.environ)


def state_folder() -> Path:
    """The user's own folder for what Ratchet remembers. Raises UsageError when the user has no home."""
    stated = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        home = stated if stated.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise UsageError(f"{error}; name a folder for Ratchet's state with XDG_STATE_HOME") from error
    return home / "ratchet"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all. Raises OSError."""
    from tempfile import NamedTemporaryFile

    with NamedTemporaryFile("w", dir=path.parent, prefix=f"{path.name}.", delete=False) as beside:
        beside.write(text + "\n")
    Path(beside.name).replace(path)
