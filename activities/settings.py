"""A worker's configuration: from the environment (`RATCHET_...`), never from a task."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Settings"]


class Settings(BaseSettings):
    """What a worker may do and where it keeps things; each field is `RATCHET_<NAME>` in the environment."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_", frozen=True)

    data_dir: Path = Field(default=Path(".ratchet"), description="store, cache and archive")
    files_root: Path = Field(default=Path(), description="file tools stay below this folder")
    modules: tuple[str, ...] = Field(
        default=(),
        description="Python files or module names with users' tools, rules and machines (JSON list)",
    )
    base_urls: tuple[str, ...] = Field(
        default=(),
        description="model servers that a task may name besides OPENAI_BASE_URL (JSON list)",
    )
    http_allow_private: bool = Field(
        default=False, description="let http_get reach private, loopback and link-local addresses"
    )
    output_cap: int = Field(
        default=16_000, gt=0, description="characters of a tool's output that a model is shown"
    )
    log_format: str = Field(default="console", pattern="^(console|json)$")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
