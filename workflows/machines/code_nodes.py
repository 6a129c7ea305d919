"""What happens in the states of the code machine besides EXECUTING (spec 2.2). Everything here is pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activities.contracts import CallModel, EffectFailed, ModelReplied
from activities.contracts_code import CodeStepped
from workflows.kernel.errors import AgentError
from workflows.kernel.machine import At, Said
from workflows.machines.code_context import Context, Options, S
from workflows.machines.code_effects import Effects, after_look_up, replied, value_of
from workflows.machines.code_events import CodeBlocksFound, DepthExceeded, LLMResponseReceived
from workflows.machines.code_execute import Blocks, no_variable
from workflows.machines.code_policies import Watch
from workflows.machines.code_prompt import not_found
from workflows.machines.code_reply import Reply, is_variable, read_reply
from workflows.machines.code_result import failed, raised, stopped, unsure

__all__ = ["Nodes"]

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Nodes:
    """The states, with the knobs, effects and policies they go by; `blocks` is EXECUTING."""

    options: Options
    effects: Effects
    watch: Watch
    blocks: Blocks

    # -- INIT, SHALLOW_CALL: one model call --------------------

    def begin(self, c: Context, at: At) -> Said:
        """The depth is looked at first; then the model is asked. No policy is asked before (2.6)."""
        most = self.options.max_depth
        if c.depth >= most:
            return DepthExceeded(f"nested {c.depth} deep; `max_depth` is {most}")
        return self.effects.ask(c)

    def begun(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """The first reply."""
        return replied(reply), LLMResponseReceived(reply.text)

    def shallow(self, c: Context, at: At) -> CallModel:
        """Ask once, with the bare prompt."""
        return self.effects.ask(c)

    def shallow_answer(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """`FINAL(...)` is unwrapped; `FINAL_VAR(...)` stays text, for there are no variables."""
        patch = {**replied(reply), "answer": read_reply(reply.text).final, "finish": "shallow"}
        return patch, LLMResponseReceived(reply.text)

    # -- PROMPTING: a look at the newest reply, no model call --------------------

    def look(self, c: Context, at: At) -> Said:
        """Policies first (R-001-8); then blocks, also beside an answer; then the answer; else no blocks."""
        read = read_reply(c.reply)
        try:
            policy = self.watch.before(c, read.blocks, at)
        except AgentError as error:
            return raised(error)
        if policy is not None:
            return stopped(policy)
        if read.blocks or (read.final is None and read.final_var is None):
            return {"blocks": read.blocks}, CodeBlocksFound(_found(read))
        if read.final is not None:
            return self.blocks.finish(c, {"blocks": (), "answer": read.final}, at)
        if not is_variable(read.final_var or ""):
            return self._not_found(c, no_variable(read.final_var or ""), at)
        return {"blocks": ()}, self.effects.look_up(c, read.final_var or "")

    def looked_up(self, c: Context, stepped: CodeStepped, at: At) -> Said:
        """The variable that the reply names is the answer, if there is one."""
        value, problem = value_of(stepped)
        if value is None:
            patch, event = self._not_found(c, problem, at)
            return {**patch, **after_look_up(stepped)}, event
        return self.blocks.finish(c, {**after_look_up(stepped), "answer": value}, at)

    def _not_found(self, c: Context, problem: str, at: At) -> tuple[Changes, Any]:
        if self.options.final_var_missing == "answer":
            return self.blocks.finish(c, {"blocks": (), "answer": problem}, at)
        told = {"blocks": (), "missing": True, "transcript": (not_found(problem),)}
        return told, CodeBlocksFound("no block, and FINAL_VAR names no variable")

    # -- failures --------------------

    def fail(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """A failing model or sandbox leaves the run, nothing is tried again (2.2); a failing sub-query
        or tool is told to the block (2.4)."""
        text = f"{failure.type}: {failure.message}"
        stage = c.place.stage if at.state is S.EXECUTING else ""
        if stage in ("query", "tool"):
            if failure.error == "unknown_outcome":
                return unsure(text)
            told = self.blocks.queries_failed if stage == "query" else self.blocks.tool_failed
            return told(c, text, at)
        asked = at.state in (S.INIT, S.SHALLOW_CALL) or stage in ("reply", "forced")
        return failed("ModelError" if asked else "ExecutionError", text)


def _found(read: Reply) -> str:
    count = len(read.blocks) + read.not_run
    return f"{count} block{'' if count == 1 else 's'}" if count else "no block and no answer"
