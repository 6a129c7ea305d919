"""Answers from a script that the task carries. It is no language model, and says so.

Which entry speaks follows from the transcript alone (the number of assistant messages in it), so
a retried or resumed call gets the same reply. Without a script a small policy of its own looks
around with the tools that there are; see `_scripted_policy`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from activities.contracts import ModelReplied, ModelSpec, ScriptedReply, Setup, ToolCall, Usage
from activities.provider import OnText, ProviderCall, ProviderError
from activities.providers._scripted_policy import improvised
from activities.settings import Settings
from activities.transcript import Transcript

__all__ = ["MODEL", "PROVIDER", "ScriptedProvider", "from_settings"]

MODEL = "scripted (no language model)"
"""What its replies name as the model."""
PIECES = 20
"""In how many pieces a delayed reply appears."""

PLACEHOLDER = re.compile(r"\{(\w+)\}")


class ScriptedProvider:
    """Says what the script says, in order."""

    name = "scripted"
    description = "no language model: replies from a script, for demos and tests; needs no key"

    async def complete(self, setup: Setup, transcript: Transcript, call: ProviderCall) -> ModelReplied:
        """The reply of the entry whose turn it is. Raises a fatal `ProviderError` if none fits."""
        script = setup.model.script
        delay = 0.0
        if script:
            text, calls = _scripted(script, transcript)
            delay = script[_turn(transcript)].delay_seconds
        else:
            text, calls = improvised(setup, transcript)
        await _say(text, delay, call.on_text)
        return ModelReplied(
            text=text,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            model=MODEL,
            usage=_usage(transcript, text, calls),
        )

    async def check(self, spec: ModelSpec) -> str | None:
        """What is wrong with the script; None when all is well."""
        for number, entry in enumerate(spec.script, start=1):
            try:
                re.compile(entry.expect or "")
            except re.error as error:
                return f"scripted: entry {number}: expect is no regular expression: {error}"
        return None

    async def close(self) -> None:
        """Nothing is held."""


def _turn(transcript: Transcript) -> int:
    return sum(message.role == "assistant" for message in transcript)


def _scripted(script: tuple[ScriptedReply, ...], transcript: Transcript) -> tuple[str, tuple[ToolCall, ...]]:
    turn = _turn(transcript)
    if turn >= len(script):
        raise _failed(
            "script_ended",
            f"the script has {len(script)} replies, but reply {turn + 1} was asked for; "
            "add entries to the model's `script`",
        )
    heard = list(_heard(transcript))
    names: dict[str, str] = {}
    for number, entry in enumerate(script[:turn], start=1):
        found = _find(entry, heard[number - 1], number)
        names |= _groups(found)
    entry = script[turn]
    found = _find(entry, heard[turn], turn + 1)
    if entry.expect is None or found is not None:
        names |= _groups(found)
        calls = tuple(_filled_call(call, names) for call in entry.tool_calls)
        return _text(_filled(entry.reply, names)), calls
    if entry.otherwise is not None:
        return _text(_filled(entry.otherwise, names)), ()
    came = heard[turn]
    shown = came if len(came) <= 300 else came[:299] + "…"
    raise _failed(
        "script_mismatch",
        f"entry {turn + 1} of {len(script)} expected /{entry.expect}/ in the last message, "
        f"but there came: {shown!r}",
    )


def _heard(transcript: Transcript) -> Iterator[str]:
    """For each reply so far, and for the one to come: the last message before it."""
    last = ""
    for message in transcript:
        if message.role == "assistant":
            yield last
        else:
            last = message.content
    yield last


def _find(entry: ScriptedReply, text: str, number: int) -> re.Match[str] | None:
    if entry.expect is None:
        return None
    try:
        return re.search(entry.expect, text, re.MULTILINE)
    except re.error as error:
        raise _failed("bad_script", f"entry {number}: expect is no regular expression: {error}") from None


def _groups(found: re.Match[str] | None) -> dict[str, str]:
    groups = found.groupdict() if found else {}
    return {name: value for name, value in groups.items() if value is not None}


def _filled(value: JsonValue, names: Mapping[str, str]) -> JsonValue:
    """The value with `{name}` filled in every string; unknown names stay as they are."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda found: names.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, names) for key, item in value.items()}
    return value


def _filled_call(call: ToolCall, names: Mapping[str, str]) -> ToolCall:
    """Fill inside of the JSON, so that a quote in a value cannot break it."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        filled = _filled(call.arguments, names)
    else:
        made = _filled(arguments, names)
        filled = call.arguments if made == arguments else json.dumps(made, ensure_ascii=False)
    return call.model_copy(update={"arguments": filled})


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _say(text: str, delay: float, on_text: OnText) -> None:
    """Let the text appear piece by piece over `delay` seconds."""
    if delay > 0:
        for piece in range(1, PIECES + 1):
            await asyncio.sleep(delay / PIECES)
            on_text(text[: len(text) * piece // PIECES])
    else:
        on_text(text)


def _usage(transcript: Transcript, text: str, calls: tuple[ToolCall, ...]) -> Usage:
    """A rough count, four characters a token, so that limits can be tried out."""
    asked = sum(len(message.content) for message in transcript)
    said = len(text) + sum(len(call.arguments) for call in calls)
    return Usage(input_tokens=-(-asked // 4), output_tokens=-(-said // 4))


def _failed(cause: str, text: str) -> ProviderError:
    return ProviderError("fatal", cause, f"scripted: {text}")


def from_settings(settings: Settings) -> ScriptedProvider:
    """The one provider of this kind; it needs no settings."""
    return ScriptedProvider()


PROVIDER = from_settings
