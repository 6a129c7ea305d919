"""Going back to an earlier step of a ReAct run (spec 1.8, R-000-14). Pure."""

from __future__ import annotations

from itertools import takewhile

from activities.transcript import Transcript
from workflows.kernel.fields import Patch, freeze
from workflows.machines.react_context import Context, ReasoningStep
from workflows.machines.react_prompt import observed

__all__ = ["rollback_to_step", "went_back"]


def rollback_to_step(state: Context, step_id: int) -> Context:
    """The state with the steps 0 to `step_id` alone, ready for the next thought (spec 1.8, R-000-14).

    Metadata stays but for the exit reason, which is dropped, and the reason to retry a step that is gone;
    `rolled_back_from` and `rolled_back_to` are merged in. Of the conversation stays what was said by then,
    and of the cache what was asked by then: the next thought is thought anew.
    Raises ValueError when there is no such step.
    """
    count = len(state.steps)
    if not 0 <= step_id < count:
        there = f"there are the steps 0 to {count - 1}" if count else "the run has no steps yet"
        raise ValueError(f"react: the run cannot go back to step {step_id}; {there}")
    metadata = {name: value for name, value in state.metadata.items() if name != "exit_reason"}
    if step_id < count - 1 and metadata.get("retry_reason"):
        metadata["retry_reason"] = None
    last = state.steps[step_id]
    # No thought comes behind an open step (R-000-3); this one was not carried to its end.
    kept = last if last.closed else last.model_copy(update={"status": "failed"})
    transcript = _said_by(state.transcript, last)
    asked = set(transcript.digests[:-1])
    changed = {
        "steps": (*state.steps[:step_id], kept),
        "metadata": {**metadata, "rolled_back_from": count, "rolled_back_to": step_id},
        "terminated": False,
        "transcript": transcript,
        "cache": {digest: reply for digest, reply in state.cache.items() if digest in asked},
    }
    gone_back: Context = freeze(state.model_copy(update=changed))
    return gone_back


def _said_by(transcript: Transcript, step: ReasoningStep) -> Transcript:
    """The conversation up to what the model was told of the step."""
    if not step.messages:
        return transcript
    end, told = step.messages, observed(step.observation)
    behind = takewhile(lambda message: message.role != "assistant", transcript.messages[end:])
    for number, message in enumerate(behind, start=end + 1):
        end = number if message == told else end
    return Transcript(transcript.messages[:end])


def went_back(before: Context, restored: Context) -> Patch:
    """What the restored state is told of a rollback by the log."""
    return {
        "metadata": {
            "rolled_back_from": len(before.steps),
            "rolled_back_to": len(restored.steps) - 1,
        }
    }
