"""A person's Ed25519 key: made, read from a file, and what they say is signed with it."""

from __future__ import annotations

import base64
import getpass
import os
import shlex
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client.errors import UsageError

__all__ = ["PASSPHRASE", "Speaker", "new_key", "public_key", "speaker"]

PASSPHRASE = "RATCHET_KEY_PASSPHRASE"
"""Name of the environment variable with the passphrase of a key file that has one."""


@dataclass(frozen=True)
class Speaker:
    """A person; with a private key they sign what they say, so that a run can verify who it was."""

    name: str
    """As the agent file lists it, beside the public key if there is one."""
    key: Ed25519PrivateKey | None = None

    @classmethod
    def load(cls, name: str, path: str | Path) -> Speaker:
        """A person who signs, with the key in a PEM file (PKCS8); its passphrase, if it has one, is in
        RATCHET_KEY_PASSPHRASE.

        Raises:
            UsageError: the file cannot be read, or is no Ed25519 private key.
        """
        return cls(name, _read(Path(path)))


def new_key(path: Path) -> str:
    """Write a new private key that only its owner may read (mode 0600); its public key in base64.

    It is encrypted when RATCHET_KEY_PASSPHRASE is set.

    Raises:
        UsageError: there is a file already, or it cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    words = _passphrase()
    how = serialization.BestAvailableEncryption(words) if words else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already; a key is never overwritten, name another file") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return public_key(key)


def public_key(key: Ed25519PrivateKey) -> str:
    """The public half as an agent file lists it: 32 bytes in base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def _read(path: Path) -> Ed25519PrivateKey:
    words = _passphrase()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the key {path} cannot be read: {error.strerror or error}; name another with --key or "
            "RATCHET_KEY, or make one with `ratchet key new FILE`"
        ) from error
    try:
        key = serialization.load_pem_private_key(content, words if b"ENCRYPTED" in content else None)
    except TypeError as error:
        raise UsageError(f"the key {path} is encrypted: put its passphrase into {PASSPHRASE}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        wrong = f" or {PASSPHRASE} is not its passphrase" if b"ENCRYPTED" in content else ""
        raise UsageError(
            f"{path} is no private key in PEM (PKCS8){wrong}; make one with `ratchet key new FILE`"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is no Ed25519 key; make one with `ratchet key new FILE`")
    return key


def _passphrase() -> bytes:
    return os.environ.get(PASSPHRASE, "").encode()


def speaker(by: str | None = None, key: Path | None = None) -> Speaker:
    """Who speaks from this process: RATCHET_BY or the login name unless given, with the key of RATCHET_KEY.

    Raises:
        UsageError: the key cannot be used.
    """
    name = by or os.environ.get("RATCHET_BY", "").strip() or _login()
    path = key or (Path(found) if (found := os.environ.get("RATCHET_KEY", "").strip()) else None)
    if path is None:
        return Speaker(name)
    made = Speaker.load(name, path)
    if words := open_to_others(path):
        sys.stderr.write(f"ratchet: {words}\n")
    return made


def open_to_others(path: Path) -> str:
    """A warning where others than its owner can read or change a key file; else empty."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return ""
    return (
        f"warning: others can read or change the key {path} (mode {mode:04o}), and sign as you; "
        f"`chmod 600 {shlex.quote(str(path))}` keeps it yours, and if somebody may have read it make another"
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a container without an entry for its user: nobody in particular
