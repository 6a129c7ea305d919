"""Scripts of the contract machine: together they take every row of its table."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from activities.contracts import Artifact, CallTools, EffectFailed, ErrorClass, ToolResult, ToolsReturned
from activities.contracts_artifacts import ArtifactsRead, ArtifactText, ReadArtifacts
from tests.machines.answers import failed, said, tool_failed
from tests.machines.contractkit import call, clarify, done, made, read, rerun, say
from tests.machines.script import Script
from workflows.machines.declined import DECLINED

__all__ = ["REPLIES", "SCRIPTS", "answers"]

SLOT = {"slots": [{"name": "answer", "budget": {"explore": 2, "exploit": 2}}]}

SCRIPTS = (
    Script("has nothing to fill", (done(),)),
    Script("fills its slot", (call(), made("42"), done(("answer", "found")), read), SLOT),
    Script(
        "fills it from a long text", (call(), made("x" * 9000), done(("answer", "found")), read, read), SLOT
    ),
    Script("looks at what it found", (call(), made("42"), rerun("found"), read, clarify()), {}),
    Script("has to decide again", (said("?"), done())),
    Script("breaks the protocol", (call(tool_id="nosuch"), done())),
    Script("forgets to map", (call(), made("42"), done(), done(("answer", "found")), read), SLOT),
    Script("cannot reach the model", (failed("fatal"),)),
    Script("loses a tool", (call(), tool_failed("unknown_outcome"))),
    Script("runs out of rounds", (call(), made("1"), done()), {"caps": {"tool_calls": 1}}),
)

REPLIES = st.sampled_from(
    [
        call(),
        call("found", "more", strategy="exploit"),
        call(strategy="render"),
        call(tool_id="nosuch"),
        rerun("found", "nosuch.x"),
        rerun(),
        done(),
        done(("answer", "found"), ("answer", "nosuch")),
        clarify(),
        say("complete", "exploit", map_slots=[{"slot_name": "answer", "source_path": "found[0]"}]),
        say("call_tool", "exploit"),
        said("{}"),
        said("?"),
    ]
)
"""What a model may say in random runs."""

_TEXTS = st.builds(
    ArtifactText,
    text=st.text(max_size=5),
    chars=st.sampled_from([5, 9000]),
    binary=st.booleans(),
    problem=st.sampled_from([None, None, "gone"]),
)


def answers(effect: Any) -> st.SearchStrategy[Any] | None:
    """What may be read, and what a tool's artifacts may be."""
    if isinstance(effect, ReadArtifacts):
        return st.tuples(*[_TEXTS] * len(effect.reads)).map(lambda texts: ArtifactsRead(texts=texts))
    if not isinstance(effect, CallTools):
        return None
    (run,) = effect.runs
    artifacts = [
        st.builds(
            Artifact,
            name=st.just(spec.name),
            kind=st.sampled_from(["data", "search"]),
            digest=st.sampled_from([None, "0" * 64]),
            error=st.sampled_from([None, None, "no"]),
        )
        for spec in run.artifacts
    ]
    results = st.builds(
        ToolResult,
        id=st.just(run.id),
        tool=st.just(run.tool),
        output=st.text(max_size=5),
        error=st.sampled_from([None, None, None, "failed", "bad_arguments", "unknown_outcome", *DECLINED]),
        artifacts=st.tuples(*artifacts),
    )
    kinds: st.SearchStrategy[ErrorClass] = st.sampled_from(["transient", "recoverable", "fatal"])
    fails = st.builds(EffectFailed, error=kinds, type=st.just("timeout"), message=st.text(max_size=5))
    returned = results.map(lambda result: ToolsReturned(results=(result,)))
    return st.one_of(returned, returned, returned, fails)
