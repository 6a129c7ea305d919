"""Commands about cassettes: a run as a file, and that file as a test."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from activities.contracts import Frozen
from client.agents.agentfile import load_agent
from client.cassette.checking import cassette_files, played
from client.cassette.file import cassette_text, read_cassette, write_cassette
from client.cassette.playing import CassetteVerdict, play
from client.cli import render
from client.cli.options import CommonOptions, Json, RunName, command
from client.cli.output import note, print_lines
from client.errors import RatchetError, UsageError
from client.runs.words import counted, plain
from client.server.workerconfig import Allowed

if TYPE_CHECKING:
    from client.cassette.file import Cassette

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


class _Line(Frozen):
    """What came of one file."""

    file: str
    ok: bool
    calls: int = 0
    decisions: int = 0
    changes: tuple[str, ...] = ()
    """How questions are put in another way, where another agent was given."""
    difference: str = ""


@command(app)
async def export(  # noqa: PLR0913, PLR0917  # one parameter for each option
    common: CommonOptions,
    run: RunName,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File; as JSON if it ends in .json. Default: standard output."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove",
            metavar="PATTERN",
            help="Take out what matches, and texts under a name that matches as a whole; repeatable.",
        ),
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Write what `ratchet verify` checks: nothing is taken out.")
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="With --evidence: what was proven of the machine; goes along."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Overwrite the file also where it is no such export of this very run."),
    ] = False,
) -> int:
    """Write a run as one file that `ratchet test` plays: the agent, replies, results, decisions, the end.

    The run may be live or over. What looks like a secret is taken out, and so are the keys of the
    environment; look at the file before you share it. Exit code 1: it was written, but does not play.

    With --evidence the file shows what a run that is over did: its log and result as they were written, what
    people sent with their signatures, and Temporal's history in short; signed if RATCHET_SIGNING_KEY is set.
    """
    if evidence:
        from client.cli.evidence import write_evidence

        if remove:
            raise UsageError("--remove belongs to cassettes: evidence is whole or none")
        await write_evidence(common, run, out, certificate, force=force)
        return 0
    if certificate:
        raise UsageError("--certificate belongs to --evidence")
    from client.cassette.export import exported

    async with common.client(common.worker_settings(Allowed())) as client:
        cassette = await exported(client, await client.find(run), remove or ())
    if out is not None and not force:
        await asyncio.to_thread(_check_overwrites, out, cassette)
    verdict = await play(cassette)
    if out is None:
        typer.echo(cassette_text(cassette), nl=False)
    else:
        await asyncio.to_thread(write_cassette, cassette, out)
    note(f"{_counted(verdict)}, {_removed(cassette)}{f'; written to {out}' if out else ''}")
    if not verdict.ok:
        note(f"it does not play as it was recorded: {verdict.difference}")
    return 0 if verdict.ok else 1


def _check_overwrites(path: Path, cassette: Cassette) -> None:
    """Raise a UsageError where there is a file that is no cassette of the same run."""
    if not path.is_file():
        return
    with suppress(UsageError):
        there = read_cassette(path)
        if (there.run, there.runs.get(there.run)) == (cassette.run, cassette.runs.get(cassette.run)):
            return
    raise UsageError(
        f"nothing was written, because {path} is there already, and is no cassette of run {cassette.run}; "
        "name another file, or overwrite it with --force"
    )


@command(app, "test")
async def play_files(
    common: CommonOptions,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Cassettes, or folders of them, such as `ratchet test run.yaml`.", metavar="FILE..."
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option("--agent", "-a", help="Agent to use in place of the recorded one: file or name."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show how questions differ.")] = False,
    as_json: Json = False,
) -> int:
    """Play cassettes offline and name the first difference. No server, no model and no tool is asked.

    Expected are the same questions, calls, requests to people, transitions and end. With --agent, what a
    model is asked may differ, nothing else may. Exit code 1: something differs.
    """
    settings = common.worker_settings(Allowed())
    used = load_agent(agent) if agent is not None else None
    lines: list[_Line] = []
    for path in cassette_files(files):
        try:
            verdict = await played(path, used, settings)
        except RatchetError as error:
            verdict = CassetteVerdict(str(error).removeprefix(f"{path}: "))
        lines.append(_Line(
            file=str(path), ok=verdict.ok, calls=verdict.calls, decisions=verdict.decisions,
            changes=verdict.changes, difference=verdict.difference,
        ))  # fmt: skip
        if not as_json:
            _print(lines[-1], verdict, show=show)
    if as_json:
        print_lines(lines)
    elif len(lines) > 1:
        passed = sum(line.ok for line in lines)
        note(f"{passed} passed, {len(lines) - passed} failed")
    return 0 if all(line.ok for line in lines) else 1


def _print(line: _Line, verdict: CassetteVerdict, *, show: bool) -> None:
    if not line.ok:
        render.out().print(plain(f"FAILED  {line.file}: {line.difference}"))
        return
    if verdict.violates:
        render.out().print(plain(
            f"ok      {line.file}: {verdict.violates!r} holds; {counted(verdict.calls, 'answer')} given"
        ))  # fmt: skip
        return
    asked = f"; {counted(len(line.changes), 'question')} put in another way" if line.changes else ""
    render.out().print(plain(f"ok      {line.file}: {_counted(verdict)}{asked}"))
    for change in line.changes if show else ():
        render.out().print(plain(change))


def _counted(verdict: CassetteVerdict) -> str:
    calls, people = counted(verdict.calls, "call"), counted(verdict.decisions, "decision")
    return f"{calls}, {people}"


def _removed(cassette: Cassette) -> str:
    return f"{counted(cassette.removed, 'secret')} removed"
