"""The tools as a run was told of them, against the tools that there are here now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from temporalio.client import Client

from activities.contracts import Frozen, ToolsDescribed, ToolSpec
from client.differences import Difference, differences
from client.recorded import DESCRIBED, Part
from client.witness import plugin_of

__all__ = ["ChangedTool", "changed_tools", "few", "held_against_now"]

FEW = 5
"""Names in a note."""


class ChangedTool(Frozen):
    """A tool that says something else of itself now. The run keeps what it was told; a new one hears this."""

    tool: str
    differences: tuple[Difference, ...]


async def held_against_now(
    temporal: Client, parts: Sequence[Part]
) -> tuple[tuple[ChangedTool, ...], tuple[str, ...]]:
    """The tools of a run that are others now, and in words those that cannot be compared.

    Raises UsageError: a module of the settings cannot be loaded.
    """
    from client.catalog import Catalog

    told, untold = await _told(temporal, parts)
    changed, missing = changed_tools(told, Catalog.load(plugin_of(temporal).settings).tools if told else ())
    notes: list[str] = []
    if untold:
        notes.append(f"not compared: how tools describe themselves; the history does not say ({few(untold)})")
    if missing:
        where = "name the modules that have them with RATCHET_MODULES"
        notes.append(f"not compared: tools that are not known here ({few(missing)}); {where}")
    return changed, tuple(notes)


async def _told(temporal: Client, parts: Sequence[Part]) -> tuple[tuple[ToolSpec, ...], tuple[str, ...]]:
    """What the executions of a run were told of their tools, and the names of those of which it is not known.

    It is not of runs that asked by a local activity, as those of earlier releases did.
    """
    specs: dict[str, ToolSpec] = {}
    wanted: dict[str, None] = {}
    missing: set[str] = set()
    for part in parts:
        wanted |= dict.fromkeys(part.begun.task.tools if part.begun.task else ())
        for call in part.calls:
            if call.activity == DESCRIBED:
                told: ToolsDescribed | None = await call.answer(temporal, ToolsDescribed)
                specs |= {spec.name: spec for spec in told.tools} if told else {}
                missing |= set(told.missing if told else ())
    return tuple(specs.values()), tuple(name for name in wanted if name not in specs and name not in missing)


def changed_tools(
    told: Iterable[ToolSpec], here: Iterable[ToolSpec]
) -> tuple[tuple[ChangedTool, ...], tuple[str, ...]]:
    """The tools that are others now, and the names of those that are not known here."""
    known = {spec.name: spec for spec in here}
    changed: list[ChangedTool] = []
    missing: list[str] = []
    for was in told:
        now = known.get(was.name)
        if now is None:
            missing.append(was.name)
        elif found := differences(was.model_dump(mode="json"), now.model_dump(mode="json")):
            changed.append(ChangedTool(tool=was.name, differences=found))
    return tuple(changed), tuple(missing)


def few(names: Sequence[str]) -> str:
    """The first of some names."""
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")
