"""A person's Ed25519 key: created, read from a file, and who signs from this process; keys that encrypt."""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
import secrets
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import SecretStr, ValidationError

from activities.files import FilesRoot
from activities.keyfiles import NEW_KEY, PASSPHRASE, passphrase, private_key
from activities.settings import KEY_BYTES, Settings
from activities.text import problem_of
from client.errors import UsageError
from client.server.environment import write_private

__all__ = [
    "PASSPHRASE", "Signer", "name_of", "new_encryption_key", "new_key", "public_key", "signer",
    "warning_if_exposed",
]  # fmt: skip


@dataclass(frozen=True)
class Signer:
    """A person. With a private key they sign decisions and commands, so that a run can verify who it was."""

    name: str
    """As the agent file lists it, beside the public key if there is one."""
    key: Ed25519PrivateKey | None = None


def signer(by: str | None = None, key: Path | None = None) -> Signer:
    """Who acts from this process.

    Args:
        by: name; default: RATCHET_BY, else the login name.
        key: PEM file (PKCS8) of the private key; default: RATCHET_KEY, else none.

    Raises:
        UsageError: the key cannot be used.
    """
    name = name_of(by)
    path = key or Path(os.environ.get("RATCHET_KEY", "").strip())
    return Signer(name, None if path == Path() else _read(path))


def name_of(by: str | None = None) -> str:
    """Who acts from this process, by name; reads no key."""
    return by or os.environ.get("RATCHET_BY", "").strip() or _login()


def new_key(path: Path) -> str:
    """Write a new private key that only its owner may read (mode 0600); gives its public key in base64.

    The file is encrypted when RATCHET_KEY_PASSPHRASE is set.

    Raises:
        UsageError: the file exists already, cannot be written, or lies where tools read files.
    """
    key, phrase = Ed25519PrivateKey.generate(), passphrase()
    encryption = serialization.BestAvailableEncryption(phrase) if phrase else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    _make_folder(path)
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(pem)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; a key is never overwritten, name another file") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return public_key(key)


def new_encryption_key(path: Path) -> str:
    """Add a key to a file for RATCHET_ENCRYPTION_KEYS, at its end; gives the key's name: the date and a
    few characters that only this key has.

    At the end it only decrypts, so that all can have it before the first one encrypts with it.

    Raises:
        UsageError: the file holds something else, cannot be written, or lies where tools read files.
    """
    keys: dict[str, str] = {}
    if path.exists():
        keys = {name: key.get_secret_value() for name, key in _encryption_keys(path).items()}
    key = secrets.token_bytes(KEY_BYTES)
    # of two keys that were made on one day neither must be taken for the other
    name = f"{datetime.now(UTC).date().isoformat()}-{hashlib.sha256(key).hexdigest()[:6]}"
    keys[name] = base64.b64encode(key).decode()
    _make_folder(path)
    try:
        write_private(path, json.dumps(keys, indent=2))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return name


def _make_folder(path: Path) -> None:
    """The folder of a file, where no tool reads. Raises UsageError."""
    # not of the settings: those may name the very file that is to be made
    root = FilesRoot(Path(os.environ.get("RATCHET_FILES_ROOT") or ".").resolve(), Path(".ratchet").resolve())
    if root.reaches(path):
        raise UsageError(
            f"{path} lies below {root.root}, where tools read files (RATCHET_FILES_ROOT): a model could get "
            f"the key; name a file elsewhere, such as ~/.config/ratchet/{path.name}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: the folder {path.parent} cannot be made: "
            f"{error.strerror or error}; name another file"
        ) from error


def _encryption_keys(path: Path) -> Mapping[str, SecretStr]:
    """The keys of a file. Raises UsageError."""
    try:
        return Settings(encryption_keys=str(path.absolute())).encryption_keys
    except ValidationError as error:
        raise UsageError(f"{path} holds no encryption keys: {problem_of(error.errors()[0])}") from error


def public_key(key: Ed25519PrivateKey) -> str:
    """The public half as an agent file lists it: 32 bytes in base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def warning_if_exposed(path: Path) -> str:
    """A warning if others than its owner can read or change a key file; else empty."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return ""
    return (
        f"warning: others can read or change the key {path} (mode {mode:04o}), and sign as you; run "
        f"`chmod 600 {shlex.quote(str(path))}`, and if somebody may have read it, make another"
    )


def _read(path: Path) -> Ed25519PrivateKey:
    try:
        return private_key(path)
    except OSError as error:
        raise UsageError(
            f"the key {path} cannot be read: {error.strerror or error}; name another with --key or "
            f"RATCHET_KEY, or {NEW_KEY}"
        ) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a container without an entry for its user
