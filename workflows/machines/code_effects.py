"""What the code machine asks of the world, worked out from its context alone (spec 2.2, 2.4). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activities.contracts import CallModel, CallTools, ContextRef, Effect, ModelReplied, RunMachine
from activities.contracts_code import CodeStepped, RunCode
from activities.transcript import Message, Transcript
from workflows.machines.code_calls import BUILT_IN
from workflows.machines.code_context import Ahead, Context, Options
from workflows.machines.code_nested import Nesting
from workflows.machines.code_prompt import compressed, left_out

__all__ = ["Effects", "replied", "value_of"]

LONGEST = 1_000_000
"""Characters of a variable that `FINAL_VAR` gives as the answer."""


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
        """Print a variable, whole. The name was checked: it is an identifier and nothing more."""
        limits = self.options.block.model_copy(update={"output_chars": LONGEST})
        return self._run(c, block=f"print({name})", before=c.session, limits=limits, label=f"look up {name}")

    def _run(self, c: Context | Ahead, **more: Any) -> RunCode:
        material = c.goal if c.material is None else c.material
        # The session holds a short context from its first block on; it need not travel again.
        needed = not c.session or isinstance(material, ContextRef) or _reaches(c.transcript)
        what = {
            "session": c.session,
            "names": (*BUILT_IN, *(tool.name for tool in c.tools)),
            "constants": {"DEPTH": c.depth, "CORRELATION_ID": c.trace_id},
            "context": material if needed else None,
            "limits": self.options.block,
            "label": f"run block {c.iteration + 1}.{c.place.index + 1}",
        }
        return RunCode(**{**what, **more})

    def _query(self, c: Context | Ahead) -> CallModel | RunMachine:
        """The next sub-query: one plain model call, or a run of its own."""
        number = len(c.answers)
        query = c.asked[number]
        label = f"llm_query {number + 1}: {' '.join(query.prompt[:80].split())}"
        if self.nesting.wants(query.prompt, c.depth):
            return self.nesting.run(query, c.tools, label)
        return CallModel(
            role=query.role,
            transcript=Transcript([Message(role="user", content=query.prompt)]),
            attempts=self.options.max_model_attempts,
            label=label,
        )


def _reaches(transcript: Transcript) -> bool:
    """Does code of the model use `context_slice` and its like, which read what travels with the step?"""
    return any(m.role == "assistant" and "context_" in m.content for m in transcript)


def replied(reply: ModelReplied) -> dict[str, Any]:
    """What is kept of a reply to a main model call."""
    used = reply.usage
    return {"transcript": (reply.message,), "tokens": used.input_tokens + used.output_tokens}


def value_of(stepped: CodeStepped) -> tuple[str | None, str]:
    """What `look_up` found: the answer, or None and why there is none (spec 2.3)."""
    printed = stepped.printed.strip()
    if stepped.left_out:
        printed = f"{printed}\n{left_out(stepped.left_out)}"
    if stepped.error is not None and not printed:
        return None, stepped.error.strip()
    return printed, ""
