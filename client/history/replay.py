"""`replay`: a run again from its history, with today's code and without calling anything.

The log that today's code writes is compared with the recorded one. Times are replayed too, so records must be
equal with all their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from activities.contracts import Frozen
from client.errors import NoWorker, StoreNotShared, UnknownRun, clear_errors
from client.history.differences import Difference, first_difference
from client.history.recorded import Execution, by_number, executions_of, recorded_log
from client.history.replayer import explained, plugin_of, replayed
from client.runs.connected import ConnectedReader
from client.server.workerconfig import register_modules
from workflows.kernel.log import Record

__all__ = ["ReplayResult", "StepDifference", "first_changed", "replay"]


class StepDifference(Frozen):
    """The first record that today's code writes in another way."""

    seq: int
    """Its number."""
    step: int
    """In which it is."""
    recorded: str
    """`state: event`; empty: today there is one record more."""
    today: str
    """The same of today's record; empty: today there is none."""
    difference: Difference | None = None
    """What differs in it first; left is recorded, right today's."""


class ReplayResult(Frozen):
    """What a replay showed."""

    run: str
    """Its id."""
    before: int | None = None
    """Only records with smaller numbers were compared; None: all."""
    same: bool
    """Nothing differs in all that was compared."""
    can_continue: bool | None
    """Temporal can continue with this history; None: the run is over."""
    failure: str = ""
    """Why Temporal could not replay the history; empty: it could."""
    records: int
    """How many records were compared."""
    difference: StepDifference | None = None
    """The first record that differs; None: none does."""
    notes: tuple[str, ...] = ()
    """What could not be compared."""


async def replay(agents: ConnectedReader, run: str, before: int | None = None) -> ReplayResult:
    """Replay a run; nothing is called, and nothing changes.

    Args:
        before: compare only records with smaller numbers.

    Raises:
        UnknownRun: Temporal has no history of the run any more.
        UsageError: a module of the settings cannot be loaded.
    """
    register_modules(agents.connection.settings.modules)
    try:
        async with clear_errors(agents.where, run):
            executions = await executions_of(agents.temporal, run)
    except UnknownRun as error:
        raise UnknownRun(
            f"{error}. A replay needs Temporal's history of the run; when its retention is over, "
            f"`ratchet log {run}` and `ratchet show {run} --step N` still read the archive"
        ) from error
    recorded, notes = await _recorded(agents, run, executions)
    if executions[0].beginning.continues:
        notes = (*notes, "Temporal has the run's later executions only; the earlier ones were not replayed")
    plugin = plugin_of(agents.temporal)
    found = [await replayed(plugin, execution.history) for execution in executions]
    today = by_number(*(one.records for one in found))
    failed = next((one for one in found if one.failure), None)
    if before is not None and max(today, default=-1) + 1 >= before:
        failed = None  # it failed later
    whole = executions[-1].ended and failed is None
    difference, count = first_changed(recorded, today, whole=whole, before=before)
    return ReplayResult(
        run=run,
        before=before,
        same=failed is None and difference is None,
        can_continue=None if executions[-1].ended else failed is None,
        failure=explained(failed) if failed else "",
        records=count,
        difference=difference,
        notes=notes,
    )


def first_changed(
    recorded: Mapping[int, Record], today: Mapping[int, Record], *, whole: bool, before: int | None = None
) -> tuple[StepDifference | None, int]:
    """The first record that differs, and how many were compared.

    Args:
        whole: both logs are complete, so one record more on either side is a difference.
        before: only records with smaller numbers count.
    """
    if not recorded or not today:
        return None, 0
    first = max(min(recorded), min(today))
    end = max(*recorded, *today) if whole else min(max(recorded), max(today))
    end = end + 1 if before is None else min(end + 1, before)
    for count, seq in enumerate(range(first, end), start=1):
        was, now = recorded.get(seq), today.get(seq)
        if was != now:
            return _step_difference(was, now), count
    return None, max(end - first, 0)


def _step_difference(was: Record | None, now: Record | None) -> StepDifference:
    names = [f"{record.state}: {record.event}" if record else "" for record in (was, now)]
    found = None
    if was and now:
        found = first_difference(was.model_dump(mode="json"), now.model_dump(mode="json"))
    one = was or now
    assert one is not None
    return StepDifference(seq=one.seq, step=one.step, recorded=names[0], today=names[1], difference=found)


async def _recorded(
    agents: ConnectedReader, run: str, executions: Sequence[Execution]
) -> tuple[dict[int, Record], tuple[str, ...]]:
    """The log as the run wrote it: from the history as far as it has it, then from the run itself."""
    found = await recorded_log(agents.temporal, executions)
    if executions[-1].ended and found:
        return found, ()
    try:
        more = await agents.records(run, max(found, default=-1) + 1, full=True)
    except (NoWorker, StoreNotShared) as error:
        return found, (f"the newest records were not compared, because the run cannot answer: {error}",)
    return found | by_number(more), ()
