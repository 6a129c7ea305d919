"""Early questions: the call of a tool asks the model at once what the machine will ask it next.

`activities/handover.py` says how. The reply is taken only by a question of the same digest; another is
dropped, and what it cost is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from activities.contracts import (
    AskModel,
    CallTools,
    EarlyReply,
    Effect,
    JsonObject,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from workflows.api import AgentTask
from workflows.engine.calls.records import PendingEffect
from workflows.hosts import CallSite, NextQuestion
from workflows.kernel.activity_ids import tool_calls
from workflows.kernel.snapshot import Suspension
from workflows.kernel.transition import advance, steer

__all__ = ["EarlyQuestions"]

SLOW_SECONDS = 60
"""A tool that may take longer asks no model in its activity, whose death would repeat the tool."""
MAX_DROPPED = 3
"""After three dropped replies a run stops asking early: its questions cannot be predicted. A person's message
drops one at times."""
LONG_VISIT = 20
"""No early question after so many answers in one visit. The visit is run again over all of them in the event
loop; a thousand cost 50 ms for each call."""

Ask = Callable[[Suspension, AskModel, float], tuple[AskModel, CallSite] | None]
"""How a question is asked by a run at this point and time; None: something else comes first."""


class EarlyQuestions:
    """A reply to the question that should come next."""

    def __init__(self, task: AgentTask, specs: Mapping[str, ToolSpec]) -> None:
        self._is_wanted, self._specs = task.fuse == "auto", specs
        self._reply: EarlyReply | None = None
        self._dropped = 0

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        reply = self._reply.model_dump(mode="json") if self._reply else None
        return {"reply": reply, "dropped": self._dropped}

    def load(self, dump: Any) -> None:
        """Go on as the execution before. Raises ValueError for what is no dump."""
        self._reply = EarlyReply.model_validate(dump["reply"]) if dump["reply"] else None
        self._dropped = int(dump["dropped"])

    def question_after(
        self, name: str, effect: Effect[Any], suspension: Suspension, pending: PendingEffect, ask: Ask
    ) -> NextQuestion | None:
        """What the machine will ask a model after this call, if it is the last one of the effect."""
        place = suspension.snapshot.place
        names = list(tool_calls(effect, place))
        if not (isinstance(effect, CallTools) and name in names) or not self._is_wanted:
            return None
        spec = self._specs[effect.calls[names.index(name)].tool]
        is_quick = spec.timeout_seconds <= SLOW_SECONDS and len(suspension.snapshot.moments) <= LONG_VISIT
        can_be_last = effect.parallel or name == names[-1]
        if not (spec.repeatable and is_quick and can_be_last) or self._dropped >= MAX_DROPPED:
            return None

        def question(result: ToolResult, now: float) -> tuple[AskModel, CallSite] | None:
            results = {**pending.results, name: result}
            if result.error == "unknown_outcome" or not all(one in results for one in names):
                return None
            answer = ToolsReturned(results=tuple(results[one] for one in names))
            run = replace(suspension, live=None)
            for note in pending.edit_notes(effect, place, results):
                run = steer(run, note, now=now, by="kernel")
            after = advance(run, answer, now=now, effect=effect)
            if not isinstance(after.effect, AskModel) or after.breach is not None:
                return None
            return ask(after, after.effect, now)

        return question

    def take_early_reply(self, result: ToolResult) -> tuple[ToolResult, dict[str, float]]:
        """Keep a result's early reply. The result alone, and what questions have spent that got none."""
        if result.early is not None:
            self._reply = result.early
        spent: dict[str, float] = {"model_calls": result.unanswered} if result.unanswered else {}
        return result.model_copy(update={"early": None, "unanswered": 0}), spent

    def use_reply(self, effect: AskModel, site: CallSite) -> tuple[CallSite, dict[str, float]]:
        """Take the reply that came early, or drop it if it answers another question. The site with its reply,
        and what a dropped one has cost."""
        early, self._reply = self._reply, None
        if early is None:
            return site, {}
        if early.question == site.digest(effect):
            return replace(site, reply=early.reply), {}
        self._dropped += 1
        return site, early.cost

    def drop(self) -> dict[str, float]:
        """Forget the reply: another effect comes. What it has cost."""
        early, self._reply = self._reply, None
        return early.cost if early else {}

    def end_time(self, effect: Effect[Any], suspension: Suspension, now: float) -> float:
        """When the effect ended. With an early reply the tools ended before the model began."""
        if self._reply is None or not isinstance(effect, CallTools):
            return now
        s = suspension.snapshot
        facts = s.moments[-1].facts if s.moments else s.entered
        return max(now - self._reply.reply.seconds, facts.now)
