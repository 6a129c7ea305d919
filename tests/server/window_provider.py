"""A provider whose model marks one line after the other, and refuses what its window cannot take in.

Which line comes next follows from the newest result alone, so it needs no script. The model's `seed` is the
number of lines. Without tools in the question it replies as ReAct wants it.
"""

from __future__ import annotations

import json
import re

from activities.contracts import ModelReplied, NativeCall, Usage
from activities.provider import ModelCall, ProviderError
from activities.settings import Settings


class WindowProvider:
    """Counts a token for three bytes."""

    name = "window"
    description = "for tests of windows"

    def __init__(self, settings: Settings) -> None: ...

    async def complete(self, call: ModelCall) -> ModelReplied:
        tokens = sum(len(message.content.encode()) for message in call.messages) // 3
        if tokens > (call.model.window_tokens or tokens):
            raise ProviderError("recoverable", "context_too_long", f"{tokens} tokens are too many")
        usage = Usage(input_tokens=tokens, output_tokens=1)
        if call.tool_choice == "none":
            return ModelReplied(text=f"{len(call.messages)} messages", usage=usage, cost_usd=0.5)
        if not call.setup.tools:
            return ModelReplied(text=_thought(call), usage=usage)
        results = [message.content for message in call.messages if message.role == "tool"]
        done = int(re.findall(r"line(\d+)", results[-1])[-1]) if results else 0
        if done == call.model.seed:
            people = [m.content for m in call.messages if m.role == "user" and "word for word" in m.content]
            return ModelReplied(text=people[0] if people else "all", usage=usage)
        arguments = json.dumps({"line": f"line{done + 1}", "text": "dust " * 100})
        return ModelReplied(
            text="", tool_calls=(NativeCall(id="", name="mark", arguments=arguments),), usage=usage
        )


def _thought(call: ModelCall) -> str:
    found = re.findall(r"line(\d+)", call.messages[-1].content)
    done = int(found[-1]) if found else 0
    if done == call.model.seed:
        return json.dumps({"thought": "FINAL ANSWER: all", "action": None})
    line = {"line": f"line{done + 1}", "text": "dust " * 100}
    return json.dumps({"thought": "the next one", "action": "mark", "action_input": line})


PROVIDER = WindowProvider
