"""What a state sees of the context: the fields that it declared, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from pydantic import BaseModel

__all__ = ["View"]


class View:
    """A read-only window on a context; an undeclared read calls `refuse`, which raises.

    Properties, methods and constants of the context class work on the view, so what they read counts.
    """

    __slots__ = ("_allowed", "_context", "_refuse", "_seen")

    def __init__(
        self,
        context: BaseModel,
        allowed: frozenset[str] | None,
        refuse: Callable[[str], Exception],
        reads: Iterable[str] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "_context", context)
        put(self, "_allowed", allowed)
        put(self, "_refuse", refuse)
        put(self, "_seen", dict.fromkeys(reads))

    def __getattr__(self, name: str) -> Any:
        kind = type(self._context)
        if name in kind.model_fields:
            if self._allowed is not None and name not in self._allowed:
                raise self._refuse(name)
            self._seen[name] = None
            return getattr(self._context, name)
        for owner in kind.__mro__:
            if owner is BaseModel:
                break
            if name in owner.__dict__:
                member = owner.__dict__[name]
                if isinstance(member, cached_property):
                    return member.func(self)
                return member.__get__(self, kind) if hasattr(member, "__get__") else member
        raise AttributeError(f"{kind.__name__} has no field or member {name!r}")

    def __repr__(self) -> str:
        return f"View({type(self._context).__name__})"

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(f"a context is read-only: return a patch with {name!r} instead")

    def __delattr__(self, name: str) -> None:
        raise TypeError(f"a context is read-only: {name!r} cannot be deleted")


def fields_read(view: View) -> tuple[str, ...]:
    """The fields that were read through this view, in the order of the first read."""
    return tuple(view._seen)
