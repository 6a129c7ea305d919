"""How steps, snapshots, replays and comparisons look on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from client.checkpoints import CheckpointLine, Moved, StepSnapshot
from client.compare import Comparison, Side
from client.described import ChangedTool
from client.differences import Difference, in_words
from client.pairing import StepOf
from client.replay import ChangedCall, Replayed
from client.view import plain, spent

__all__ = ["comparison", "replay_text", "snapshot_text", "steps_listing"]

SAID = 160
"""Characters of what was said in a step that two runs are compared by."""
LINES = 6
"""Of them, lines."""
NAMES = 8
"""Columns of the names in front of a comparison."""
SPENT = 24
"""Columns of what steps had spent."""
VALUE = 2_000
"""Characters of one field of a context."""
UNREAD = (
    "no worker runs, so that the log's newest records cannot be read: its calls alone were looked at; "
    "start one (`ratchet dev`, `python worker.py`), and replay the run again"
)


def steps_listing(lines: Iterable[CheckpointLine]) -> Table:
    """Steps as a table; those that the run cannot go back to are dim."""
    rows = list(lines)
    branches = any(line.branch for line in rows)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("step", *(["branch"] if branches else []), "in the log", "states, and what was said first"):
        table.add_column(name, overflow="fold")
    table.add_column("spent by its end", max_width=SPENT)
    for line in rows:
        style = "" if line.held else "dim"
        states = ("" if line.held else "left behind: ") + (" → ".join(line.states) or line.state)
        cells = [
            str(line.step),
            *([str(line.branch)] if branches else []),
            f"{'after' if line.held else 'from'} record {line.seq}",
        ]
        cells += ["\n".join(filter(None, (states, _one_line(line.said, SAID)))), spent(line.counters)]
        table.add_row(*(Text(plain(cell), style=style) for cell in cells))
    return table


# -- a snapshot --------------------


def snapshot_text(snapshot: StepSnapshot) -> Group:
    """A snapshot: where, at which price, every field of the context, and what came next."""
    head = _grid()
    branch = f" (branch {snapshot.branch})" if snapshot.branch else ""
    rows = {
        "run": snapshot.run,
        "machine": f"{snapshot.machine} {snapshot.version}",
        "step": f"{snapshot.step}{branch}, after record {snapshot.records - 1}",
        "state": f"{snapshot.state}, about to be entered",
        "spent": spent(snapshot.counters) or "nothing yet",
        "so far": f"{_count(snapshot.transitions, 'transition')}, {_count(snapshot.visit, 'visit')}",
    }
    for name, value in rows.items():
        head.add_row(Text(name, style="dim"), Text(plain(value)))
    fields = _grid()
    for field, content in snapshot.context.items():
        fields.add_row(Text(field, style="bold"), Text(_value(content)))
    came = [Text(f"\n{'what came next' if snapshot.next else 'nothing came next in this step'}", style="dim")]
    moves = _grid()
    for one in snapshot.next:
        moves.add_row(Text(f"{one.seq:>4}"), _moved(one))
    notes = [Text(f"\n{note}", style="yellow") for note in snapshot.notes]
    return Group(head, Text("\ncontext", style="dim"), fields, *came, moves, *notes)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _value(value: object) -> str:
    if _is_talk(value):
        lines = (f"{one['role']}: {_one_line(str(one['content']), 3 * SAID)}" for one in value)  # type: ignore[attr-defined]  # _is_talk has looked
        return "\n".join(lines)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return plain(
        text if len(text) <= VALUE else f"{text[:VALUE]} [... {len(text):,} characters; --json shows all]"
    )


def _is_talk(value: object) -> bool:
    """A conversation with a model, as contexts hold it."""
    messages = value if isinstance(value, list) else []
    return bool(messages) and all(
        isinstance(one, dict) and {"role", "content"} <= set(one) for one in messages
    )


def _moved(one: Moved) -> Text:
    line = Text(plain(f"{one.state}: {one.event}{f' → {one.to}' if one.to else ''}"))
    if why := one.error or one.reason:
        line.append(f"\n{_one_line(why, SAID)}", style="dim")
    return line


# -- a replay --------------------


def replay_text(told: Replayed) -> Group:
    """The verdict of a replay: what is the same, what differs first, what could not be looked at."""
    upto = f" before step {told.step}" if told.step is not None else ""
    looked = (
        f"{_count(told.records, 'record')} and {_count(told.calls, 'call')}{upto} were looked at; "
        "nothing was called"
    )
    verdict = Text(f"run {told.run}: ")
    if told.same:
        verdict.append("code and machine of today do the same", style="green")
    elif told.unread and not (told.trouble or told.record or told.changed or told.tools):
        verdict.append("nothing differs as far as could be looked at", style="yellow")
    else:
        verdict.append("today something differs", style="bold red")
    parts: list[RenderableType] = [verdict, Text(looked, style="dim")]
    parts += [Text(f"Temporal: {_cut(told.trouble)}", style="red")] if told.trouble else []
    if told.record is not None:
        record = told.record
        parts.append(Text(f"The log parts at record {record.seq} (step {record.step}):", style="bold"))
        parts.append(_behind(2, plain(f"was {record.was or 'nothing'}, now {record.now or 'nothing'}")))
        parts += _differences(record.differences)
    if told.changed:
        count = told.changed_calls
        parts.append(Text(f"Called otherwise today: {_count(count, 'call')}", style="bold"))
        parts += [line for call in told.changed[:1] for line in _call(call)]
        if told.changed[1:]:
            parts.append(Text(plain(f"  and {', '.join(c.place for c in told.changed[1:])}"), style="dim"))
    if told.tools:
        parts.append(
            Text("New runs are told otherwise of their tools; this one keeps what it was told:", style="bold")
        )
        parts += [line for tool in told.tools for line in _tool(tool)]
    notes = (*told.notes, *([UNREAD] if told.unread else ()))
    return Group(*parts, *(Text(_cut(note), style="yellow") for note in notes))


def _tool(tool: ChangedTool) -> Iterator[RenderableType]:
    yield Text(f"  {_one_line(tool.tool, SAID)}")
    yield from _differences(tool.differences)


def _call(call: ChangedCall) -> Iterator[RenderableType]:
    yield Text(plain(f"  {call.place} ({call.activity})"))
    yield from _differences(call.differences)


def _differences(found: Iterable[Difference]) -> list[RenderableType]:
    return [_behind(4, _cut(in_words(one))) for one in found]


def _behind(columns: int, text: str) -> RenderableType:
    """Every line of a text behind so many blanks."""
    return Padding(Text(text), (0, 0, 0, columns))


# -- a comparison --------------------


def comparison(told: Comparison, width: int = 100) -> Group:
    """Two runs side by side: who they are, the steps, where they part."""
    heads, steps = _columns(width), _columns(width)
    left, right = _about(told.left), _about(told.right)
    for name in left:
        if left[name] or right[name]:
            heads.add_row(Text(name, style="dim"), Text(_cut(left[name])), Text(_cut(right[name])))
    for pair in told.steps:
        number = Text(f"step {pair.step}", style="dim")
        if pair.same and pair.left is not None:
            steps.add_row(number, _short(pair.left), Text("the same", style="dim"))
        else:
            steps.add_row(number, _cell(pair.left), _cell(pair.right))
    return Group(heads, Text(""), steps, Text(""), *_ending(told))


def _columns(width: int) -> Table:
    """A name and two runs beside each other, over the whole width."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, width=width)
    table.add_column(no_wrap=True, width=NAMES)
    for _ in range(2):
        table.add_column(width=(width - NAMES - 6) // 2, overflow="fold")
    return table


def _short(step: StepOf) -> Text:
    """A step that both did: in one line."""
    said = next((line for line in step.said if line.strip()), "")
    return Text(_one_line(said, SAID // 2) or plain(" → ".join(step.path)))


def _about(side: Side) -> dict[str, str]:
    exit_reason = side.exit_reason or "not over"
    branch = f", branch {side.branch}" if side.branch else ""
    origin = side.origin
    return {
        "run": side.run,
        "agent": f"{side.agent} (machine {side.machine} {side.version})",
        "goal": side.goal,
        "came to": f"{exit_reason} in state {side.state}",
        "answer": side.answer or side.error or "",
        "steps": f"{side.steps}{branch}",
        "spent": spent(side.counters),
        "from": f"step {origin.step} of {origin.workflow_id}" if origin else "",
    }


def _cell(step: StepOf | None) -> Text:
    if step is None:
        return Text("-", style="dim")
    cell = Text(plain(" → ".join(step.path)), style="cyan")
    for line in step.said[:LINES]:
        cell.append(f"\n{_one_line(line, SAID)}", style="default")
    if len(step.said) > LINES:
        cell.append(f"\n… {len(step.said) - LINES} more", style="dim")
    if spent(step.spent):
        cell.append(f"\n{spent(step.spent)}", style="dim")
    return cell


def _ending(told: Comparison) -> Iterator[RenderableType]:
    if told.common is not None:
        yield Text(
            f"Both have what came before step {told.common.step} from {told.common.workflow_id}: "
            f"{_same(told.shared)}."
        )
    elif told.shared:
        yield Text(f"They have a common origin: {_same(told.shared)}.")
    if told.parts is None:
        yield Text("They do the same, step by step.", style="green")
        return
    yield Text(f"They part in step {told.parts.step}:", style="bold")
    for name, words in ((told.left.run, told.parts.left), (told.right.run, told.parts.right)):
        yield _behind(2, plain(f"{name}: {_one_line(words, SAID) or '(nothing more)'}"))


def _same(records: int) -> str:
    return f"{_count(records, 'record')} {'is' if records == 1 else 'are'} the very same"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _one_line(text: str, most: int) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _cut(text: str) -> str:
    return _one_line(text, 3 * SAID)
