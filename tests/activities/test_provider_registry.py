"""Which providers a worker has: the folder's, and those of users' modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.contracts import ModelSpec
from activities.extensions import ExtensionError
from activities.provider import close_providers, problem_with
from activities.providers import load_providers
from activities.settings import Settings
from tests.activities.modelkit import ask, setup

ECHO = """
from ratchet import ModelReplied, Provider

class Echo(Provider):
    name = "echo"
    description = "repeats the last message"

    def __init__(self, settings=None):
        pass

    async def complete(self, call):
        return ModelReplied(text=call.messages[-1].content, model="echo")

PROVIDER = Echo
"""


def settings(folder: Path, **sources: str) -> Settings:
    """Settings with users' modules of these names."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return Settings(modules=tuple(str(folder / f"{name}.py") for name in sources))


@pytest.mark.parametrize("constant", ["PROVIDER = Echo()", "PROVIDER = Echo", "PROVIDERS = (Echo(),)"])
async def test_folder_and_modules_are_the_registry(tmp_path: Path, constant: str) -> None:
    mine = ECHO.replace("PROVIDER = Echo", constant)
    providers = load_providers(settings(tmp_path, other="TOOL = None", mine=mine))
    assert set(providers) == {"openai", "anthropic", "google", "scripted", "echo"}
    assert all(one.description for one in providers.values())
    assert (await ask(providers["echo"], setup("any"))).text == "one two three"
    assert await problem_with(providers["echo"], ModelSpec()) is None
    await close_providers(providers.values())


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(ECHO.replace('"echo"\n', '"openai"\n', 1), id="name is taken"),
        pytest.param("PROVIDER = 'echo'", id="is no provider"),
        pytest.param("PROVIDER = lambda settings: object()", id="makes no provider"),
    ],
)
def test_bad_provider_is_refused_with_its_file(tmp_path: Path, source: str) -> None:
    with pytest.raises(ExtensionError, match=r"mine\.py"):
        load_providers(settings(tmp_path, mine=source))
