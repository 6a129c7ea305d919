"""Cassettes in pytest. An installed Ratchet is a plugin; else write `pytest_plugins = ["ratchet.testing"]`.

    @pytest.mark.cassettes
    def test_course_holds(cassette):
        cassette.check()

runs once for each file in the folder `cassettes` beside the test. `@pytest.mark.cassettes("folder",
agent="my.yaml")` names another folder, or files, and an agent to use in place of the recorded one; paths are
relative to the test's file.
"""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from client.cassette.playing import CassetteVerdict

__all__ = ["CassetteFile"]


@dataclass(frozen=True)
class CassetteFile:
    """A recorded run."""

    path: Path
    agent: str | Path | None = None
    """File or name of an agent to use in place of the recorded one."""

    def play(self, agent: str | Path | None = None) -> CassetteVerdict:
        """Play it; the verdict says what differs. Not from a coroutine: `await played(path)` is for those."""
        from client.cassette.checking import played

        return asyncio.run(played(self.path, agent or self.agent))

    def check(self, agent: str | Path | None = None) -> CassetteVerdict:
        """Play it. Raises AssertionError that shows the first difference."""
        verdict = self.play(agent)
        if not verdict.ok:
            raise AssertionError(f"{self.path}: {verdict.difference}")
        return verdict


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known. A new folder has no settings of pytest-asyncio: that needs no warning."""
    warnings.filterwarnings("ignore", 'The configuration option "asyncio_default_fixture_loop_scope"')
    config.addinivalue_line("markers", "cassettes(*paths, agent=None): cassettes for the argument `cassette`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each cassette."""
    mark = metafunc.definition.get_closest_marker("cassettes")
    if mark is None or "cassette" not in metafunc.fixturenames:
        return
    from client.cassette.checking import cassette_files

    folder = metafunc.definition.path.parent
    agent = mark.kwargs.get("agent")
    if agent is not None and (folder / agent).is_file():
        agent = folder / agent
    files = cassette_files(folder / path for path in mark.args or ("cassettes",))
    cases = [CassetteFile(path, agent) for path in files]
    metafunc.parametrize("cassette", cases, ids=[str(path.relative_to(folder)) for path in files])
