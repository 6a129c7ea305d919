"""Model providers: each file with the constant `PROVIDER` is one (see `activities/provider.py`)."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from activities.extensions import ExtensionError, declared, load_extensions
from activities.provider import Provider
from activities.settings import Settings

__all__ = ["load_providers", "providers_with_files"]


def load_providers(settings: Settings) -> dict[str, Provider]:
    """The providers of this folder and of the users' modules (`settings.modules`), by name. Raises
    `ExtensionError`, as `providers_with_files` does."""
    return {name: provider for name, (provider, _) in providers_with_files(settings).items()}


def providers_with_files(settings: Settings) -> dict[str, tuple[Provider, str]]:
    """The same, each with the file that declares it.

    A file with an underscore in its name, such as `openai_errors`, is a part of the provider before it.
    Raises `ExtensionError` if two providers have one name, or a `PROVIDER` makes none.
    """
    names = sorted(found.name for found in iter_modules(__path__) if "_" not in found.name)
    shipped = [import_module(f"{__name__}.{name}") for name in names]
    providers: dict[str, tuple[Provider, str]] = {}
    for make, file in declared([*shipped, *load_extensions(settings.modules)], "PROVIDER"):
        provider: Any = make(settings) if callable(make) else make
        if missing := [part for part in ("name", "description", "complete") if not hasattr(provider, part)]:
            raise ExtensionError(
                f"{file}: PROVIDER must be a provider, or make one of the worker's settings; a "
                f"{type(provider).__name__} has no `{missing[0]}`"
            )
        if provider.name in providers:
            raise ExtensionError(f"{file}: there is a provider {provider.name!r} already; rename this one")
        providers[provider.name] = provider, file
    return providers
