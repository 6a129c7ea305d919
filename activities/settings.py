"""A worker's configuration: from the environment (`RATCHET_...`), never from a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

__all__ = ["Settings"]


def _listed(value: object) -> object:
    """A JSON list in its text form; pydantic-settings says too little of what is none."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise ValueError('expected a JSON list, such as ["..."]')
    return found


def _http(address: SecretStr) -> SecretStr:
    parts = urlsplit(address.get_secret_value())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an address such as https://host/path")
    return address


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
Address = Annotated[SecretStr, AfterValidator(_http)]
"""A secret: the path of a webhook often is its password."""


class Settings(BaseSettings):
    """What a worker may do and where it keeps things; each field is `RATCHET_<NAME>` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="RATCHET_",
        env_ignore_empty=True,  # as `.env` files have it for what is not set
        frozen=True,
        hide_input_in_errors=True,  # a base URL may hold a password
    )

    data_dir: Path = Field(default=Path(".ratchet"), description="store, cache and archive")
    files_root: Path = Field(default=Path(), description="file tools stay below this folder")
    modules: Names = Field(
        default=(),
        description="Python files or module names with users' tools, rules and machines (JSON list)",
    )
    base_urls: Names = Field(
        default=(),
        description="model servers that a task may name besides OPENAI_BASE_URL (JSON list)",
    )
    http_allow_private: bool = Field(
        default=False, description="let http_get reach private, loopback and link-local addresses"
    )
    output_cap: int = Field(
        default=16_000, gt=0, description="characters of a tool's output that a model is shown"
    )
    shutdown_seconds: float = Field(
        default=30, ge=0, le=3600, description="a worker that is stopped lets calls end for so long"
    )
    notify_url: Address | None = Field(
        default=None, description="webhook that is told of requests to people, by POST"
    )
    notify_secret: SecretStr | None = Field(default=None, description="signs what the webhook is sent")
    notify_command: Names = Field(
        default=(),
        description="program and its words (JSON list) that is told of requests, on standard input",
    )
    notify_seconds: float = Field(default=10, gt=0, le=25, description="for one telling of either")
    log_format: str = Field(default="console", pattern="^(console|json)$")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
