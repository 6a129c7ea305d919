"""The state EXECUTING (spec 2.2, 2.4): blocks run in order, with the calls they make, then the next reply.

A visit goes on from its `Place` alone, so that it may be interrupted at any effect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from activities.contracts import (
    EffectFailed,
    MachineEnded,
    ModelReplied,
    ModelsReplied,
    ToolRun,
    ToolsReturned,
)
from activities.contracts_code import CodeAnswer, CodeCall, CodeStepped
from activities.transcript import Message
from workflows.kernel.errors import AgentError
from workflows.kernel.machine import At, Said
from workflows.machines.code_calls import (
    FINAL,
    FINAL_VAR,
    ONE_CALL_CHARS,
    Bad,
    answer_text,
    arguments,
    crowded,
    only,
    queries,
)
from workflows.machines.code_context import Ahead, Context, Options, Place
from workflows.machines.code_effects import Effects, after_look_up, replied, value_of
from workflows.machines.code_events import CodeExecuted, FinalAnswerFound, MaxIterationsReached
from workflows.machines.code_policies import Watch
from workflows.machines.code_prompt import (
    FINAL_REQUEST,
    left_out,
    look_back,
    not_found,
    observed,
    remarks,
)
from workflows.machines.code_reply import is_variable, read_reply
from workflows.machines.code_result import raised, stopped, unsure

__all__ = ["Blocks", "no_variable"]

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a visit of EXECUTING does, with the knobs, effects and policies it goes by."""

    options: Options
    effects: Effects
    watch: Watch

    def execute(self, c: Context, at: At) -> Said:
        """Begin the visit, or go on where it was interrupted."""
        return self._go(c, {}, at)

    def executed(self, c: Context, answer: Any, at: At) -> Said:
        """Take an answer, at the place that waits for it."""
        match c.place.stage:
            case "block":
                return self._stepped(c, answer, at)
            case "query":
                return self._replied(c, answer, at)
            case "tool":
                return self._returned(c, answer, at)
            case "lookup":
                return self._looked_up(c, answer, at)
            case "reply":
                return replied(answer), CodeExecuted(answer.text)
            case "forced":
                return _forced(answer)

    def _go(self, c: Context, patch: Changes, at: At) -> Said:
        """On with the place as the patch has it; blocks without code need no sandbox."""
        ahead = Ahead(c, patch)
        while _is_empty(ahead):
            _say(patch, observed("", ""))
            patch["place"] = Place(index=ahead.place.index + 1, shown=len(ahead.printed))
        if ahead.place.stage == "block" and ahead.place.index >= len(ahead.blocks):
            return self._read(c, patch, at)
        try:
            return patch, self.effects.at_place(ahead)
        except AgentError as error:
            return _and(patch, raised(error))

    # -- a block: to its next call, or to its end --------------------

    def _stepped(self, c: Context, stepped: CodeStepped, at: At) -> Said:
        place = c.place
        patch: Changes = {"session": stepped.session}
        room = self.options.block.output_chars - sum(map(len, c.printed[place.shown :]))
        text = stepped.printed[: max(room, 0)]
        cut = place.left_out + stepped.left_out + len(stepped.printed) - len(text)
        if stepped.call is None:
            pieces = [*c.printed[place.shown :], text]
            return self._ended(c, patch, _output("".join(pieces), cut, stepped.error), at)
        if text:
            patch["printed"] = (text,)
        before = c.session if place.answer is None else place.before
        here = place.model_copy(update={"before": before, "left_out": cut, "answer": None})
        return self._called(c, patch, here, stepped.call, at)

    def _ended(self, c: Context, patch: Changes, output: str, at: At) -> Said:
        """A block has ended: show what it printed, then the answer it gave, or the next block."""
        patch["transcript"] = (observed(c.blocks[c.place.index], output),)
        if c.answer is not None:
            return self.finish(c, patch, at)
        if c.place.wanted is not None:
            return self._look_up(c, patch, c.place.wanted, at)
        return self._next(c, patch, at)

    def _next(self, c: Context, patch: Changes, at: At) -> Said:
        ahead = Ahead(c, patch)
        patch["place"] = Place(index=ahead.place.index + 1, shown=len(ahead.printed))
        return self._go(c, patch, at)

    # -- the calls of a block --------------------

    def _called(self, c: Context, patch: Changes, place: Place, call: CodeCall, at: At) -> Said:
        if call.name in (FINAL, FINAL_VAR):
            return self._concluded(c, patch, place, call, at)
        tool = next((one for one in c.tools if one.name == call.name), None)
        if tool is None:
            return self._asked(c, patch, place, call, at)
        given = arguments(call, tool.parameters)
        sent = _size(json.dumps(call.model_dump(mode="json"), ensure_ascii=False))
        if not isinstance(given, Bad):
            given = _too_long(call.name, sent) or crowded(c.visit_bytes, c.run_bytes, sent) or given
        if isinstance(given, Bad):
            return self._go_on(c, patch, place, CodeAnswer(error=given.problem), at)
        _count(patch, sent)
        name = f"{c.iteration + 1}.{place.index + 1}.{place.calls + 1}"
        run = ToolRun(id=name, tool=tool.tool, arguments=given)
        patch["place"] = place.model_copy(update={"stage": "tool", "run": run, "calls": place.calls + 1})
        return self._go(c, patch, at)

    def _concluded(self, c: Context, patch: Changes, place: Place, call: CodeCall, at: At) -> Said:
        """`FINAL` and `FINAL_VAR` end the block; the answer is given when it has ended."""
        value = only(call)
        if isinstance(value, Bad):
            return self._go_on(c, patch, place, CodeAnswer(error=value.problem), at)
        if call.name == FINAL_VAR and isinstance(value, str):
            place = place.model_copy(update={"wanted": value.strip().strip("'\"").strip()})
        else:
            patch["answer"] = answer_text(value)
        return self._go_on(c, patch, place, CodeAnswer(stop=True), at)

    def _asked(self, c: Context, patch: Changes, place: Place, call: CodeCall, at: At) -> Said:
        """`llm_query` and `llm_query_batched`: never raise, a bad one gives one error text."""
        batch, most = queries(call), self.options.block.calls
        if not isinstance(batch, Bad) and place.calls + len(batch.prompts) > most:
            batch = Bad(f"more than {most:,} calls in one block; use several blocks")
        if not isinstance(batch, Bad):
            sent = sum(map(_size, batch.prompts))
            batch = crowded(c.visit_bytes, c.run_bytes, sent) or batch
        if isinstance(batch, Bad):
            return self._go_on(c, patch, place, CodeAnswer(value=f"Error: {batch.problem}"), at)
        if not batch.prompts:
            return self._go_on(c, patch, place, CodeAnswer(value=[]), at)
        _count(patch, sent)
        patch["asked"] = batch.queries(place.index)
        calls = place.calls + len(batch.prompts)
        waits = {"stage": "query", "since": len(c.answers), "batched": batch.many, "calls": calls}
        patch["place"] = place.model_copy(update=waits)
        return self._go(c, patch, at)

    def _replied(self, c: Context, answer: ModelReplied | ModelsReplied | MachineEnded, at: At) -> Said:
        """Sub-queries are answered, or a run of its own does not know what it has done."""
        replies = answer.replies if isinstance(answer, ModelsReplied) else (answer,)
        lost = next((text for text in map(_lost, replies) if text), "")
        if lost:
            return unsure(lost)
        return self.answered(c, [_text_of(reply) for reply in replies], at)

    def queries_failed(self, c: Context, text: str, at: At) -> Said:
        """None of the sub-queries that were asked together has an answer."""
        return self.answered(c, [f"Error: {text}"] * len(self.effects.group(c)), at)

    def answered(self, c: Context, given: Sequence[str], at: At) -> Said:
        """Sub-queries are answered: on to the next of the batch, or back into the block."""
        patch: Changes = {"answers": tuple(given)}
        _count(patch, sum(map(_size, given)))
        texts = Ahead(c, patch).answers[c.place.since :]
        if len(texts) < len(c.asked):
            return self._go(c, patch, at)
        patch["asked"] = ()
        value = CodeAnswer(value=list(texts) if c.place.batched else texts[0])
        return self._go_on(c, patch, c.place, value, at)

    def _returned(self, c: Context, answer: ToolsReturned, at: At) -> Said:
        """A tool's result goes back into the block; its error is raised there."""
        result = answer.results[-1]
        if result.error == "unknown_outcome":
            return unsure(result.output)
        if not result.ok:
            return self.tool_failed(c, result.output or str(result.error), at)
        value = CodeAnswer(value=result.output, whole=result.whole, parse=True)
        patch: Changes = {}
        _count(patch, _size(result.output))
        return self._go_on(c, patch, c.place, value, at)

    def tool_failed(self, c: Context, problem: str, at: At) -> Said:
        """The tool's error is raised inside the block."""
        return self._go_on(c, {}, c.place, CodeAnswer(error=problem), at)

    def _go_on(self, c: Context, patch: Changes, place: Place, answer: CodeAnswer, at: At) -> Said:
        waits = {"stage": "block", "run": None, "answer": answer}
        patch["place"] = place.model_copy(update=waits)
        return self._go(c, patch, at)

    # -- the answer, looked for when the blocks have run --------------------

    def _read(self, c: Context, patch: Changes, at: At) -> Said:
        ahead = Ahead(c, patch)
        read = read_reply(ahead.reply)
        if read.final is not None:
            return self.finish(c, {**patch, "answer": read.final}, at)
        if read.final_var is not None and not ahead.missing:
            return self._look_up(c, patch, read.final_var, at)
        for remark in remarks(read, ahead.cut, nothing=not (ahead.blocks or ahead.missing)):
            _say(patch, remark)
        return self._iterate(c, patch, at)

    def _look_up(self, c: Context, patch: Changes, name: str, at: At) -> Said:
        if not is_variable(name):
            return self._not_found(c, patch, no_variable(name), at)
        waits = {"stage": "lookup", "wanted": name, "answer": None}
        patch["place"] = Ahead(c, patch).place.model_copy(update=waits)
        return self._go(c, patch, at)

    def _looked_up(self, c: Context, stepped: CodeStepped, at: At) -> Said:
        patch: Changes = after_look_up(stepped)
        value, problem = value_of(stepped)
        if value is None:
            return self._not_found(c, patch, problem, at)
        return self.finish(c, {**patch, "answer": value}, at)

    def _not_found(self, c: Context, patch: Changes, problem: str, at: At) -> Said:
        """By the knob `final_var_missing` the error is the answer, or the model is told (R-001-3)."""
        if self.options.final_var_missing == "answer":
            return self.finish(c, {**patch, "answer": problem}, at)
        _say(patch, not_found(problem))
        ahead = Ahead(c, patch)
        if ahead.place.index < len(ahead.blocks):
            return self._next(c, patch, at)
        return self._iterate(c, {**patch, "missing": True}, at)

    def finish(self, c: Context, patch: Changes, at: At) -> tuple[Changes, Any]:
        """The answer is there; policies are told of the reply that gave it."""
        ahead = Ahead(c, patch)
        try:
            memory = self.watch.answered(ahead, ahead.blocks, at)
        except AgentError as error:
            return _and(patch, raised(error))
        return {**patch, **memory, "finish": "stop"}, FinalAnswerFound(ahead.answer or ahead.reply)

    # -- the next iteration --------------------

    def _iterate(self, c: Context, patch: Changes, at: At) -> Said:
        """Count; ask the policies; then the next call, or the one that must answer (spec 2.2, 2.6)."""
        patch["iteration"] = 1
        try:
            memory, policy = self.watch.after(Ahead(c, patch), at)
        except AgentError as error:
            return _and(patch, raised(error))
        patch.update(memory)
        if policy is not None:
            return _and(patch, stopped(policy))
        forced = c.iteration + 1 >= self.options.max_iterations
        if forced:
            _say(patch, FINAL_REQUEST)
        ahead = Ahead(c, patch)
        count = len(ahead.transcript.messages)
        patch["dropped"] = look_back(self.options.compression, count, c.tokens, c.dropped)
        patch["place"] = ahead.place.model_copy(
            update={"stage": "forced" if forced else "reply", "answer": None}
        )
        return self._go(c, patch, at)


def _forced(reply: ModelReplied) -> Said:
    """The reply to the last request: no code of it is run, no variable looked up."""
    patch = {**replied(reply), "finish": "max_iterations"}
    final = read_reply(reply.text).final
    if final is None:
        return patch, MaxIterationsReached(reply.text)
    return {**patch, "answer": final}, FinalAnswerFound(final or reply.text)


def no_variable(name: str) -> str:
    """What is wrong with a name that cannot be looked up."""
    shown = name if len(name) <= 100 else f"{name[:100]}..."
    return f"{shown!r} is not the name of a variable; to answer with a value, use FINAL(value)"


def _output(printed: str, cut: int, error: str | None) -> str:
    """What a block printed, a note of what was cut, and its error, below each other."""
    parts = [printed.rstrip("\n"), left_out(cut) if cut else "", error or ""]
    return "\n".join(part for part in parts if part)


def _text_of(answer: ModelReplied | MachineEnded | EffectFailed) -> str:
    """The text of a sub-query's answer; a failure is a text too (spec 2.4)."""
    if isinstance(answer, ModelReplied):
        return answer.text
    if isinstance(answer, EffectFailed):
        return f"Error: {answer.type}: {answer.message}"
    return answer.answer if answer.answer is not None else f"Error: {answer.error or answer.exit_reason}"


def _lost(answer: ModelReplied | MachineEnded | EffectFailed) -> str:
    """What an unsafe tool may have done, where nobody knows; empty where it is known."""
    if isinstance(answer, EffectFailed):
        return f"{answer.type}: {answer.message}" if answer.error == "unknown_outcome" else ""
    if isinstance(answer, ModelReplied):
        return ""
    lost = answer.exit_reason == "unknown_outcome" or answer.outcome.get("unknown_outcome") is True
    words = answer.error or f"nobody knows what a tool of {answer.machine} did"
    return f"the run of a sub-query ended: {words}" if lost else ""


def _is_empty(c: Ahead) -> bool:
    """Is a block to be begun that has no code?"""
    waits = c.place.stage == "block" and c.place.answer is None and c.place.index < len(c.blocks)
    return bool(waits) and not c.blocks[c.place.index]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _too_long(name: str, size: int) -> Bad | None:
    """Are the arguments of a tool too long? Their texts in the sandbox may be of any length."""
    if size <= ONE_CALL_CHARS:
        return None
    return Bad(f"{name}: the arguments have {size:,} bytes, at most {ONE_CALL_CHARS:,} are allowed")


def _count(patch: Changes, size: int) -> None:
    patch.update(visit_bytes=size, run_bytes=size)


def _say(patch: Changes, message: Message) -> None:
    patch["transcript"] = (*patch.get("transcript", ()), message)


def _and(patch: Changes, ended: tuple[Changes, Any]) -> tuple[Changes, Any]:
    """An end, with what was kept before it."""
    return {**patch, **ended[0]}, ended[1]
