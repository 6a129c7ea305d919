"""Writes `examples/data/services.log`, the log that the example agent looks into.

    python examples/make_log.py [FILE]

Eight services of a shop write 4,000 lines in six hours. A release of `payments` makes its database pool
smaller. Within half a minute most of its charges time out, and so do orders of `checkout`, which needs it.
The other services fail now and then. The same seed gives the same bytes under every version of Python: only
`Random.random` is used, and its sequence is fixed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

__all__ = ["LOG", "Line", "lines", "main"]

LOG = Path(__file__).parent / "data" / "services.log"
SEED = 20_260_314
LINES = 4_000
BEGINS = datetime(2026, 3, 14, 8, 0, tzinfo=UTC)
MEAN_GAP = 5.4
"""Seconds between two lines, on average."""
RELEASE = datetime(2026, 3, 14, 11, 41, 38, 204_000, tzinfo=UTC)
POOL_FULL = RELEASE + timedelta(seconds=15.3)
BREAKS = RELEASE + timedelta(seconds=24.5)


class Service(NamedTuple):
    """How a service behaves on a good day."""

    name: str
    share: float
    """Share of all lines."""
    errors: float
    """Probability that a line is an error."""
    says: tuple[str, ...]
    warns: tuple[str, ...]
    fails: tuple[str, ...]


SERVICES = (
    Service(
        "gateway",
        0.25,
        0.004,
        ("GET /products 200", "GET /search 200", "POST /orders 201"),
        ("slow client, 2.1 s to send the body", "rate limit reached for one address"),
        ("upstream closed the connection",),
    ),
    Service(
        "auth",
        0.13,
        0.008,
        ("token issued", "token renewed", "signed in"),
        ("wrong password", "clock of a client is 40 s ahead"),
        ("key set could not be fetched: connection reset",),
    ),
    Service(
        "catalog",
        0.15,
        0.005,
        ("product served from cache", "product loaded", "prices refreshed"),
        ("cache miss rate above 20 %",),
        ("image store answered 500",),
    ),
    Service(
        "search",
        0.12,
        0.012,
        ("query answered", "index segment merged"),
        ("query took 1.4 s",),
        ("shard 3 did not answer within 2000 ms",),
    ),
    Service(
        "checkout",
        0.12,
        0.006,
        ("order placed", "basket priced", "address verified"),
        ("voucher expired",),
        ("order could not be stored: deadlock, rolled back",),
    ),
    Service(
        "payments",
        0.13,
        0.003,
        ("charge authorised", "charge captured", "refund booked"),
        ("card declined by the issuer", "issuer asked for a second factor"),
        ("issuer answered with a malformed message",),
    ),
    Service(
        "inventory",
        0.07,
        0.010,
        ("stock reserved", "stock released", "delivery booked"),
        ("stock of one article below 5",),
        ("reservation expired before it was confirmed",),
    ),
    Service(
        "notifications",
        0.03,
        0.030,
        ("mail sent", "push sent"),
        ("mailbox is full",),
        ("mail relay refused the connection",),
    ),
)

TIMEOUT = "charge failed: database timeout after 5000 ms, no free connection"
STORY = (
    (RELEASE, "INFO", "payments", "deploy of release 4.18.0 finished: db_pool_size 40 -> 4"),
    (POOL_FULL, "WARN", "payments", "connection pool exhausted: 4 of 4 in use, 11 waiting"),
    (BREAKS, "ERROR", "payments", TIMEOUT),
)


class Line(NamedTuple):
    """One line of the log."""

    at: datetime
    level: str
    service: str
    request: str
    text: str

    def __str__(self) -> str:
        stamp = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f"{stamp} {self.level:<5} service={self.service} request={self.request} {self.text}"


def main(arguments: Sequence[str]) -> None:
    """Write the log to the file named in `arguments`, or to its place in the examples."""
    target = Path(arguments[0]) if arguments else LOG
    target.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8", newline="\n")


def lines(seed: int = SEED, count: int = LINES) -> list[Line]:
    """The log's lines by time; the same for the same seed."""
    chance = Random(seed)
    story = [Line(at, level, name, _request(chance), text) for at, level, name, text in STORY]
    found, at = list(story), BEGINS
    while len(found) < count:
        at += timedelta(milliseconds=int(2_000 * MEAN_GAP * chance.random()))
        found.append(_line(chance, at))
    return sorted(found, key=lambda line: line.at)


def _line(chance: Random, at: datetime) -> Line:
    service = _service(chance.random())
    broken = at > BREAKS
    if service.name == "payments" and broken and chance.random() < 0.86:
        return Line(at, "ERROR", service.name, _request(chance), _outage(chance))
    if service.name == "checkout" and broken and chance.random() < 0.30:
        text = "order not paid: payments answered 503"
        return Line(at, "ERROR", service.name, _request(chance), text)
    luck = chance.random()
    if luck < service.errors:
        return Line(at, "ERROR", service.name, _request(chance), _pick(chance, service.fails))
    if luck < service.errors + 0.04:
        return Line(at, "WARN", service.name, _request(chance), _pick(chance, service.warns))
    text = f"{_pick(chance, service.says)} in {3 + int(180 * chance.random() ** 3)} ms"
    return Line(at, "INFO", service.name, _request(chance), text)


def _outage(chance: Random) -> str:
    waiting = 6 + int(30 * chance.random())
    causes = (
        TIMEOUT,
        f"charge failed: connection pool exhausted, {waiting} waiting",
    )
    return _pick(chance, causes)


def _service(point: float) -> Service:
    """The service in whose share of 0 to 1 the point lies."""
    for service in SERVICES:
        point -= service.share
        if point < 0:
            return service
    return SERVICES[0]


def _request(chance: Random) -> str:
    return f"{int(chance.random() * 16**6):06x}"


def _pick(chance: Random, texts: Sequence[str]) -> str:
    return texts[int(chance.random() * len(texts))]


if __name__ == "__main__":
    main(sys.argv[1:])
