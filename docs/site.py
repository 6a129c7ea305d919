"""Builds the site from these pages: `make docs`, into `site/`. Building and reading it need no network.

A page's Mermaid becomes the drawing that the console shows, and a linked source file a page of the site;
Zensical refuses a link that leads nowhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from activities.extensions import load_modules
from client.cli.docs import pages, summary
from client.console.diagram import drawing
from workflows import registry
from workflows.kernel.diagram import mermaid
from workflows.kernel.machine import Machine

__all__ = ["index", "stage"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = pages().values()
STAGE = ROOT / "build" / "pages"
LINK = re.compile(r"\]\((?!http)([\w./-]+)(#[\w-]*)?\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def stage() -> None:
    """Write the pages as the site has them: all in one folder."""
    shutil.rmtree(STAGE.parent, ignore_errors=True)
    shutil.copytree(DOCS / "images", STAGE / "images")
    shutil.copy(DOCS / "site.css", STAGE)
    drawings = {mermaid(machine): str(drawing(machine)) for machine in (*registry.shipped(), _tutorials())}
    for path in PAGES:
        text = _blocks("mermaid").sub(lambda found: drawings[found[1]], path.read_text("utf-8"))
        (STAGE / _name(path)).write_text(_linked(text, path.parent), "utf-8")
    (STAGE / "llms.txt").write_text(index(), "utf-8")


def index() -> str:
    """Every page with what it says first, for programs that read the site (llmstxt.org)."""
    lines = []
    for path in PAGES:
        title, sentence = summary(path)
        link = f"- [{title}]({_name(path).removesuffix('.md')}.html)"
        lines.append(f"{link}: {sentence}" if sentence else link)
    about = "> Durable LLM agents as verified finite state machines on Temporal, in Python."
    return "\n".join(("# Ratchet", "", about, "", "## Pages", "", *lines, ""))


def _blocks(language: str) -> re.Pattern[str]:
    return re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _tutorials() -> Machine:
    """The machine of the tutorial, whose diagram its page has."""
    blocks = _blocks("python").findall((DOCS / "tutorial.md").read_text("utf-8"))
    file = STAGE / "reply_desk.py"
    file.write_text(next(block for block in blocks if "MACHINE = " in block), "utf-8")
    (module,) = load_modules([str(file)])
    file.unlink()
    machine: Machine = module.MACHINE
    return machine


def _linked(text: str, folder: Path) -> str:
    """The text with the site's links in place of those between files of the checkout."""

    def link(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        if path.suffix == ".md":
            return f"]({_name(path)}{found[2] or ''})"
        if path.parent == DOCS / "images":
            return f"](images/{path.name})"
        return f"]({_source(path)})"

    return LINK.sub(link, text)


def _name(page: Path) -> str:
    """A README beside an `index.md` would be left out."""
    return "overview.md" if page.name == "README.md" else page.name


def _source(path: Path) -> str:
    """Make a page of a file of the checkout; its name."""
    inside = path.relative_to(ROOT)
    name = f"source-{'-'.join(inside.parts)}.md"
    code = f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text('utf-8')}````"
    (STAGE / name).write_text(f"# {inside}\n\n{code}\n", "utf-8")
    return name


if __name__ == "__main__":
    stage()
    zensical = Path(sys.executable).with_name("zensical")
    sys.exit(subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, check=False).returncode)
