"""Whose certificates are believed, for all HTTP clients of this process: to read them takes 20 ms of CPU,
mostly on a worker's event loop. Those that come later are believed after a new start."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["trusted"]


@cache
def trusted(environment: bool = True) -> SSLContext:
    """Those of the system, or of SSL_CERT_FILE or SSL_CERT_DIR if the `environment` may say so."""
    import httpx2

    return httpx2.create_ssl_context(trust_env=environment)
