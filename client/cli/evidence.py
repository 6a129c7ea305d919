"""Evidence of runs that are over: written as a file, and checked."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.cli.options import CommonOptions, Json
from client.cli.output import note, print_json, print_lines, styled
from client.errors import RatchetError, UnknownRun, UsageError
from client.runs.words import counted, plain

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from activities.evidence.verify_evidence import Finding

__all__ = ["evidence", "write_evidence"]

STYLES = {"ok": "green", "wrong": "red", "unknown": "yellow"}


async def evidence(
    common: CommonOptions,
    run: Annotated[
        str,
        typer.Argument(
            help="Id of a run that is over, or a file of `ratchet export --evidence`.", metavar="RUN|FILE"
        ),
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="PUBLIC_KEY",
            help="That you trust, as `ratchet key show` prints it; repeatable. Default: that of "
            "RATCHET_SIGNING_KEY.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="Of a run: what was verified of its machine, to be checked, too."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 also where something cannot be shown.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Was anything changed in what a run wrote down, and is all in it that was done?

    A run is read from Temporal and the archive. A file needs neither of them, and no Ratchet:
    `ratchet docs evidence`. Each line says what was checked and how it came out: ok, wrong, or unknown, where
    nothing that is there can show it.

    Exit code 0: nothing is wrong; 1: something is, and a line names it; 2: nothing was checked, as there is
    no such run, it is not over, the file cannot be read, or the server does not answer.
    """
    from activities.evidence.verify_evidence import check, summary, wrong
    from activities.store.archive import ChainBroken

    own = _signing_key(common)
    trusted = _keys(key) if key else [_public(own)] if own else []
    try:
        if file := _file(run):
            if certificate:
                raise UsageError(f"--certificate is for runs; {file} has what it was written with")
            found = check(_read(file), trusted, required=bool(key))
        else:
            pack = await _gathered(common, run, certificate)
            found = _of_a_run(check(pack, trusted, required=bool(key)))
    except RatchetError as error:
        if not isinstance(error.__cause__, ChainBroken):
            raise UsageError(str(error)) from error  # what is not checked is not wrong
        found = [wrong("log", str(error.__cause__))]
    if as_json:
        print_lines({"verdict": one.verdict, "what": one.what, "text": one.text} for one in found)
    else:
        for one in found:
            typer.echo(_line(one))
        note(summary(found))
        if not file:
            note(f"`ratchet export {run} --evidence --out FILE` writes what others can check anywhere")
    bad = {"wrong", "unknown"} if strict else {"wrong"}
    return 1 if any(one.verdict in bad for one in found) else 0


async def write_evidence(
    common: CommonOptions, run: str, out: Path | None, certificate: Path | None, *, force: bool
) -> None:
    """Write the evidence of a run as JSON, to standard output where no file is named. Raises RatchetError."""
    key = _signing_key(common)
    pack = await _gathered(common, run, certificate, key)
    if out is None:
        print_json(pack)
    else:
        if not force:
            await asyncio.to_thread(_check_overwrites, out, pack["run"])
        await asyncio.to_thread(_write, out, pack)
    how = f"signed with {_public(key)}" if key else "not signed: RATCHET_SIGNING_KEY is not set"
    events = sum(len(one["events"]) for one in pack["history"])
    size = f"{counted(len(pack['log']['records']), 'record')}, {counted(events, 'event')} of the history"
    note(f"{size}; {how}{f'; written to {out}' if out else ''}")
    note("nothing was taken out: who reads the file reads what the run read and wrote")


async def _gathered(
    common: CommonOptions,
    run: str,
    certificate: Path | None,
    key: Ed25519PrivateKey | None = None,
) -> dict[str, Any]:
    from client.history.evidence import evidence_of

    text = _certificate(certificate)
    async with common.client() as client:
        try:
            run = await client.find(run)
        except UnknownRun as error:
            if not run.endswith(".json"):
                raise
            raise UnknownRun(f"there is no file {run}, and no run has this id") from error
        return await evidence_of(client, run, certificate=text, key=key)


def _of_a_run(found: Sequence[Finding]) -> list[Finding]:
    """What is said of a run that lies in no file."""
    return [one for one in found if one.what not in ("head", "signature") or one.verdict == "wrong"]


def _line(one: Finding) -> str:
    verdict = styled(f"{one.verdict:8}", STYLES[one.verdict], sys.stdout)
    return f"{verdict}{plain(f'{one.what}: {one.text}')}"


# -- keys and files --------------------


def _signing_key(common: CommonOptions) -> Ed25519PrivateKey | None:
    """That of the environment. Raises UsageError."""
    from activities.keyfiles import private_key
    from client.server.workerconfig import settings_from_environment

    file = settings_from_environment(common.data_dir).signing_key
    return None if file is None else private_key(file)


def _public(key: Ed25519PrivateKey) -> str:
    from activities.evidence.events import public_text

    return public_text(key)


def _keys(given: Sequence[str]) -> list[str]:
    """Public keys that are trusted. Raises UsageError."""
    from activities.evidence.verify_evidence import key_of

    try:
        return [*map(key_of, given)]
    except ValueError as error:
        raise UsageError(f"--key {error}") from error


def _file(name: str) -> Path | None:
    """The file of this name; None: there is none, so a run is meant."""
    return Path(name) if Path(name).is_file() else None


def _read(path: Path) -> Any:
    """What a file holds. Raises RatchetError."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RatchetError(
            f"{path} cannot be read as evidence: {error}; `ratchet export --evidence RUN --out FILE` writes "
            "such a file"
        ) from error


def _certificate(path: Path | None) -> str | None:
    """The text of a certificate; None: no file is named. Raises UsageError."""
    from client.proof.certificate import read_certificate

    if path is None:
        return None
    try:
        return read_certificate(path)[0]
    except ValueError as error:
        raise UsageError(f"--certificate: {error}") from error


def _private(name: str, flags: int) -> int:
    """Opener of a file that only its owner may read, also if it was there. `/dev/stdout` stays as it is."""
    file = os.open(name, flags & ~os.O_TRUNC, 0o600)
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.fchmod(file, 0o600)
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def _check_overwrites(path: Path, run: Mapping[str, Any]) -> None:
    """Raise a UsageError where there is a file that is no evidence of the same run."""
    if not path.is_file():
        return
    with suppress(RatchetError, TypeError, KeyError):
        there, names = _read(path)["run"], ("workflow_id", "run_id")
        if [there[name] for name in names] == [run[name] for name in names]:
            return
    raise UsageError(
        f"nothing was written, because {path} is there already, and is no evidence of run "
        f"{run['workflow_id']}; name another file, or overwrite it with --force"
    )


def _write(path: Path, pack: dict[str, Any]) -> None:
    """Write a file that only its owner may read. Raises UsageError."""
    try:
        with open(path, "w", encoding="utf-8", opener=_private) as file:
            json.dump(pack, file, ensure_ascii=False, indent=1)
            file.write("\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
