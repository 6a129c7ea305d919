"""Runs of a data directory, read from its files: no server is started or asked.

The embedded server keeps its list of runs in a SQLite table, which it updates a moment after things have
happened. A second table holds the updates that are still to be made. So the list is what the server would
answer exactly when no such update is left. Otherwise, and where the database looks different from what this
module knows, the server is asked. (Tables of Temporal 1.32: `executions_visibility`, `visibility_tasks`,
`namespaces`; bytes are Protocol Buffers.)
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, Unpack
from uuid import UUID

from client.runs.listing import GOAL_CHARACTERS, PROGRESS, Filter, RunLine, requests_in
from client.server.ownership import DATABASE, is_own
from workflows.temporal_names import ATTRIBUTES, LOG_HEAD_KEY, REQUESTS_KEY, WORKFLOW_TYPE

__all__ = ["RunFiles"]

T = TypeVar("T")
NAMESPACE = "default"
COLUMNS = (
    "v.workflow_id, v.run_id, v.status, v.start_time, v.close_time, v.task_queue, v.memo, v.search_attributes"
)
ROWS = "FROM executions_visibility AS v WHERE v.namespace_id = :namespace AND +v.workflow_type_name = :type"
"""The `+` keeps SQLite from the index of the type, which nearly all rows have."""
WANTED = f"""{ROWS} AND v.status <> 6
AND (NOT :running OR v.close_time IS NULL)
AND (NOT :waiting OR json_extract(v.search_attributes, :AgentWaiting) IS NOT NULL)
AND (:machine IS NULL OR json_extract(v.search_attributes, :AgentMachine) = :machine)
AND (:agent IS NULL OR json_extract(v.search_attributes, :AgentName) = :agent)
AND (:since IS NULL OR v.start_time >= :since)
AND substr(v.workflow_id, 1, length(:prefix)) = :prefix"""
"""As `list_filter`."""
COUNT = f"SELECT count(*) {WANTED}"
NEWEST = f"""SELECT {COLUMNS}, max(v.start_time) AS newest {WANTED}
GROUP BY v.workflow_id ORDER BY newest DESC LIMIT :limit"""
ONE = f"""SELECT {COLUMNS} {ROWS} AND v.workflow_id = :run ORDER BY replace(v.run_id, '-', '') IN
(SELECT lower(hex(run_id)) FROM current_executions WHERE workflow_id = v.workflow_id), v.start_time"""
BUSY_SECONDS = 2


class _Unclear(Exception):
    """The database does not say it, or not in a form that is known here."""


class RunFiles:
    """Runs of the embedded server of a data directory, running or not, from its database, for one command.

    Each method gives None where the server is to be asked.
    """

    def __init__(self, home: Path) -> None:
        self._home = home.resolve()
        self._is_clear: bool | None = None
        self._namespace = ""
        """Its id, as the rows have it."""
        self._names: dict[str, str] = {}
        """Column of a search attribute -> its name."""
        self._over: dict[str, list[RunLine]] = {}

    def lines(self, limit: int | None = None, **wanted: Unpack[Filter]) -> list[RunLine] | None:
        """The newest execution of each run of a filter, the newest first."""
        return self._read(NEWEST, self._line, **_values(wanted), limit=-1 if limit is None else limit)

    def count(self, **wanted: Unpack[Filter]) -> int | None:
        """How many there are."""
        found = self._read(COUNT, lambda row: int(row[0]), **_values(wanted))
        return None if found is None else sum(found)

    def executions(self, run: str) -> list[RunLine] | None:
        """Of one run, the newest last. Those of a run that is over are read once."""
        if (known := self._over.get(run)) is not None:
            return known
        found = self._read(ONE, self._line, run=run)
        if found and not found[-1].is_running:
            self._over[run] = found
        return found

    def is_served(self) -> bool:
        """The server runs now. Without one there is no worker, either."""
        try:
            with (self._home / "server.lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:  # somebody holds it: whether that is the server, its module knows, which takes longer
            from client.server.embedded import running_server

            return running_server(self._home) is not None
        return False

    def is_used(self) -> bool:
        """Some command uses the server now, and may be a worker. After `kill -9` of all of them the server
        lives on, and nothing works."""
        try:
            # shared: whoever leaves holds it alone, and would take this look at the users for one of them
            with (
                (self._home / "start.lock").open("rb") as leaving,
                (self._home / "users.lock").open("rb") as file,
            ):
                fcntl.flock(leaving, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:  # it has users, or somebody joins or leaves now
            return True
        return False

    def _read(self, query: str, made: Callable[[tuple[Any, ...]], T], **values: Any) -> list[T] | None:
        """What is made of the rows of a query; None: ask the server."""
        path = self._home / DATABASE
        try:
            path.lstat()
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as file:
                file.execute("BEGIN")
                if self._is_clear is None:
                    self._is_clear = is_own(self._home) and self._is_settled(file)
                if not self._is_clear:
                    return None
                places = {name: f'$."{column}"' for column, name in self._names.items()}
                values |= {**places, "namespace": self._namespace, "type": WORKFLOW_TYPE}
                return [made(row) for row in file.execute(query, values)]
        except FileNotFoundError:
            return []
        except (_Unclear, OSError, sqlite3.Error, ValueError, KeyError, TypeError, IndexError):
            self._is_clear = False
            return None

    def _is_settled(self, file: sqlite3.Connection) -> bool:
        """All that has happened is in the rows; notes the namespace, and the columns of our attributes."""
        query = "SELECT id, data FROM namespaces WHERE name = ?"
        number, data = file.execute(query, (NAMESPACE,)).fetchone()
        self._namespace = str(UUID(bytes=number))
        config = dict(_fields(data))[2]
        self._names = dict(_entry(value) for number, value in _fields(config) if number == 8)
        if not set(ATTRIBUTES) <= set(self._names.values()):
            return False
        versions = dict(file.execute("SELECT run_id, _version FROM executions_visibility"))
        tasks = file.execute("SELECT task_id, data FROM visibility_tasks")
        return all(versions.get(dict(_fields(task))[3].decode(), -1) >= number for number, task in tasks)

    def _line(self, row: tuple[Any, ...]) -> RunLine:
        run, run_id, status, started, closed, queue, memo, attributes = row[:8]
        found = {
            self._names.get(column, column): one for column, one in json.loads(attributes or "{}").items()
        }
        notes = dict(_payload_entry(value) for _, value in _fields(memo or b""))
        goal = _value(notes.get("goal"))
        return RunLine(
            id=run,
            run_id=run_id,
            progress=PROGRESS[status],
            agent=found.get("AgentName", ""),
            machine=found.get("AgentMachine", ""),
            task_queue=queue,
            state=found.get("AgentState", ""),
            waiting="" if closed else found.get("AgentWaiting", ""),
            waiting_since=_moment(found.get("AgentWaitingSince")),
            deadline=_moment(found.get("AgentDeadline")),
            exit_reason=found.get("AgentExit", ""),
            goal="" if goal is None else str(goal)[:GOAL_CHARACTERS],
            started=datetime.fromisoformat(started),
            closed=_moment(closed),
            requests=requests_in(_value(notes.get(REQUESTS_KEY))),
            log_head=str(_value(notes.get(LOG_HEAD_KEY)) or ""),
        )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _values(wanted: Filter) -> dict[str, Any]:
    """The values of `WANTED`."""
    since = wanted.get("since")
    # as the server writes it, so that texts compare as times do: no zeros at the end; then comes the zone
    text = since and f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}".rstrip("0").rstrip(".")
    return {
        "running": wanted.get("running", False) or wanted.get("waiting", False),
        "waiting": wanted.get("waiting", False),
        "machine": wanted.get("machine"),
        "agent": wanted.get("agent"),
        "prefix": wanted.get("prefix", ""),
        "since": text,
    }


# -- Protocol Buffers --------------------
# Temporal's classes for them would do, but take longer to import than such a command may take.


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message: bytes, or a number. Raises IndexError."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        if key & 7 == 0:
            value, at = _number(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = _number(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise _Unclear


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next thing begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _entry(data: bytes) -> tuple[str, str]:
    """An entry of a map of texts."""
    found = dict(_fields(data))
    return found[1].decode(), found.get(2, b"").decode()


def _payload_entry(data: bytes) -> tuple[str, bytes]:
    """An entry of a memo: its name and payload."""
    found = dict(_fields(data))
    return found[1].decode(), found[2]


def _value(payload: bytes | None) -> Any:
    """The value of a payload. Raises `_Unclear` for one that needs a codec, such as an encrypted one."""
    if payload is None:
        return None
    parts = list(_fields(payload))
    metadata = dict(_entry(value) for number, value in parts if number == 1)
    if metadata.get("encoding") != "json/plain":
        raise _Unclear
    return json.loads(dict(parts).get(2, b"null"))
