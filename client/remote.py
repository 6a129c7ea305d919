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
        UsageError: Temporal's configuration file cannot be read.
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
    return config if config.get("target_host") else None


def _is_configured() -> bool:
    """Something may name a server. Only then Temporal's client is loaded to read it."""
    if any(name.startswith("TEMPORAL_") for name in os.environ):
        return True
    home = Path(os.environ.get("HOME", "/"))
    folders = (os.environ.get("XDG_CONFIG_HOME"), home / ".config", home / "Library" / "Application Support")
    return any(Path(folder, *CONFIGURATION).exists() for folder in folders if folder)
