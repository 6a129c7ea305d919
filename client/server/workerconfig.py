"""What a command's own worker may load and reach, remembered for each data directory.

A task only names tools and servers; what a worker loads is its own configuration. An interrupted run can go
on only if the next command's worker has what the first one had: the modules and model servers that were named
on this machine's command line. They are kept in the user's own state folder, never in the data directory:
that one may have come with somebody else's files, and what is remembered is executed.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ValidationError

from activities.configuration import read_configuration
from activities.settings import Settings
from activities.text import KEY_ITSELF, problem_of, problems_of
from client.errors import UsageError
from client.server.environment import OTHER_VARIABLES, state_folder, write_private

if TYPE_CHECKING:
    from activities.contracts import ModelSpec

__all__ = [
    "Allowed", "forget", "is_gone", "load_settings", "memory_file", "recalled", "register_modules",
    "remember", "settings_from_environment",
]  # fmt: skip


class _Agent(Protocol):
    """What an agent file says of the worker that it needs."""

    @property
    def modules(self) -> tuple[str, ...]: ...

    @property
    def models(self) -> Mapping[str, ModelSpec]: ...


class Allowed(BaseModel):
    """Modules and model servers that a user of a directory has named."""

    modules: tuple[str, ...] = ()
    base_urls: tuple[str, ...] = ()
    openai_base_url: str | None = None
    """The server that was typed last: it is the configured one, and gets the key."""

    def __or__(self, other: Allowed) -> Allowed:
        return Allowed(
            modules=tuple(dict.fromkeys((*self.modules, *other.modules))),
            base_urls=tuple(dict.fromkeys((*self.base_urls, *other.base_urls))),
            openai_base_url=other.openai_base_url or self.openai_base_url,
        )

    @classmethod
    def of_agents(cls, *agents: _Agent) -> Allowed:
        """What agents need."""
        models = [spec for agent in agents for spec in agent.models.values()]
        every = cls(
            modules=tuple(module for agent in agents for module in agent.modules),
            base_urls=tuple(spec.base_url for spec in models if spec.base_url),
        )
        return cls() | every  # each once

    def added_to(self, settings: Settings) -> Settings:
        """The settings with all of this allowed as well."""
        every = Allowed(modules=settings.modules, base_urls=settings.base_urls) | self
        return settings.model_copy(update={"modules": every.modules, "base_urls": every.base_urls})


def remember(data_dir: Path, allowed: Allowed) -> None:
    """Add to what later workers of this directory may load and reach.

    Raises:
        UsageError: the user's state folder cannot be written.
    """
    known = recalled(data_dir)
    older = tuple(module for module in known.modules if module not in allowed.modules)
    newest = known.model_copy(update={"modules": older}) | allowed
    if newest != known:
        _keep(data_dir, newest)


def forget(data_dir: Path, names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Forget modules and model servers of a directory; None: all. Returns what was forgotten.

    Args:
        names: as they are remembered; of a file any path that leads there, or its name alone.

    Raises:
        UsageError: a name is not remembered, or is that of several, or the user's state folder cannot be
            written.
    """
    known = recalled(data_dir)
    every = {*known.modules, *known.base_urls, *filter(None, [known.openai_base_url])}
    wanted = every if names is None else {_remembered(name, every) for name in names}
    _keep(
        data_dir,
        Allowed(
            modules=tuple(one for one in known.modules if one not in wanted),
            base_urls=tuple(one for one in known.base_urls if one not in wanted),
            openai_base_url=None if known.openai_base_url in wanted else known.openai_base_url,
        ),
    )
    return tuple(sorted(wanted))


def _remembered(name: str, every: Iterable[str]) -> str:
    """What is meant, of all that is remembered."""
    found = [one for one in every if one in {name, str(Path(name).resolve())}]
    found = found or [one for one in every if one.endswith(".py") and Path(one).name == name]
    if not found:
        raise UsageError(f"{name}: not remembered here; `ratchet modules` lists what is")
    if len(found) > 1:
        raise UsageError(f"{name} may be {' or '.join(sorted(found))}; write out which")
    return found[0]


def _keep(data_dir: Path, allowed: Allowed) -> None:
    path = memory_file(data_dir)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, allowed.model_dump_json(indent=2))
    except OSError as error:
        raise UsageError(
            f"the modules and servers of this run cannot be kept in {path.parent}: "
            f"{error.strerror or error}; make it writable, or name another folder with XDG_STATE_HOME"
        ) from error


def recalled(data_dir: Path) -> Allowed:
    """What commands of this directory have named, the newest last."""
    try:
        return Allowed.model_validate_json(read_configuration(memory_file(data_dir)))
    except (OSError, UsageError, ValidationError):
        return Allowed()


def is_gone(module: str) -> bool:
    """The file of a module that a command of this directory has named is not there any more."""
    return not Path(module).is_file()


def memory_file(data_dir: Path) -> Path:
    """The file that belongs to a data directory, whichever path leads to that directory."""
    digest = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()
    return state_folder() / f"{digest[:32]}.json"


def register_modules(modules: Iterable[str]) -> tuple[ModuleType, ...]:
    """Load users' modules and those of installed packages, and make their machines, rules, policies and hooks
    known in this process. Returns the modules.

    Raises:
        UsageError: one cannot be loaded; the message names file and line.
    """
    from activities.extensions import ExtensionError, load_extensions

    try:
        if found := load_extensions(modules):
            from workflows import registry  # which imports the shipped machines

            for module in found:
                registry.add_module(module)
    except (ExtensionError, ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    return found


def settings_from_environment(data_dir: Path | None = None) -> Settings:
    """The settings that the environment gives (`RATCHET_...`).

    Raises:
        UsageError: a variable has a wrong value, or is almost called like one that is known.
    """
    given: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    known = {f"RATCHET_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    for name in sorted(name for name in os.environ if name.startswith("RATCHET_") and name not in known):
        if close := difflib.get_close_matches(name, known, 1, 0.9):
            raise UsageError(f"{name} of the environment is not known; did you mean {close[0]}?")
    try:
        return Settings(**given)
    except ValidationError as error:
        lines = [_problem(one["loc"], problem_of(one)) for one in problems_of(error) if one["loc"]]
        raise UsageError("; ".join(lines) or str(error)) from error


def _problem(location: tuple[int | str, ...], message: str) -> str:
    name, *inside = (str(part) for part in location if part != KEY_ITSELF)
    return f"RATCHET_{name.upper()}: {'.'.join(inside)}{': ' if inside else ''}{message}"


def load_settings(data_dir: Path | None = None, allowed: Allowed | None = None) -> Settings:
    """Settings from the environment, with what is remembered of the directory and what is named now.
    Remembered files that are gone are left out.

    Raises:
        UsageError: a variable of the environment has a wrong value.
    """
    plain = settings_from_environment(data_dir)
    known = recalled(plain.data_dir)
    there = known.model_copy(update={"modules": tuple(name for name in known.modules if not is_gone(name))})
    return (there | (allowed or Allowed())).added_to(plain)
