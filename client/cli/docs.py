"""`ratchet docs`: lists the pages of this documentation, and prints one.

They lie below the same names in the checkout and in the wheel, so the links between them hold in both. A text
that a program prints or writes names a page as `ratchet docs people`; pages link to each other's files.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from client.cli.output import print_pairs
from client.cli.plain_params import PlainCommand
from client.errors import UsageError

__all__ = ["OF_THE_ROOT", "app", "pages", "summary"]

app = typer.Typer(rich_markup_mode=None)
ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the package `ratchet` that is installed: README.md lies there, and the folder docs."""

OF_THE_ROOT = ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
"""The pages that do not lie in the folder docs."""


def pages() -> dict[str, Path]:
    """The file of each page, by its name in small letters."""
    files = [*(ROOT / name for name in OF_THE_ROOT), *ROOT.glob("docs/*.md")]
    return {file.stem.lower(): file for file in sorted(files)}


def summary(file: Path) -> tuple[str, str]:
    """A page's title and the first sentence below it; empty where the page begins with something else."""
    title, *paragraphs = file.read_text("utf-8").split("\n\n")
    first = next((one for one in paragraphs if re.match(r"[\w`*\[]", one)), "")
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.replace("**", "").split()))
    return title.lstrip("# "), re.split(r"(?<=[.?]) ", words)[0]


@app.command("docs", cls=PlainCommand)
def docs(
    page: Annotated[
        str | None,
        typer.Argument(help="Name of one, to read it; a link from one page to another is taken, too."),
    ] = None,
    path: Annotated[
        bool, typer.Option("--path", help="Print where its file lies; without a page, where most lie.")
    ] = False,
) -> None:
    """List the pages of the documentation, or print one: in a pager on a terminal, else as it is.

    They are Markdown files, and come with Ratchet: no network is needed. To search them:
    `grep -rn WORD $(ratchet docs --path)`.
    """
    known = pages()
    if page is None and path:
        typer.echo(ROOT / "docs")
    elif page is None:
        summaries = ((name, *summary(file)) for name, file in sorted(known.items()))
        print_pairs((name, f"{title}. {about}".strip()) for name, title, about in summaries)
        typer.echo("\n`ratchet docs tutorial` prints one; coding agents begin with `ratchet docs agents`.")
    else:
        file = known.get(Path(page.partition("#")[0]).stem.lower())
        if file is None:
            raise UsageError(f"there is no page {page!r}; {_nearest(page.lower(), known)}")
        if path:
            typer.echo(file)
        else:
            _show(file)


def _nearest(word: str, known: dict[str, Path]) -> str:
    """The page that is meant, or those that say the word most often."""
    if close := get_close_matches(word, known, n=1, cutoff=0.75):
        return f"did you mean `ratchet docs {close[0]}`?"
    counts = {name: file.read_text("utf-8").lower().count(word) for name, file in known.items()}
    found = [name for name in counts if word and counts[name]]
    if most := sorted(found, key=lambda name: -counts[name])[:3]:
        return f"the word is found most often in {', '.join(f'`ratchet docs {name}`' for name in most)}"
    return "`ratchet docs` lists them"


def _show(file: Path) -> None:
    """Print a page. On a terminal this process becomes the reader's pager; `less` ends at once where the page
    fits the screen."""
    if sys.stdout.isatty():
        pager = os.environ.get("PAGER", "less" if shutil.which("less") else "")
        os.dup2(os.open(file, os.O_RDONLY), 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is executed would, too
        os.execvpe("sh", ["sh", "-c", pager or "cat"], {"LESS": "FRX", **os.environ})
    typer.echo(file.read_text("utf-8"), nl=False)
