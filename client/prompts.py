"""What a call was made with and what it would be made with now; of model calls the whole conversation."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from temporalio.client import Client

from activities.contracts import ArchiveRequest, ModelReplied, ModelRequest, Setup, Transcript
from client.callopts import changed_options
from client.differences import Difference, Span, differences, timeless
from client.recorded import RecordedCall
from client.witness import AskedCall
from workflows.api import AgentResult, AgentTask

__all__ = ["Prompts"]


class Prompts:
    """Compares calls in the order in which they were made.

    A request to a model holds only what is new in the conversation; the rest is named by a digest.
    So what requests and replies say is kept, and every prompt is compared as a whole.
    """

    def __init__(self, temporal: Client, span: Span | None = None) -> None:
        self._temporal = temporal
        self._span = span
        """When the run went on."""
        self._talks = {Transcript().digest: Transcript()}
        """Conversations by digest, as they were recorded."""
        self._setups: dict[str, Setup] = {}

    async def changed(self, was: RecordedCall, now: AskedCall) -> tuple[Difference, ...]:
        """What would be sent otherwise today, and with which other options; nothing when all is the same."""
        return (*await self._sent(was, now), *changed_options(was.options, now.options))

    async def _sent(self, was: RecordedCall, now: AskedCall) -> tuple[Difference, ...]:
        recorded = await was.input(self._temporal, type(now.argument))
        if isinstance(now.argument, ModelRequest) and isinstance(recorded, ModelRequest):
            return await self._prompts(was, recorded, now.argument)
        if isinstance(now.argument, ArchiveRequest) and isinstance(recorded, ArchiveRequest):
            return self._differing(
                *_results(recorded.result, now.argument.result)
            )  # records are told as such
        if isinstance(now.argument, AgentTask) and isinstance(recorded, AgentTask):
            return self._differing(_task(recorded), _task(now.argument))
        return self._differing(to_jsonable_python(recorded), to_jsonable_python(now.argument))

    async def _prompts(
        self, call: RecordedCall, was: ModelRequest, now: ModelRequest
    ) -> tuple[Difference, ...]:
        for request in (was, now):
            if request.full_setup is not None:
                self._setups[request.setup] = request.full_setup
        found = self._differing(self._prompt(was), self._prompt(now))
        await self._remember(call, was)
        return found

    def _differing(self, was: Any, now: Any) -> tuple[Difference, ...]:
        return differences(timeless(was, self._span), timeless(now, self._span))

    def _prompt(self, request: ModelRequest) -> dict[str, Any]:
        """All that the model is sent."""
        setup = self._setups.get(request.setup)
        known = self._talks.get(request.base or Transcript().digest)
        before = {"base": request.base} if known is None else {}
        messages = (*(known or ()), *request.messages)
        return {
            **before,
            "messages": [message.model_dump(mode="json") for message in messages],
            "tool_choice": request.tool_choice,
            "setup": setup.model_dump(mode="json") if setup else request.setup,
        }

    async def _remember(self, call: RecordedCall, was: ModelRequest) -> None:
        """The conversation with the reply behind it, under the digest that later requests name."""
        reply = await call.answer(self._temporal, ModelReplied)
        known = self._talks.get(was.base or Transcript().digest)
        if reply is not None and known is not None:
            self._talks[reply.transcript] = known.add(*was.messages, reply.message)


def _task(task: AgentTask) -> dict[str, Any]:
    """The input of a run inside, or of the next execution, without what the clock makes of it.

    The time that a run inside may take is what is left to the outer one. The hash of the log holds times;
    its records are compared as such.
    """
    told: dict[str, Any] = task.model_dump(mode="json")
    if told["limits"]["seconds"] is not None:
        told["limits"]["seconds"] = 0
    if told["carry"] is not None:
        del told["carry"]["log_head"], told["carry"]["records"]
    return told


def _results(was: dict[str, Any] | None, now: dict[str, Any] | None) -> tuple[Any, Any]:
    """Two results as far as they are some, without the fields that came after the run.

    And without the hash of the log: that differs wherever a record does, which is told elsewhere.
    """
    if was is None or now is None:
        return was, now
    try:
        known = AgentResult.model_validate(was).model_fields_set - {"log_head", "records"}
        results = [
            AgentResult.model_validate(one).model_dump(mode="json", include=known) for one in (was, now)
        ]
    except ValidationError:
        return was, now
    return results[0], results[1]
