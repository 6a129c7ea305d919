"""What the tests of the contract machine share: decisions in few words, and a world with artifacts."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from activities.artifacts import value_at
from activities.contracts import (
    Artifact,
    CallTools,
    ModelReplied,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from activities.contracts_artifacts import ArtifactsRead, ArtifactText, ReadArtifacts
from tests.machines.answers import said
from tests.machines.driver import Play, tool
from workflows.kernel.design import Brief, Parts
from workflows.kernel.step import advance, start
from workflows.machines.contract import DESIGN

TOOL = tool("tool", q={"type": "string"})
SLOT = {"name": "answer", "budget": {"explore": 1, "exploit": 2, "render": 1, "ctx_reads": 1}}


def say(action: str = "complete", strategy: str | None = "explore", **more: Any) -> ModelReplied:
    """A decision."""
    return said(json.dumps({"action": action, "strategy": strategy, **more}))


def maps(*pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    """`map_slots` of (slot, path)."""
    return {"map_slots": [{"slot_name": slot, "source_path": path, **more} for slot, path in pairs]}


def call(*names: str, strategy: str = "explore", tool_id: str = "tool", **more: Any) -> ModelReplied:
    """A tool call that promises these artifacts, by default `found`."""
    spec = [{"name": name} for name in names or ("found",)]
    wanted = {"tool_id": tool_id, "params": {"q": "x"}, "out_artifacts_spec": spec}
    return say("call_tool", strategy, tool_call=wanted, **more)


def done(*pairs: tuple[str, str], summary: str = "all done", **more: Any) -> ModelReplied:
    """The end, with mappings of (slot, path)."""
    return say("complete", "exit", completion_summary=summary, **{**maps(*pairs), **more})


def rerun(*artifacts: str, strategy: str = "explore", **more: Any) -> ModelReplied:
    """Another decision after these artifacts were shown."""
    return say("decision", strategy, show_artifacts=list(artifacts), **more)


def clarify(*questions: str, **more: Any) -> ModelReplied:
    """Questions to the person."""
    return say("clarify", "explore", clarification_questions=list(questions or ("which one?",)), **more)


def digest_of(body: str) -> str:
    """As the store gives it."""
    return hashlib.sha256(body.encode()).hexdigest()


WORLD: dict[str, str] = {}
"""Digest -> body of all that tools of tests have made; content-addressed, so it may be shared."""


def made(*bodies: Any, **changes: Any) -> Callable[[CallTools], ToolsReturned]:
    """The tool makes these bodies, in the order of its artifacts' names; None is a missing value."""

    def answer(effect: CallTools) -> ToolsReturned:
        (run,) = effect.runs
        artifacts = []
        for spec, body in zip(run.artifacts, bodies or ("found it",), strict=False):
            text = body if isinstance(body, str) or body is None else json.dumps(body)
            found: dict[str, Any] = {}
            if text is not None:
                WORLD[digest_of(text)] = text
                found = {"digest": digest_of(text), "bytes": len(text.encode()), "preview": text[:200]}
            artifacts.append(Artifact(**{**spec.model_dump(), **found, **changes}))
        result = ToolResult(id=run.id, tool=run.tool, output="ran", artifacts=tuple(artifacts))
        return ToolsReturned(results=(result,))

    return answer


def read(effect: ReadArtifacts) -> Any:
    """Texts as the activity reads them, an `ArtifactsRead`."""
    return ArtifactsRead(texts=tuple(_text(r.digest, r.path, effect.chars) for r in effect.reads))


def _text(digest: str, path: str, chars: int) -> ArtifactText:
    if digest not in WORLD:
        return ArtifactText(problem="the store has no such blob")
    try:
        value = value_at(json.loads(WORLD[digest]), path) if path else WORLD[digest]
    except ValueError as error:
        return ArtifactText(problem=str(error))
    text = value if isinstance(value, str) else json.dumps(value)
    return ArtifactText(text=text[:chars], chars=len(text))


def contract(
    *reactions: Any,
    slots: Iterable[Any] = (SLOT,),
    tools: Iterable[ToolSpec] = (TOOL,),
    changed: Mapping[str, Any] | None = None,
    reader: Callable[[ReadArtifacts], Any] = read,
    **options: Any,
) -> Play:
    """A run that gets these answers, by default over the slot `answer`; texts are read by themselves."""
    knobs = DESIGN.options.model_validate({"slots": list(slots), **options})
    machine = DESIGN.build(knobs, Parts())
    context = DESIGN.begin(Brief("find out", "trace-1", tools=tuple(tools)), knobs)
    clock, waiting = itertools.count(1000.0), list(reactions)
    steps = [start(machine, context.model_copy(update=dict(changed or {})), now=next(clock))]
    while (effect := steps[-1].effect) is not None:
        reads = isinstance(effect, ReadArtifacts) and not (waiting and isinstance(waiting[0], ArtifactsRead))
        if not waiting and not reads:
            break
        reaction: Any = reader if reads else waiting.pop(0)
        answer = reaction(effect) if callable(reaction) else reaction
        steps.append(advance(machine, steps[-1], answer, now=next(clock)))
    return Play(machine, tuple(steps), unused=len(waiting))


def events(run: Play, *names: str) -> list[dict[str, Any]]:
    """The session log, or the events of these names in it."""
    return [dict(e) for e in run.context.session_log if not names or e["event"] in names]
