"""Objects that several hosts reach: in a bucket of an S3-compatible store, or in PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from activities.installed import missing_extra
from activities.store.blobs import StoreError, StoreUnavailable
from activities.store.database import Database

if TYPE_CHECKING:
    from obstore.store import S3Config

__all__ = ["SCHEMA", "Bucket", "Rows"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs(
    name TEXT PRIMARY KEY, written DOUBLE PRECISION NOT NULL, data {bytes} NOT NULL);
"""
TRY_SECONDS = 20
"""How long one call is tried again while the store does not answer, or answers with a fault of its own."""
ATTEMPT_SECONDS = 30
"""For one attempt; a blob may have many megabytes."""
CONNECT_SECONDS = 5
OPTIONS = ("endpoint", "region", "path_style")


class Bucket:
    """A prefix of a bucket: `s3://bucket/prefix?endpoint=http://host:9000&region=eu-central-1`.

    The keys come from where AWS's own tools find them: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or
    the role of the machine.
    """

    def __init__(self, url: str) -> None:
        """Asks nobody. Raises `StoreError` where the library is missing or the address is wrong."""
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise StoreError(missing_extra("obstore")) from error
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query))
        if unknown := sorted(given.keys() - set(OPTIONS)):
            raise StoreError(
                f"RATCHET_BLOBS has the unknown option {unknown[0]!r}; there are {', '.join(OPTIONS)}"
            )
        endpoint = given.get("endpoint", "")
        path_style = given.get("path_style", "true" if endpoint else "false") == "true"
        config: S3Config = {"virtual_hosted_style_request": not path_style}
        if endpoint:  # S3-compatible servers take any region, but it is part of the signature
            config |= {"endpoint": endpoint, "region": "us-east-1"}
        if "region" in given:
            config["region"] = given["region"]
        try:
            self._store = S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                config=config,
                client_options={
                    "timeout": timedelta(seconds=ATTEMPT_SECONDS),
                    "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                    "allow_http": endpoint.startswith("http://"),
                },
                retry_config={"max_retries": 8, "retry_timeout": timedelta(seconds=TRY_SECONDS)},
            )
        except Exception as error:  # the library's errors have no public base
            raise StoreError(f"RATCHET_BLOBS is no address of a bucket: {error}") from error
        self.where = f"s3://{parts.netloc}{parts.path}" + (f" at {endpoint}" if endpoint else "")

    def stat(self, name: str) -> tuple[int, float] | None:
        """See `Objects`."""
        import obstore

        with self._plain_errors(), suppress(FileNotFoundError):
            found = obstore.head(self._store, name)
            return found["size"], found["last_modified"].timestamp()
        return None

    def read(self, name: str) -> bytes | None:
        """See `Objects`."""
        import obstore

        with self._plain_errors(), suppress(FileNotFoundError):
            return obstore.get(self._store, name).bytes().to_bytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        """See `Objects`."""
        import obstore

        with self._plain_errors():
            obstore.put(self._store, name, data)

    def move(self, name: str, to: str) -> None:
        """See `Objects`."""
        import obstore

        with self._plain_errors(), suppress(FileNotFoundError):  # another process was faster
            obstore.rename(self._store, name, to)

    def delete(self, name: str, before: float) -> bool:
        """See `Objects`. S3 cannot compare and delete at once: a write in these milliseconds is lost."""
        import obstore

        kept = self.stat(name)
        if kept is None or kept[1] >= before:
            return False
        with self._plain_errors():
            obstore.delete(self._store, name)
        return True

    def names(self) -> Iterator[tuple[str, int, float]]:
        """See `Objects`."""
        import obstore

        with self._plain_errors():
            for page in obstore.list(self._store):
                for found in page:
                    yield found["path"], found["size"], found["last_modified"].timestamp()

    def path(self, name: str) -> None:
        """There are no files."""

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"{self.where}: {_short(error)}. Check that the bucket of RATCHET_BLOBS exists."
            ) from error
        except Exception as error:
            raise StoreUnavailable(
                f"{self.where}: {_short(error)}. Check that RATCHET_BLOBS names it, that it can be reached, "
                "and that the keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) may read and write it."
            ) from error


def _short(error: Exception) -> str:
    """The first line: the library appends its whole state."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:500]


class Rows:
    """Objects as rows of a database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def where(self) -> str:
        """The database."""
        return self.database.where

    def stat(self, name: str) -> tuple[int, float] | None:
        """See `Objects`."""
        rows = self.database.rows("SELECT length(data), written FROM blobs WHERE name=?", (name,))
        return rows[0] if rows else None

    def read(self, name: str) -> bytes | None:
        """See `Objects`."""
        rows = self.database.rows("SELECT data FROM blobs WHERE name=?", (name,))
        return rows[0][0] if rows else None

    def write(self, name: str, data: bytes) -> None:
        """See `Objects`."""
        with self.database.writing(name) as execute:
            execute(
                "INSERT INTO blobs VALUES(?,?,?) ON CONFLICT (name) DO UPDATE "
                "SET data=excluded.data, written=excluded.written",
                (name, time.time(), data),
            )

    def move(self, name: str, to: str) -> None:
        """See `Objects`."""
        with self.database.writing(name) as execute:
            execute("DELETE FROM blobs WHERE name=?", (to,))
            execute("UPDATE blobs SET name=? WHERE name=?", (to, name))

    def delete(self, name: str, before: float) -> bool:
        """See `Objects`."""
        with self.database.writing(name) as execute:
            return bool(execute("DELETE FROM blobs WHERE name=? AND written<? RETURNING 1", (name, before)))

    def names(self) -> Iterator[tuple[str, int, float]]:
        """See `Objects`."""
        yield from self.database.rows("SELECT name, length(data), written FROM blobs")

    def path(self, name: str) -> None:
        """There are no files."""
