"""Runs of the contract machine: one list of answers is one run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activities.contracts import (
    Artifact,
    ArtifactsRead,
    ArtifactText,
    CallTools,
    ModelReplied,
    ReadArtifacts,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from tests.machines.answers import failed, person, ran, replied
from tests.machines.play import Played, Reaction, play, program_of, tool
from workflows.machines.contract import MACHINE

TOOL = tool("tool", parameters={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
SLOT = {"name": "answer", "budget": {"explore": 1, "exploit": 2, "render": 1, "ctx_reads": 1}}
WIDE = {"name": "answer", "budget": {"explore": 9, "exploit": 9, "render": 9, "ctx_reads": 9}}


def contract(
    *answers: Reaction, slots: Iterable[Any] = (SLOT,), tools: Iterable[ToolSpec] = (TOOL,), **options: Any
) -> Played:
    """A run that gets these answers, by default over the slot `answer`."""
    return play(program_of(MACHINE, {"slots": list(slots), **options}, tools=tools), answers)


# -- decisions --


def say(action: str | None = "complete", strategy: str | None = "explore", **more: Any) -> ModelReplied:
    """A decision."""
    return replied(json.dumps({"action": action, "strategy": strategy, **more}))


def maps(*pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    """`map_slots` with an entry for each (slot, path)."""
    return {"map_slots": [{"slot_name": slot, "source_path": path, **more} for slot, path in pairs]}


def call(*names: str, strategy: str = "explore", tool_id: str = "tool", **more: Any) -> ModelReplied:
    """A tool call that promises these artifacts, by default `found`."""
    spec = [{"name": name} for name in names or ("found",)]
    wanted = {"tool_id": tool_id, "params": {"q": "x"}, "out_artifacts_spec": spec}
    return say("call_tool", strategy, **{"tool_call": wanted, **more})


def done(*pairs: tuple[str, str], **more: Any) -> ModelReplied:
    """The end, with a mapping of each (slot, path)."""
    return say("complete", "exit", completion_summary="all done", **{**maps(*pairs), **more})


def rerun(*artifacts: str, **more: Any) -> ModelReplied:
    """Decide again after these artifacts were shown."""
    return say("decision", **{"show_artifacts": list(artifacts), **more})


def clarify(*questions: str, **more: Any) -> ModelReplied:
    """Questions to the person."""
    return say("clarify", clarification_questions=list(questions or ("which one?",)), **more)


# -- what tools and the store answer --

STORE: dict[str, str] = {}
"""Digest -> body. Content-addressed, so all runs may share it."""


def made(*bodies: Any, **changes: Any) -> Callable[[CallTools], ToolsReturned]:
    """The tool makes these bodies, in the order of its artifacts; None is a missing value."""

    def answer(effect: CallTools) -> ToolsReturned:
        (run,) = effect.calls
        pairs = zip(run.artifacts, bodies or ("found it",), strict=False)
        artifacts = tuple(
            Artifact(**{**spec.model_dump(), **_stored(body), **changes}) for spec, body in pairs
        )
        return ToolsReturned(
            results=(ToolResult(id=run.id, tool=run.tool, output="ran", artifacts=artifacts),)
        )

    return answer


def _stored(body: Any) -> dict[str, Any]:
    if body is None:
        return {}
    text = body if isinstance(body, str) else json.dumps(body)
    digest = hashlib.sha256(text.encode()).hexdigest()
    STORE[digest] = text
    return {"digest": digest, "bytes": len(text.encode()), "preview": text[:200]}


def read(effect: ReadArtifacts) -> ArtifactsRead:
    """The texts as the activity reads them; of paths only `.key` is understood."""
    return ArtifactsRead(texts=tuple(_text(one.digest, one.path, effect.chars) for one in effect.reads))


def _text(digest: str, path: str, chars: int) -> ArtifactText:
    body: Any = STORE[digest]
    if path:
        try:
            body = json.loads(body)[path.removeprefix(".")]
        except (ValueError, KeyError, TypeError):
            return ArtifactText(problem=f"there is nothing at {path}")
    text = body if isinstance(body, str) else json.dumps(body)
    return ArtifactText(text=text[:chars], chars=len(text))


LOST = ArtifactsRead(texts=(ArtifactText(problem="the store has no such blob"),))
BINARY = ArtifactsRead(texts=(ArtifactText(binary=True),))


# -- the runs --


@dataclass(frozen=True)
class Script:
    """One run, and how it ends."""

    name: str
    answers: tuple[Reaction, ...]
    path: str
    """The states by their first letters: decision, protocol_verify, tool_execution, exit; `.` is the end."""
    reason: str
    answer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> Played:
        """Play it."""
        return contract(*self.answers, **self.options)


LOOK = (call(), made("42"))
"""A round that makes the artifact `found`."""
NO_SLOTS: dict[str, Any] = {"slots": []}
ONE_CALL: dict[str, Any] = {"caps": {"tool_calls": 1, "exploit": 0}}
"""The budget is used up after one tool round, without overdraft."""
OVERDRAFT: dict[str, Any] = {"slots": [WIDE], "caps": {"tool_calls": 0}}
"""Each round is an overdraft round."""
TWO_EXTRA: dict[str, Any] = {
    "slots": [{"name": "answer", "budget": {"explore": 1, "exploit": 2}}],
    "caps": {"decision_rounds": 1},
}
"""One round, then two of overdraft."""
EXPLOIT = (call("more", strategy="exploit"), made("43"))
FILL = (done(("answer", "found")), read)
TWO_SLOTS: dict[str, Any] = {"slots": [{"name": "answer"}, {"name": "other"}]}
LAST = (call(**maps(("answer", "found")), completion_summary="I am done"), read)

SCRIPTS = (
    Script("nothing to fill", (done(),), "DE.", "complete", "all done", NO_SLOTS),
    Script("a slot is filled", (*LOOK, *FILL), "DPTDE.", "complete", "42"),
    Script("two slots are one text", (*LOOK, done(("answer", "found"), ("other", "found")), read),
           "DPTDE.", "complete", "answer:\n42\n\nother:\n42", TWO_SLOTS),
    Script("a long text is read late", (call(), made("x" * 9000), *FILL, read),
           "DPTDE.", "complete", "x" * 9000),
    Script("looks at what was found", (*LOOK, rerun("found"), read, *FILL), "DPTDDE.", "complete", "42"),
    Script("a later mapping wins", (*LOOK, done(("answer", "nosuch"), ("answer", "found")), read),
           "DPTDE.", "complete", "42"),
    Script("a slot stays open", (done(),), "DE.", "incomplete_contract"),
    Script("asks the person", (clarify("which?", "why?"),), "DE.", "clarify", "which?\nwhy?"),
    # decision: strategy, show items, reruns (spec 5.7)
    Script("strategy exit forces the exit", (say("call_tool", "exit"),), "DE.", "complete", None, NO_SLOTS),
    Script("a summary without strategy ends", (say("decision", None, completion_summary="it rained"),),
           "DE.", "complete", "it rained", NO_SLOTS),
    Script("no strategy is asked again", (replied("?"), replied("{}"), done()),
           "DDDE.", "complete", "all done", NO_SLOTS),
    Script("reruns bound bad replies", (replied("?"),) * 3, "DDDE.", "decision_reruns_exhausted"),
    Script("R-004-3 rerun too many", (rerun("a"),), "DE.", "decision_reruns_exhausted", None,
           {"caps": {"decision_reruns": 0}}),
    Script("R-004-3 rerun that shows nothing", (say("decision"),), "DE.", "decision_no_progress"),
    Script("R-004-4 no read left beats no progress", (rerun("a"),), "DE.", "context_reads_exhausted", None,
           {"caps": {"context_reads": 0}}),
    # protocol and tools (5.11, 5.12)
    Script("the protocol is broken", (call(tool_id="nosuch"), done()),
           "DPDE.", "complete", "all done", NO_SLOTS),
    Script("a failed tool is no end", (call(), ran("boom", "failed"), done()),
           "DPTDE.", "incomplete_contract"),
    Script("a call is rejected", (call(), ran("ann said no", "rejected"), done()),
           "DPTDE.", "incomplete_contract"),
    Script("the outcome of a tool is unknown", (call(), ran("lost", "unknown_outcome")), "DPTE.", "error"),
    Script("a tool crashes its node", (call(), failed("fatal")), "DPTE.", "error"),
    Script("a tool gives no result", (call(), ToolsReturned(results=())), "DPTE.", "error"),
    Script("the model fails for good", (*LOOK, failed("fatal")), "DPTDE.", "error"),
    # the budget (5.8, R-004-2)
    Script("R-004-2 the exhausted round maps", (*LOOK, *LAST), "DPTDE.", "max_iterations", "42", ONE_CALL),
    Script("R-004-2 its summary does not count", (LAST[0],), "DE.", "max_iterations", None,
           {"slots": [], "caps": {"tool_calls": 0, "exploit": 0}}),
    Script("R-004-2 the exhausted round is skipped", (call(), made("42", kind="search")),
           "DPTDE.", "max_iterations", None, {**ONE_CALL, "exhausted_round": "skip"}),
    Script("R-004-6 overdraft before wrap-up", (*LOOK, *EXPLOIT, *FILL),
           "DPTDPTDE.", "complete", "42", TWO_EXTRA),
    Script("R-004-3 overdraft blocks other tools", (call(),),
           "DE.", "exploit_overdraft_blocked", None, OVERDRAFT),
    Script("overdraft allows to complete", (done(),), "DE.", "incomplete_contract", None, OVERDRAFT),
    Script("overdraft ends by transitions", (*EXPLOIT * 8, EXPLOIT[0]), "DPT" * 8 + "D",
           "max_transitions", None,
           {"slots": [{"name": "answer", "budget": {"exploit": 40}}], "caps": {"decision_rounds": 1}}),
    # wrap-up (5.9)
    Script("wrap-up maps what was forgotten", (*LOOK, done(), *FILL), "DPTDDE.", "complete", "42"),
    Script("wrap-up maps nothing", (*LOOK, done(), done()), "DPTDDE.", "incomplete_contract"),
    Script("wrap-up runs no tool", (*LOOK, done(), *LAST), "DPTDDE.", "complete", "42"),
    Script("wrap-up follows the exhausted round", (*LOOK, done(), *FILL),
           "DPTDDE.", "complete", "42", ONE_CALL),
    Script("wrap-up follows the skipped round", (*LOOK, *FILL), "DPTDDE.", "complete", "42",
           {**ONE_CALL, "exhausted_round": "skip"}),
    Script("R-004-3 wrap-up allows no rerun", (*LOOK, done(), replied("?")),
           "DPTDDE.", "wrapup_no_decision_rerun"),
    Script("questions outlive the wrap-up", (*LOOK, clarify("which year?"), done()),
           "DPTDDE.", "incomplete_contract", "which year?"),
    # people
    Script("a message while the mapping is read",
           (*LOOK, FILL[0], person("in metres"), read, *FILL), "DPTDE.", "complete", "42"),
)  # fmt: skip
