"""Which answers are tried: every failure that an effect can have, each decision, and replies and outputs from
the forms by which a visit reads them, the tools' schemas and the scenario.

What is tried follows from the effect and the scenario alone, so that states that ask the same get the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from activities.contracts import (
    MODEL_REFUSED,
    Answers,
    Artifact,
    ArtifactsRead,
    ArtifactText,
    AskModel,
    AskPerson,
    CallTools,
    CodeCall,
    CodeStepped,
    Effect,
    EffectFailed,
    ErrorClass,
    MachineEnded,
    ModelReplied,
    NativeCall,
    PersonDecided,
    ReadArtifacts,
    RunCode,
    RunMachine,
    Together,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from workflows.gate.arguments import arguments_for
from workflows.kernel.properties import Scenario
from workflows.verify.runs.samples import samples, schema_of

__all__ = ["LEFT_OUT", "Domain", "Tried", "open_tool"]

LEFT_OUT = (
    "the clock stands still and calls cost nothing, so that no limit of time or money is reached",
    "no message, command or rollback comes from people; they decide what they are asked",
    "of calls side by side all end alike, or the first by itself",
    "a model's reply asks for at most one tool, or for two that are alike",
)
"""What no domain has, for whoever reads `proven`."""
MODEL_FAILURES: Mapping[str, tuple[ErrorClass, str]] = {
    "transient": ("transient", "HTTP429"),
    "fatal": ("fatal", "HTTP401"),
    "too long": ("recoverable", "context_too_long"),
    "refuses": ("fatal", MODEL_REFUSED),
}
"""In words -> class and type of the failure."""
TOOL_ERRORS = ("failed", "timeout", "rejected", "expired")
MAY_HAVE_ACTED = {"unsafe", "keyed"}
"""Effects of tools whose call may end with nobody knowing whether it acted."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One answer that is tried, and its words for people."""

    text: str
    answer: Any


def open_tool(name: str) -> ToolSpec:
    """A tool of which only the name is known: it takes any arguments and may do anything."""
    schema = {"type": "object", "additionalProperties": True}
    return ToolSpec(name=name, description="", parameters=schema, effect="unsafe")


class Domain:
    """The answers to each effect of a machine in one scenario."""

    def __init__(self, scenario: Scenario, tools: Mapping[str, ToolSpec]) -> None:
        self.scenario, self.tools = scenario, tools
        self._known: dict[Any, tuple[Effect[Any], tuple[Tried, ...]]] = {}
        """With the effect, so that its forms live on and keep their identity."""

    def answers(self, effect: Effect[Any]) -> tuple[Tried, ...]:
        """What is tried for this effect; the same objects for the same effect."""
        key = (effect.model_dump_json(), _forms(effect))
        if key not in self._known:
            found = {one.text: one for one in self._of(effect)}.values()
            kept = (one for one in found if one.text.rsplit(": ", 1)[-1] not in self.scenario.without)
            self._known[key] = effect, tuple(kept)
        return self._known[key][1]

    def _of(self, effect: Effect[Any]) -> Iterator[Tried]:
        tried: dict[type[Any], Callable[[Any], Iterator[Tried]]] = {
            AskModel: self._replies,
            CallTools: self._results,
            AskPerson: _decisions,
            RunMachine: _inner_runs,
            RunCode: _blocks,
            ReadArtifacts: _texts_read,
            Together: self._side_by_side,
        }
        yield from tried[type(effect)](effect)

    def _side_by_side(self, effect: Together) -> Iterator[Tried]:
        for one in self._of(effect.effects[0]):
            yield Tried(f"all {one.text}", Answers(answers=(one.answer,) * len(effect.effects)))

    # -- models --------------------

    def _replies(self, effect: AskModel) -> Iterator[Tried]:
        form = effect.form if effect.form is not None else effect.response_schema
        if form is not None:
            for value in samples(schema_of(form), self.scenario.words):
                text = json.dumps(value, ensure_ascii=False)
                yield Tried(f"model: {text}", ModelReplied(text=text))
        for reply in self._given(effect.label):
            yield _replied(reply)
        if effect.offer and effect.tool_choice != "none":
            yield from self._native_calls(effect)
        for text in ("It is forty-two.", ""):
            yield Tried(f"model: {text!r}", ModelReplied(text=text))
        yield Tried("model: 'It is', cut off", ModelReplied(text="It is", finish_reason="length"))
        for text, (error, kind) in MODEL_FAILURES.items():
            yield Tried(f"model: {text}", EffectFailed(error=error, type=kind, message="no reply"))

    def _given(self, label: str) -> Iterator[Any]:
        replies = self.scenario.replies
        if not isinstance(replies, Mapping):
            yield from replies
            return
        for pattern, some in replies.items():
            if fnmatchcase(label, pattern):
                yield from some

    def _native_calls(self, effect: AskModel) -> Iterator[Tried]:
        good = [call for name in effect.offer for call in self._calls_of(name)]
        for call in good:
            yield _replied((call,))
        first = effect.offer[0]
        yield _replied((NativeCall(id="c0", name=first, arguments="{oops"),))
        yield _replied((NativeCall(id="c0", name="nosuch", arguments="{}"),))
        cut = ModelReplied(text="", tool_calls=(NativeCall(id="c0", name=first),), finish_reason="length")
        yield Tried(f"model: {first}( cut off", cut)
        if good:
            yield _replied((good[0], good[0].model_copy(update={"id": "c1"})))

    def _calls_of(self, name: str) -> list[NativeCall]:
        spec = self.tools.get(name) or open_tool(name)
        found = [one for one in samples(spec.parameters, self.scenario.words) if isinstance(one, dict)]
        return [NativeCall(id="c0", name=name, arguments=json.dumps(one)) for one in found[:4]]

    # -- tools --------------------

    def _results(self, effect: CallTools) -> Iterator[Tried]:
        """All calls end alike, or the first by itself and the others well."""
        good = [self._result(call, self._outputs(call)[0], None) for call in effect.calls]
        for text, ends in self._ends(effect.calls[0]):
            results = tuple(self._checked(call, *ends) for call in effect.calls)
            yield Tried(f"{_names(effect)}{text}", ToolsReturned(results=results))
            if len(effect.calls) > 1:
                yield Tried(
                    f"{effect.calls[0].tool} alone{text}", ToolsReturned(results=(results[0], *good[1:]))
                )
        errors = ["transient", "fatal"]
        if any(self._spec(call).effect in MAY_HAVE_ACTED for call in effect.calls):
            errors.append("unknown_outcome")
        for error in errors:
            failed = EffectFailed(error=error, type="Activity", message="the call failed")
            yield Tried(f"{_names(effect)}, the activity: {error}", failed)

    def _ends(self, call: ToolCall) -> Iterator[tuple[str, tuple[str | None, Any]]]:
        for output in self._outputs(call):
            yield f" -> {output}", (output, None)
        errors = [*TOOL_ERRORS]
        if self._spec(call).effect in MAY_HAVE_ACTED:
            errors.append("unknown_outcome")
        for error in errors:
            yield f": {error}", (None, error)

    def _checked(self, call: ToolCall, output: str | None, error: Any) -> ToolResult:
        """What the engine answers where it does not make the call, else this end."""
        if self.tools and call.tool not in self.tools and call.tool not in self.scenario.outputs:
            return self._result(call, f"There is no tool {call.tool}", "unknown_tool")
        fitted = arguments_for(self._spec(call), call.arguments)
        if isinstance(fitted, str):
            return self._result(call, fitted, "bad_arguments")
        return self._result(call, output or f"the call ended: {error}", error)

    def _result(self, call: ToolCall, output: str, error: Any) -> ToolResult:
        kept = tuple(_artifact(one.name, output) for one in call.artifacts) if error is None else ()
        return ToolResult(id=call.id, tool=call.tool, output=output, error=error, artifacts=kept)

    def _outputs(self, call: ToolCall) -> tuple[str, ...]:
        given = tuple(self.scenario.outputs.get(call.tool, ()))
        if call.form is not None and not given:
            made = samples(schema_of(call.form), self.scenario.words)
            given = tuple(json.dumps(value, ensure_ascii=False) for value in made)
        return (*given, "???") if given else ("found", "")

    def _spec(self, call: ToolCall) -> ToolSpec:
        return self.tools.get(call.tool) or open_tool(call.tool)


def _forms(effect: Effect[Any]) -> tuple[int, ...]:
    """Forms are declared once, so that their identity tells them apart."""
    if isinstance(effect, Together):
        return tuple(form for one in effect.effects for form in _forms(one))
    if isinstance(effect, CallTools):
        return tuple(id(call.form) for call in effect.calls)
    return (id(effect.form),) if isinstance(effect, AskModel) else ()


def _replied(reply: Any) -> Tried:
    if isinstance(reply, str):
        return Tried(f"model: {reply}", ModelReplied(text=reply))
    shown = ", ".join(f"{call.name}({call.arguments})" for call in reply)
    return Tried(f"model calls {shown}", ModelReplied(text="", tool_calls=reply, finish_reason="tool_calls"))


def _names(effect: CallTools) -> str:
    return ", ".join(call.tool for call in effect.calls)


def _artifact(name: str, text: str) -> Artifact:
    body = text.encode()
    return Artifact(name=name, digest=hashlib.sha256(body).hexdigest(), bytes=len(body), preview=text)


def _decisions(effect: AskPerson) -> Iterator[Tried]:
    for decision in (*effect.options, "unavailable"):
        text = "well" if decision == "answer" else ""
        yield Tried(f"person: {decision}", PersonDecided(decision=decision, by="ann", text=text))
    failed = EffectFailed(error="fatal", type="Store", message="nobody could be asked")
    yield Tried("person: the request fails", failed)


def _texts_read(effect: ReadArtifacts) -> Iterator[Tried]:
    for text, one in (
        ("42", ArtifactText(text="42", chars=2)),
        ("lost", ArtifactText(problem="it is lost")),
    ):
        yield Tried(f"text: {text}", ArtifactsRead(texts=(one,) * len(effect.reads)))


def _inner_runs(effect: RunMachine) -> Iterator[Tried]:
    ended = MachineEnded(machine=effect.machine, ok=True, exit_reason="stop", answer="42")
    yield Tried("inner run: answers 42", ended)
    failed = MachineEnded(machine=effect.machine, ok=False, exit_reason="max_steps", error="no answer")
    yield Tried("inner run: no answer", failed)
    for error in ("fatal", "unknown_outcome"):
        broken = EffectFailed(error=error, type="Inner", message="it broke")
        yield Tried(f"inner run: {error}", broken)


def _blocks(effect: RunCode) -> Iterator[Tried]:
    """How far a block comes. A session is named by the calls that its block has made: the sandbox ends a
    block that makes more than it may, and one that is told to stop."""
    made = 0 if effect.block is not None else int(effect.session.removeprefix("s"))
    yield Tried("code: ends, prints 'out'", CodeStepped(session="s0", printed="out"))
    if effect.answer is not None and effect.answer.stop:
        return
    yield Tried("code: NameError", CodeStepped(session="s0", error="NameError: x"))
    yield Tried("code: out of time", CodeStepped(session=effect.before, error="Timeout", fatal=True))
    for name in effect.names if made < effect.limits.calls else ():
        for args in ((), ("x",)):
            step = CodeStepped(session=f"s{made + 1}", call=CodeCall(name=name, args=args))
            yield Tried(f"code: calls {name}({', '.join(args)})", step)
    yield Tried("code: fatal", EffectFailed(error="fatal", type="Sandbox", message="it is gone"))
