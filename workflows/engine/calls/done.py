"""What a run has done outside, for people: its report, and what a rollback can undo."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

from pydantic import TypeAdapter

from activities.contracts import Compensated, CompensateInput, JsonObject, ToolCall, ToolResult
from workflows.engine.calls.call_site import call_site, fitting_id
from workflows.engine.calls.under_way import CallToBegin, UnderWay
from workflows.engine.run_state import RunState
from workflows.hosts import CallAnswer, CallSite
from workflows.kernel.labels import NOT_MADE
from workflows.people import DoneCall

__all__ = ["DoneCalls", "compensation_text", "cut_arguments"]

MAX_CALLS = 1000
"""That are kept."""
MAX_CHARS = 500
"""Of an output, and of a long argument."""
COMPENSATION_ATTEMPTS = 3
"""Of a compensation whose tool may be repeated."""
HARMLESS_EFFECTS = {"pure", "read"}
"""Effects of tools that change nothing outside."""
_CALLS: TypeAdapter[list[DoneCall]] = TypeAdapter(list[DoneCall])


class DoneCalls:
    """Calls with outside effects."""

    def __init__(self, run: RunState, under_way: UnderWay) -> None:
        self.run, self._under_way = run, under_way
        self.calls: list[DoneCall] = []
        """Oldest first."""

    def dump(self) -> Any:
        """All that `load` needs, as JSON."""
        return _CALLS.dump_python(self.calls, mode="json")

    def load(self, dump: Any) -> None:
        """Go on as the execution before. Raises ValueError for what is no dump."""
        self.calls = _CALLS.validate_python(dump)

    def since(self, step: int) -> tuple[DoneCall, ...]:
        """Calls of this step and later ones, oldest first, on all branches, those undone included."""
        return tuple(call for call in self.calls if call.step >= step)

    # -- the report --------------------

    def report(self, call: ToolCall, site: CallSite, result: ToolResult | None) -> None:
        """Keep a call with outside effects; None: it was stopped, and its outcome is unknown."""
        spec = self.run.specs[call.tool]
        if spec.effect in HARMLESS_EFFECTS or (result is not None and result.error in NOT_MADE):
            return
        output = result.output if result else ""
        self.keep(
            activity_id=site.activity_id, tool=call.tool, effect=spec.effect, key=site.key,
            arguments=call.arguments if spec.compensates else cut_arguments(call.arguments),
            output=output if spec.compensates else output[:MAX_CHARS],
            error=result.error if result else "stopped: outcome unknown", undoable=spec.compensates,
        )  # fmt: skip

    def keep(self, **fields: Any) -> None:
        """Keep a call that was made in the run's newest step."""
        s = self.run.suspension.snapshot
        self._keep(DoneCall(step=s.step, branch=s.branch, **fields))

    def inherit(self, workflow_id: str, calls: tuple[DoneCall, ...]) -> None:
        """Keep what an inner run did outside as done in the step that ran it."""
        s = self.run.suspension.snapshot
        for call in calls:
            activity_id = fitting_id(f"{workflow_id}: {call.activity_id}")
            self._keep(
                call.model_copy(update={"step": s.step, "branch": s.branch, "activity_id": activity_id})
            )

    def _keep(self, call: DoneCall) -> None:
        self.calls[:] = [*(one for one in self.calls if one.key != call.key), call][-MAX_CALLS:]

    def forget(self, activity_id: str) -> None:
        """The call did not take effect."""
        self.calls[:] = [call for call in self.calls if call.activity_id != fitting_id(activity_id)]

    def correct(self, activity_id: str, result: ToolResult) -> None:
        """The call whose outcome was unknown returned this."""
        for number, call in enumerate(self.calls):
            if call.activity_id == fitting_id(activity_id):
                update = {"error": result.error, "output": result.output[:MAX_CHARS]}
                self.calls[number] = call.model_copy(update=update)

    # -- undoing --------------------

    async def compensate(self, call: DoneCall) -> Compensated:
        """Undo a call."""
        name = f"undo:{call.activity_id}"
        run = self.run
        site = call_site(
            run.identity, run.suspension, name, f"undo {call.tool} of {call.activity_id}", run.host.now()
        )
        waiting = CallToBegin(site.activity_id, site.title, limited=False, stoppable=False)
        request = CompensateInput(
            tool=call.tool,
            arguments=call.arguments,
            output=call.output,
            key=call.key,
            attempts=COMPENSATION_ATTEMPTS,
        )

        def give_out() -> Coroutine[Any, Any, CallAnswer]:
            return run.host.perform(request.model_copy(update={"void": tuple(waiting.void)}), site)

        with self._under_way.shown(f"undoing {call.tool} of {call.activity_id}"):
            done = await self._under_way.once_begun(waiting, give_out)
        assert isinstance(done, Compensated)
        if done.ok:
            at = self.calls.index(call)
            self.calls[at] = call.model_copy(update={"undone": compensation_text(done)})
        return done


def compensation_text(done: Compensated) -> str:
    """What came of undoing a call, for a person."""
    return f"{'undone' if done.ok else 'not undone'}: {done.text}"


def cut_arguments(arguments: JsonObject) -> JsonObject:
    """Arguments for people."""
    found: JsonObject = {}
    for name, value in arguments.items():
        text = json.dumps(value, ensure_ascii=False)
        is_short = len(text) <= MAX_CHARS
        found[name] = value if is_short else f"{text[:MAX_CHARS]} [... {len(text):,} characters]"
    return found
