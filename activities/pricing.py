"""What a reply costs: from the price library's shipped tables, or from the task's own price."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from activities.contracts import Message, ModelSpec, NativeCall, Usage, bytes_of_images

__all__ = ["cost_of", "estimated_usage"]

USD_DECIMALS = 9
CHARACTERS_PER_TOKEN = 4


def cost_of(
    spec: ModelSpec, usage: Usage, model: str = "", base_url: str | None = None
) -> tuple[float, bool]:
    """USD for this usage, and whether the price is known; `(0, False)` when it is not.

    `spec.price` wins; then the price of the model that answered (`model`), then that of the requested
    one. `base_url` is the server: one name costs different money at different servers. The first call
    that needs the library loads it, with half a second of CPU.
    """
    if spec.price is not None:
        millions = (
            usage.input_tokens * spec.price.input_per_million
            + usage.output_tokens * spec.price.output_per_million
        )
        return round(millions / 1_000_000, USD_DECIMALS), True
    if base_url is not None and _is_private(base_url):
        return 0.0, False
    for name in dict.fromkeys((model, spec.name)):
        cost = _listed(name, usage, base_url) if name else None
        if cost is not None:
            return round(cost, USD_DECIMALS), True
    return 0.0, False


def estimated_usage(messages: Iterable[Message], text: str, tool_calls: Iterable[NativeCall]) -> Usage:
    """Four characters per token, for servers that do not count: limits must still hold."""
    characters_in = sum(len(message.content) + bytes_of_images(message.content) for message in messages)
    characters_out = len(text) + sum(len(call.arguments) for call in tool_calls)
    return Usage(
        input_tokens=-(-characters_in // CHARACTERS_PER_TOKEN),
        output_tokens=-(-characters_out // CHARACTERS_PER_TOKEN),
    )


def _listed(name: str, usage: Usage, base_url: str | None) -> float | None:
    from genai_prices import Usage as ListUsage
    from genai_prices import calc_price

    counted = ListUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=min(usage.cached_tokens, usage.input_tokens),
    )
    for url in dict.fromkeys((base_url, None)):  # None: an unknown server is a proxy for a known one
        try:
            return float(calc_price(counted, name, provider_api_url=url).total_price)
        except (LookupError, ValueError):
            continue  # this table lacks the model, or a price for these units
    return None


def _is_private(url: str) -> bool:
    """A model on one's own machine or network has no list price, whatever its name."""
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
