"""A machine's table as a drawing (SVG), with a run's present state and the way it went.

States lie in rows, each below the first state that leads to it. An event to the next row or to a neighbour is
a straight line; one that skips rows passes on the right, one that goes back on the left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from workflows.kernel.machine import Machine, state_name

__all__ = ["drawing"]

CHARACTER, PADDING, HEIGHT = 7.4, 26, 30
"""Of a box: width of a character, width beside the name, height. Pixels."""
ROW, GAP, LANE = 66, 22, 13
"""Between rows, between boxes of a row, between lines on a side."""
MAX_NAME_CHARACTERS = 24
"""Characters of a name that are shown."""


@dataclass(frozen=True)
class _Box:
    x: float
    """Of its middle."""
    y: float
    """Of its top."""
    width: float
    row: int

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def middle(self) -> float:
        return self.y + HEIGHT / 2


def drawing(machine: Machine, current: str = "", path: Sequence[tuple[str, str]] = ()) -> Markup:
    """The machine; `current` is marked, and so are the transitions of `path` (from, to)."""
    rows = _rows(machine)
    edges: dict[tuple[str, str], list[str]] = {}
    for source, row in machine.rows.items():
        for event, target in row.items():
            edges.setdefault((source, target), []).append(event.__name__)
    place = {name: index for index, row in enumerate(rows) for name in row}
    right = [edge for edge in edges if place[edge[1]] > place[edge[0]] + 1]
    beside = {pair for row in rows for pair in pairwise(row)}
    beside |= {(other, one) for one, other in beside}
    left = [
        edge
        for edge in edges
        if place[edge[1]] <= place[edge[0]] and edge[0] != edge[1] and edge not in beside
    ]
    for lanes in (left, right):
        lanes.sort(key=lambda edge: abs(place[edge[0]] - place[edge[1]]))
    boxes, width = _boxes(rows, (len(left) + 1) * LANE, (len(right) + 1) * LANE)
    taken, visits = (
        Counter(path),
        Counter([*(source for source, _ in path[:1]), *(target for _, target in path)]),
    )
    inner = min(box.left for box in boxes.values()), max(box.right for box in boxes.values())
    height = len(rows) * ROW - ROW + HEIGHT + 24
    body = [
        _line(edge, names, boxes, taken[edge], _lane(edge, left, right, inner))
        for edge, names in sorted(edges.items(), key=lambda found: taken[found[0]] > 0)  # these on top
    ]
    body += [
        _box(name, box, visits[name], now=name == current, final=name in machine.final)
        for name, box in boxes.items()
    ]
    label = f"{machine.name}: in state {current}" if current else f"The states of {machine.name}"
    return Markup(
        '<svg class="machine" role="img" aria-label="{}" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>{}</svg>'
    ).format(label, width, height, width, Markup("").join(body))


def _rows(machine: Machine) -> list[list[str]]:
    """States by their distance from the first one, in the table's order; final ones at the end."""
    rows = [[state_name(machine.initial)]]
    seen = set(rows[0])
    while True:
        found: list[str] = []
        for name in rows[-1]:
            for target in machine.rows.get(name, {}).values():
                if target not in seen and target not in machine.final:
                    seen.add(target)
                    found.append(target)
        if not found:
            break
        rows.append(found)
    rest = [name for name in machine.rows if name not in seen]
    return [*rows, *([rest] if rest else []), sorted(machine.final)]


def _boxes(rows: Sequence[Sequence[str]], left: float, right: float) -> tuple[Mapping[str, _Box], float]:
    widths = {name: min(len(name), MAX_NAME_CHARACTERS) * CHARACTER + PADDING for row in rows for name in row}
    room = max(sum(widths[name] + GAP for name in row) - GAP for row in rows)
    boxes: dict[str, _Box] = {}
    for index, row in enumerate(rows):
        x = left + (room - sum(widths[name] + GAP for name in row) + GAP) / 2
        for name in row:
            boxes[name] = _Box(x + widths[name] / 2, 12 + index * ROW, widths[name], index)
            x += widths[name] + GAP
    return boxes, left + room + right


def _lane(
    edge: tuple[str, str],
    left: Sequence[tuple[str, str]],
    right: Sequence[tuple[str, str]],
    inner: tuple[float, float],
) -> float | None:
    """Where a line passes beside the boxes; None: it goes straight."""
    if edge in left:
        return inner[0] - (left.index(edge) + 1) * LANE
    if edge in right:
        return inner[1] + (right.index(edge) + 1) * LANE
    return None


def _line(
    edge: tuple[str, str],
    events: Iterable[str],
    boxes: Mapping[str, _Box],
    times: int,
    lane: float | None,
) -> Markup:
    one, other = boxes[edge[0]], boxes[edge[1]]
    if one is other:
        x, y = one.right - 12, one.y
        way = f"M{x - 10:.1f} {y:.1f} c-6 -16 22 -16 16 0"
    elif lane is None and one.row == other.row:
        start, end = (one.right, other.left - 1) if one.x < other.x else (one.left, other.right + 1)
        y = one.middle + (5 if one.x < other.x else -5)
        way = f"M{start:.1f} {y:.1f} H{end:.1f}"
    elif lane is None:
        half = (one.y + HEIGHT + other.y) / 2
        way = (
            f"M{one.x:.1f} {one.y + HEIGHT:.1f} C{one.x:.1f} {half:.1f} {other.x:.1f} {half:.1f} "
            f"{other.x:.1f} {other.y - 1:.1f}"
        )
    else:
        towards = 1 if lane > one.right else -1
        start, end = (one.right, other.right) if towards > 0 else (one.left, other.left)
        turn, down = 8 * towards, 8 if other.middle > one.middle else -8
        top, bottom = one.middle + (5 if down > 0 else -5), other.middle - (5 if down > 0 else -5)
        if other.row == one.row:
            top, bottom, down = one.middle - 6, one.middle + 6, 4  # one end above the other
        way = (
            f"M{start:.1f} {top:.1f} H{lane - turn:.1f} q{turn} 0 {turn} {down} V{bottom - down:.1f} "
            f"q0 {down} {-turn} {down} H{end + towards:.1f}"
        )
    title = f"{edge[0]} → {edge[1]}: {', '.join(events)}{f' ({times} times)' if times else ''}"
    return Markup('<path class="{}" d="{}" marker-end="url(#tip)"><title>{}</title></path>').format(
        "taken" if times else "edge", way, title
    )


def _box(name: str, box: _Box, visits: int, *, now: bool, final: bool) -> Markup:
    kinds = ["state", *["now"][: int(now)], *["final"][: int(final)], *["seen"][: int(visits > 0)]]
    text = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 1]}…"
    entered = f", entered {'once' if visits == 1 else f'{visits} times'}" if visits else ""
    title = f"{name}{', here now' if now else ''}{entered}"
    count = Markup("")
    if visits > 1:
        count = Markup('<text class="count" x="{:.1f}" y="{:.1f}">{}</text>').format(
            box.right - 5, box.y + 10, visits
        )
    return Markup(
        '<g class="{}"><title>{}</title><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="{}"/>'
        '<text x="{:.1f}" y="{:.1f}">{}</text>{}</g>'
    ).format(
        " ".join(kinds), title, box.left, box.y, box.width, HEIGHT, 15 if final else 6,
        box.x, box.middle + 4, text, count,
    )  # fmt: skip
