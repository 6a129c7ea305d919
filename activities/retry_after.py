"""How long an HTTP server asks its caller to wait before the next attempt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["retry_after"]


def retry_after(headers: Mapping[str, str], longest: float) -> float | None:
    """Seconds to wait, at most `longest`: from milliseconds, seconds or an HTTP date.

    `headers` must find names in lower case. None without a usable one.
    """
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        return min(max(seconds, 0.0), longest) if math.isfinite(seconds) else None
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):  # the latter for an impossible time zone
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - datetime.now(UTC)).total_seconds(), 0.0), longest)
