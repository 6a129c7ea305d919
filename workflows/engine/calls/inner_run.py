"""An inner run: its share of what is left, its end, and what it did outside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pydantic import ValidationError

from activities.contracts import EffectFailed, MachineEnded, RunMachine, added
from activities.text import problems_text
from workflows.api import AgentTask, RunResult
from workflows.engine.calls.call import Call
from workflows.engine.calls.call_site import fitting_id
from workflows.engine.calls.records import AnswerRecord, StoppedRun
from workflows.hosts import ChildRun
from workflows.kernel.labels import from_run, lost_run
from workflows.people import Bound
from workflows.task import inner_task

__all__ = ["InnerRun"]


class InnerRun(Call[AnswerRecord]):
    """One `RunMachine`."""

    kind = AnswerRecord
    wanted: RunMachine

    @property
    def workflow_id(self) -> str:
        """The same each time that it is made."""
        me = self.run.identity
        return fitting_id(f"{me.workflow_id}/{me.root[:8]}/{self.name}")

    async def perform(self) -> MachineEnded | EffectFailed:
        """Run it to its end."""
        task = self._task()
        if isinstance(task, EffectFailed):
            return task
        me, workflow_id, under_way = self.run.identity, self.workflow_id, self.calls.under_way
        parents = (*me.parents, (me.workflow_id, me.origin))
        title, ids = self.wanted.title[:200], self.run.command_gate.signed_ids
        child = ChildRun(workflow_id, task, title, parents, ids, me.reset_since, self.wanted.roles)
        under_way.children[workflow_id] = {**task.limits.caps, "seconds": 0}
        try:
            with under_way.shown(f"inner run: {title}"):
                result = await self.run.host.run_child(child)
        finally:
            del under_way.children[workflow_id]
        is_stopped = under_way.is_stopped
        if isinstance(result, EffectFailed):
            return self._lost(result)
        self._return_bounds(result.bounds)
        self.calls.done.inherit(workflow_id, result.calls)
        brought = from_run(result.labels, workflow_id)
        if is_stopped and result.exit_reason == "cancelled":
            # A command stopped it. What it spent is spent.
            self.calls.add_unbilled(self._ended(result).cost)
            self.calls.pending.children_stopped.append(StoppedRun(text=result.error or "", brought=brought))
            raise asyncio.CancelledError
        if result.exit_reason in ("broken_rule", "bug", "refused"):
            kind, text = result.raises or result.exit_reason, f"{workflow_id}: {result.error}"
            return EffectFailed(
                error="fatal", type=kind, message=text, spent=result.counters, brought=brought
            )
        return self._ended(result)

    def _task(self) -> AgentTask | EffectFailed:
        """Its task, within the outer run's limits."""
        task, machine = self.run.task, self.wanted.machine
        limit = task.limits.depth
        if task.depth + 1 > limit:
            text = f"{machine} would be nested deeper than `limits.depth` allows: {limit}"
            return EffectFailed(error="recoverable", type="depth_limit", message=text)
        try:
            ledger = self.calls.under_way.since.ledger
            spent_usd = ledger.used("cost_usd") + self.calls.pending.spent["cost_usd"]
            labels = from_run(self.run.labels, self.run.identity.workflow_id)
            runs = max(self.calls.under_way.siblings, 1)
            inner = inner_task(task, self.wanted, self._share(), spent_usd, labels)
            part = self.run.bounds.lend(self.name, runs)
            return inner.model_copy(update={"bounds": part or None})
        except ValueError as error:
            problem = problems_text(error) if isinstance(error, ValidationError) else str(error)
            text = f"{machine} cannot be run: {problem}"
            return EffectFailed(error="fatal", type="inner_machine", message=text)

    def _share(self) -> dict[str, float]:
        """What it may spend: an even share of what is left, without what its siblings have spent or may
        spend, for each of those that have not begun. All of them have the same time."""
        under_way = self.calls.under_way
        spent = added(self.calls.pending.spent, *under_way.children.values())
        began = under_way.since.snapshot.began
        ledger = under_way.since.ledger.with_seconds(self.run.host.now() - began).charge(spent)
        shares = max(under_way.siblings, 1)
        under_way.siblings -= 1
        return {name: ledger.left(name) / (1 if name == "seconds" else shares) for name in ledger.caps}

    def _return_bounds(self, used: Iterable[Bound]) -> None:
        """What it has not used of its part of the bounds is there for others again."""
        if bounds := self.run.bounds.return_from(self.name, used):
            self.run.log_bounds(f"{self.wanted.title}: calls passed unasked", self.name, bounds)

    def _lost(self, failure: EffectFailed) -> EffectFailed:
        """It ended without a result: what it did and read is unknown here, and its part of the bounds stays
        used."""
        run = self.run
        brought = lost_run(run.labels, self.wanted.give, run.specs, self.workflow_id)
        failure = failure.model_copy(update={"brought": brought})
        if failure.error != "unknown_outcome":
            self._return_bounds(())
            return failure
        self.calls.done.keep(
            activity_id=self.workflow_id, tool="(inner run)", arguments={}, effect="unsafe",
            error="outcome unknown; its own log may say what it did", key=self.workflow_id,
        )  # fmt: skip
        return failure.model_copy(update={"error": "fatal"})

    def _ended(self, result: RunResult) -> MachineEnded:
        """What its result is to the outer machine."""
        return MachineEnded(
            machine=result.machine,
            ok=result.ok,
            exit_reason=result.exit_reason,
            answer=result.answer,
            error=result.error,
            outcome=result.outcome,
            spent=result.counters,
            workflow_id=self.workflow_id,
            brought=from_run(result.labels, self.workflow_id),
        )
