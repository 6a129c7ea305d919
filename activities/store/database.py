"""Databases for what must last: one SQLite file, or PostgreSQL for the workers of several hosts.

Both take the same SQL, with `?` for values. A schema names what differs: `{bytes}` is the type of bytes, and
`{rowid}` declares the column of that name, which grows from row to row and which SQLite has by itself.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from activities.installed import missing_extra
from activities.store.blobs import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

__all__ = ["Database", "Execute", "Postgres", "SqliteFile"]

BUSY_SECONDS = 30
"""How long a writer of a file waits for another one."""
CONNECT_SECONDS = 10
"""How long a call waits for a connection: it holds a thread meanwhile."""
MAX_CONNECTIONS = 8
"""The most of one process."""
IDLE_SECONDS = 60
SCHEMA_LOCK = 0x7261_7463_6865_74
"""Held while tables are made: two who make one at the same time fail in PostgreSQL."""


class Execute(Protocol):
    """Runs one statement and gives its rows, in a transaction."""

    def __call__(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]: ...


class Database(Protocol):
    """Tables of one schema. The calls block; every one may raise `StoreUnavailable`."""

    @property
    def where(self) -> str:
        """The place, for messages; without a password."""

    def writing(self, lock: str) -> Any:
        """A context with an `Execute`: one transaction, and nobody else has one with this lock meanwhile."""

    def reading(self) -> Any:
        """A context with an `Execute` for many queries, each of which sees what is there then."""

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """What a query gives; nothing where nothing was ever written."""

    def shrink(self) -> None:
        """Give back the space of rows that were deleted."""

    def close(self) -> None:
        """Leave nothing open; the next call opens it again."""


class SqliteFile:
    """The SQLite file `path`, for the processes of one host. A file that does not exist is empty."""

    def __init__(self, path: Path, schema: str) -> None:
        self.path = Path(path)
        self._schema = schema.format(bytes="BLOB", rowid="")

    @property
    def where(self) -> str:
        """The file."""
        return str(self.path)

    @contextmanager
    def writing(self, lock: str) -> Iterator[Execute]:
        """See `Database`; nobody else writes at all meanwhile."""
        with self._plain_errors():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # readable to its owner alone
            with closing(self._connect()) as file, file:
                file.executescript(self._schema)
                file.execute("BEGIN IMMEDIATE")
                yield lambda sql, values=(): file.execute(sql, values).fetchall()

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        """See `Database`."""
        with self._plain_errors():
            if not self.path.exists():  # reading must not make the file
                yield lambda sql, values=(): []
                return
            with closing(self._connect()) as file:
                yield lambda sql, values=(): file.execute(sql, values).fetchall()

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """See `Database`."""
        with self.reading() as execute:
            return execute(sql, values)

    def shrink(self) -> None:
        """See `Database`. It needs as much free space as the file has afterwards, and writers wait for it."""
        with self._plain_errors(), closing(self._connect()) as file:
            file.execute("VACUUM")

    def close(self) -> None:
        """See `Database`: a connection lasts for one call."""

    def _connect(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            file.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error:  # the file is damaged
            file.close()
            raise
        return file

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                advice = "The file is damaged or is not a database of Ratchet. Restore it from a backup."
            else:
                advice = (
                    "Check that its folder exists, is writable and has space (RATCHET_DATA_DIR names it)."
                )
            raise StoreUnavailable(f"{self.path}: {error}. {advice}") from error


class Postgres:
    """A PostgreSQL database; its tables are made when they are first needed."""

    def __init__(self, url: str, schema: str) -> None:
        """Opens nothing. Raises `StoreError` where the library is missing or the address is wrong."""
        try:
            from psycopg import ProgrammingError, conninfo
        except ImportError as error:
            raise StoreError(missing_extra("psycopg")) from error
        try:
            parts = conninfo.conninfo_to_dict(url)
        except ProgrammingError as error:
            raise StoreError(f"RATCHET_STORE is no address of PostgreSQL: {error}") from error
        self._url = url
        self._schema = schema.format(bytes="BYTEA", rowid="rowid BIGINT GENERATED ALWAYS AS IDENTITY,")
        self._where = f"PostgreSQL {parts.get('host', 'here')}/{parts.get('dbname', '')}"
        self._opening = threading.Lock()
        self._pool: ConnectionPool[Connection] | None = None

    @property
    def where(self) -> str:
        """Host and database."""
        return self._where

    @contextmanager
    def writing(self, lock: str) -> Iterator[Execute]:
        """See `Database`."""
        with self._connection() as connection, connection.transaction():
            execute = _execute(connection)
            execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (lock,))
            yield execute

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        """See `Database`."""
        with self._connection() as connection:
            yield _execute(connection)

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """See `Database`."""
        with self.reading() as execute:
            return execute(sql, values)

    def shrink(self) -> None:
        """See `Database`: PostgreSQL's autovacuum does it, for rows to come."""

    def close(self) -> None:
        """See `Database`."""
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection for one transaction."""
        from psycopg import Error
        from psycopg_pool import PoolTimeout

        try:
            with self._open_pool().connection() as connection:
                yield connection
        except (Error, PoolTimeout, OSError) as error:
            problem = " ".join(str(error).split()) or type(error).__name__
            raise StoreUnavailable(
                f"{self.where}: {problem}. Check that the server runs and that RATCHET_STORE names it."
            ) from error

    def _open_pool(self) -> ConnectionPool[Connection]:
        import psycopg
        from psycopg_pool import ConnectionPool

        with self._opening:
            if self._pool is None:
                # one connection by itself: the pool would try for its whole timeout and not say why
                with psycopg.connect(self._url, connect_timeout=CONNECT_SECONDS) as connection:
                    _make(connection, self._schema)
                self._pool = ConnectionPool(
                    self._url,
                    # through PgBouncer the next transaction may be of another connection
                    kwargs={"connect_timeout": CONNECT_SECONDS, "prepare_threshold": None},
                    min_size=0,
                    max_size=MAX_CONNECTIONS,
                    timeout=CONNECT_SECONDS,
                    max_idle=IDLE_SECONDS,
                    check=ConnectionPool.check_connection,
                    name="ratchet",
                    open=True,
                )
            return self._pool


def _make(connection: Connection, schema: str) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
    for statement in schema.strip(" \n;").split(";"):
        connection.execute(statement.encode())


def _execute(connection: Connection) -> Execute:
    def execute(sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        cursor = connection.execute(sql.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description else []

    return execute
