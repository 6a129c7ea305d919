"""Workers of several hosts: they share PostgreSQL and a bucket, and no directory."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from temporalio.client import Client

from activities.settings import Settings
from activities.store.stores import Stores
from tests import storekit
from tests.forked import WORKER, Forked
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import (
    begin,
    calls,
    decide,
    eventually,
    failed_tasks,
    open_request,
    task,
)
from workflows.kernel.log import Record, chain
from workflows.people import Approvals, People

LONG = "long material " * 4000
"""Well above what history holds itself."""
ASKING = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}


@dataclass
class Hosts:
    """Hosts with directories of their own."""

    folder: Path
    variables: dict[str, str]

    @property
    def settings(self) -> Settings:
        """Those of this process, which is one of the hosts."""
        return Settings(
            data_dir=self.folder / "here",
            store=self.variables["RATCHET_STORE"],
            blobs=self.variables.get("RATCHET_BLOBS"),
            store_secret=storekit.SECRET,
        )

    @asynccontextmanager
    async def worker(self, name: str, client: Client) -> AsyncIterator[None]:
        """A worker process of another host."""
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            **self.variables,
            "TEMPORAL_ADDRESS": client.service_client.config.target_host,
            "RATCHET_DATA_DIR": str(self.folder / name),
            "RATCHET_FILES_ROOT": str(files),
            "RATCHET_MODULES": json.dumps([str(TOOLS)]),
        }
        path = self.folder / f"{name}.log"
        with path.open("w") as log, Forked(WORKER, env=environment, stdout=log, stderr=log):
            yield


@pytest.fixture(params=["postgres", pytest.param("postgres and s3", marks=pytest.mark.exhaustive)])
def hosts(request: pytest.FixtureRequest, tmp_path: Path, postgres: str) -> Hosts:
    variables = {"RATCHET_STORE": postgres, "RATCHET_STORE_SECRET": storekit.SECRET}
    if request.param == "postgres and s3":
        variables["RATCHET_BLOBS"] = request.getfixturevalue("bucket")
    return Hosts(tmp_path, variables)


@contextmanager
def moved_away(address: str) -> Iterator[None]:
    """Meanwhile the database cannot be reached under its address."""
    parts = urlsplit(address)
    name = parts.path.removeprefix("/")
    with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname=%s", (name,))
        try:
            yield
        finally:
            server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


async def test_run_goes_on_at_another_host(hosts: Hosts) -> None:
    paying = task(calls(("mark_once", {"line": LONG})), "done", tools=("mark_once",), goal=LONG, **ASKING)
    async with real_server(hosts.settings) as client:
        async with hosts.worker("first", client):
            run = await begin(client, paying)
            request = await open_request(run)
        async with hosts.worker("second", client):
            await decide(run, "approve", request)
            result = await run.result()
        assert (result.exit_reason, result.answer) == ("stop", "done")
        assert await failed_tasks(run) == 0
    stores = Stores(hosts.settings)
    records = [Record.model_validate(one) for one in stores.archive.records(run.id)]
    assert chain(records) == result.log_head
    assert stores.archive.broken_at(run.id) is None
    assert len(list(stores.blobs.list())) > 2
    stores.close()
    kept = {path.name for host in ("first", "second") for path in (hosts.folder / host).iterdir()}
    assert kept.isdisjoint({"blobs", "archive.db", "store.secret"})


async def test_run_waits_while_the_store_is_away(tmp_path: Path, postgres: str) -> None:
    hosts = Hosts(tmp_path, {"RATCHET_STORE": postgres, "RATCHET_STORE_SECRET": storekit.SECRET})
    paying = task(calls(("mark_once", {"line": LONG})), "done", tools=("mark_once",), goal=LONG, **ASKING)
    async with real_server(hosts.settings) as client, hosts.worker("only", client):
        run = await begin(client, paying)
        request = await open_request(run)
        with moved_away(postgres):
            # a signal: an update is refused while the run cannot take it
            decision = {"request": request.id, "digest": request.digest, "decision": "approve", "by": "ann"}
            await run.signal("decide", decision)

            async def says_so() -> bool:
                return "not currently accepting connections" in (tmp_path / "only.log").read_text()

            await eventually(says_so)
        result = await run.result()
    assert (result.exit_reason, result.answer) == ("stop", "done")
    assert (tmp_path / "files" / "marks.txt").read_text().count(LONG) == 1
