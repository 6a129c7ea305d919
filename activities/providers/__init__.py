"""Model providers: one file each; its constant `PROVIDER` makes one from the settings."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from activities.provider import OnText, Provider, ProviderCall, ProviderError
from activities.settings import Settings

__all__ = ["OnText", "Provider", "ProviderCall", "ProviderError", "load_providers"]


def load_providers(settings: Settings) -> dict[str, Provider]:
    """Every provider of this folder by name; files that begin with `_` are their private parts."""
    names = sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))
    made: list[Provider] = [import_module(f"{__name__}.{name}").PROVIDER(settings) for name in names]
    return {provider.name: provider for provider in made}
