"""`ratchet doctor`: is everything there that runs need, and what to do about what is not."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.errors import RatchetError
from client.place import Json, Place

if TYPE_CHECKING:
    from activities.contracts import ModelSpec
    from activities.settings import Settings
    from client.agent import AgentClient

__all__ = ["COMMANDS"]

INDENT = 24
"""Column in which it begins what is said of a thing."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    said: str
    """What was found, and what to do when it is not well."""


NO_KEY = Check(
    "model",
    True,
    "OPENAI_API_KEY is not set; only needed for language models of OpenAI, not for a server of "
    "OPENAI_BASE_URL or --base-url (Ollama, vLLM, LM Studio), nor for agents with a script",
)
"""What is said of the plain agent's model when there is no key for it."""


async def doctor(
    place: Place,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Check its models and tools.")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Register missing search attributes.")] = False,
    as_json: Json = False,
) -> int:
    """Check server, namespace, search attributes, worker, provider, tools and store."""
    from client.choose import Choice
    from client.view import escaped, plain
    from client.workerconfig import Allowed

    chosen, _ = Choice(agent=agent).finish()
    models = list(chosen.models.values())
    settings = place.worker_settings(Allowed.of(chosen.modules, models))
    checks = [check async for check in _server(place, settings, fix)]
    checks += [_tools(settings, chosen.tools), await _store(settings)]
    # Without an agent file nobody has said that the model is needed.
    checks += [check async for check in _providers(settings, models, needed=agent is not None)]
    if as_json:
        typer.echo(escaped(json.dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False)))
    else:
        for check in checks:
            typer.echo(plain(_line(check)))
    return 0 if all(check.ok for check in checks) else 1


def _line(check: Check) -> str:
    """One line of text; on a terminal it is broken between words, and stays in its column."""
    said = check.said
    if sys.stdout.isatty():
        room = max(shutil.get_terminal_size().columns - INDENT, 20)
        lines = textwrap.wrap(said, room, break_long_words=False, break_on_hyphens=False)
        said = f"\n{' ' * INDENT}".join(lines)
    return f"{'ok' if check.ok else 'BAD':4} {check.name:{INDENT - 6}} {said}"


async def _server(place: Place, settings: Settings, fix: bool) -> AsyncIterator[Check]:
    try:
        async with place.client(settings) as agents:
            kind = "our own" if agents.ui else "elsewhere"
            yield Check("server", True, f"{agents.where} ({kind}) answers")
            async for check in _namespace(agents, fix):
                yield check
            yield await _worker(agents)
    except RatchetError as error:
        yield Check("server", False, str(error))


async def _namespace(agents: AgentClient, fix: bool) -> AsyncIterator[Check]:
    from client.namespace import missing_attributes, namespace_exists, register_attributes

    temporal, name = agents.temporal, agents.temporal.namespace
    if not await namespace_exists(temporal):
        todo = f"make it: `temporal operator namespace create -n {name}`, or set TEMPORAL_NAMESPACE"
        yield Check("namespace", False, f"there is no namespace {name!r}; {todo}")
        return
    yield Check("namespace", True, name)
    try:
        missing = await missing_attributes(temporal)
        if missing and fix:
            await register_attributes(temporal)
            yield Check("search attributes", True, f"registered {', '.join(missing)}")
        elif missing:
            todo = "`ratchet doctor --fix` registers them"
            yield Check("search attributes", False, f"missing: {', '.join(missing)}; {todo}")
        else:
            yield Check("search attributes", True, "all registered")
    except Exception as error:  # noqa: BLE001  # whatever the server says against it
        yield Check("search attributes", False, f"cannot be read or registered: {error}")


async def _worker(agents: AgentClient) -> Check:
    if await agents.has_worker():
        return Check("worker", True, "polls the task queue")
    if agents.ui:
        return Check(
            "worker",
            True,
            "none runs now, and none needs to: `ratchet run` and `ratchet dev` bring their own",
        )
    return Check("worker", False, "none polls the task queue; start one with `python worker.py`")


def _tools(settings: Settings, wanted: tuple[str, ...]) -> Check:
    from client.catalog import Catalog

    try:
        names = [tool.name for tool in Catalog.load(settings).tools]
    except RatchetError as error:
        return Check("tools", False, str(error))
    missing = [name for name in wanted if name not in names]
    if missing:
        return Check("tools", False, f"there is no {', '.join(missing)}; there is {', '.join(names)}")
    return Check("tools", True, ", ".join(names))


async def _store(settings: Settings) -> Check:
    from activities.archive import Archive
    from activities.sqlite import StoreError
    from client.server import usable

    try:
        home = usable(settings.data_dir)
        runs = await Archive(home / "archive.db").runs()
    except (RatchetError, StoreError) as error:
        return Check("store", False, str(error))
    return Check("store", True, f"{home} can be written; runs in the archive: {len(runs)}")


async def _providers(settings: Settings, models: list[ModelSpec], *, needed: bool) -> AsyncIterator[Check]:
    from activities.providers import load_providers
    from client.catalog import check_key

    providers = load_providers(settings)
    for spec in models:
        name = f"model {spec.name}"
        try:
            check_key([spec])
        except RatchetError as error:
            yield Check(name, False, str(error)) if needed else NO_KEY
            continue
        provider = providers.get(spec.provider)
        if provider is None:
            yield Check(name, False, f"there is no provider {spec.provider}; there is {', '.join(providers)}")
            continue
        problem = await provider.check(spec)
        yield Check(name, problem is None, problem or f"provider {spec.provider} is ready")
    for provider in providers.values():
        await provider.close()


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {"doctor": doctor}
