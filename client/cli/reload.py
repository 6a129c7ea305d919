"""What `ratchet dev` has loaded. When code changes, it is checked in a process of its own, then the command
starts again.

A process that has imported a module cannot forget it soundly: others hold its functions. So the whole process
is replaced (`exec`), which keeps its pid and its terminal. A lock that it hands on keeps the server running.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, NoReturn

from activities.settings import Settings
from client.agents.agentfile import find_agent, load_agent
from client.agents.catalog import Catalog, module_facts, without_broken_modules
from client.agents.files import agents_here
from client.cli.output import note
from client.errors import RatchetError, UsageError
from client.server.embedded import EmbeddedServer, running_server
from client.server.workerconfig import Allowed, load_settings, recalled, settings_from_environment

if TYPE_CHECKING:
    from client.sdk.agent import AgentClient

__all__ = [
    "Process", "Stamps", "beside", "changed", "changed_beside", "check", "loaded_lines", "stamps", "watched",
]  # fmt: skip

LOOK_SECONDS = 1.0
"""How often the files are looked at."""
RETRY_SECONDS, CHECK_SECONDS = 5.0, 60
"""When a check is made again that failed for the server's sake; how long one may take."""
LOCK_VARIABLE, SAID_VARIABLE = "_RATCHET_HELD", "_RATCHET_SAID"
"""Environment of a process that has replaced one: see `Process`. The first is a descriptor, or empty."""
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
START = f"import sys; sys.path[:] = {{path!r}}; from {__name__} import check; check()"
Stamps = Mapping[Path, tuple[int, int] | None]


async def changed(client: AgentClient, agents: Sequence[str], settings: Settings, before: Stamps) -> None:
    """Wait until a file of the agents or of the worker's modules has changed since `before`, and a new worker
    can load all of them and breaks no run. What stands in the way is named, and nothing else happens until
    that may have changed."""
    found, around = _Refusal(), _around(agents, settings)
    files: set[str] = set()
    while True:
        await asyncio.sleep(RETRY_SECONDS if found.is_passing else LOOK_SECONDS)
        now = stamps(before)
        may_pass = found.text and (
            found.is_passing or _around(agents, settings) != around or await found.is_void(client)
        )
        if now == before and not may_pass:
            continue
        files |= {path.name for path in now if now[path] != before[path]}
        before, around, said = now, _around(agents, settings), found.text
        found = await _refusal(client, agents, settings)
        if found.text not in ("", said):
            when = (
                "the server is asked again" if found.is_passing else "all stays as it is until that is mended"
            )
            note(f"{found.text}\nnot reloaded: {when}")
        if not found.text and stamps(before) == before:  # else it was changed again since it was checked
            note(f"{', '.join(sorted(files))} changed: the worker starts again")
            return


@dataclass(frozen=True)
class _Refusal:
    """Why a new process is not begun."""

    text: str = ""
    runs: frozenset[str] = frozenset()
    """The runs that it would break."""
    is_passing: bool = False
    """It is no fault of the code: the server did not answer."""

    async def is_void(self, client: AgentClient) -> bool:
        """One of the runs is over."""
        with suppress(RatchetError):
            return bool(self.runs) and not self.runs <= {one.id for one in await client.list(running=True)}
        return False


def _around(agents: Sequence[str], settings: Settings) -> tuple[Stamps, Allowed]:
    """What code that could not be loaded may need, beside the files that are known; and what the directory
    remembers."""
    return beside(agents, settings.data_dir), recalled(settings.data_dir)


def stamps(files: Iterable[Path]) -> Stamps:
    """When each file was changed last, and its size; None: it is not there."""
    found: dict[Path, tuple[int, int] | None] = {}
    for path in files:
        found[path] = None
        with suppress(OSError):
            state = path.stat()
            found[path] = state.st_mtime_ns, state.st_size
    return found


def watched(agents: Sequence[str], settings: Settings) -> set[Path]:
    """The agent files, the worker's modules, even those that are gone, and what was imported from beside."""
    own = {find_agent(name).resolve() for name in agents}
    modules = (*settings.modules, *recalled(settings.data_dir).modules)
    own |= {Path(name).resolve() for name in modules if name.endswith(".py")}
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return own | {path for path in map(Path, files) if path.parent in {one.parent for one in own}}


async def _refusal(client: AgentClient, agents: Sequence[str], settings: Settings) -> _Refusal:
    """Why a process that begins now could not load what this one has loaded, or what it would break."""
    start = START.format(path=sys.path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    asked = {
        "agents": list(agents), "data_dir": str(settings.data_dir), "modules": list(settings.modules),
        "server": client.where if client.ui else "", "queues": list(client.connection.queues),
    }  # fmt: skip
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            output, _ = await process.communicate(json.dumps(asked).encode())
        text, runs, is_passing = json.loads(output.splitlines()[-1])
        return _Refusal(text, frozenset(runs), is_passing)
    except TimeoutError:
        return _Refusal(f"the changed files are not loaded within {CHECK_SECONDS} s")
    except (ValueError, IndexError):
        return _Refusal(
            f"the process that loads the changed files ends with exit status {process.returncode}"
        )
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what a module has started


def check() -> Never:
    """In that process: print why it cannot load what it is asked to load, or what it would break."""
    asked = json.load(sys.stdin)
    answer: tuple[str, Sequence[str], bool] = "", (), False
    try:
        asyncio.run(_try(asked))
    except RatchetError as error:
        answer = str(error), getattr(error, "runs", ()), not isinstance(error, UsageError)
    sys.stdout.write(f"\n{json.dumps(answer)}\n")  # behind what a module prints
    sys.stdout.flush()
    os._exit(0)  # a module may have asked to print something at the end


async def _try(asked: Mapping[str, Any]) -> None:
    """Load, and raise what `ratchet dev` would raise now."""
    agents = [load_agent(name) for name in asked["agents"]]
    allowed = Allowed.of_agents(*agents)
    settings = load_settings(Path(asked["data_dir"]), allowed)
    needed = {*asked["modules"], *allowed.modules}  # one that was left out before may stay broken
    kept = tuple(name for name in settings.modules if name in needed)
    assert Catalog.load(settings.model_copy(update={"modules": kept})).providers
    if not asked["server"]:
        return
    from client.cli.worker import continued
    from client.sdk.agent import AgentClient
    from client.server.connection import connected

    named = (*settings_from_environment().modules, *allowed.modules)
    settings, _ = without_broken_modules(settings, named)
    async with connected(settings=settings, remote={"target_host": asked["server"]}) as connection:
        client = AgentClient(connection)
        await continued(client, settings, await client.list(running=True), asked["queues"])


# -- what is loaded --------------------


def loaded_lines(agents: Sequence[str], settings: Settings) -> Iterator[str]:
    """The agent files that were named, the modules of the worker with what each has, and the agent files of
    the current folder whose modules were not loaded."""
    named = [find_agent(name) for name in agents]
    if named:
        yield f"Agents    {', '.join(map(str, named))}"
    for module in settings.modules:
        facts = module_facts(module)
        has = [f"{one} {name}" for one in ("tool", "machine") for name in facts.get(f"{one}s", ())]
        yield f"Module    {_short(module)}{'   ' if has else ''}{', '.join(has)}"
    for path in agents_here():
        try:
            missing = [module for module in load_agent(path).modules if module not in settings.modules]
        except UsageError as error:
            yield f"warning: {error}"
            continue
        if missing:
            files = ", ".join(map(_short, missing))
            yield f"not loaded: {files} of {path}; `ratchet dev --agent {path}` loads it"


def _short(module: str) -> str:
    """A file of the current folder by its place there."""
    path = Path(module)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else module


# -- the new process --------------------


class Process:
    """This process, which may have replaced one and be replaced; with a lock that keeps the embedded server.

    Signals are held back from one to the next: nobody else would stop the server."""

    def __init__(self) -> None:
        lock = os.environ.pop(LOCK_VARIABLE, None)
        self.is_new = lock is None
        self._said = os.environ.pop(SAID_VARIABLE, "")
        self._lock = int(lock) if lock else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def keep_server(self, home: Path) -> None:
        """Be one more user of the server, also when this process is replaced."""
        if self._lock is None:
            self._lock = os.open(home / "users.lock", os.O_RDONLY | os.O_NOFOLLOW)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            os.set_inheritable(self._lock, True)

    async def leave(self, home: Path) -> None:
        """There is no next one: stop the server unless others use it."""
        if self._lock is not None:
            os.close(self._lock)
            if running_server(home) is not None:
                async with await EmbeddedServer.attach(home):
                    pass

    def has_said(self, text: str) -> bool:
        """The process before this one has said why it did not work: the same."""
        return self._said == _digest(text)

    def replace(self, said: str = "") -> NoReturn:
        """Begin the same command again, in place; `said` is why it did not work this time."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        os.environ[LOCK_VARIABLE] = "" if self._lock is None else str(self._lock)
        os.environ[SAID_VARIABLE] = _digest(said)
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _digest(text: str) -> str:
    """Of any length and any characters, what an environment can hold."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def beside(agents: Sequence[str], home: Path) -> Stamps:
    """The Python and YAML files of the folders that agents and modules are in, and of the current one."""
    names = (*agents, *settings_from_environment().modules, *recalled(home).modules)
    folders = {Path(), *(Path(name).parent for name in names if name.endswith((".py", ".yaml", ".yml")))}
    return stamps(
        file for folder in folders for end in ("py", "yaml", "yml") for file in folder.glob(f"*.{end}")
    )


async def changed_beside(agents: Sequence[str], home: Path, before: Stamps) -> None:
    """Wait until one of these files changes, or a minute has passed: code that could not be loaded does not
    say what it needs, and a run that it would break may be over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while beside(agents, home) == before:  # noqa: ASYNC110  # files tell nobody
                await asyncio.sleep(LOOK_SECONDS)
