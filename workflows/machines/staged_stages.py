"""The three stages as shipped: think, act, observe (spec 3.9). Everything here is pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from activities.contracts import (
    CallModel,
    CallTools,
    ModelReplied,
    ToolCall,
    ToolResult,
    ToolRun,
    ToolsReturned,
    Transcript,
)
from workflows.kernel.machine import At, Said
from workflows.machines.json_text import CUT, NotJson, clean, unread, was_cut
from workflows.machines.native_calls import arguments_of, shown_name
from workflows.machines.staged_context import (
    ACTING,
    FINISHED,
    GENERAL,
    OBSERVING,
    Action,
    Degradation,
    Observation,
    RequestedTool,
    ToolOutput,
)
from workflows.machines.staged_prompt import OBSERVATION, offered, prompt, reminder, thought_schema
from workflows.machines.staged_reply import BadReply, read_observation, read_thought
from workflows.machines.staged_ways import Left, Ways

__all__ = ["Act", "Observe", "Think"]

NO_TOOL = ToolOutput(tool="none", output="no tool needed")
"""The synthetic output of a stage that had nothing to do."""
MOST_CALLS = 50
"""Tool calls of one reply that are run, as many as a thought may suggest."""
NOT_RUN = "not run, because a call before it could not be performed"


class Think:
    """One structured model call gives the thought."""

    grants = frozenset({"call_model"})

    def __init__(self, ways: Ways) -> None:
        self.ways, self.stage, self.options = ways, ways.stage, ways.options

    def enter(self, c: Any, at: At) -> Said:
        """Ask the model."""
        return self._call(c, at, self._prompt(c, at))

    def _prompt(self, c: Any, at: At) -> Transcript:
        return prompt(self.stage, self.options, c, self.ways.answering(at))

    def _call(self, c: Any, at: At, transcript: Transcript) -> CallModel:
        tools = () if self.ways.answering(at) else offered(self.stage, c.material.tools)
        return self.ways.ask(at, transcript, response_schema=thought_schema(self.options, tools))

    def resume(self, c: Any, reply: ModelReplied, at: At) -> Said:
        """Read the thought; in the pass that must answer it suggests no tools."""
        thought = read_thought(reply.text, self.options.intents)
        if isinstance(thought, BadReply):
            problem = unread(reply, thought.problem)
            if at.call < self.options.max_format_attempts:
                again = self._prompt(c, at).add(reply.message, reminder(problem, self.options))
                return self._call(c, at, again)
            problem = f"the reply is no thought: {problem}"
            return self.ways.fail(problem, reply=reply.text[:500], finish_reason=reply.finish_reason)
        if self.ways.answering(at):
            thought = thought.model_copy(update={"suggested_tools": ()})
        tools = thought.suggested_tools
        target = self.ways.pick(ACTING, OBSERVING) if tools else self.ways.pick(OBSERVING, ACTING)
        said = f"{thought.intent}: {thought.reasoning}" + (f" -> {', '.join(tools)}" if tools else "")
        return self.ways.to(at, target, {"thought": thought}, reason=said)


class Act:
    """The suggested tools are offered to a model; those that it asks for are run in order."""

    grants = frozenset({"call_model", "call_tools"})

    def __init__(self, ways: Ways) -> None:
        self.ways, self.stage, self.options = ways, ways.stage, ways.options

    def enter(self, c: Any, at: At) -> Said:
        """Ask the model, if there is anything to do."""
        if c.thought is None:
            return self.ways.fail("`thought` is not set: a stage that writes it must run before this one")
        suggested = c.thought.suggested_tools
        if c.thought.intent == GENERAL or not suggested or self.ways.answering(at):
            return self._done(at, (), (NO_TOOL,))
        names = self._offer(c)
        if not names:
            asked = self._unknown(c)
            return self._done(at, asked, _outputs(asked, ()))
        transcript = prompt(self.stage, self.options, c, last=False)
        return self.ways.ask(at, transcript, offer=names, tool_choice="required")

    def _offer(self, c: Any) -> tuple[str, ...]:
        known = [tool.name for tool in offered(self.stage, c.material.tools)]
        return tuple(name for name in c.thought.suggested_tools if name in known)

    def _unknown(self, c: Any) -> tuple[RequestedTool, ...]:
        """The suggestions that cannot be offered; each is a failed output (spec 3.9)."""
        names = self._offer(c)
        return tuple(_refused(name, names) for name in c.thought.suggested_tools if name not in names)

    def resume(self, c: Any, answer: ModelReplied | ToolsReturned, at: At) -> Said:
        """First the model's reply, then what the tools returned."""
        if isinstance(answer, ToolsReturned):
            return self._returned(c.working, answer.results, at)
        names = self._offer(c)
        if not answer.tool_calls:
            problem = f"the tools {', '.join(names)} were suggested, but the model asks for none"
            return self.ways.fail(unread(answer, problem), reply=answer.text[:500])
        calls = [_requested(call, names, answer) for call in answer.tool_calls[:MOST_CALLS]]
        asked = (*self._unknown(c), *calls, *_too_many(answer.tool_calls))
        runs = [
            ToolRun(id=f"{at.step}.{number}", tool=one.tool, arguments=one.arguments)
            for number, one in enumerate(calls)
            if not one.refused
        ]
        if not runs:
            return self._done(at, asked, _outputs(asked, ()))
        return {"working": asked}, CallTools(runs=tuple(runs), attempts=self.options.max_tool_attempts)

    def _returned(self, asked: Sequence[RequestedTool], results: Sequence[ToolResult], at: At) -> Said:
        """Failed tools are recorded, the run goes on degraded; but not where nobody knows what was done."""
        outputs = _outputs(asked, results)
        lost = next((result for result in results if result.error == "unknown_outcome"), None)
        if lost is not None:
            done = {"action": Action(requested_tools=tuple(asked), tool_outputs=outputs)}
            return self.ways.fail(lost.output, done, tool=lost.tool, error="unknown_outcome")
        return self._done(at, asked, outputs)

    def _done(self, at: At, asked: Sequence[RequestedTool], outputs: tuple[ToolOutput, ...]) -> Left:
        action = Action(requested_tools=tuple(asked), tool_outputs=outputs)
        notes = [self.ways.note(o.error, f"{o.tool}: {o.output}") for o in outputs if o.error]
        said = "; ".join(f"{o.tool}: {o.output[:200]}" for o in outputs)
        return self.ways.to(at, self.ways.pick(OBSERVING), {"action": action}, *notes, reason=said)


def _refused(name: str, names: Sequence[str]) -> RequestedTool:
    """A tool that was not offered."""
    shown = shown_name(clean(name))
    why = f"Unknown tool: {shown}" + (f"; offered were {', '.join(names)}" if names else "")
    return RequestedTool(tool=shown, refused="unknown_tool", why=why)


def _requested(call: ToolCall, names: Sequence[str], reply: ModelReplied) -> RequestedTool:
    """A call as it can be run, or why it cannot."""
    if call.name not in names:
        return _refused(call.name, names)
    given = arguments_of(call)
    if isinstance(given, NotJson):
        why = unread(reply, given.problem)
        return RequestedTool(tool=call.name, refused="bad_arguments", why=why)
    return RequestedTool(tool=call.name, arguments=given)


def _too_many(calls: Sequence[ToolCall]) -> tuple[RequestedTool, ...]:
    """One refusal for all calls beyond the most that are run."""
    rest = calls[MOST_CALLS:]
    if not rest:
        return ()
    why = f"{len(rest)} calls are not run: one reply may make {MOST_CALLS}, and it makes {len(calls)}"
    return (RequestedTool(tool=shown_name(clean(rest[0].name)), refused="too_many_calls", why=why),)


def _outputs(asked: Sequence[RequestedTool], results: Sequence[ToolResult]) -> tuple[ToolOutput, ...]:
    """An output for each call, in order. Runs that were cut off have no result (6.1)."""
    returned = iter(results)
    return tuple(_output(one, None if one.refused else next(returned, None)) for one in asked)


def _output(one: RequestedTool, result: ToolResult | None) -> ToolOutput:
    if one.refused:
        return ToolOutput(tool=one.tool, output=one.why, error=one.refused)
    if result is None:
        return ToolOutput(tool=one.tool, output=NOT_RUN, error="not_run")
    return ToolOutput(tool=one.tool, output=result.output, error=result.error, whole=result.whole)


class Observe:
    """One structured model call sums up, and says whether another pass is needed."""

    grants = frozenset({"call_model"})

    def __init__(self, ways: Ways) -> None:
        self.ways, self.stage, self.options = ways, ways.stage, ways.options

    def enter(self, c: Any, at: At) -> Said:
        """Ask the model; its text is streamed while it comes."""
        asked = prompt(self.stage, self.options, c, self.ways.answering(at))
        return self.ways.ask(at, asked, response_schema=OBSERVATION)

    def resume(self, c: Any, reply: ModelReplied, at: At) -> Said:
        """Finished with an answer, or on to the next pass (spec 3.8)."""
        seen, notes = self._limited(read_observation(reply.text), at)
        if was_cut(reply):
            notes = (self.ways.note("reply_cut", CUT), *notes)
        done = seen.final_answer and not seen.need_loop
        target = (
            self.ways.pick(FINISHED, self.ways.entry) if done else self.ways.pick(self.ways.entry, FINISHED)
        )
        said = seen.final_answer if done else seen.summary
        return self.ways.to(at, target, {"observation": seen}, *notes, reason=said)

    def _limited(self, seen: Observation, at: At) -> tuple[Observation, tuple[Degradation, ...]]:
        """What the last pass makes of the observation; in every other one it stays as it is."""
        mode = self.options.on_max_iterations
        if not self.ways.is_last(at) or mode == "fail":
            return seen, ()
        answer = seen.final_answer or (seen.summary if mode == "last_observation" else "")
        if answer:
            return seen.model_copy(update={"final_answer": answer, "need_loop": False}), ()
        text = self.options.fallback_text
        note = self.ways.note("fallback_used", "the last pass gave no final answer")
        return seen.model_copy(update={"final_answer": text, "need_loop": False}), (note,)
