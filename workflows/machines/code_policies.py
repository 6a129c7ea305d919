"""When stopping policies are asked and told in code mode (spec 2.6, R-001-8). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from workflows.kernel.machine import At
from workflows.machines.code_context import Ahead, Context
from workflows.machines.code_prompt import outputs
from workflows.machines.stopping import Call, Policies, PolicyContext

__all__ = ["Watch"]

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Watch:
    """The policies of a run, and what they are shown. Every method raises what a policy raises."""

    policies: Policies
    max_iterations: int

    def before(self, c: Context | Ahead, blocks: Sequence[str], at: At) -> str | None:
        """Before blocks are run: the policy that stops the run, if one does."""
        return self.policies.ask(self._view(c, at, [Call("repl", block) for block in blocks]))

    def answered(self, c: Context | Ahead, blocks: Sequence[str], at: At) -> Changes:
        """The reply that was looked at gives the answer: what policies remember of it."""
        if not self.policies.named:
            return {}
        return self.policies.notify(self._view(c, at, _ran(c, blocks)), c.answer or c.reply)

    def after(self, c: Ahead, at: At) -> tuple[Changes, str | None]:
        """After the blocks, with the counter raised and before the next call: what policies remember, and
        the one that stops the run."""
        if not self.policies.named:
            return {}, None
        calls = _ran(c, c.blocks)
        result = "\n".join(str(call.result) for call in calls)
        view = replace(self._view(c, at, calls), iteration=c.iteration - 1, last_result=result)
        memory = self.policies.notify(view, result)
        after = replace(view.remembering(memory), iteration=c.iteration)
        return {**memory, "last_result": result}, self.policies.ask(after)

    def _view(self, c: Context | Ahead, at: At, calls: Sequence[Call]) -> PolicyContext:
        return PolicyContext(
            mode="code",
            iteration=c.iteration,
            max_iterations=self.max_iterations,
            depth=c.depth,
            history=c.transcript.messages,
            last_result=c.last_result,
            calls=calls,
            ledger=at.ledger,
            memory=c.policy_memory,
        )


def _ran(c: Context | Ahead, blocks: Sequence[str]) -> list[Call]:
    """The blocks that have run, with what they printed."""
    return [
        Call("repl", block, said) for block, said in zip(blocks, outputs(c.transcript, blocks), strict=False)
    ]
