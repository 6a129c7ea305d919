"""A worker's configuration: from the environment (`RATCHET_...`), never from a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

__all__ = ["Settings"]


def _json_list(value: object) -> object:
    """The list that a text holds; pydantic-settings would say too little of a text that holds none."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, list):
        raise ValueError('expected a JSON list, such as ["..."]')
    return parsed


def _http(address: SecretStr) -> SecretStr:
    parts = urlsplit(address.get_secret_value())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an address such as https://host/path")
    return address


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_json_list)]
Address = Annotated[SecretStr, AfterValidator(_http)]
"""A secret, because the path of a webhook often is its password."""


class Settings(BaseSettings):
    """What a worker may do and where it keeps things; each field is `RATCHET_<NAME>` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="RATCHET_",
        env_ignore_empty=True,  # a `.env` file lists unset values as empty
        frozen=True,
        hide_input_in_errors=True,  # a base URL may hold a password
    )

    data_dir: Path = Field(default=Path(".ratchet"), description="blobs, cache and archive")
    files_root: Path = Field(default=Path(), description="file tools stay below this folder")
    modules: Names = Field(
        default=(),
        description="files or modules with users' tools, model providers, rules and machines (JSON list)",
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
        default=30, ge=0, le=3600, description="time for calls to end when the worker is stopped"
    )
    notify_url: Address | None = Field(default=None, description="webhook for requests to people, by POST")
    notify_secret: SecretStr | None = Field(default=None, description="signs what the webhook is sent")
    notify_command: Names = Field(
        default=(),
        description="program and arguments (JSON list) for requests to people, on standard input",
    )
    notify_seconds: float = Field(default=10, gt=0, le=25, description="time for one notice, each way")
    log_format: Literal["console", "json"] = Field(default="console", description="form of log lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least important lines that are written"
    )

    @property
    def blobs_dir(self) -> Path:
        """Durable: Temporal's history refers to what is here. Shared by all workers of a queue."""
        return self.data_dir / "blobs"

    @property
    def cache_file(self) -> Path:
        """Conversations and setups; may be deleted at any time."""
        return self.data_dir / "cache.db"

    @property
    def archive_file(self) -> Path:
        """Logs of runs, for when Temporal no longer keeps them."""
        return self.data_dir / "archive.db"
