"""What the code machine asks of the world, worked out from its context alone (spec 2.2, 2.4). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activities.contracts import (
    CallModel,
    CallModels,
    CallTools,
    ContextRef,
    Effect,
    ModelReplied,
    RunMachine,
)
from activities.contracts_code import CodeStepped, RunCode
from activities.transcript import Message, Transcript
from workflows.machines.code_calls import ANSWER_CHARS, BUILT_IN
from workflows.machines.code_context import Ahead, Context, Options, Query
from workflows.machines.code_nested import Nesting
from workflows.machines.code_prompt import compressed
from workflows.machines.json_text import was_cut

__all__ = ["Effects", "after_look_up", "replied", "value_of"]

SIDE_BY_SIDE = 100
"""Plain sub-queries that are asked as one effect, so that no effect is very large."""


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects, with the knobs and the nested policy they go by."""

    options: Options
    nesting: Nesting

    def at_place(self, c: Context | Ahead) -> Effect:
        """What EXECUTING waits for at its place. Raises what the nested policy raises."""
        place = c.place
        match place.stage:
            case "block" if place.answer is None:
                return self._run(c, block=c.blocks[place.index], before=c.session)
            case "block":
                return self._run(c, before=place.before, answer=place.answer)
            case "query":
                return self._query(c)
            case "tool":
                return CallTools(runs=(place.run,), attempts=self.options.max_tool_attempts)
            case "lookup":
                return self.look_up(c, place.wanted or "")
        return self.ask(c)

    def ask(self, c: Context | Ahead) -> CallModel:
        """The next main model call."""
        return CallModel(
            transcript=compressed(c.transcript, c.dropped),
            attempts=self.options.max_model_attempts,
            label=f"think #{c.iteration + 1}",
        )

    def look_up(self, c: Context | Ahead, name: str) -> RunCode:
        """Print a variable, whole. The name was checked: it is an identifier and nothing more.

        Nothing outside can be called: a block may have put anything in the place of `print`.
        """
        limits = self.options.block.model_copy(update={"output_chars": ANSWER_CHARS})
        label = f"look up {name}"
        return self._run(c, block=f"print({name})", before=c.session, names=(), limits=limits, label=label)

    def _run(self, c: Context | Ahead, **more: Any) -> RunCode:
        material = c.goal if c.material is None else c.material
        # The session holds a short context from its first block on; it need not travel again.
        needed = not c.session or isinstance(material, ContextRef) or c.reaches
        what = {
            "session": c.session,
            "names": (*BUILT_IN, *(tool.name for tool in c.tools)),
            "constants": {"DEPTH": c.depth, "CORRELATION_ID": c.trace_id},
            "context": material if needed else None,
            "limits": self.options.block,
            "label": f"run block {c.iteration + 1}.{c.place.index + 1}",
        }
        return RunCode(**{**what, **more})

    def group(self, c: Context | Ahead) -> tuple[Query, ...]:
        """The sub-queries that are asked next: one that is a run of its own, or plain ones side by side."""
        left = c.asked[len(c.answers) - c.place.since :][:SIDE_BY_SIDE]
        for count, query in enumerate(left):
            if self.nesting.wants(query.prompt, c.depth):
                return left[: max(count, 1)]
        return left

    def _query(self, c: Context | Ahead) -> CallModel | CallModels | RunMachine:
        """The next sub-queries: plain model calls, or one run of its own."""
        queries = self.group(c)
        first = len(c.answers) + 1
        label = f"llm_query {first}: {' '.join(queries[0].prompt[:80].split())}"
        if self.nesting.wants(queries[0].prompt, c.depth):
            return self.nesting.run(queries[0], c.tools, label)
        calls = tuple(self._plain(query, label) for query in queries)
        if len(calls) == 1:
            return calls[0]
        return CallModels(calls=calls, label=f"llm_query {first}-{first + len(calls) - 1}")

    def _plain(self, query: Query, label: str) -> CallModel:
        return CallModel(
            role=query.role,
            transcript=Transcript([Message(role="user", content=query.prompt)]),
            attempts=self.options.max_model_attempts,
            label=label,
        )


def replied(reply: ModelReplied) -> dict[str, Any]:
    """What is kept of a reply to a main model call."""
    used = reply.usage
    return {
        "transcript": (reply.message,),
        "tokens": used.input_tokens + used.output_tokens,
        "cut": was_cut(reply),
        **({"reaches": True} if "context_" in reply.text else {}),
    }


def after_look_up(stepped: CodeStepped) -> dict[str, Any]:
    """The session behind `look_up`; where it waits for a call, the one before is gone on with."""
    return {"session": stepped.session} if stepped.call is None else {}


def value_of(stepped: CodeStepped) -> tuple[str | None, str]:
    """What `look_up` found: the answer, or None and why there is none (spec 2.3)."""
    printed = stepped.printed.strip()
    if stepped.call is not None:
        return None, f"to print it, {stepped.call.name} would have to be called, which is not done here"
    if stepped.left_out:
        size = len(stepped.printed) + stepped.left_out
        return (
            None,
            f"it has {size:,} characters, at most {ANSWER_CHARS:,} are allowed; give a shorter answer",
        )
    if stepped.error is not None and not printed:
        return None, stepped.error.strip()
    return printed, ""
