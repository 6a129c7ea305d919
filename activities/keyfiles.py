"""Files that hold keys: told by their usual names, and by what is in them; the private key in one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import translate
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:  # most that read these names sign nothing
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["NEW_KEY", "PASSPHRASE", "has_name_of_keys", "holds_keys", "passphrase", "private_key"]

PASSPHRASE = "RATCHET_KEY_PASSPHRASE"
"""Name of the environment variable with the passphrase of an encrypted key file."""
NEW_KEY = "make one with `ratchet key new ~/.config/ratchet/NAME.pem`"

NAMES = frozenset((
    ".git", ".ratchet", ".config/ratchet", ".env", ".envrc", ".ssh", ".gnupg", ".password-store", "id_rsa",
    "id_dsa", "id_ecdsa", "id_ed25519", ".netrc", "_netrc", ".git-credentials", ".npmrc", ".yarnrc.yml",
    ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".aws", ".azure", ".boto", ".s3cfg", ".config/gcloud",
    ".config/gh", ".docker/config.json", ".dockercfg", ".kube", ".vault-token", ".terraformrc",
    "credentials.tfrc.json", ".gem/credentials", ".m2/settings.xml", "credentials.json", "secrets.json",
    "secrets.toml", "secrets.yaml", "secrets.yml", "ratchet-keys.json", "store.secret", "mcp.json",
    ".mcp.json", "claude_desktop_config.json",
))  # fmt: skip
"""Files and folders, in lower case; with a slash: a name in a folder. The stores of git and of the worker are
here as well: they are no model's business."""
PATTERNS = (
    ".env.*", "*.env", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "kubeconfig*",
    "*.kubeconfig", "*.tfstate", "*.tfstate.*", "*.tfvars", ".cargo/credentials*", "client_secret*.json",
    "service[-_]account*.json",
)  # fmt: skip
_PATTERNS = re.compile("|".join(map(translate, PATTERNS)))
MARKS = (b"PuTTY-User-Key-File-", b"AGE-SECRET-KEY-1")
PEM = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
ENCRYPTION_KEYS = re.compile(rb'\s*\{\s*"[A-Za-z0-9._-]{1,40}"\s*:\s*"[A-Za-z0-9+/]{86}=="')
"""How a file of RATCHET_ENCRYPTION_KEYS begins."""
PIECE_BYTES = 2**20
OVERLAP_BYTES = 100
"""Bytes of the piece before: no mark is longer."""


def has_name_of_keys(names: Sequence[str]) -> bool:
    """A path of these names, in lower case, leads to one of `NAMES` or `PATTERNS`, or through one."""
    pairs = (f"{folder}/{name}" for folder, name in pairwise(names))
    return any(one in NAMES or _PATTERNS.match(one) for one in (*names, *pairs))


def holds_keys(file: BinaryIO, most: int) -> bool:
    """A private key is in the next `most` bytes of the file, or keys that encrypt."""
    before = b""
    while most > 0 and (piece := file.read(min(PIECE_BYTES, most))):
        most -= len(piece)
        if not before and ENCRYPTION_KEYS.match(piece):
            return True
        piece = before + piece
        if PEM.search(piece) or any(mark in piece for mark in MARKS):
            return True
        before = piece[-OVERLAP_BYTES:]
    return False


def private_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 key in a PEM file (PKCS8). Raises OSError, or ValueError that says what is wrong."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = path.read_bytes()
    encrypted = b"ENCRYPTED" in content
    try:
        key = load_pem_private_key(content, passphrase() if encrypted else None)
    except TypeError as error:
        raise ValueError(f"the key {path} is encrypted: put its passphrase into {PASSPHRASE}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        cause = f", or {PASSPHRASE} is not its passphrase" if encrypted else ""
        raise ValueError(f"{path} is not a private key in PEM (PKCS8){cause}; {NEW_KEY}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} is not an Ed25519 key; {NEW_KEY}")
    return key


def passphrase() -> bytes:
    """Of encrypted key files; empty: none is set."""
    return os.environ.get(PASSPHRASE, "").encode()
