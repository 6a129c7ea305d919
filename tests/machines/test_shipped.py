"""What all shipped machines have in common."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import MODEL_ATTEMPTS, AskModel
from tests.machines.answers import failed
from tests.machines.play import Played, play, program_of
from workflows import registry

NAMES = [machine.name for machine in registry.shipped()]


def begun(name: str, *answers: Any, **options: Any) -> Played:
    """A run of this machine."""
    machine, _ = registry.machine_for(name, None, options)
    return play(program_of(machine, options), answers)


@pytest.mark.parametrize("name", NAMES)
def test_transient_failure_of_a_model_is_repeated(name: str) -> None:
    """A 429, a 500 or a cut stream is repeated below the machine, the same number of times in all."""
    for options, attempts in (({}, MODEL_ATTEMPTS), ({"max_model_attempts": 2}, 2)):
        (question,) = begun(name, **options).effects
        assert isinstance(question, AskModel)
        assert question.attempts == attempts


@pytest.mark.parametrize("name", NAMES)
def test_model_that_fails_for_good_ends_the_run_at_once(name: str) -> None:
    run = begun(name, failed("fatal", "bad key"))
    assert (len(run.effects), run.exit.ok) == (1, False)
    assert "bad key" in str(run.exit.error)
