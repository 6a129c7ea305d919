"""What a reply costs: from the price library's shipped tables, or from the task's own price."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from activities.contracts import ModelSpec, Usage

__all__ = ["cost_of"]

DECIMALS = 9


def cost_of(
    spec: ModelSpec, usage: Usage, model: str = "", base_url: str | None = None
) -> tuple[float, bool]:
    """USD for this usage, and whether the price is known; `(0, False)` when it is not.

    `spec.price` goes before all; then the model that answered (`model`), then the one asked for.
    `base_url` is the server; the same name costs different money at different servers.
    """
    if spec.price is not None:
        millions = (
            usage.input_tokens * spec.price.input_per_million
            + usage.output_tokens * spec.price.output_per_million
        )
        return round(millions / 1_000_000, DECIMALS), True
    for name in dict.fromkeys((model, spec.name)):
        cost = _listed(name, usage, base_url) if name else None
        if cost is not None:
            return round(cost, DECIMALS), True
    return 0.0, False


def _listed(name: str, usage: Usage, base_url: str | None) -> float | None:
    from genai_prices import Usage as ListUsage
    from genai_prices import calc_price

    counted = ListUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=min(usage.cached_tokens, usage.input_tokens),
    )
    urls: list[str | None] = [base_url]
    if base_url is not None and not _is_private(base_url):
        urls.append(None)  # a proxy: the price of whoever offers a model of this name
    for url in urls:
        try:
            return float(calc_price(counted, name, provider_api_url=url).total_price)
        except (LookupError, ValueError):
            continue  # this table has no such model, or no price for these units
    return None


def _is_private(url: str) -> bool:
    """A model on one's own machine or network has no list price, whatever its name."""
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
