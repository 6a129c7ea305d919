"""What the command line's own worker may load and reach, remembered in the data directory.

A task only names tools and servers; what a worker loads is its own configuration. So that an
interrupted run can go on, the next command's worker must have what the first one had: the modules
and servers that were named on this machine's command line are kept beside the database.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from activities.contracts import ModelSpec
from activities.settings import Settings
from client.errors import UsageError

__all__ = ["Allowed", "load_settings", "remember"]

FILE = "worker.json"


class Allowed(BaseModel):
    """Modules and model servers that a user of this directory has named."""

    modules: tuple[str, ...] = ()
    base_urls: tuple[str, ...] = ()

    def __or__(self, other: Allowed) -> Allowed:
        return Allowed(
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
    """Add to what later workers of this directory may load and reach."""
    known = recalled(data_dir)
    if (known | allowed) == known:
        return
    path = data_dir / FILE
    beside = path.with_suffix(f".{os.getpid()}.new")
    beside.write_text((known | allowed).model_dump_json(indent=2) + "\n")
    beside.replace(path)


def recalled(data_dir: Path) -> Allowed:
    """What commands of this directory have named; modules that are gone are left out."""
    try:
        known = Allowed.model_validate_json((data_dir / FILE).read_bytes())
    except (OSError, ValidationError):
        return Allowed()
    present = tuple(name for name in known.modules if Path(name).is_file())
    return known.model_copy(update={"modules": present})


def load_settings(data_dir: Path | None = None, allowed: Allowed | None = None) -> Settings:
    """Settings from the environment, the data directory's memory, and what is named now.

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
    environment = Allowed(modules=plain.modules, base_urls=plain.base_urls)
    every = environment | recalled(plain.data_dir) | (allowed or Allowed())
    return plain.model_copy(update={"modules": every.modules, "base_urls": every.base_urls})
