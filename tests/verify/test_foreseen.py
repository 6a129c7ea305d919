"""What runs really do lies within what was read off the code: else nothing could be called found."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.machines import code_scripts, contract_scripts, test_react, test_refund_desk, test_tools
from tests.machines.play import Played
from workflows.kernel.machine import Machine
from workflows.verify.code.study import Study

RUNS: dict[str, Callable[[], Iterable[Played]]] = {
    "code": lambda: (script.run() for script in code_scripts.SCRIPTS),
    "contract": lambda: (script.run() for script in contract_scripts.SCRIPTS),
    "react": lambda: (
        test_react.react(*one.answers, options=one.options, machine=one.machine) for one in test_react.SCRIPTS
    ),
    "refund_desk": lambda: (test_refund_desk.desk(*given) for given, _ in test_refund_desk.SCRIPTS.values()),
    "tools": lambda: (test_tools.tools(*one.answers, options=one.options) for one in test_tools.SCRIPTS),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RUNS)
def test_what_runs_do_was_foreseen(name: str) -> None:
    """Each event, field read and field written in the logs of all scripts."""
    studies: dict[int, Study] = {}
    unseen, looked = set(), 0
    for run in RUNS[name]():
        machine: Machine = run.step.program.machine
        study = studies.setdefault(id(machine), studies.get(id(machine)) or Study(machine))
        for record in run.records[1:]:
            if record.by != "machine" or record.to is None:
                continue
            visit, looked = study.visits[record.state], looked + 1
            if visit.unclear is None and record.event not in {move.event.__name__ for move in visit.moves}:
                unseen.add((record.state, "event", record.event))
            if "reads" not in visit.seen.unclear:
                unseen |= {(record.state, "read", one) for one in set(record.reads) - visit.seen.reads.keys()}
            written = set(record.patch) - visit.seen.writes.keys() - study.own.writes.keys()
            if "writes" not in visit.seen.unclear:
                unseen |= {(record.state, "write", one) for one in written}
    assert looked > 20
    assert unseen == set()
