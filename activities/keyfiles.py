"""Files that hold keys: told by their usual names, and by what is in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from itertools import pairwise
from typing import BinaryIO

__all__ = ["has_name_of_keys", "holds_keys"]

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
OVERLAP = 100
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
        before = piece[-OVERLAP:]
    return False
