"""The calls of an effect as the log has them: what is asked for, and what came of it, cut to size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from activities.contracts import (
    Answers,
    ArtifactsRead,
    AskModel,
    CallTools,
    CodeStepped,
    Effect,
    EffectFailed,
    JsonObject,
    MachineEnded,
    Together,
    ToolCall,
    ToolsReturned,
    without_digests,
)
from activities.text import readable
from workflows.kernel.activity_ids import members, tool_calls
from workflows.kernel.log import MORE, NO_CALLS, LoggedCall

__all__ = ["LEFT_OUT", "answered", "ended_call", "shortened", "wanted_calls"]

TITLE_CHARS, OUTPUT_CHARS, ERROR_CHARS = 200, 300, 60
"""The most characters of a title, an output and an error in `LoggedCall`."""
ANSWERED_BYTES = 6_000
"""The most bytes of a record's `answered`, as JSON."""
ARGUMENTS_CHARS = 2_000
"""The most characters of a call's arguments."""
MORE_BYTES = 60
"""Bytes of the last of them, which says how many more there were."""
LEFT_OUT = "[left out]"
"""In the place of an output for which there was no room."""


def wanted_calls(effect: Effect[Any], place: str) -> tuple[LoggedCall, ...]:
    """The calls that an effect asks for; questions to models and people are none."""
    runs = tool_calls(effect, place)
    calls = [
        LoggedCall(kind=one.kind, title=_short(one.title, TITLE_CHARS), id=name)
        for name, one in members(effect, place)
        if not isinstance(one, CallTools) and one.kind not in NO_CALLS
    ]
    calls += [
        LoggedCall(
            kind="call_tools", title=_short(run.title, TITLE_CHARS), tool=_short(run.tool, TITLE_CHARS), id=n
        )
        for n, run in runs.items()
    ]
    return shortened(calls, ANSWERED_BYTES)


def answered(effect: Effect[Any], answer: Any, place: str) -> tuple[LoggedCall, ...]:
    """What came of an effect, of each call and each member side by side; as much as there is room for."""
    return shortened(tuple(_each(effect, answer, place)), ANSWERED_BYTES)


def shortened(every: Sequence[LoggedCall], room: int) -> tuple[LoggedCall, ...]:
    """As much as `room` bytes of JSON hold: outputs go before titles and errors; the last counts the rest."""
    sizes = [_size(one) for one in every]
    if sum(sizes) <= room:
        return tuple(every)
    room, found, spared = room - MORE_BYTES, list[LoggedCall](), list[int]()
    for one, size in zip(every, sizes, strict=True):
        is_long = len(one.output) > len(LEFT_OUT)
        bare = one.model_copy(update={"output": LEFT_OUT, "is_cut": True}) if is_long else one
        spared.append(size - _size(bare) if is_long else 0)
        room -= size - spared[-1]
        if room < 0:
            hidden = sum(one.count for one in every[len(found) :])
            return (*found, LoggedCall(kind=MORE, title=f"and {hidden} more", count=hidden))
        found.append(bare)
    for number, size in enumerate(spared):
        if size <= room:
            room -= size
            found[number] = every[number]
    return tuple(found)


def _size(one: LoggedCall) -> int:
    """Bytes of its JSON, and of the comma after it."""
    return len(one.model_dump_json().encode()) + 1


def _each(effect: Effect[Any], answer: Any, place: str) -> Iterator[LoggedCall]:
    match effect, answer:
        case Together(), Answers():
            if only_asks := all(isinstance(member, AskModel) for member in effect.effects):
                yield ended_call(effect.kind, effect.title, "", None)
            for (name, member), its in zip(members(effect, place), answer.answers, strict=False):
                if not only_asks or isinstance(its, EffectFailed):
                    yield from _each(member, its, name)
        case CallTools(), ToolsReturned() if answer.results:
            for (name, run), result in zip(tool_calls(effect, place).items(), answer.results, strict=False):
                yield ended_call(
                    effect.kind, run.title, result.output, result.error, call=run.id, id=name,
                    tool=run.tool, arguments=_given(run),
                    edited_by=run.edited_by[:TITLE_CHARS],
                    seconds=round(result.seconds, 3),
                )  # fmt: skip
        case _:
            yield ended_call(effect.kind, effect.title, *_outcome(answer), id=place)


def _outcome(answer: Any) -> tuple[str, str | None]:
    match answer:
        case EffectFailed():
            return answer.message, answer.type
        case MachineEnded():
            return answer.answer or answer.error or "", None if answer.ok else answer.exit_reason
        case ArtifactsRead():
            return "\n".join(
                one.problem or one.text[:OUTPUT_CHARS] for one in answer.texts[:OUTPUT_CHARS]
            ), None
        case CodeStepped():
            return answer.error or answer.printed, "raised" if answer.error else None
    return "", None


def ended_call(  # noqa: PLR0913  # the fields of a call that are cut
    kind: str,
    title: str,
    output: str,
    error: str | None,
    *,
    call: str = "",
    tool: str = "",
    arguments: JsonObject | None = None,
    **more: Any,
) -> LoggedCall:
    """A call, and what came of it, cut to what a record holds; `more` are fields that are short."""
    shown = _short(output.rstrip(), OUTPUT_CHARS)
    return LoggedCall(
        kind=kind,
        title=_short(title, TITLE_CHARS),
        output=shown,
        is_cut=len(shown) < len(output.rstrip()),
        error=error and _short(error, ERROR_CHARS),
        call=call if len(call) <= TITLE_CHARS else "",  # a model may have written it
        tool=_short(tool, TITLE_CHARS),
        arguments=_cut_arguments(arguments or {}),
        **more,
    )


def _given(run: ToolCall) -> JsonObject:
    """The arguments without those that the tool's defaults have filled in."""
    return {name: value for name, value in run.arguments.items() if name not in run.filled}


def _cut_arguments(arguments: JsonObject) -> JsonObject:
    """As people see them: of a long value the beginning, as text; as many as there is room for."""
    found: JsonObject = {}
    left = ARGUMENTS_CHARS
    for name, value in arguments.items():
        text = json.dumps(value, ensure_ascii=False)
        left -= len(name) + min(len(text), OUTPUT_CHARS)
        if left < 0:
            return {**found, "...": f"and {len(arguments) - len(found)} more"}
        found[readable(name)] = (
            value if len(text) <= OUTPUT_CHARS and text.isprintable() else _short(text, OUTPUT_CHARS)
        )
    return found


def _short(text: str, limit: int) -> str:
    start = readable(without_digests(text[: 4 * limit]))
    return start if len(start) <= limit and len(text) <= 4 * limit else f"{start[: limit - 1]}…"
