"""Real servers for the stores of several hosts: PostgreSQL and an S3-compatible one.

PostgreSQL: that of RATCHET_TEST_POSTGRES (postgresql://..., whose user may create databases), else one that
is started here where its programs are installed. S3: the bucket of RATCHET_TEST_S3 (s3://bucket?endpoint=...)
with the keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, else `s3rver` where npm has installed it. Tests
of a server that is not there are skipped.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from activities.store import archive, call_store, remote
from activities.store.archive import Archive
from activities.store.blobs import BlobStore
from activities.store.call_store import CallsMade
from activities.store.database import Postgres
from activities.store.remote import Bucket, Rows

STARTS_WITHIN = 120
SECRET = "one secret for all hosts"


@contextmanager
def postgres_server() -> Iterator[str]:
    """The address of a PostgreSQL server; skips the test where there is none."""
    if given := os.environ.get("RATCHET_TEST_POSTGRES"):
        yield given
        return
    programs = [*map(Path, sorted(Path("/").glob("usr/lib/postgresql/*/bin"))), *_beside("initdb")]
    if not programs:
        pytest.skip("no PostgreSQL: install it (apt-get install postgresql), or set RATCHET_TEST_POSTGRES")
    home = Path(tempfile.mkdtemp(prefix="ratchet-postgres-"))
    more: dict[str, Any] = {"cwd": "/", "stdout": subprocess.DEVNULL}
    if os.geteuid() == 0:  # it refuses to run as root
        owner = pwd.getpwnam("nobody")
        os.chown(home, owner.pw_uid, owner.pw_gid)
        more |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    bin_, data = programs[-1], str(home / "data")
    try:
        made = [str(bin_ / "initdb"), "-D", data, "-U", "ratchet", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(made, check=True, **more)
        options = [
            "fsync=off",
            f"unix_socket_directories={home}",
            "listen_addresses=",
            "log_min_messages=panic",
        ]
        serving = [str(bin_ / "postgres"), "-D", data, *(word for one in options for word in ("-c", one))]
        with subprocess.Popen(serving, stderr=subprocess.DEVNULL, **more) as server:
            try:
                address = f"postgresql://ratchet@/postgres?host={home}"
                _until(server, lambda: _accepts(address))
                yield address
            finally:
                server.send_signal(2)  # at once, without waiting for clients
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """The address of a new database."""
    import psycopg

    name = f"ratchet_test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def empty_database(address: str) -> None:
    """Drop what a test left, and its connections: a tenth of the time of a new database."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}".encode())
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a bucket, whose keys are in the environment; skips the test where there is none."""
    if given := os.environ.get("RATCHET_TEST_S3"):
        yield given
        return
    if not (program := shutil.which("s3rver")):
        pytest.skip("no S3 server: `npm install --global s3rver`, or set RATCHET_TEST_S3 (s3://...)")
    with tempfile.TemporaryDirectory(prefix="ratchet-s3-") as home, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        serving = [program, "-d", home, "-a", "127.0.0.1", "-p", str(port), "--configure-bucket", "ratchet"]
        keys = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
        with subprocess.Popen(serving, stdout=subprocess.DEVNULL) as server:
            os.environ.update(keys)
            try:
                _until(server, lambda: _listens(port))
                yield f"s3://ratchet?endpoint=http://127.0.0.1:{port}"
            finally:
                server.terminate()


def new_prefix(bucket: str) -> str:
    """The address of an empty prefix, for one test."""
    return urlunsplit(urlsplit(bucket)._replace(path=f"/{secrets.token_hex(6)}"))


def database(address: str) -> Postgres:
    """A database with all tables."""
    return Postgres(address, archive.SCHEMA + call_store.SCHEMA + remote.SCHEMA)


def opened_blobs(where: str) -> BlobStore:
    """The blobs in a folder, a bucket or a database."""
    if where.startswith("s3:"):
        return BlobStore(Bucket(where))
    return BlobStore(Rows(database(where)) if "://" in where else Path(where))


def opened_calls(where: str) -> CallsMade:
    """The calls in a file or a database."""
    return CallsMade(database(where) if "://" in where else Path(where))


def opened_archive(where: str) -> Archive:
    """The archive in a file or a database."""
    return Archive(database(where) if "://" in where else Path(where))


def _beside(program: str) -> list[Path]:
    found = shutil.which(program)
    return [Path(found).resolve().parent] if found else []


def _until(server: subprocess.Popen[bytes], serves: Callable[[], bool]) -> None:
    end = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < end and server.poll() is None:
        if serves():
            return
        time.sleep(0.1)
    raise AssertionError(f"{server.args!r} does not serve")


def _accepts(address: str) -> bool:
    """PostgreSQL listens before it has started: until then it refuses connections."""
    import psycopg

    with suppress(psycopg.OperationalError), psycopg.connect(address):
        return True
    return False


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
