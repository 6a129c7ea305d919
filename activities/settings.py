"""A worker's configuration: from the environment (`RATCHET_...`), never from a task."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from activities.configuration import read_configuration
from activities.keyfiles import private_key
from activities.mcp.config import McpConfig, ServerName, servers_from

__all__ = ["KEY_BYTES", "KEY_NAME", "RateLimit", "Settings"]

KEY_BYTES = 64
"""Of an encryption key: AES-256-SIV takes two keys of 256 bits as one."""
KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")


def _json(kind: type, expected: str) -> BeforeValidator:
    """Reads the JSON that a text holds; pydantic-settings would say too little of a text that holds none."""

    def parsed(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, kind):
            raise ValueError(f"expected {expected}")
        return found

    return BeforeValidator(parsed)


def _http(address: SecretStr) -> SecretStr:
    parts = urlsplit(address.get_secret_value())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an address such as https://host/path")
    return address


def _postgresql(address: SecretStr) -> SecretStr:
    if urlsplit(address.get_secret_value()).scheme not in ("postgresql", "postgres"):
        raise ValueError("expected an address such as postgresql://user:password@host/database")
    return address


def _host_and_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_535:
        raise ValueError("expected an address such as 127.0.0.1:9464")
    return address


def _bucket(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme != "s3" or not parts.hostname or "@" in parts.netloc:
        raise ValueError(
            "expected an address such as s3://bucket/prefix?endpoint=https://host&region=eu-central-1; the "
            "keys are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    return address


def _of_models(name: str) -> str:
    if not all(name.partition("/")):
        raise ValueError("expected a provider and a model, such as openai/gpt-5-mini or openai/*")
    return name


def _content(value: object) -> object:
    """JSON: the text itself, or the content of the file that it names by its whole path."""
    if not isinstance(value, str) or value.lstrip().startswith(("{", "[")):
        return value
    try:
        file = Path(value).expanduser()
        if not file.is_absolute():  # a folder that is a stranger's must supply neither commands nor keys
            raise ValueError(
                f"{value} would be read from the folder in which a command is given; expected JSON, or the "
                f"whole path of a file. If that one is meant: {file.absolute()}"
            )
        return read_configuration(file).decode()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"the file {value} cannot be read: {reason}") from error


def _keys_content(value: object) -> object:
    """The same; but what is not JSON is not repeated: it may be a key."""
    try:
        return _content(value)
    except ValueError as error:
        reason = getattr(error.__cause__, "strerror", None)
        raise ValueError(
            "RATCHET_ENCRYPTION_KEYS is neither JSON nor the whole path of a file"
            + (f" that can be read: {reason}" if reason else "")
        ) from None


def _key_file(file: Path) -> Path:
    """The whole path of a file with a private key."""
    path = file.expanduser()
    if not path.is_absolute():  # a folder that is a stranger's must supply no keys
        raise ValueError(f"{file} is no whole path; if that file is meant: {path.absolute()}")
    try:
        private_key(path)
    except OSError as error:
        raise ValueError(f"the key {path} cannot be read: {error.strerror or error}") from error
    return path


def _key_name(name: str) -> str:
    if not KEY_NAME.fullmatch(name):
        raise ValueError("a key's name has 1 to 40 letters, digits and . _ -")
    return name


def _key(key: SecretStr) -> SecretStr:
    try:
        size = len(base64.b64decode(key.get_secret_value(), validate=True))
    except ValueError:
        size = 0
    if size != KEY_BYTES:
        raise ValueError(
            f"expected {KEY_BYTES} random bytes in base 64; `ratchet key encryption FILE` makes a key"
        )
    return key


class RateLimit(BaseModel):
    """What the models of one name may be asked, all together."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    requests_per_minute: int | None = Field(default=None, gt=0, description="to the provider")
    tokens_per_minute: int | None = Field(default=None, gt=0, description="of questions and replies")

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            raise ValueError("expected requests_per_minute, tokens_per_minute, or both")
        return self


Names = Annotated[
    tuple[str, ...], NoDecode, _json(list, 'a JSON list of quoted texts, such as ["one", "two"]')
]
LimitsByName = Annotated[
    Mapping[Annotated[str, AfterValidator(_of_models)], RateLimit],
    NoDecode,
    _json(dict, 'a JSON object, such as {"openai/gpt-5-mini": {"requests_per_minute": 500}}'),
]
KeysByName = Annotated[
    Mapping[Annotated[str, AfterValidator(_key_name)], Annotated[SecretStr, AfterValidator(_key)]],
    NoDecode,
    _json(dict, 'a JSON object, such as {"2026-11": "<64 bytes in base 64>"}, or a file that holds it'),
    BeforeValidator(_keys_content),
]


def _one_or_more(value: object) -> object:
    """A JSON list; any other text is the only entry."""
    return value if not isinstance(value, str) or value.lstrip().startswith("[") else (value,)


Secrets = Annotated[
    tuple[Annotated[SecretStr, Field(min_length=16)], ...],
    NoDecode,
    _json(list, "a JSON list of secrets, the one that signs first"),
    BeforeValidator(_one_or_more),
]
ServersByName = Annotated[
    Mapping[ServerName, McpConfig], NoDecode, BeforeValidator(servers_from), BeforeValidator(_content)
]
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
    store: Annotated[SecretStr, AfterValidator(_postgresql)] | None = Field(
        default=None,
        description="PostgreSQL database (postgresql://...) that keeps blobs and archive for workers of "
        "several hosts; default: files in data_dir",
    )
    blobs: Annotated[str, AfterValidator(_bucket)] | None = Field(
        default=None,
        description="bucket of an S3-compatible store (s3://bucket/prefix?endpoint=...&region=...) that "
        "keeps blobs, in the place of store",
    )
    store_secret: Secrets = Field(
        default=(),
        validate_default=True,
        description="signs what history holds of blobs, the same for all workers and clients; of several "
        "(JSON list) the first signs and all count; default: the file store.secret of data_dir; required "
        "with store or blobs",
    )
    encryption_keys: KeysByName = Field(
        default={},
        description="keys by name (JSON object, 64 bytes in base 64 each), or the file that holds them; the "
        "first encrypts what Temporal's server and data_dir get, all decrypt; the same for all workers and "
        "clients",
    )
    signing_key: Annotated[Path, AfterValidator(_key_file)] | None = Field(
        default=None,
        description="file of an Ed25519 key (`ratchet key new FILE`) with which a worker signs each log that "
        "it archives, and `ratchet export --evidence` what it writes",
    )
    codec_token: SecretStr | None = Field(
        default=None, min_length=16, description="what a codec server wants to be given by who asks it"
    )
    history_seconds: float = Field(
        default=10,
        ge=0,
        le=25,
        description="time to fetch Temporal's history of a run for the archive; 0: keep none",
    )
    files_root: Path = Field(default=Path(), description="file tools stay below this folder")
    write_any_name: bool = Field(
        default=False,
        description="let write_file write what programs run because of its name, such as conftest.py and "
        "Makefile, and names that begin with a dot",
    )
    modules: Names = Field(
        default=(),
        description="files or modules with users' tools, model providers, rules and machines (JSON list)",
    )
    base_urls: Names = Field(
        default=(),
        description="model servers that a task may name besides OPENAI_BASE_URL (JSON list)",
    )
    mcp: ServersByName = Field(
        default={},
        description="MCP servers whose tools agents may use (JSON object with mcpServers, as other hosts of "
        "MCP have it, or the file that holds it)",
    )
    http_allow_private: bool = Field(
        default=False, description="let http_get reach private, loopback and link-local addresses"
    )
    output_cap: int = Field(
        default=16_000, gt=0, description="characters of a tool's output that a model is shown"
    )
    rate_limits: LimitsByName = Field(
        default={},
        description="of models, by provider and model, where * stands for any text (JSON object); shared by "
        "all workers with this data_dir",
    )
    max_activities: int = Field(
        default=500, gt=0, description="calls of models and tools under way at a time; most only wait"
    )
    max_workflow_tasks: int = Field(
        default=20, ge=2, description="runs that are moved on at a time; this is work for one core"
    )
    max_cached_runs: int = Field(
        default=2000, ge=10, description="runs kept in memory, 150 KiB each; others are replayed when needed"
    )
    target_memory: float | None = Field(
        default=None, gt=0, le=1, description="part of the machine's memory above which nothing more is begun"
    )
    target_cpu: float | None = Field(
        default=None, gt=0, le=1, description="part of the machine's CPU above which nothing more is begun"
    )
    shutdown_seconds: float = Field(
        default=30, ge=0, le=3600, description="time for calls to end when the worker is stopped"
    )
    deployment: str = Field(
        default="ratchet", min_length=1, description="name of the workers' deployment; used with a build_id"
    )
    build_id: str | None = Field(
        default=None,
        min_length=1,
        description="tells workers of different builds apart (Temporal's worker versioning); unset: any "
        "worker takes any run",
    )
    versioning: Literal["pinned", "auto_upgrade"] = Field(
        default="pinned",
        description="with a build_id: `pinned` runs stay with their build and go to the current one before a "
        "step; `auto_upgrade` runs go to the current one at once and are replayed there",
    )
    notify_url: Address | None = Field(default=None, description="webhook for requests to people, by POST")
    notify_secret: SecretStr | None = Field(default=None, description="signs what the webhook is sent")
    notify_command: Names = Field(
        default=(),
        description="program and arguments (JSON list) for requests to people, on standard input",
    )
    notify_seconds: float = Field(default=10, gt=0, le=25, description="time for one notice, each way")
    metrics: Annotated[str, AfterValidator(_host_and_port)] | None = Field(
        default=None,
        description="address of the worker's metrics for Prometheus, such as 127.0.0.1:9464; the port above "
        "it is used for those of Temporal's SDK",
    )
    trace_content: bool = Field(
        default=False,
        description="traces also hold what was asked, called and returned, without secrets; where they are "
        "sent say OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT)",
    )
    log_format: Literal["console", "json"] = Field(default="console", description="form of log lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least important lines that are written"
    )

    @field_validator("store_secret")
    @classmethod
    def _shared_stores_have_a_secret(
        cls, secrets: tuple[SecretStr, ...], info: ValidationInfo
    ) -> tuple[SecretStr, ...]:
        if not secrets and (info.data.get("store") or info.data.get("blobs")):
            raise ValueError(
                "missing; RATCHET_STORE and RATCHET_BLOBS need it (16 characters or more), the same for all "
                "workers and clients"
            )
        return secrets

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of `metrics`."""
        host, _, port = (self.metrics or "").rpartition(":")
        return (host.strip("[]"), int(port)) if host else None

    @property
    def blobs_dir(self) -> Path:
        """Durable: Temporal's history refers to what is here. Shared by all workers of a queue."""
        return self.data_dir / "blobs"

    @property
    def cache_file(self) -> Path:
        """Conversations and setups; may be deleted at any time."""
        return self.data_dir / "cache.db"

    @property
    def limits_file(self) -> Path:
        """What was used of rate limits in the last minute."""
        return self.data_dir / "limits.db"

    @property
    def archive_file(self) -> Path:
        """Logs of runs, for when Temporal no longer keeps them."""
        return self.data_dir / "archive.db"

    @property
    def calls_file(self) -> Path:
        """Calls with outside effects: begun, and what came of them."""
        return self.data_dir / "calls.db"
