"""The tool calls of the effect at hand: what people said of each, what came back, what was done so far."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import Field, model_validator

from activities.contracts import (
    CallTools,
    EffectFailed,
    Frozen,
    JsonObject,
    ModelReplied,
    ModelsReplied,
    ToolResult,
    ToolRun,
    ToolsReturned,
)
from activities.contracts_people import Reconciled
from workflows.gate import words
from workflows.kernel.snapshot import Snapshot
from workflows.people import DoneCall, Request
from workflows.where import Where
from workflows.world import World

__all__ = ["Calls", "refusal"]

SHOWN = 500
"""Characters of an output, and of a long argument of a call that cannot be undone, in the report."""
HISTORY = 1000
"""Calls that the report can go back to."""
MADE_AGAIN = 3
"""Times that a call is made again because the tool says that it did not happen; then people are asked."""
NOT_RUN = {"rejected", "expired", "unknown_tool", "bad_arguments"}
HARMLESS = {"pure", "read"}


class Calls(Frozen):
    """By activity id; mutable inside, emptied when the effect is answered. `history` stays for the run."""

    asked: dict[str, str] = Field(default_factory=dict)
    """Requests that were opened for calls."""
    edits: dict[str, JsonObject] = Field(default_factory=dict)
    settled: dict[str, ToolResult] = Field(default_factory=dict)
    reconciled: list[str] = Field(default_factory=list)
    tries: dict[str, int] = Field(default_factory=dict)
    """How often a call did not happen, as a person said or the tool."""
    failures: list[EffectFailed | ModelsReplied] = Field(default_factory=list)
    """Answers in which a model refuses for good, that people were asked about."""
    mended: list[str] = Field(default_factory=list)
    """Requests at which people said: try again."""
    passed: list[str] = Field(default_factory=list)
    """Calls that were approved beforehand."""
    topups: list[str] = Field(default_factory=list)
    """Requests by which a limit was topped up: none counts twice."""
    replies: dict[str, ModelReplied | EffectFailed] = Field(default_factory=dict)
    """What models answered of several calls side by side, before all had."""
    stopped: list[str] = Field(default_factory=list)
    """What a child run said that was stopped."""
    history: list[DoneCall] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _of_older_runs(cls, values: Any) -> Any:
        """They carried on the answers after which people said: try again; now it is the requests' ids."""
        before = values.get("mended", []) if isinstance(values, dict) else []
        if not any(isinstance(one, dict) for one in before):
            return values
        failures = [*before, *values.get("failures", [])]
        known = {name: values[name] for name in values if name != "counted"}
        return {**known, "failures": failures, "mended": ["retried"] * len(before)}

    def begin_anew(self) -> None:
        """The effect is answered, or left for good."""
        for name in type(self).model_fields:
            if name != "history":
                getattr(self, name).clear()

    # -- a model that refuses --------------------

    @property
    def refused(self) -> EffectFailed | ModelsReplied | None:
        """The answer that people are asked about now."""
        return self.failures[-1] if len(self.failures) > len(self.mended) else None

    def unanswered(self) -> tuple[int, ...]:
        """Which of several calls side by side were refused when they were made last; they are made again."""
        before = self.failures[-1] if self.failures else None
        replies = before.replies if isinstance(before, ModelsReplied) else ()
        return tuple(n for n, one in enumerate(replies) if isinstance(one, EffectFailed) and refusal(one))

    def completed(self, again: ModelsReplied) -> ModelsReplied:
        """The replies of all calls, once the `unanswered` were made again."""
        before = self.failures[-1]
        replies = list(before.replies) if isinstance(before, ModelsReplied) else []
        for n, reply in zip(self.unanswered(), again.replies, strict=True):
            replies[n] = reply
        return ModelsReplied(replies=tuple(replies))

    # -- what people said --------------------

    def decided(self, run: ToolRun, name: str, request: Request) -> None:
        """Take over what a closed approval request has come to."""
        vote = request.settled
        if request.outcome == "edited" and vote is not None and vote.arguments is not None:
            self.edits[name] = vote.arguments
        elif request.outcome == "expired" and request.at_deadline != "approve":
            self.settled[name] = words.not_run(run, "expired", words.expired(request))
        elif request.outcome not in {"approved", "edited", "expired"}:
            self.settled[name] = words.not_run(run, "rejected", words.rejected(request))

    def edited(self, effect: CallTools, names: tuple[str, ...]) -> CallTools:
        """The effect with the arguments that people gave."""
        runs = tuple(
            run.model_copy(update={"arguments": self.edits.get(name, run.arguments)})
            for run, name in zip(effect.runs, names, strict=True)
        )
        return effect.model_copy(update={"runs": runs})

    def told(self, answer: ToolsReturned, names: tuple[str, ...]) -> ToolsReturned:
        """The answer for the machine, which hears of changed arguments."""
        results = tuple(
            r
            if name not in self.edits
            else r.model_copy(update={"output": _edited(self.edits[name], r.output)})
            for r, name in zip(answer.results, names, strict=False)
        )
        return ToolsReturned(results=results)

    # -- outcomes that nobody knows --------------------

    def found(self, name: str, found: Reconciled) -> bool:
        """What the tool found out by itself; True when the call's fate is known now."""
        if found.outcome == "happened" and found.result is not None:
            self.settled[name] = found.result
        elif found.outcome == "not_happened" and self.tries.get(name, 0) < MADE_AGAIN:
            self._make_again(name)
        else:
            return False
        return True

    def cleared(self, run: ToolRun, name: str, request: Request) -> bool:
        """What a person knows of it; True when the call's fate is known now."""
        vote = request.settled
        if request.outcome == "retried":
            self._make_again(name)
        elif request.outcome == "answered" and vote is not None:
            text = f"(Told by {words.who(request)}, who looked what became of the call:)\n{vote.text}"
            self.settled[name] = ToolResult(id=run.id, tool=run.tool, output=text, bytes=len(text.encode()))
        else:
            return False
        return True

    def _make_again(self, name: str) -> None:
        self.settled.pop(name, None)
        self.tries[name] = self.tries.get(name, 0) + 1
        if name in self.reconciled:
            self.reconciled.remove(name)
        self.history[:] = [call for call in self.history if call.place != name]  # it did not happen

    # -- what was done --------------------

    def note(self, effect: CallTools, names: tuple[str, ...], where: Where, step: int, world: World) -> None:
        """Remember the calls with outside effects that have ended, or were cut off, as is known now."""
        cut_off = world.under_way()
        for run, name in zip(effect.runs, names, strict=True):
            result = self.settled.get(name)
            kind: Any = world.effect_of(run.tool)
            begun = (result is not None and result.error not in NOT_RUN) or (
                result is None and name in cut_off
            )
            if not begun or kind in HARMLESS:
                continue
            undoable = world.undoable(run.tool)
            call = DoneCall(
                step=step,
                branch=where.branch,
                place=name,
                tool=run.tool,
                arguments=run.arguments if undoable else _cut(run.arguments),
                effect=kind,
                output=(result.output if undoable else result.output[:SHOWN]) if result else "",
                error=result.error if result else "cut off: nobody knows whether it took effect",
                key=world.key(where, name),
                undoable=undoable,
            )
            self.history[:] = [*(one for one in self.history if one.key != call.key), call][-HISTORY:]

    def inherit(self, calls: Iterable[DoneCall], at: Snapshot[Any]) -> None:
        """Remember what a child run did outside, as done in the step at which it was run."""
        mine = [call.model_copy(update={"step": at.step, "branch": at.branch}) for call in calls]
        keys = {call.key for call in mine}
        self.history[:] = [*(one for one in self.history if one.key not in keys), *mine][-HISTORY:]

    def made(self) -> tuple[tuple[str, ToolResult], ...]:
        """Calls of the effect at hand that have ended, of which no machine was told yet."""
        return tuple((name, result) for name, result in self.settled.items() if result.error not in NOT_RUN)

    def since(self, step: int) -> tuple[DoneCall, ...]:
        """Calls of this step and later ones, oldest first, of every branch, also those that are `undone`."""
        return tuple(call for call in self.history if call.step >= step)

    def undone(self, call: DoneCall, text: str) -> None:
        """Its compensation was run."""
        at = self.history.index(call)
        self.history[at] = call.model_copy(update={"undone": text})


def refusal(answer: EffectFailed | ModelsReplied) -> EffectFailed | None:
    """The first refusal for good in what models answered."""
    replies = answer.replies if isinstance(answer, ModelsReplied) else (answer,)
    return next((one for one in replies if isinstance(one, EffectFailed) and one.error == "fatal"), None)


def _cut(arguments: JsonObject) -> JsonObject:
    cut: JsonObject = {}
    for name, value in arguments.items():
        text = json.dumps(value, ensure_ascii=False)
        cut[name] = value if len(text) <= SHOWN else f"{text[:SHOWN]} [... {len(text):,} characters]"
    return cut


def _edited(arguments: JsonObject, output: str) -> str:
    """The output for the model, which hears of the change; JSON stays JSON, since machines may read it."""
    if output.lstrip()[:1] in {"{", "["}:
        return output
    return f"(A person changed the arguments to {json.dumps(arguments, ensure_ascii=False)}.)\n{output}"
