"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import storekit

gc.set_threshold(50_000)  # modules and tests are no garbage; looking for some would take a third of a start
os.environ.setdefault("GOGC", "400")  # Temporal's server looks for garbage less often, which saves a tenth
settings.register_profile("quick", max_examples=25, derandomize=True, deadline=None)
settings.register_profile(
    "thorough", max_examples=300, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # started in the background by a shell: every command that a test starts would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    """The SDK interrupts a workflow task that takes more than 2 s, as on a busy machine, and tries it again.

    An interruption that falls into a destructor cannot be raised; for pytest it would be a test's fault.
    """
    of_pytest = sys.unraisablehook

    def hook(caught: sys.UnraisableHookArgs) -> None:
        if type(caught.exc_value).__name__ != "_InterruptDeadlockError":
            of_pytest(caught)

    sys.unraisablehook = hook


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: whoever looks for garbage need not look at them."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests wait and files whose tests compute take turns, so that no core is idle: each file is
    one piece of work for a worker of xdist. The longest begin, and those that wait end first."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [path for path in files if WAITING & {*path.parts[len(HERE.parts) :], path.stem}]
    busy = [path for path in files if path not in waiting]
    place = {path: number / len(waiting) for number, path in enumerate(waiting)}
    place |= {path: 0.2 + number / len(busy) for number, path in enumerate(busy)}
    place |= {path: LONGEST.index(path.stem) - len(LONGEST) for path in files if path.stem in LONGEST}
    items[:] = [item for path in sorted(files, key=place.__getitem__) for item in files[path]]


HERE = Path(__file__).parent
WAITING = {"test_docs", "server", "client", "mcp"}
"""Folders and files of tests with servers and processes of their own."""
LONGEST = ("test_cli_bugs", "test_cli_verify_agent", "test_crash", "test_cli_process", "test_console")
Environ = MutableMapping[str, str]


@pytest.fixture
def environ() -> Iterator[Environ]:
    """This process's environment; in the end it is as it was."""
    before = dict(os.environ)
    yield os.environ
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)  # never empty: threads read it meanwhile


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Address of a PostgreSQL server."""
    with storekit.postgres_server() as address:
        yield address


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    """Address of a database."""
    with storekit.new_database(postgres_server) as address:
        yield address


@pytest.fixture
def postgres(postgres_database: str) -> str:
    """Address of an empty database."""
    storekit.empty_database(postgres_database)
    return postgres_database


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of a bucket."""
    with storekit.s3_server() as address:
        yield address


@pytest.fixture
def bucket(s3_server: str) -> str:
    """Address of an empty prefix of a bucket."""
    return storekit.new_prefix(s3_server)
