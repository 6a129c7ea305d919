"""Answers from a script that the task carries. It is no language model, and says so.

Which entry answers follows from the conversation alone (the number of replies in it), so a retried or
resumed call gets the same reply. Without a script, it looks around with the tools that there are.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

from activities.contracts import Conversation, ModelReplied, NativeCall, ScriptedReply
from activities.provider import ModelCall, ProviderError
from activities.settings import Settings

__all__ = ["MODEL", "PROVIDER", "ScriptedProvider"]

MODEL = "scripted (no language model)"
"""What its replies name as the model."""
DELAYED_REPLY_PIECES = 20
"""In how many pieces a delayed reply appears."""
MAX_MESSAGE_CHARS = 300
"""Of the message that an entry did not expect."""
PLACEHOLDER = re.compile(r"\{(\w+)\}")


class ScriptedProvider:
    """Replies with the entries of the model's script, in order."""

    name = "scripted"
    description = "no language model: replies from a script, for demos and tests; needs no key"

    def __init__(self, settings: Settings | None = None) -> None:
        """It needs no settings."""

    async def complete(self, call: ModelCall) -> ModelReplied:
        """The next entry's reply. Raises a fatal `ProviderError` if there is none, or none fits."""
        script, delay = call.model.script, 0.0
        if script:
            # In a thread: a search may take a second per MB, and the loop must go on meanwhile.
            text, calls = await asyncio.to_thread(_from_script, script, call.conversation)
            delay = script[_replies(call.conversation)].delay_seconds
        else:
            text, calls = _without_script(call)
        await _appear(text, delay, call)
        reason = "tool_calls" if calls else "stop"
        return ModelReplied(text=text, tool_calls=calls, finish_reason=reason, model=MODEL)


PROVIDER = ScriptedProvider


def _failed(cause: str, text: str) -> ProviderError:
    return ProviderError("fatal", cause, f"scripted: {text}")


def _replies(conversation: Conversation) -> int:
    return sum(message.role == "assistant" for message in conversation)


async def _appear(text: str, seconds: float, call: ModelCall) -> None:
    """Show the text piece by piece over this time."""
    pieces = DELAYED_REPLY_PIECES if seconds > 0 else 1
    for number in range(pieces):
        await asyncio.sleep(seconds / pieces)
        call.on_text(text[len(text) * number // pieces : len(text) * (number + 1) // pieces])


# -- with a script -------------------------------------------------------------------------------------


def _from_script(
    script: tuple[ScriptedReply, ...], conversation: Conversation
) -> tuple[str, tuple[NativeCall, ...]]:
    """Text and tool calls of the next reply. Groups of all matches so far fill the placeholders."""
    number = _replies(conversation)
    if number >= len(script):
        has = "1 reply" if len(script) == 1 else f"{len(script)} replies"
        raise _failed(
            "script_ended",
            f"the script has {has}, but reply {number + 1} is needed; "
            "add entries to the model's `script`, or give --model a language model",
        )
    entry, found = script[number], None
    names: dict[str, str] = {}
    before_replies = _before_replies(conversation)
    for earlier, text in zip(script, before_replies, strict=False):
        found = earlier.match(text)
        if found:
            names |= {name: value for name, value in found.groupdict().items() if value is not None}
    if entry.expect is None or found:
        calls = tuple(_filled_call(call, names) for call in entry.tool_calls)
        return _text(_fill_in(entry.reply, names)), calls
    if entry.otherwise is not None:
        return _text(_fill_in(entry.otherwise, names)), ()
    newest = before_replies[-1]
    shown = newest if len(newest) <= MAX_MESSAGE_CHARS else newest[: MAX_MESSAGE_CHARS - 1] + "…"
    raise _failed(
        "script_mismatch",
        f"entry {number + 1} of {len(script)} expected /{entry.expect}/ in the newest message, "
        f"which is: {shown!r}",
    )


def _before_replies(conversation: Conversation) -> list[str]:
    """For each reply so far, and for the next one: the newest message before it; the run's notes are none."""
    texts, newest = [], ""
    for message in conversation:
        if message.role == "assistant":
            texts.append(newest)
        elif not message.from_run:
            newest = message.content
    return [*texts, newest]


def _fill_in(value: JsonValue, names: Mapping[str, str]) -> JsonValue:
    """The value with `{name}` filled in every string; unknown names stay as they are."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda found: names.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [_fill_in(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _fill_in(item, names) for key, item in value.items()}
    return value


def _filled_call(call: NativeCall, names: Mapping[str, str]) -> NativeCall:
    """Fill inside the JSON, so that a quote in a value cannot break it."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        filled = str(_fill_in(call.arguments, names))
    else:
        made = _fill_in(arguments, names)
        filled = call.arguments if made == arguments else _text(made)
    return call.model_copy(update={"arguments": filled})


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- without a script ----------------------------------------------------------------------------------

WORD = re.compile(r"[^\W\d_][\w-]{2,}")
MAX_SHOWN_LINES = 5
MAX_LINE_CHARS = 200


def _without_script(call: ModelCall) -> tuple[str, tuple[NativeCall, ...]]:
    """List the files, search them for the goal's longest word, then report what the tools returned.

    It understands nothing. It lets every part around a model be tried without one. Tools that are
    offered natively are called natively; for those that the system message describes, the reply is
    the JSON form `{"thought", "action", "action_input"}`.
    """
    number = _replies(call.conversation)
    steps = [step for step in _steps(call.conversation) if _has_tool(step[1], call)]
    thought, action, arguments = [*steps, (_report(call.conversation), "", {})][min(number, len(steps))]
    if not call.setup.tools:
        return _text({"thought": thought, "action": action or None, "action_input": arguments}), ()
    if not action:
        return thought, ()
    return thought, (NativeCall(id=f"call_{number}", name=action, arguments=_text(arguments)),)


def _steps(conversation: Conversation) -> list[tuple[str, str, dict[str, JsonValue]]]:
    """Thought, tool and arguments of each step."""
    goal = next((m.content for m in conversation if m.role == "user"), "")
    word = max(WORD.findall(goal), key=len, default="")
    searching = f"The longest word of the goal is {word!r}. I search for it."
    return [
        ("I am a script, not a language model. I list the files.", "list_files", {}),
        *([(searching, "search_files", {"pattern": word})] if word else []),
    ]


def _has_tool(tool: str, call: ModelCall) -> bool:
    """The tool is offered natively, or else the system message names it."""
    if call.setup.tools:
        return any(offered.name == tool for offered in call.setup.tools)
    return any(re.search(rf"\b{tool}\b", m.content) for m in call.conversation if m.role == "system")


def _report(conversation: Conversation) -> str:
    """The beginning of what each tool returned."""
    answer = "FINAL ANSWER: I am Ratchet's script, not a language model, so I cannot answer this."
    first_reply = next((n for n, m in enumerate(conversation) if m.role == "assistant"), len(conversation))
    results = [m.content for m in conversation.messages[first_reply:] if m.role != "assistant"]
    lines = [
        line[:MAX_LINE_CHARS] for text in results for line in text.strip().splitlines()[:MAX_SHOWN_LINES]
    ]
    return "\n".join(
        [f"{answer} The tools returned:" if lines else f"{answer} No tool returned anything.", *lines]
    )
