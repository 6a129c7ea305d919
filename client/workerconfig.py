"""What the command line's own worker may load and reach, remembered for each data directory.

A task only names tools and servers; what a worker loads is its own configuration. So that an
interrupted run can go on, the next command's worker must have what the first one had: the modules
and servers that were named on this machine's command line. They are kept in the user's own state
folder, never in the data directory: that one may have come with somebody else's files, and what is
remembered is executed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from activities.contracts import ModelSpec
from activities.settings import Settings
from client.errors import UsageError

__all__ = ["Allowed", "load_settings", "loadable", "remember", "with_allowed"]


class Allowed(BaseModel):
    """Modules and model servers that a user of this directory has named."""

    modules: tuple[str, ...] = ()
    base_urls: tuple[str, ...] = ()
    openai_base_url: str | None = None
    """The server that was typed last: it is the configured one, and is sent the key."""

    def __or__(self, other: Allowed) -> Allowed:
        return Allowed(
            openai_base_url=other.openai_base_url or self.openai_base_url,
            modules=tuple(dict.fromkeys((*self.modules, *other.modules))),
            base_urls=tuple(dict.fromkeys((*self.base_urls, *other.base_urls))),
        )

    @classmethod
    def of(cls, modules: Iterable[str], models: Iterable[ModelSpec]) -> Allowed:
        """What an agent file needs."""
        return cls(
            modules=tuple(modules),
            base_urls=tuple(spec.base_url for spec in models if spec.base_url),
        )


def remember(data_dir: Path, allowed: Allowed) -> None:
    """Add to what later workers of this directory may load and reach.

    Raises:
        UsageError: the user's state folder cannot be written.
    """
    known = recalled(data_dir)
    if (known | allowed) == known:
        return
    path = _memory(data_dir)
    beside = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write((known | allowed).model_dump_json(indent=2) + "\n")
        beside.replace(path)
    except OSError as error:
        raise UsageError(
            f"the modules and servers of this run cannot be kept in {path.parent}: "
            f"{error.strerror or error}; make it writable, or name another folder with XDG_STATE_HOME"
        ) from error


def recalled(data_dir: Path) -> Allowed:
    """What commands of this directory have named; modules that are gone are left out."""
    try:
        known = Allowed.model_validate_json(_memory(data_dir).read_bytes())
    except (OSError, UsageError, ValidationError):
        return Allowed()
    present = tuple(name for name in known.modules if Path(name).is_file())
    return known.model_copy(update={"modules": present})


def _memory(data_dir: Path) -> Path:
    """The file that belongs to a data directory, wherever one looks at it from."""
    stated = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        home = stated if stated.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise UsageError(f"{error}; name a folder for Ratchet's state with XDG_STATE_HOME") from error
    digest = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()
    return home / "ratchet" / f"{digest[:32]}.json"


def loadable(settings: Settings, named: Iterable[str]) -> tuple[Settings, tuple[str, ...]]:
    """The settings without remembered modules that cannot be loaded, and a word about each of those.

    What is `named` now, or by the environment, stays: there a fault is an error.
    """
    from activities.extensions import ExtensionError, load_modules
    from workflows import registry

    kept, left_out = list(dict.fromkeys(name for name in named if name in settings.modules)), []
    try:
        for module in load_modules(kept):
            registry.add_module(module)
    except (ExtensionError, ValueError, TypeError):
        return settings, ()  # said by whoever loads them
    for name in settings.modules:
        try:
            for module in load_modules([] if name in kept else [name]):
                registry.add_module(module)
        except (ExtensionError, ValueError, TypeError) as error:
            left_out.append(
                f"{name}, which an earlier run of this directory named, is left out: {error}. "
                f"Mend it, or forget what was named by deleting {_memory(settings.data_dir)}"
            )
        else:
            kept += [] if name in kept else [name]
    return settings.model_copy(update={"modules": tuple(kept)}), tuple(left_out)


def load_settings(data_dir: Path | None = None, allowed: Allowed | None = None) -> Settings:
    """Settings from the environment, what is remembered of the directory, and what is named now.

    Raises:
        UsageError: a variable of the environment has no good value.
    """
    given: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    try:
        plain = Settings(**given)
    except ValidationError as error:
        said = "; ".join(
            f"RATCHET_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors() if e["loc"]
        )
        raise UsageError(said or str(error)) from error
    return with_allowed(plain, recalled(plain.data_dir) | (allowed or Allowed()))


def with_allowed(settings: Settings, allowed: Allowed) -> Settings:
    """The settings of a worker that may load and reach these, too."""
    every = Allowed(modules=settings.modules, base_urls=settings.base_urls) | allowed
    return settings.model_copy(update={"modules": every.modules, "base_urls": every.base_urls})
