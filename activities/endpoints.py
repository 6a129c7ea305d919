"""Who answers for a model: the table of providers that are asked in OpenAI's protocol, with their endpoints
and the variables of their keys. It is the only place that knows providers by name.

Any other server is named by `base_url`, `--base-url` or OPENAI_BASE_URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from urllib.parse import urlsplit, urlunsplit

from activities.contracts.specs import ModelSpec

__all__ = [
    "ANTHROPIC", "BASE_URL", "ENDPOINTS", "GOOGLE", "OPENAI", "Endpoint", "endpoint_at", "key_in_environment",
    "missing_key", "no_key", "normal_url", "provider_of", "unusable_url", "url_of", "with_provider",
]  # fmt: skip

BASE_URL = "OPENAI_BASE_URL"
"""The variable that names another server than OpenAI's."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider that is asked in OpenAI's protocol."""

    provider: str
    """Names it in a task's `models`."""
    title: str
    """Its name for people."""
    url: str
    key_variables: tuple[str, ...]
    """The first of them that is set holds the key."""
    prefixes: tuple[str, ...] = ()
    """How names of its models begin."""
    list_key: str = ""
    """The header for the key, where the list of models is not in OpenAI's protocol."""
    list_headers: Mapping[str, str] = field(default_factory=dict)
    list_params: Mapping[str, str] = field(default_factory=dict)

    @property
    def key_names(self) -> str:
        """The variables of its key, for people."""
        return " or ".join(self.key_variables)


OPENAI = Endpoint("openai", "OpenAI", "https://api.openai.com/v1", ("OPENAI_API_KEY",))
ANTHROPIC = Endpoint(
    "anthropic",
    "Anthropic",
    "https://api.anthropic.com/v1",
    ("ANTHROPIC_API_KEY",),
    ("claude-",),
    list_key="x-api-key",
    list_headers={"anthropic-version": "2023-06-01"},
    list_params={"limit": "1000"},
)
GOOGLE = Endpoint(
    "google",
    "Google",
    "https://generativelanguage.googleapis.com/v1beta/openai",
    ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ("gemini-",),
)
ENDPOINTS = {one.provider: one for one in (OPENAI, ANTHROPIC, GOOGLE)}


def provider_of(model: ModelSpec) -> str:
    """The provider that the task names. Else who has the server that the task or this process names; else
    whose models have such names."""
    if model.provider is not None:
        return model.provider
    named = [one for one in ENDPOINTS.values() if one.prefixes and model.name.startswith(one.prefixes)]
    return OPENAI.provider if model.base_url or _base_url() or not named else named[0].provider


def with_provider(model: ModelSpec) -> ModelSpec:
    """The model with the provider that this process finds for it."""
    return model.model_copy(update={"provider": provider_of(model)})


def url_of(model: ModelSpec) -> str | None:
    """Where the model is asked from this process; None for a provider that is not in the table."""
    endpoint = ENDPOINTS.get(provider_of(model))
    if endpoint is None:
        return None
    return model.base_url or (_base_url() if endpoint is OPENAI else "") or endpoint.url


def normal_url(url: str) -> str:
    """The URL in the one form in which URLs are compared. Raises ValueError, which does not repeat it: in the
    variable of a URL somebody may have put a key."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        usable = False
    if not usable:
        raise ValueError("expected an http(s) URL, such as http://localhost:11434/v1")
    user, at, host = parts.netloc.rpartition("@")
    host = host.lower().removesuffix(":443" if parts.scheme == "https" else ":80")
    return urlunsplit((parts.scheme, f"{user}{at}{host}", parts.path.rstrip("/"), parts.query, ""))


def unusable_url(url: str) -> str | None:
    """Why a URL that an agent file or an option names is none, and what it is; None: it is one."""
    try:
        normal_url(url)
    except ValueError as error:
        got = "" if {"@", "?"} & {*url} else f", got {url[:80]!r}"  # they come with passwords and keys
        return f"{error}{got}"
    return None


def endpoint_at(url: str) -> Endpoint | None:
    """The provider whose host is that of the URL: no key but its own may go there."""
    try:
        host = (urlsplit(url.strip()).hostname or "").rstrip(".")
    except ValueError:  # no URL: whoever asks there says so
        return None
    return next((one for one in ENDPOINTS.values() if urlsplit(one.url).hostname == host), None)


def key_in_environment(endpoint: Endpoint) -> str:
    """The key for the provider; empty: none of its variables is set."""
    return next(filter(None, (os.environ.get(name, "").strip() for name in endpoint.key_variables)), "")


def missing_key(model: ModelSpec) -> str | None:
    """What to set before this process can ask the model; None: nothing, or only its server knows."""
    if model.base_url and model.base_url != _base_url():
        return None  # no key goes there
    endpoint = endpoint_at(url_of(model) or "")
    return no_key(model, endpoint) if endpoint and not key_in_environment(endpoint) else None


def no_key(model: ModelSpec, endpoint: Endpoint) -> str:
    """That the key is missing, and every way out."""
    default = ", the default," if model == ModelSpec() else ""
    others = [f"{one.prefixes[0]}... takes {one.key_names}" for one in ENDPOINTS.values() if one.prefixes]
    hint = f" (--model {', --model '.join(others)})" if endpoint is OPENAI else ""
    others_set = [name for name, value in os.environ.items() if value and name not in endpoint.key_variables]
    near = get_close_matches(endpoint.key_variables[0], others_set, 1, 0.85)
    misspelt = f"; {near[0]} is set, which is another name" if near else ""
    return (
        f"model {model.name}{default} is asked at {endpoint.title} and needs its key: set "
        f"{endpoint.key_names} where the worker runs{misspelt}{hint}. For another server (Ollama: "
        f"http://localhost:11434/v1) give --base-url or {BASE_URL}; --model scripted needs neither"
    )


def _base_url() -> str:
    return os.environ.get(BASE_URL, "").strip()
