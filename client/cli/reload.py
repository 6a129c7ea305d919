"""What `ratchet dev` has loaded. When code changes, it is checked in a process of its own, then the command
starts again.

A process that has imported a module cannot forget it soundly: others hold its functions. So the whole process
is replaced (`exec`), which keeps its pid and its terminal. A lock that it hands on keeps the server running.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from activities.settings import Settings
from client.agents.agentfile import find_agent, load_agent
from client.agents.catalog import Catalog, module_facts, without_broken_modules
from client.agents.files import agents_here
from client.cli.output import note
from client.errors import RatchetError, UsageError
from client.server.embedded import EmbeddedServer
from client.server.workerconfig import Allowed, load_settings, recalled, settings_from_environment

if TYPE_CHECKING:
    from client.sdk.agent import AgentClient

__all__ = ["changed", "check", "held", "leave", "let_go", "loaded_lines", "stamps", "start_again", "watched"]

LOOK_SECONDS = 1.0
"""How often the files are looked at."""
LOCK_VARIABLE = "_RATCHET_HELD"
"""Environment: the descriptor of the lock that keeps the server until the new process has joined it."""
SIGNALS = {signal.SIGINT, signal.SIGTERM}
START = f"import sys; sys.path[:] = {{path!r}}; from {__name__} import check; check()"
Stamps = Mapping[Path, tuple[int, int] | None]


async def changed(client: AgentClient, agents: Sequence[str], settings: Settings, before: Stamps) -> None:
    """Wait until a file of the agents or of the worker's modules has changed since `before`, and a new worker
    can load all of them and breaks no run. What stands in the way is named, and nothing else happens."""
    refused: Collection[str] | None = None
    files: set[str] = set()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = stamps(before)
        if now == before and (refused is None or await _not_over(client) == refused):
            continue
        files |= {path.name for path in now if now[path] != before[path]}
        before, refused = now, await _not_over(client)
        if problem := await _problem(client, agents, settings):
            note(f"{problem}\nnot reloaded: all stays as it is until that is mended")
        elif stamps(before) == before:  # else it was changed again since it was checked
            note(f"{', '.join(sorted(files))} changed: the worker starts again")
            return


async def _not_over(client: AgentClient) -> Collection[str]:
    """The runs that a new worker would continue; what it would break, it may not break once they are over."""
    with suppress(RatchetError):
        return {line.id for line in await client.list(running=True)}
    return ()


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


async def _problem(client: AgentClient, agents: Sequence[str], settings: Settings) -> str:
    """Why a process that begins now could not load what this one has loaded, or would break a run of the
    directory; empty: neither."""
    start = START.format(path=sys.path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    asked: dict[str, Any] = {
        "agents": list(agents),
        "data_dir": str(settings.data_dir),
        "modules": list(settings.modules),
    }
    asked["server"] = client.where if client.ui else ""
    try:
        output, _ = await process.communicate(json.dumps(asked).encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        return f"the process that loads the changed files ends with exit status {process.returncode}"
    return str(json.loads(output.splitlines()[-1]))


def check() -> None:
    """In that process: print why it cannot load what it is asked to load, or what it would break."""
    asked = json.load(sys.stdin)
    problem = ""
    try:
        agents = [load_agent(name) for name in asked["agents"]]
        allowed = Allowed.of_agents(*agents)
        settings = load_settings(Path(asked["data_dir"]), allowed)
        needed = {*asked["modules"], *allowed.modules}  # one that was left out before may stay broken
        kept = tuple(name for name in settings.modules if name in needed)
        assert Catalog.load(settings.model_copy(update={"modules": kept})).providers
        if asked["server"]:
            named = (*settings_from_environment().modules, *allowed.modules)
            settings, _ = without_broken_modules(settings, named)
            asyncio.run(_check_runs(settings, asked["server"]))
    except RatchetError as error:
        problem = str(error)
    sys.stdout.write(f"\n{json.dumps(problem)}\n")  # behind what a module prints


async def _check_runs(settings: Settings, server: str) -> None:
    """Raise a UsageError when a worker of this process would break a run of the directory."""
    from client.cli.worker import check_runs
    from client.sdk.agent import AgentClient
    from client.server.connection import connected

    async with connected(settings=settings, remote={"target_host": server}) as connection:
        await check_runs(AgentClient(connection), settings)


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


def start_again(lock: int | None) -> NoReturn:
    """Replace this process by one of the same command. `lock` is what it holds of the server's users.

    Signals are held back until the new process has joined the server: nobody else would stop it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if lock is not None:
        os.environ[LOCK_VARIABLE] = str(lock)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def held(home: Path) -> int:
    """A lock of one more user of the server, which a new process inherits."""
    lock = os.open(home / "users.lock", os.O_RDONLY | os.O_NOFOLLOW)
    fcntl.flock(lock, fcntl.LOCK_SH)
    os.set_inheritable(lock, True)
    return lock


async def leave(home: Path, lock: int | None) -> None:
    """There will be no new process: give back the lock, if held, and stop the server unless others use it."""
    if lock is not None:
        os.close(lock)
        async with await EmbeddedServer.attach(home):
            pass


def let_go() -> bool:
    """In the new process, once it has joined the server: give the lock back. Returns whether it is one."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    lock = os.environ.pop(LOCK_VARIABLE, "")
    with suppress(OSError, ValueError):
        os.close(int(lock))
    return bool(lock)
