"""Random machines and scripts: the puppet with random resets, callbacks, guards and policies."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.kernel.puppet import FIELDS, ROWS, Ask, Ended, Item, Looped, S, Stray, Went, puppet
from workflows.kernel.errors import RecoverableError
from workflows.kernel.machine import Machine, Row

SAYS = (Ask(), Ask(), Went(), Went(), Looped(), Ended(), Stray(), RecoverableError("odd"))


def _word(r: Random) -> str:
    return "".join(r.choices("abc", k=r.randint(0, 2)))


def _tree(r: Random, depth: int = 2) -> dict[str, Any]:
    """A mapping with few keys, so that they meet; numbers and mappings take each other's place."""
    inner = r.random() < 0.5 and depth
    return {_word(r): _tree(r, depth - 1) if inner else r.randint(0, 9) for _ in range(r.randint(0, 2))}


def random_patch(r: Random) -> dict[str, Any]:
    """A patch, mostly a good one."""
    items = tuple(Item(name=_word(r), tags=[_word(r)], more=_tree(r)) for _ in range(r.randint(0, 2)))
    whole = {
        "goal": _word(r), "items": items, "names": [_word(r), _word(r)], "total": r.randint(-3, 3),
        "tree": _tree(r), "slots": {r.randint(0, 1): _word(r)}, "why": r.choice([None, _word(r)]),
    }  # fmt: skip
    bad = {"hidden": _word(r)} if r.random() < 0.05 else {}
    return {name: whole[name] for name in r.sample(sorted(whole), r.randint(0, 4))} | bad


def random_script(r: Random) -> list[Any]:
    """What the machine is told, one after the other: (patch, effect, event or error)."""
    return [(random_patch(r), r.choice(SAYS)) for _ in range(r.randint(0, 15))]


def speaks(said: Any) -> Any:
    """What is said; an error is raised."""

    def say(c: Any, at: Any) -> Any:
        if isinstance(said[1], Exception):
            raise said[1]
        return said

    return say


DECIDES = (Went(), Ask(), Ended())


def random_machine(r: Random, decides: Any = DECIDES, **changes: Any) -> Machine[Any]:
    """The puppet with random resets, callbacks, guards, policies and a deciding state; `changes` of slots."""

    def callback() -> Any:
        patch = random_patch(r) if r.random() < 0.5 else None
        return lambda *_: patch

    def reset() -> tuple[str, ...]:
        return tuple(r.sample(sorted(FIELDS), r.randint(0, 3)))

    guard = r.choice([None, lambda event, c: c.total % 2 == 0])
    rows = [Row(row.source, row.event, row.target, reset=reset()) for row in ROWS]
    rows[1] = Row(S.A, Went, S.B, guard, reset=reset())
    rows[3] = Row(S.B, Went, S.A, None, callback(), reset=reset(), writes=FIELDS)
    decided = speaks((random_patch(r), r.choice(decides)))
    states: Any = {
        S.A: {"on_enter": callback(), "on_exit": callback(), "holds": lambda c, last: c.total < 9},
        S.B: {"on_enter": callback(), "enter": decided, "max_effects": 3},
        S.END: {"on_enter": callback(), "writes": FIELDS},
    }
    slots: dict[str, Any] = {
        "fail_state": r.choice([None, S.FAILED]),
        "on_violation": lambda error, c: {"last_error": error.problem},
        "on_unmatched": r.choice(["raise", "stay", "end"]),
        "max_unmatched": 3,
        "on_error": {"recoverable": lambda c, failure, at: ({"why": failure.message}, Ask())},
        "hold_back": lambda c, move, at: ({"hidden": "held"}, Went()) if c.total > 0 else None,
        "step_state": S.A,
        "max_transitions": 20,
    }
    return puppet(rows, states, **{**slots, **changes})
