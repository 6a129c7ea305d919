"""Pages of a run's log."""

from __future__ import annotations

from workflows.api import PageQuery
from workflows.kernel.log import Record
from workflows.pages import log_page


def test_record_that_is_cut_keeps_all_its_counters() -> None:
    counters = {f"counter {n}": float(n) for n in range(60)}
    patch = {"text": {"set": "long " * 10_000}}
    record = Record(
        seq=0, machine="m", state="s", event="Moved", to="s", at=1.0, patch=patch, counters=counters
    )
    (cut,) = log_page([record], PageQuery(), finished=True).records
    assert (len(str(cut.patch)) < 1000, cut.counters) == (True, counters)
