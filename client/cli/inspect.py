"""Commands that show a run, and one that stops it: show, steps, log, watch, result, cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.cli import render
from client.cli.lists import print_runs
from client.cli.options import INTERRUPTED, CommonOptions, Json, MaybeRun, RunName, Verbose, command
from client.cli.output import note, print_json, print_lines
from client.errors import (
    MachineBug,
    NoWorker,
    RatchetError,
    RunFailed,
    UnknownRun,
    UsageError,
    resume_command,
)
from client.runs.words import counted, plain
from workflows.certificate import of_certificate
from workflows.steps import steps_of

if TYPE_CHECKING:
    from activities.contracts import JsonObject
    from client.history.resets import Reset
    from client.runs.listing import RunLine
    from client.runs.reader import RunLog, RunReader
    from client.sdk.agent import AgentClient
    from workflows.kernel.log import Record
    from workflows.status import RunStatus
    from workflows.steps import StepLine

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)

ASKED_AT_ONCE = 20
"""Runs that are asked at a time whether a bug stops them."""
MAX_NAMED_RUNS = 10
"""Runs that a message names."""


@command(app)
async def show(
    common: CommonOptions,
    run: RunName,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="The state when step N began, and what came of it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show where a run is, and its steps; with --step its state then."""
    if step is not None:
        await _show_step(common, run, step, as_json)
        return
    problem: RatchetError | None = None
    missing = ""
    async with common.runs() as client:
        run_id = await client.find(run)
        line = await _line(client, run_id)
        found: dict[str, Any] = {"run": line, "status": None, "steps": None, "resets": ()}
        try:
            found |= await _answered(client, run_id)
        except (NoWorker, MachineBug) as error:
            if line is None:
                raise
            problem = await _failure(client, line) or error
            with suppress(RatchetError):  # the list's line has to do
                told = await client.log(run_id, partial=not as_json)
                found["steps"], missing = steps_of(told.records), told.problem
    if as_json:
        print_json(found)
    else:
        _print_run(**found)
    if missing:
        note(missing)
    if isinstance(problem, MachineBug):
        raise problem
    if problem is not None:
        note(str(problem))


async def _answered(client: RunReader, run_id: str) -> dict[str, Any]:
    """What a run that answers, or the archive, says of it."""
    status, records = await client.status(run_id), (await client.log(run_id)).records
    certified = of_certificate(records)
    return {
        "status": status,
        "steps": steps_of(records),
        "resets": await _resets(client, run_id) if status.was_reset else (),
        **({"certificate": certified} if certified else {}),
    }


def _print_run(
    run: RunLine | None,
    status: RunStatus | None,
    steps: Sequence[StepLine] | None,
    resets: Sequence[Reset],
    certificate: JsonObject | None = None,
) -> None:
    """Print what is known of a run; without a status what a list shows of it."""
    if status is not None:
        render.out().print(
            render.status_block(run, status, certificate or {}), *map(render.reset_block, resets)
        )
    elif run is not None:
        print_runs([run], datetime.now(UTC))
    if status is not None or steps:
        render.out().print(render.steps_table(steps) if steps else "")


async def _show_step(common: CommonOptions, run: str, step: int, as_json: bool) -> None:
    """Print the state of a run when a step began, and what came of it."""
    from client.history.checkpoints import snapshot_at, source_of

    async with common.runs() as runs:
        snapshot = snapshot_at(await source_of(runs, await runs.find(run)), step)
    if as_json:
        print_json(snapshot)
    else:
        render.out().print(render.snapshot_block(snapshot))


@command(app)
async def steps(common: CommonOptions, run: RunName, as_json: Json = False) -> None:
    """List a run's steps: what each did, and which of them the run can go back to."""
    from client.runs.steps import checkpoint_lines

    async with common.runs() as runs:
        run_id = await runs.find(run)
        found = await runs.log(run_id, full=True, partial=not as_json)
    lines = checkpoint_lines(run_id, found.records)
    if as_json:
        print_lines(lines)
    else:
        render.out().print(render.checkpoint_table(lines))
        note(
            f"`ratchet show {run_id} --step N` shows the state when a step began; `ratchet rollback` (while "
            "it runs) and `ratchet fork` begin it again"
        )
    _note_source(found)


def _note_source(found: RunLog) -> None:
    """Say where a log was read that the run itself did not give, and why it is not all. Raises the bug that
    is the reason: it has its own exit code."""
    if found.unanswered is None:
        return
    note(found.problem or "the run does not answer; this is its history, replayed here")
    if isinstance(found.unanswered, MachineBug):
        raise found.unanswered


@command(app)
async def log(
    common: CommonOptions,
    run: RunName,
    since: Annotated[int, typer.Option("--since", min=0, help="First sequence number.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Changes too, and no value cut.")] = False,
    as_json: Json = False,
) -> None:
    """Print every record of a run: what happened, why, what was called and what came of it."""
    async with common.runs() as client:
        run_id = await client.find(run)
        found = await client.log(run_id, since, full=full, partial=not as_json)
        records = found.records
        line = await _line(client, run_id)
        is_drawn = records and not as_json
        may_be = is_drawn and (found.unanswered or await _may_be_reset(client, run_id))
        resets = [*await _resets(client, run_id)] if may_be else []
        failure = await _failure(client, line) if line and not records else None
        is_cut_off = line is None and not await client.is_archived(run_id)
    if is_cut_off:
        note(f"Temporal does not know run {plain(run_id)}, and the archive lacks its end")
    if as_json:
        print_lines(records)
    else:
        _print_log(records, resets, full=full)
    _note_source(found)
    if not records and not as_json:
        text = f"run {run_id} has no record from {since} on" if since else f"run {run_id} has no log yet"
        note(str(failure or text))


@command(app)
async def watch(common: CommonOptions, run: RunName, verbose: Verbose = False, as_json: Json = False) -> int:
    """Follow a run as it happens, to its result."""
    import asyncio

    from client.cli.following import follow_from_the_start

    try:
        async with common.client() as client:
            run_id = await client.find(run)
            return await follow_from_the_start(client, run_id, as_json=as_json, verbose=verbose)
    except asyncio.CancelledError:
        return INTERRUPTED


@command(app)
async def result(common: CommonOptions, run: RunName, as_json: Json = False) -> int:
    """Print what came out of a run that is over; exit code 1 when it did not reach its goal."""
    async with common.runs() as client:
        run_id = await client.find(run)
        line = await _line(client, run_id)
        if line is not None and line.progress == "running":
            waits = f"; it waits for a person ({line.waiting})" if line.waiting else ""
            raise RatchetError(f"run {run_id} is not over yet{waits}; `ratchet watch {run_id}` follows it")
        found = await client.result(run_id)
    render.note_cut(found)
    if as_json:
        print_json(found)
    else:
        for part in render.result_text(found, render.out()):
            render.out().print(part, soft_wrap=True)
    return 0 if found.ok else 1


@command(app)
async def cancel(
    common: CommonOptions,
    run: MaybeRun = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="End a run that cannot go on: at once, without result and archived log."
        ),
    ] = False,
    broken: Annotated[
        bool,
        typer.Option("--broken", help="End all runs that a bug stops, as --force does; lists them and asks."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --broken: do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Stop a run; it ends with the exit reason `cancelled`."""
    if broken is (run is not None):
        raise UsageError("name the run to stop, or end all that a bug stops with --broken")
    async with common.client() as client:
        if run is None:
            await _end_broken(client, yes=yes, as_json=as_json)
        else:
            await _stop(client, run, force=force, as_json=as_json)


async def _end_broken(client: AgentClient, *, yes: bool, as_json: bool) -> None:
    """End the runs that a bug stops, also those that only wait."""
    from client.cli.interactive import confirm

    found, unanswered = await _bugs(client)
    for bug in found.values():
        note(plain(str(bug)))
    if unanswered:
        note(_unanswered_text(unanswered))
    if found and not yes:
        await confirm(f"End {counted(len(found), 'run')} at once, without a result?")
    for run_id in found:
        with suppress(UnknownRun):  # it has ended with its outer run
            await client.cancel(run_id, force=True)
    if as_json:
        print_json({"ended": [*found], "unanswered": [*unanswered]})
    else:
        typer.echo(f"ended {counted(len(found), 'run')} that a bug stops")


async def _bugs(client: AgentClient) -> tuple[dict[str, MachineBug], dict[str, RatchetError]]:
    """The bugs that stop runs, and why runs gave no answer; both by the id of the run."""
    import asyncio

    free = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(run_id: str) -> RatchetError | None:
        async with free:
            try:
                return await client.bug(run_id)
            except (UnknownRun, RunFailed):  # it is over by now
                return None
            except RatchetError as error:
                return error

    names = [line.id for line in await client.list(running=True)]
    answers = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
    found = {name: answer for name, answer in answers.items() if isinstance(answer, MachineBug)}
    return found, {name: answer for name, answer in answers.items() if answer and name not in found}


def _unanswered_text(errors: Mapping[str, RatchetError]) -> str:
    """Which runs may be broken, too, why nobody knows it, and what to do."""
    names = ", ".join(list(errors)[:MAX_NAMED_RUNS])
    more = f" and {len(errors) - MAX_NAMED_RUNS} more" if len(errors) > MAX_NAMED_RUNS else ""
    return plain(
        f"{counted(len(errors), 'run')} did not answer, so whether a bug stops them is not known: {names}"
        f"{more} ({next(iter(errors.values()))}). `ratchet check` replays them with the code that is here; "
        "`ratchet cancel RUN --force` ends one"
    )


async def _stop(client: AgentClient, run: str, *, force: bool, as_json: bool) -> None:
    """Ask a run to stop, and say what becomes of that."""
    from client.runs.pending import bug_in

    run_id = await client.find(run)
    line = await client.describe(run_id)
    if line.progress != "running":
        reason = line.exit_reason or line.progress
        raise RatchetError(f"run {run_id} is over already ({reason}); nothing was stopped")
    await client.cancel(run_id, force=force)
    has_worker = await client.has_worker(run_id)
    failure = None if force else await bug_in(client.temporal, run_id)
    if as_json:
        why = {"failure": failure} if failure else {}
        asked = {"asked_to_stop": True, "has_worker": has_worker, **why}
        print_json({"id": run_id, **({"ended": True} if force else asked)})
        return
    if force:
        typer.echo(plain(f"ended run {run_id} at once, without a result"))
        return
    typer.echo(plain(f"asked run {run_id} to stop"))
    if failure:
        typer.echo(plain(
            f"it stops once this is mended: {failure}\n"
            f"`ratchet cancel {run_id} --force` ends it now, without a result"
        ))  # fmt: skip
    if not has_worker:
        typer.echo(
            f"no worker runs; it stops when one does: {resume_command(embedded=client.ui is not None)}"
        )


def _print_log(records: Sequence[Record], resets: list[Reset], *, full: bool) -> None:
    """Print the records, and each reset before what came after it."""
    from client.runs.readings import RecordReader

    reader = RecordReader()
    for before, record in zip((None, *records), records, strict=False):
        while resets and resets[0].at <= record.at:
            render.out().print(render.reset_block(resets.pop(0)))
        out = render.out()
        out.print(render.wrapped_block(render.record_block(record, reader.read(record), before), out))
        if changes := render.change_block(record, full=full):
            out.print(render.wrapped_block(changes, out))
    for reset in resets:
        render.out().print(render.reset_block(reset))


async def _line(client: RunReader, run_id: str) -> RunLine | None:
    """What a list shows of a run; None when only the archive knows it."""
    try:
        return await client.describe(run_id)
    except UnknownRun:
        return None


async def _may_be_reset(client: RunReader, run_id: str) -> bool:
    """False: it was not. Where its worker has just gone, its history says it."""
    try:
        return await client.was_reset(run_id)
    except NoWorker:
        return True


async def _resets(client: RunReader, run_id: str) -> tuple[Reset, ...]:
    """The resets of a run; none where neither Temporal nor the archive has its history."""
    from client.history.resets import resets_of

    with suppress(UnknownRun):
        return await resets_of(await client.server(), run_id)
    return ()


async def _failure(client: RunReader, line: RunLine) -> RunFailed | None:
    """Why a run that is over has no result."""
    if line.progress == "running":
        return None
    try:
        await client.result(line.id)
    except RunFailed as error:
        return error
    return None
