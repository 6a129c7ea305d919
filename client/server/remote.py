"""Whether Temporal's own configuration names a server, and which."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from client.errors import UsageError

__all__ = ["remote_config"]

CONFIGURATION = ("temporalio", "temporal.toml")
"""Temporal's file in a user's folder for configuration."""


def remote_config(address: str | None = None, namespace: str | None = None) -> dict[str, Any] | None:
    """What `Client.connect` takes to reach a server elsewhere; None when none is named, for the embedded one.

    Temporal's environment configuration (TEMPORAL_ADDRESS, TEMPORAL_API_KEY, TEMPORAL_TLS_..., a profile of
    temporal.toml), with `address` and `namespace` before it.

    Raises:
        UsageError: Temporal's configuration file cannot be read, or the address has no port.
    """
    if not (address or _is_configured()):
        return None
    from temporalio.envconfig import ClientConfig

    try:
        config: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
    except Exception as error:  # the loader raises plain RuntimeErrors
        raise UsageError(
            f"Temporal's configuration cannot be read: {error}; check TEMPORAL_... and temporal.toml"
        ) from error
    given = {"target_host": address, "namespace": namespace}
    config |= {name: value for name, value in given.items() if value is not None}
    host = str(config.get("target_host") or "")
    if host and not host.rpartition(":")[2].isdigit():
        raise UsageError(
            f"the address {host!r} of the Temporal server has no port: expected HOST:PORT, such as "
            f"{host.rstrip(':/')}:7233 (--address, TEMPORAL_ADDRESS or the profile of temporal.toml)"
        )
    return config if host else None


def _is_configured() -> bool:
    """Something may name a server. Only then Temporal's client is loaded to read it."""
    if any(name.startswith("TEMPORAL_") for name in os.environ):
        return True
    home = Path(os.environ.get("HOME", "/"))
    folders = (os.environ.get("XDG_CONFIG_HOME"), home / ".config", home / "Library" / "Application Support")
    return any(Path(folder, *CONFIGURATION).exists() for folder in folders if folder)
